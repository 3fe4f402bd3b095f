"""Inspect the driver in processes of their own, since any call may hang or crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sentinel.diagnostics.doctor.facts import DriverFacts, Fault, GpuFacts, Numbers, Unread
from sentinel.diagnostics.one_shot import START, Timeouts, run_past_faults
from sentinel.probe.nvml import inspection
from sentinel.protocol.counters import CallResult, InspectionDone

#: Slow calls: without persistence mode, the driver takes 1 to 3 s to initialise each GPU.
_SLOW = {inspection.OPENING, "handle"}

#: A call takes 0.3 s while a context is torn down.
TIMEOUTS = Timeouts(opening=60.0, call=10.0)


@dataclass(frozen=True, kw_only=True)
class DriverInspection:
    """What the driver answered."""

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...]
    #: Whether a process survives SIGKILL, hung in the driver.
    stuck: bool


@dataclass
class _Results:
    """All results so far, by GPU and call."""

    answers: dict[tuple[int | None, str], CallResult] = field(default_factory=dict)
    faults: dict[int | None, Fault] = field(default_factory=dict)

    def take(self, message: CallResult | InspectionDone) -> bool:
        """Store a result; return whether the inspection is complete."""
        if isinstance(message, InspectionDone):
            return True
        self.answers[message.gpu, message.call] = message
        return False

    def seen(self) -> tuple[int, ...]:
        """List the GPUs that have results or a fault."""
        gpus = {gpu for gpu, _ in self.answers} | set(self.faults)
        return tuple(sorted(gpu for gpu in gpus if gpu is not None))


def inspect_driver(timeouts: Timeouts = TIMEOUTS) -> DriverInspection:
    """Make every call to the driver; a GPU on which one hangs or crashes loses only its own.

    Args:
        timeouts: How long each call may take.
    """
    results = _Results()
    kinds: tuple[type[CallResult | InspectionDone], ...] = (CallResult, InspectionDone)
    faults, stuck = run_past_faults(
        inspection.run,
        lambda skip: skip,
        kinds=kinds,
        take=results.take,
        seen=results.seen,
        timeout_s=partial(timeouts.limit_s, _SLOW),
    )
    results.faults = {
        gpu: Fault(call=_function(fault.call), how=fault.what) for gpu, fault in faults.items()
    }
    return DriverInspection(driver=_driver(results), gpus=tuple(_gpus(results)), stuck=stuck)


def _function(call: str) -> str:
    """Look up NVML's name of a call, which people search for."""
    return "the start of the inspection" if call == START else inspection.FUNCTIONS.get(call, call)


# --- from results to facts -------------------------------------------------------------------


def _driver(results: _Results) -> DriverFacts:
    opened = results.answers.get((None, inspection.OPENING))
    version = results.answers.get((None, "version"))
    count = results.answers.get((None, "count"))
    missing = opened.error if opened is not None else None
    if missing is None and count is not None and count.error is not None:
        missing = f"the GPUs cannot be counted: {count.error}"
    return DriverFacts(
        version=version.text if version is not None else None,
        cuda=_numbers(results.answers.get((None, "cuda"))),
        missing=missing,
        fault=results.faults.get(None),
    )


def _gpus(results: _Results) -> Iterator[GpuFacts]:
    for index in results.seen():
        own = {call: answer for (gpu, call), answer in results.answers.items() if gpu == index}
        numbers: dict[str, Any] = {
            name: _numbers(own.get(name)) for name in (*inspection.CALLS, *inspection.LISTS)
        }
        minor = numbers.pop("minor")
        unreachable = own["handle"].error if "handle" in own else None
        without_uuid = own["uuid"].error if "uuid" in own else None
        lost = next((answer.error for answer in own.values() if answer.lost), None)
        yield GpuFacts(
            index=index,
            uuid=own["uuid"].text if "uuid" in own else None,
            name=own["name"].text or "" if "name" in own else "",
            lost=lost or unreachable or without_uuid,
            fault=results.faults.get(index),
            node=None if isinstance(minor, Unread) else f"/dev/nvidia{minor[0]}",
            **numbers,
        )


def _numbers(answer: CallResult | None) -> Numbers:
    """Extract the numbers of a result; a call that was not made or is not supported has none."""
    if answer is None or answer.numbers is None:
        return Unread(why=answer.error if answer is not None else None)
    return answer.numbers
