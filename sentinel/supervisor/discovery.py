"""Find out which GPUs there are and which are meant; refuse a torch or binding of no use."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_files
from pathlib import Path
from typing import TypeVar

from sentinel.config.build import Override, resolve
from sentinel.config.gpu_selection import in_cuda_order, needs_cuda_order, select_gpus, visible_gpus
from sentinel.config.model import Config
from sentinel.core.observation import ProbeFacts
from sentinel.errors import ConfigError, DriverUnavailableError, EndedEarlyError, NoSuchGpuError
from sentinel.host import simulation
from sentinel.host.cuda_order import cuda_order_of_this_host
from sentinel.host.packages import binding_version, misreads, torch_build, version_of
from sentinel.host.paths import Places
from sentinel.host.pid_namespace import why_processes_are_hidden
from sentinel.protocol.commands import GivenSetting
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import Inventory, ProbeSpec
from sentinel.supervisor.probe_process import ProbeProcess
from sentinel.supervisor.signals import Signals

T = TypeVar("T")

#: How long the first probe may take to find the GPUs: 1 to 3 s each without persistence mode.
DISCOVERY_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Serve:
    """How clients are served: where, and with which settings that may be read anew.

    ``given`` are the settings that hold, beside those for single GPUs; ``file`` is the one that was
    named or found. ``detached``: it has no terminal, and SIGHUP means to read the settings anew.
    """

    places: Places
    given: tuple[GivenSetting, ...] = ()
    file: str | None = None
    detached: bool = False


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for: the config, other values for single GPUs, how many pretended ones.

    ``only_first``: of the GPUs that are meant, the others are left alone. Without ``serve``, only
    signals control it.
    """

    config: Config
    overrides: tuple[Override, ...] = ()
    simulate: int | None = None
    only_first: bool = False
    serve: Serve | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A living probe and the GPUs that are meant; ``folder`` is the registry of pretended ones.

    ``config`` has what holds for each of them in it; ``unused`` are the overrides that name none.
    ``hidden`` is why other people's processes may not be listed here, if so.
    """

    probe: ProbeProcess
    gpus: tuple[Gpu, ...]
    config: Config
    unused: tuple[Override, ...]
    driver: str
    folder: Path | None
    hidden: str | None


# --- what this host allows -------------------------------------------------------------------


def check_torch() -> None:
    """Refuse a torch that cannot use a GPU, without importing it.

    Its version file says what it was built for; importing it takes seconds and 200 MB.
    """
    build = torch_build()
    if build is None:
        raise ConfigError("torch is not installed", "Install a CUDA build of torch.")
    if build.without:
        raise ConfigError(
            "this torch was built without CUDA: no stressor could use a GPU",
            "Install a CUDA build of torch, or try it with --simulate 2.",
        )


def check_binding(driver: str) -> None:
    """Refuse a pair of driver and nvidia-ml-py of which the PIDs are wrong.

    Raises:
        DriverUnavailableError: Whose processes are on a GPU could not be told.
    """
    binding = binding_version()
    why = misreads(version_of(driver), version_of(binding))
    if why is not None:
        raise DriverUnavailableError(
            f"nvidia-ml-py {binding} cannot be used with driver {driver}: {why}",
            "Install driver 535.104 or newer and the newest nvidia-ml-py; see `sentinel doctor`.",
        )


# --- finding and choosing GPUs ---------------------------------------------------------------


@contextlib.contextmanager
def find_gpus(options: Options, signals: Signals) -> Iterator[Found]:
    """Start the first probe and yield what it found; it is killed when the block raises.

    Raises:
        SentinelError: There is no driver, no visible GPU, or a selector names none; or a signal
            came first.
    """
    folder, hidden = None, why_processes_are_hidden()
    if options.simulate is not None:
        folder = simulation.default_folder()
        host = simulation.Registry.create(folder, options.simulate).namespace()
        hidden = why_processes_are_hidden(host=host)
    spec = ProbeSpec(
        poll=options.config.poll,
        watch_interval=options.config.watch_interval,
        utilization=options.config.idle_utilization is not None
        or any("idle.utilization" in override.given for override in options.overrides),
        computing=hidden is not None,
        simulation=str(folder) if folder else None,
    )
    probe = ProbeProcess(spec)
    probe.start(1, ())
    try:
        found = _find(probe, signals, options)
        gpus = _choose(found, options.config.gpus)
        gpus = gpus[:1] if options.only_first else gpus
        config, unused = resolve(options.config, options.overrides, found.gpus)
        yield Found(
            probe=probe,
            gpus=gpus,
            config=config,
            unused=unused,
            driver=found.driver,
            folder=folder,
            hidden=hidden,
        )
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

    inventory = hear_probe(probe, signals, found, DISCOVERY_TIMEOUT)
    if inventory is None:
        raise DriverUnavailableError(
            f"the driver did not say within {DISCOVERY_TIMEOUT:g} s which GPUs there are",
            "See whether nvidia-smi answers.",
        )
    if options.simulate is not None:
        return Inventory(gpus=inventory.gpus[: options.simulate], driver=inventory.driver)
    check_binding(inventory.driver)
    return inventory


def hear_probe(
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
