"""``sentinel fleet attach``, ``resume`` and ``cancel``: follow a run, go on with it, or end it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from sentinel.burnin.reports.verdict import Verdict
from sentinel.cli.display.json_output import print_json
from sentinel.cli.display.terminal import color_option
from sentinel.cli.fleet.burnin import DEFAULT_GIVE_UP_S, end_detached, say
from sentinel.cli.fleet.following import follow_to_verdict
from sentinel.cli.fleet.run_argument import run_argument
from sentinel.cli.options.client_options import duration, json_option
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.fleet.checks.shared_thresholds import check_copy
from sentinel.fleet.engine import TaskState
from sentinel.fleet.follow import engine_of
from sentinel.fleet.node_run import read_verdict
from sentinel.fleet.records.missing_nodes import read_reasons, record_reasons
from sentinel.fleet.records.run_file import FleetFolder, FleetRun, write_shared

_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the fleet's report as one JSON object."
)


@click.command("attach", cls=VerdictCommand)
@run_argument
@click.option("--drain", is_flag=True, help="Drain the nodes that failed, also again (Slurm).")
@duration(
    "--give-up",
    "give_up_s",
    "How long to wait for nodes that are down or held, when all others are done.  [default: 10m]",
)
@_json_option
@color_option
def attach(fleet: FleetFolder, give_up_s: float | None, **flags: bool) -> int:
    """Follow a run, by default the last one, and end with its verdict as `fleet burnin` does.

    Ctrl+C ends this command alone. A run that is over is only judged.
    """
    run = fleet.read()
    drain = flags["drain"]
    if drain and run.engine != "slurm":
        raise click.UsageError("--drain is for runs by Slurm")
    seconds = DEFAULT_GIVE_UP_S if give_up_s is None else give_up_s
    return follow_to_verdict(fleet, run, give_up_s=seconds, drain=drain, as_json=flags["as_json"])


@click.command("resume", cls=VerdictCommand)
@run_argument
@click.option("--detach", is_flag=True, help="Submit, and do not follow.")
@_json_option
@color_option
def resume(fleet: FleetFolder, detach: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Go on with a run, by default the last one, where a node has no report or an INCOMPLETE one.

    Each goes on where it was cut off, as `burnin --resume` does, or begins. What it asks the
    engine for is as at the first time.
    """
    run = fleet.read()
    _check_own_folder(fleet, run)
    check_copy(fleet, run)
    engine = engine_of(run, fleet)
    tasks = engine.tasks(run)
    nodes = [
        node
        for node in run.nodes
        if tasks[node].state is TaskState.OVER
        and read_verdict(fleet.report(node)) in {None, Verdict.INCOMPLETE}
    ]
    was_cancelled = fleet.cancelled.exists()
    fleet.cancelled.unlink(missing_ok=True)
    if nodes:
        try:
            run = engine.submit(run, fleet, nodes)
        except SentinelError:
            if was_cancelled:
                _cancel(fleet)
            raise
        record_reasons(fleet, read_reasons(fleet).keys() - set(nodes), {})
    say(f"{run.id}: going on with {len(nodes)} of {len(run.nodes)} nodes", as_json=as_json)
    if detach:
        return end_detached(fleet, run, as_json=as_json)
    seconds = DEFAULT_GIVE_UP_S
    return follow_to_verdict(fleet, run, give_up_s=seconds, drain=False, as_json=as_json)


def _cancel(fleet: FleetFolder) -> None:
    write_shared(fleet.cancelled, f"{datetime.now().astimezone().isoformat(timespec='seconds')}")


def _check_own_folder(fleet: FleetFolder, run: FleetRun) -> None:
    """Refuse the copy of a folder: the tasks would write into the original.

    Raises:
        ConfigError: It is a copy.
    """
    named = Path(run.command[-1]) if run.command else fleet.path
    # One that is not there has another name on the nodes, or was moved.
    if named.is_dir() and not named.samefile(fleet.path):
        what = f"{fleet.path} is a copy of the folder of run {run.id}, whose nodes write to {named}"
        raise ConfigError(what, f"Name that one: sentinel fleet resume {named}")


@click.command("cancel", cls=VerdictCommand)
@run_argument
@json_option
@color_option
def cancel(fleet: FleetFolder, as_json: bool) -> int:  # noqa: FBT001 - click's
    """End a run, by default the last one: its nodes stop, and each reports what it has done.

    Nodes that have not begun have no report, so that the verdict is INCOMPLETE.
    """
    run = fleet.read()
    # The nodes look for this file, whatever the engine still can or knows.
    _cancel(fleet)
    engine_of(run, fleet).cancel(run)
    if as_json:
        print_json({"run": run.id, "folder": fleet.path})
    else:
        print(f"cancelled {run.id}; the verdict: sentinel fleet attach {fleet.path}")
    return int(ExitCode.OK)
