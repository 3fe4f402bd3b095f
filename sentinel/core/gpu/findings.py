"""Keep what stressors found wrong with a GPU: say it, count it, acknowledge it. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Acknowledge, Action, Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu.teardown import Step
from sentinel.core.observation import ChildFacts
from sentinel.core.state import Findings, GpuState
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import Finding


def fold(gpu_state: GpuState, facts: ChildFacts, reading: Reading | None, now: float) -> Step:
    """Take in the findings among what a child said, its last words included.

    A finding is sent until it is acknowledged, so one that is known is only acknowledged again.
    """
    actions: list[Action] = []
    events: list[Event] = []
    for finding in facts.messages:
        if not isinstance(finding, Finding):
            continue
        actions.append(
            Acknowledge(uuid=gpu_state.gpu.uuid, generation=facts.generation, number=finding.number)
        )
        had = gpu_state.findings
        if had.generation == facts.generation and finding.number <= had.number:
            continue
        kept = Findings(
            total=had.total + 1,
            generation=facts.generation,
            number=finding.number,
            last=finding,
        )
        gpu_state = replace(gpu_state, findings=kept)
        events.append(_say(gpu_state, finding, reading, now))
    return Step(gpu_state=gpu_state, actions=tuple(actions), events=tuple(events))


def _say(gpu_state: GpuState, finding: Finding, reading: Reading | None, now: float) -> Event:
    """Return the event with all of the evidence, and how the GPU was when that was read last."""
    fields: dict[str, object] = {**vars(finding), "place": finding.place.value}
    fields["first"], fields["bits"] = list(finding.first), list(finding.bits)
    fields["kind"] = kind_of(finding)
    fields["temperature_c"] = reading.temperature if reading else None
    fields["power_w"] = reading.power if reading else None
    fields["sm_clock_mhz"] = reading.sm_clock if reading else None
    return gpu_event("stressor.finding", gpu_state, now, **fields)


def kind_of(finding: Finding) -> str | None:
    """Return whether the fault came back when it was tried again; ``None`` where nobody tried."""
    if finding.repeated is None:
        return None
    return "repeatable" if finding.repeated else "transient"
