"""Tool names against the declared ones: exact, never fuzzy, never by letter case."""

from __future__ import annotations

from collections.abc import Collection

from proxy.dialects.markup.base import NAMESPACES
from proxy.model.findings import Quirk


def declared_name(name: str, declared: Collection[str]) -> tuple[str, list[Quirk]]:
    """The declared name that `name` is a damaged spelling of, and how; else `name` as it came.

    Blanks around it, a tail from `<|` on (a leaked channel token) and a namespace go if the rest is declared.
    """
    if name in declared:
        return name, []
    trimmed = name.partition("<|")[0].strip()
    if trimmed in declared:
        return trimmed, [Quirk.NAME_TRIMMED]
    for prefix in NAMESPACES:
        rest = trimmed.removeprefix(prefix)
        if rest != trimmed and rest in declared:
            return rest, [Quirk.NAME_PREFIXED, *([Quirk.NAME_TRIMMED] if trimmed != name else [])]
    return name, []


def begins_declared(text: str, declared: Collection[str]) -> bool:
    """Whether `text` is the beginning of a declared name, with or without a namespace."""
    return any(
        name.startswith(text) or any((prefix + name).startswith(text) for prefix in NAMESPACES) for name in declared
    )
