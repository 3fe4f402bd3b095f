"""The one place that puts real parts together: probe, children, locks, signals and the loop."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from multiprocessing.connection import wait as wait_for_files
from typing import TextIO, cast

from setproctitle import setproctitle

from sentinel.config.model import Config
from sentinel.config.schedule import first_after
from sentinel.config.sources import as_overrides
from sentinel.config.workload_spec import parse_workload
from sentinel.core import decide
from sentinel.core.actions import Event
from sentinel.core.node.views import Host
from sentinel.core.state import ProbeUp
from sentinel.errors import ExitCode
from sentinel.host import reservation_store
from sentinel.host.golden_store import locate
from sentinel.host.gpu_locks import DEFAULT_FOLDERS, GpuLocks
from sentinel.host.systemd import Notifier
from sentinel.protocol.commands import ServiceSpec
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import StressorSpec
from sentinel.protocol.version import __version__
from sentinel.protocol.views import Reservation
from sentinel.supervisor import single_instance
from sentinel.supervisor.api_process import ServiceProcess
from sentinel.supervisor.daemonize import keep_prints
from sentinel.supervisor.discovery import Found, Options, check_torch, find_gpus
from sentinel.supervisor.event_log import Journal, Sink, json_lines
from sentinel.supervisor.loop import Supervisor
from sentinel.supervisor.ports import Parts
from sentinel.supervisor.signals import Signals
from sentinel.supervisor.single_instance import Claim
from sentinel.supervisor.stressor_pool import StressorPool

#: A child without a new lease for so long ends itself, in seconds.
LEASE = 3.0
#: How long a terminal that nobody reads may hold up the end, in seconds.
LAST_WORDS = 2.0


class HostClock:
    """The host's clocks: the monotonic one for all that is measured, the wall's for people."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def local(self) -> datetime:
        """Return what a clock on the wall shows here."""
        return datetime.now()  # noqa: DTZ005 - quiet hours are those of the wall

    def chance(self) -> float:
        """Return a number from 0 to 1 that nobody can know."""
        return random.random()  # noqa: S311 - spreads pauses, keeps no secret

    def wait(self, files: Sequence[int], timeout: float) -> None:
        """Return when one of ``files`` can be read, or after ``timeout`` seconds."""
        wait_for_files(files, timeout)


def supervise(options: Options, sink_for: Callable[[Mapping[str, Gpu]], Sink]) -> ExitCode:
    """Keep every idle GPU busy until a signal or ``--for`` ends it.

    Args:
        options: What was asked for.
        sink_for: Makes the sink of the events, given the GPUs by UUID.

    Returns:
        The exit code. Where a child, a probe or the terminal is stuck for ever, the process ends
        here: the interpreter's own exit would wait for it.

    Raises:
        SentinelError: Nothing was started: no driver or one that is misread, no visible GPU, one
            is held by another sentinel, or torch cannot use any.
    """
    code, clean = run_parts(options, sink_for)
    return leave(code, clean=clean)


def leave(code: ExitCode, *, clean: bool) -> ExitCode:
    """Return ``code``, or end the process with it at once where something of ours is stuck.

    The interpreter's own exit would wait for that, maybe for ever. What was written and not
    flushed is lost then.
    """
    if not clean:
        os._exit(code)
    return code


def run_parts(
    options: Options,
    sink_for: Callable[[Mapping[str, Gpu]], Sink],
    around: Callable[[Parts], Parts] = lambda parts: parts,
) -> tuple[ExitCode, bool]:
    """Do what :func:`supervise` does, with parts that somebody may have put others ``around``.

    Returns:
        The exit code, and whether nothing of ours is stuck, both for :func:`leave`.

    Raises:
        SentinelError: As for :func:`supervise`.
    """
    setproctitle("sentinel: supervisor, occupies idle GPUs and yields at once")
    detached = options.serve is not None and options.serve.detached
    with (
        _claimed(options) as claim,
        Signals(detached=detached) as signals,
        find_gpus(options, signals) as found,
    ):
        if options.simulate is None and not options.config.dry_run:
            check_torch()
        folders = (found.folder / "locks",) if found.folder else DEFAULT_FOLDERS
        # Who starts nothing holds nothing, and keeps nobody from it.
        locks = GpuLocks(() if found.config.dry_run else found.gpus, folders)
        service = _service(options, claim)
        gpus = {gpu.uuid: gpu for gpu in found.gpus}
        journal = Journal([sink_for(gpus), *_overheard(service, gpus)])
        code, clean = _run(signals, found, locks, journal, service, around)
        locks.release()
    return code, clean


@contextlib.contextmanager
def _claimed(options: Options) -> Iterator[Claim | None]:
    """Be the daemon of its places, if somebody is to be served: before anything is started."""
    if options.serve is None:
        yield None
        return
    config = options.config
    claim = single_instance.claim(
        options.serve.places, config.tcp, config.socket_group, config.metrics
    )
    try:
        if options.serve.detached:  # before there are children, who inherit where prints go
            keep_prints(options.serve.places)
        yield claim
    finally:
        claim.release()


