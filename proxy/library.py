"""The core for your own client: the bytes of a backend's reply in, text and judged tool calls out. Sans-I/O.

    assembler = Assembler(request, headers=reply.headers)
    for data in reply.iter_raw():  # httpx; any bytes in any pieces
        for event in assembler.feed(data):
            if isinstance(event, Text):
                print(event.text, end="")
    assembler.close()
    for call in assembler.calls:
        print(call.name, call.verdict, call.arguments)

What is mended, judged and reported is what the proxy mends, judges and reports; here nothing is withheld, and whoever
calls decides by the verdict. Only a call whose verdict is `valid` is whole, strict JSON and accepted by its schema.
Schemas and arguments are checked in this process, which a hostile schema may keep busy for seconds: give your own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from proxy.checks.judge import judge
from proxy.checks.schema import compile_problem, unusable_schema
from proxy.dialects import CLIENT_DIALECTS, UPSTREAM_DIALECTS
from proxy.dialects.base import Encoder, invalid
from proxy.exchange import Exchange, ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.calls import CallError, JudgedCall, Verdict
from proxy.model.commands import Check, Command, Finish, Retry
from proxy.model.deltas import FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.wire.jsondoc import NotJson, dump, load

__all__ = ["Assembler", "Call", "CallError", "Event", "Fault", "Quirk", "Settings", "Text", "Usage", "Verdict"]

Settings = ExchangeSettings
_SETTINGS = Settings()
Kind = Literal["text", "reasoning", "refusal"]


@dataclass(frozen=True, slots=True)
class Text:
    """Text of one event, as it came. `choice` counts the request's `n` answers from 0."""

    choice: int
    text: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the reply.

    `index` counts the choice's calls from 0. `arguments` is JSON text where the verdict is `valid` (for a `custom` tool
    the free text that its contract is), else the characters as they came. `quirks` say what of it was mended,
    `repairs` which characters were changed, `error` what is wrong with it (None where nothing is); `format` is the
    markup that it was found in, if it came as text.
    """

    choice: int
    index: int
    id: str
    name: str
    arguments: str
    verdict: Verdict
    kind: Literal["function", "custom"] = "function"
    quirks: tuple[Quirk, ...] = ()
    repairs: tuple[str, ...] = ()
    error: CallError | None = None
    format: str = ""

    def as_json(self) -> dict[str, Any]:
        """The same as what `json.dumps` takes."""
        return asdict(self)


Event = Text | Call


class Assembler:
    """One reply: `feed` its bytes, then `close`; what is known of it then stands in the other attributes.

    `request` is the request that the reply answers, as the client wrote it: a JSON document, or its text. Of it the
    tools, `tool_choice`, `parallel_tool_calls`, `n`, `stream` and the ids of earlier calls count; `{"tools": [...]}` is
    enough. `dialect` is the backend's: openai-chat, openai-responses, anthropic-messages, gemini or ollama-chat;
    `request_dialect` the request's, one of the first three (not given: the backend's if it is one of them, else
    openai-chat). `status` and `headers` are the reply's; a content-encoding is undone here, so feed the bytes as they
    came, or leave that header out. Without `stream` in the request the content type decides whether it is one.
    `settings` has the limits, in bytes, and what is repaired and recovered.

    Raises Fault (an exception with `detail`) for a request that cannot be used.
    """

    def __init__(
        self,
        request: Mapping[str, Any] | bytes,
        *,
        dialect: str = "openai-chat",
        request_dialect: str | None = None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        settings: Settings = _SETTINGS,
    ) -> None:
        heads = {name.lower(): value for name, value in (headers or {}).items()}
        if dialect not in UPSTREAM_DIALECTS:
            raise invalid(f"no dialect {dialect!r}; there are {', '.join(UPSTREAM_DIALECTS)}")
        own = request_dialect or (dialect if dialect in CLIENT_DIALECTS else "openai-chat")
        if own not in CLIENT_DIALECTS:
            raise invalid(f"no request dialect {own!r}; there are {', '.join(CLIENT_DIALECTS)}")
        self.calls: tuple[Call, ...] = ()
        self.quirks: tuple[Quirk, ...] = ()  # of the reply as a whole; a call has its own
        self._over = False
        self._values = values = _Values()
        client = replace(CLIENT_DIALECTS[own], encoder=lambda *_: values, error_body=values.error)
        settings = replace(settings, mode="annotate", delivery="held", annotations="always", reask=0)
        self._exchange = Exchange(_read(request, own, heads), settings, seed="", created=0, client=client)
        self._carry_out(self._exchange.opened(status, heads, 0.0, dialect=dialect))

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes bring: text at once; calls when the reply has ended, all of them together."""
        self._carry_out(self._exchange.receive(data, 0.0))
        return self._given()

    def close(self, *, broken: bool = False) -> list[Event]:
        """The body has ended, or `broken`: the connection was lost in the middle of it. What is still to come.

        A reply whose end is not proven is cut: `fault` says so, and every call is `incomplete`, however whole it looks.
        """
        reset = Fault(FaultKind.STREAM_CUT, "the connection was lost in the middle of the reply")
        self._carry_out(self._exchange.broken(reset, 0.0) if broken else self._exchange.ended(0.0))
        return self._given()

    @property
    def over(self) -> bool:
        """Nothing more of the body is wanted: the reply has ended, or failed."""
        return self._over

    @property
    def fault(self) -> Fault | None:
        """Why the reply failed: an error of the backend, a cut, a limit. None where it ended well."""
        return self._values.fault

    @property
    def text(self) -> str:
        """The first choice's text so far."""
        return self.text_of(0)

    def text_of(self, choice: int, kind: Kind = "text") -> str:
        return "".join(self._values.texts.get((choice, kind), ()))

    @property
    def finish_reason(self) -> str | None:
        """The first choice's; None while the reply has not ended, and where it failed."""
        return self.finish_reasons.get(0)

    @property
    def finish_reasons(self) -> Mapping[int, str]:
        """By choice: stop, tool_calls, length or content_filter."""
        return self._values.finish_reasons

    @property
    def usage(self) -> Usage | None:
        """Tokens, where the reply ended well and the backend told of them."""
        return self._values.usage_counts

    # --- what the core wants -----------------------------------------------------------------------------------

    def _carry_out(self, commands: Sequence[Command]) -> None:
        waiting = list(commands)
        while waiting:
            match waiting.pop(0):
                case Check(jobs):
                    waiting += self._exchange.checked([judge(job) for job in jobs], 0.0)
                case Retry(fault):
                    waiting += self._exchange.abandon(fault, 0.0)
                case Finish(record):
                    self._over = True
                    self.calls = tuple(map(_call, self._exchange.calls))
                    own = [quirk for call in self.calls for quirk in call.quirks]
                    self.quirks = tuple(record.quirks[: len(record.quirks) - len(own)])
                    self._values.events += self.calls
                case _:
                    pass  # there is no client to send to, and the body ends by itself

    def _given(self) -> list[Event]:
        events, self._values.events = self._values.events, []
        return events


