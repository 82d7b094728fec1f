"""The inspector: of recent replies what came from the upstream, what was sent, and the calls between.

    notes    what one exchange saw, taken down while it runs (bounded)
    ring     the finished ones, oldest out first (bounded)
    redact   values masked, shape kept
    view     a kept reply as the page's JSON, and as a case file for `wholecall replay`
    web      `/inspect`: who may look, the page, its JSON

Off by default. Where it is off `Service.inspector` is None, and that is asked once an exchange; where it is on, an
exchange is a `WatchedExchange`, which tells its notes what goes in and what comes out.
"""
