"""The command line. What a command needs is imported when it runs: `--help` should not load a web server."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proxy import __version__
from proxy.conformance import commands as conformance
from proxy.replay import commands

if TYPE_CHECKING:
    from proxy.config import Config

EXIT_UNUSABLE = 2

_CONFIG = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="wholecall")
def main() -> None:
    """A reverse proxy for LLM APIs whose tool calls are whole."""


@main.command()
@click.option(
    "--config",
    "path",
    type=_CONFIG,
    envvar="WHOLECALL_CONFIG",
    default="wholecall.toml",
    show_default=True,
    help="The configuration file (TOML).",
)
@click.option("--port", type=click.IntRange(0, 65535), help="In place of listen.port; 0: a free one.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that serve; each counts max_streams and requests_per_minute for itself.",
)
def serve(path: Path, port: int | None, workers: int) -> None:
    """Run the proxy."""
    gc.disable()  # until all is imported: nothing of that is garbage, and looking for some takes a tenth of the start
    from proxy.config import ConfigError, load

    def current() -> Config:
        config = load(path, os.environ)
        if port is None:
            return config
        return config.model_copy(update={"listen": config.listen.model_copy(update={"port": port})})

    try:
        config = current()
    except ConfigError as error:
        _refuse(str(error))
    from proxy.server.supervisor import NotStarted
    from proxy.server.supervisor import serve as run

    try:
        sys.exit(run(current, config, workers))
    except NotStarted as error:
        _refuse(str(error))


@main.command("check-config")
@click.argument("path", type=_CONFIG, metavar="FILE")
def check_config(path: Path) -> None:
    """Report every mistake of a configuration file, or what it means."""
    from proxy.config import ConfigError, load, summary, warnings

    try:
        config = load(path, os.environ)
    except ConfigError as error:
        _refuse(str(error))
    click.echo(f"{path} is good")
    click.echo("\n".join(summary(config)))
    for line in warnings(config):
        click.echo(f"warning: {line}", err=True)


@main.command("hash-key")
def hash_key() -> None:
    """Hash a client's key for the configuration.

    The key is asked for, or read from standard input; blanks and line ends around it do not count.
    """
    from proxy.config import HASHED, MAX_SECRET_BYTES, client_key_digest

    if sys.stdin.isatty():
        text = click.prompt("Key", hide_input=True, err=True, type=str)
    else:
        text = sys.stdin.buffer.read(MAX_SECRET_BYTES + 1).decode("utf-8", "replace")
    key = text.strip()
    if not key or len(text) > MAX_SECRET_BYTES:
        _refuse(f"there is no key of 1 to {MAX_SECRET_BYTES} characters on standard input")
    if key.startswith(HASHED):
        _refuse("this is a hash already; put it into the configuration as it is")
    try:
        click.echo(HASHED + client_key_digest(key).hex())
    except ValueError as error:
        _refuse(str(error))


@main.command()
@click.option("--once", is_flag=True, help="End after the one exchange that is shown.")
@click.option("--port", type=click.IntRange(0, 65535), help="Default 8080, with --once a free one; 0: a free one.")
def demo(once: bool, port: int | None) -> None:
    """Show the proxy at work on an embedded backend: no key, no network."""
    from proxy.demo import run

    sys.exit(run(once, (0 if once else 8080) if port is None else port))


commands.register(main)
conformance.register(main)


def _refuse(message: str) -> None:
    click.echo(message, err=True)
    sys.exit(EXIT_UNUSABLE)
