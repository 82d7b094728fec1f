"""Chooses the inputs that are worth keeping: the fewest that reach what the seeds do not reach."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import proxy
from fuzz import corpus
from fuzz.targets import TARGETS

_PACKAGE = str(Path(proxy.__file__).parent)

Step = tuple[str, int, int]  # a file, and two lines of it that were run one after the other


def reached(check: Callable[[bytes], None], data: bytes) -> set[Step] | None:
    """What of the product an input runs; None where it is a finding."""
    steps: set[Step] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE):
            return None
        last = frame.f_lineno

        def lines(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                steps.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return lines

        return lines

    sys.settrace(trace)
    try:
        check(data)
    except Exception:  # noqa: BLE001  # it is no finding that is looked for
        return None
    finally:
        sys.settrace(None)
    return steps


def keep(folders: Iterable[Path]) -> None:
    """Chooses from `FOLDER/<target>/corpus` and from what is kept already, and writes that anew."""
    chosen: dict[str, list[bytes]] = {}
    for name, target in TARGETS.items():
        known: set[Step] = set()
        for seed in target.seeds():
            known |= reached(target.check, seed) or set()
        files = [file for folder in folders for file in (folder / name / "corpus").glob("*")]
        inputs = {*corpus.load(name), *(file.read_bytes() for file in files)}
        found = {data: (reached(target.check, data) or set()) - known for data in inputs}
        chosen[name] = []
        left = [(data, steps) for data, steps in found.items() if steps]
        while left:
            left = [(data, steps - known) for data, steps in left if steps - known]
            if left:
                # the one that adds most for its size
                data, steps = max(left, key=lambda one: (len(one[1]) / (200 + len(one[0])), one[0]))
                known |= steps
                chosen[name].append(data)
        print(f"{name}: {len(chosen[name])} of {len(inputs)} kept, {len(known)} steps reached")
    corpus.save(chosen)
