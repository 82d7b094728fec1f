"""The configuration file."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from random import Random

from fuzz import mutate
from proxy.config import ConfigError, from_document, summary

_SHOWN = Path(__file__).resolve().parents[2] / "config"
_ENV = {"KEY": "sk-of-the-environment"}


def check(data: bytes) -> None:
    """TOML: a configuration, or a list of problems that never shows a secret."""
    try:
        document = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return
    try:
        config = from_document(document, _ENV)
    except ConfigError as error:
        lines = [str(problem) for problem in error.problems]
    else:
        lines = [repr(config), str(config), *summary(config)]
    assert lines
    assert all(lines)
    assert "sk-of-the-environment" not in "\n".join(lines), "a secret shows"


def mutated(data: bytes, most: int, draw: Random, plain: mutate.Bytes) -> bytes:
    lines = data.split(b"\n")
    values = (
        b"true", b"0", b"-1", b"1e9", b'""', b'"env:KEY"', b'"env:NONE"', b"[]", b"{}", b'["*"]', b"nan", b"inf",
        b'"drop"', b'"live"', b'"http://x"', b'"http://[::1"', b"'''x'''", b"2026-01-01", b"99999999999999999999",
        b'"\\u0000"',
    )  # fmt: skip
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(lines))
        key, _, _ = lines[at].partition(b"=")
        match draw.randint(0, 5):
            case 0:
                del lines[at]
                lines = lines or [b""]
            case 1:
                lines.insert(at, lines[at])
            case 2:
                lines[at] = key + b"= " + draw.choice(values)
            case 3:
                lines.insert(at, draw.choice(_config_lines()))
            case 4:
                lines.insert(at, draw.choice(_config_lines()).partition(b"=")[0] + b"= " + draw.choice(values))
            case _:
                lines = plain(b"\n".join(lines), most).split(b"\n")
    return b"\n".join(lines)[:most]


@cache
def _config_lines() -> list[bytes]:
    text = b"\n".join(path.read_bytes() for path in sorted(_SHOWN.glob("*.toml")))
    return [line.lstrip(b"#") for line in text.split(b"\n") if line and not line.startswith(b"# ")] or [b""]


def seeds() -> list[bytes]:
    shown = [path.read_bytes() for path in sorted(_SHOWN.glob("*.toml"))]
    least = (
        b'[[backends]]\nname = "a"\ndialect = "openai-chat"\nbase_url = "http://127.0.0.1/v1"\napi_key = "env:KEY"\n'
    )
    # the comments of the shown files are most of them
    return [least, *(b"\n".join(line for line in one.split(b"\n") if not line.startswith(b"# ")) for one in shown)]
