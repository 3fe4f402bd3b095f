"""``sentinel fleet burnin``, ``resume``, ``cancel`` and ``undrain``: the runs of many hosts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.levels import read_plan
from sentinel.burnin.verdict import Verdict
from sentinel.cli.display.output import color_option, printable
from sentinel.cli.options.command_options import Printed, duration, prints, strict_option
from sentinel.cli.options.setting_options import (
    check_range,
    expect_options,
    level_option,
    load_expectation,
    load_thresholds,
    simulate_option,
    thresholds_option,
)
from sentinel.cli.tools.fleet_report import end_detached, follow_to_verdict, run_argument, say
from sentinel.errors import ConfigError, SentinelError
from sentinel.fleet.drain import undrain_nodes
from sentinel.fleet.engine import EngineError, EngineMissingError, TaskState, expand_nodes
from sentinel.fleet.follow import ENGINES, engine_of
from sentinel.fleet.node_files import check_copy, hash_of
from sentinel.fleet.node_run import NodeRun, node_name, read_verdict
from sentinel.fleet.progress import read_reasons, record_reasons
from sentinel.fleet.run_folder import (
    FleetFolder,
    FleetRun,
    check_nodes,
    check_path,
    known_folder,
    new_id,
    remember,
    write_shared,
)
from sentinel.fleet.slurm_engine import DEFAULT_BATCH, choose_nodes
from sentinel.host.regular_file import BY_ITS_USER, why_foreign
from sentinel.units import format_count

#: The largest number of nodes that work at the same time; the shared disk sets the real limit.
_MAX_BATCH = 10_000
#: More are a mistake.
_MAX_NODES = 1_000_000
#: The options of sbatch that are the run's own: by them its tasks are found.
_OWN_OPTIONS = ("--job-name", "-J", "--nodelist", "-w", "--array", "-a")


_detach_option = click.option("--detach", is_flag=True, help="Submit, and do not follow.")
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the fleet's report as one JSON object."
)


@dataclass(frozen=True, kw_only=True)
class _Order:
    """The options of the command."""

    engine: str
    partition: str | None
    count: int | None
    nodelist: str | None
    level: str | None
    file: Path | None
    target: Path
    batch: int
    simulate: int | None
    drain: bool
    fail_fast: bool
    expect: str | None
    strict: bool
    expect_gpus: int | None
    options: tuple[str, ...]
    #: The file of thresholds, or None.
    limits: str | None
    #: How to call sentinel on a node.
    program: str | None
    give_up_s: float | None
    detach: bool
    as_json: bool


@click.command("burnin")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="slurm",
    show_default=True,
    help="What distributes the work: Slurm, or ClusterShell over ssh.",
)
@click.option("--partition", metavar="P", help="Slurm's partition.  [default: its default one]")
@click.option("--nodes", "count", type=int, metavar="N", help="This many nodes, idle ones first.")
@click.option("--nodelist", metavar="LIST", help="These nodes, as the engine writes lists.")
@level_option("1 min, 10 min, 1 h or 24 h of verified work.  [default: standard]")
@click.option("--plan", "file", type=click.Path(path_type=Path), help="A plan of your own (TOML).")
@click.option(
    "--report",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="A new folder on a disk that all nodes share.",
)
@click.option(
    "--batch",
    type=int,
    metavar="N",
    default=DEFAULT_BATCH,
    show_default=True,
    help="At most this many nodes at a time.",
)
@expect_options
@strict_option
@simulate_option("Use N simulated GPUs on each node.")
@click.option("--fail-fast", is_flag=True, help="End a GPU's plan at its first error.")
@thresholds_option(", on the nodes and in the fleet's report.")
@click.option("--drain", is_flag=True, help="Drain the nodes that failed (Slurm).")
@click.option(
    "--engine-option",
    "options",
    multiple=True,
    metavar="OPTION",
    help="An option for sbatch or clush, such as --account=ops; can be repeated.",
)
@click.option(
    "--sentinel",
    "program",
    metavar="COMMAND",
    help="How to call sentinel on the nodes.  [default: as here, by its path]",
)
@duration(
    "--give-up",
    "give_up_s",
    "How long to wait for nodes that are down or held, when all others are done.  [default: 10m]",
)
@_detach_option
@_json_option
@color_option
def burnin(**given: Any) -> int:
    """Burn many hosts in at the same time, and end with the verdict of all.

    Each node runs `sentinel burnin` by itself and yields to any job. It writes DIR/NODE.json at
    its end. The run survives this terminal: Ctrl+C leaves it, `sentinel fleet report --watch DIR`
    shows it again, `sentinel fleet cancel DIR` ends it. Exit code 0 for PASS and WARN, 1 for FAIL,
    3 for INCOMPLETE or missing nodes, 2 if nothing could be run.
    """
    order = _Order(**given)
    _check_usage(order)
    level = order.level or "standard"
    plan, text = read_plan(level, order.file)
    thresholds = load_thresholds(order.limits)
    # Without one, each node has its own.
    expectation = load_expectation(order.expect, order.expect_gpus, is_here=False)
    folder = FleetFolder(path=order.target.absolute())
    check_path(folder.path)
    program = _program(order)
    nodes = _nodes(order)
    now = datetime.now().astimezone()
    run = FleetRun(
        id=new_id(plan.name, now, folder.path),
        engine=order.engine,
        level=level if order.file is None else None,
        plan=plan.name,
        plan_hash=plan.hash,
        nodes=nodes,
        batch=order.batch,
        command=(*program, "fleet", "run-node", str(folder.path)),
        thresholds_hash=thresholds.hash,
        options=_options(order),
        started=now,
        simulate=order.simulate,
        drain=order.drain,
        fail_fast=order.fail_fast,
        expectation_hash=hash_of(expectation.text),
        strict=order.strict,
    )
    folder.create()
    with folder.submitting():
        folder.check_new()  # another command may have submitted since
        write_shared(folder.plan, text.rstrip("\n"))
        if thresholds.hash is not None:
            write_shared(folder.thresholds, thresholds.text.rstrip("\n"))
        if expectation.text:
            write_shared(folder.expectation, expectation.text.rstrip("\n"))
        run = engine_of(run, folder).submit(run, folder, nodes)
    remember(known_folder(os.environ, os.getuid()), run.id, folder)
    begun = (
        f"{run.id}: {plan.name} on {format_count(len(nodes), 'node')}; recorded in {folder.path}"
    )
    say(begun, as_json=order.as_json)
    if order.detach:
        return end_detached(folder, run, as_json=order.as_json)
    return follow_to_verdict(folder, run, give_up_s=order.give_up_s, as_json=order.as_json)


def _check_usage(order: _Order) -> None:
    """Refuse options that exclude each other, and numbers that are out of range.

    Raises:
        UsageError: Options exclude each other.
        ConfigError: A number is out of range.
    """
    if order.level is not None and order.file is not None:
        raise click.UsageError("--level and --plan exclude each other")
    if order.count is not None and order.nodelist is not None:
        raise click.UsageError("--nodes and --nodelist exclude each other")
    named = (("--partition", order.partition), ("--nodelist", order.nodelist))
    for flag, name in (*named, *(("--engine-option", option) for option in order.options)):
        if name is not None and not name.strip():
            raise click.UsageError(f"{flag}: {name!r} names nothing")
    check_range("--batch", order.batch, 1, _MAX_BATCH)
    if order.count is not None:
        check_range("--nodes", order.count, 1, _MAX_NODES)
    if order.engine == "slurm":
        _check_slurm_options(order.options)
        return
    if order.nodelist is None:
        raise click.UsageError(f"--engine {order.engine} needs --nodelist")
    for flag, value in (("--partition", order.partition), ("--drain", order.drain)):
        if value:
            raise click.UsageError(f"{flag} is for --engine slurm")


def _check_slurm_options(options: Sequence[str]) -> None:
    """Refuse options of sbatch without which the tasks of the run could not be found.

    Raises:
        UsageError: An option is one of them.
    """
    for option in options:
        for own in _OWN_OPTIONS:
            is_long = own.startswith("--")
            if option.partition("=")[0] == own if is_long else option.startswith(own):
                raise click.UsageError(f"--engine-option: {own} is set by fleet burnin itself")


def _nodes(order: _Order) -> tuple[str, ...]:
    """Choose the nodes, as the engine names them.

    Raises:
        SentinelError: The engine does not know them, or a name cannot be used.
    """
    if order.engine == "slurm":
        try:
            nodes = choose_nodes(order.partition, order.count, order.nodelist)
        except EngineError as error:
            if error.remedy and not isinstance(error, EngineMissingError):
                raise
            error.remedy = "Without Slurm, over ssh: --engine clush --nodelist LIST"
            raise
    else:
        nodes = expand_nodes(order.nodelist or "")
    check_nodes(nodes, "--nodelist" if order.nodelist is not None else "the partition")
    return nodes


def _program(order: _Order) -> list[str]:
    """Build how sentinel is called on a node.

    Raises:
        UsageError: The words of --sentinel cannot be told apart, or there are none.
    """
    if order.program is None:
        return [sys.executable, "-P", "-m", "sentinel"]
    try:
        words = shlex.split(order.program)
    except ValueError as error:
        raise click.UsageError(f"--sentinel: {order.program!r} is no command: {error}") from None
    if not words:
        raise click.UsageError("--sentinel: the command is empty")
    return words


def _options(order: _Order) -> tuple[str, ...]:
    """Build the options for the engine's command."""
    partition = () if order.partition is None else (f"--partition={order.partition}",)
    return (*partition, *order.options)


