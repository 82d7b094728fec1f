"""Scripted ends for tests through real sockets: an upstream that follows a script, a client that notices everything,
and the proxy between them, in the test's own event loop."""
