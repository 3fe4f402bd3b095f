"""Attribution: stressors under any PID, ignored processes, and what incomplete lists mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.config.model import Config
from sentinel.config.setting import parse_ignore_rules
from sentinel.core.attribution import SLACK_BYTES, pending_ignores
from sentinel.core.gpu_state import Busy, Running
from sentinel.core.newcomer import LIST_WAIT_S, expect, newcomer
from sentinel.core.observation import Identity, IdentityMode, OwnChild, is_own
from sentinel.protocol.gpu import GpuProcess, Memory, ProcessKind, Reading
from sentinel.protocol.stressor import MemoryContention
from tests.harness.core_scenarios import attributed, held
from tests.harness.narrowing import not_none
from tests.harness.world import GIB, World

MIB = 2**20
CONTAINER = "this is not the host's PID namespace"
ELSEWHERE = 2**22


def first_held(world: World) -> bool:
    """Check whether a stressor runs on the first GPU."""
    return isinstance(world.gpu_state().stressor, Running)


def occupy(world: World, config: Config | None = None) -> None:
    """Run a world until a stressor is on its first GPU, and for some seconds more."""
    world.configure(config or Config(rearm=1.0))
    world.run(lambda: first_held(world))
    world.run_for(5)


def starting(stage: int, child_as: int | None = 0) -> World:
    """Build a world with hidden processes, and with a child in a stage of its start."""
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.at(0).child_pid_offset = child_as
    world.run(lambda: world.spawner.started)
    world.run(lambda: world.child().stage == stage)
    return world


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
    assert first_held(world)
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
    world = starting(1, child_as=ELSEWHERE)
    world.newcomer(0)
    world.run(lambda: world.events("gpu.yielding"), within=3)


def test_a_process_that_holds_less_than_the_child_is_foreign() -> None:
    world = starting(1, child_as=None)
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
    found = not_none(busy(world))
    assert found.rule == "idle.memory"
    world.at(0).unlisted = 0
    world.run(lambda: first_held(world), within=10)


@pytest.mark.parametrize(
    ("hidden", "idle_memory", "unlisted", "starts"),
    [
        (None, None, GIB, True),
        (None, None, GIB + 1, False),
        (CONTAINER, None, 32 * MIB, True),
        (CONTAINER, None, 32 * MIB + 1, False),
        (CONTAINER, 400 * MIB, 300 * MIB, True),
    ],
)
def test_idle_memory_is_set_or_depends_on_the_list(
    hidden: str | None, idle_memory: int | None, unlisted: int, *, starts: bool
) -> None:
    world = World(hidden=hidden, config=Config(idle_memory=idle_memory))
    world.at(0).unlisted = unlisted
    world.run_for(5)
    assert bool(world.spawner.started) is starts


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
    assert first_held(world)


# --- computing processes ---------------------------------------------------------------------


def test_an_unlisted_computing_process_keeps_a_gpu_busy() -> None:
    world = World(hidden=CONTAINER, config=Config(rearm=1.0))
    world.at(0).computing = (4711,)
    world.run_for(5)
    found = not_none(busy(world))
    assert found.rule == "computing"
    assert "4711" in found.reason
    world.at(0).computing = ()
    world.run(lambda: first_held(world), within=5)


@pytest.mark.parametrize(
    ("hidden", "computing"),
    [(CONTAINER, None), (CONTAINER, ()), (CONTAINER, (4711,)), (None, (4711, 4712))],
)
def test_the_stressor_is_the_one_computing_process_and_a_complete_list_needs_no_count(
    hidden: str | None, computing: tuple[int, ...] | None
) -> None:
    world = World(hidden=hidden)
    occupy(world)
    world.at(0).computing = computing
    world.run_for(10)
    assert first_held(world)


def test_one_more_computing_process_is_a_newcomer() -> None:
    world = World(hidden=CONTAINER)
    occupy(world)
    world.at(0).computing = (4711, 4712)
    world.run(lambda: world.events("gpu.yielding"), within=3)
    assert world.events("gpu.yielding")[0].fields["evidence"] == "computing"


# --- newcomers while the child takes its memory -----------------------------------------------


@pytest.mark.parametrize("exits", [False, True])
def test_a_child_with_memory_contention_yields_and_does_not_fail(*, exits: bool) -> None:
    world = starting(2)
    world.at(0).unlisted = GIB
    world.child().outbox.append(MemoryContention(grown=GIB))
    if exits:
        world.end_child(code=82)
    world.run(lambda: world.events("gpu.handed_over"), within=3)
    assert world.events("gpu.yielding")[0].fields["grown"] == GIB
    assert not world.events("stressor.failed")
    world.run_for(20)
    assert len(world.spawner.started) == 1
    world.at(0).unlisted = 0
    world.run(lambda: first_held(world), within=10)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_unlisted_memory_shows_a_newcomer_where_the_child_is_listed(stage: int) -> None:
    """An unlisted process that came while the child took its memory, or just before Ready."""
    world = starting(stage)
    world.at(0).unlisted = 26 * MIB
    world.run(lambda: world.events("gpu.yielding"), within=0.5)
    assert identity(world).mode is IdentityMode.DIRECT
    assert world.events("gpu.yielding")[0].fields["evidence"] == "memory"
    assert world.events("gpu.yielding")[0].fields["grown"] == 26 * MIB


def test_driver_overhead_beside_the_child_is_no_newcomer() -> None:
    world = starting(1)
    world.at(0).unlisted = 9 * MIB
    world.run(lambda: first_held(world))
    world.run_for(5)
    assert first_held(world)
    assert not world.events("gpu.yielding")


def test_a_list_older_than_the_memory_shows_no_newcomer() -> None:
    """The list is older than the memory: the missing part may be the child's."""
    world = World(hidden=CONTAINER)
    occupy(world)
    gpu_state = world.gpu_state()
    facts = not_none(world.probe.collect())
    (reading,) = facts.readings.values()
    assert reading.memory is not None
    more = replace(reading.memory, used=reading.memory.used + SLACK_BYTES)
    early = replace(reading, memory=more, processes=reading.processes, took=0.001)
    assert isinstance(gpu_state.stressor, Running)
    unsure = replace(gpu_state, launch=replace(gpu_state.launch, unattributed=-GIB))
    assert newcomer(unsure, early, world.now, Config()) is None
    paired = replace(early, processes_at=early.at + 0.001)
    assert newcomer(unsure, paired, world.now, Config()) is not None


