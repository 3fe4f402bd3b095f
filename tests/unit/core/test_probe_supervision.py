"""Probe supervision: when the probe is replaced, and which GPUs it reads how often."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from sentinel.config.model import Config
from sentinel.core.decide import decide
from sentinel.core.gpu_state import Busy, Pause, Running, Unknown
from sentinel.core.observation import Call, ChildExit, Observation, ProbeFacts
from sentinel.core.step import Action, KillProcess, Role
from sentinel.errors import ChildExitCode
from sentinel.protocol.commands import Caller
from sentinel.protocol.probe import Inventory, Unavailable, Watch
from tests.harness.core_scenarios import occupied, times, watched
from tests.harness.parameters import mostly_long
from tests.harness.world import World

# --- exits and silence -----------------------------------------------------------------------


def test_a_probe_that_exits_is_replaced_at_once_and_children_keep_running() -> None:
    world = occupied()
    world.probe.exits_with = 1
    world.run(lambda: world.probe.generation == 2, within=0.2)
    world.run_for(10)
    assert isinstance(world.gpu_state().stressor, Running)


def test_the_pause_before_the_next_probe_grows_and_children_stop() -> None:
    world = occupied()
    starts: list[float] = []
    for _ in range(400):
        world.probe.exits_with = 1
        before = world.probe.generation
        world.run_for(0.1)
        if world.probe.generation != before:
            starts.append(world.now)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps[-1] > 3 > gaps[0]
    assert world.at(0).child is None
    assert not world.events("stressor.failed")


def test_a_slow_start_of_the_probe_is_no_silence() -> None:
    world = World(config=Config(dry_run=True))
    world.run_for(1)
    world.probe.exits_with = 1
    world.run(lambda: world.probe.generation == 2, within=1.2)
    inventory = ProbeFacts(generation=2, inventory=Inventory(gpus=(), driver="fake"))
    later = Observation(now=world.now + 40, probe=inventory)
    assert not [a for a in decide(world.state, later).actions if _kills_probe(a)]
    silent = Observation(now=world.now + 70, probe=ProbeFacts(generation=2))
    assert [a for a in decide(world.state, silent).actions if _kills_probe(a)]


def _kills_probe(action: Action) -> bool:
    return isinstance(action, KillProcess) and action.role is Role.PROBE


def test_a_probe_without_gpus_to_read_is_not_silent() -> None:
    world = occupied()
    world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
    world.run(lambda: world.probe.generation == 2, within=4)
    world.at(0).silent = True
    world.run_for(9)
    assert world.probe.generation == 2
    world.run(lambda: watched(world) == ["GPU-0"], within=2)
    world.run_for(4)
    assert world.probe.generation == 2, "the silence limit starts over"
    world.run(lambda: world.probe.generation == 3, within=3)
    assert world.events("probe.hung")[-1].fields["silent_s"] < 6  # type: ignore[operator]


def test_a_stall_of_the_supervisor_is_no_silence_of_the_probe() -> None:
    world = occupied()
    world.pass_time(30)
    world.supervisor.tick()
    world.run_for(1)
    assert world.probe.generation == 1


# --- calls that hang -------------------------------------------------------------------------


def test_a_hanging_call_excludes_only_its_gpu() -> None:
    world = occupied(gpus=2)
    world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
    world.run(lambda: world.probe.generation == 2, within=4)
    assert world.probe.skip == ("GPU-0",)
    world.run_for(5)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert isinstance(world.gpu_state(1).stressor, Running)
    assert isinstance(world.gpu_state().occupancy, Unknown)


def test_the_exclusion_of_a_gpu_grows_with_each_hang() -> None:
    world = occupied(gpus=2)
    pauses = []
    for _ in range(3):
        world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
        again = len(world.events("probe.hung")) + 1
        world.run(times(world, "probe.hung", again), within=4)
        pauses.append(round(float(str(world.events("probe.hung")[-1].fields["pause_s"]))))
        world.run_for(2)
    assert pauses == [10, 20, 40]


def test_a_gpu_is_read_and_occupied_again_after_its_exclusion() -> None:
    world = occupied()
    world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
    world.run(lambda: world.probe.generation == 2, within=4)
    assert watched(world) == []
    world.run_for(10.1)
    assert watched(world) == ["GPU-0"]


# --- calls that crash ------------------------------------------------------------------------


def crash(world: World, call: Call, code: int) -> None:
    """End the probe with this code during this call."""
    world.probe.exits_with, world.probe.hung = code, call


#: The codes with which a probe ends itself.
OWN_CODES = (ChildExitCode.FAILED, ChildExitCode.ORPHANED)


@mostly_long("code", [-11, -6, 0, 1, 3], quick=2)
def test_a_call_that_ends_the_probe_excludes_only_its_gpu(code: int) -> None:
    world = occupied(gpus=2)
    call = Call(uuid="GPU-0", name="memory", since=world.now)
    crash(world, call, code)
    world.run(lambda: world.probe.generation == 2, within=0.2)
    assert world.probe.skip == ("GPU-0",)
    (event,) = world.events("probe.exited")
    assert event.gpu == "GPU-0"
    assert (event.fields["call"], event.fields["left_out_s"]) == ("memory", 10)
    world.run_for(9)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert isinstance(world.gpu_state(1).stressor, Running)
    assert "crashed in memory" in world.events("gpu.unknown")[0].fields["reason"]  # type: ignore[operator]
    world.run(lambda: isinstance(world.gpu_state().stressor, Running), within=20)


def test_every_gpu_with_a_call_in_flight_is_excluded_after_a_crash() -> None:
    world = occupied(gpus=3)
    now = world.now
    calls = tuple(Call(uuid=f"GPU-{i}", name="memory", since=now - 1 + i) for i in (0, 1))
    facts = ProbeFacts(generation=1, calls=calls, exit=ChildExit(code=-6, at=now))
    done = decide(world.state, Observation(now=now, probe=facts))
    assert set(done.state.suspects) == {"GPU-0", "GPU-1"}
    (event,) = [event for event in done.events if event.name == "probe.exited"]
    assert event.gpu == "GPU-1", "the latest call"


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ({"failed": "see `ulimit -u`"}, 71, "see `ulimit -u`"),
        ({"unavailable": Unavailable(code="driver_wrong", reason="no GPU")}, 0, "no GPU"),
        ({}, 71, "exited with code 71"),
        ({}, -9, "where memory runs out"),
    ],
)
def test_the_reason_of_the_end_of_a_probe_is_that_of_the_status(
    said: dict[str, Any], code: int, why: str
) -> None:
    world = occupied()
    facts = ProbeFacts(generation=1, exit=ChildExit(code=code, at=world.now), **said)
    reason = decide(world.state, Observation(now=world.now, probe=facts)).state.probe.reason
    assert why in str(reason)


@pytest.mark.parametrize(
    ("gpu", "code"), [*(("GPU-0", code) for code in (-9, -15, *OWN_CODES)), (None, -6)]
)
def test_no_gpu_is_excluded_where_the_probe_was_killed_gave_up_or_was_initialised(
    gpu: str | None, code: int
) -> None:
    world = occupied(gpus=2)
    crash(world, Call(uuid=gpu, name="memory" if gpu else "open", since=world.now), code=code)
    world.run(lambda: world.probe.generation == 2, within=0.2)
    assert world.probe.skip == ()
    (event,) = world.events("probe.exited")
    assert (event.gpu, "call" in event.fields) == (None, False)


SLOW = Config(poll=600.0)


def watch_of(world: World) -> Watch:
    assert world.probe.watched is not None
    return world.probe.watched


def test_a_gpu_in_use_is_slow_and_a_held_one_is_not() -> None:
    world = World(gpus=2, config=SLOW)
    world.newcomer(0)
    world.run(times(world, "stressor.ready", 1))
    world.run_for(1.0)
    assert watch_of(world).slow == ("GPU-0",)
    assert watch_of(world).held == ("GPU-1",)
    assert isinstance(world.gpu_state().occupancy, Busy)


def test_an_idle_gpu_that_may_be_occupied_is_not_slow() -> None:
    world = World(config=Config(poll=600.0, idle_wait=30.0))
    world.run_for(20.0)
    assert watch_of(world).slow == ()
    world.run(times(world, "stressor.ready", 1))


def test_a_paused_gpu_is_slow_until_it_may_be_occupied() -> None:
    world = World(config=Config(poll=600.0))
    (gpu_state,) = world.state.gpu_states.values()
    paused = replace(gpu_state, pause=Pause(since=0.0, by=Caller(via="unix")))
    world.state = replace(world.state, gpu_states={"GPU-0": paused})
    world.run_for(2.0)
    assert watch_of(world).slow == ("GPU-0",)
    resumed = replace(world.gpu_state(), pause=None)
    world.state = replace(world.state, gpu_states={"GPU-0": resumed})
    world.run(times(world, "stressor.ready", 1))
    assert watch_of(world).slow == ()


def test_at_the_usual_polls_none_is_slow() -> None:
    world = World(config=Config(poll=2.0))
    world.newcomer(0)
    world.run_for(5.0)
    assert watch_of(world).slow == ()
