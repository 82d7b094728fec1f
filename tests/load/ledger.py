"""What was sent and seen, against the proxy's metrics, its log and the upstream's own counts: all must be equal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from load.client import Seen
from load.plan import ASKS_NOBODY, LEAVES, LIMPING

_SAMPLE = re.compile(r"wholecall_(\w+?)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# Around a kill: a client may use a kept connection just then, both sides notice things when their turn comes, and on a
# busy machine (ten times more work than cores) a worker that was killed had waited 0.5 s between answer and log line.
SLACK_S = 1.5
Line = Mapping[str, Any]  # of the log: an exchange's


@dataclass(slots=True)
class Ledger:
    """`kills`: when workers were killed, of the monotonic clock. Only exchanges that ran at such a moment may break;
    nobody knows how far the worker came with them, so they are kept apart."""

    kills: list[float] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)  # by kind
    outcomes: Counter[str] = field(default_factory=Counter)
    requests: Counter[tuple[str, ...]] = field(default_factory=Counter)  # backend, client's dialect, status
    verdicts: Counter[tuple[str, ...]] = field(default_factory=Counter)  # backend, verdict
    errors: Counter[tuple[str, ...]] = field(default_factory=Counter)  # backend, kind of upstream_errors_total
    asked: Counter[str] = field(default_factory=Counter)  # as the upstream counts
    tokens: set[str] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def enter(self, seen: Seen) -> None:
        job, rule = seen.job, seen.job.rule
        self.sent[job.kind] += 1
        if job.kind not in ASKS_NOBODY:
            self.asked[f"{job.kind} {job.backend}"] += 1
        name = f"{job.kind} {job.client} < {job.backend} {job.token}"
        self.problems += [f"{name}: {one}" for one in seen.problems]
        told = "broken" if seen.broken else "left" if job.kind in LEAVES else "error" if rule.code else "ok"
        self.outcomes["wrong" if seen.problems else told] += 1
        if any(seen.began <= at + SLACK_S and at <= seen.ended + SLACK_S for at in self.kills):
            self.apart.add(job.token)
            return
        if seen.broken:
            self.problems.append(f"{name}: the connection broke")
        self.tokens.add(job.token)
        self.requests[job.label, job.client, str(seen.status or "none")] += 1
        for verdict, count in seen.verdicts.items():
            self.verdicts[job.label, verdict] += count
        if rule.counted:
            self.errors[job.label, rule.counted] += 1

    def compare(self, metrics: Metrics, asked: Mapping[str, int], lines: Sequence[Line]) -> list[str]:
        """What does not add up, in words: clients and log, log and metrics, clients and upstream."""
        logged = {line["request_id"] for line in lines}
        told = self.compare_log(lines)
        told += compare_metrics(metrics, lines, len(self.apart - logged))
        if self.apart:  # whether those reached the upstream, nobody knows
            return told
        errors = metrics.by("upstream_errors_total", "backend", "kind")
        limping = sum(errors.pop(key) for key in [*errors] if key[0] == LIMPING)
        told += _difference(LIMPING, limping, _limping(lines))
        told += _difference("upstream_errors_total", errors, self.errors)
        return told + self.compare_upstream(asked, lines)

    def compare_log(self, lines: Sequence[Line]) -> list[str]:
        told = self._compare_tokens([str(line["request_id"]) for line in lines])
        ours = [line for line in lines if line["request_id"] not in self.apart]
        return [
            *told,
            *_difference("log: requests", _requests(ours), self.requests),
            *_difference("log: verdicts", _verdicts(ours), self.verdicts),
        ]

    def compare_upstream(self, asked: Mapping[str, int], lines: Sequence[Line]) -> list[str]:
        limping = {LIMPING: count} if (count := _limping(lines)) else {}
        return _difference("asked", asked, {**self.asked, **limping})

    def _compare_tokens(self, logged: list[str]) -> list[str]:
        """Every exchange has one line in the log; those apart may have none."""
        count, known = Counter(logged), self.tokens | self.apart
        told = [f"{token}: {lines} log lines" for token, lines in count.items() if lines > 1 or token not in known]
        return told + [f"{token}: no log line" for token in self.tokens if token not in count]

    def summary(self) -> dict[str, Any]:
        return {
            "sent": sum(self.sent.values()),
            "kinds": dict(self.sent),
            "outcomes": dict(self.outcomes),
            "verdicts": dict(_summed(self.verdicts)),
        }


def compare_metrics(metrics: Metrics, lines: Sequence[Line], unlogged: int = 0) -> list[str]:
    """`unlogged`: so many exchanges may have been counted by a worker that was killed before it wrote the line."""
    if 0 < metrics.total("requests_total") - len(lines) <= unlogged:
        return _difference("streams", metrics.total("streams"), 0)
    return [
        *_difference("requests_total", metrics.by("requests_total", "backend", "dialect", "status"), _requests(lines)),
        *_difference("tool_calls_total", metrics.by("tool_calls_total", "backend", "verdict"), _verdicts(lines)),
        *_difference("request_seconds_count", metrics.total("request_seconds_count"), len(lines)),
        *_difference("streams", metrics.total("streams"), 0),
    ]


def _limping(lines: Sequence[Line]) -> int:
    return sum(str(failed).startswith(f"{LIMPING}:") for line in lines for failed in line.get("failed", ()))


def _requests(lines: Sequence[Line]) -> Counter[tuple[str, ...]]:
    return Counter((line["backend"], line["endpoint"], str(line["status"] or "none")) for line in lines)


def _verdicts(lines: Sequence[Line]) -> Counter[tuple[str, ...]]:
    found = Counter[tuple[str, ...]]()
    for line in lines:
        found.update({(line["backend"], verdict): count for verdict, count in line.get("verdicts", {}).items()})
    return found


def _summed(counts: Mapping[tuple[str, ...], int]) -> Counter[str]:
    total = Counter[str]()
    for (*_, name), count in counts.items():
        total[name] += count
    return total


def _difference(what: str, found: Any, want: Any) -> list[str]:
    if found == want:
        return []
    if not isinstance(want, Mapping):
        return [f"{what}: {found} instead of {want}"]
    keys = [key for key in {*found, *want} if found.get(key, 0) != want.get(key, 0)]
    return [f"{what} {key}: {found.get(key, 0)} instead of {want.get(key, 0)}" for key in sorted(keys)]


class Metrics:
    """The samples of an exposition, as far as they are whole numbers."""

    def __init__(self, exposition: str) -> None:
        self._samples: list[tuple[str, dict[str, str], int]] = []
        for line in exposition.splitlines():
            match = _SAMPLE.match(line)
            if match and float(match[3]).is_integer():
                self._samples.append((match[1], dict(_LABEL.findall(match[2] or "")), int(float(match[3]))))

    def by(self, name: str, *labels: str) -> Counter[tuple[str, ...]]:
        found = Counter[tuple[str, ...]]()
        for sample, values, count in self._samples:
            if sample == name and count:
                found[tuple(values[label] for label in labels)] += count
        return found

    def total(self, name: str) -> int:
        return sum(count for sample, _, count in self._samples if sample == name)
