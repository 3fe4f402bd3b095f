"""``sentinel fleet undrain``: take back what a run has drained."""

from __future__ import annotations

import click

from sentinel.cli.fleet.run_argument import run_argument
from sentinel.cli.terminal import color_option
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ExitCode
from sentinel.fleet.drain import undrain_nodes
from sentinel.fleet.run_file import FleetFolder


@click.command("undrain", cls=VerdictCommand)
@run_argument
@color_option
def undrain(fleet: FleetFolder) -> int:
    """Let Slurm use the nodes again that a run has drained, by default the last one.

    A node whose reason was changed since stays as it is.
    """
    fleet.read()
    results = undrain_nodes(fleet)
    for node, why_not in results.items():
        print(f"undrained {node}" if why_not is None else f"not undrained: {node}: {why_not}")
    if not results:
        print("this run has drained no node")
    return int(ExitCode.OK)
