"""Load: many exchanges of known outcome through real proxy processes, each reply looked at, all counters compared.

    plan       the kinds of exchange: what the upstream does, and what must come of it
    mock       the scripted upstream, a process of its own: five dialects, faults by model name
    client     sends the requests, reads and judges the replies
    ledger     what was sent and seen, against /metrics, the log and the upstream's own counts
    instance   a proxy process; what its process tree uses
    traffic    many clients at once, and the reckoning
    flat       the runs `streams` and `soak`
    upheaval   the runs `workers`, `reload` and `restart`

In tests/, `python -m load RUN` runs one for long; tests/test_load.py has a short piece of each.
"""
