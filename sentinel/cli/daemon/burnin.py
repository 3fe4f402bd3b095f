"""``sentinel burnin``: burn GPUs in by a plan, with a verdict for each.

A process of its own records the run, so that it can survive the terminal. The host's daemon does
the work where one runs, and a private one elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.own_checks import registered_checks
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.levels import read_plan
from sentinel.burnin.request import RunRequest
from sentinel.burnin.resume import check_own, flags_to_resume, simulated_gpus, single_to_resume
from sentinel.burnin.run import NOT_OF_A_RUN
from sentinel.burnin.run_files import new_folder
from sentinel.burnin.run_folder import RunFolder, find_run, read_object
from sentinel.cli.daemon.burnin_follow import Following, attach, cancel, status, verbose_option
from sentinel.cli.daemon.burnin_record import record, start_recorder
from sentinel.cli.daemon.known_faults import known_findings
from sentinel.cli.daemon.run import account_of
from sentinel.cli.daemon.start import count_simulated, daemon_flags, host_flags
from sentinel.cli.display.output import color_option, printable
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import GroupedGroup
from sentinel.cli.options.command_options import strict_option
from sentinel.cli.options.setting_options import (
    expect_options,
    level_option,
    load_expectation,
    load_thresholds,
    settings_without,
    simulate_option,
    thresholds_option,
    warn_of_no_notifications,
)
from sentinel.client import Client, connect
from sentinel.config.changes import text_of
from sentinel.config.expectation import Expectation
from sentinel.config.plan import Plan
from sentinel.config.sources import Sources, checked
from sentinel.diagnostics.workload_catalog import check_workloads, is_registered, workloads_of_plan
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode, NotRunningError
from sentinel.host import simulation
from sentinel.host.daemon_lookup import daemons_sharing
from sentinel.host.daemon_lookup import locate as locate_daemon
from sentinel.host.golden_store import locate
from sentinel.host.paths import own_places, places
from sentinel.host.regular_file import why_foreign

#: The options of the short help: they are for a burn-in, or say on what it runs.
_SHOWN = (
    *("level", "file", "show_plan", "target", "resume", "fail_fast", "as_json", "limits"),
    *("expect", "expect_gpus", "strict", "simulate", "gpus", "run_for"),
)


@click.group("burnin", cls=GroupedGroup, shown=_SHOWN, invoke_without_command=True)
@level_option("1 min, 10 min, 1 h or 24 h of verified work.  [default: standard]")
@click.option("--plan", "file", type=click.Path(path_type=Path), help="A plan of your own (TOML).")
@click.option("--show-plan", is_flag=True, help="Print the plan of the level and exit.")
@click.option(
    "--report",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the reports.  [default: one for each run in the state directory]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    shell_complete=value_completion.runs,
    help="Go on with a run that was cut short: its folder, or its name in the state directory.",
)
@color_option
@click.option("--fail-fast", is_flag=True, help="End a GPU's plan at its first error.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@thresholds_option()
@expect_options
@strict_option
@verbose_option
@simulate_option("Use N simulated GPUs, for a host without GPUs.")
@settings_without(
    *("workload", "util", "util_tolerance", "util_every", "util_samples", "power", "duty"),
    *("log_file", "log_level"),
)
def command(
    sources: Sources,
    simulate: int | None,
    level: str | None,
    file: Path | None,
    target: Path | None,
    resume: Path | None,
    limits: str | None,
    expect: str | None,
    expect_gpus: int | None,
    **flags: bool,
) -> int:
    """Burn GPUs in, and give a verdict for each: PASS, WARN, FAIL or INCOMPLETE.

    A foreign process gets its GPU at once; the burn-in of that GPU goes on when it has left. Where
    a daemon runs, it does the work, and the run survives this terminal. Exit code 0 for PASS and
    WARN, 1 for FAIL (and, with --strict, WARN), 3 for INCOMPLETE, 2 if nothing could be run.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return int(ExitCode.OK)
    _check_usage(sources, level, file, target, resume)
    if resume is not None and (expect or expect_gpus) is not None:
        raise click.UsageError("--resume expects what the run did: omit --expect, --expect-gpus")
    plan, text = read_plan(level or "standard", file)
    if flags["show_plan"]:
        click.echo(text, nl=False)
        return int(ExitCode.OK)
    registered_checks(CHECKS.ids)  # a conflict is to be known before the run
    host = _find_host(simulate, resume)
    is_chosen = host.begun is not None or host.simulate is not None
    if flags["strict"] and host.simulated is not None and not is_chosen:
        what = "the daemon has simulated GPUs, accepted only with --simulate N"
        raise click.UsageError(what)
    thresholds = _read_thresholds(limits)
    expected = Expectation()
    if host.begun is None:
        expected = load_expectation(expect, expect_gpus, is_here=host.simulated is None)
    _check_settings(sources, host, plan, file)
    if host.begun is not None:
        folder = host.begun
    else:
        folder = RunFolder(path=target) if target is not None else new_folder(host.state, plan)
    flags_of_run, single = _private_settings(sources, host)
    daemons = daemons_sharing(host.state, host.simulated)
    daemons += [] if host.daemon is None else [str(host.daemon.address.socket)]
    request = RunRequest(
        folder=str(folder.path.absolute()),
        plan=None if host.begun is not None else text,
        gpus=_selected(sources),
        fail_fast=flags["fail_fast"],
        strict=flags["strict"],
        thresholds=thresholds,
        expectation=expected.text,
        expected_by=expected.source,
        findings=known_findings(host.state, list(dict.fromkeys(daemons))),
        state=str(host.state.absolute()),
        simulated=None if host.simulated is None else str(host.simulated.absolute()),
        simulate=host.simulate,
        socket=None if host.daemon is None else host.daemon.address.socket,
        flags=flags_of_run,
        single=single,
        command=os.getpid(),
    )
    return follow_new_run(request, as_json=flags["as_json"], verbose=flags["verbose"])


