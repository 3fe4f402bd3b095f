"""``sentinel burnin``: burn GPUs in by a plan, with a verdict for each.

A process of its own records the run, so that it can survive the terminal. The host's daemon does
the work where one runs, and a private one elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any

import click

from sentinel.burnin.checks.own_checks import registered_checks
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.formats import write_reports
from sentinel.burnin.levels import LEVELS, read_plan
from sentinel.burnin.report import Judged, judge_run
from sentinel.burnin.resume import (
    check_own,
    flags_to_resume,
    simulated_gpus,
    single_to_resume,
)
from sentinel.burnin.run import NOT_OF_A_RUN, RunRequest, cancel_run, record_run
from sentinel.burnin.run_folder import (
    RunFolder,
    find_run,
    new_folder,
    read_object,
    register,
)
from sentinel.burnin.verdict import exit_code
from sentinel.cli.daemon.burnin_follow import Following, attach, cancel, status, verbose_option
from sentinel.cli.daemon.run import account_of
from sentinel.cli.daemon.start import count_simulated, daemon_flags, host_flags
from sentinel.cli.display.output import Word, color_option
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_classes import GroupedGroup
from sentinel.cli.options.command_options import strict_option
from sentinel.cli.options.setting_options import (
    expect_options,
    load_expectation,
    load_thresholds,
    settings_without,
    simulate_option,
    warn_of_no_notifications,
)
from sentinel.client import Client, connect
from sentinel.client.hold import private_sentinel
from sentinel.config.changes import text_of
from sentinel.config.expectation import Expectation, parse_expectation
from sentinel.config.model import Config
from sentinel.config.plan import Plan, parse_plan
from sentinel.config.sources import NAME, Sources, checked
from sentinel.config.toml_text import parse_toml
from sentinel.diagnostics.workload_catalog import check_workloads, is_registered, workloads_of_plan
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode, NotRunningError, SentinelError
from sentinel.host import registry, simulation, verified_store
from sentinel.host.daemon_lookup import locate as locate_daemon
from sentinel.host.golden_store import locate
from sentinel.host.paths import places
from sentinel.host.process_setup import end_with_parent
from sentinel.host.procfs import read_stat
from sentinel.host.registry import records_folder
from sentinel.host.regular_file import why_foreign
from sentinel.host.verified_store import acknowledged_at, confirmed_faulty, known_gpus
from sentinel.supervisor.bootstrap import leave

#: Signals that end the record of a run.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


#: The options of the short help: they are for a burn-in, or say on what it runs.
_SHOWN = (
    *("level", "file", "show_plan", "target", "resume", "fail_fast", "as_json", "limits"),
    *("expect", "expect_gpus", "strict", "simulate", "gpus", "run_for"),
)


@click.group("burnin", cls=GroupedGroup, shown=_SHOWN, invoke_without_command=True)
@click.option(
    "--level",
    type=Word(LEVELS),
    metavar="LEVEL",
    help="screen, standard, long or soak: 1 min, 10 min, 1 h or 24 h of verified work."
    "  [default: standard]",
)
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
@click.option(
    "--thresholds", "limits", metavar="FILE", help="Replace limits by those of this TOML file."
)
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
    level = level or "standard"
    if flags["show_plan"]:
        click.echo(read_plan(level, file)[1], nl=False)
        return int(ExitCode.OK)
    plan, text = read_plan(level, file)
    registered_checks(CHECKS.ids)  # a conflict is to be known before the run
    daemon, simulated = _host_of(simulate)
    state = places(os.environ, os.getuid(), simulated).shared
    if resume is not None:
        folder = RunFolder(path=find_run(state, str(resume)))
        check_own(folder)  # before its settings become flags
        number = simulated_gpus(folder)
        if number is not None and simulate is None:
            daemon, simulated = _host_of(number)
        simulate = simulate if number is None else number
    _check_thresholds(limits)
    expected = Expectation()
    if resume is None:
        expected = load_expectation(expect, expect_gpus, is_here=simulated is None)
    config = checked(sources)
    slowed = [name for name in ("util", "power", "duty") if getattr(config, name) is not None]
    if slowed:
        raise click.UsageError(f"{slowed[0]} is set: a burn-in runs at full speed")
    _check_workloads(plan, file, config, sources, by_daemon=daemon is not None)
    if daemon is not None:
        _check_for_daemon(daemon, sources, simulate, resumes=resume is not None)
    else:
        why = "since the API process of a daemon sends them, and no daemon runs"
        warn_of_no_notifications(config, sources, why)
    begun: list[str] = []
    single = ""
    if resume is not None:
        begun, single = _as_begun(folder, sources)
    else:
        folder = RunFolder(path=target) if target is not None else new_folder(state, plan)
    order = Order(
        folder=str(folder.path.absolute()),
        text=None if resume is not None else text,
        gpus=_selected(sources),
        fail_fast=flags["fail_fast"],
        strict=flags["strict"],
        thresholds=None if limits is None else str(Path(limits).absolute()),
        expectation=(expected.text, expected.source),
        socket=None if daemon is None else daemon.address.socket,
        flags=[] if daemon is not None else [*_private_flags(sources, simulate), *begun],
        single=single,
        simulated=None if simulated is None else str(simulated.absolute()),
        simulate=simulate,
        state=str(state.absolute()),
    )
    return follow_new_run(order, as_json=flags["as_json"], verbose=flags["verbose"])


def _check_thresholds(limits: str | None) -> None:
    """Read a file of thresholds, and warn if nothing that is judged by it proves a GPU correct."""
    if (why := load_thresholds(limits).node.why_unproved) is not None:
        click.echo(f"sentinel: warning: no GPU will pass: {why}", err=True)


def _check_workloads(
    plan: Plan | None, file: Path | None, config: Config, sources: Sources, *, by_daemon: bool
) -> None:
    """Check the workloads of a plan of the user's own; those of the levels are tested.

    A daemon may find modules in other places, but what is registered in the same.
    """
    if plan is None or file is None:
        return
    named = workloads_of_plan(plan, f"--plan {file}")
    here = [workload for workload in named if not by_daemon or is_registered(workload.text)]
    check_workloads(here, account_of(config, sources))


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


def _private_flags(sources: Sources, simulate: int | None) -> list[str]:
    """Build the flags of ``sentinel run`` for a private daemon with the same settings.

    It has a state directory of its own: the golden checksums stay those of the host.
    """
    flags = [*host_flags(sources, simulate), *daemon_flags(sources, ("gpus", *NOT_OF_A_RUN))]
    if sources.get("goldens") is None and simulate is None:
        flags += ["--goldens", str(locate(None, os.environ))]
    return flags


def _as_begun(folder: RunFolder, sources: Sources) -> tuple[list[str], str]:
    """Build the flags and the saved settings with which a private daemon goes on with a run.

    Raises:
        ConfigError: A flag asks for other work.
    """
    return flags_to_resume(folder, sources), text_of(single_to_resume(folder, sources))


def _host_of(simulate: int | None) -> tuple[Client | None, Path | None]:
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


# --- starting --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the process that records a run is asked for; its fields are JSON values."""

    folder: str
    #: The plan as TOML, or None to go on with the run of the folder.
    text: str | None
    gpus: Sequence[str] = ()
    fail_fast: bool = False
    #: Whether a WARN ends with 1.
    strict: bool = False
    #: The file of thresholds, or None.
    thresholds: str | None = None
    #: What the node must be: the text and its source; both are empty if nothing is said.
    expectation: Sequence[str] = ("", "")
    #: The socket of the daemon, or None to start a private one.
    socket: str | None = None
    #: The flags of ``sentinel run`` for a private daemon.
    flags: Sequence[str] = ()
    #: Its settings for single GPUs, as a file.
    single: str = ""
    #: The folder of the simulated GPUs and their number; None with real ones.
    simulated: str | None = None
    simulate: int | None = None
    #: The state directory, in which a new run is known.
    state: str
    #: The PID of the command, with which a private daemon ends.
    command: int = field(default_factory=os.getpid)