@click.command("resume")
@run_argument
@_detach_option
@_json_option
@color_option
def resume(fleet: FleetFolder, detach: bool, as_json: bool) -> int:
    """Go on with a run, by default the last one, where a node has no report or an INCOMPLETE one.

    Each goes on where it was cut off, as `burnin --resume` does, or begins. What it asks the
    engine for is as at the first time.
    """
    _check_own_files(fleet)
    _check_own_folder(fleet, fleet.read())
    with fleet.submitting():
        run, count = _submit_again(fleet)
    say(f"{run.id}: going on with {count} of {len(run.nodes)} nodes", as_json=as_json)
    if detach:
        return end_detached(fleet, run, as_json=as_json)
    return follow_to_verdict(fleet, run, give_up_s=None, as_json=as_json)


def _submit_again(fleet: FleetFolder) -> tuple[FleetRun, int]:
    """Submit the tasks of the nodes that are over and not done; return their number, too."""
    run = fleet.read()
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
    return run, len(nodes)


def _cancel(fleet: FleetFolder) -> None:
    write_shared(fleet.cancelled, f"{datetime.now().astimezone().isoformat(timespec='seconds')}")


def _check_own_files(fleet: FleetFolder) -> None:
    """Refuse what another user could have written: its command, options and plan would be run.

    Raises:
        ConfigError: There is such a file.
    """
    for path in (fleet.run_file, fleet.plan):
        foreign = why_foreign(path)
        if foreign is not None:
            what = f"{fleet.path} says what is run, and {foreign}"
            raise ConfigError(what, BY_ITS_USER)


