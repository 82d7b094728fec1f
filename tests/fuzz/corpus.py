"""The saved inputs: one compressed file, a folder a target."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "data" / "fuzz_corpus.tar.xz"


@cache
def _all() -> dict[str, list[bytes]]:
    out: dict[str, list[bytes]] = {}
    if FILE.exists():
        with tarfile.open(FILE) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                out.setdefault(member.name.partition("/")[0], []).append(file.read())
    return out


def load(target: str) -> list[bytes]:
    return _all().get(target, [])


def save(inputs: Mapping[str, Iterable[bytes]]) -> None:
    """The same inputs give the same file, whenever it is made."""
    with tarfile.open(FILE, "w:xz") as archive:
        for target in sorted(inputs):
            for data in sorted(inputs[target]):
                member = tarfile.TarInfo(f"{target}/{hashlib.sha256(data).hexdigest()[:16]}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
