"""The finished replies that are kept: a number of them, and of bytes, each bounded; the oldest goes first."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from proxy.config import Inspector
from proxy.exchange import Exchange
from proxy.server.inspector.notes import Kept, Notes, WatchedExchange

if TYPE_CHECKING:
    from proxy.server.entry import Entry


class Ring:
    """Belongs to one process: several workers have one each. Running exchanges count in `bytes` too."""

    def __init__(self, table: Inspector) -> None:
        self.worker = os.getpid()
        self.newest = 0  # the number of the last one kept
        self.bytes = 0  # of what is kept, and of what running exchanges hold
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self.configure(table)

    def configure(self, table: Inspector) -> None:
        """New bounds. What is kept already stays masked, or not, as it was."""
        self._table = table
        self._trim()

    @property
    def redact(self) -> bool:
        return self._table.redact

    @property
    def entry_bytes(self) -> int:
        return self._table.entry_bytes

    def watch(self, entry: Entry, asked_model: str) -> Callable[..., Exchange]:
        """What makes the exchange of `entry`, in place of `Exchange`."""
        entry.notes = Notes(self, asked_model, time.time())
        return partial(WatchedExchange, entry.notes, entry)

    def reserve(self, size: int) -> bool:
        """Whether a running exchange may hold so many bytes more; older ones make room."""
        while self.bytes + size > self._table.bytes and self._kept:
            self._drop()
        if self.bytes + size > self._table.bytes:
            return False
        self.bytes += size
        return True

    def keep(self, kept: Kept) -> None:
        """`kept.size` was reserved."""
        self.newest += 1
        kept.number = self.newest
        self._kept[kept.number] = kept
        self._trim()

    def after(self, number: int) -> list[Kept]:
        """Those kept since that number, oldest first."""
        return [kept for kept in self._kept.values() if kept.number > number]

    def get(self, number: int) -> Kept | None:
        return self._kept.get(number)

    @property
    def oldest(self) -> int:
        """The number of the oldest one kept; one more than `newest` where there is none."""
        return next(iter(self._kept), self.newest + 1)

    def _trim(self) -> None:
        while self._kept and (len(self._kept) > self._table.entries or self.bytes > self._table.bytes):
            self._drop()

    def _drop(self) -> None:
        _, dropped = self._kept.popitem(last=False)
        self.bytes -= dropped.size
