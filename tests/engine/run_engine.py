#!/usr/bin/env python3
"""The proxy in front of a real engine: llama.cpp's OpenAI-compatible server on a tiny random model.

    python tests/engine/run_engine.py [FOLDER]

FOLDER keeps the engine's virtual environment (compiled in minutes, once) and the model; without it both go to a
temporary one and are gone afterwards. Run it with the Python that has wholecall installed. The model speaks noise, but
the engine binds a forced tool call to the tool's grammar, so its streams are real: the id and the name on every
fragment, each call twice (`function_call` and `tool_calls`), null padding, raw control characters in strings, and the
finish reason `tool_calls` even where the token limit cut the call.

Prints what came in and what went out of each exchange. Exits 1 if anything that went out is not canonical or a call is
delivered that its schema refuses.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema_rs

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import running  # noqa: E402 - of the folder above, which is no package

VALVE = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "open": {"type": "boolean"}, "mode": {"enum": ["slow", "fast"]}},
    "required": ["number", "open", "mode"],
    "additionalProperties": False,
}
NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
# (name, schema, max_tokens): the valve is finished, the note mostly runs into its limit, a short limit cuts both.
ORDERS = [("set_valve", VALVE, 200), ("take_note", NOTE, 200), ("take_note", NOTE, 12), ("set_valve", VALVE, 8)]
ROUNDS = 5


def environment(folder: Path) -> Path:
    """The engine's Python, installed at need."""
    python = folder / "venv/bin/python"
    if not python.exists():
        print("installing llama-cpp-python (it compiles for some minutes) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "llama-cpp-python[server]", "gguf"], check=True)
    return python


def ask(url: str, name: str, schema: dict[str, Any], limit: int, stream: bool) -> tuple[int, str]:
    """Status and body of one request that forces the tool."""
    body = {
        "model": "tiny",
        "max_tokens": limit,
        "stream": stream,
        "messages": [{"role": "user", "content": f"Call {name}."}],
        "tools": [{"type": "function", "function": {"name": name, "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": name}},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def events(body: str) -> list[dict[str, Any]]:
    """The JSON events of a stream without its comments; the last one must be [DONE], or an error."""
    data = [part.removeprefix("data: ") for part in body.split("\n\n") if part.startswith("data: ")]
    found = [json.loads(text) for text in data if text != "[DONE]"]
    assert ("error" in found[-1]) != (data[-1] == "[DONE]"), "an error or [DONE] ends a stream, not both"
    return found


def streamed(body: str) -> tuple[list[list[str]], dict[str, Any] | None]:
    """The calls of a canonical stream as [id, name, arguments], and its error."""
    found = events(body)
    error = found.pop() if "error" in found[-1] else None
    calls: list[list[str]] = []
    for number, chunk in enumerate(found):
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert {chunk[key] for key in ("id",)} == {found[0]["id"]}
        assert (number == 0) == ("role" in delta), "one role chunk, the first"
        assert None not in delta.values(), f"null in {delta}"
        assert (choice.get("finish_reason") is not None) == (delta == {}), "the finish chunk stands alone"
        for entry in delta.get("tool_calls", ()):
            assert len(delta["tool_calls"]) == 1
            assert "function_call" not in delta
            if "id" in entry:
                assert entry["index"] == len(calls)
                assert entry["function"]["arguments"] == ""
                calls.append([entry["id"], entry["function"]["name"], ""])
            else:
                assert entry["index"] == len(calls) - 1, "one call strictly after the other"
                assert entry["function"].keys() == {"arguments"}
                calls[-1][2] += entry["function"]["arguments"]
    return calls, error


def plain(body: str) -> tuple[list[list[str]], dict[str, Any] | None]:
    document = json.loads(body)
    if "error" in document:
        return [], document
    message = document["choices"][0]["message"]
    assert not message.get("function_call"), "the echo is dropped"
    return [
        [call["id"], call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())
    ], None


def came(body: str, stream: bool) -> str:
    """The engine's own reply, in short."""
    if not stream:
        return body.strip()
    found = events(body)
    fragments = [entry for e in found for c in e["choices"] for entry in c["delta"].get("tool_calls") or ()]
    text = "".join(entry["function"]["arguments"] for entry in fragments)
    finish = [c["finish_reason"] for e in found for c in e["choices"] if c.get("finish_reason")]
    return (
        f"{len(found)} events, {len(fragments)} fragments, {sum('id' in entry for entry in fragments)} with an id, "
        f"finish {finish}, arguments {text!r}"
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        python = environment(folder)
        model = folder / "tiny.gguf"
        subprocess.run([python, HERE / "tiny_model.py", model], check=True)
        port = running.free_port()
        with (folder / "engine.log").open("wb") as log:
            engine = subprocess.Popen(
                [python, "-m", "llama_cpp.server", "--model", model, "--chat_format", "chatml-function-calling",
                 "--n_ctx", "2048", "--host", "127.0.0.1", "--port", str(port)],
                stdout=log, stderr=log,
            )  # fmt: skip
        direct = f"http://127.0.0.1:{port}"
        try:
            running.until(lambda: running.get(f"{direct}/v1/models")[0] == 200, "the engine answers", engine)
            wrong = 0
            for mode in ("block", "annotate"):
                policy = f'mode = "{mode}"\nannotations = "always"'
                with running.proxy(Path(scratch), f"{direct}/v1", policy) as proxy:
                    wrong += sum(judge(direct, proxy, mode, stream) for stream in (True, False))
        finally:
            running.stop(engine)
    print(f"{wrong} wrong" if wrong else "all replies canonical, every delivered call valid")
    return 1 if wrong else 0


def judge(direct: str, proxy: str, mode: str, stream: bool) -> int:
    """Ask all orders directly and through the proxy; gives the number of wrong replies."""
    wrong = 0
    for name, schema, limit in ORDERS:
        print(f"\n== {mode}, {'streamed' if stream else 'plain'}, {name}, {limit} tokens")
        _, body = ask(direct, name, schema, limit, stream)
        print(f"in   {came(body, stream)}")
        for _ in range(ROUNDS):
            begun = time.monotonic()
            status, body = ask(proxy, name, schema, limit, stream)
            took = time.monotonic() - begun
            try:
                calls, error = (streamed if status == 200 and stream else plain)(body)
                for call_id, called, arguments in calls:
                    assert call_id
                    assert called == name
                    assert mode == "annotate" or jsonschema_rs.is_valid(schema, json.loads(arguments)), "a faulty call"
                assert calls or error, "neither a call nor an error"
                assert error is None or error["error"]["type"] == "tool_call_blocked", "the engine's reply was not used"
            except (AssertionError, ValueError, KeyError) as problem:
                wrong += 1
                print(f"WRONG {problem!r}\n{body}")
            else:
                print(f"out  {status} in {took * 1000:.0f} ms: calls {calls}")
                print(f"     {judgement(body, stream and status == 200)}")
                if error:
                    print(f"     error {json.dumps(error['error'])}")
    return wrong


def judgement(body: str, stream: bool) -> str:
    """The report in short: the verdict, quirks and repairs of each call, and the quirks of the reply."""
    documents = events(body) if stream else [json.loads(body)]
    (report,) = [document["wholecall"] for document in documents if "wholecall" in document]
    calls = [f"{call['verdict']} {' '.join(call['quirks'] + call['repairs'])}" for call in report["calls"]]
    return f"{'; '.join(calls)}; reply: {' '.join(report['quirks'])}"


if __name__ == "__main__":
    sys.exit(main())