def _check_own_folder(fleet: FleetFolder, run: FleetRun) -> None:
    """Refuse a folder that the tasks would not find: a copy, or one that was moved.

    Raises:
        ConfigError: It is such a folder.
    """
    named = Path(run.command[-1]) if run.command else fleet.path
    if not FleetFolder(path=named).has_run_file():
        what = f"{fleet.path} was moved: the nodes of run {run.id} write to {named}"
        raise ConfigError(what, "Move it back, or make that path a symbolic link to it.")
    if not named.samefile(fleet.path):
        what = f"{fleet.path} is a copy of the folder of run {run.id}, whose nodes write to {named}"
        raise ConfigError(what, f"Name that one: sentinel fleet resume {shlex.quote(str(named))}")


@click.command("cancel")
@run_argument
@prints
@color_option
def cancel(fleet: FleetFolder) -> Printed:
    """End a run, by default the last one: its nodes stop, and each reports what it has done.

    Nodes that have not begun have no report, so that the verdict is INCOMPLETE.
    """
    run = fleet.read()
    # The nodes look for this file, whatever the engine still can or knows.
    _cancel(fleet)
    engine = engine_of(run, fleet)
    had_ended = all(task.state is TaskState.OVER for task in engine.tasks(run).values())
    engine.cancel(run)
    done = f"{run.id} had ended" if had_ended else f"cancelled {run.id}"
    quoted = shlex.quote(str(fleet.path))
    return Printed(
        json={"run": run.id, "folder": fleet.path, "had_ended": had_ended},
        lines=[f"{done}; the verdict: sentinel fleet report --watch {quoted}"],
    )


@click.command("undrain")
@run_argument
@prints
@color_option
def undrain(fleet: FleetFolder) -> Printed:
    """Let Slurm use the nodes again that a run has drained, by default the last one.

    A node whose reason was changed since stays as it is.
    """
    fleet.read()
    results = undrain_nodes(fleet)
    left = {node: why_not for node, why_not in results.items() if why_not is not None}
    lines = [
        printable(f"not undrained: {node}: {left[node]}") if node in left else f"undrained {node}"
        for node in results
    ]
    return Printed(
        json={"undrained": [node for node in results if node not in left], "left": left},
        lines=lines or ["this run has drained no node"],
    )


@click.command("run-node", hidden=True)
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
