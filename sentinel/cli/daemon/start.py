"""``sentinel start`` and ``restart``: start the daemon, and wait until it has a stressor."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import click
from click.core import ParameterSource

from sentinel.burnin.levels import LEVELS
from sentinel.cli.daemon.run import check_before_start, warn_of_no_link, with_chosen_log, with_plan
from sentinel.cli.display import gpu_table
from sentinel.cli.display.log_lines import render
from sentinel.cli.options import command_options as options
from sentinel.cli.options.command_classes import GroupedOptions
from sentinel.cli.options.setting_options import (
    plan_option,
    read_sources,
    saved_file,
    settings_of_daemon,
    simulate_option,
)
from sentinel.client import Client, GpuStatus, connect
from sentinel.client.event_stream import EventInfo
from sentinel.config.model import SETTINGS
from sentinel.config.sources import Sources, checked
from sentinel.errors import (
    AlreadyRunningError,
    ExitCode,
    NotRunningError,
    SentinelError,
    ServiceError,
)
from sentinel.host.daemon_lookup import locate
from sentinel.host.paths import SIMULATED, Places, own_places
from sentinel.host.registry import running
from sentinel.host.simulation import Registry, default_folder
from sentinel.protocol.events import EVENTS
from sentinel.supervisor.daemonize import NotStartedError, last_reason, start_detached

T = TypeVar("T")

#: The event of a GPU that another process holds.
_HELD = "gpu.held_elsewhere"

_POLL_INTERVAL_S = 0.1
#: A GPU that waits for its turn counts as one with nothing to start after so long, in seconds: the
#: shortest waits, for a second reading and for --rearm, end before.
_SHORT_WAIT_S = 30.0

#: From when on the reasons of a wait are printed, in seconds.
_LONG_WAIT_S = 10.0

#: The rules by which a GPU waits only for a short time, and those of a GPU that is about to start.
_SHORT_RULES = frozenset({"confirm", "rearm", "idle.wait", "idle.utilization", "allocations"})
_SOON_RULES = frozenset({"idle", "api", "probe", "limits.starts_per_second"})
_NOT_READ = "unknown: not read yet"
#: A driver without persistence mode needs up to 3 s per GPU.
START_TIMEOUT_S = 60.0
#: How long a daemon may take to end, or to answer, that another command stops or starts.
SETTLING_S = 20.0
_WAIT = "Maximum wait until a stressor is ready"
#: What is printed for a daemon without a log.
NO_LOG = "none: it runs in the foreground and prints its events"


class NotProvedError(SentinelError):
    """The daemon runs, and no stressor of it has become ready."""

    exit_code = ExitCode.FAIL


@dataclass(frozen=True, kw_only=True)
class FirstStressor:
    """What a daemon has proved."""

    #: The indices of the GPUs that stressors occupy; None if that was not asked.
    occupied: tuple[int, ...] | None
    #: What the daemon does, as a sentence.
    text: str


_NO_PROOF = FirstStressor(occupied=None, text="")


def wait_for_stressor(
    client: Client,
    wait: float,
    is_alive: Callable[[], bool],
    *,
    former: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FirstStressor:
    """Wait until one stressor is ready, or until no GPU is about to get one.

    After a while, each new reason of the wait is printed.

    Args:
        client: The client of the daemon.
        wait: The longest wait, in seconds.
        is_alive: Checks whether the daemon runs, if it does not answer.
        former: Only GPUs whose stressors are started again: their starts so far, by UUID.
        clock: The clock.

    Raises:
        NotProvedError: Stressors have failed and none is ready, or the time is over.
        SentinelError: The daemon has ended, or does not answer.
    """
    began, said = clock(), ""
    while True:
        late = clock() - began
        try:
            status = client.status()
        except SentinelError:
            if late > wait or not is_alive():
                raise
            time.sleep(_POLL_INTERVAL_S)  # its API process is replaced
            continue
        if status.daemon.ending:
            again = "To start it again, use: sentinel start"
            raise NotProvedError(f"the daemon ends: {status.daemon.ending}", again)
        gpus = tuple(gpu for gpu in status.gpus if former is None or gpu.uuid in former)
        replaced = [
            gpu for gpu in gpus if gpu.occupied and gpu.starts <= (former or {}).get(gpu.uuid, -1)
        ]
        occupied = tuple(gpu.index for gpu in gpus if gpu.occupied and gpu not in replaced)
        if occupied:
            text = f"occupies {_names(occupied)}{_rest(gpus, late)}"
            return FirstStressor(occupied=occupied, text=text)
        pending = [gpu for gpu in gpus if gpu in replaced or _is_pending(gpu, late)]
        failed = [gpu for gpu in gpus if gpu.stressor.upper() in {"BACKOFF", "FATAL"}]
        if failed and not pending:
            raise NotProvedError(f"no stressor has started: {_reasons(failed)}")
        if not pending:
            text = f"starts no stressor: {_reasons(gpus)}" if gpus else "has no GPU"
            return FirstStressor(occupied=(), text=text)
        if late > wait:
            raise NotProvedError(f"no stressor has started within {wait:g} s: {_reasons(pending)}")
        starting = _reasons(gpu for gpu in pending if gpu.rule == "starting")
        if late > _LONG_WAIT_S and starting and said != (said := starting):
            click.echo(f"sentinel: still waiting: {said}", err=True)
        time.sleep(_POLL_INTERVAL_S)


def change_workload(
    client: Client, change: Callable[[], T], wait: float, stays: str
) -> tuple[T, FirstStressor]:
    """Change settings, and wait for the first stressor that has another workload then.

    Args:
        client: The client of the daemon.
        change: Changes the settings.
        wait: The longest wait, in seconds; 0 does not wait.
        stays: What the error says about the change.

    Raises:
        NotProvedError: As of :func:`wait_for_stressor`; the change stays.
        SentinelError: The change is refused.
    """
    before = {gpu.uuid: gpu for gpu in client.status().gpus} if wait else {}
    done = change()
    former = {
        gpu.uuid: before[gpu.uuid].starts
        for gpu in (client.status().gpus if wait else ())
        if gpu.uuid in before and gpu.workload != before[gpu.uuid].workload
    }
    if not former:
        return done, _NO_PROOF
    try:
        return done, wait_for_stressor(client, wait, client.health, former=former)
    except NotProvedError as error:
        remedy = f"{stays} The log has more: sentinel logs"
        raise NotProvedError(f"the settings were applied, and {error.what}", remedy) from error


def _is_pending(gpu: GpuStatus, late: float) -> bool:
    """Check whether a GPU has a stressor that is starting, or is about to get one."""
    stressor = gpu.stressor.upper()
    if stressor != "STOPPED":
        return stressor in {"STARTING", "STOPPING"}
    if gpu.rule in _SOON_RULES:
        return True
    if gpu.rule_until_s is not None and late + gpu.rule_until_s > _SHORT_WAIT_S:
        return False
    return late < _SHORT_WAIT_S and (gpu.rule in _SHORT_RULES or gpu.reason.startswith(_NOT_READ))


def _rest(gpus: tuple[GpuStatus, ...], late: float) -> str:
    """Describe the GPUs beside those that are occupied that get a stressor now or soon."""
    starting = [gpu.index for gpu in gpus if gpu.stressor.upper() == "STARTING"]
    waiting = [
        gpu.index
        for gpu in gpus
        if not gpu.occupied and gpu.index not in starting and _is_pending(gpu, late)
    ]
    parts = [
        f"; {_names(indices)} {'is' if len(indices) == 1 else 'are'} {verb}"
        for indices, verb in ((starting, "starting"), (waiting, "about to start"))
        if indices
    ]
    return "".join(parts)


def _reasons(gpus: Iterable[GpuStatus]) -> str:
    return "; ".join(gpu_table.reasons(gpus))


def _names(indices: tuple[int, ...] | list[int]) -> str:
    return f"GPU {', '.join(map(str, indices))}"


@click.command("start", cls=GroupedOptions)
@simulate_option("Use N simulated GPUs, for a host without GPUs.")
@settings_of_daemon
@plan_option
@click.option("--paused", is_flag=True, help="Occupy no GPU until `sentinel resume`.")
@options.wait_option(_WAIT, "5m")
@options.prints
def command(
    sources: Sources, simulate: int | None, plan: str | None, paused: bool, wait: float
) -> options.Printed:
    """Start the daemon. A running daemon is not changed; paused GPUs stay paused.

    The daemon survives the terminal. The command waits until a stressor is ready on one GPU, or
    until the daemon has nothing to start: exit code 1 if stressors fail, or none is ready within
    --wait. The daemon goes on then.
    """
    config, of_plan = checked(sources), []
    if plan is not None:
        with_plan(config, plan, sources)
        of_plan = [f"--plan={plan if plan in LEVELS else Path(plan).absolute()}"]
    where = _places(simulated=simulate is not None)
    pid = _settled_pid(where)
    flags = [*daemon_flags(sources), *of_plan]
    started = pid is None
    if pid is None:
        where = with_chosen_log(where, sources)
        check_before_start(config, sources, plan)
        warn_of_no_link()
        own = [*host_flags(sources, simulate), *flags, *(["--paused"] if paused else [])]
        try:
            pid = start_detached(own, where, START_TIMEOUT_S).pid
        except NotStartedError as error:
            # Another start at the same time was faster: this is as if it had come before.
            pid = _settled_pid(where) if error.exit_code is ExitCode.HELD else None
            if pid is None:
                raise
            started = False
    if not started:
        if paused:
            raise _runs_already(where, pid, "To release its GPUs, use: sentinel pause")
        if simulate is not None:
            _check_number(where, pid, simulate)
        if flags:
            remedy = "It keeps its settings. To change them, use: sentinel set"
            raise _runs_already(where, pid, remedy)
        named = click.get_current_context().get_parameter_source("config")
        if named is ParameterSource.COMMANDLINE:
            remedy = "It keeps its settings and its file. To read that again, use: sentinel reload"
            raise _runs_already(where, pid, remedy)
        _check_that_it_answers(where, pid)
    proof = _prove(where, pid, wait)
    facts = {"started": started, "pid": pid, "socket": where.socket, "log": recorded_log(where)}
    printed = _printed("started" if started else "runs already", facts, proof)
    return replace(printed, notes=_warnings(where) if started else ())


def start_paused(socket: str) -> int | None:
    """Start the daemon that is missing at a socket, with every GPU paused.

    Args:
        socket: The path.

    Returns:
        Its PID; None if no daemon of this user would use that socket by default.

    Raises:
        SentinelError: It cannot be started.
    """
    simulated = socket == str(_places(simulated=True).socket)
    where = _places(simulated=simulated)
    simulate = len(Registry(default_folder()).gpus()) if simulated else None
    if socket != str(where.socket) or simulate == 0:
        return None
    sources = read_sources({}, None, saved_file(simulate))
    where = with_chosen_log(where, sources)
    check_before_start(checked(sources), sources, plan=None)
    warn_of_no_link()
    flags = [*host_flags(sources, simulate), *daemon_flags(sources), "--paused"]
    try:
        return start_detached(flags, where, START_TIMEOUT_S).pid
    except NotStartedError as error:  # the commands that start one have no such option
        error.remedy = error.remedy.replace("add --simulate 2", "sentinel start --simulate 2")
        raise


@click.command("restart")
@options.wait_option(_WAIT, "5m")
@options.asks_daemon
def restart(client: Client, wait: float) -> options.Printed:
    """End the daemon, and start it again with its arguments and environment.

    Reservations and sessions continue, pauses and settings without --save end. The command waits
    as `sentinel start` does. `sentinel set` changes settings without a restart.
    """
    client.restart()
    daemon = client.status().daemon
    proof = wait_for_stressor(client, wait, client.health) if wait else _NO_PROOF
    facts = {"started": True, "pid": daemon.pid, "socket": daemon.socket, "log": daemon.log}
    return _printed("restarted", facts, proof)


def _printed(how: str, facts: Mapping[str, object], proof: FirstStressor) -> options.Printed:
    """Describe a daemon that runs, by its PID, socket and log, and what it has proved."""
    proved = f"; it {proof.text}" if proof.text else ""
    return options.Printed(
        json={**facts, "occupied": proof.occupied},
        lines=[
            f"sentinel {how}: pid {facts['pid'] or 'unknown'}{proved}",
            f"socket {facts['socket']}",
            f"log    {facts['log'] or NO_LOG}",
        ],
    )


def _warnings(where: Places) -> list[str]:
    """Say what CUDA ignores of CUDA_VISIBLE_DEVICES, and which GPUs are held by others."""
    found: list[str] = []
    with contextlib.suppress(SentinelError):  # it has started, whatever comes now
        client = connect(where.socket)
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            ignored = client.status().daemon.ignored_devices
            found += [ignored] if ignored else []
        found += [
            f"GPU {event.index}: {render(EVENTS[_HELD].sentence, event.fields)}"
            for event in _events_so_far(client)
            if event.name == _HELD and not event.fields["used"]
        ]
    return [f"sentinel: warning: {text}" for text in found]


def _events_so_far(client: Client) -> Iterator[EventInfo]:
    """Yield the events of the daemon up to now."""
    with client.events(since=0).open() as stream:
        while stream.newest and (event := next(stream, None)) is not None:
            yield event
            if event.id is None or event.id >= stream.newest:
                break


def _places(*, simulated: bool) -> Places:
    """Return the paths of the daemon.

    Raises:
        ConfigError: The simulated GPUs belong to another user.
    """
    folder = default_folder().absolute() if simulated else None
    return own_places(os.environ, os.getuid(), folder)


def _settled_pid(where: Places) -> int | None:
    """Return the PID of the daemon, or None if none runs; see :func:`_pid`.

    One that is ending has ended then, and one that another command starts answers, if neither takes
    longer than SETTLING_S.
    """
    until = time.monotonic() + SETTLING_S
    while (pid := _pid(where)) is not None and time.monotonic() < until:
        with contextlib.suppress(NotRunningError, ServiceError):
            if connect(where.socket).status().daemon.ending is None:
                break
        time.sleep(_POLL_INTERVAL_S)
    return pid


def _runs_already(where: Places, pid: int, remedy: str) -> AlreadyRunningError:
    what = f"a daemon runs already: pid {pid or 'unknown'}, socket {where.socket}"
    return AlreadyRunningError(what, remedy)


def _check_number(where: Places, pid: int, simulate: int) -> None:
    """Refuse to take a daemon with another number of simulated GPUs for the requested one.

    Raises:
        AlreadyRunningError: It has another number.
        SentinelError: It does not answer.
    """
    number = count_simulated(connect(where.socket))
    if number != simulate:
        raise AlreadyRunningError(
            f"--simulate {simulate}: a daemon with {number} simulated GPUs runs already:"
            f" pid {pid or 'unknown'}, socket {where.socket}",
            f"End it with `sentinel stop --socket {shlex.quote(str(where.socket))}`, or use another"
            f" folder: {SIMULATED}.",
        )


def count_simulated(client: Client) -> int:
    """Count the simulated GPUs of the host of a running daemon, which may manage fewer.

    Raises:
        SentinelError: It does not answer.
    """
    record = locate(client.address.socket).record
    number = record.simulate if record is not None and record.alive else None
    return len(client.status().gpus) if number is None else number


def _pid(where: Places) -> int | None:
    """Return the PID of the daemon, 0 if only its socket is accessible, or None if none runs."""
    pid = running(where)
    if pid is None:
        with contextlib.suppress(SentinelError):
            connect(where.socket).health()
            return 0
    return pid


def daemon_flags(sources: Sources, without: tuple[str, ...] = ()) -> list[str]:
    """Return the given flags for a daemon with another working directory.

    Args:
        sources: The settings.
        without: How the keys begin that are left out.
    """
    flags = {setting.flag for setting in SETTINGS}
    return [
        f"{given.source}={given.text}"
        for given in sources.given
        if given.source in flags and not given.key.startswith(without)
    ]


def host_flags(sources: Sources, simulate: int | None) -> list[str]:
    """Return the flags for the file that was found, which a reload reads, and for the GPUs."""
    file = [] if sources.file is None else [f"--config={sources.file.absolute()}"]
    return [*file, *([] if simulate is None else [f"--simulate={simulate}"])]


def _check_that_it_answers(where: Places, pid: int) -> None:
    try:
        connect(where.socket).request("GET", "/v1/health")
    except SentinelError as error:
        raise NotStartedError(
            f"the daemon, pid {pid or 'unknown'}, runs and does not answer: {error.what}",
            f"Its log is {recorded_log(where)}. To end it: kill {pid or 'PID'}",
        ) from error


def _prove(where: Places, pid: int, wait: float) -> FirstStressor:
    """Wait until the daemon has a stressor, or nothing to start; 0 does not wait.

    Raises:
        NotProvedError: It has failed to.
    """
    if not wait:
        return _NO_PROOF
    try:
        return wait_for_stressor(connect(where.socket), wait, lambda: running(where) is not None)
    except SentinelError as error:
        if pid and running(where) is None:
            what = f"the daemon has ended: {last_reason(where) or error.what}"
            raise NotProvedError(what, f"Its log is {recorded_log(where)}") from error
        if isinstance(error, NotProvedError) and error.remedy:  # it ends
            remedy = f"Its log is {recorded_log(where)}. {error.remedy}"
            raise NotProvedError(error.what, remedy) from error
        how = f"The daemon, pid {pid or 'unknown'}, goes on; its log is {recorded_log(where)}"
        raise NotProvedError(error.what, f"{how}\nTo end it: sentinel stop") from error


def recorded_log(where: Places) -> str | None:
    """Find where the daemon logs: a file, a command of journalctl, or None for neither.

    Without the record of a running daemon, it is the file that follows from the paths.
    """
    record = locate(str(where.socket)).record
    if record is None or not record.alive:
        return str(where.log)
    return record.log or (f"journalctl {record.journal}" if record.journal else None)