LONG = parse_ignore_rules("name=a-very-long-name")
SMALL = Config(ignore=parse_ignore_rules("memory<200MiB"), rearm=1.0)


def graphics(memory: int, name: str = "Xorg", user: str | None = "root") -> GpuProcess:
    return GpuProcess(
        pid=7, kind=ProcessKind.GRAPHICS, memory=memory, started=7, name=name, user=user
    )


@pytest.mark.parametrize(
    ("process", "config", "occupied"),
    [
        (graphics(50 * MIB), Config(), True),
        (graphics(300 * MIB), Config(), False),
        (replace(graphics(0), memory=None), Config(), False),
        (graphics(300 * MIB, "a-very-long-nam"), Config(ignore=LONG), True),
        (graphics(300 * MIB), Config(yield_to="compute"), True),
        (graphics(300 * MIB), Config(ignore=parse_ignore_rules("name=Xorg")), True),
        (graphics(300 * MIB), Config(ignore=parse_ignore_rules("name=xorg,user=rot")), False),
        (replace(graphics(MIB), kind=ProcessKind.COMPUTE), Config(yield_to="compute"), False),
        (
            replace(graphics(MIB), kind=ProcessKind.COMPUTE, user="monitor"),
            Config(ignore=parse_ignore_rules("name=Xorg2,user=monitor")),
            True,
        ),
        (
            replace(graphics(MIB), kind=ProcessKind.MPS, user=None),
            Config(ignore=parse_ignore_rules("user=monitor")),
            False,
        ),
    ],
)
def test_which_processes_are_ignored(
    process: GpuProcess, config: Config, *, occupied: bool
) -> None:
    world = World(config=config)
    world.at(0).foreign.append(process)
    world.run_for(10)
    assert (held(world) == [0]) is occupied


