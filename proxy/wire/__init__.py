"""Floor 1: bytes to frames. Framing, content-encoding and JSON documents; nothing here knows a dialect."""
