"""Traces: one span an exchange with the conventions' names, one event a tool call, one trace from client to backend."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvloop

import running
from proxy.config import ConfigError, from_document, values
from proxy.replay.backend import ReplayBackend
from support.client import REQUEST, Client, ask, chat
from support.proxy import Proxy, document
from support.upstream import Conversation, Script, Upstream, call_events, completion, text_events

if not os.environ.get("CI"):
    pytest.importorskip("opentelemetry.sdk", reason="the extra is not installed: pip install -e '.[test]'")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from proxy.server.telemetry import Tracing

ROOT = Path(__file__).resolve().parent.parent
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEY, ARGUMENT, PROMPT = "mark-key-0aF31", "mark-argument-1b42", "mark-prompt-2c53"
Test = Callable[[Proxy, Upstream], Coroutine[Any, Any, None]]


def run(script: Script, test: Test, *, arguments: bool = False, **tables: Any) -> list[ReadableSpan]:
    """The spans that ended."""
    exporter = InMemorySpanExporter()

    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url, **tables) as proxy:
            proxy.service.tracing = Tracing(arguments=arguments, processor=SimpleSpanProcessor(exporter))
            await test(proxy, up)
            await proxy.quiet()

    uvloop.run(main())
    return list(exporter.get_finished_spans())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan, name: str) -> list[dict[str, Any]]:
    return [dict(event.attributes or {}) for event in span.events if event.name == name]


async def calls(c: Conversation) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 2}}
    first, *rest = call_events("f", ['{"a":', f'"{ARGUMENT}"}}'])
    await c.stream(first, *rest, {**first, "choices": [], "usage": usage})


def test_a_span_has_the_conventions_names_and_an_event_for_the_call() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, stream=True, tools=[TOOL], headers={"x-request-id": "r-1"})
        assert b"tool_calls" in reply.body

    (span,) = run(calls, test)
    assert (span.name, span.kind, span.status.status_code) == ("chat m", SpanKind.CLIENT, StatusCode.UNSET)
    found = attributes(span)
    port = found.pop("server.port")
    assert isinstance(port, int)
    for measured in ("time_to_first_chunk", "hold_s", "overhead_s"):
        (name,) = [name for name in found if name.endswith(measured)]
        assert found.pop(name) >= 0
    first = call_events("f", [])[0]
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.id": first["id"],
        "gen_ai.response.model": first["model"],
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "server.address": "127.0.0.1",
        "http.response.status_code": 200,
        "wholecall.request_id": "r-1",
        "wholecall.outcome": "ok",
        "wholecall.route": "*",
        "wholecall.backend": "b0",
    }
    (call,) = events(span, "wholecall.tool_call")
    assert call.pop("gen_ai.tool.call.id")
    assert call == {
        "gen_ai.tool.name": "f",
        "gen_ai.tool.type": "function",
        "wholecall.verdict": "valid",
        "wholecall.delivered": True,
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time < span.end_time


def test_a_faulty_call_is_an_error_with_its_verdict_and_rule() -> None:
    async def script(c: Conversation) -> None:
        await c.stream(*call_events("f", ["{}"]))

    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await chat(proxy.port, tools=[TOOL])).status == 502

    (span,) = run(script, test)
    assert span.status.status_code is StatusCode.ERROR
    found = attributes(span)
    assert (found["error.type"], found["wholecall.outcome"]) == ("schema_violation", "blocked")
    assert "gen_ai.response.finish_reasons" not in found
    assert "gen_ai.response.time_to_first_chunk" not in found, "the client asked for no stream"
    (call,) = events(span, "wholecall.tool_call")
    assert (call["wholecall.verdict"], call["wholecall.delivered"]) == ("schema_violation", False)
    assert (call["wholecall.error.rule"], call["wholecall.error.path"]) == ("required", "")


@pytest.mark.parametrize("state", [(), ("a=1,b=2",), ("a=1", "b=2")])
def test_the_clients_trace_goes_on_to_the_backend_with_this_span_as_its_parent(state: tuple[str, ...]) -> None:
    async def script(c: Conversation) -> None:
        await c.answer(200, completion())

    async def test(proxy: Proxy, up: Upstream) -> None:
        body = json.dumps(REQUEST).encode()
        lines = [f"traceparent: {PARENT}", *(f"tracestate: {one}" for one in state), f"content-length: {len(body)}"]
        head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "host: p", *lines, "connection: close"])
        async with Client(proxy.port) as client:
            client.writer.write(head.encode() + b"\r\n\r\n" + body)
            assert b"200 OK" in await client.reader.read()
        seen.append(up.seen[0].headers)

    seen: list[dict[str, str]] = []
    (span,) = run(script, test)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-3]
    context = span.context
    assert context is not None
    assert seen[0]["traceparent"] == f"00-{PARENT[3:35]}-{context.span_id:016x}-01"
    assert seen[0].get("tracestate", "") == ",".join(state)


@pytest.mark.parametrize("parent", ["", "rubbish", PARENT[:-1] + "\x80"])
def test_without_a_usable_trace_of_the_clients_a_new_one_begins(parent: str) -> None:
    async def script(c: Conversation) -> None:
        await c.answer(200, completion())

    async def test(proxy: Proxy, up: Upstream) -> None:
        head = {"tracestate": "stale=1", **({"traceparent": parent} if parent else {})}
        assert (await chat(proxy.port, headers=head)).status == 200
        seen.append(up.seen[0].headers["traceparent"])
        assert "tracestate" not in up.seen[0].headers

    seen: list[str] = []
    (span,) = run(script, test, backend={"forward_headers": ["tracestate"]})
    assert span.parent is None
    assert span.context is not None
    assert seen[0][:-2] == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-"
    assert int(seen[0][-2:], 16) & 1, "sampled"


def test_a_client_that_did_not_sample_has_no_span_and_its_trace_is_passed_on() -> None:
    async def script(c: Conversation) -> None:
        await c.stream(*text_events("a"))

    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await chat(proxy.port, stream=True, headers={"traceparent": PARENT[:-1] + "0"})).status == 200
        assert up.seen[0].headers["traceparent"].startswith(PARENT[:35])
        assert up.seen[0].headers["traceparent"].endswith("-00")

    assert run(script, test) == []


def test_a_backend_that_failed_is_an_event_and_the_span_names_the_one_that_answered() -> None:
    async def script(c: Conversation) -> None:
        if len(up_seen) == 1:
            await c.answer(503, b'{"error": {"message": "busy"}}')
        else:
            await c.answer(200, completion())

    up_seen: list[str] = []

    async def counted(c: Conversation) -> None:
        up_seen.append(c.request.headers["traceparent"])
        await script(c)

    async def main() -> None:
        async with Upstream(counted) as up, Proxy(up.url, up.url) as proxy:
            proxy.service.tracing = Tracing(arguments=False, processor=SimpleSpanProcessor(exporter))
            assert (await chat(proxy.port)).status == 200

    exporter = InMemorySpanExporter()
    uvloop.run(main())
    (span,) = exporter.get_finished_spans()
    assert events(span, "wholecall.attempt_failed") == [{"wholecall.backend": "b0", "error.type": "upstream_error"}]
    assert attributes(span)["wholecall.backend"] == "b1"
    assert up_seen[0] == up_seen[1], "both attempts are of one span"


def test_a_client_that_leaves_ends_the_span() -> None:
    async def script(c: Conversation) -> None:
        await c.head()
        for event in text_events("one", "two")[:2]:
            await c.event(event)
        await c.until_closed()

    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.ask({**REQUEST, "stream": True})
            await client.reader.readuntil(b"one")
        await proxy.quiet()

    (span,) = run(script, test)
    assert attributes(span)["wholecall.outcome"] == "gone"
    assert span.status.status_code is StatusCode.UNSET


def test_what_never_had_a_route_has_no_span() -> None:
    async def script(c: Conversation) -> None:
        raise AssertionError("nobody is asked")

    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await ask(proxy.port, {"model": 1})).status == 400
        assert (await chat(proxy.port, tools=3)).status == 400

    assert run(script, test) == []


@pytest.mark.parametrize("arguments", [False, True])
def test_no_credential_and_no_prompt_is_in_a_span_and_arguments_only_where_they_are_asked_for(arguments: bool) -> None:
    """Not even where a backend quotes its key as an id, a model, a tool's name or an error's code."""

    async def quoting(c: Conversation) -> None:
        if "error" in c.request.json["messages"][0]["content"]:
            await c.answer(400, json.dumps({"error": {"message": KEY, "code": f"bad {KEY}"}}).encode())
            return
        first, *rest = call_events(KEY, ['{"a":', f'"{ARGUMENT} {KEY}"}}'])
        await c.stream(*({**event, "id": f"id-{KEY}", "model": f"of-{KEY}"} for event in (first, *rest)))

    async def test(proxy: Proxy, up: Upstream) -> None:
        for content in (PROMPT, f"{PROMPT} error"):
            messages = [{"role": "user", "content": content}]
            await ask(proxy.port, {"model": KEY, "messages": messages, "stream": True, "tools": [TOOL]},
                      headers={"authorization": f"Bearer {KEY}"})  # fmt: skip

    for backend in ({"api_key": KEY}, {"api_key": "forward"}):
        spans = run(quoting, test, arguments=arguments, backend=backend)
        assert len(spans) == 2
        (call,) = events(spans[0], "wholecall.tool_call")
        assert ("gen_ai.tool.call.arguments" in call) is arguments
        for span in spans:
            assert KEY not in str(span.to_json())
            assert PROMPT not in str(span.to_json())
            assert arguments or ARGUMENT not in str(span.to_json())


def test_arguments_are_shown_where_the_configuration_says_so() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        await chat(proxy.port, stream=True, tools=[TOOL])

    (span,) = run(calls, test, arguments=True)
    (call,) = events(span, "wholecall.tool_call")
    assert call["gen_ai.tool.call.arguments"] == f'{{"a":"{ARGUMENT}"}}'


def test_a_name_that_is_none_is_left_out() -> None:
    async def script(c: Conversation) -> None:
        await c.stream(*call_events("rm -rf / and a text", ["{}"]))

    async def test(proxy: Proxy, up: Upstream) -> None:
        await chat(proxy.port, tools=[TOOL])

    (span,) = run(script, test)
    (call,) = events(span, "wholecall.tool_call")
    assert call["wholecall.verdict"] == "unknown_tool"
    assert "gen_ai.tool.name" not in call


# --- on and off ----------------------------------------------------------------------------------------------------


def test_it_is_off_by_default_and_then_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from support.proxy import configuration; from proxy.server import lifecycle, state;"
        "service = state.Service(configuration('http://127.0.0.1:1/v1')); assert service.tracing is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or name.endswith('telemetry')])"
    )
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_without_the_extra_the_configuration_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        if name.startswith("opentelemetry.exporter.otlp"):
            raise ModuleNotFoundError(name)

    file = document("http://127.0.0.1:1/v1", telemetry={"traces": True})
    assert from_document(file, {}).telemetry.traces
    monkeypatch.setattr(values, "find_spec", missing)
    with pytest.raises(ConfigError) as caught:
        from_document(file, {})
    assert str(caught.value) == (
        "telemetry.traces: needs what is not installed; pip install 'wholecall[otel]', or write false"
    )
    assert not from_document(document("http://127.0.0.1:1/v1"), {}).telemetry.traces


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A receiver of OTLP over HTTP: its root URL, and what came."""
    came: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            if self.path == "/v1/traces":
                came.append(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_spans_go_to_the_collector_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wholecall_backend: ReplayBackend, workers: str
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    name = "wholecall"
    if workers == "2":
        name = "of-the-environment"
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    with collector() as (url, came):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        policy = "\n[telemetry]\ntraces = true"
        with running.proxy(tmp_path, wholecall_backend.url, policy, ("--workers", workers)) as proxy:
            for model in ("demo/interleaved-damaged", "demo/wrong-arguments"):
                body = json.dumps(wholecall_backend.request(model)).encode()
                uvloop.run(posted(int(proxy.rpartition(":")[2]), body))

            def resources() -> list[Any]:
                return [resource for request in came for resource in request.resource_spans]

            def spans() -> list[Any]:
                return [span for resource in resources() for scope in resource.scope_spans for span in scope.spans]

            running.until(lambda: len(spans()) == 2, "both spans are at the collector")
    for resource in resources():
        told = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
        assert (told["service.name"], told["deployment.environment.name"]) == (name, "test")
    assert sorted(span.name for span in spans()) == ["chat demo/interleaved-damaged", "chat demo/wrong-arguments"]
    verdicts = [
        attribute.value.string_value
        for span in spans()
        for event in span.events
        for attribute in event.attributes
        if attribute.key == "wholecall.verdict"
    ]
    assert sorted(verdicts) == ["schema_violation", "valid", "valid", "valid"]


def test_the_last_spans_go_out_at_the_stop() -> None:
    """And not before: the next time would be in an hour."""

    async def script(c: Conversation) -> None:
        await c.answer(200, completion())

    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url) as proxy:
            proxy.service.tracing = Tracing(arguments=False, processor=BatchSpanProcessor(exporter, 2048, 3_600_000))
            assert (await chat(proxy.port)).status == 200
            await proxy.quiet()
            assert exporter.get_finished_spans() == ()

    exporter = InMemorySpanExporter()
    uvloop.run(main())
    assert [span.name for span in exporter.get_finished_spans()] == ["chat m"]


async def posted(port: int, body: bytes) -> None:
    async with asyncio.timeout(running.WAIT_S), Client(port) as client:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: p\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        client.writer.write(head.encode() + body)
        assert b" 200 " in await client.reader.read()


def test_a_collector_that_is_not_there_holds_up_neither_answers_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wholecall_backend: ReplayBackend
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{running.free_port()}")
    with running.proxy(tmp_path, wholecall_backend.url, "\n[telemetry]\ntraces = true") as proxy:
        body = json.dumps(wholecall_backend.request("demo/clean")).encode()
        uvloop.run(posted(int(proxy.rpartition(":")[2]), body))
    log = (tmp_path / "proxy.log").read_text()
    told = [json.loads(line) for line in log.splitlines()]
    warnings = [line["message"] for line in told if line["level"] not in ("info", "debug")]
    assert [message.partition(":")[0] for message in warnings] in ([], ["the collector does not take spans"])
