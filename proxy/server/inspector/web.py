"""`/inspect`: who may look, the page and its JSON.

    GET  /inspect                                the page; without the token, the form that asks for it (401)
    GET  /inspect/inspect.css, /inspect/inspect.js, /inspect/icon.svg
    POST /inspect/login                          `token=...`, for a cookie that no script and no other site can use
    POST /inspect/logout
    GET  /inspect/replies?after=N                the rows of the list
    GET  /inspect/replies/N?worker=PID           one reply
    GET  /inspect/replies/N/case?attempt=K       its case file

The token comes in that cookie or, from scripts, as `Authorization: Bearer TOKEN`; never in a URL. The cookie belongs
to the host that it was given for, so that a page whose name is made to point here (DNS rebinding) has none. Requests
that a browser says another site made are refused, whatever they carry.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from proxy.config import Inspector
from proxy.faults import Fault, FaultKind
from proxy.server.auth import presented_key
from proxy.server.endpoints import allow, entry_of, header, is_own_origin, not_found
from proxy.server.respond import read_some, respond
from proxy.server.state import Service
from proxy.server.upstream import Headers

if TYPE_CHECKING:  # not needed where the inspector is off
    from proxy.server.inspector.notes import Kept
    from proxy.server.inspector.ring import Ring

logger = logging.getLogger("wholecall")

COOKIE = b"wholecall-inspect"
MAX_FORM_BYTES = 8_192
MAX_ROWS = 1_000  # of one answer; the page asks again for more
FORM_S = 10.0
# What an error says to whoever is not let in.
NO_TOKEN = "the inspector asks for its token: Authorization: Bearer TOKEN, or the form at /inspect"  # noqa: S105

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY = (
    ("content-security-policy", POLICY),
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ("referrer-policy", "same-origin"),  # with no-referrer the form's Origin would be null
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
)
_HTML, _CSS, _JS, _JSON = (
    "text/html; charset=utf-8",
    "text/css; charset=utf-8",
    "text/javascript; charset=utf-8",
    "application/json",
)
_FILES = {"inspect.css": _CSS, "inspect.js": _JS, "icon.svg": "image/svg+xml"}
_NUMBER = re.compile(r"[0-9]{1,15}")


class Inspect:
    """The endpoint of everything below `/inspect`. 404 while the inspector is off."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        table, ring = self._service.config.inspector, self._service.inspector
        if ring is None:
            await not_found(scope, receive, send)
            return
        path = scope["path"].removeprefix("/inspect").strip("/")
        headers: Headers = scope["headers"]
        _refuse_other_sites(scope)
        if path in ("login", "logout"):
            allow(scope, "POST")
            await (self._login(scope, receive, send, table) if path == "login" else _logout(scope, send))
            return
        allow(scope, "GET", "HEAD")
        if path in _FILES:
            await _answer(scope, send, 200, _page(path), _FILES[path])
            return
        if not _is_known(table, headers):
            if path:
                raise Fault(FaultKind.INVALID_API_KEY, NO_TOKEN)
            await _answer(scope, send, 401, _page("login.html"), _HTML)
            return
        if not path:
            await _answer(scope, send, 200, _page("inspect.html"), _HTML)
            return
        await _replies(scope, send, ring, path)

    async def _login(self, scope: Scope, receive: Receive, send: Send, table: Inspector) -> None:
        fields = _fields(await _form(receive))
        entry_of(scope).unread = False
        token = fields.get("token", [""])[0].strip()
        if not table.knows(token):
            logger.warning("somebody gave a wrong token to the inspector", extra={"fields": {"event": "inspector"}})
            await _answer(scope, send, 401, _page("login.html").replace(b" hidden", b""), _HTML)
            return
        value = base64.urlsafe_b64encode(token.encode()).decode()
        cookie = f"{COOKIE.decode()}={value}; Path=/inspect; HttpOnly; SameSite=Strict"
        await _answer(scope, send, 303, b"", _HTML, ("location", "/inspect"), ("set-cookie", cookie))


@cache
def _page(name: str) -> bytes:
    """A file of the page, read when it is first asked for: mostly the inspector is off."""
    return resources.files("proxy.server.inspector").joinpath("page", name).read_bytes()


def _refuse_other_sites(scope: Scope) -> None:
    """A browser says whose page makes a request. Only opening `/inspect` itself may begin elsewhere: a link to it,
    which shows the form, since a strict cookie does not come along. Raises Fault (403)."""
    headers: Headers = scope["headers"]
    site, origin = header(headers, b"sec-fetch-site"), header(headers, b"origin")
    if site is not None:
        opens = header(headers, b"sec-fetch-mode") == b"navigate" and scope["method"] == "GET"
        foreign = site not in (b"none", b"same-origin") and not opens
    else:  # over plain HTTP browsers don't tell, but for this machine's own addresses
        foreign = origin is not None and not is_own_origin(headers, origin)
    if foreign:
        raise Fault(FaultKind.FOREIGN_PAGE, "the inspector takes no requests from pages of other sites")


