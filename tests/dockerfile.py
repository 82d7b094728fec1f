"""Reads a Dockerfile, as far as ours goes: stages, instructions, continued lines, exec forms."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    text: str

    @property
    def argv(self) -> list[str]:
        """The exec form of CMD, ENTRYPOINT or HEALTHCHECK; raises ValueError where it is a shell form."""
        argv: list[str] = json.loads(self.text[self.text.index("[") :])
        return argv


def stages(text: str) -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first."""
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ").splitlines()
    instructions = [Instruction(*line.strip().split(maxsplit=1)) for line in lines if line.strip()]
    found: list[list[Instruction]] = []
    for instruction in instructions:
        if instruction.word == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found
