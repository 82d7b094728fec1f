"""Fault injection: what the proxy makes of each way in which an upstream or a client can misbehave.

    table.md       the fault table: what each side sees of a fault, what the metrics say, what is left behind
    table.py       reads it
    replies.py     the one reply that all faults spoil, in each upstream dialect, and the request for it
    upstreams.py   what hostile upstreams do, by the name of the fault
    listeners.py   upstreams that never get as far as a request
    cuts.py        replies that break off at each of their bytes
    clients.py     what hostile clients do, by the name of the fault; visit.py is one of them at work
    asking.py      good requests in each client dialect, and what a client makes of the answer
    world.py       the proxy between the two, and what must be as before once a fault is over

tests/test_faults_*.py make every cell true. A new fault is a row in table.md and an act beside its name.
"""
