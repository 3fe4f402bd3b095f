"""What a child and the driver report: findings, XIDs and verified work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.cli.display.log_lines import describe
from sentinel.config.model import Config
from sentinel.core.child_facts import kind_of, verified_work_of
from sentinel.core.gpu_state import Running, Stopped
from sentinel.protocol import codec
from sentinel.protocol.commands import AcknowledgeResults
from sentinel.protocol.probe import XidReport
from sentinel.protocol.stressor import Finding
from sentinel.protocol.views import GpuHealth
from sentinel.protocol.xids import KILL_WINDOW_S, OwnEnd, is_of_own_end
from tests.harness.core_scenarios import occupied, served
from tests.harness.core_scenarios import send as post
from tests.harness.example_finding import FLIP
from tests.harness.world import World


@pytest.fixture
def world() -> World:
    world = World(config=Config(rearm=1.0, status_every=1.0))
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    return world


def send(world: World, *findings: Finding) -> None:
    child = world.child()
    child.outbox += findings


def test_a_finding_survives_encoding() -> None:
    assert codec.decode(codec.encode(FLIP), (Finding,)) == FLIP


def test_a_finding_is_reported_completely_described_and_acknowledged(world: World) -> None:
    send(world, FLIP)
    world.run(lambda: world.events("stressor.finding"), within=1)
    (event,) = world.events("stressor.finding")
    assert event.fields["place"] == "result"
    assert event.fields["kind"] == "transient"
    assert event.fields["first"] == [5, 9]
    assert {"temperature_c", "power_w", "sm_clock_mhz"} <= event.fields.keys()
    word, text = describe(event.name, event.fields)
    assert word == "finding"
    assert "WRONG result in bf16 (transient)" in text
    assert "bit 1" in text
    assert world.spawner.acknowledged == [("GPU-0", 1, 1)]
    assert not world.spawner.killed, "it continues, to gather more findings"


def test_a_repeated_finding_is_reported_once_and_acknowledged_twice(world: World) -> None:
    send(world, FLIP)
    world.run_for(1)
    send(world, FLIP, replace(FLIP, number=2))
    world.run_for(1)
    assert len(world.events("stressor.finding")) == 2
    assert [number for _, _, number in world.spawner.acknowledged] == [1, 1, 2]
    assert world.events("gpu.status")[-1].fields["findings"] == 2


def test_a_finding_sent_before_the_exit_is_not_lost(world: World) -> None:
    child = world.child()
    send(world, FLIP)
    child.dies_at, child.code = world.now, -11
    world.run(lambda: world.events("stressor.failed"), within=3)
    assert len(world.events("stressor.finding")) == 1
    assert world.gpu_state().findings.last == FLIP


def test_the_next_child_numbers_its_findings_from_one(world: World) -> None:
    send(world, FLIP)
    world.run_for(1)
    newcomer = world.newcomer(0)
    world.run(lambda: world.events("gpu.handed_over"), within=3)
    world.at(0).foreign.remove(newcomer)
    world.run(lambda: len(world.events("stressor.ready")) == 2)
    send(world, FLIP)
    world.run_for(1)
    assert world.gpu_state().findings.total == 2


@pytest.mark.parametrize(
    ("repeated", "kind"), [(None, None), (0, "transient"), (1, "repeatable"), (3, "repeatable")]
)
def test_a_fault_that_recurs_is_repeatable(repeated: int | None, kind: str | None) -> None:
    assert kind_of(replace(FLIP, repeated=repeated)) == kind


def test_an_acknowledgement_ends_the_critical_health_until_the_next_finding() -> None:
    world = served()

    def is_critical() -> bool:
        health = world.gpu_state().health
        return health is not None and health.hardware is GpuHealth.CRITICAL

    send(world, FLIP)
    world.run(is_critical, within=5)
    fields = {"reason": "replaced the riser", "errors": 0, "findings": 1, "counted": 1}
    assert post(world, AcknowledgeResults, gpu="GPU-0", **fields) is None
    world.run(lambda: not is_critical(), within=5)
    (event,) = world.events("gpu.results_acknowledged")
    assert (event.gpu, event.fields["reason"]) == ("GPU-0", "replaced the riser")
    assert world.gpu_state().findings.total == 1, "the history stays"
    send(world, replace(FLIP, number=2))
    world.run(is_critical, within=5)
    assert world.gpu_state().findings.standing == 1


def test_results_of_a_missing_gpu_are_acknowledged_with_an_event_alone() -> None:
    world = served()
    fields = {"reason": "returned", "errors": 2, "findings": 0, "counted": 0}
    assert post(world, AcknowledgeResults, gpu="GPU-gone", **fields) is None
    (event,) = world.events("gpu.results_acknowledged")
    assert event.gpu == "GPU-gone"


def throw(world: World, number: int, *, gpu: int = 0, repeats: int = 0) -> None:
    """Have NVML deliver an XID a moment after the last tick."""
    at = world.now + 0.001
    report = XidReport(uuid=f"GPU-{gpu}", number=number, at=at, last_at=at, repeats=repeats)
    world.probe.xids.append(report)


def reported(world: World, gpu: int = 0) -> dict[str, Any]:
    """Run until one more XID is reported; return the fields of the event."""
    before = len(world.events("gpu.xid"))
    world.run(lambda: len(world.events("gpu.xid")) > before)
    event = world.events("gpu.xid")[-1]
    assert event.gpu == f"GPU-{gpu}"
    return dict(event.fields)


@pytest.mark.parametrize("number", [43, 45, 79])
def test_an_xid_without_an_own_kill_is_an_event_of_its_gpu(number: int) -> None:
    world = occupied(gpus=2)
    throw(world, number)
    at = world.now + 0.001
    fields = reported(world)
    times = {"reported_at": at, "last_at": at}
    assert fields == {"xid": number, "repeats": 0, "own": False} | times
    assert describe("gpu.xid", fields) == ("XID", str(number))


def test_an_xid_of_an_unknown_gpu_is_ignored() -> None:
    world = occupied()
    throw(world, 79, gpu=9)
    throw(world, 48)
    assert reported(world)["xid"] == 48
    assert len(world.events("gpu.xid")) == 1


def test_43_after_a_yield_is_marked_as_own_and_48_is_not() -> None:
    world = occupied(gpus=2)
    process = world.newcomer()
    world.run(lambda: bool(world.events("gpu.yielding")))
    throw(world, 43)
    assert reported(world)["own"] is True
    throw(world, 48)
    assert reported(world)["own"] is False
    throw(world, 43, gpu=1)
    assert reported(world, gpu=1)["own"] is False, "that stressor was not ended"
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopped))
    throw(world, 45, repeats=3)
    word, text = describe("gpu.xid", reported(world))
    assert f"{word} {text}" == "XID 45 3 more times: the cleanup after a stressor that was ended"
    world.run_for(KILL_WINDOW_S)
    assert process in world.at(0).foreign
    throw(world, 45)
    assert reported(world)["own"] is False


def test_43_after_a_crash_of_the_stressor_is_not_own() -> None:
    world = occupied()
    child = world.child()
    child.code, child.dies_at = -11, world.now
    world.run(lambda: bool(world.events("stressor.failed")))
    throw(world, 43)
    assert reported(world)["own"] is False


@pytest.mark.parametrize(
    ("number", "at", "pid", "expected"),
    [
        (43, 100.0, None, True),
        (45, 110.0, 7, True),
        (45, 110.1, 7, False),
        (43, 99.9, 7, False),
        (43, 101.0, 8, False),
        (31, 101.0, 7, False),
    ],
)
def test_an_own_end_is_recognised_by_number_time_and_process(
    number: int,
    at: float,
    pid: int | None,
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert is_of_own_end(number, at, pid, [OwnEnd(pid=7, at=100.0)]) is expected
    assert not is_of_own_end(number, at, pid, [])


def test_only_work_with_checks_counts_and_it_outlives_the_stressor() -> None:
    world = World(config=Config(rearm=1.0, rearm_longest=1.0, workload="mixed"))
    fake = world.gpus["GPU-0"]
    world.run(lambda: bool(world.events("stressor.ready")))
    world.run_for(5)
    assert verified_work_of(world.gpu_state()).at is None
    fake.checks = 10
    world.run_for(5)
    work = verified_work_of(world.gpu_state())
    assert work.workload == "mixed"
    assert work.at is not None
    assert 3 < work.counts.seconds <= 5
    assert work.counts.checks >= 30
    world.newcomer()
    world.run(lambda: bool(world.events("gpu.handed_over")))
    later = verified_work_of(world.gpu_state())
    assert later.counts.checks >= work.counts.checks
