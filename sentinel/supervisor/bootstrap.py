"""Assemble the supervisor: probe, children, locks, signals and the loop."""

from __future__ import annotations

import math
import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import NoReturn

from sentinel.config.model import Config
from sentinel.config.schedule import first_after
from sentinel.config.specs import parse_workload
from sentinel.core import decide
from sentinel.core.gpu_state import Pause
from sentinel.core.node.daemon import still_held
from sentinel.core.node.gpu_settings import chooser_of_workload
from sentinel.core.node.status import Host
from sentinel.core.state import Orders, Probe
from sentinel.core.step import gpu_fields
from sentinel.errors import ExitCode
from sentinel.host.event_lines import Sink, event_object, json_lines
from sentinel.host.golden_store import locate
from sentinel.host.gpu_locks import GpuLocks
from sentinel.host.lock_holders import SHARED_FOLDERS
from sentinel.host.paths import lock_folders
from sentinel.host.process_setup import allow_open_files, leave, set_process_title, settle_heap
from sentinel.host.regular_file import file_errors
from sentinel.host.rendezvous import Rendezvous
from sentinel.host.systemd import SystemdSocket
from sentinel.host.unprivileged import find_account
from sentinel.protocol import __version__
from sentinel.protocol.commands import AccessPolicy, ApiSpec, Caller, Level, NotifySpec
from sentinel.protocol.events import DEBUG_EVENTS, Event
from sentinel.protocol.gpu import Gpu, HeldGpu
from sentinel.protocol.stressor import Account, StandbySpec, StressorSpec
from sentinel.supervisor.api_process import ApiProcess
from sentinel.supervisor.daemon_files import claimed, log_of, restore
from sentinel.supervisor.discovery import Found, Options, check_torch, find_gpus, visible_devices
from sentinel.supervisor.event_log import EventLog
from sentinel.supervisor.loop import Supervisor
from sentinel.supervisor.ports import Parts
from sentinel.supervisor.signals import Signals
from sentinel.supervisor.single_instance import Claim
from sentinel.supervisor.stressor_pool import LONG_LEASE_S, StressorPool

#: Names what chose the workload of a GPU, given by UUID; None if a setting did.
Chooser = Callable[[str], str | None]

#: How long a terminal without a reader may delay the exit.
LOG_FLUSH_TIMEOUT_S = 2.0

#: How many sets of files are remembered for the next wait.
_MAX_POLLS = 8


class HostClock:
    """The host's clocks: the monotonic one for measurements, local time for people."""

    def __init__(self) -> None:
        #: By the files to wait for, which hardly ever change: each wait would register them all.
        self._polls: dict[tuple[int, ...], select.poll] = {}

    def now(self) -> float:
        """Read the monotonic time in seconds."""
        return time.monotonic()

    def local(self) -> datetime:
        """Read the local time."""
        return datetime.now()  # noqa: DTZ005 - quiet hours are in local time

    def random_value(self) -> float:
        """Draw a random number from 0 to 1."""
        return random.random()  # noqa: S311 - spreads pauses, not a secret

    def wait(self, files: Sequence[int], timeout: float) -> bool:
        """Wait until one of ``files`` is readable, at most ``timeout`` seconds."""
        chosen = tuple(files)
        poll = self._polls.get(chosen)
        if poll is None:
            poll = select.poll()
            for file in files:
                poll.register(file, select.POLLIN)
            if len(self._polls) == _MAX_POLLS:
                self._polls.clear()
            self._polls[chosen] = poll
        return bool(poll.poll(math.ceil(max(0.0, timeout) * 1000)))


def supervise(options: Options, sink_for: Callable[[Mapping[str, Gpu]], Sink]) -> ExitCode:
    """Keep every idle GPU busy until a signal or ``--for`` ends it.

    Args:
        options: The options of the command.
        sink_for: Builds the sink of the events, given the GPUs by UUID.

    Returns:
        The exit code. If a child, a probe or the terminal is stuck, the process exits here: the
        interpreter's own exit would wait for it.

    Raises:
        SentinelError: Nothing was started: the driver is missing or misread, no GPU is visible,
            another sentinel holds one, or torch cannot use any.
    """
    code, clean, paused = _supervise(options, sink_for)
    if code is ExitCode.RESTART:
        if clean:
            _restart(paused=paused)
        code = ExitCode.UNKILLABLE
    return leave(code, clean=clean)


def _restart(*, paused: bool) -> NoReturn:
    """Replace this process by a new daemon with the same arguments, environment and output.

    Args:
        paused: Whether a GPU still has the pause of ``--paused``; otherwise this argument is left
            out, so that a resume outlives the restart.

    Raises:
        ConfigError: The interpreter cannot be executed.
    """
    arguments = [text for text in sys.orig_argv[1:] if paused or text != "--paused"]
    with file_errors(f"{sys.executable} cannot be executed"):
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - our own


