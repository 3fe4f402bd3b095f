"""Find the GPUs of this host and select those to use; refuse an unusable torch or binding."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import TextIOBase
from multiprocessing.connection import wait as wait_for_files
from pathlib import Path
from typing import TypeVar

from sentinel.config.build import resolve
from sentinel.config.gpu_selection import in_cuda_order, needs_cuda_order, read_visible, select_gpus
from sentinel.config.model import Config
from sentinel.config.specs import find_driver
from sentinel.core.observation import ProbeFacts
from sentinel.core.state import Orders
from sentinel.errors import ConfigError, DriverUnavailableError, EndedEarlyError, NoSuchGpuError
from sentinel.host import simulation
from sentinel.host.device_order import cuda_order_of_this_host
from sentinel.host.packages import (
    binding_version,
    how_to_install,
    installer,
    misreads,
    torch_build,
    version_of,
)
from sentinel.host.paths import Places
from sentinel.host.process_setup import why_processes_are_hidden
from sentinel.host.timed_file import FAULTS, Clocks
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.probe import NVML, DriverSpec, Inventory, ProbeSpec, simulated
from sentinel.protocol.views import KnownFaults
from sentinel.supervisor.probe_process import ProbeProcess
from sentinel.supervisor.signals import Signals
from sentinel.units import format_exit

T = TypeVar("T")

#: What works without torch.
_WITHOUT_TORCH = "Without torch, monitor the GPUs and serve clients: sentinel run --monitor"

#: How long the first probe may take to find the GPUs: 1 to 3 s each without persistence mode.
DISCOVERY_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Serve:
    """How the API serves clients."""

    places: Places
    #: The configuration file, or None.
    file: str | None = None
    #: Whether there is no terminal, so that SIGHUP asks for a reload.
    detached: bool = False
    #: The match for journalctl if the events go to the journal, or None.
    journal: str | None = None
    #: Whether commands of this user find it by its record; not that of a script.
    recorded: bool = True


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run."""

    config: Config
    orders: Orders = field(default_factory=Orders)
    #: All settings as they were given; those for single GPUs are not in ``config``.
    given: tuple[Given, ...] = ()
    #: How many GPUs to simulate, or None for real ones.
    simulate: int | None = None
    #: Whether the daemon that holds the GPUs has reserved them for this process. They are not
    #: locked then: the locks are the daemon's.
    lent: bool = False
    #: How to serve clients, or None for no API.
    serve: Serve | None = None
    #: A log besides the sink of the events, or None.
    log: TextIOBase | None = None


