"""Floor 2: one folder a dialect, spokes on one hub. A dialect never knows another."""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import ClientDialect, UpstreamDialect
from proxy.dialects.openai_chat import decode as chat_decode
from proxy.dialects.openai_chat import encode as chat_encode
from proxy.dialects.openai_chat import request as chat_request
from proxy.faults import Fault

UPSTREAM_DIALECTS: dict[str, UpstreamDialect] = {
    d.name: d
    for d in (
        UpstreamDialect(
            "openai-chat",
            lambda request, note: chat_decode.ChatDecoder(
                request.choices, note, verbatim=request.stream and request.dialect == "openai-chat"
            ),
            chat_decode.failure_of,
            chat_request.write,
            lambda model: "/chat/completions",
        ),
    )
}

CLIENT_DIALECTS: dict[str, ClientDialect] = {
    d.name: d for d in (ClientDialect("openai-chat", chat_request.read, chat_encode.encoder, chat_encode.error_body),)
}


def error_body(dialect: str, fault: Fault, report: dict[str, Any] | None = None) -> bytes:
    """An HTTP error's JSON body in the client's dialect."""
    return CLIENT_DIALECTS[dialect].error_body(fault, report)
