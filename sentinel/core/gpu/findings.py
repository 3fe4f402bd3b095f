"""Record, report and acknowledge the findings of a stressor. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Acknowledge, Action, Event
from sentinel.core.events import gpu_event, sensor_fields
from sentinel.core.gpu_state import GpuState
from sentinel.core.observation import ChildFacts
from sentinel.core.step import Step
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import Finding


def fold(
    gpu_state: GpuState, facts: ChildFacts, reading: Reading | None, now: float
) -> Step[GpuState]:
    """Apply the findings among a child's messages.

    A child repeats a finding until it is acknowledged, so a known one is only acknowledged again.
    """
    actions: list[Action] = []
    events: list[Event] = []
    for finding in facts.messages:
        if not isinstance(finding, Finding):
            continue
        actions.append(
            Acknowledge(uuid=gpu_state.gpu.uuid, generation=facts.generation, number=finding.number)
        )
        before = gpu_state.findings
        if before.generation == facts.generation and finding.number <= before.number:
            continue
        findings = replace(
            before,
            total=before.total + 1,
            generation=facts.generation,
            number=finding.number,
            last=finding,
        )
        gpu_state = replace(gpu_state, findings=findings)
        events.append(_event(gpu_state, finding, reading, now))
    return Step(gpu_state, actions=tuple(actions), events=tuple(events))


def _event(gpu_state: GpuState, finding: Finding, reading: Reading | None, now: float) -> Event:
    """Build the event with the whole finding and the latest readings of the GPU."""
    fields: dict[str, object] = {**vars(finding), "place": finding.place.value}
    fields["first"], fields["bits"] = list(finding.first), list(finding.bits)
    fields["kind"] = kind_of(finding)
    fields |= sensor_fields(reading)
    return gpu_event("stressor.finding", gpu_state, now, **fields)


def kind_of(finding: Finding) -> str | None:
    """Name whether the fault came back on a retry; None if there was no retry."""
    if finding.repeated is None:
        return None
    return "repeatable" if finding.repeated else "transient"
