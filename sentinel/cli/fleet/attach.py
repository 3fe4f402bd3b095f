"""``sentinel fleet attach``, ``resume`` and ``cancel``: follow a run, go on with it, or end it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from sentinel.burnin.verdict import Verdict
from sentinel.cli.client_options import duration
from sentinel.cli.fleet.burnin import DEFAULT_GIVE_UP_S
from sentinel.cli.fleet.following import follow_to_verdict
from sentinel.cli.terminal import color_option
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ExitCode
from sentinel.fleet.engine import TaskState
from sentinel.fleet.follow import engine_of
from sentinel.fleet.node_run import read_verdict
from sentinel.fleet.run_file import FleetFolder, write_shared

_folder = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")


@click.command("attach", cls=VerdictCommand)
@_folder
@click.option("--drain", is_flag=True, help="Drain the nodes that failed (Slurm).")
@duration(
    "--give-up",
    "give_up_s",
    "How long to wait for nodes that are down, when all others are done.  [default: 10m]",
)
@color_option
def attach(folder: Path, drain: bool, give_up_s: float | None) -> int:  # noqa: FBT001 - click's
    """Follow the run in DIR, and end with the verdict of the fleet, as `fleet burnin` does.

    Ctrl+C ends this command alone. A run that is over is only judged.
    """
    fleet = FleetFolder(path=folder.absolute())
    run = fleet.read()
    if drain and run.engine != "slurm":
        raise click.UsageError("--drain is for runs by Slurm")
    seconds = DEFAULT_GIVE_UP_S if give_up_s is None else give_up_s
    return follow_to_verdict(fleet, run, give_up_s=seconds, drain=drain or run.drain)


@click.command("resume", cls=VerdictCommand)
@_folder
@click.option("--detach", is_flag=True, help="Submit, and do not follow.")
@color_option
def resume(folder: Path, detach: bool) -> int:  # noqa: FBT001 - click's
    """Go on with the run in DIR on nodes that have no report, or one that is INCOMPLETE.

    Each goes on where it was cut off, as `burnin --resume` does, or begins. What it asks the
    engine for is as at the first time.
    """
    fleet = FleetFolder(path=folder.absolute())
    run = fleet.read()
    engine = engine_of(run, fleet)
    tasks = engine.tasks(run)
    nodes = [
        node
        for node in run.nodes
        if tasks[node].state is TaskState.OVER
        and read_verdict(fleet.report(node)) in {None, Verdict.INCOMPLETE}
    ]
    fleet.cancelled.unlink(missing_ok=True)
    if nodes:
        run = engine.submit(run, fleet, nodes)
    print(f"{run.id}: going on with {len(nodes)} of {len(run.nodes)} nodes", flush=True)
    if detach:
        return int(ExitCode.OK)
    return follow_to_verdict(fleet, run, give_up_s=DEFAULT_GIVE_UP_S, drain=run.drain)


@click.command("cancel", cls=VerdictCommand)
@_folder
@color_option
def cancel(folder: Path) -> int:
    """End the run in DIR: its nodes stop, and each reports what it has done.

    Nodes that have not begun have no report, so that the verdict is INCOMPLETE.
    """
    fleet = FleetFolder(path=folder.absolute())
    run = fleet.read()
    # The nodes look for this file, whatever the engine still can or knows.
    write_shared(fleet.cancelled, f"{datetime.now().astimezone().isoformat(timespec='seconds')}")
    engine_of(run, fleet).cancel(run)
    print(f"cancelled {run.id}; the verdict: sentinel fleet attach {fleet.path}")
    return int(ExitCode.OK)