def _supervise(
    options: Options, sink_for: Callable[[Mapping[str, Gpu]], Sink]
) -> tuple[ExitCode, bool, bool]:
    """Run the supervisor.

    Returns:
        The exit code, whether nothing is stuck, and whether a GPU has its first pause.
    """
    set_process_title("sentinel: supervisor, occupies idle GPUs and yields at once")
    detached = options.serve is not None and options.serve.detached
    user = options.config.stressor_user
    account = None if user is None else find_account(user, "stressor.user")
    allow_open_files(gpus=1)  # the probe, which finds out how many there are
    with (
        claimed(options) as claim,
        Signals(detached=detached) as signals,
        find_gpus(options, signals) as selected,
    ):
        allow_open_files(len(selected.gpus))
        if not options.config.dry_run:
            check_torch(selected.driver if selected.is_nvml else None)
        # A dry run starts nothing, so it locks nothing.
        unlocked = selected.config.dry_run or options.lent
        locks = _lock(selected, () if unlocked else selected.gpus)
        found = selected if unlocked else replace(selected, gpus=locks.gpus)
        gpus = {gpu.uuid: gpu for gpu in selected.gpus}
        api = _api(options, claim, selected.ignored, locks.held_elsewhere)
        logs = [] if options.log is None else [json_lines(options.log, gpus)]
        event_log = EventLog([sink_for(gpus), *logs, *_api_sinks(api, gpus)])
        with Rendezvous(account) as rendezvous:
            spec_for = partial(_spec_for, found, account, rendezvous)
            code, clean, paused = _run(
                signals, found, options.orders, locks, spec_for, event_log, api
            )
        locks.release()
    return code, clean, paused


def _lock(found: Found, gpus: tuple[Gpu, ...]) -> GpuLocks:
    """Lock these of the GPUs that were found."""
    private = lock_folders(os.environ, os.getuid(), found.folder)
    shared = SHARED_FOLDERS if found.folder is None else (found.folder / "locks",)
    return GpuLocks(gpus, private, shared)


def _api(
    options: Options, claim: Claim | None, ignored: str | None, held: tuple[HeldGpu, ...]
) -> ApiProcess | None:
    """Build the API process, or None without an API.

    Args:
        options: What the daemon was started with.
        claim: Its socket.
        ignored: See ``Found``.
        held: The GPUs that are left out.
    """
    if options.serve is None or claim is None:
        return None
    serve, config = options.serve, options.config
    spec = ApiSpec(
        socket=str(serve.places.socket),
        state=str(serve.places.state),
        log=log_of(serve),
        journal=serve.journal,
        visible_devices=visible_devices(),
        ignored_devices=ignored,
        held_elsewhere=held,
        managed="NOTIFY_SOCKET" in os.environ,
        began=time.time(),
        version=__version__,
        access=AccessPolicy(
            users=Level[config.access_users.upper()],
            gid=claim.gid,
            group=Level[config.access_group.upper()],
            tcp=Level[config.access_tcp.upper()],
            workloads=config.access_workloads,
        ),
        tcp=claim.address,
        token=str(serve.places.token) if claim.address is not None else None,
        given=options.given,
        config=serve.file,
        history=config.history_size,
        notify=_notify_spec(config),
    )
    tcp, metrics = (
        None if listener is None else listener.fileno() for listener in (claim.tcp, claim.metrics)
    )
    return ApiProcess(spec, claim.socket.fileno(), tcp, metrics)


def _notify_spec(config: Config) -> NotifySpec | None:
    """Build the specification of notifications, or None without a recipient."""
    if config.notify_webhook is None and config.notify_command is None:
        return None
    return NotifySpec(
        webhook=config.notify_webhook,
        token=config.notify_token,
        secret=config.notify_secret,
        command=config.notify_command,
        events=config.notify_events,
        gpus=config.notify_gpus,
        every=config.notify_every,
    )


def _api_sinks(api: ApiProcess | None, gpus: Mapping[str, Gpu]) -> Iterator[Sink]:
    """Yield a sink that sends the events to the API process, but for those of the debug level."""
    if api is None:
        return

    def publish(event: Event) -> None:
        if event.name not in DEBUG_EVENTS:
            api.publish(event_object(event, gpus))

    yield publish