@dataclass(frozen=True, kw_only=True)
class EarlierFaults:
    """What an earlier daemon of this boot knew of faults."""

    faults: tuple[KnownFaults, ...] = ()
    #: Those of its GPUs that the driver lists no more.
    missing: tuple[Gpu, ...] = ()
    #: What is wrong with its file, or None.
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A living probe and the selected GPUs, also those that went missing."""

    probe: ProbeProcess
    gpus: tuple[Gpu, ...]
    #: What of CUDA_VISIBLE_DEVICES is ignored, as a sentence, or None.
    ignored: str | None = None
    #: The configuration with the values of each GPU.
    config: Config
    #: The settings for single GPUs that match none.
    unused: tuple[Given, ...]
    #: The version of the driver; that of a package's driver with its name.
    driver: str
    #: Whether that is NVIDIA's.
    is_nvml: bool
    #: The folder of the simulated GPUs, or None.
    folder: Path | None
    #: Why foreign processes may be hidden, or None.
    hidden: str | None
    earlier: EarlierFaults = EarlierFaults()


# --- checks of this host ---------------------------------------------------------------------


def check_torch(driver: str | None) -> None:
    """Refuse a torch that cannot use a GPU, without importing it.

    Its version file shows what it was built for; importing it takes seconds and 200 MB.

    Args:
        driver: The version of NVIDIA's driver, or None for other GPUs, which may need no CUDA.

    Raises:
        ConfigError: It is missing, or was built without CUDA; has the command to install it.
    """
    build = torch_build()
    if build is None:
        raise ConfigError(
            "torch is not installed: stressors cannot start",
            f"{how_to_install(driver, installer())}\n{_WITHOUT_TORCH}",
        )
    if build.without and driver is not None:
        raise ConfigError(
            "torch was built without CUDA: stressors cannot use a GPU",
            f"{how_to_install(driver, installer(), replace=True)}\n{_WITHOUT_TORCH}",
        )


def check_binding(driver: str) -> None:
    """Refuse a driver and an nvidia-ml-py that together report wrong PIDs.

    Raises:
        DriverUnavailableError: The processes on a GPU could not be identified.
    """
    binding = binding_version()
    why = misreads(version_of(driver), version_of(binding))
    if why is not None:
        raise DriverUnavailableError(
            f"nvidia-ml-py {binding} cannot be used with driver {driver}: {why}",
            "Install driver 535.104 or newer and the newest nvidia-ml-py; see `sentinel doctor`.",
        )


# --- discovery and selection ----------------------------------------------------------------


@contextlib.contextmanager
def find_gpus(options: Options, signals: Signals) -> Iterator[Found]:
    """Start the first probe and yield what it found; it is killed if the block raises.

    Raises:
        SentinelError: There is no driver, no visible GPU, or a selector matches none; or a signal
            came first.
    """
    folder, hidden = None, why_processes_are_hidden()
    if options.simulate is None:
        driver = find_driver(options.config.driver)
    else:
        folder = simulation.default_folder()
        driver = simulated(str(folder))
        host = simulation.Registry.create(folder, options.simulate).namespace()
        hidden = why_processes_are_hidden(host=host)
    spec = ProbeSpec(
        poll=options.config.poll,
        quick_poll=options.config.quick_poll,
        watch_interval=options.config.watch_interval,
        utilization=options.config.idle_utilization is not None
        or any(value.key == "idle.utilization" for value in options.given),
        computing=hidden is not None,
        driver=driver,
    )
    probe = ProbeProcess(spec)
    probe.start(1)
    try:
        found = _find(probe, signals, options, driver)
        gpus, ignored = _choose(found, options, driver)
        config, unused = resolve(options.config, options.given, found.gpus)
        earlier = _earlier_faults(options, found)
        yield Found(
            probe=probe,
            gpus=gpus + earlier.missing,
            ignored=ignored,
            config=config,
            unused=unused,
            driver=found.driver,
            is_nvml=driver is NVML,
            folder=folder,
            hidden=hidden,
            earlier=earlier,
        )
    except BaseException:
        probe.close()
        raise


def _earlier_faults(options: Options, found: Inventory) -> EarlierFaults:
    """Load what an earlier daemon knew of faults; without an API there was none."""
    if options.serve is None:
        return EarlierFaults()
    faults, problem = FAULTS.load(options.serve.places.state / FAULTS.name, Clocks.read())
    listed = {gpu.uuid for gpu in found.gpus}
    missing = tuple(
        replace(before.gpu, renumbered="nvidia-smi lists it no more")
        for before in faults
        if before.gpu.uuid not in listed
    )
    return EarlierFaults(faults=faults, missing=missing, problem=problem)


def _find(probe: ProbeProcess, signals: Signals, options: Options, driver: DriverSpec) -> Inventory:
    """Wait for the inventory of the probe, or for a signal."""

    def found(facts: ProbeFacts | None) -> Inventory | None:
        if facts is not None and facts.unavailable is not None:
            raise DriverUnavailableError(
                f"no GPU can be read: {facts.unavailable.reason}",
                "Without a GPU, simulate some: add --simulate 2",
            )
        if facts is not None and facts.failed is not None:
            raise ConfigError(f"the probe failed: {facts.failed}", "Nothing was started.")
        if facts is not None and facts.exit is not None:
            calls = [call.name for call in facts.calls]
            where = f" in {calls[0]}() of driver {driver.name}" if calls else ""
            raise DriverUnavailableError(f"the probe {format_exit(facts.exit.code)}{where}")
        return facts.inventory if facts is not None else None

    inventory = follow_probe(probe, signals, found, DISCOVERY_TIMEOUT_S)
    if inventory is None:
        raise DriverUnavailableError(
            f"driver {driver.name} did not list its GPUs within {DISCOVERY_TIMEOUT_S:g} s",
            "Check whether nvidia-smi answers." if driver is NVML else "",
        )
    if options.simulate is not None:
        return Inventory(gpus=inventory.gpus[: options.simulate], driver=inventory.driver)
    if driver is NVML:
        check_binding(inventory.driver)
    return inventory


def follow_probe(
    probe: ProbeProcess,
    signals: Signals,
    done: Callable[[ProbeFacts | None], T | None],
    timeout: float,
) -> T | None:
    """Pass what the probe sends to ``done`` until it returns a value; None after the timeout."""
    until = time.monotonic() + timeout
    while True:
        name, _ = signals.collect()
        if name is not None:
            raise EndedEarlyError(name)
        result = done(probe.collect())  # before the first wait: a failed spawn wakes nothing
        left = until - time.monotonic()
        if result is not None or left <= 0:
            return result
        wait_for_files([*probe.files(), *signals.files()], left)


def visible_devices() -> str | None:
    """Return CUDA_VISIBLE_DEVICES of this process, with bytes that are no UTF-8 as escapes."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return value and value.encode("utf-8", "backslashreplace").decode()


def _choose(
    found: Inventory, options: Options, driver: DriverSpec
) -> tuple[tuple[Gpu, ...], str | None]:
    """Select the GPUs: those that CUDA_VISIBLE_DEVICES shows, restricted by --gpus.

    Returns:
        The GPUs, and what of that variable is ignored, if anything is.
    """
    value = visible_devices()
    order = None
    if needs_cuda_order(value):
        wanted = os.environ.get("CUDA_DEVICE_ORDER")
        order = in_cuda_order(found.gpus, wanted, cuda_order_of_this_host)
    visible, ignored = read_visible(value, found.gpus, order)
    if not visible:
        why = ignored or f"CUDA_VISIBLE_DEVICES={value!r} shows none"
        if not found.gpus:
            source = "NVML" if driver is NVML else f"driver {driver.name} of {driver.origin}"
            why = f"{source} lists none"
        listed = ", ".join(f"{gpu.index} {gpu.uuid}" for gpu in found.gpus) or "none"
        raise NoSuchGpuError(f"no GPU is visible: {why}", f"GPUs of this host: {listed}")
    try:
        selected = select_gpus(options.config.gpus, visible)
    except NoSuchGpuError as error:
        with contextlib.suppress(NoSuchGpuError):
            select_gpus(options.config.gpus, found.gpus)  # it is the variable that hides one
            error.what += f": {ignored or f'CUDA_VISIBLE_DEVICES={value} hides it'}"
        given = [value for value in options.given if (value.key, value.gpu) == ("gpus", None)]
        if given:  # the last one holds
            error.what = f"{given[-1].source}: {error.what}"
        raise
    if ignored is not None:
        sys.stderr.write(f"sentinel: warning: {ignored}\n")
    return selected, ignored
