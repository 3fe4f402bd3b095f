"""Identity: stressors listed by their PID, by a PID of another namespace, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.config.model import Config
from sentinel.config.setting import parse_ignore_rules
from sentinel.core.attribution import SLACK_BYTES
from sentinel.core.gpu_state import Busy, Running
from sentinel.core.newcomer import newcomer
from sentinel.core.observation import Identity, IdentityMode, OwnChild, is_own
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.stressor import MemoryContention
from tests.harness.world import GIB, World

MIB = 2**20
CONTAINER = "this is not the host's PID namespace"
ELSEWHERE = 2**22


def held(world: World) -> bool:
    """Check whether a stressor runs on the first GPU."""
    return isinstance(world.gpu_state().stressor, Running)


def occupy(world: World, config: Config | None = None) -> None:
    """Run a world until a stressor is on its first GPU, and for some seconds more."""
    world.configure(config or Config(rearm=1.0))
    world.run(lambda: held(world))
    world.run_for(5)


def identity(world: World) -> Identity:
    return world.gpu_state().identity


def busy(world: World) -> Busy | None:
    occupancy = world.gpu_state().occupancy
    return occupancy if isinstance(occupancy, Busy) else None


# --- how the stressor is listed --------------------------------------------------------------


def test_the_identity_is_unlearned_before_the_first_context() -> None:
    world = World()
    world.run(lambda: world.spawner.started)
    assert identity(world).mode is IdentityMode.UNLEARNED
    assert identity(world).complete


@pytest.mark.parametrize(
    ("hidden", "child_as", "mode", "complete"),
    [
        (None, 0, IdentityMode.DIRECT, True),
        (None, None, IdentityMode.BLIND, False),
        (CONTAINER, 0, IdentityMode.DIRECT, False),
        (CONTAINER, ELSEWHERE, IdentityMode.MAPPED, False),
        (CONTAINER, None, IdentityMode.BLIND, False),
    ],
)
def test_the_identity_is_learned_and_reported(
    hidden: str | None, child_as: int | None, mode: IdentityMode, *, complete: bool
) -> None:
    world = World(hidden=hidden)
    world.at(0).child_pid_offset = child_as
    occupy(world, Config(status_every=1.0))
    assert held(world)
    assert identity(world).mode is mode
    assert identity(world).complete is complete
    (event,) = world.events("gpu.identity")
    assert event.fields["mode"] == mode.value
    assert event.fields["complete"] is complete
    status = world.events("gpu.status")[-1].fields
    assert status["identity"] == mode.value
    assert (CONTAINER in str(status["identity_reason"])) is (hidden is not None)


def test_with_a_complete_list_no_foreign_process_is_taken_for_the_child() -> None:
    world = World(config=Config(rearm=1.0))
    world.at(0).child_pid_offset = ELSEWHERE
    world.run(lambda: world.events("gpu.yielding"))
    assert not world.events("stressor.ready")


def test_two_new_pids_are_foreign() -> None:
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.at(0).child_pid_offset = ELSEWHERE
    world.run(lambda: world.spawner.started)
    child = world.child()
    world.run(lambda: child.stage == 1)
    world.newcomer(0)
    world.run(lambda: world.events("gpu.yielding"), within=3)


def test_a_process_that_holds_less_than_the_child_is_foreign() -> None:
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.at(0).child_pid_offset = None
    world.run(lambda: world.spawner.started)
    child = world.child()
    world.run(lambda: child.stage == 1)
    world.at(0).foreign.append(GpuProcess(pid=ELSEWHERE, memory=GIB))
    world.run(lambda: world.events("gpu.yielding"), within=10)
    assert identity(world).mode is IdentityMode.BLIND
    assert world.events("gpu.yielding")[0].fields["processes"][0]["pid"] == ELSEWHERE  # type: ignore[index]


def test_the_identity_is_learned_for_each_child() -> None:
    world = World(hidden=CONTAINER)
    world.at(0).child_pid_offset = ELSEWHERE
    occupy(world)
    world.at(0).unlisted = GIB
    world.run(lambda: world.at(0).child is None)
    world.at(0).unlisted = 0
    world.at(0).child_pid_offset = 0
    world.run(lambda: identity(world).mode is IdentityMode.DIRECT)
    assert len(world.events("gpu.identity")) == 2


@pytest.mark.parametrize(
    ("process", "child", "own"),
    [
        (GpuProcess(pid=7, started=1), OwnChild(pid=7, started=1), True),
        (GpuProcess(pid=7, started=2), OwnChild(pid=7, started=1), False),
        (GpuProcess(pid=8, session=7), OwnChild(pid=7, started=1), True),
        (GpuProcess(pid=8), OwnChild(pid=7, started=1), False),
        (GpuProcess(pid=0), OwnChild(pid=7, started=1), False),
        (GpuProcess(pid=2**32 - 1), OwnChild(pid=7, started=1), False),
        (GpuProcess(pid=9), OwnChild(pid=7, started=1, listed_as=9), True),
        # PIDs of another namespace: an equal number is another process.
        (GpuProcess(pid=7, started=1), OwnChild(pid=7, started=1, listed_as=9), False),
        (GpuProcess(pid=8, session=7), OwnChild(pid=7, started=1, listed_as=9), False),
    ],
)
def test_which_processes_are_own(process: GpuProcess, child: OwnChild, *, own: bool) -> None:
    assert is_own(process, child) is own
    assert not is_own(process, None)


# --- incomplete lists ------------------------------------------------------------------------


@pytest.mark.parametrize("child_as", [0, ELSEWHERE, None])
def test_memory_alone_shows_a_newcomer_and_its_presence(child_as: int | None) -> None:
    world = World(hidden=CONTAINER)
    world.at(0).child_pid_offset = child_as
    occupy(world)
    world.at(0).unlisted = 2 * MIB
    decisions = world.run(lambda: world.events("gpu.yielding"), within=0.1)
    assert len(decisions) == 1
    world.at(0).unlisted = 60 * MIB
    world.run(lambda: world.events("gpu.handed_over"))
    assert world.events("gpu.handed_over")[0].fields["memory_back_s"] is None
    world.run_for(60)
    assert len(world.spawner.started) == 1
    found = busy(world)
    assert found is not None
    assert found.rule == "idle.memory"
    world.at(0).unlisted = 0
    world.run(lambda: held(world), within=10)


@pytest.mark.parametrize(
    ("hidden", "unlisted", "starts"),
    [
        (None, GIB, True),
        (None, GIB + 1, False),
        (CONTAINER, 32 * MIB, True),
        (CONTAINER, 32 * MIB + 1, False),
    ],
)
def test_the_default_idle_memory_depends_on_the_list(
    hidden: str | None, unlisted: int, *, starts: bool
) -> None:
    world = World(hidden=hidden)
    world.at(0).unlisted = unlisted
    world.run_for(5)
    assert bool(world.spawner.started) is starts


def test_idle_memory_can_be_set_for_incomplete_lists() -> None:
    world = World(hidden=CONTAINER, config=Config(idle_memory=400 * MIB))
    world.at(0).unlisted = 300 * MIB
    world.run_for(5)
    assert world.spawner.started


def test_the_default_idle_memory_changes_when_the_list_proves_incomplete() -> None:
    """Half a GiB counted as idle while the list seemed complete."""
    world = World(config=Config(rearm=1.0))
    world.at(0).child_pid_offset = None
    world.at(0).unlisted = GIB // 2
    world.run(lambda: world.events("gpu.yielding"))
    assert world.events("gpu.yielding")[0].fields["grown"] == GIB // 2
    world.run_for(60)
    assert len(world.spawner.started) == 1


def test_names_are_not_compared_where_pids_may_belong_to_another_namespace() -> None:
    ignore = Config(ignore=parse_ignore_rules("name=Xorg"), rearm=1.0)
    someone = GpuProcess(pid=5, memory=MIB, name="Xorg", started=5)
    for hidden, starts in ((None, 1), (CONTAINER, 0)):
        world = World(hidden=hidden, config=ignore)
        world.at(0).foreign.append(someone)
        world.run_for(10)
        assert len(world.spawner.started) == starts


def test_names_are_compared_in_a_container_once_pids_match() -> None:
    world = World(hidden=CONTAINER)
    occupy(world, Config(ignore=parse_ignore_rules("name=Xorg"), rearm=1.0))
    # No memory, which would be evidence by itself.
    world.at(0).foreign.append(GpuProcess(pid=5, memory=0, name="Xorg", started=5))
    world.run_for(5)
    assert held(world)


# --- computing processes ---------------------------------------------------------------------


def test_an_unlisted_computing_process_keeps_a_gpu_busy() -> None:
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.at(0).computing = (4711,)
    world.run_for(5)
    found = busy(world)
    assert found is not None
    assert found.rule == "computing"
    assert "4711" in found.reason
    world.at(0).computing = ()
    world.run(lambda: held(world), within=5)


@pytest.mark.parametrize("computing", [None, (), (4711,)])
def test_the_stressor_is_the_one_computing_process(computing: tuple[int, ...] | None) -> None:
    world = World(hidden=CONTAINER)
    occupy(world)
    world.at(0).computing = computing
    world.run_for(10)
    assert held(world)


def test_one_more_computing_process_is_a_newcomer() -> None:
    world = World(hidden=CONTAINER)
    occupy(world)
    world.at(0).computing = (4711, 4712)
    world.run(lambda: world.events("gpu.yielding"), within=3)
    assert world.events("gpu.yielding")[0].fields["evidence"] == "computing"


def test_with_a_complete_list_computing_processes_do_not_count() -> None:
    world = World()
    occupy(world)
    world.at(0).computing = (4711, 4712)
    world.run_for(5)
    assert held(world)


# --- newcomers while the child takes its memory -----------------------------------------------


@pytest.mark.parametrize("exits", [False, True])
def test_a_child_with_memory_contention_yields_and_does_not_fail(*, exits: bool) -> None:
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.run(lambda: world.spawner.started)
    child = world.child()
    world.run(lambda: child.stage == 2)
    world.at(0).unlisted = GIB
    child.outbox.append(MemoryContention(grown=GIB))
    if exits:
        child.dies_at, child.code = world.now, 82
    world.run(lambda: world.events("gpu.handed_over"), within=3)
    assert world.events("gpu.yielding")[0].fields["grown"] == GIB
    assert not world.events("stressor.failed")
    world.run_for(20)
    assert len(world.spawner.started) == 1
    world.at(0).unlisted = 0
    world.run(lambda: held(world), within=10)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_unlisted_memory_shows_a_newcomer_where_the_child_is_listed(stage: int) -> None:
    """An unlisted process that came while the child took its memory, or just before Ready."""
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.run(lambda: world.spawner.started)
    child = world.child()
    world.run(lambda: child.stage == stage)
    world.at(0).unlisted = 26 * MIB
    world.run(lambda: world.events("gpu.yielding"), within=0.5)
    assert identity(world).mode is IdentityMode.DIRECT
    assert world.events("gpu.yielding")[0].fields["evidence"] == "memory"
    assert world.events("gpu.yielding")[0].fields["grown"] == 26 * MIB


def test_driver_overhead_beside_the_child_is_no_newcomer() -> None:
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.run(lambda: world.spawner.started)
    child = world.child()
    world.run(lambda: child.stage == 1)
    world.at(0).unlisted = 9 * MIB
    world.run(lambda: held(world))
    world.run_for(5)
    assert held(world)
    assert not world.events("gpu.yielding")


def test_a_list_older_than_the_memory_shows_no_newcomer() -> None:
    """The list is older than the memory: the missing part may be the child's."""
    world = World(hidden=CONTAINER)
    occupy(world)
    gpu_state = world.gpu_state()
    facts = world.probe.collect()
    assert facts is not None
    (reading,) = facts.readings.values()
    assert reading.memory is not None
    more = replace(reading.memory, used=reading.memory.used + SLACK_BYTES)
    early = replace(reading, memory=more, processes=reading.processes, took=0.001)
    assert isinstance(gpu_state.stressor, Running)
    unsure = replace(gpu_state, launch=replace(gpu_state.launch, unattributed=-GIB))
    assert newcomer(unsure, early, world.now, Config()) is None
    paired = replace(early, processes_at=early.at + 0.001)
    assert newcomer(unsure, paired, world.now, Config()) is not None