def test_an_active_display_makes_a_gpu_busy_unless_only_compute_counts() -> None:
    for yield_to, expected in (("all", []), ("compute", [0])):
        world = World(config=Config(yield_to=yield_to))
        world.at(0).display = True
        world.run_for(10)
        assert held(world) == expected


# --- growth ----------------------------------------------------------------------------------


def beside(process: GpuProcess, config: Config) -> World:
    """Build a world with a stressor beside an ignored process."""
    world = World(config=config)
    world.at(0).foreign.append(process)
    world.run(lambda: held(world), within=100)
    world.run_for(1)
    return world


def test_listed_growth_of_an_ignored_process_is_explained() -> None:
    world = beside(graphics(50 * MIB), Config(rearm=1.0))
    for memory in (60, 55, 90, 50, 60):
        world.at(0).foreign[:] = [graphics(memory * MIB)]
        world.run_for(1)
        assert held(world) == [0]
    world.at(0).unlisted = 2 * MIB
    world.run(lambda: world.events("gpu.yielding"), within=0.1)
    assert world.events("gpu.yielding")[0].fields["grown"] == 2 * MIB


def test_unlisted_growth_of_an_ignored_process_is_a_newcomer() -> None:
    ignore = Config(ignore=parse_ignore_rules("name=Xorg"), rearm=1.0)
    world = beside(replace(graphics(0), memory=None), ignore)
    world.at(0).unlisted = 20 * MIB
    world.run(lambda: world.events("gpu.yielding"), within=0.1)


@pytest.mark.parametrize("named", [50 * MIB, None])
def test_growth_that_an_ignored_process_may_explain_waits_for_the_list(named: int | None) -> None:
    """Memory is read far more often than processes. Other growth never waits."""
    ignore = Config(ignore=parse_ignore_rules("name=Xorg"), rearm=1.0)
    world = beside(replace(graphics(0), memory=named), ignore)
    gpu_state = world.gpu_state()
    assert isinstance(gpu_state.stressor, Running)
    assert gpu_state.stressor.expected is not None
    now = world.now
    used = gpu_state.stressor.expected + 20 * MIB
    reading = Reading(
        uuid="GPU-0",
        at=now,
        memory=Memory(total=140 * GIB, used=used, free=140 * GIB - used),
        processes=(replace(graphics(0), memory=named),),
        processes_at=now - 0.5,
    )
    seen = expect(attributed(gpu_state, reading, ignore), reading, now)
    assert (newcomer(seen, reading, now, ignore) is None) is (named is not None)
    late = now + LIST_WAIT_S + 0.001
    again = replace(reading, at=late)  # the next memory reading, still without a new list
    seen = expect(attributed(seen, again, ignore), again, late)
    assert newcomer(seen, again, late, ignore) is not None
    paired = replace(reading, processes=(graphics(70 * MIB),), processes_at=now + 0.001)
    if named is not None:
        seen = expect(attributed(gpu_state, paired, ignore), paired, now)
        assert newcomer(seen, paired, now, ignore) is None


# --- rules by size ---------------------------------------------------------------------------


def small(memory: int, pid: int = 7) -> GpuProcess:
    return GpuProcess(pid=pid, memory=memory, started=pid, name="exporter")


def test_a_small_process_is_ignored_after_a_minute_of_steady_memory() -> None:
    world = World(config=SMALL)
    world.at(0).foreign.append(small(50 * MIB))
    world.run_for(59)
    assert not world.spawner.started
    world.run(lambda: held(world), within=10)


def test_a_small_newcomer_is_never_ignored() -> None:
    """Every newcomer is small until just before its large allocation."""
    world = beside(small(50 * MIB), SMALL)
    world.at(0).foreign.append(small(MIB, pid=8))
    world.run(lambda: world.events("gpu.yielding"), within=0.1)
    assert [p["pid"] for p in world.events("gpu.busy")[-1].fields["processes"]] == [8]  # type: ignore[attr-defined]


@pytest.mark.parametrize("memory", [60 * MIB, 200 * MIB])
def test_a_small_process_that_grows_is_not_ignored_any_more(memory: int) -> None:
    world = beside(small(50 * MIB), SMALL)
    world.at(0).foreign[:] = [small(memory)]
    world.run(lambda: world.events("gpu.yielding"), within=0.1)
    world.run_for(50)
    assert len(world.spawner.started) == 1


