"""The command `probe`. What it needs is imported when it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

DIALECTS = ["openai-chat", "openai-responses", "anthropic-messages", "gemini", "ollama-chat"]

_OUT = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
_FILE = click.Path(path_type=Path, dir_okay=False)


def register(group: click.Group) -> None:
    """Adds the command to the command line."""
    group.add_command(probe)


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--backend",
    "-b",
    "backends",
    multiple=True,
    metavar="NAME[=MODEL]",
    help="One of the configuration file; repeat it.",
)
@click.option(
    "--config",
    "path",
    type=_FILE,
    envvar="WHOLECALL_CONFIG",
    default="wholecall.toml",
    show_default=True,
    help="Where --backend is looked up.",
)
@click.option("--demo", is_flag=True, help="Probe embedded backends: a clean, a damaged, an unwilling one. No key.")
@click.option("--model", "-m", "models", multiple=True, help="Whom to ask for; each backend for each that is given.")
@click.option(
    "--dialect", type=click.Choice(DIALECTS), default=DIALECTS[0], show_default=True, help="What a URL speaks."
)
@click.option("--api-key-env", default="", metavar="VAR", help="The variable that holds the key for a URL.")
@click.option("--runs", type=click.IntRange(1, 1000), default=1, show_default=True, help="How often each is asked.")
@click.option(
    "--concurrency", type=click.IntRange(1, 64), default=4, show_default=True, help="Requests at once, a backend."
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1, 3600), default=120.0, show_default=True, metavar="SECONDS",
    help="For one whole reply.",
)  # fmt: skip
@click.option(
    "--form", type=click.Choice(["both", "streamed", "plain"]), default="both", show_default=True, help="How to ask."
)
@click.option("--requests", type=_FILE, metavar="FILE", help="Own chat requests, one a line, in place of the battery.")
@click.option("--item", "only", multiple=True, metavar="ID", help="Only this item; repeat it.")
@click.option("--state", type=_FILE, metavar="FILE", help="Keep each run here (JSON Lines); none is asked for twice.")
@click.option("--json", "json_out", type=_OUT, metavar="FILE", help="Write the report as JSON (-: standard output).")
@click.option("--markdown", "markdown_out", type=_OUT, metavar="FILE", help="... as Markdown.")
@click.option("--html", "html_out", type=_OUT, metavar="FILE", help="... as one page with plots.")
@click.option(
    "--fail-under", "thresholds", multiple=True, metavar="[NAME=]SHARE",
    help="Exit with 1 where a score is below: 0.95 is for all, whole=0.99 for one, damage=0.9 for a group; repeat it.",
)  # fmt: skip
def probe(
    urls: tuple[str, ...],
    backends: tuple[str, ...],
    path: Path,
    demo: bool,
    models: tuple[str, ...],
    dialect: str,
    api_key_env: str,
    runs: int,
    concurrency: int,
    timeout_s: float,
    form: str,
    requests: Path | None,
    only: tuple[str, ...],
    state: Path | None,
    json_out: Path | None,
    markdown_out: Path | None,
    html_out: Path | None,
    thresholds: tuple[str, ...],
) -> None:
    """Score how whole a backend's tool calls come.

    A fixed battery of requests goes to each backend, streamed and plain, and each reply is judged as the proxy would.
    What the backend damages and what its model does wrong are scored apart. URL ends before /chat/completions,
    /responses, /messages, /models/... or /api/chat.

    The exit status is 1 where a score is below --fail-under or a backend never answered, 2 where something given cannot
    be used, 130 after Ctrl-C (the report then tells what there is).
    """
    from proxy.conformance.probe import Asked, run

    asked = Asked(
        targets=(*urls, *backends),
        config=path,
        demo=demo,
        models=models,
        dialect=dialect,
        key_variable=api_key_env,
        runs=runs,
        concurrency=concurrency,
        timeout_s=timeout_s,
        form=form,
        requests=requests,
        only=only,
        state=state,
        outputs={"json": json_out, "markdown": markdown_out, "html": html_out},
        thresholds=thresholds,
    )
    sys.exit(run(asked))
