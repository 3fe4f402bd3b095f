"""``sentinel run``: the main job in the foreground, and the looks that change nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TextIO, cast

import click

from sentinel.cli import event_format
from sentinel.cli.setting_options import log_format, settings
from sentinel.config.sources import Sources, as_values, checked
from sentinel.diagnostics import survey
from sentinel.errors import ConfigError, ExitCode
from sentinel.host import simulation
from sentinel.host.log_file import RotatingLog
from sentinel.host.paths import places, prepare
from sentinel.protocol.gpu import Gpu
from sentinel.supervisor import bootstrap
from sentinel.supervisor.discovery import Options, Serve
from sentinel.supervisor.event_log import Sink, json_lines


@click.command("run")
@click.option(
    "--simulate", metavar="N", type=int, help="Pretend N GPUs, for a host without; nothing is real."
)
@settings
@click.option("--list", "list_", is_flag=True, help="List the GPUs and end.")
@click.option("--once", is_flag=True, help="Say what is on each GPU and what would be done; end.")
@click.option("--dry-run", is_flag=True, help="Decide for real, but start nothing.")
@click.option("--monitor", is_flag=True, help="Only watch, and answer clients: hold nothing ever.")
@click.option("--explain", is_flag=True, help="Say for each GPU which rule decides.")
@click.option("--no-api", is_flag=True, help="Open no socket: only signals control it.")
@click.option("--daemon", is_flag=True, hidden=True)  # how `sentinel start` starts it
@log_format
def command(
    sources: Sources,
    simulate: int | None,
    text: bool,  # noqa: FBT001 - click passes options by name
    **flags: bool,
) -> int:
    """Keep every idle GPU busy until Ctrl+C, and yield each the moment somebody else comes."""
    dry_run, explain, monitor = flags["dry_run"], flags["explain"], flags["monitor"]
    config = replace(checked(sources), dry_run=dry_run or monitor, drained=monitor, explain=explain)
    if simulate is not None and not 1 <= simulate <= 64:  # noqa: PLR2004
        raise ConfigError(f"--simulate: {simulate} is out of range", "allowed is from 1 to 64")
    options = Options(config=config, overrides=sources.overrides, simulate=simulate)
    if flags["list_"]:
        event_format.print_gpus(survey.inventory(options), text=text)
        return int(ExitCode.OK)
    if flags["once"]:
        event_format.print_survey(survey.survey(options), text=text, explain=explain)
        return int(ExitCode.OK)
    if flags["no_api"] or (
        dry_run and not monitor
    ):  # who holds nothing needs no control, and keeps nobody from it
        return int(bootstrap.supervise(options, _sink_for(sys.stdout, text=text)))
    serve = _serve(sources, simulate, detached=flags["daemon"])
    options = replace(options, serve=serve)
    if not serve.detached:
        return int(bootstrap.supervise(options, _sink_for(sys.stdout, text=text)))
    prepare(serve.places)
    with RotatingLog(serve.places.log, stderr_file=sys.stderr.fileno()) as log:
        return int(bootstrap.supervise(options, _sink_for(cast("TextIO", log), text=False)))


def _serve(sources: Sources, simulate: int | None, *, detached: bool) -> Serve:
    """Return how clients are served: at the places of this user, or of the simulated GPUs."""
    folder = simulation.default_folder() if simulate is not None else None
    where = places(os.environ, os.getuid(), folder)
    file = str(sources.file) if sources.file is not None else None
    return Serve(places=where, given=as_values(sources.given), file=file, detached=detached)


def _sink_for(stream: TextIO, *, text: bool) -> Callable[[Mapping[str, Gpu]], Sink]:
    """Return what makes the sink: readable lines for people, JSON lines for programs."""

    def sink(gpus: Mapping[str, Gpu]) -> Sink:
        if not text:
            return json_lines(stream, gpus)
        colour = stream.isatty() and "NO_COLOR" not in os.environ
        return event_format.text_lines(
            stream, gpus, colour=colour and os.environ.get("TERM") != "dumb"
        )

    return sink
