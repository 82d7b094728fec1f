"""OpenTelemetry traces: one span an exchange, one event a tool call. Imported only where `telemetry.traces` is on.

The names are those of the semantic conventions for generative AI (a client's inference span), as of 2026; what they
have no name for begins with `wholecall.`. Spans go out over OTLP/HTTP, as the OTEL_* environment variables say. No
prompt, no text, no credential is in a span, and arguments only with `telemetry.arguments`.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from proxy import __version__
from proxy.config import Backend
from proxy.exchange import Exchange
from proxy.model.calls import JudgedCall
from proxy.model.deltas import Usage
from proxy.model.requests import Request
from proxy.server.entry import Entry
from proxy.server.http_client import Headers
from proxy.server.logs import cut
from proxy.server.state import clock

# Who the conventions say it is that speaks a dialect, whatever stands behind it.
PROVIDERS = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "anthropic-messages": "anthropic",
    "gemini": "gcp.gemini",
    "ollama-chat": "ollama",
}
# Beyond this the end of the process does not wait for the collector.
FLUSH_S = 1.0
MAX_ARGUMENTS_CHARS = 4096

_CONTEXT = ("traceparent", "tracestate")  # lower-case names of the W3C's headers
# What a model may have made up as a name or an id: shown only where it looks like one.
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_PROPAGATOR = TraceContextTextMapPropagator()

logger = logging.getLogger("wholecall")

Attributes = dict[str, AttributeValue]


class Tracing:
    """Of one process; made after a fork, not before, since it has a thread. `processor` takes the ended spans."""

    def __init__(self, *, arguments: bool, processor: SpanProcessor | None = None) -> None:
        self._arguments = arguments
        own = {"service.name": "wholecall", "service.version": __version__}
        environment = OTELResourceDetector().detect().attributes  # which overrides our own
        self._provider = TracerProvider(resource=Resource.create({**own, **environment}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor or BatchSpanProcessor(_Exporter()))
        self._tracer = self._provider.get_tracer("wholecall", __version__)

    def begin(
        self, entry: Entry, request: Request, backend: Backend, headers: Headers, exchange: Exchange
    ) -> ExchangeSpan:
        """The span of an exchange that was admitted and has a route; of the client's trace, if it sent one."""
        carrier: dict[str, str] = {}
        for name_bytes, value in headers:
            name = name_bytes.decode("latin-1")
            if name in _CONTEXT:  # tracestate may be a list over several headers
                carrier[name] = (
                    f"{carrier[name]},{value.decode('latin-1')}" if name in carrier else value.decode("latin-1")
                )
        model = cut(entry.harmless(request.model), 128)
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDERS[backend.dialect],
            "gen_ai.request.model": model,
            "gen_ai.request.stream": request.stream,
            **_address(backend),
            "wholecall.request_id": entry.request_id,
        }
        if request.choices != 1:
            attributes["gen_ai.request.choice.count"] = request.choices
        span = self._tracer.start_span(
            f"chat {model}",
            _PROPAGATOR.extract(carrier),
            SpanKind.CLIENT,
            attributes,
            start_time=_wall_ns(entry.started),
        )
        return ExchangeSpan(span, exchange, arguments=self._arguments)

    def close(self) -> None:
        """Send what is left, for at most a second. Blocks."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(FLUSH_S)


class _Exporter(OTLPSpanExporter):
    """Says when the collector begins to fail, and when it takes spans again. The library's own lines quote the endpoint
    and what the collector answers, at each try."""

    failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self.failing:
            logger.warning("the collector does not take spans: they are lost; see OTEL_EXPORTER_OTLP_ENDPOINT")
        elif self.failing and not failed:
            logger.warning("the collector takes spans again")
        self.failing = failed
        return result


class ExchangeSpan:
    """One exchange's span."""

    __slots__ = ("_arguments", "_exchange", "_span")

    def __init__(self, span: Span, exchange: Exchange, *, arguments: bool) -> None:
        self._span = span
        self._exchange = exchange
        self._arguments = arguments

    def pass_on(self, headers: dict[str, str], backend: Backend) -> None:
        """Put the span's context into a request to this backend, in place of the client's."""
        for name in _CONTEXT:
            headers.pop(name, None)
        _PROPAGATOR.inject(headers, set_span_in_context(self._span))
        self._span.set_attributes({"gen_ai.provider.name": PROVIDERS[backend.dialect], **_address(backend)})

    def end(self, entry: Entry) -> None:
        """The exchange is over: what was measured of it. Once."""
        exchange = self._exchange
        if self._span.is_recording():
            for backend, fault in entry.attempts:
                code = fault.kind.value.code
                self._span.add_event("wholecall.attempt_failed", {"wholecall.backend": backend, "error.type": code})
            for call in exchange.calls:
                self._span.add_event("wholecall.tool_call", self._call(call, entry))
            self._span.set_attributes(_attributes(entry, exchange))
            if entry.record.outcome in ("error", "blocked"):
                self._span.set_status(StatusCode.ERROR)
        self._span.end(_wall_ns(entry.ended_at))

    def _call(self, call: JudgedCall, entry: Entry) -> Attributes:
        attributes: Attributes = {
            "gen_ai.tool.type": call.kind,
            "wholecall.verdict": call.verdict.value,
            "wholecall.delivered": call.sent_index is not None,
        }
        for name, text in (("gen_ai.tool.name", call.name), ("gen_ai.tool.call.id", call.call_id)):
            if _NAME.fullmatch(text):
                attributes[name] = entry.harmless(text)
        if call.quirks:
            attributes["wholecall.quirks"] = [quirk.value for quirk in call.quirks]
        if call.repairs:
            attributes["wholecall.repairs"] = call.repairs
        if call.format:
            attributes["wholecall.format"] = call.format
        if call.error is not None:  # all of it from fixed texts and the declared schema
            attributes["wholecall.error.rule"] = call.error.rule
            attributes["wholecall.error.path"] = call.error.path
        if self._arguments:
            attributes["gen_ai.tool.call.arguments"] = entry.harmless(cut(call.text, MAX_ARGUMENTS_CHARS))
        return attributes


