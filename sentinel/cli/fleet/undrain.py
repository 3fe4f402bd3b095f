"""``sentinel fleet undrain``: take back what a run has drained."""

from __future__ import annotations

import click

from sentinel.cli.display.json_output import print_json
from sentinel.cli.display.terminal import color_option, printable
from sentinel.cli.fleet.run_argument import run_argument
from sentinel.cli.options.client_options import json_option
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ExitCode
from sentinel.fleet.records.run_file import FleetFolder
from sentinel.fleet.slurm.drain import undrain_nodes


@click.command("undrain", cls=VerdictCommand)
@run_argument
@json_option
@color_option
def undrain(fleet: FleetFolder, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Let Slurm use the nodes again that a run has drained, by default the last one.

    A node whose reason was changed since stays as it is.
    """
    fleet.read()
    results = undrain_nodes(fleet)
    if as_json:
        undrained = [node for node, why_not in results.items() if why_not is None]
        left = {node: why_not for node, why_not in results.items() if why_not is not None}
        print_json({"undrained": undrained, "left": left})
        return int(ExitCode.OK)
    for node, why_not in results.items():
        stays = f"not undrained: {node}: {why_not}"
        print(f"undrained {node}" if why_not is None else printable(stays))
    if not results:
        print("this run has drained no node")
    return int(ExitCode.OK)
