"""The one place that puts real parts together: probe, children, locks, signals and the loop."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait as wait_for_files
from pathlib import Path
from typing import TypeVar

from setproctitle import setproctitle

from sentinel import __version__, decide, policy, simulation
from sentinel.children import ProbeProcess, Stressors
from sentinel.config import Config
from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    DriverUnavailableError,
    EndedEarlyError,
    ExitCode,
    NoSuchGpuError,
)
from sentinel.gpu.cuda_order import cuda_order_of_this_host
from sentinel.journal import Journal, Sink
from sentinel.locks import DEFAULT_FOLDERS, GpuLocks
from sentinel.messages import Gpu, Inventory, ProbeSpec, Reading, StressorSpec, Watch
from sentinel.model import Event, Observation, ProbeFacts, ProbeUp, State
from sentinel.signals import Signals
from sentinel.stressor.loading import parse_workload
from sentinel.supervisor import Supervisor
from sentinel.visible import in_cuda_order, needs_cuda_order, select_gpus, visible_gpus

T = TypeVar("T")

__all__ = ["Options", "Survey", "inventory", "supervise", "survey"]

#: A child without a new lease for so long ends itself, in seconds.
LEASE = 3.0
#: How long the first probe may take to find the GPUs: 1 to 3 s each without persistence mode.
DISCOVERY_TIMEOUT = 60.0
#: How long a terminal that nobody reads may hold up the end, in seconds.
LAST_WORDS = 2.0
#: The inode of the host's own PID namespace (PROC_PID_INIT_INO in the kernel).
_HOST_PID_NAMESPACE = 0xEFFFFFFC


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for: the config, which GPUs, and how many pretended ones, if any."""

    config: Config
    gpus: tuple[str, ...] = ()
    simulate: int | None = None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """One GPU, what was read of it, and what would be done about it."""

    gpu: Gpu
    reading: Reading | None
    occupancy: str
    verdict: policy.Verdict


