"""Floor 7: the shell. It does I/O and decides nothing about tool calls.

guard      the HTTP/1.1 protocol class: what a client may send at all
app        paths to endpoints; request ids; the last line of error handling
endpoints  one ASGI callable a path
pump       one exchange: upstream bytes in, client bytes out, deadlines, failover
upstream   the HTTP client towards backends; headers by allow-list
state      what one configuration means at run time, and what outlives it
auth, limits, metrics, logs   each what its name says
lifecycle  sockets, signals, draining, worker processes
"""