class _RefusedError(SentinelError):
    """The process that records a run has not begun; it has an exit code of its own."""


def follow_new_run(order: Order, *, as_json: bool, verbose: bool) -> int:
    """Have a run started and recorded, follow it to its end, and print the report.

    Ctrl+C cancels the run and shows what was done. A second one leaves a run of the host's daemon
    to end by itself, and ends a private daemon at once. That takes SIGTERM and SIGHUP as Ctrl+C.

    Raises:
        SentinelError: Nothing was started.
    """
    folder = RunFolder(path=Path(order.folder))
    known = folder.event_count() if order.text is None else 0
    if order.socket is None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
    recorder, socket, run = _start_recorder(order)
    why = why_foreign(folder.header)
    if order.text is not None and why is not None:
        advice = "a run in a folder that no other user can replace can be"
        click.echo(f"sentinel: warning: this run cannot be resumed: {why}; {advice}", err=True)
    if order.text is not None:
        warn_of_earlier_faults(folder)
    if order.socket is not None:
        where = f"the daemon runs it, and this terminal may be closed; recorded in {folder.path}"
        with contextlib.suppress(OSError):
            print(where, file=sys.stderr if as_json else sys.stdout)
    following = Following(
        folder,
        connect(socket),
        recorder,
        run=run,
        known=known,
        is_private=order.socket is None,
        verbose=verbose,
    )
    return following.to_report(as_json=as_json)