# --- where it runs ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Host:
    """Where a burn-in runs: on the GPUs of a daemon, or on those of a private one."""

    #: The daemon of the host, or None.
    daemon: Client | None
    #: The number of simulated GPUs that is asked for, and their folder; None with real ones.
    simulate: int | None
    simulated: Path | None
    #: The state directory, in which a new run is known.
    state: Path
    #: The run to go on with, or None.
    begun: RunFolder | None = None


def _find_host(simulate: int | None, resume: Path | None) -> _Host:
    """Find the daemon and the simulated GPUs of a new run, or of one to go on with.

    Raises:
        ConfigError: There is no such run, or it is another user's.
    """
    daemon, simulated = _daemon_and_gpus(simulate)
    state = own_places(os.environ, os.getuid(), simulated).shared
    host = _Host(daemon=daemon, simulate=simulate, simulated=simulated, state=state)
    if resume is None:
        return host
    folder = RunFolder(path=find_run(state, str(resume)))
    check_own(folder)  # before its settings become flags
    number = simulated_gpus(folder)
    if number is not None and simulate is None:
        daemon, simulated = _daemon_and_gpus(number)
    simulate = simulate if number is None else number
    return replace(host, daemon=daemon, simulate=simulate, simulated=simulated, begun=folder)


def _daemon_and_gpus(simulate: int | None) -> tuple[Client | None, Path | None]:
    """Find the daemon of the host, or None, and the folder of its simulated GPUs, or None."""
    simulated = simulation.default_folder() if simulate is not None else None
    daemon = _daemon(simulated)
    if daemon is not None and daemon.status().daemon.simulated:
        where = locate_daemon(daemon.address.socket).simulated  # its state, and its GPUs
        simulated = where or simulation.default_folder()
    return daemon, simulated


def _daemon(simulated: Path | None) -> Client | None:
    """Return the client of the daemon with these GPUs, or None if none runs for this user.

    Without simulated GPUs, it is the daemon of the default paths: one with simulated GPUs cannot
    burn real ones in.
    """
    client = connect(places(os.environ, os.getuid(), simulated).socket)
    try:
        client.status()
    except (NotRunningError, AccessDeniedError):
        return None
    return client


def _private_settings(sources: Sources, host: _Host) -> tuple[tuple[str, ...], str]:
    """Build the flags of ``sentinel run`` and the settings of single GPUs of a private daemon.

    Its settings are those of this command, or those that a run was begun with. It has a state
    directory of its own: the golden checksums stay those of the host.

    Raises:
        ConfigError: A flag asks for other work than that of the run to go on with.
    """
    if host.daemon is not None:
        return (), ""
    flags = [*host_flags(sources, host.simulate), *daemon_flags(sources, ("gpus", *NOT_OF_A_RUN))]
    if sources.get("goldens") is None and host.simulate is None:
        flags += ["--goldens", str(locate(None, os.environ))]
    if host.begun is None:
        return tuple(flags), ""
    begun = flags_to_resume(host.begun, sources)
    return (*flags, *begun), text_of(single_to_resume(host.begun, sources))


# --- what is refused -------------------------------------------------------------------------


def _read_thresholds(limits: str | None) -> Thresholds | None:
    """Read a file of thresholds, and warn if nothing that is judged by it proves a GPU correct."""
    if limits is None:
        return None
    found = load_thresholds(limits).node
    if (why := found.why_unproved) is not None:
        click.echo(f"sentinel: warning: no GPU will pass: {why}", err=True)
    return found


