"""Findings: each is reported once and acknowledged each time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.cli.display.log_lines import describe
from sentinel.config.model import Config
from sentinel.core.child_facts import kind_of
from sentinel.core.gpu_state import Running
from sentinel.protocol import codec
from sentinel.protocol.commands import AcknowledgeResults
from sentinel.protocol.stressor import Finding, FindingPlace
from sentinel.protocol.views import GpuHealth
from tests.harness.core_scenarios import send as post
from tests.harness.core_scenarios import served
from tests.harness.world import World

FLIP = Finding(
    number=1,
    place=FindingPlace.RESULT,
    workload="gemm",
    dtype="bf16",
    round=7,
    seed=3,
    count=1,
    first=(5, 9),
    bits=(0, 1, *[0] * 14),
    reread=True,
    repeated=0,
    repeats=3,
)


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


def test_a_finding_is_reported_completely_and_acknowledged(world: World) -> None:
    send(world, FLIP)
    world.run(lambda: world.events("stressor.finding"), within=1)
    (event,) = world.events("stressor.finding")
    assert event.fields["place"] == "result"
    assert event.fields["kind"] == "transient"
    assert event.fields["first"] == [5, 9]
    assert {"temperature_c", "power_w", "sm_clock_mhz"} <= event.fields.keys()
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


def test_the_terminal_line_describes_the_finding(world: World) -> None:
    send(world, FLIP)
    world.run(lambda: world.events("stressor.finding"), within=1)
    (event,) = world.events("stressor.finding")
    word, text = describe(event.name, event.fields)
    assert word == "finding"
    assert "WRONG result in bf16 (transient)" in text
    assert "bit 1" in text


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
