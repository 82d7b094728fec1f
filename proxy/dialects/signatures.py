"""A Gemini thought signature that rides in a made call id, so that it survives with clients that return only the id.

Gemini refuses a call of the history whose signature is missing, and the id is the one field of a call that every
client sends back. Nothing is kept here: any worker can take the next turn.

    <id>__<payload>__<form><length><check>

`payload` is the signature in letters, digits, `_` and `-` (the characters that every backend and client takes in an
id); `form` says how it was written, `length` is that of the payload in six hexadecimal digits, `check` eight
characters of a SHA-256 over id and signature. The tail has a fixed length and is read from the end, so that nothing
within id or payload can be taken for it, and an id that was not made here is never taken apart.
"""

from __future__ import annotations

import base64
import hashlib
import re

_MARK = "__"
_TAIL = re.compile(r"__(?P<form>[suo][012])(?P<length>[0-9a-f]{6})(?P<check>[A-Za-z0-9_-]{8})\Z")
_TAIL_LENGTH = len(_MARK) + 2 + 6 + 8
_STANDARD = re.compile(r"([A-Za-z0-9+/]+)(={0,2})")
_URL_SAFE = re.compile(r"([A-Za-z0-9_-]+)(={0,2})")
_TO_URL_SAFE = str.maketrans("+/", "-_")
_TO_STANDARD = str.maketrans("-_", "+/")
_LONGEST = 0xFFFFFF


def carry(call_id: str, signature: str) -> str:
    """`call_id` with `signature` in it. The signature comes back as it is, whichever base64 it is written in, and even
    if it is none. One of more than 16 MiB is not carried."""
    form, payload = _written(signature)
    if not payload or len(payload) > _LONGEST:
        return call_id
    return f"{call_id}{_MARK}{payload}{_MARK}{form}{len(payload):06x}{_check(call_id, signature)}"


def split(call_id: str) -> tuple[str, str | None]:
    """The id and the signature that `carry` put together; an id that it did not make, and None."""
    tail = _TAIL.search(call_id, max(len(call_id) - _TAIL_LENGTH, 0))
    if tail is None:
        return call_id, None
    end = tail.start()
    begin = end - int(tail["length"], 16)
    if begin < len(_MARK) or call_id[begin - len(_MARK) : begin] != _MARK:
        return call_id, None
    own, signature = call_id[: begin - len(_MARK)], _read(tail["form"], call_id[begin:end])
    if signature is None or _check(own, signature) != tail["check"]:
        return call_id, None
    return own, signature


def _written(signature: str) -> tuple[str, str]:
    """(form, payload): standard or URL-safe base64 with 0 to 2 signs of padding, or any other text."""
    if whole := _STANDARD.fullmatch(signature):
        return f"s{len(whole[2])}", whole[1].translate(_TO_URL_SAFE)
    if whole := _URL_SAFE.fullmatch(signature):
        return f"u{len(whole[2])}", whole[1]
    return "o0", base64.urlsafe_b64encode(signature.encode("utf-8", "surrogatepass")).rstrip(b"=").decode()


def _read(form: str, payload: str) -> str | None:
    if form[0] == "o":
        try:
            whole = base64.b64decode(payload + "=" * (-len(payload) % 4), b"-_", validate=True)
            return whole.decode("utf-8", "surrogatepass")
        except ValueError:
            return None
    return (payload.translate(_TO_STANDARD) if form[0] == "s" else payload) + "=" * int(form[1])


def _check(call_id: str, signature: str) -> str:
    whole = f"{call_id}\0{signature}".encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hashlib.sha256(whole).digest()[:6]).decode()
