"""Ignored processes: which they are, and what happens when they grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.config.model import Config
from sentinel.config.setting import parse_ignore_rules
from sentinel.core.attribution import pending_ignores
from sentinel.core.gpu_state import Running
from sentinel.core.newcomer import LIST_WAIT_S, expect, newcomer
from sentinel.protocol.gpu import GpuProcess, Memory, ProcessKind, Reading
from tests.harness.core_scenarios import attributed, held
from tests.harness.world import GIB, World

MIB = 2**20
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


def test_light_graphics_that_becomes_heavy_is_a_newcomer() -> None:
    world = beside(graphics(50 * MIB), Config(rearm=1.0))
    world.at(0).foreign[:] = [graphics(101 * MIB)]
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


def test_a_reused_pid_is_a_newcomer() -> None:
    world = beside(small(50 * MIB), SMALL)
    world.at(0).foreign[:] = [replace(small(50 * MIB), started=99)]
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


@pytest.mark.parametrize(
    ("client", "occupied"), [(None, True), (ProcessKind.MPS, False), (ProcessKind.COMPUTE, False)]
)
def test_an_mps_server_is_ignored_and_its_clients_are_not(
    client: ProcessKind | None, *, occupied: bool
) -> None:
    world = World()
    server = GpuProcess(pid=5, memory=30 * MIB, started=5, name="nvidia-cuda-mps")
    world.at(0).foreign.append(server)
    if client is not None:
        world.at(0).foreign.append(replace(small(GIB), kind=client))
    world.run_for(10)
    assert (held(world) == [0]) is occupied


# --- rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "Xorg", "name=", "size=3", "name=a,,user=b", "memory=1GiB", "size<3"]
)
def test_an_invalid_ignore_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rule"):
        parse_ignore_rules(text)


@pytest.mark.parametrize("text", ["memory<", "memory<much", "memory<5"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_ignore_rules(text)


def test_rules_are_formatted_as_they_are_parsed() -> None:
    text = "name=Xorg,user=monitor,memory<200MiB"
    assert ",".join(map(str, parse_ignore_rules(text))) == text