def warn_of_earlier_faults(folder: RunFolder) -> None:
    """Name the faults of the kernel's log since the boot that were not acknowledged."""
    for fault in read_object(folder.counters).get("unacknowledged", ()):
        click.echo(f"sentinel: warning: before this run, since the boot: {fault}", err=True)


def _start_recorder(order: Order) -> tuple[subprocess.Popen[bytes], str, str]:
    """Start the process that records, and wait until the daemon has begun.

    Returns:
        The process, the socket of the daemon, and the id of the run.

    Raises:
        SentinelError: It has not.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sentinel", "burnin", "record"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # it survives this terminal
    )
    assert process.stdin is not None  # noqa: S101 - as asked for
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(vars(order)).encode())
    answer = process.stdout.readline()
    told: dict[str, Any] = (
        json.loads(answer) if answer else {"what": "the recording process has failed"}
    )
    if "what" in told:
        process.stdout.close()
        process.wait()
        with contextlib.suppress(OSError):  # it has a run
            Path(order.folder).rmdir()
        error = _RefusedError(told["what"], told.get("remedy", ""))
        code = ExitCode(told.get("code", ExitCode.USAGE))
        # Of a burn-in, the code of a conflict is a verdict: another one has the GPUs.
        error.exit_code = ExitCode.HELD if code is ExitCode.FAIL else code
        raise error
    return process, told["socket"], told["run"]


# --- the process that records ----------------------------------------------------------------


@click.command("record", hidden=True)
def record() -> int:
    """Record a run; the order comes over standard input.

    The result of the start goes out, and later the error that ends the record. A signal cancels the
    run, so that it ends with a report.
    """
    order = Order(**json.loads(sys.stdin.read()))
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # after the terminal was left, too
    if order.socket is None:
        end_with_parent(order.command, signal.SIGTERM)
    for number in _ENDS:
        signal.signal(number, signal.default_int_handler)
    folder = RunFolder(path=Path(order.folder))
    judged: list[Judged] = []
    try:
        given = order.thresholds
        thresholds = None if given is None else load_thresholds(given).node
        text, source = order.expectation
        expected = parse_expectation(text, source) if text else Expectation()
        if order.simulated is not None and order.simulate is not None:
            simulation.Registry.create(Path(order.simulated), order.simulate)
        request = RunRequest(
            folder=folder,
            text=order.text,
            gpus=tuple(order.gpus),
            fail_fast=order.fail_fast,
            strict=order.strict,
            simulated=None if order.simulated is None else Path(order.simulated),
            thresholds=thresholds,
            expectation=expected,
            known={} if expected.gpus is None else known_gpus(Path(order.state)),
            confirmed=confirmed_faulty(Path(order.state)),
            acknowledged=acknowledged_at(Path(order.state)),
        )

        def judge() -> None:
            judged.append(judge_run(folder, thresholds))
            write_reports(folder, judged[0])

        def begin(client: Client, run: str) -> None:
            if order.text is not None:
                plan = parse_plan(parse_toml(order.text, "the plan"), "the plan")
                if why := register(folder, Path(order.state), plan):
                    what = f"`sentinel health` will not know this run: {why}"
                    click.echo(f"sentinel: warning: {what}", err=True)
            _report_start(order, client, run, answers)

        clean = record_run(request, partial(_connected, order), begin, judge)
    except SentinelError as error:
        told = {"what": error.what, "remedy": error.remedy, "code": error.exit_code}
        with contextlib.suppress(OSError):  # the command has ended
            print(json.dumps(told), file=answers)
        return int(error.exit_code)
    except (BrokenPipeError, KeyboardInterrupt):  # the command has ended before the run had begun
        return int(ExitCode.INTERRUPTED)
    (run,) = judged
    unkillable = any(gpu.record.is_unkillable for gpu in run.gpus)
    code = ExitCode.UNKILLABLE if unkillable else exit_code(run.verdict, strict=run.strict)
    return int(leave(code, clean=clean and not run.stuck))


@contextlib.contextmanager
def _connected(order: Order, gpus: Sequence[str]) -> Iterator[Client]:
    """Connect to the host's daemon, or to a private one, which ends with the block.

    Raises:
        SentinelError: The private daemon did not start.
    """
    if order.socket is not None:
        yield connect(order.socket)
        return
    selected = ["--gpus", ",".join(gpus)] if gpus else []
    files = {NAME: order.single}
    with private_sentinel(["--burnin-only", *order.flags, *selected], files=files) as held:
        held.wait_ready()
        simulated = None if order.simulated is None else Path(order.simulated)
        where = places(os.environ, os.getuid(), simulated)
        process = read_stat(held.pid)
        record = replace(
            registry.describe_own(
                where.shared.absolute(),
                simulated=order.simulated,
                simulate=order.simulate,
                run=order.folder,
                burnin_socket=held.client.address.socket,
            ),
            pid=held.pid,
            started=0 if process is None else process.started,
        )
        path = where.socket.with_name(f"burnin-{held.pid}.json").absolute()
        with registry.recorded(path, record, records_folder(os.environ, os.getuid())):
            try:
                yield held.client
            finally:
                _count_work(held.client, where.shared)


def _count_work(client: Client, shared: Path) -> None:
    """Add what a private daemon has verified to what the host's daemons count, if possible.

    Its own count ends with it.
    """
    with contextlib.suppress(SentinelError, OSError, ValueError):  # the report has all results
        verified_store.add_work(shared / verified_store.NAME, client.status().gpus)


def _report_start(order: Order, client: Client, run: str, answers: IO[str]) -> None:
    """Tell the command that the run has begun; leave its terminal, and end by a cancel."""

    def cancel(_number: int, _frame: FrameType | None) -> None:
        died = order.socket is None and os.getppid() != order.command
        reason = f"its command, process {order.command}, died" if died else None
        threading.Thread(target=cancel_run, args=(client, run, reason), daemon=True).start()

    for number in _ENDS:
        signal.signal(number, cancel)
    print(json.dumps({"socket": client.address.socket, "run": run}), file=answers)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


for _command in (status, attach, cancel, record):
    command.add_command(_command)
