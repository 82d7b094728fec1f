"""Coverage-guided fuzzing of what reads other people's bytes. Targets: `targets.py`; long runs are by hand.

    .venv/bin/pip install -e '.[test]'                                       # atheris, where it has a wheel
    .venv/bin/python tests/fuzz/run.py --target gemini --seconds 3600        # one target, on this tree
    nice -n 19 .venv/bin/python tests/fuzz/run.py --target all --cpu 3600    # all at once, one process each

A run goes on after a finding, and ends after `--seconds`, after `--cpu` seconds of CPU time, or never. It writes into
`--out` (by default wholecall-fuzz in the temporary folder), a folder a target: `status.json` (commit, executions, CPU
seconds, findings), the smallest input of each kind of finding (`*.input`) with its trace (`*.txt`), and the corpus,
with which the next run there goes on. `--memory-mb` bounds the process. What was found is shown, and made smaller, by

    .venv/bin/python tests/fuzz/run.py --target gemini --smaller FILE

and then becomes a case in tests/cases/own, or a test (tests/test_fuzz_findings.py). `tests/test_fuzz.py` runs the
saved corpus (tests/data/fuzz_corpus.tar.xz) without atheris, and a bounded run with it. What a long run reached is
added to that corpus by

    .venv/bin/python tests/fuzz/run.py --keep OUT
"""
