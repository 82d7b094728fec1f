"""What the commands have in common: options, what a result says besides figures, files."""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import results, targets

HERE = Path(__file__).resolve().parent


def parser(description: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--wholecall",
        action="append",
        metavar="[NAME=]COMMAND",
        help="an installed `wholecall`; run.py compares several (default: the one beside this Python)",
    )
    options.add_argument("--out", type=Path, default=HERE / "results", help="the folder for the results")
    return options


def wholecalls_of(options: argparse.Namespace) -> dict[str, Path]:
    found = {}
    for text in options.wholecall or [str(Path(sys.executable).with_name("wholecall"))]:
        name, _, command = text.rpartition("=")
        found[name or "wholecall"] = path = Path(command).absolute()
        if not path.with_name("python").exists() or not path.exists():
            sys.exit(
                f"{path}: no installed wholecall; run this with the Python that has it, or name one by --wholecall"
            )
    return found


def described(wholecalls: Mapping[str, Path], arguments: Sequence[str] | None) -> dict[str, Any]:
    return {
        "command": [Path(sys.argv[0]).name, *(sys.argv[1:] if arguments is None else arguments)],
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": results.machine(),
        "wholecall": {name: targets.wholecall_versions(path) for name, path in wholecalls.items()},
    }


def write(folder: Path, name: str, found: dict[str, Any], markdown: str) -> None:
    """FOLDER/NAME.json and .md; the latter also to stdout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown + "\n")
    print(markdown)
    print(f"\nwritten to {folder / name}.json and .md", file=sys.stderr)


def stop_by_signal() -> None:
    """SIGTERM ends the run as an exception does, so that everything is stopped."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