def _attributes(entry: Entry, exchange: Exchange) -> Mapping[str, AttributeValue]:
    record = entry.record
    found: dict[str, AttributeValue | None] = {
        "gen_ai.response.finish_reasons": exchange.finish_reasons or None,
        "gen_ai.response.time_to_first_chunk": entry.first_byte_s if entry.stream else None,
        "http.response.status_code": record.status or None,
        "wholecall.outcome": record.outcome,
        "wholecall.route": entry.route,
        "wholecall.backend": entry.backend,
        "wholecall.client": entry.client or None,
        "wholecall.quirks": [quirk.value for quirk in dict.fromkeys(record.quirks)] or None,
        "wholecall.reask": record.reask or None,
        "wholecall.hold_s": entry.hold_s,
        "wholecall.overhead_s": entry.overhead_s,
    }
    if record.outcome in ("error", "blocked"):
        found["error.type"] = cut(entry.harmless(record.code), 64) or "error"
    if exchange.envelope is not None:
        reply_id, _, model = exchange.envelope
        found["gen_ai.response.id"] = entry.harmless(reply_id) if _NAME.fullmatch(reply_id) else None
        found["gen_ai.response.model"] = entry.harmless(model) if _NAME.fullmatch(model) else None
    if exchange.tokens is not None:
        found |= _tokens(exchange.tokens)
    return {name: value for name, value in found.items() if value is not None}


def _tokens(usage: Usage) -> dict[str, AttributeValue | None]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }


def _address(backend: Backend) -> Attributes:
    parts = urlsplit(backend.base_url)
    return {
        "server.address": parts.hostname or "",
        "server.port": parts.port or (443 if parts.scheme == "https" else 80),
    }


def _wall_ns(moment: float) -> int:
    """A moment of the monotonic clock as unix time in nanoseconds."""
    return time.time_ns() - int((clock() - moment) * 1e9)