class _Values(Encoder):
    """A client dialect without bytes: what would be written is handed over as values."""

    ordered = usage_first = False

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.texts: dict[tuple[int, Kind], list[str]] = {}
        self.finish_reasons: dict[int, str] = {}
        self.usage_counts: Usage | None = None
        self.fault: Fault | None = None

    def piece(self, piece: Piece) -> bytes:
        texts: tuple[tuple[Kind, str], ...] = (
            ("reasoning", piece.reasoning),
            ("text", piece.text),
            ("refusal", piece.refusal),
        )
        for kind, text in texts:
            if text:
                self.events.append(Text(piece.choice, text, kind))
                self.texts.setdefault((piece.choice, kind), []).append(text)
        return b""

    def call_head(self, call: JudgedCall) -> bytes:
        return b""  # all of them are taken at the end, with those that no client would be sent

    def call_text(self, call: JudgedCall, text: str) -> bytes:
        return b""

    def call_end(self, call: JudgedCall) -> bytes:
        return b""

    def finish(self, choice: int, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> bytes:
        self.finish_reasons[choice] = reason
        return b""

    def usage(self, delta: UsageDelta) -> bytes:
        self.usage_counts = delta.counts
        return b""

    def done(self) -> bytes:
        return b""

    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes:
        self.fault = fault
        return b""

    def can_carry(self, call: JudgedCall) -> bool:
        return True


def _call(judged: JudgedCall) -> Call:
    return Call(
        judged.choice,
        judged.index,
        judged.call_id,
        judged.name,
        judged.text,
        judged.verdict,
        judged.kind,
        tuple(judged.quirks),
        tuple(judged.repairs),
        judged.error,
        judged.format,
    )


def _read(request: Mapping[str, Any] | bytes, dialect: str, headers: Mapping[str, str]) -> Request:
    """The request, with a model, a message and `stream` where they are missing. Raises Fault."""
    if isinstance(request, bytes):
        try:
            document = load(request, strict=True)
        except NotJson as error:
            raise Fault(FaultKind.INVALID_JSON, f"the request is no JSON: {error}") from None
    else:
        document = request
    if not isinstance(document, Mapping):
        raise invalid("the request is no JSON object")
    is_stream = any(kind in headers.get("content-type", "text/event-stream") for kind in ("event-stream", "ndjson"))
    talk = {"input": "?"} if dialect == "openai-responses" else {"messages": [{"role": "user", "content": "?"}]}
    body = {"model": "?", "stream": is_stream, "max_tokens": 1, **talk, **document}
    found = CLIENT_DIALECTS[dialect].read(dump(body))
    for tool in found.tools.values():
        problem = compile_problem(tool.schema) if tool.schema is not None else None
        if problem is not None:
            raise unusable_schema(tool.name, problem)
    return replace(found, include_usage=True)
