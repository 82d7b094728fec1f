"""Floor 7: recorded upstream replies, played over HTTP by an embedded backend or fed to the core in this process."""
