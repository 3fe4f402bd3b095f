"""The one place that puts real parts together: probe, children, locks, signals and the loop."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing.connection import wait as wait_for_files
from typing import TextIO, cast

from setproctitle import setproctitle

from sentinel import __version__, claiming, reservations
from sentinel.children import Stressors
from sentinel.claiming import Claim
from sentinel.config import Config
from sentinel.control import Reservation, ServiceSpec
from sentinel.core import decide, limits, policy
from sentinel.core.actions import Event
from sentinel.core.model import ProbeUp
from sentinel.core.observation import Observation
from sentinel.core.sparing import let_be, not_yet
from sentinel.core.view import Host
from sentinel.daemon import keep_prints
from sentinel.discovery import Found, Options, check_torch, find_gpus, hear_probe
from sentinel.errors import ExitCode
from sentinel.goldens import locate
from sentinel.hours import first_after
from sentinel.journal import Journal, Sink, json_lines
from sentinel.locks import DEFAULT_FOLDERS, GpuLocks
from sentinel.messages import Gpu, Reading, StressorSpec, Watch
from sentinel.naming import parse_workload
from sentinel.notify import Notifier
from sentinel.serving import ServiceProcess
from sentinel.signals import Signals
from sentinel.sources import as_overrides
from sentinel.supervisor import Parts, Supervisor

__all__ = ["Options", "Parts", "Survey", "inventory", "leave", "run_parts", "supervise", "survey"]

#: A child without a new lease for so long ends itself, in seconds.
LEASE = 3.0
#: How long a terminal that nobody reads may hold up the end, in seconds.
LAST_WORDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Survey:
    """One GPU, what was read of it, and what would be done about it.

    ``let_be`` says by PID which processes make it no busier, and why; ``not_yet`` which may come to
    that, and what they wait for.
    """

    gpu: Gpu
    reading: Reading | None
    occupancy: str
    verdict: policy.Verdict
    let_be: Mapping[int, str]
    not_yet: Mapping[int, str]


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


def inventory(options: Options) -> tuple[Gpu, ...]:
    """Return the GPUs that would be cared for.

    Raises:
        SentinelError: There is no driver, no visible GPU, or a selector names none.
    """
    with Signals() as signals, find_gpus(options, signals) as found:
        found.probe.close()
        return found.gpus


def survey(options: Options) -> tuple[Survey, ...]:
    """Read every GPU once and say what would be done, without doing it.

    Raises:
        SentinelError: As for :func:`supervise`, the locks left out.
    """
    readings: dict[str, Reading] = {}
    with Signals() as signals, find_gpus(options, signals) as found:
        missing = {gpu.uuid for gpu in found.gpus}

        def enough(_: object, new: dict[str, Reading]) -> bool | None:
            readings.update(new)
            missing.difference_update(new)
            return None if missing else True

        found.probe.watch(Watch(gpus=tuple(missing), held=()))
        hear_probe(found.probe, signals, enough, options.config.poll + options.config.stale_after)
        found.probe.close()
    return tuple(_verdicts(found, readings))


def _verdicts(found: Found, readings: Mapping[str, Reading]) -> Iterator[Survey]:
    """Decide for real what each GPU would get if its reading stayed what it is."""
    now, gpus, config = time.monotonic(), found.gpus, found.config
    up = ProbeUp(generation=1, since=now, heard=True)
    state = decide.first_state(gpus, now, config, up, found.hidden)
    state = decide.decide(state, Observation(now=now, readings=readings), config).state
    # Idle must be seen twice before a start; the second look would be the next poll.
    later = {
        uuid: replace(seen, at=now + config.poll, processes_at=now + config.poll)
        for uuid, seen in readings.items()
    }
    local = HostClock().local()
    verdicts = limits.verdicts(state, Observation(now=now, local=local, readings=later), config)
    for gpu in gpus:
        slot = state.slots[gpu.uuid]
        reading = readings.get(gpu.uuid)
        verdict = verdicts[gpu.uuid]
        occupancy = type(slot.occupancy).__name__.upper()
        others = reading.processes if reading and reading.processes else ()
        own = config.of(gpu.uuid)
        spared, waiting = (ask(slot, others, now, own) for ask in (let_be, not_yet))
        yield Survey(
            gpu=gpu,
            reading=reading,
            occupancy=occupancy,
            verdict=verdict,
            let_be=spared,
            not_yet=waiting,
        )


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
    claim = claiming.claim(options.serve.places, config.tcp, config.socket_group, config.metrics)
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
    stressors = Stressors(_spec_for(found, lambda: supervisor.config), locks.files)
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
        state=replace(state, reservations=kept, occupying=not config.vacated),
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
    stored, complaint = reservations.load(service.state_folder / reservations.NAME)
    now, wall, boot = time.monotonic(), time.time(), reservations.boot_id()
    held = reservations.revive(stored, wall=wall, monotonic=now, boot=boot)
    # Also those of GPUs that are not here now: a card may be lost today and back tomorrow.
    kept = {one.id: one for one in held}
    if complaint is None:
        return kept, []
    fields = {"about": "reservations", "text": complaint}
    return kept, [Event(name="service.trouble", at=now, fields=fields)]


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
            wary=found.hidden is not None,
            goldens=str(goldens) if goldens else None,
            simulation=str(found.folder) if found.folder else None,
        )

    return spec
