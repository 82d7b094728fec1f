"""A finished reply's calls: who each is towards the client, and what is to be checked of it."""

from __future__ import annotations

from proxy.assembly.identity import give_id
from proxy.assembly.names import declared_name
from proxy.assembly.slots import HeldCall
from proxy.model.calls import CallCheck, JudgedCall, Verdict
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.policy.reply import Reply
from proxy.policy.settings import ExchangeSettings
from proxy.wire.jsondoc import join_surrogates


def identify(reply: Reply, request: Request, seed: str) -> list[tuple[JudgedCall, HeldCall]]:
    """The reply's calls with name and id towards the client; valid until something speaks against it."""
    taken = set(request.used_ids)
    begun = reply.live.held if reply.live is not None else None
    if begun is not None:
        taken.add(begun.call_id)
    out = []
    for index in sorted(reply.choices):
        choice = reply.choices[index]
        for held in (*choice.slots.finish(), *choice.recovered):
            name = _name(request, held)
            tool = request.tools.get(name)
            call = JudgedCall(
                index,
                held.ordinal,
                join_surrogates(held.call_id if held is begun else give_id(held, seed, taken)),
                join_surrogates(name),
                tool.kind if tool else held.kind,
                Verdict.VALID,
                join_surrogates(held.text),
                held.quirks,
                extra=held.extra,
                function_extra=held.function_extra,
                key=held.key,
                format=held.format,
                begun=held is begun,
            )
            out.append((call, held))
    return out


def _name(request: Request, held: HeldCall) -> str:
    name, quirks = declared_name(held.name, request.tools)
    choice = request.tool_choice
    if not name.strip():
        quirks = [Quirk.NAME_MISSING]
        forced = choice.names if choice.mode == "forced" else None
        name = next(iter(forced)) if forced else ""
    for quirk in quirks:
        held.note(quirk)
    return name


def job(request: Request, settings: ExchangeSettings, key: int, held: HeldCall, name: str) -> CallCheck:
    """What is to be settled and judged of the arguments of a call of the declared tool `name`."""
    return CallCheck(
        key,
        tuple(held.fragments),
        tuple(held.objects),
        request.tools[name].schema,
        repair=settings.repair and settings.delivery == "held",
        formats=settings.formats,
        skip_uncompilable=settings.skip_uncompilable,
    )
