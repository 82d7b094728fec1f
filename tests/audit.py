"""Looks the locked packages up in PyPI's list of known vulnerabilities, with pip-audit.

    pip install '.[audit]' && python tests/audit.py

The exit status is 1 where one of them has a known vulnerability. Where the list cannot be reached nothing was looked
up: that is said, and is no failure.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = (
    "--disable-pip",
    "--require-hashes",
    "-r",
    "config/requirements-otel.lock",  # which has all that requirements.lock has
    "--progress-spinner",
    "off",
    "--timeout",
    "10",
)
UNREACHABLE = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ServiceError", "ProxyError", "HTTPError")


def verdict(status: int, out: str, errors: str) -> tuple[int, str]:
    """The exit status and what to say, of what pip-audit ended with and wrote (`--format json`)."""
    try:
        packages = json.loads(out)["dependencies"]
    except (ValueError, KeyError, TypeError):
        if any(word in errors for word in UNREACHABLE):
            return 0, "audit: SKIPPED, the list of vulnerabilities cannot be reached; nothing was looked up"
        return 1, f"audit: pip-audit failed with status {status}:\n{errors[-2000:]}"
    known = [one for one in packages if "skip_reason" not in one]
    found = [f"{one['name']} {one['version']}: {hole['id']}" for one in known for hole in one["vulns"]]
    if found:
        return 1, "audit: known vulnerabilities\n" + "\n".join(found)
    if not known:
        return 0, f"audit: SKIPPED, the service answers for none of the {len(packages)} packages; nothing was looked up"
    return 0, f"audit: {len(known)} of {len(packages)} locked packages looked up, no known vulnerability"


def main() -> int:
    program = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
    if program is None:
        print("audit: SKIPPED, pip-audit is not installed (pip install '.[audit]')")
        return 0
    done = subprocess.run(
        [program, *COMMAND, "--format", "json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    status, said = verdict(done.returncode, done.stdout, done.stderr)
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
