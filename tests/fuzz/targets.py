"""What can be fuzzed: each target's check, its seeds, and how its inputs are changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import casefile
import markup_samples
from fuzz import arguments, config, framing, http, inputs, markup, mutate, requests, response
from proxy.dialects import UPSTREAM_DIALECTS
from upstream_writers import WRITERS

Mutator = Callable[[bytes, int, Random, mutate.Bytes], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """`check(data)` raises whatever is wrong; `seeds()` are inputs to begin with; `mutator(data, max_size, draw,
    plain)` gives another one, where plain byte mutation would seldom get anywhere."""

    name: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    mutator: Mutator | None = None
    crossover: Callable[[bytes, bytes, Random], bytes] | None = None


@cache
def pool(dialect: str) -> mutate.Pool:
    cases = [case for case in casefile.read_all(*casefile.FOLDERS) if case.recording.dialect == dialect]
    writers = [writer for writer in WRITERS.values() if writer.dialect == dialect]
    written = [inputs.of_writer(writer, Random(number)) for number in range(16) for writer in writers]
    samples = [
        inputs.of_sample(writers[number % len(writers)], text, markup_samples.SCHEMAS, Random(number))
        for number, (_, text) in enumerate(markup_samples.SAMPLES)
    ]
    seeds = [*(inputs.of_case(case) for case in cases), *written, *samples]
    return mutate.Pool(seeds, [text for _, text in markup_samples.SAMPLES])


def _response(dialect: str) -> Target:
    return Target(
        dialect,
        partial(response.check, dialect=dialect),
        lambda: [inputs.write(seed) for seed in pool(dialect).seeds],
        lambda data, max_size, draw, plain: mutate.mutate(data, pool(dialect), draw, plain, max_size),
        mutate.cross,
    )


TARGETS: dict[str, Target] = {
    one.name: one
    for one in (
        *(_response(dialect) for dialect in UPSTREAM_DIALECTS),
        Target("requests", requests.check, requests.seeds, requests.mutated),
        Target("framing", framing.check, framing.seeds, framing.mutated),
        Target("markup", markup.check, markup.seeds, markup.mutated),
        Target("arguments", arguments.check, arguments.seeds, arguments.mutated),
        Target("config", config.check, config.seeds, config.mutated),
        Target("http", http.check, http.seeds, http.mutated),
    )
}
