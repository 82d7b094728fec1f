"""Verdicts that need no look at the arguments: the end, the name, tool_choice, parallel_tool_calls."""

from __future__ import annotations

from proxy.model.calls import CallError, Verdict
from proxy.model.requests import Request


def screen(request: Request, name: str, ordinal: int, *, unfinished: bool) -> tuple[Verdict, CallError] | None:
    """The first fault of a call that its arguments cannot mend, in the order of the verdicts; None: look at them."""
    choice = request.tool_choice
    if unfinished:
        return Verdict.INCOMPLETE, CallError("", "incomplete", "the reply ended before this call was finished")
    if choice.mode == "none":
        return Verdict.NOT_ALLOWED, CallError("", "tool_choice", "the request's tool_choice is none")
    if name not in request.tools:
        what = "the request declares no tool of this name" if name else "the call has no name"
        return Verdict.UNKNOWN_TOOL, CallError("", "name", what)
    if choice.names is not None and name not in choice.names:
        what = "is not the forced tool" if choice.mode == "forced" else "is not among the request's allowed tools"
        return Verdict.NOT_ALLOWED, CallError("", "tool_choice", f"the called tool {what}")
    if not request.parallel and ordinal > 0:
        return Verdict.NOT_ALLOWED, CallError("", "parallel_tool_calls", "a further call where the request allows one")
    return None
