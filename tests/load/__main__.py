"""`python -m load RUN`, in tests/: prints the result as a table; exits 1 if anything was not as it has to be."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import uvloop

from load import flat, upheaval

MAX_TOLD = 40


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m load", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the whole result, samples included")
    commands = parser.add_subparsers(dest="run", required=True)
    streams = commands.add_parser("streams", help="paced streams, all at once")
    streams.add_argument("--count", type=int, default=1000)
    soak = commands.add_parser("soak", help="mixed traffic with faults: is the process flat?")
    soak.add_argument("--minutes", type=float, default=30.0)
    soak.add_argument("--users", type=int, default=24)
    workers = commands.add_parser("workers", help="two workers, some of them killed")
    workers.add_argument("--kills", type=int, default=6)
    reload = commands.add_parser("reload", help="SIGHUP under load")
    reload.add_argument("--reloads", type=int, default=60)
    restart = commands.add_parser("restart", help="one instance takes over from the other")
    restart.add_argument("--restarts", type=int, default=10)
    restart.add_argument("--notice-s", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wholecall-load-") as name:
        folder = Path(name)
        match options.run:
            case "streams":
                result = uvloop.run(flat.streams(folder, options.count))
            case "soak":
                result = uvloop.run(flat.soak(folder, options.minutes, options.users))
            case "workers":
                result = uvloop.run(upheaval.workers(folder, 400 * (options.kills + 1), options.kills))
            case "reload":
                result = uvloop.run(upheaval.reload(folder, options.reloads))
            case _:
                result = uvloop.run(upheaval.restart(folder, options.restarts, notice_s=options.notice_s))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    problems = result.pop("problems")
    result.pop("samples", None)
    for name, value in result.items():
        print(f"{name:20} {value if not isinstance(value, dict) else '  '.join(f'{k} {v}' for k, v in value.items())}")
    print(*problems[:MAX_TOLD], f"{len(problems)} problems", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