def _run(
    signals: Signals,
    found: Found,
    orders: Orders,
    locks: GpuLocks,
    spec_for: Callable[[Callable[[], Config], Chooser], Callable[[Gpu], StressorSpec]],
    event_log: EventLog,
    api: ApiProcess | None,
) -> tuple[ExitCode, bool, bool]:
    """Run the loop, and return as :func:`_supervise` does."""
    clock = HostClock()
    now, config = clock.now(), found.config
    if config.until is not None:
        config = replace(config, until=first_after(config.until, clock.local()))
    # The settings in force when a stressor is started: a reload may have changed them.
    spec = spec_for(
        lambda: supervisor.state.config, lambda uuid: chooser_of_workload(supervisor.state, uuid)
    )
    at_start = spec_for(lambda: config, lambda _: None)(found.gpus[0])
    standby = StandbySpec(account=at_start.account, files=at_start.files)
    stressors = StressorPool(spec, locks.files, standby)
    parts = Parts(
        probe=found.probe,
        spare_probe=found.probe.spare,
        standby=stressors.standby,
        spawner=stressors,
        interrupts=signals,
        clock=clock,
        api=api,
        manager=SystemdSocket(os.environ),
    )
    up = Probe(running=True, works=True, since=now, worked_at=now)
    state = decide.first_state(found.gpus, now, config, up, found.hidden, with_api=api is not None)
    caller = Caller(via="unix", uid=os.getuid(), pid=os.getpid())
    pause = Pause(since=now, by=caller) if orders.paused else None
    state = state.change_gpus(lambda gpu_state: replace(gpu_state, pause=pause))
    kept = restore(state, api.state_folder if api is not None else None, found.earlier)
    api_required = api is not None and api.required
    supervisor = Supervisor(
        state=replace(kept.state, api_required=api_required, orders=orders),
        parts=parts,
        publish=lambda _, events: event_log.publish(events),
        host=Host(pid=os.getpid(), driver=found.driver, simulated=found.folder is not None),
    )
    shared = [*_held_elsewhere(locks, now), *_unrecorded(locks, now)]
    event_log.publish([_started(found, now), *_unused(found, now), *shared, *kept.events])
    code = ExitCode.USAGE
    try:
        settle_heap()
        code = supervisor.run()
    finally:
        stressors.kill_all()
        probe_gone = found.probe.close()
        standby_gone = stressors.standby.close()
        if signals.at_once and code in {ExitCode.OK, ExitCode.RESTART}:
            code = ExitCode.INTERRUPTED
        exit_code = ExitCode.OK if code is ExitCode.RESTART else code
        fields = {"exit_code": int(exit_code), "held": still_held(supervisor.state)}
        last = Event(name="sentinel.stopped", at=time.monotonic(), fields=fields)
        event_log.publish([last])
        written = event_log.close(LOG_FLUSH_TIMEOUT_S)
        served = api is None or api.close()
    stuck = stressors.files() or not (probe_gone and standby_gone and written and served)
    paused = any(gpu.pause == pause for gpu in supervisor.state.gpu_states.values())
    return code, not stuck, pause is not None and paused


def _started(found: Found, now: float) -> Event:
    """Build the first event: the version, the GPUs and the workload."""
    fields: dict[str, object] = {
        "version": __version__,
        "driver": found.driver,
        "simulated": found.folder is not None,
        "gpus": gpu_fields(found.gpus),
        "workload": found.config.workload,
    }
    return Event(name="sentinel.started", at=now, fields=fields)


def _unused(found: Found, now: float) -> list[Event]:
    """Build an event for each setting of a single GPU that applies to none."""
    return [
        Event(name="config.unused", at=now, fields={"source": value.source})
        for value in found.unused
    ]


def _held_elsewhere(locks: GpuLocks, now: float) -> list[Event]:
    """Build an event for each selected GPU of another user's sentinel or a stray process."""
    used = {gpu.uuid for gpu in locks.gpus}
    return [
        Event(
            name="gpu.held_elsewhere",
            at=now,
            gpu=uuid,
            fields={"holder": str(holder), "used": uuid in used},
        )
        for uuid, holder in (*locks.others.items(), *locks.strays.items())
    ]


def _unrecorded(locks: GpuLocks, now: float) -> Iterator[Event]:
    """Yield an event if other users do not see what this sentinel holds."""
    if locks.unrecorded:
        why = "; ".join(locks.unrecorded)
        text = f"no other user sees that this sentinel holds its GPUs, and each yields: {why}"
        yield Event(name="service.warning", at=now, fields={"about": "locks", "text": text})


def _spec_for(
    found: Found,
    account: Account | None,
    rendezvous: Rendezvous,
    settings: Callable[[], Config],
    chosen_by: Chooser,
) -> Callable[[Gpu], StressorSpec]:
    """Build the function that specifies a stressor by the settings of that moment."""

    def spec(gpu: Gpu) -> StressorSpec:
        config = settings().of(gpu.uuid)
        name, options = parse_workload(config.workload)
        goldens = locate(config.goldens, os.environ, found.folder)
        grouped = config.plan is not None and any(phase.together for phase in config.plan.phases)
        folder = rendezvous.folder() if grouped else None
        return StressorSpec(
            gpu=gpu,
            memory=config.memory,
            chunk=config.chunk,
            reserve=config.keep_free,
            workload=name,
            options=options,
            lease=LONG_LEASE_S,
            watch_interval=config.watch_interval,
            yields_at_once=config.yield_how == "kill",
            goldens=str(goldens) if goldens else None,
            simulation=str(found.folder) if found.folder else None,
            self_watch=found.is_nvml or found.folder is not None,
            account=account,
            rendezvous=str(folder) if folder else None,
            inject_faults=config.plan is not None,
            chosen_by=chosen_by(gpu.uuid),
        )

    return spec
