"""What makes two findings the same."""

from __future__ import annotations

import re
import traceback
from pathlib import Path


def signature(error: BaseException) -> str:
    """What makes two findings the same: the kind, the place, and the message without its particulars."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f for f in reversed(frames) if "/proxy/" in f.filename or "/fuzz/" in f.filename), frames[-1])
    message = re.sub(r"\d+|'[^']*'|\"[^\"]*\"|\[.*|\{.*", "_", str(error).partition("\n")[0])[:100]
    # recursion ends anywhere on its way
    line = "" if isinstance(error, RecursionError) else f":{place.lineno}"
    return f"{type(error).__name__} {Path(place.filename).name}{line} {place.name}: {message}"


def trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-12:])
