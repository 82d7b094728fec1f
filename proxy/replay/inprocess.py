"""One exchange through the core without sockets: the bytes go in, the commands are carried out here, at once.

Nothing waits: the clock is a number that jumps to whatever moment the machine asks to be woken at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from proxy.checks.judge import judge
from proxy.exchange import Exchange, ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.commands import Check, Command, Finish, Record, Retry, Send, Start, Stop
from proxy.model.requests import Request
from proxy.replay.recording import CREATED, Recording


@dataclass(slots=True)
class Answer:
    """What a client would have received. `faults` are those of failed attempts; `record` is None only while it runs."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    faults: list[Fault] = field(default_factory=list)
    record: Record | None = None
    stopped: bool = False


class Runner:
    """Carries out one exchange's commands. `now` is the clock in seconds: a fake one, or set by whoever feeds it.

    `first_event_at`: when the first event came that said something.
    """

    def __init__(self, request: Request, settings: ExchangeSettings, *, seed: str = "replay") -> None:
        self.exchange = Exchange(request, settings, seed=seed, created=CREATED)
        self.answer = Answer()
        self.now = 0.0
        self.first_event_at: float | None = None

    def open(self, status: int, headers: dict[str, str], dialect: str = "openai-chat", *, own_key: bool = True) -> None:
        self._carry_out(self.exchange.opened(status, headers, self.now, dialect=dialect, own_key=own_key))

    def receive(self, data: bytes) -> None:
        if self.over:
            return
        before = self.exchange.data_at
        if self.exchange.flow(data, self.now):
            self.answer.body += data
        else:
            self._carry_out(self.exchange.receive(data, self.now))
        if self.first_event_at is None and self.exchange.data_at != before:
            self.first_event_at = self.exchange.data_at

    def end(self, how: Literal["eof", "reset"] = "eof") -> None:
        """The body ends; then time passes until the exchange is over."""
        if not self.over and how == "eof":
            self._carry_out(self.exchange.ended(self.now))
        elif not self.over:
            reset = Fault(FaultKind.STREAM_CUT, "the upstream closed the connection in the middle of its reply")
            self._carry_out(self.exchange.broken(reset, self.now))
        self._settle()

    def break_off(self, fault: Fault) -> None:
        """Nothing more comes, because of `fault`, or no answer ever came."""
        if not self.over:
            self._carry_out(self.exchange.broken(fault, self.now))
        self._settle()

    def _settle(self) -> None:
        while self.answer.record is None and self.exchange.deadline is not None:
            self.wake()

    def wake(self) -> bytes:
        """Time passes until the machine asked to be woken; what it sent then."""
        before = len(self.answer.body)
        self.now = max(self.now, self.exchange.deadline or self.now)
        self._carry_out(self.exchange.tick(self.now))
        return bytes(self.answer.body[before:])

    @property
    def over(self) -> bool:
        """Nothing more of the upstream's body is wanted."""
        return self.answer.stopped or self.answer.record is not None

    def _carry_out(self, commands: Sequence[Command]) -> None:
        waiting = list(commands)
        while waiting:
            command = waiting.pop(0)
            match command:
                case Start(status, headers):
                    self.answer.status = status
                    self.answer.headers = {name.lower(): value for name, value in headers}
                case Send(data):
                    self.answer.body += data
                case Check(jobs):
                    waiting += self.exchange.checked([judge(job) for job in jobs], self.now)
                case Retry(fault):
                    self.answer.faults.append(fault)
                    self.answer.stopped = True  # there is no other backend here
                    waiting += self.exchange.abandon(fault, self.now)
                case Stop():
                    self.answer.stopped = True
                case Finish(record):
                    self.answer.record = record


def run(
    request: Request, recording: Recording, settings: ExchangeSettings, pieces: Iterable[bytes] | None = None
) -> Answer:
    """What a client gets of this recording; `pieces` are its bytes cut otherwise."""
    runner = Runner(request, settings)
    runner.open(recording.status, dict(recording.headers), recording.dialect)
    for piece in recording.pieces if pieces is None else pieces:
        runner.receive(piece)
    runner.end(recording.end)
    return runner.answer
