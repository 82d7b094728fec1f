"""The guides under config/examples: each is a good configuration, is in the index, and says how it was checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import running
from proxy.config import Config, load
from proxy.model.findings import QUIRKS, Quirk
from test_clients import DOCUMENTS, STREAMS

EXAMPLES = Path(__file__).parent.parent / "config" / "examples"
FILES = sorted(EXAMPLES.glob("*/*.toml"))
BACKENDS = sorted(EXAMPLES.glob("backends/*.toml"))

# How the table of quirks names what a guide is about.
SEEN_AS = {
    "anthropic": "Anthropic",
    "bedrock": "Bedrock|LiteLLM",
    "gemini": "Gemini",
    "llama-cpp": r"llama\.cpp|llama-cpp-python",
    "lm-studio": "LM Studio",
    "ollama": "Ollama",
    "openrouter": "OpenRouter",
    "sglang": "SGLang",
    "vllm": "vLLM",
}


def identify(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def configuration(path: Path) -> Config:
    """By the real loader, with a value for each variable that the file names."""
    return load(path, {name: f"key-{name}" for name in re.findall(r'"env:(\w+)"', path.read_text())})


def comments(path: Path) -> str:
    return "\n".join(line[1:] for line in path.read_text().splitlines() if line.startswith("#"))


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_an_example_is_a_good_configuration(path: Path) -> None:
    config = configuration(path)
    assert config.router.routes
    if path.parent.name == "clients":
        (client,) = config.clients
        assert config.client_for("key-WHOLECALL_KEY") is client
    else:
        assert config.backends[0].name == path.stem
    for backend in config.backends:
        where = re.match(r"https?://([^:/]+)", backend.base_url)
        assert where is not None
        # A key of another's never leaves the machine unencrypted.
        assert backend.base_url.startswith("https://") or where[1] == "127.0.0.1"


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_an_example_says_on_which_day_it_was_run_or_checked(path: Path) -> None:
    words = " ".join(comments(path).split())
    assert re.search(r"Run 20\d\d-\d\d-\d\d|checked on 20\d\d-\d\d-\d\d against .*documentation", words)


def test_the_index_has_every_example_with_its_dialect_and_whether_it_was_run() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| \[(\S+)\]\((\S+)\) \| ([^|]+) \| ([^|]+) \|$", (EXAMPLES / "README.md").read_text(), re.M
    )
    assert [link for text, link, _, _ in rows if text != link] == []
    assert sorted(link for _, link, _, _ in rows) == sorted(str(path.relative_to(EXAMPLES)) for path in FILES)
    for _, link, speaks, run in rows:
        path = EXAMPLES / link
        words = comments(path)
        assert run == (
            "no" if "Run" not in words else "in part" if "not run here" in " ".join(words.split()) else "yes"
        ), link
        if path in BACKENDS:
            assert speaks == f"`{configuration(path).backends[0].dialect}`", link


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_a_quirk_that_an_example_names_is_one(path: Path) -> None:
    """And the table of quirks says that it was seen there."""
    words = " ".join(comments(path).split())
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", words)) - {"web_search", "run_stream"}
    assert named <= set(Quirk)
    if path in BACKENDS:
        known = set(re.findall(r"`(\w+)`", words.partition("Known quirks")[2].partition(". ")[0]))
        assert known
        strangers = {name for name in known if not re.search(SEEN_AS[path.stem], QUIRKS[Quirk(name)].evidence)}
        assert strangers == set()


def snippet(language: str) -> str:
    """The lines of code under "In LANGUAGE:" of the SDKs' guide."""
    text = (EXAMPLES / "clients/openai-sdk.toml").read_text()
    (lines,) = re.findall(rf"^# In {language}:\n#\n((?:#   .*\n)+)", text, flags=re.M)
    return textwrap.dedent(re.sub(r"^#", "", lines, flags=re.M))


@pytest.mark.slow
def test_the_sdks_reach_the_proxy_as_their_guide_says(tmp_path: Path) -> None:
    """By its constructors and by its environment variables, both of which are taken from the guide."""
    to_openai, to_anthropic = snippet("Python").splitlines()
    ask = 'print(client.chat.completions.create(model="interleaved", messages=m).choices[0].message.tool_calls is None)'
    ask_anthropic = 'print(client.messages.create(model="interleaved", max_tokens=9, messages=m).stop_reason)'
    program = [
        "import openai, anthropic",
        'key, m = "any", [{"role": "user", "content": "?"}]',
        to_openai, ask, to_anthropic, ask_anthropic,
        "client = openai.OpenAI()", ask, "client = anthropic.Anthropic()", ask_anthropic,
    ]  # fmt: skip
    exports = re.findall(r"^#   export (.*)$", (EXAMPLES / "clients/openai-sdk.toml").read_text(), flags=re.M)
    exported = re.findall(r"(\w+)=(\S+)", "\n".join(exports))
    assert len(exported) == 4
    with (
        running.upstream(STREAMS, DOCUMENTS) as upstream,
        running.proxy(tmp_path, upstream.url, 'mode = "annotate"') as url,
    ):
        here = url.removeprefix("http://")
        environment = {name: value.replace("127.0.0.1:8080", here) for name, value in exported}
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(program).replace("127.0.0.1:8080", here)],
            env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["False", "tool_use"] * 2
        assert len(upstream.seen) == 4
