"""Allocations: their processes, the memory that a stressor leaves to them, and their end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.core.attribution import (
    CONTEXT_ALLOWANCE_BYTES,
    CONTEXT_BYTES,
    REGROW_S,
    SETTLE_S,
    allocated_processes,
    outstanding,
)
from sentinel.core.gpu_state import GpuState, Running, Stopped
from sentinel.protocol.commands import (
    LEASE_S,
    Allocate,
    Caller,
    CancelGrant,
    Extend,
    GrantKind,
    Level,
    Refusal,
    Reserve,
)
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Reading
from sentinel.protocol.views import Allocation
from tests.harness.core_scenarios import attributed, reply_to, served
from tests.harness.world import GIB, World

ALLOCATION = GrantKind.ALLOCATION
ME = Caller(via="unix", uid=1000, pid=5000, started=70)
GPU = Gpu(uuid="GPU-0", index=0, name="Fake", pci_bus_id="0", memory_total=140 * GIB)
CALM = Config(rearm=1.0)


def held(config: Config = CALM, gpus: int = 1) -> World:
    """Build a world with an API process and a stressor on every GPU."""
    world = served(gpus, config)
    world.run_for(0.5)
    return world


def send(world: World, command: type, **given: object) -> Refusal | None:
    """Post a command, and return why it was refused, or None."""
    return reply_to(world, command, **{"by": ME, **given}).refused


def allocate(world: World, size: int = 40 * GIB, **more: object) -> None:
    fields = {"id": "llm", "gpu": "GPU-0", "size": size, **more}
    assert send(world, Allocate, **fields) is None
    kept = {"id": "llm", "kind": ALLOCATION, "kept": True, "by": more.get("by", ME)}
    assert send(world, Extend, **kept) is None


def process(pid: int, memory: int | None, parent: int = 1, started: int = 80) -> GpuProcess:
    return GpuProcess(pid=pid, memory=memory, started=started, ancestors=(parent,))


def yields(world: World) -> int:
    return len(world.events("gpu.yielding"))


def beside_an_allocation() -> World:
    """Build a world with an allocation and the smaller stressor beside it."""
    world = held()
    allocate(world)
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopped))
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    world.run_for(0.5)
    return world


def test_deallocation_under_a_live_process_yields_at_once_and_is_in_the_reply() -> None:
    world = beside_an_allocation()
    world.at(0).foreign = [process(5000, 20 * GIB, started=70)]
    world.run_for(2)
    assert send(world, CancelGrant, kind=ALLOCATION, id="llm") is None
    view = world.api.views["GPU-0"]
    assert view.occupancy == "BUSY"
    assert [one.pid for one in view.processes] == [5000]
    assert view.allocated_processes == ()
    before = world.now
    world.run(lambda: not isinstance(world.gpu_state().stressor, Running))
    assert world.now == before
    world.run_for(1.0)
    assert world.api.host is not None
    assert world.api.host.allocations == ()


def test_no_stressor_starts_when_an_allocation_ends_under_a_live_process() -> None:
    world = held(Config(rearm=0.5, rearm_longest=0.5))
    world.at(0).foreign = [process(5000, 2 * GIB, started=70)]
    world.run_for(30)
    allocate(world)
    world.run_for(2.5)
    starts = len(world.spawner.started)
    assert send(world, CancelGrant, kind=ALLOCATION, id="llm") is None
    world.run_for(5)
    assert len(world.spawner.started) == starts


def test_an_allocation_to_a_running_process_is_in_the_reply() -> None:
    world = held()
    world.at(0).foreign = [process(5000, 20 * GIB, started=70)]
    world.run_for(3)
    assert world.api.views["GPU-0"].occupancy == "BUSY"
    assert send(world, Allocate, id="llm", gpu="GPU-0", size=40 * GIB) is None
    view = world.api.views["GPU-0"]
    assert (view.occupancy, view.rule, view.processes) == ("IDLE", "confirm", ())
    assert [allocated_process.pid for allocated_process in view.allocated_processes] == [5000]
    assert view.outstanding < 22 * GIB


def test_an_allocation_frees_its_memory_and_restarts_a_smaller_stressor() -> None:
    world = beside_an_allocation()
    (released,) = world.events("gpu.released")
    assert "llm" in str(released.fields["reason"])
    place = world.at(0)
    assert place.gpu.memory_total - place.used >= 40 * GIB + CONTEXT_BYTES
    assert world.spawner.started[-1][1] >= released.at + SETTLE_S


def test_an_allocated_process_takes_its_memory_beside_a_running_stressor() -> None:
    world = beside_an_allocation()
    child = world.at(0).child
    for memory in (13 * 2**20, 526 * 2**20, 20 * GIB, 40 * GIB + 526 * 2**20):
        world.at(0).foreign = [process(5000, memory, started=70)]
        world.run_for(1.0)
    assert world.at(0).child is child
    assert not yields(world)
    view = world.api.views["GPU-0"]
    assert [process.pid for process in view.allocated_processes] == [5000]
    assert view.memory_foreign == 40 * GIB + 526 * 2**20


def test_descendants_of_an_allocated_process_share_its_allocation() -> None:
    world = beside_an_allocation()
    world.at(0).foreign = [process(6000, 10 * GIB, parent=5000)]
    world.run_for(1.0)
    assert not yields(world)
    world.at(0).foreign.append(process(7000, GIB, parent=1))
    world.run(lambda: yields(world), within=1.0)


def test_each_process_of_an_allocation_may_have_a_context_besides() -> None:
    world = beside_an_allocation()
    world.at(0).foreign = [process(5000, 40 * GIB + 526 * 2**20, started=70)]
    world.run_for(0.5)
    for child in range(3):
        world.at(0).unlisted = 600 * 2**20  # its context, before it is listed
        world.run_for(0.1)
        world.at(0).unlisted = 0
        world.at(0).foreign.append(process(6000 + child, 600 * 2**20, parent=5000))
        world.run_for(0.5)
    assert not yields(world)


def test_unattributed_memory_counts_as_allocated_up_to_the_outstanding_amount() -> None:
    world = beside_an_allocation()
    world.at(0).unlisted = 40 * GIB
    world.run_for(0.2)
    assert not yields(world)
    world.at(0).unlisted = 42 * GIB
    world.run(lambda: yields(world), within=1.0)


def test_an_allocated_process_that_starts_early_does_not_make_the_gpu_busy() -> None:
    world = held()
    allocate(world)
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopped))
    world.at(0).unlisted = 30 * GIB
    world.run_for(0.2)
    world.at(0).unlisted, world.at(0).foreign = 0, [process(5000, 30 * GIB, started=70)]
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    assert not world.events("gpu.busy")


@pytest.mark.parametrize(
    ("allocated", "memory"), [(True, 41 * GIB + CONTEXT_ALLOWANCE_BYTES + 2**21), (False, GIB)]
)
def test_a_process_that_takes_more_than_it_was_allocated_is_a_newcomer(
    memory: int, *, allocated: bool
) -> None:
    world = beside_an_allocation() if allocated else held()
    world.at(0).foreign = [process(5000, memory, started=70)]
    world.run(lambda: yields(world), within=1.0)


def test_no_stressor_is_released_where_enough_memory_is_free() -> None:
    world = held(Config(memory=replace(CALM.memory, share=0.2), rearm=1.0))
    child = world.at(0).child
    allocate(world, 10 * GIB)
    world.run_for(20.0)
    assert world.at(0).child is child


def test_allocations_are_limited_by_the_budget() -> None:
    world = held(replace(CALM, budget_limit=50 * GIB))
    allocate(world, 30 * GIB)
    more = {"gpu": "GPU-0", "id": "two"}
    assert send(world, Allocate, **more, size=21 * GIB) is Refusal.CONFLICT
    assert "20.0 GiB of 50.0 GiB" in world.api.replies[-1].text
    assert send(world, Allocate, **more, size=20 * GIB) is None


def test_operators_leave_allocations_for_others_and_for_administrators() -> None:
    world = held(gpus=2)

    def refusals(uid: int, level: Level, number: int) -> list[str]:
        by = Caller(via="unix", uid=uid, user=f"user{uid}", pid=uid, started=70, level=level)
        wishes = [{"id": f"{uid}-{n}", "gpu": f"GPU-{n % 2}", "size": 1} for n in range(number)]
        replies = [reply_to(world, Allocate, by=by, **wish) for wish in wishes]
        return [reply.text for reply in replies if reply.refused is Refusal.CONFLICT]

    for uid in (1001, 1002, 1003):
        (full,) = refusals(uid, Level.OPERATE, 33)
        assert full.startswith(f"user{uid} has 32 allocations, and each user has at most 32: ")
        assert full.endswith("their users and administrators can end some")
    (full,) = refusals(1004, Level.OPERATE, 5)
    assert full.startswith("96 of 128 places for further allocations are taken, and 32 are kept")
    assert refusals(1005, Level.ADMINISTER, 17) == []
    assert len(refusals(0, Level.OWN, 18)) == 1


@pytest.mark.parametrize(
    ("reserve", "kept"),
    [(2**29, CONTEXT_BYTES), (2 * GIB, 2 * GIB)],
    ids=["a context", "the reserve"],
)
def test_the_default_budget_is_the_memory_less_the_reserve_and_a_context(
    reserve: int, kept: int
) -> None:
    world = held(replace(CALM, keep_unallocated=reserve))
    most = 140 * GIB - kept
    wish = {"gpu": "GPU-0", "id": "llm"}
    assert send(world, Allocate, **wish, size=most + 1) is Refusal.CONFLICT
    assert send(world, Allocate, **wish, size=most) is None


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"gpu": "GPU-7"}, Refusal.NO_SUCH_GPU),
        ({"size": 0}, Refusal.INVALID),
        ({"size": -GIB}, Refusal.INVALID),
        ({"id": ""}, Refusal.INVALID),
        ({"id": "two\nlines"}, Refusal.INVALID),
        ({"id": "llm", "size": 2 * GIB}, Refusal.CONFLICT),
        ({"id": "llm", "gpu": "GPU-1"}, Refusal.CONFLICT),
        ({"id": "llm", "by": replace(ME, pid=1)}, Refusal.CONFLICT),
    ],
)
def test_an_invalid_allocation_changes_nothing(fields: dict[str, object], refusal: Refusal) -> None:
    world = held(gpus=2)
    allocate(world, GIB)
    wish = {"gpu": "GPU-0", "id": "two", "size": GIB, **fields}
    assert send(world, Allocate, **wish) is refusal
    assert list(world.gpu_state().allocations) == ["llm"]


def test_an_allocation_ends_with_its_lease_unless_it_was_complete() -> None:
    world = held()
    allocate(world, GIB)
    wish = {"gpu": "GPU-0", "id": "two", "size": GIB}
    assert send(world, Allocate, **wish) is None
    world.run_for(LEASE_S - 1.0)
    assert send(world, Allocate, **wish) is None, "the same again has a new lease"
    world.run_for(LEASE_S - 1.0)
    assert send(world, Extend, id="two", kind=ALLOCATION) is None
    world.run_for(LEASE_S - 1.0)
    assert set(world.gpu_state().allocations) == {"llm", "two"}
    world.run_for(2.0)
    assert set(world.gpu_state().allocations) == {"llm"}
    assert send(world, Extend, id="two", kind=ALLOCATION) is Refusal.NOT_FOUND


@pytest.mark.parametrize("by", [ME, Caller(via="tcp")], ids=["seen", "unseen"])
@pytest.mark.parametrize("hidden", [None, "another namespace"], ids=["listed", "hidden"])
def test_the_stressor_is_released_where_allocated_processes_are_indistinguishable(
    by: Caller, hidden: str | None
) -> None:
    world = World(hidden=hidden, config=CALM, with_api=True)
    world.run(lambda: world.events("stressor.ready"))
    world.run_for(1.0)
    allocate(world, GIB, by=by)
    world.run_for(30.0)
    stays = isinstance(world.gpu_state().stressor, Running)
    assert stays is (by is ME and hidden is None)
    assert send(world, CancelGrant, kind=ALLOCATION, id="llm", by=by) is None
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))


def test_the_stressor_is_never_an_allocated_process_even_below_an_allocated_shell() -> None:
    """A shell that starts Sentinel and then allocates memory is an ancestor of every stressor."""
    world = held()
    child = world.child()
    by = Caller(via="unix", uid=1000, pid=1, started=1)
    own = GpuProcess(pid=child.pid, memory=9 * GIB, started=child.pid, ancestors=(50, 1))
    allocate(world, 10 * GIB, by=by)
    here = world.gpu_state()
    memory = Memory(total=140 * GIB, used=9 * GIB, free=131 * GIB)
    seen = Reading(uuid="GPU-0", at=world.now, memory=memory, processes=(own,))
    here = attributed(here, seen)
    assert here.attribution.own == (own,)
    assert here.attribution.allocated == {}
    assert outstanding(here) == 10 * GIB + CONTEXT_BYTES


def test_allocations_and_reservations_of_other_users_exclude_each_other() -> None:
    world = held(gpus=2)
    allocate(world, GIB)
    wish = {"id": "r", "reason": "demo", "seconds": 60.0}
    assert send(world, Reserve, gpus=("GPU-0",), **wish) is Refusal.CONFLICT
    assert "llm" in world.api.replies[-1].text
    assert send(world, Reserve, count=1, **wish) is None
    assert world.api.replies[-1].gpus == ("GPU-1",)
    more = {"id": "two", "gpu": "GPU-1", "size": GIB}
    stranger = Caller(via="unix", uid=2000, pid=9, started=9)
    assert send(world, Allocate, by=stranger, **more) is Refusal.CONFLICT
    assert send(world, Allocate, **more) is None


def test_no_stressor_starts_where_an_allocation_leaves_too_little_memory() -> None:
    world = held()
    allocate(world, 138 * GIB)
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopped))
    before = len(world.spawner.started)
    world.run_for(120.0)
    assert len(world.spawner.started) == before
    assert world.api.views["GPU-0"].rule == "allocations"
    assert send(world, CancelGrant, kind=ALLOCATION, id="llm") is None
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))


def test_a_stressor_is_restarted_larger_some_time_after_the_last_deallocation() -> None:
    world = beside_an_allocation()
    small = world.at(0).used
    assert send(world, CancelGrant, kind=ALLOCATION, id="llm") is None
    at, before = world.now, len(world.spawner.started)
    world.run(lambda: len(world.spawner.started) > before, within=REGROW_S + 5)
    assert world.now >= at + REGROW_S
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    assert world.at(0).used > small


def test_many_small_allocations_do_not_exceed_the_budget() -> None:
    world = held(replace(CALM, budget_limit=10 * GIB))
    for number in range(30):
        wish = {"id": str(number), "gpu": "GPU-0", "size": 1}
        assert send(world, Allocate, **wish) is None
    here = world.gpu_state()
    assert outstanding(here) == CONTEXT_BYTES + 30
    assert allocated_processes(here, (process(5000, 3 * GIB, started=70),)) == {}


def test_a_hand_over_beside_an_allocated_process_ends_when_the_stressors_memory_is_back() -> None:
    world = beside_an_allocation()
    world.at(0).unlisted = 9 * 2**20  # driver overhead of a context, listed for no process
    world.at(0).foreign = [process(5000, 30 * GIB, started=70)]
    world.run_for(1.0)
    world.at(0).foreign.append(process(7000, GIB, parent=1))
    world.run(lambda: world.events("gpu.handed_over"), within=2.0)
    (event,) = world.events("gpu.handed_over")
    assert event.fields["memory_back_s"] is not None
    assert not world.events("gpu.memory_leaked")


def test_a_gpu_with_allocations_does_not_count_as_left_idle() -> None:
    world = World(gpus=2, config=replace(CALM, leave_idle=1), with_api=True)
    world.run(lambda: world.events("stressor.ready"))
    free = next(i for i in (0, 1) if world.at(i).child is None)
    allocate(world, GIB, gpu=f"GPU-{free}")
    world.run(lambda: all(world.at(i).child is None for i in (0, 1)), within=10.0)


# --- which processes are allocated -----------------------------------------------------------


def gpu_state(*sizes: int, by: Caller = ME) -> GpuState:
    allocations = {
        str(number): Allocation(id=str(number), gpu="GPU-0", size=size, by=by, since=0.0)
        for number, size in enumerate(sizes)
    }
    return GpuState(gpu=GPU, allocations=allocations)


@pytest.mark.parametrize(
    ("one", "is_allocated"),
    [
        (process(5000, GIB, started=70), True),
        (process(5000, GIB, started=71), False),  # a reused PID
        (process(6000, GIB, parent=5000, started=90), True),
        (process(6000, GIB, parent=5000, started=60), False),  # older than its ancestor
        (process(6000, None, parent=5000), False),
        (GpuProcess(pid=5000, memory=GIB), False),  # not in /proc
    ],
)
def test_which_processes_are_allocated(one: GpuProcess, *, is_allocated: bool) -> None:
    assert (one.pid in allocated_processes(gpu_state(GIB), (one,))) is is_allocated


@given(
    sizes=st.lists(st.integers(1, 40), max_size=3),
    amounts=st.lists(st.integers(0, 60), max_size=4),
)
def test_allocated_processes_never_hold_more_than_their_allocations(
    sizes: list[int], amounts: list[int]
) -> None:
    here = gpu_state(*(size * GIB for size in sizes))
    processes = tuple(
        process(6000 + number, amount * GIB, parent=5000) for number, amount in enumerate(amounts)
    )
    found = allocated_processes(here, processes)
    held_bytes = sum(
        max(0, (one.memory or 0) - CONTEXT_ALLOWANCE_BYTES) for one in processes if one.pid in found
    )
    most = sum(size * GIB for size in sizes) + (CONTEXT_BYTES if sizes else 0)
    assert held_bytes <= most
    memory = Memory(total=140 * GIB, used=0, free=0)
    seen = Reading(uuid="GPU-0", at=0.0, memory=memory, processes=processes)
    assert outstanding(attributed(here, seen)) == most - held_bytes
