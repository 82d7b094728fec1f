"""Floor 8: how well a backend's tool calls come out: a battery of requests, judged by the core, and a report of it."""