@pytest.mark.parametrize(
    ("ignored", "config", "changed"),
    [
        (small(50 * MIB), SMALL, replace(small(50 * MIB), started=99)),
        (graphics(50 * MIB), Config(rearm=1.0), graphics(101 * MIB)),
    ],
    ids=["its PID is used again", "light graphics becomes heavy"],
)
def test_an_ignored_process_that_is_another_or_heavier_now_is_a_newcomer(
    ignored: GpuProcess, config: Config, changed: GpuProcess
) -> None:
    world = beside(ignored, config)
    world.at(0).foreign[:] = [changed]
    world.run(lambda: world.events("gpu.yielding"), within=0.1)


def test_a_process_of_unknown_memory_or_start_time_is_not_small() -> None:
    for process in (replace(small(0), memory=None), replace(small(MIB), started=None)):
        world = World(config=SMALL)
        world.at(0).foreign.append(process)
        world.run_for(120)
        assert not world.spawner.started


def test_a_failed_reading_restarts_the_minute() -> None:
    world = World(config=SMALL)
    world.at(0).foreign.append(small(50 * MIB))
    world.run_for(40)
    world.at(0).fault = "unknown error"
    world.run_for(1)
    world.at(0).fault = None
    world.run_for(50)
    assert not world.spawner.started
    world.run(lambda: held(world), within=20)


def test_pending_ignores_name_the_rule_they_wait_for() -> None:
    world = World(config=SMALL)
    world.at(0).foreign += [small(50 * MIB), small(300 * MIB, pid=8)]
    world.run_for(5)
    gpu_state = world.gpu_state()
    assert not gpu_state.attribution.ignored
    waiting = pending_ignores(gpu_state, SMALL)
    assert set(waiting) == {7}
    assert "memory<200MiB" in waiting[7]
    world.run_for(60)
    gpu_state = world.gpu_state()
    assert set(gpu_state.attribution.ignored) == {7}
    assert not pending_ignores(gpu_state, SMALL)


# --- MPS -------------------------------------------------------------------------------------


SERVER = GpuProcess(pid=5, memory=30 * MIB, started=5, name="nvidia-cuda-mps")


@pytest.mark.parametrize(
    ("client", "occupied"), [(None, True), (ProcessKind.MPS, False), (ProcessKind.COMPUTE, False)]
)
def test_an_mps_server_is_ignored_and_its_clients_are_not(
    client: ProcessKind | None, *, occupied: bool
) -> None:
    world = World()
    world.at(0).foreign.append(SERVER)
    if client is not None:
        world.at(0).foreign.append(replace(small(GIB), kind=client))
    world.run_for(10)
    assert (held(world) == [0]) is occupied


def test_growth_of_an_mps_server_is_a_client_that_is_not_listed_yet() -> None:
    world = beside(SERVER, Config())
    assert world.child().memory_limit.used is not None, "the stressor watches by itself"
    world.at(0).foreign[0] = replace(SERVER, memory=32 * MIB)
    world.run(lambda: world.spawner.killed, within=0.1)
    assert world.events("gpu.yielding")[0].fields["evidence"] == "memory"


def test_an_mps_server_that_an_operator_ignores_may_grow() -> None:
    world = beside(SERVER, Config(ignore=parse_ignore_rules("name=nvidia-cuda-mps")))
    world.at(0).foreign[0] = replace(SERVER, memory=32 * MIB)
    world.run_for(5)
    assert first_held(world)


# --- rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "is not a rule") for text in ("", "Xorg", "name=", "size=3", "name=a,,user=b")),
        *((text, "is not a rule") for text in ("memory=1GiB", "size<3")),
        *((text, r"is not a size|has no unit") for text in ("memory<", "memory<much", "memory<5")),
    ],
)
def test_an_invalid_ignore_rule_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_ignore_rules(text)


def test_rules_are_formatted_as_they_are_parsed() -> None:
    text = "name=Xorg,user=monitor,memory<200MiB"
    assert ",".join(map(str, parse_ignore_rules(text))) == text