def _service(options: Options, claim: Claim | None) -> ServiceProcess | None:
    """Return the process that will serve clients."""
    if options.serve is None or claim is None:
        return None
    serve = options.serve
    spec = ServiceSpec(
        socket=str(serve.places.socket),
        state=str(serve.places.state),
        log=str(serve.places.log) if serve.detached else None,
        began=time.time(),
        version=__version__,
        tcp=claim.address,
        token=str(serve.places.token) if claim.address is not None else None,
        given=serve.given,
        overrides=as_overrides(options.overrides),
        config=serve.file,
        history=options.config.history_size,
    )
    tcp, metrics = (None if one is None else one.fileno() for one in (claim.tcp, claim.metrics))
    return ServiceProcess(spec, claim.socket.fileno(), tcp, metrics)


def _overheard(service: ServiceProcess | None, gpus: Mapping[str, Gpu]) -> Iterator[Sink]:
    """Yield a sink from which the service hears what the journal records."""
    if service is not None:
        yield json_lines(cast("TextIO", _Lines(service.hear)), gpus)


class _Lines:
    """What a sink needs of a stream, to hand on each line."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear

    def write(self, text: str) -> None:
        self._hear(text.rstrip("\n"))

    def flush(self) -> None:
        """Do nothing: nothing is kept."""


def _run(
    signals: Signals,
    found: Found,
    locks: GpuLocks,
    journal: Journal,
    service: ServiceProcess | None,
    around: Callable[[Parts], Parts],
) -> tuple[ExitCode, bool]:
    """Run the loop; return its exit code, and whether nothing of ours is stuck."""
    clock = HostClock()
    now, config = clock.now(), found.config
    if config.until is not None:
        config = replace(config, until=first_after(config.until, clock.local()))
    # By what holds when a stressor is started: settings may have been read anew by then.
    stressors = StressorPool(_spec_for(found, lambda: supervisor.config), locks.files)
    parts = around(
        Parts(
            probe=found.probe,
            spawner=stressors,
            interrupts=signals,
            clock=clock,
            service=service,
            manager=Notifier(os.environ),
        )
    )
    up = ProbeUp(generation=1, since=now, heard=True)
    state = decide.first_state(
        found.gpus, now, config, up, found.hidden, serves=service is not None
    )
    kept, complaint = _kept(service)
    supervisor = Supervisor(
        state=replace(state, reservations=kept, occupying=not config.drained),
        config=config,
        parts=parts,
        publish=lambda _, events: journal.publish(events),
        host=Host(pid=os.getpid(), driver=found.driver, simulated=found.folder is not None),
    )
    journal.publish([_started(found, now), *_unused(found, now), *complaint])
    code = ExitCode.USAGE
    try:
        code = supervisor.run()
    finally:
        stressors.kill_all()
        probe_gone = found.probe.close()
        if signals.at_once and code is ExitCode.OK:
            code = ExitCode.INTERRUPTED
        last = Event(name="sentinel.stopped", at=time.monotonic(), fields={"exit_code": int(code)})
        journal.publish([last])
        written = journal.close(LAST_WORDS)
        served = service is None or service.close()
    return code, probe_gone and written and served and not stressors.files()


def _kept(service: ServiceProcess | None) -> tuple[dict[str, Reservation], list[Event]]:
    """Return what the daemon before us promised and still holds, and what is wrong with the file.

    Read here, before the loop begins; the service writes it.
    """
    if service is None:
        return {}, []
    stored, complaint = reservation_store.load(service.state_folder / reservation_store.NAME)
    now, wall, boot = time.monotonic(), time.time(), reservation_store.boot_id()
    held = reservation_store.restore(stored, wall=wall, monotonic=now, boot=boot)
    # Also those of GPUs that are not here now: a card may be lost today and back tomorrow.
    kept = {one.id: one for one in held}
    if complaint is None:
        return kept, []
    fields = {"about": "reservations", "text": complaint}
    return kept, [Event(name="service.warning", at=now, fields=fields)]


def _started(found: Found, now: float) -> Event:
    """Return the first event: what watches over what."""
    fields: dict[str, object] = {
        "version": __version__,
        "driver": found.driver,
        "simulated": found.folder is not None,
        "gpus": [{"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name} for gpu in found.gpus],
        "workload": found.config.workload,
    }
    return Event(name="sentinel.started", at=now, fields=fields)


def _unused(found: Found, now: float) -> list[Event]:
    """Say which values for single GPUs hold for none that is cared for."""
    return [
        Event(name="config.unused", at=now, fields={"source": override.source})
        for override in found.unused
    ]


def _spec_for(found: Found, settings: Callable[[], Config]) -> Callable[[Gpu], StressorSpec]:
    """Return what tells a child on a GPU its task, by the settings of that moment."""

    def spec(gpu: Gpu) -> StressorSpec:
        config = settings().of(gpu.uuid)
        name, options = parse_workload(config.workload)
        goldens = locate(config.goldens, os.environ, found.folder)
        return StressorSpec(
            gpu=gpu,
            memory=config.memory,
            chunk=config.chunk,
            reserve=config.reserve,
            workload=name,
            options=options,
            lease=LEASE,
            check_contention=found.hidden is not None,
            goldens=str(goldens) if goldens else None,
            simulation=str(found.folder) if found.folder else None,
        )

    return spec
