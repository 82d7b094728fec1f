"""Secrets, and the values that need more than a type and bounds. Messages are whole and never hold a secret."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from proxy.dialects.markup import AUTO, BY_NAME

# What this version can do of what the file's language has words for. Anything else is refused with a line that says so.
BUILT: Mapping[str, tuple[object, ...]] = {
    "dialect": ("openai-chat", "openai-responses", "anthropic-messages", "gemini", "ollama-chat"),
}

# Of the client's headers these go upstream without being named, as parts of the dialects and of tracing.
FORWARDED_BY_DEFAULT = ("anthropic-version", "anthropic-beta", "openai-*", "traceparent")
# RFC 9110, 7.6.1, and what the HTTP client sets itself.
CONNECTION_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The client's own credentials: only `api_key = "forward"` sends them on.
CREDENTIAL_HEADERS = frozenset({"api-key", "authorization", "cookie", "x-api-key", "x-goog-api-key"})

MAX_SECRET_BYTES = 1 << 14
MIN_TOKEN_CHARS = 16
HASHED = "sha256:"  # what the hash of a client's key begins with

T = TypeVar("T")


class Secret:
    """A text that shows itself only when asked by `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"


NO_SECRET = Secret("")


@dataclass(frozen=True, slots=True)
class Context:
    """What the checks of one file share: the environment, and the digests of the client keys seen so far."""

    env: Mapping[str, str] = field(repr=False)
    digests: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What a backend is sent as its credential: the configured `secret`, the client's own, or none."""

    mode: Literal["own", "forward", "none"]
    secret: Secret = NO_SECRET


def wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{message}", {"message": message})


def shown(value: object) -> str:
    """A value of the file as it may stand in a message: one line, short."""
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # Python prints no integer of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _context(info: ValidationInfo) -> Context:
    assert isinstance(info.context, Context)
    return info.context


def check_built(value: T, info: ValidationInfo) -> T:
    key = str(info.field_name)
    if value not in BUILT[key]:
        use = " or ".join(shown(built) for built in BUILT[key])
        raise wrong(f"this version has no {key} = {shown(value)} yet; write {use}")
    return value


def check_recover(value: object) -> str | tuple[str, ...]:
    """ "auto", "off", or the names of the markup formats that calls are looked for in."""
    if value in ("auto", "off"):
        return str(value)
    if not isinstance(value, list | tuple):
        raise wrong('must be "auto", "off" or a list of formats, like ["hermes", "mistral"]')
    for name in value:
        if not isinstance(name, str) or name not in BY_NAME:
            raise wrong(f"{shown(name)} is no format; these are: {', '.join(BY_NAME)}")
    return tuple(value)


def markup_formats(recover: str | tuple[str, ...]) -> tuple[str, ...]:
    """The formats that `recover` means."""
    if isinstance(recover, str):
        return AUTO if recover == "auto" else ()
    return recover


def check_traces(traces: bool) -> bool:
    if traces and not all(map(_is_installed, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))):
        raise wrong("needs what is not installed; pip install 'wholecall[otel]', or write false")
    return traces


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def resolved(value: object, env: Mapping[str, str]) -> str:
    """The text behind env:NAME, file:/path or a literal. No message ever holds a part of it."""
    if not isinstance(value, str):
        raise wrong("must be text in quotes")
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if name not in env:
            raise wrong(f"the environment variable {shown(name)} is not set; set it, or change this key")
        text = env[name].strip()
    elif value.startswith("file:"):
        text = _read_secret(Path(value.removeprefix("file:")))
    else:
        return value
    if not text:
        raise wrong(f"{shown(value)} is empty; put the secret there, or change this key")
    return text


def _read_secret(path: Path) -> str:
    if not path.is_absolute():
        raise wrong('the path after "file:" must be absolute, like file:/run/secrets/key')
    try:
        if not path.is_file():  # a pipe would block, a folder has no text
            raise wrong(f"there is no file {shown(str(path))}; create it, or change this key")
        with path.open("rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
        if len(data) > MAX_SECRET_BYTES:
            raise wrong(f"the file {shown(str(path))} is over {MAX_SECRET_BYTES} bytes, too large for a secret")
        return data.decode().strip()
    except OSError as error:
        raise wrong(f"the file {shown(str(path))} cannot be read: {error.strerror}; check its permissions") from None
    except UnicodeDecodeError:
        raise wrong(f"the file {shown(str(path))} is no UTF-8 text") from None


def _header_safe(text: str, what: str) -> str:
    if not re.fullmatch(r"[\x20-\x7e]*", text):
        raise wrong(f"{what} holds a character that a header cannot carry; use printable ASCII only")
    return text


def check_api_key(value: object, info: ValidationInfo) -> ApiKey:
    if value == "":
        return ApiKey("none")
    if value == "forward":
        return ApiKey("forward")
    text = _header_safe(resolved(value, _context(info).env), "the key")
    if text.lower().startswith("bearer "):
        raise wrong('the key begins with "Bearer "; give the key alone, the proxy adds what the dialect wants')
    if text.startswith("$"):
        raise wrong("begins with $, as variables do in a shell; here env:NAME stands for one")
    return ApiKey("own", Secret(text))


def client_key_digest(text: str) -> bytes:
    """The SHA-256 of a client's key. Raises PydanticCustomError (a ValueError) for one that no client could show."""
    if _header_safe(text, "the key") != text.strip():
        raise wrong("the key begins or ends with a blank, which a header loses")
    return hashlib.sha256(text.encode()).digest()


def check_client_key(value: object, info: ValidationInfo) -> bytes:
    text = resolved(value, _context(info).env)
    if not text:
        raise wrong("is empty; give env:NAME, file:/path, the key itself or sha256: and its 64 hex digits")
    return _digest(text, info)


def _digest(text: str, info: ValidationInfo) -> bytes:
    """Of a key that nobody else in the file has."""
    if text.startswith(HASHED):
        if not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", text):
            raise wrong("after sha256: there must be 64 hex digits, as `wholecall hash-key` prints them")
        digest = bytes.fromhex(text.removeprefix(HASHED))
    else:
        digest = client_key_digest(text)
    digests = _context(info).digests
    if digest in digests:
        raise wrong("is the key of another client, or the inspector's token, too; give each its own")
    digests.add(digest)
    return digest


def check_token(value: object, info: ValidationInfo) -> bytes:
    """The SHA-256 of the inspector's token; b"" for none. A token is no client's key."""
    if value == "":
        return b""
    text = resolved(value, _context(info).env)
    if not text.startswith(HASHED) and len(text) < MIN_TOKEN_CHARS:
        raise wrong(f"is shorter than {MIN_TOKEN_CHARS} characters; make one with `openssl rand -hex 32`")
    return _digest(text, info)


def check_header_value(value: object, info: ValidationInfo) -> Secret:
    return Secret(_header_safe(resolved(value, _context(info).env), "the value"))


def check_header_name(name: str) -> str:
    lowered = name.lower()
    if not re.fullmatch(r"[a-z0-9!#$%&'*+.^_`|~-]+", lowered):
        raise wrong("is no name of a header")
    if lowered in CONNECTION_HEADERS:
        raise wrong("belongs to a single connection and is set by the proxy itself; remove it")
    return lowered


