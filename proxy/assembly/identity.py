"""Who a call is towards the client: an id that is unique in the reply and against the request's history."""

from __future__ import annotations

import hashlib
from collections.abc import Container

from proxy.assembly.slots import HeldCall
from proxy.dialects.signatures import carry
from proxy.model.findings import Quirk

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def made_id(seed: str, choice: int, ordinal: int, taken: Container[str]) -> str:
    """Nine letters and digits: the one form that every known backend takes back (Mistral asks for exactly that).

    The same seed, choice and ordinal give the same id, so that a replay gives the same answer.
    """
    for salt in range(1000):
        number = int.from_bytes(hashlib.sha256(f"{seed}|{choice}|{ordinal}|{salt}".encode()).digest()[:16], "big")
        letters = []
        for _ in range(9):
            number, digit = divmod(number, len(_ALPHABET))
            letters.append(_ALPHABET[digit])
        candidate = "".join(letters)
        if candidate not in taken:
            return candidate
    raise AssertionError("a thousand ids of nine characters were all taken")


def give_id(call: HeldCall, seed: str, taken: set[str]) -> str:
    """The upstream's id byte for byte, or a made one where it is missing or already taken; adds it to `taken`."""
    call_id = call.call_id
    if not call_id or call_id in taken:
        call.note(Quirk.ID_DUPLICATE if call_id else Quirk.ID_MISSING)
        call_id = made_id(seed, call.choice, call.ordinal, taken)
        if call.signature:
            call_id = carry(call_id, call.signature)  # the id is all that every client sends back
    taken.add(call_id)
    return call_id
