"""``sentinel run``: occupy GPUs in the foreground, or report on them without a change."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TextIO, cast

import click
from click.core import ParameterSource

from sentinel.cli.display.log_lines import processes, text_lines
from sentinel.cli.display.output import color_option, wants_colour
from sentinel.cli.options.command_classes import GroupedOptions
from sentinel.cli.options.command_options import Printed
from sentinel.cli.options.setting_options import (
    log_format,
    plan_option,
    settings_of_daemon,
    simulate_option,
    warn_of_no_notifications,
)
from sentinel.config.build import without_effect
from sentinel.config.model import Config
from sentinel.config.setting import variable_of
from sentinel.config.sources import Sources, checked
from sentinel.config.specs import unusable
from sentinel.core.state import Orders
from sentinel.errors import ConfigError, SentinelError
from sentinel.host import registry, simulation
from sentinel.host.daemon_lookup import list_daemons
from sentinel.host.log_file import RotatingLog
from sentinel.host.paths import SIMULATED, SOCKET_VARIABLE, Places, own_places, prepare, prepare_log
from sentinel.host.process_setup import without_rich
from sentinel.host.systemd import Journal, gets_stream, match_of_this_run
from sentinel.host.unprivileged import look_up
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.rules import with_time
from sentinel.protocol.stressor import Account
from sentinel.units import format_size

with without_rich():  # only here: a program that embeds a supervisor may need rich
    from sentinel.diagnostics import survey
    from sentinel.diagnostics.workload_catalog import (
        check_workloads,
        workloads_of,
        workloads_of_plan,
    )
    from sentinel.host.event_lines import Sink, json_lines
    from sentinel.supervisor import bootstrap
    from sentinel.supervisor.discovery import Options, Serve

#: A daemon that does not answer must not delay a look at the GPUs.
_TIMEOUT_S = 1.0


@click.command("run", cls=GroupedOptions)
@simulate_option("Use N simulated GPUs, for a host without GPUs.")
@settings_of_daemon
@click.option("--list", "list_", is_flag=True, help="List the GPUs and exit.")
@click.option(
    "--once", is_flag=True, help="Report the use of each GPU and the decision for it; exit."
)
@click.option("--dry-run", is_flag=True, help="Decide as usual, but start no stressor.")
@click.option("--monitor", is_flag=True, help="Only monitor and serve clients; never occupy a GPU.")
@click.option("--explain", is_flag=True, help="Report for each GPU which rule decides.")
@click.option("--no-api", is_flag=True, help="Open no socket; only signals control this process.")
@click.option("--daemon", is_flag=True, hidden=True)  # how `sentinel start` starts it
@click.option("--paused", is_flag=True, hidden=True)  # how `sentinel start --paused` does
@click.option("--private", is_flag=True, hidden=True)  # how a script starts its own
@click.option("--burnin-only", is_flag=True, hidden=True)  # how `sentinel burnin` starts its own
@click.option("--lent", is_flag=True, hidden=True)  # how a trial does, beside a daemon
@color_option
@plan_option
@log_format
def command(
    sources: Sources,
    simulate: int | None,
    plan: str | None,
    text: bool,
    **flags: bool,
) -> int:
    """Occupy every idle GPU until Ctrl+C, and yield it as soon as a foreign process appears."""
    dry_run, explain, monitor = flags["dry_run"], flags["explain"], flags["monitor"]
    config = replace(checked(sources), dry_run=dry_run or monitor)
    if plan is not None:
        config = with_plan(config, plan, sources)
    orders = Orders(
        paused=monitor or flags["paused"],
        burnin_only=flags["burnin_only"],
        repeat=plan is not None,
        explain=explain,
    )
    options = Options(
        config=config,
        orders=orders,
        given=sources.given,
        simulate=simulate,
        lent=flags["lent"],
    )
    if flags["list_"]:
        found = survey.inventory(options).gpus
        return Printed(json={"gpus": found}, lines=map(_gpu_line, found)).show(as_json=not text)
    if flags["once"]:
        daemons = find_stressors(simulate)
        surveyed = survey.survey(config, sources.given, simulate=simulate)
        rows = [survey.with_daemons(row, daemons) for row in surveyed]
        lines = (line for row in rows for line in _survey_lines(row, explain=explain))
        return Printed(json={"gpus": rows}, lines=lines).show(as_json=not text)
    if not (flags["daemon"] or flags["burnin_only"]):  # the command that starts it has done it
        check_before_start(config, sources, plan)
    # A dry run occupies nothing: it needs no control, and must leave the socket to a daemon.
    if not flags["no_api"] and (monitor or not dry_run):
        serve = _serve(sources, simulate, detached=flags["daemon"])
        if _goes_to_journal(detached=serve.detached):
            serve = replace(serve, journal=match_of_this_run(os.environ))
        options = replace(options, serve=replace(serve, recorded=not flags["private"]))
        if not (flags["daemon"] or flags["private"]):
            warn_of_no_link()
    else:
        option = "--no-api" if flags["no_api"] else "--dry-run"
        why = f"since {option} starts no API process, which sends them"
        warn_of_no_notifications(config, sources, why)
    if dry_run or monitor:
        _warn_of_daemons(simulate)
    script = os.getppid()
    try:
        return _supervise(options, chosen_log(sources), text=text)
    finally:
        if flags["private"] and options.serve is not None:
            from sentinel.client.hold import remove_folder_of  # only a script's sentinel needs it

            remove_folder_of(options.serve.places.state, script)


def _supervise(options: Options, file: Path | None, *, text: bool) -> int:
    """Run the supervisor with the sinks of its events, and return the exit code.

    Args:
        options: The options of the run.
        file: The file of the log that a setting names, or None.
        text: Whether events in the foreground are text.

    Raises:
        SentinelError: Nothing was started.
    """
    serve = options.serve
    with ExitStack() as stack:
        sink_for = _sink_for(sys.stdout, text=text)
        detached = serve is not None and serve.detached and serve.journal is None
        if serve is not None and serve.journal is not None:
            from sentinel.cli.display.journal import journal_sink  # imports subprocess

            sink_for = partial(journal_sink, stack.enter_context(closing(Journal())))
        if serve is not None and detached:
            prepare(serve.places)
            log = stack.enter_context(RotatingLog(serve.places.log))
            sink_for = _sink_for(cast("TextIO", log), text=False)
        elif file is not None:
            prepare_log(file)
            options = replace(options, log=stack.enter_context(RotatingLog(file)))
        return int(bootstrap.supervise(options, sink_for))


# --- reports ---------------------------------------------------------------------------------


def _gpu_line(gpu: Gpu) -> str:
    size = format_size(gpu.memory_total)
    return f"{gpu.index:>3}  {gpu.uuid}  {gpu.pci_bus_id}  {size:>9}  {gpu.name}"


def _survey_lines(row: survey.Survey, *, explain: bool) -> Iterator[str]:
    """Yield the use of a GPU, and whether a stressor would start on it."""
    yield f"GPU {row.gpu.index}  {row.gpu.name}  {row.gpu.uuid}"
    would = "a stressor would start now"
    if not row.verdict.allowed:
        would = f"no stressor would start: {with_time(row.verdict.reason, row.verdict.left_s)}"
    yield f"  {row.occupancy.lower()}: {would}"
    if explain:
        yield f"  decided by the rule `{row.verdict.rule}`"
    if row.reading is None or row.reading.memory is None:
        return
    memory = row.reading.memory
    yield f"  {format_size(memory.used)} of {format_size(memory.total)} in use"
    notes = {**row.pending_ignores, **row.ignored_processes} if explain else {}
    for pid, socket in row.daemon_stressors.items():
        notes[pid] = f"stressor of the daemon at {socket}"
    for process in row.reading.processes or ():
        held = format_size(process.memory) if process.memory is not None else "memory unknown"
        note = f" - {notes[process.pid]}" if process.pid in notes else ""
        yield f"    {process.kind.value}: {processes([asdict(process)])}, {held}{note}"


def _warn_of_daemons(simulate: int | None) -> None:
    """Print a warning for each daemon of this user whose stressors are foreign processes here."""
    for socket in sorted(set(find_stressors(simulate).values())):
        what = f"the daemon at {socket} occupies GPUs: its stressors are foreign processes here"
        click.echo(f"sentinel: warning: {what}", err=True)


def find_stressors(simulate: int | None) -> dict[int, str]:
    """Ask the running daemons of this user for their stressors.

    Args:
        simulate: The number of simulated GPUs, if they are used.

    Returns:
        The socket of the daemon, by the PID of its stressor; none of a daemon without an answer.
    """
    from sentinel.client import connect  # the daemon does without

    found: dict[int, str] = {}
    for daemon in list_daemons(simulation.default_folder() if simulate is not None else None):
        socket = daemon.socket or ""
        with contextlib.suppress(SentinelError):
            gpus = connect(socket, timeout=_TIMEOUT_S).status().gpus
            found.update({gpu.pid: socket for gpu in gpus if gpu.pid is not None})
    return found


# --- settings that are checked before a start ------------------------------------------------


def with_plan(config: Config, plan: str, sources: Sources) -> Config:
    """Return settings with which each GPU goes through a plan again and again.

    Args:
        config: The settings.
        plan: A level or a file.
        sources: Where the settings come from.

    Raises:
        ConfigError: There is no such plan, or a workload is given, too.
    """
    from sentinel.burnin.levels import find_plan  # slow to import

    if sources.source_of("workload") == "--workload":
        raise ConfigError("--workload cannot be combined with --plan, which names the workloads")
    chosen = find_plan(plan)
    return replace(config, plan=chosen, workload=chosen.phases[0].workload)


def check_before_start(config: Config, sources: Sources, plan: str | None) -> None:
    """Check the workloads of the settings, or those of a plan, with their options.

    Args:
        config: The settings.
        sources: Where they come from.
        plan: A level or a file, instead of the workloads of the settings.

    Raises:
        ConfigError: At least one cannot be used.
    """
    named = [*workloads_of(sources.given)]
    for text in without_effect(sources.given) if plan is None else ():
        click.echo(f"sentinel: warning: {text}", err=True)
    if plan is not None:
        from sentinel.burnin.levels import LEVELS, find_plan

        # The plans of the levels are tested with the workloads.
        chosen = find_plan(plan)
        named = [] if plan in LEVELS else [*workloads_of_plan(chosen, f"--plan {plan}")]
    check_workloads(named, account_of(config, sources))
    for warning in unusable():
        click.echo(f"sentinel: warning: {warning}", err=True)


def warn_of_no_link() -> None:
    """Print a warning if other commands find a daemon only by variables that are set now."""
    chosen = [name for name in (SOCKET_VARIABLE, SIMULATED) if os.environ.get(name)]
    why = registry.why_not_linked(os.environ, os.getuid()) if chosen else None
    if why is not None:
        what = f"other commands find this daemon only with {chosen[0]}={os.environ[chosen[0]]}"
        remedy = "Set HOME or XDG_STATE_HOME to a folder that you can write."
        click.echo(f"sentinel: warning: {what}: {why}\n{remedy}", err=True)


def account_of(config: Config, sources: Sources) -> Account | None:
    """Return the user of the stressors if it is another one, and this process can become it.

    Raises:
        ConfigError: There is no such user, or it is root.
    """
    if config.stressor_user is None or os.getuid() != 0:
        return None
    return look_up(config.stressor_user, sources.source_of("stressor.user"))


def chosen_log(sources: Sources) -> Path | None:
    """Return the absolute path of the log's file that a setting names, or None.

    A relative one is that of the current folder, as far as the setting has one: a flag and a
    variable, but no file of settings.

    Raises:
        ConfigError: A setting is invalid.
    """
    text = checked(sources).log_file
    return None if text is None else absolute_log(text, sources.source_of("log.file"))


def absolute_log(text: str, source: str) -> Path:
    """Return the absolute path of the log's file; see :func:`chosen_log`.

    Raises:
        ConfigError: It is relative, and its source has no folder.
    """
    if text.startswith("~/"):
        return Path(os.environ.get("HOME") or "/") / text.removeprefix("~/")
    if not text.startswith("/") and source not in {"--log-file", variable_of("--log-file")}:
        raise ConfigError(
            f"{source}: {text!r} is not an absolute path",
            "Start it with a slash or ~/: the daemon that reads this has another folder.",
        )
    return Path(text).absolute()


def with_chosen_log(where: Places, sources: Sources) -> Places:
    """Return the paths with the log's file that a setting names, if there is one.

    Raises:
        ConfigError: A setting is invalid.
    """
    log = chosen_log(sources)
    return where if log is None else replace(where, log=log, log_named=True)


def _goes_to_journal(*, detached: bool) -> bool:
    """Check whether events go to the journal: in a unit of systemd, unless a format is given."""
    if not detached:
        source_of = click.get_current_context().get_parameter_source
        if any(
            source_of(name) is not ParameterSource.DEFAULT for name in ("log_format", "as_json")
        ):
            return False
    return gets_stream(2 if detached else 1, os.environ)


def _serve(sources: Sources, simulate: int | None, *, detached: bool) -> Serve:
    """Return the options of the API, at the paths of this user or of the simulated GPUs."""
    folder = simulation.default_folder() if simulate is not None else None
    where = with_chosen_log(own_places(os.environ, os.getuid(), folder), sources)
    file = str(sources.file) if sources.file is not None else None
    return Serve(places=where, file=file, detached=detached)


def _sink_for(stream: TextIO, *, text: bool) -> Callable[[Mapping[str, Gpu]], Sink]:
    """Return a factory of the sink for text or JSON lines."""

    def sink(gpus: Mapping[str, Gpu]) -> Sink:
        if not text:
            return json_lines(stream, gpus)
        return text_lines(stream, gpus, colour=wants_colour(stream))

    return sink