def check_forwarded_name(pattern: str) -> str:
    lowered = check_header_name(pattern)
    if "*" in lowered[:-1] or lowered == "*":
        raise wrong(f'{shown(pattern)}: a "*" may only end a name, like "openai-*"')
    if lowered in CREDENTIAL_HEADERS:
        raise wrong(f'{shown(pattern)} carries a credential; use api_key = "forward" to send on the client\'s key')
    return lowered


def check_base_url(url: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]+", url):
        raise wrong("must be printable ASCII without blanks")
    try:
        parts = urlsplit(url)
        port = parts.port  # read for its check
    except ValueError:
        raise wrong("is no address; check the host and the port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise wrong("must be an http:// or https:// address, like http://127.0.0.1:8000/v1")
    if "@" in parts.netloc:
        raise wrong("must not hold a user or a password; use api_key or headers")
    if "?" in url or "#" in url:
        raise wrong("must end with the path; a query (?) or fragment (#) has no place here")
    if ".." in parts.path.split("/") or "\\" in url:
        raise wrong("must not hold .. or a backslash")
    if ending := re.search(r"/(chat/completions|completions|responses|messages|api/chat)/?$", parts.path):
        raise wrong(f"must end before {ending[0]}, which the proxy adds itself")
    return url.rstrip("/")


def check_host(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # a name has a letter somewhere: digits and dots alone are a mistyped address
        if not re.fullmatch(r"(?![0-9.]*$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", host):
            raise wrong(f"{shown(host)} is no address to listen on; write 127.0.0.1, 0.0.0.0, ::1 or a name") from None
    return host


def check_public_name(name: str) -> str:
    name = name.removesuffix(".")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,251}[A-Za-z0-9_]", name):
        raise wrong(f"{shown(name)} is no host name; write it as in llm.example.com, without scheme, port or *")
    return name.lower()


# RFC 6761 and what distributions write into /etc/hosts.
_LOOPBACK_NAME = re.compile(
    r"(?:(?:.+\.)?localhost|localhost[46]?\.localdomain[46]?|localhost[46]|ip6-(?:localhost|loopback))\.?",
    re.IGNORECASE,
)


def is_loopback(host: str) -> bool:
    """Whether `listen.host` is an address that only this machine reaches."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _LOOPBACK_NAME.fullmatch(host) is not None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise wrong(f"{shown(name)} is no name; use up to 64 letters, digits, dots, dashes and underscores")
    return name


def check_glob(pattern: str) -> str:
    if not pattern or len(pattern) > 256 or not pattern.isprintable():
        raise wrong(f"{shown(pattern)} is no pattern; use 1 to 256 printable characters")
    if "[" in re.sub(r"\[!?\]?[^\]]*\]", "", pattern):
        raise wrong(f'{shown(pattern)} opens a "[" and never closes it; add "]", or write "[[]" for the character')
    return pattern


def check_not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise wrong("is empty; give at least one")
    return values


def check_all_different(values: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({value for value in values if values.count(value) > 1}):
        raise wrong(f"names {shown(twice[0])} twice")
    return values
