"""Fault injection: what the proxy makes of every way in which an upstream or a client can misbehave.

    table.py       a row of the table: the fault, and what each side and the metrics see of it
    replies.py     the one reply that all faults spoil, in each upstream dialect, and the requests for it
    upstreams.py   the rows of hostile upstreams, with what each of them does
    clients.py     the rows of hostile clients, with what each of them does
    world.py       the proxy between the two, and what must be as before once a fault is over

`python -m faults` (in tests/) prints the table; tests/test_faults_*.py make every cell of it true.
"""
