"""The verified work of a GPU: only what was checked counts, for as long as the daemon runs."""

from __future__ import annotations

from sentinel.config.model import Config
from sentinel.core.child_facts import verified_work_of
from tests.harness.world import World


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
