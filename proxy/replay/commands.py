"""The commands `replay`, `backend` and `explain`. What they need is imported when they run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

EXIT_UNUSABLE = 2


def register(group: click.Group) -> None:
    """Adds the commands of this module to the command line."""
    group.add_command(replay)
    group.add_command(backend)
    group.add_command(explain)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--tools", type=click.Path(path_type=Path), metavar="FILE", help="JSON: a list of tools, or a request body."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list, an entry a file, in place of tables.")
@click.option(
    "--mode",
    type=click.Choice(["block", "annotate", "drop"]),
    default="block",
    show_default=True,
    help="What happens to faulty calls.",
)
@click.option(
    "--repair",
    type=click.Choice(["safe", "off"]),
    default="safe",
    show_default=True,
    help="Whether arguments that are almost JSON are repaired.",
)
def replay(files: tuple[Path, ...], tools: Path | None, as_json: bool, mode: str, repair: str) -> None:
    """Judge captured replies: calls, verdicts, quirks.

    FILE holds what a backend answered, as raw SSE, NDJSON or JSON (- is standard input), or is a case file. The exit
    status is 1 where a call is faulty or a reply fails, 2 where a file cannot be used.
    """
    from proxy.replay.judging import replay_files

    sys.exit(replay_files(files, tools, as_json=as_json, mode=mode, repair=repair))


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8090, show_default=True, help="The port; 0: a free one.")
@click.option("--attached", is_flag=True, help="End when standard input does, so as not to outlive who started it.")
def backend(files: tuple[Path, ...], host: str, port: int, attached: bool) -> None:
    """Serve recorded replies, most of them damaged, as a backend: no model, no key.

    For tests of any client, proxy or gateway: the request's model names the recording. FILE is a case file, or a
    captured reply in the chat dialect; each is one more model, of the file's name without its ending.
    """
    from proxy.replay.backend import serve

    sys.exit(serve(files, host, port, attached=attached))


@click.command()
@click.argument("code", required=False)
@click.option("--markdown", is_flag=True, help="All of them as a page in Markdown.")
def explain(code: str | None, markdown: bool) -> None:
    """Say in plain words what CODE of a report or an error means; without CODE, all of them."""
    from rich.text import Text

    from proxy.replay import explain as codes
    from proxy.replay import show

    if markdown:
        click.echo(codes.markdown(), nl=False)
        return
    console = show.console()
    if code is None:
        for kind, title in codes.KINDS.items():
            console.print(Text(title, "bold"))
            console.print(show.meanings_table(m for m in codes.meanings() if m.kind == kind))
            console.print()
        return
    found = codes.find(code)
    if not found:
        near = codes.near(code)
        hint = f"did you mean {' or '.join(near)}?" if near else "`wholecall explain` lists all of them"
        click.echo(f"no code is called {show.escaped(code)!r}; {hint}", err=True)
        sys.exit(EXIT_UNUSABLE)
    for meaning in found:
        console.print(Text.assemble((meaning.code, "bold"), f" ({meaning.kind}): {meaning.text}"))
        if meaning.more:
            console.print(Text(f"  {meaning.more}", "dim"))