def _is_known(table: Inspector, headers: Headers) -> bool:
    shown = presented_key(headers)
    if shown is None:
        shown = _from_cookie(headers)
    return shown is not None and table.knows(shown)


def _from_cookie(headers: Headers) -> str | None:
    for name, value in headers:
        if name != b"cookie":
            continue
        for pair in value.split(b";"):
            key, _, encoded = pair.strip().partition(b"=")
            if key == COOKIE:
                try:
                    return base64.urlsafe_b64decode(encoded).decode()
                except (binascii.Error, UnicodeDecodeError):
                    return None
    return None


async def _form(receive: Receive) -> bytes:
    data = b""
    more = True
    try:
        async with asyncio.timeout(FORM_S):
            while more:
                piece, more = await read_some(receive)
                data += piece
                if len(data) > MAX_FORM_BYTES:
                    raise Fault(FaultKind.INVALID_REQUEST, "the form is too large for a token", status=413)
    except TimeoutError:
        raise Fault(FaultKind.INVALID_REQUEST, "the form did not come in time", status=408) from None
    return data


def _fields(text: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(text.decode("latin-1"), max_num_fields=8)
    except ValueError:
        raise Fault(FaultKind.INVALID_REQUEST, "there are too many fields") from None


async def _logout(scope: Scope, send: Send) -> None:
    gone = f"{COOKIE.decode()}=; Path=/inspect; HttpOnly; SameSite=Strict; Max-Age=0"
    await _answer(scope, send, 303, b"", _HTML, ("location", "/inspect"), ("set-cookie", gone))


async def _replies(scope: Scope, send: Send, ring: Ring, path: str) -> None:
    """`replies`, `replies/N` and `replies/N/case`. Raises Fault (404, 400)."""
    from proxy.server.inspector import view

    query = _fields(scope["query_string"])
    what, _, rest = path.partition("/")
    number, _, more = rest.partition("/")
    if what != "replies" or more not in ("", "case"):
        raise Fault(FaultKind.NOT_FOUND, "the inspector has no such path")
    if not number:
        after = _whole(query, "after")
        rows = ring.after(after)
        listed = rows[-MAX_ROWS:]
        await _json(scope, send, lambda: _listed(ring, listed))
        return
    here = "worker" not in query or _whole(query, "worker") == ring.worker  # each counts from 1
    kept = ring.get(int(number)) if here and _NUMBER.fullmatch(number) else None
    if kept is None:
        raise Fault(FaultKind.NOT_FOUND, "this reply is not kept any more, or by another worker")
    if not more:
        await _json(scope, send, lambda: {**view.detail(kept), "worker": ring.worker})
        return
    attempt = _whole(query, "attempt") if "attempt" in query else len(kept.asked) - 1
    if not 0 <= attempt < len(kept.asked) or not kept.asked[attempt].dialect:
        raise Fault(FaultKind.NOT_FOUND, "nothing came from a backend in this attempt")
    name = f"inspected-{kept.number}-{attempt}.json"
    await _json(
        scope, send, lambda: view.case(kept, attempt), ("content-disposition", f'attachment; filename="{name}"')
    )


def _listed(ring: Ring, rows: list[Kept]) -> dict[str, Any]:
    from proxy.server.inspector import view

    return {
        "worker": ring.worker,
        "newest": ring.newest,
        "oldest": ring.oldest,
        "bytes": ring.bytes,
        "redact": ring.redact,
        "replies": [view.summary(kept) for kept in rows],
    }


def _whole(query: dict[str, list[str]], key: str) -> int:
    text = query.get(key, ["0"])[0]
    if not _NUMBER.fullmatch(text):
        raise Fault(FaultKind.INVALID_REQUEST, f"{key} is no number", param=key)
    return int(text)


async def _json(scope: Scope, send: Send, made: Callable[[], Any], *headers: tuple[str, str]) -> None:
    """Made in a thread: a large reply takes longer than others should wait."""
    from proxy.server.inspector.view import dumped

    body = await asyncio.to_thread(lambda: dumped(made()))
    await _answer(scope, send, 200, body, _JSON, *headers)


async def _answer(
    scope: Scope, send: Send, status: int, body: bytes, content_type: str, *headers: tuple[str, str]
) -> None:
    await respond(send, entry_of(scope), status, body, content_type, [*SECURITY, *headers])
