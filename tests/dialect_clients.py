"""The strict clients by dialect: how each asks for a case's reply, and how it reads the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import casefile
import messages_client
import responses_client
from casefile import Case, Reply
from proxy.dialects import CLIENT_DIALECTS
from proxy.model.requests import Request
from proxy.replay.inprocess import Answer


@dataclass(frozen=True, slots=True)
class Client:
    """`ask(request, model)`: a chat request without its model as this client's body; `read`: its answer."""

    name: str
    ask: Callable[[Mapping[str, Any], str], bytes]
    read: Callable[[Answer, bool], Reply]

    def request(self, case: Case) -> Request:
        return CLIENT_DIALECTS[self.name].read(self.ask(case.recording.request, case.id))

    def takes(self, case: Case) -> bool:
        """Only a chat client can ask for, or tell apart, several choices; a Messages client cannot ask for some tools
        of those that it declares."""
        request = case.recording.request
        one = request.get("n", 1) == 1 and all(call["choice"] == 0 for call in case.expect["calls"])
        choice = request.get("tool_choice")
        some = isinstance(choice, dict) and choice["type"] == "allowed_tools"
        return self.name == "openai-chat" or (one and not (some and self.name == "anthropic-messages"))


def _about(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    return answer.status, answer.headers, bytes(answer.body)


CLIENTS = {
    client.name: client
    for client in (
        Client(
            "openai-chat",
            lambda request, model: json.dumps({**request, "model": model}).encode(),
            lambda answer, stream: casefile.read_reply(*_about(answer), stream=stream),
        ),
        Client(
            "openai-responses",
            responses_client.as_responses,
            lambda answer, stream: responses_client.read(*_about(answer), stream=stream).reply,
        ),
        Client(
            "anthropic-messages",
            messages_client.as_messages,
            lambda answer, stream: messages_client.read(*_about(answer), stream=stream).reply,
        ),
    )
}
