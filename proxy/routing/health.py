"""A circuit breaker for one backend.

Closed: everything passes. `threshold` failures in a row within `window_s` open it: nothing passes until the back-off
is over. Then it is half-open: one probe at a time passes. A success closes it, a failure opens it again for twice as
long, up to `max_backoff_s`.

                 threshold failures                  back-off over
      closed ------------------------> open ----------------------> half-open
        ^                                ^------ failure, doubled ------'  |
        '----------------------------- success ---------------------------'

A failure is one of the backend itself: no connection, a timeout, a status of 429 or 5xx. A faulty tool call or an
error inside a 200 is the model's or the request's and is reported as a success: the backend answered.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]


class Breaker:
    """Not thread-safe by design: it belongs to one event loop. All times are seconds of one monotonic clock.

    Around each attempt on the backend: `begin`, then exactly one of `record_success`, `record_failure` and `release`.
    """

    def __init__(
        self,
        threshold: int = 5,
        window_s: float = 60.0,
        first_backoff_s: float = 1.0,
        max_backoff_s: float = 60.0,
        probe_s: float = 60.0,
    ) -> None:
        """`probe_s`: after this long a probe without an outcome no longer keeps the next one waiting, so that an
        outcome that is never reported cannot close the backend for ever."""
        self._window_s = window_s
        self._first_backoff_s = first_backoff_s
        self._max_backoff_s = max_backoff_s
        self._probe_s = probe_s
        self._failures: deque[float] = deque(maxlen=threshold)
        self._backoff_s = 0.0  # of the current outage; 0: closed
        self._open_until = 0.0
        self._probe_until: float | None = None  # a probe is out, and is waited for until then

    def state(self, now: float) -> BreakerState:
        """`closed` is what a gauge calls up: the other two last until a success."""
        if not self._backoff_s:
            return "closed"
        return "open" if now < self._open_until else "half_open"

    def is_up(self, now: float) -> bool:
        """Whether an attempt may begin now. Changes nothing."""
        state = self.state(now)
        return state == "closed" or (state == "half_open" and not self._is_probing(now))

    def begin(self, now: float) -> bool:
        """Take leave for one attempt: `is_up(now)`, and where that makes it the probe, nobody else gets one."""
        if not self.is_up(now):
            return False
        if self._backoff_s:
            self._probe_until = now + self._probe_s
        return True

    def record_success(self, now: float) -> None:
        """The backend answered, whatever it said. Also closes a breaker on which an attempt was forced."""
        self._failures.clear()
        self._backoff_s = 0.0
        self._probe_until = None

    def record_failure(self, now: float, retry_after_s: float | None = None) -> None:
        """The backend failed. `retry_after_s`, as its Retry-After said, keeps an open breaker open for at least that
        long, up to `max_backoff_s`; alone it opens nothing, since a rate limit may be one client's only.

        While a probe is out, any failure counts as the probe's. While the breaker is open a failure is a late one, or
        one of an attempt that was forced, and doubles nothing.
        """
        state = self.state(now)
        if state == "closed":
            self._failures.append(now)
            if len(self._failures) == self._failures.maxlen and now - self._failures[0] <= self._window_s:
                self._open(now, self._first_backoff_s, retry_after_s)
        elif state == "half_open":
            self._open(now, min(2 * self._backoff_s, self._max_backoff_s), retry_after_s)
        else:
            self._hold(now, retry_after_s)

    def release(self) -> None:
        """The attempt ended without saying anything about the backend: the client left first."""
        self._probe_until = None

    def _open(self, now: float, backoff_s: float, retry_after_s: float | None) -> None:
        self._failures.clear()
        self._backoff_s = backoff_s
        self._open_until = now + backoff_s
        self._probe_until = None
        self._hold(now, retry_after_s)

    def _hold(self, now: float, retry_after_s: float | None) -> None:
        if retry_after_s is not None and retry_after_s > 0:
            self._open_until = max(self._open_until, now + min(retry_after_s, self._max_backoff_s))

    def _is_probing(self, now: float) -> bool:
        return self._probe_until is not None and now < self._probe_until
