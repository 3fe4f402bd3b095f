"""``sentinel fleet run-node``: the task of one node, which the engine starts there."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import SentinelError
from sentinel.fleet.follow import engine_of
from sentinel.fleet.node_run import NodeRun, node_name
from sentinel.fleet.records.run_file import FleetFolder


@click.command("run-node", cls=VerdictCommand, hidden=True)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--node", metavar="NAME", help="Its name in the run.  [default: found out]")
def run_node(folder: Path, node: str | None) -> int:
    """Burn this node in as a part of the run in DIR; the exit code is that of its verdict."""
    fleet = FleetFolder(path=folder)
    run = fleet.read()
    name = node or node_name(run, os.environ)
    try:
        return NodeRun(fleet, name, os.environ).run()
    finally:
        if not fleet.cancelled.exists():
            try:
                # Read again: a resumption since has added tasks, which count.
                engine_of(run, fleet).advance(fleet.read(), ending=name)
            except SentinelError as error:  # a command that follows the run does it, too
                click.echo(f"sentinel: {error}", err=True)
