"""Floor 7: the shell. It does I/O and decides nothing about tool calls.

- guard: the HTTP/1.1 protocol class; what a client may send at all
- app: paths to endpoints, request ids, the last line of error handling
- endpoints: one ASGI callable a path; passthrough: everything under /v1 that is no completion, and the models
- pump: one exchange; upstream bytes in, client bytes out, deadlines, failover
- attempt: one backend's turn, and what its circuit breaker is told
- upstream: the HTTP client towards backends; headers by allow-list
- checker: checks that cannot stall the event loop
- state: what one configuration means at run time, and what outlives it
- entry: what is written down of a request; logs and metrics: where
- auth, limits, respond: what their names say
- lifecycle: one serving process; supervisor: sockets and several of them
"""