def _check_settings(sources: Sources, host: _Host, plan: Plan, file: Path | None) -> None:
    """Refuse settings with which a burn-in would prove nothing, or that a daemon cannot take.

    The workloads of a user's own plan are checked; those of the levels are tested. A daemon may
    find modules in other places, but what is registered in the same.

    Raises:
        UsageError: The GPUs would be slowed down.
        ConfigError: A workload cannot be used, or a daemon cannot be asked for a setting.
    """
    config = checked(sources)
    for name in ("util", "power", "duty"):
        if getattr(config, name) is not None:
            raise click.UsageError(f"{name} is set: a burn-in runs at full speed")
    if file is not None:
        named = workloads_of_plan(plan, f"--plan {file}")
        here = [one for one in named if host.daemon is None or is_registered(one.text)]
        check_workloads(here, account_of(config, sources))
    if host.daemon is not None:
        _check_for_daemon(host.daemon, sources, host.simulate, resumes=host.begun is not None)
    else:
        why = "since the API process of a daemon sends them, and no daemon runs"
        warn_of_no_notifications(config, sources, why)


def _check_usage(
    sources: Sources, level: str | None, file: Path | None, target: Path | None, resume: Path | None
) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: There are such.
    """
    if sum(given is not None for given in (level, file, resume)) > 1:
        raise click.UsageError("--level, --plan and --resume exclude each other")
    if resume is not None and target is not None:
        raise click.UsageError("--resume goes on in the folder of the run: omit --report")
    if resume is not None and _selected(sources):
        raise click.UsageError("--resume goes on with the GPUs of the run: omit --gpus")
    if sources.source_of("workload") == "--workload":
        raise click.UsageError("--workload cannot be given: the plan names the workloads")


def _check_for_daemon(
    daemon: Client, sources: Sources, simulate: int | None, *, resumes: bool
) -> None:
    """Refuse what a daemon cannot be asked for.

    Raises:
        ConfigError: A setting is given, or the daemon has another number of simulated GPUs; a run
            that is resumed names its own.
    """
    gpus = simulate if simulate is None or resumes else count_simulated(daemon)
    if simulate != gpus:
        what = f"--simulate: a daemon runs, and has {gpus} simulated GPUs, not {simulate}"
        raise ConfigError(what, f"Give --simulate {gpus}, or end it first: sentinel stop")
    for given in sources.given:
        if given.by_flag and given.source != "--gpus":
            what = f"{given.source}: a daemon runs, and its own settings apply"
            raise ConfigError(what, "Omit it, or end the daemon first: sentinel stop")


def _selected(sources: Sources) -> tuple[str, ...]:
    """Return the GPUs that --gpus names; without it, the daemon chooses all of its own."""
    given = sources.get("gpus")
    flagged = given is not None and given.source == "--gpus"
    return tuple(given.text.split(",")) if given is not None and flagged else ()


# --- following a new run ---------------------------------------------------------------------


def follow_new_run(request: RunRequest, *, as_json: bool, verbose: bool) -> int:
    """Have a run started and recorded, follow it to its end, and print the report.

    Ctrl+C cancels the run and shows what was done. A second one leaves a run of the host's daemon
    to end by itself, and ends a private daemon at once. That takes SIGTERM and SIGHUP as Ctrl+C.

    Raises:
        SentinelError: Nothing was started.
    """
    folder, is_new = request.run_folder, request.plan is not None
    known = 0 if is_new else folder.event_count()
    if request.socket is None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
    recorder, socket, run = start_recorder(request)
    why = why_foreign(folder.header)
    if is_new and why is not None:
        advice = "a run in a folder that no other user can replace can be"
        click.echo(f"sentinel: warning: this run cannot be resumed: {why}; {advice}", err=True)
    if is_new:
        warn_at_start(folder)
    if request.socket is not None:
        where = f"the daemon runs it, and this terminal may be closed; recorded in {folder.path}"
        with contextlib.suppress(OSError):
            print(where, file=sys.stderr if as_json else sys.stdout)
    following = Following(
        folder,
        connect(socket),
        recorder,
        run=run,
        known=known,
        is_private=request.socket is None,
        verbose=verbose,
    )
    return following.to_report(as_json=as_json)


def warn_at_start(folder: RunFolder) -> None:
    """Report GPUs that are left out by no decision of the user, and unacknowledged faults."""
    begun = read_object(folder.counters)
    ignored = begun.get("ignored_devices")
    indices = {gpu["uuid"]: gpu["index"] for gpu in begun.get("before", ())}
    held = [
        f"GPU {indices.get(uuid, uuid)} is not tested, so this run cannot pass: held by {holder}"
        for uuid, holder in (begun.get("held_elsewhere") or {}).items()
    ]
    faults = begun.get("unacknowledged", ())
    earlier = [f"before this run, since the boot: {fault}" for fault in faults]
    for text in [*filter(None, [ignored]), *held, *earlier]:
        click.echo(f"sentinel: warning: {printable(text)}", err=True)


for _command in (status, attach, cancel, record):
    command.add_command(_command)
