"""Read the counters of all GPUs once, in processes of their own, since any call may hang."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

from sentinel.diagnostics.one_shot import START, Failure, Timeouts, run_past_faults
from sentinel.probe import one_shot
from sentinel.protocol.counters import (
    Counters,
    CountersDone,
    CountersSpec,
    DriverFailed,
    DriverVersion,
    GpuAccess,
    PciInventory,
)

T = TypeVar("T")

#: Slow calls: without persistence mode, the driver takes 1 to 3 s to initialise each GPU.
_SLOW = {"open", "handle", one_shot.INVENTORY}

#: A call takes 0.3 s while a context is torn down.
TIMEOUTS = Timeouts(opening=60.0, call=10.0)

#: How long a call may take, in seconds, that did not return for another GPU.
_AGAIN_S = 2.0

_Message = Counters | CountersDone | DriverFailed | DriverVersion | GpuAccess | PciInventory


@dataclass(frozen=True, kw_only=True)
class CountersResult:
    """The counters of all GPUs of a node."""

    #: By index.
    counters: tuple[Counters, ...]
    #: Why the driver is unusable, or None.
    driver_error: str | None
    #: Whether a process survives SIGKILL, hung in the driver.
    stuck: bool
    #: The addresses of the GPUs on the PCI bus that NVML should list, or None if unknown.
    pci_devices: tuple[str, ...] | None = None
    driver: DriverVersion | None = None
    #: By the index of the GPU; empty unless the spec asks for it.
    access: Mapping[int, GpuAccess] = field(default_factory=dict)


def read_counters(
    simulation: Path | None,
    uuids: Collection[str] | None = None,
    *,
    timeouts: Timeouts = TIMEOUTS,
    spec: CountersSpec = CountersSpec(),  # noqa: B008 - frozen
) -> CountersResult:
    """Read the counters of GPUs; one on which a call hangs or crashes costs no other its own.

    Args:
        simulation: The folder of simulated GPUs, or None for the driver.
        uuids: The GPUs to read, or None for all. A GPU that cannot be identified is included.
        timeouts: How long calls may take.
        spec: Where the kernel and the driver list the devices.
    """
    messages: list[_Message] = []

    def take(message: _Message) -> bool:
        messages.append(message)
        return isinstance(message, CountersDone)

    def last(kind: type[T]) -> T | None:
        return next((found for found in reversed(messages) if isinstance(found, kind)), None)

    spec = replace(
        spec,
        simulation=None if simulation is None else str(simulation),
        uuids=None if uuids is None else tuple(uuids),
    )
    faults, stuck = run_past_faults(
        one_shot.run_counters,
        lambda skip: replace(spec, skip=skip),
        kinds=get_args(_Message),
        take=take,
        seen=lambda: [found.index for found in messages if isinstance(found, Counters)],
        listed=lambda: range(known.count or 0 if (known := last(DriverVersion)) else 0),
        timeout_s=partial(_limit_s, timeouts),
    )
    gpus = {found.index: found for found in messages if isinstance(found, Counters)}
    failed, inventory = last(DriverFailed), last(PciInventory)
    driver_error = None if failed is None else failed.reason
    for index, failure in faults.items():
        if index is not None:
            known = gpus.get(index, Counters(uuid="", index=index, name="", at=0.0))
            why = _describe(failure)
            gpus[index] = replace(known, lost=why, unanswered=True, failed={})
        elif failure.call != one_shot.INVENTORY:
            driver_error = driver_error or _describe(failure)
    return CountersResult(
        counters=tuple(gpus[index] for index in sorted(gpus)),
        driver_error=driver_error,
        stuck=stuck,
        pci_devices=None if inventory is None else inventory.addresses,
        driver=last(DriverVersion),
        access={found.index: found for found in messages if isinstance(found, GpuAccess)},
    )


def _limit_s(timeouts: Timeouts, call: str, again: bool) -> float:  # noqa: FBT001 - a callback
    """Look up the limit of a call; ``again``: it did not return for another GPU."""
    if not again:
        return timeouts.limit_s(_SLOW, call)
    return timeouts.call if call in _SLOW else min(timeouts.call, _AGAIN_S)


def _describe(failure: Failure) -> str:
    """Describe a call that did not return by NVML's name, which people search for."""
    call = (
        "the start" if failure.call == START else one_shot.FUNCTIONS.get(failure.call, failure.call)
    )
    return f"{call} {failure.what}"
