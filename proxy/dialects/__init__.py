"""Floor 2: one folder a dialect, spokes on one hub. A dialect never knows another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy.dialects.anthropic_messages import decode as messages_decode
from proxy.dialects.anthropic_messages import encode as messages_encode
from proxy.dialects.anthropic_messages import hub as messages_hub
from proxy.dialects.anthropic_messages import request as messages_request
from proxy.dialects.base import ClientDialect, IdForm, UpstreamDialect
from proxy.dialects.gemini import decode as gemini_decode
from proxy.dialects.gemini import request as gemini_request
from proxy.dialects.history import guard
from proxy.dialects.ollama_chat import decode as ollama_decode
from proxy.dialects.ollama_chat import request as ollama_request
from proxy.dialects.openai_chat import decode as chat_decode
from proxy.dialects.openai_chat import encode as chat_encode
from proxy.dialects.openai_chat import hub as chat_hub
from proxy.dialects.openai_chat import request as chat_request
from proxy.dialects.openai_responses import decode as responses_decode
from proxy.dialects.openai_responses import encode as responses_encode
from proxy.dialects.openai_responses import request as responses_request
from proxy.faults import Fault
from proxy.model.findings import Quirk
from proxy.model.requests import Request

UPSTREAM_DIALECTS: dict[str, UpstreamDialect] = {
    d.name: d
    for d in (
        UpstreamDialect(
            "openai-chat",
            lambda request, note: chat_decode.ChatDecoder(
                request.choices, note, verbatim=request.stream and request.dialect == "openai-chat"
            ),
            chat_decode.failure_of,
            chat_request.path,
            chat_request.write,
            chat_hub.write_conversation,
            IdForm(40, "!-~"),  # OpenAI refuses longer ones
        ),
        UpstreamDialect(
            "openai-responses",
            lambda request, note: responses_decode.ResponsesDecoder(note, own=request.dialect == "openai-responses"),
            responses_decode.failure_of,
            responses_request.path,
            responses_request.write,
            responses_request.write_conversation,
            IdForm(64, "!-~"),
        ),
        UpstreamDialect(
            "anthropic-messages",
            lambda request, note: messages_decode.MessagesDecoder(
                note, verbatim=request.stream and request.dialect == "anthropic-messages"
            ),
            messages_decode.failure_of,
            messages_request.path,
            messages_request.write,
            messages_hub.write_conversation,
            messages_request.ID_FORM,
            headers=messages_request.HEADERS,
        ),
        UpstreamDialect(
            "gemini",
            lambda request, note: gemini_decode.GeminiDecoder(request.choices, note),
            gemini_decode.failure_of,
            gemini_request.path,
            None,
            gemini_request.write_conversation,
            gemini_request.IDS,
            framing="array",
        ),
        UpstreamDialect(
            "ollama-chat",
            lambda request, note: ollama_decode.OllamaDecoder(note),
            ollama_decode.failure_of,
            ollama_request.path,
            None,
            ollama_request.write_conversation,
            ollama_request.IDS,
            framing="lines",
        ),
    )
}

CLIENT_DIALECTS: dict[str, ClientDialect] = {
    d.name: d
    for d in (
        ClientDialect(
            "openai-chat",
            chat_request.read,
            chat_hub.conversation,
            chat_request.follow_up,
            chat_encode.encoder,
            chat_encode.error_body,
        ),
        ClientDialect(
            "openai-responses",
            responses_request.read,
            responses_request.conversation,
            responses_request.follow_up,
            responses_encode.encoder,
            responses_encode.error_body,
        ),
        ClientDialect(
            "anthropic-messages",
            messages_request.read,
            messages_hub.conversation,
            messages_request.follow_up,
            messages_encode.encoder,
            messages_encode.error_body,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """What goes to a backend. `path` follows its base URL; `quirks` say what of the request was changed or lost."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    quirks: tuple[Quirk, ...]


def upstream_request(request: Request, dialect: str, model: str) -> UpstreamRequest:
    """`request` for a backend of `dialect`, which calls the model `model`.

    The same dialect on both sides: the client's own body. Raises Fault (UNSUPPORTED_FIELD) for what cannot cross.
    """
    upstream = UPSTREAM_DIALECTS[dialect]
    quirks: list[Quirk] = []
    if dialect == request.dialect and upstream.write is not None:
        body = upstream.write(request, model, quirks.append)
    else:
        talk = guard(CLIENT_DIALECTS[request.dialect].conversation(request), upstream.ids, quirks.append)
        body = upstream.write_conversation(talk, model)
        quirks += [Quirk.FIELD_NOT_CARRIED] if talk.lost else []
    return UpstreamRequest(upstream.path(model, request.stream), upstream.headers, body, tuple(dict.fromkeys(quirks)))


def error_body(dialect: str, fault: Fault, report: dict[str, Any] | None = None) -> bytes:
    """An HTTP error's JSON body in the client's dialect."""
    return CLIENT_DIALECTS[dialect].error_body(fault, report)