class MonotonicClock:
    """The host's monotonic clock."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def wait(self, files: Sequence[int], timeout: float) -> None:
        """Return when one of ``files`` can be read, or after ``timeout`` seconds."""
        wait_for_files(files, timeout)


# --- what this host allows -------------------------------------------------------------------


def _check_place(options: Options) -> None:
    """Refuse a place where we could not tell who uses a GPU, or could never use one."""
    if options.simulate is not None:
        return
    if Path("/proc/self/ns/pid").stat().st_ino != _HOST_PID_NAMESPACE:
        raise AccessDeniedError(
            "this is not the host's PID namespace (a container?): NVML hides other people's"
            " processes here, so a GPU in use would look idle",
            "Run sentinel on the host, or in a container with the host's PIDs (--pid=host).",
        )


def _check_torch() -> None:
    """Refuse a torch that cannot use a GPU, without importing it.

    Its version file says what it was built for; importing it takes seconds and 200 MB.
    """
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise ConfigError("torch is not installed", "Install a CUDA build of torch.")
    version = Path(places[0]) / "version.py"
    built_for = re.search(r"^cuda\b[^=]*=\s*(.+)$", version.read_text(), re.MULTILINE)
    if built_for is not None and built_for[1].strip() == "None":
        raise ConfigError(
            "this torch was built without CUDA: no stressor could use a GPU",
            "Install a CUDA build of torch, or try it with --simulate 2.",
        )


# --- finding and choosing GPUs ---------------------------------------------------------------


@contextlib.contextmanager
def _probe(options: Options) -> Iterator[tuple[ProbeProcess, Path | None]]:
    """Start the first probe, over real or pretended GPUs; kill it when the block is left early."""
    folder = None
    if options.simulate is not None:
        folder = simulation.default_folder()
        simulation.Registry.create(folder, options.simulate)
    spec = ProbeSpec(
        poll=options.config.poll,
        watch_interval=options.config.watch_interval,
        simulation=str(folder) if folder else None,
    )
    probe = ProbeProcess(spec)
    probe.start(1, ())
    try:
        yield probe, folder
    except BaseException:
        probe.close()
        raise


def _find(probe: ProbeProcess, signals: Signals, options: Options) -> Inventory:
    """Wait for what the probe finds, or for a signal."""

    def found(facts: ProbeFacts | None, _: object) -> Inventory | None:
        if facts is not None and facts.unavailable is not None:
            raise DriverUnavailableError(
                f"no GPU can be read: {facts.unavailable.reason}",
                "Try it without a GPU: python -m sentinel --simulate 2",
            )
        if facts is not None and facts.exit is not None:
            raise DriverUnavailableError(
                f"the probe that reads the GPUs ended with code {facts.exit.code}"
            )
        return facts.inventory if facts is not None else None

    inventory = _await(probe, signals, found, DISCOVERY_TIMEOUT)
    if inventory is None:
        raise DriverUnavailableError(
            f"the driver did not say within {DISCOVERY_TIMEOUT:g} s which GPUs there are",
            "See whether nvidia-smi answers.",
        )
    if options.simulate is not None:
        return Inventory(gpus=inventory.gpus[: options.simulate], driver=inventory.driver)
    return inventory


def _await(
    probe: ProbeProcess,
    signals: Signals,
    done: Callable[[ProbeFacts | None, dict[str, Reading]], T | None],
    timeout: float,
) -> T | None:
    """Hand what the probe says to ``done`` until it returns something; ``None`` when time is up."""
    until = time.monotonic() + timeout
    while (left := until - time.monotonic()) > 0:
        wait_for_files([*probe.files(), *signals.files()], left)
        name, _ = signals.collect()
        if name is not None:
            raise EndedEarlyError(name)
        result = done(*probe.collect())
        if result is not None:
            return result
    return None


def _choose(found: Inventory, selectors: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs to care for: what CUDA_VISIBLE_DEVICES shows, less what --gpus leaves out."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    order = None
    if needs_cuda_order(value):
        wanted = os.environ.get("CUDA_DEVICE_ORDER")
        order = in_cuda_order(found.gpus, wanted, cuda_order_of_this_host)
    visible = visible_gpus(value, found.gpus, order)
    if not visible:
        why = "NVML lists none" if value is None else f"CUDA_VISIBLE_DEVICES={value!r} shows none"
        listed = ", ".join(f"{gpu.index} {gpu.uuid}" for gpu in found.gpus) or "none"
        raise NoSuchGpuError(f"no GPU is visible: {why}", f"GPUs of this host: {listed}")
    return select_gpus(selectors, visible) if selectors else visible


# --- the commands ----------------------------------------------------------------------------


def inventory(options: Options) -> tuple[Gpu, ...]:
    """Return the GPUs that would be cared for.

    Raises:
        SentinelError: There is no driver, no visible GPU, or a selector names none.
    """
    with Signals() as signals, _probe(options) as (probe, _):
        gpus = _choose(_find(probe, signals, options), options.gpus)
        probe.close()
        return gpus


def survey(options: Options) -> tuple[Survey, ...]:
    """Read every GPU once and say what would be done, without doing it.

    Raises:
        SentinelError: As for :func:`supervise`, the locks left out.
    """
    _check_place(options)
    with Signals() as signals, _probe(options) as (probe, _):
        gpus = _choose(_find(probe, signals, options), options.gpus)
        wanted = {gpu.uuid for gpu in gpus}
        readings: dict[str, Reading] = {}

        def enough(_: object, new: dict[str, Reading]) -> bool | None:
            for uuid, reading in new.items():
                seen_before = uuid in readings
                readings[uuid] = reading
                if seen_before or reading.fault is not None:
                    wanted.discard(uuid)
            return None if wanted else True

        probe.watch(Watch(gpus=tuple(wanted), held=()))
        _await(probe, signals, enough, options.config.poll * 3 + options.config.stale_after)
        probe.close()
    return tuple(_verdicts(gpus, readings, options.config))


def _verdicts(
    gpus: tuple[Gpu, ...], readings: Mapping[str, Reading], config: Config
) -> Iterator[Survey]:
    """Decide for real what each GPU would get, from two ticks over the same readings."""
    now = time.monotonic()
    state = decide.first_state(gpus, now, config, ProbeUp(generation=1, since=now, heard=True))
    # Idle counts when it was seen twice; both looks were taken, so the first is shown once more.
    before = {uuid: replace(reading, at=reading.at - 1e-6) for uuid, reading in readings.items()}
    for seen in (before, readings):
        state = decide.decide(state, Observation(now=now, readings=seen), config).state
    for gpu in gpus:
        slot = state.slots[gpu.uuid]
        reading = readings.get(gpu.uuid)
        verdict = policy.may_start(slot, reading, now)
        if slot.generation:
            verdict = policy.Verdict(allowed=True, reason="idle")
        occupancy = type(slot.occupancy).__name__.upper()
        yield Survey(gpu=gpu, reading=reading, occupancy=occupancy, verdict=verdict)


def supervise(options: Options, sink_for: Callable[[Mapping[str, Gpu]], Sink]) -> ExitCode:
    """Keep every idle GPU busy until a signal or ``--for`` ends it.

    Args:
        options: What was asked for.
        sink_for: Makes the sink of the events, given the GPUs by UUID.

    Returns:
        The exit code. Where a child, a probe or the terminal is stuck for ever, the process ends
        here: the interpreter's own exit would wait for it.

    Raises:
        SentinelError: Nothing was started: no driver, no visible GPU, one is held by another
            sentinel, or this is no place for it.
    """
    _check_place(options)
    name, _ = parse_workload(options.config.workload)
    if options.simulate is None:
        _check_torch()
    setproctitle("sentinel: supervisor, occupies idle GPUs and yields at once")
    with Signals() as signals, _probe(options) as (probe, folder):
        found = _find(probe, signals, options)
        gpus = _choose(found, options.gpus)
        locks = GpuLocks(gpus, (folder / "locks",) if folder else DEFAULT_FOLDERS)
        journal = Journal([sink_for({gpu.uuid: gpu for gpu in gpus})])
        code, clean = _run(options, signals, probe, folder, gpus, locks, journal, found.driver)
        locks.release()
    if not clean:
        os._exit(code)
    return code


def _run(  # noqa: PLR0913 - the parts that supervise() made
    options: Options,
    signals: Signals,
    probe: ProbeProcess,
    folder: Path | None,
    gpus: tuple[Gpu, ...],
    locks: GpuLocks,
    journal: Journal,
    driver: str,
) -> tuple[ExitCode, bool]:
    """Run the loop; return its exit code, and whether nothing of ours is stuck."""
    stressors = Stressors(_spec_for(options, folder), locks.files)
    now = time.monotonic()
    started: dict[str, object] = {
        "version": __version__,
        "driver": driver,
        "simulated": folder is not None,
        "gpus": [{"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name} for gpu in gpus],
        "workload": options.config.workload,
    }
    journal.publish([Event(name="sentinel.started", at=now, fields=started)])

    def publish(_: State, events: tuple[Event, ...]) -> None:
        journal.publish(events)

    supervisor = Supervisor(
        state=decide.first_state(
            gpus, now, options.config, ProbeUp(generation=1, since=now, heard=True)
        ),
        config=options.config,
        probe=probe,
        spawner=stressors,
        interrupts=signals,
        clock=MonotonicClock(),
        publish=publish,
    )
    code = ExitCode.USAGE
    try:
        code = supervisor.run()
    finally:
        stressors.kill_all()
        probe_gone = probe.close()
        if signals.at_once and code is ExitCode.OK:
            code = ExitCode.INTERRUPTED
        last = Event(name="sentinel.stopped", at=time.monotonic(), fields={"exit_code": int(code)})
        journal.publish([last])
        written = journal.close(LAST_WORDS)
    return code, probe_gone and written and not stressors.files()


def _spec_for(options: Options, folder: Path | None) -> Callable[[Gpu], StressorSpec]:
    """Return what tells a child on a GPU its task."""
    name, workload_options = parse_workload(options.config.workload)

    def spec(gpu: Gpu) -> StressorSpec:
        return StressorSpec(
            gpu=gpu,
            memory=options.config.memory,
            chunk=options.config.chunk,
            workload=name,
            options=workload_options,
            lease=LEASE,
            simulation=str(folder) if folder else None,
        )

    return spec
