"""``sentinel run``: occupy GPUs in the foreground, or report on them without a change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO, cast

import click
from click.core import ParameterSource

from sentinel.cli.daemon.log_place import chosen_log, with_chosen_log
from sentinel.cli.display.log_lines import text_lines
from sentinel.cli.display.output import color_option, wants_colour
from sentinel.cli.options.command_classes import GroupedOptions
from sentinel.cli.options.setting_options import (
    log_format,
    plan_option,
    settings_of_daemon,
    simulate_option,
    warn_of_no_notifications,
)
from sentinel.config.model import Config
from sentinel.config.sources import Sources, checked
from sentinel.errors import ConfigError, ExitCode
from sentinel.host.files.paths import places, prepare, prepare_log
from sentinel.host.gpus import simulation
from sentinel.host.installed.import_stubs import without_rich
from sentinel.host.logs.log_file import RotatingLog
from sentinel.host.processes.unprivileged import look_up
from sentinel.host.systemd import Journal, gets_stream, match_of_this_run
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import Account

with without_rich():  # only here: a program that embeds a supervisor may need rich
    from sentinel.cli.display import survey_format
    from sentinel.cli.journal_sink import journal_sink
    from sentinel.diagnostics import survey
    from sentinel.diagnostics.workload_catalog import (
        check_workloads,
        workloads_of,
        workloads_of_plan,
    )
    from sentinel.supervisor import bootstrap
    from sentinel.supervisor.discovery import Options, Serve
    from sentinel.supervisor.event_log import Sink, json_lines


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
    text: bool,  # noqa: FBT001 - click passes options by name
    **flags: bool,
) -> int:
    """Occupy every idle GPU until Ctrl+C, and yield it as soon as a foreign process appears."""
    dry_run, explain, monitor = flags["dry_run"], flags["explain"], flags["monitor"]
    config = replace(checked(sources), dry_run=dry_run or monitor, explain=explain)
    config = replace(config, paused=monitor or flags["paused"], burnin_only=flags["burnin_only"])
    if plan is not None:
        config = with_plan(config, plan, sources)
    options = Options(config=config, given=sources.given, simulate=simulate, lent=flags["lent"])
    if flags["list_"]:
        survey_format.print_gpus(survey.inventory(options), text=text)
        return int(ExitCode.OK)
    if flags["once"]:
        _report_once(options, text=text, explain=explain)
        return int(ExitCode.OK)
    if not (flags["daemon"] or flags["burnin_only"]):  # the command that starts it has done it
        check_before_start(config, sources, plan)
    # A dry run occupies nothing: it needs no control, and must leave the socket to a daemon.
    if not flags["no_api"] and (monitor or not dry_run):
        serve = _serve(sources, simulate, detached=flags["daemon"])
        if _goes_to_journal(detached=serve.detached):
            serve = replace(serve, journal=match_of_this_run(os.environ))
        options = replace(options, serve=replace(serve, recorded=not flags["private"]))
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
            sink_for = partial(journal_sink, stack.enter_context(closing(Journal())))
        if serve is not None and detached:
            prepare(serve.places)
            log = stack.enter_context(RotatingLog(serve.places.log))
            sink_for = _sink_for(cast("TextIO", log), text=False)
        elif file is not None:
            prepare_log(file)
            options = replace(options, log=stack.enter_context(RotatingLog(file)))
        return int(bootstrap.supervise(options, sink_for))


def _report_once(options: Options, *, text: bool, explain: bool) -> None:
    """Print the use of each GPU; what the daemons of this user have there is named as theirs."""
    found = survey.survey(options)
    stressors = _stressors_of_daemons(options.simulate)
    rows = [survey.with_daemons(row, stressors) for row in found]
    survey_format.print_survey(rows, text=text, explain=explain)


def _warn_of_daemons(simulate: int | None) -> None:
    """Print a warning for each daemon of this user whose stressors are foreign processes here."""
    for socket in sorted(set(_stressors_of_daemons(simulate).values())):
        what = f"the daemon at {socket} occupies GPUs: its stressors are foreign processes here"
        click.echo(f"sentinel: warning: {what}", err=True)


def _stressors_of_daemons(simulate: int | None) -> dict[int, str]:
    from sentinel.cli.own_stressors import find_stressors  # slow to import

    return find_stressors(simulation.default_folder() if simulate is not None else None)


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
    return replace(config, plan=chosen, repeat=True, workload=chosen.phases[0].workload)


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
    if plan is not None:
        from sentinel.burnin.levels import LEVELS, find_plan

        # The plans of the levels are tested with the workloads.
        chosen = find_plan(plan)
        named = [] if plan in LEVELS else [*workloads_of_plan(chosen, f"--plan {plan}")]
    check_workloads(named, account_of(config, sources))


def account_of(config: Config, sources: Sources) -> Account | None:
    """Return the user of the stressors if it is another one, and this process can become it.

    Raises:
        ConfigError: There is no such user, or it is root.
    """
    if config.stressor_user is None or os.getuid() != 0:
        return None
    return look_up(config.stressor_user, sources.source_of("stressor.user"))


def _goes_to_journal(*, detached: bool) -> bool:
    """Check whether events go to the journal: in a unit of systemd, unless a format is given."""
    if not detached:
        source_of = click.get_current_context().get_parameter_source
        if any(source_of(one) is not ParameterSource.DEFAULT for one in ("log_format", "as_json")):
            return False
    return gets_stream(2 if detached else 1, os.environ)


def _serve(sources: Sources, simulate: int | None, *, detached: bool) -> Serve:
    """Return the options of the API, at the paths of this user or of the simulated GPUs."""
    folder = simulation.default_folder() if simulate is not None else None
    where = with_chosen_log(places(os.environ, os.getuid(), folder), sources)
    file = str(sources.file) if sources.file is not None else None
    return Serve(places=where, file=file, detached=detached)


def _sink_for(stream: TextIO, *, text: bool) -> Callable[[Mapping[str, Gpu]], Sink]:
    """Return a factory of the sink for text or JSON lines."""

    def sink(gpus: Mapping[str, Gpu]) -> Sink:
        if not text:
            return json_lines(stream, gpus)
        return text_lines(stream, gpus, colour=wants_colour(stream))

    return sink
