"""Memory that was promised: who may have it, what a stressor leaves, and how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.core.gpu.allocations import (
    CONTEXT_ALLOWANCE_BYTES,
    CONTEXT_BYTES,
    REGROW_S,
    SETTLE_S,
    allocated_processes,
    outstanding,
)
from sentinel.core.gpu_state import GpuState
from sentinel.core.stressor_state import Running, Stopped
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Allocate, Confirm, Deallocate, Refusal, Reserve
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Reading
from sentinel.protocol.views import Allocation
from sentinel.supervisor.loop import Supervisor
from sentinel.testing import GIB, World
from tests.harness.core_scenarios import attributed, occupied, stressor

ME = Caller(via="unix", uid=1000, pid=5000, started=70)
GPU = Gpu(uuid="GPU-0", index=0, name="Fake", pci_bus_id="0", memory_total=140 * GIB)
CALM = Config(rearm=1.0)


def held(config: Config = CALM, gpus: int = 1) -> tuple[World, Supervisor]:
    """Return a world that serves, in which a stressor runs on every GPU."""
    world = World(gpus=gpus)
    supervisor = world.supervisor(config, with_api=True)
    world.run(supervisor, lambda: len(world.events("stressor.ready")) == gpus)
    world.run_for(supervisor, 0.5)
    return world, supervisor


def ask(world: World, supervisor: Supervisor, order: type, **given: object) -> Refusal | None:
    """Post an order and return how it was answered."""
    number = world.service.post(order, **{"by": ME, **given})
    supervisor.turn()
    (answer,) = [answer for answer in world.service.replies if answer.number == number]
    assert answer.text
    return answer.refused


def promise(world: World, supervisor: Supervisor, size: int = 40 * GIB, **more: object) -> None:
    fields = {"id": "llm", "gpu": "GPU-0", "size": size, **more}
    assert ask(world, supervisor, Allocate, **fields) is None
    assert ask(world, supervisor, Confirm, id="llm", allocation=True) is None


def process(pid: int, memory: int | None, parent: int = 1, started: int = 80) -> GpuProcess:
    return GpuProcess(pid=pid, memory=memory, started=started, ancestors=(parent,))


def yields(world: World) -> int:
    return len(world.events("gpu.yielding"))


def beside(world: World, supervisor: Supervisor) -> None:
    """Let the stressor that leaves what was promised begin."""
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Stopped))
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Running))
    world.run_for(supervisor, 0.5)


def test_what_is_promised_is_made_free_and_a_smaller_stressor_leaves_it() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    (released,) = world.events("gpu.released")
    assert "llm" in str(released.fields["reason"])
    beside(world, supervisor)
    place = world.at(0)
    assert place.gpu.memory_total - place.used >= 40 * GIB + CONTEXT_BYTES
    assert world.spawner.started[-1][1] >= released.at + SETTLE_S


def test_a_guest_takes_what_it_was_promised_next_to_a_running_stressor() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    child = world.at(0).child
    for memory in (13 * 2**20, 526 * 2**20, 20 * GIB, 40 * GIB + 526 * 2**20):
        world.at(0).foreign = [process(5000, memory, started=70)]
        world.run_for(supervisor, 1.0)
    assert world.at(0).child is child
    assert not yields(world)
    view = world.service.views["GPU-0"]
    assert [guest.pid for guest in view.allocated_processes] == [5000]
    assert view.memory_foreign == 40 * GIB + 526 * 2**20


def test_a_guests_children_are_guests_and_others_are_not() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    world.at(0).foreign = [process(6000, 10 * GIB, parent=5000)]
    world.run_for(supervisor, 1.0)
    assert not yields(world)
    world.at(0).foreign.append(process(7000, GIB, parent=1))
    world.run(supervisor, lambda: yields(world), within=1.0)


def test_each_child_of_a_guest_may_have_a_context_besides() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    world.at(0).foreign = [process(5000, 40 * GIB + 526 * 2**20, started=70)]
    world.run_for(supervisor, 0.5)
    for child in range(3):
        world.at(0).unlisted = 600 * 2**20  # its context, before it is listed
        world.run_for(supervisor, 0.1)
        world.at(0).unlisted = 0
        world.at(0).foreign.append(process(6000 + child, 600 * 2**20, parent=5000))
        world.run_for(supervisor, 0.5)
    assert not yields(world)


def test_memory_that_nobody_is_seen_to_hold_may_be_the_guests_but_not_more_of_it() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    world.at(0).unlisted = 40 * GIB
    world.run_for(supervisor, 0.2)
    assert not yields(world)
    world.at(0).unlisted = 42 * GIB
    world.run(supervisor, lambda: yields(world), within=1.0)


def test_a_guest_that_comes_before_the_smaller_stressor_does_not_make_the_gpu_busy() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Stopped))
    world.at(0).unlisted = 30 * GIB
    world.run_for(supervisor, 0.2)
    world.at(0).unlisted, world.at(0).foreign = 0, [process(5000, 30 * GIB, started=70)]
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Running))
    assert not world.events("gpu.busy")


def test_a_guest_that_takes_more_than_it_was_promised_is_a_newcomer() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    world.at(0).foreign = [process(5000, 41 * GIB + CONTEXT_ALLOWANCE_BYTES + 2**21, started=70)]
    world.run(supervisor, lambda: yields(world), within=1.0)


def test_one_that_was_not_promised_anything_makes_it_yield_as_ever() -> None:
    world, supervisor = held()
    world.at(0).foreign = [process(5000, GIB, started=70)]
    world.run(supervisor, lambda: yields(world), within=1.0)


def test_nobody_is_sent_away_where_enough_is_free() -> None:
    world, supervisor = held(Config(memory=replace(CALM.memory, share=0.2), rearm=1.0))
    child = world.at(0).child
    promise(world, supervisor, 10 * GIB)
    world.run_for(supervisor, 20.0)
    assert world.at(0).child is child


def test_a_promise_is_over_when_it_is_given_back() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    world.at(0).foreign = [process(5000, GIB, started=70)]
    world.run_for(supervisor, 1.0)
    assert ask(world, supervisor, Deallocate, id="llm") is None
    world.run(supervisor, lambda: yields(world), within=1.0)
    assert world.service.host is not None
    world.run_for(supervisor, 1.0)
    assert world.service.host.allocations == ()


def test_the_sum_is_no_more_than_the_limit() -> None:
    world, supervisor = held(replace(CALM, budget_limit=50 * GIB))
    promise(world, supervisor, 30 * GIB)
    more = {"gpu": "GPU-0", "id": "two"}
    assert ask(world, supervisor, Allocate, **more, size=21 * GIB) is Refusal.CONFLICT
    assert "20.0 GiB of 50.0 GiB" in world.service.replies[-1].text
    assert ask(world, supervisor, Allocate, **more, size=20 * GIB) is None


@pytest.mark.parametrize(
    ("reserve", "kept"),
    [(2**29, CONTEXT_BYTES), (2 * GIB, 2 * GIB)],
    ids=["a context", "the reserve"],
)
def test_by_default_the_limit_is_the_memory_less_the_reserve_and_a_context(
    reserve: int, kept: int
) -> None:
    world, supervisor = held(replace(CALM, budget_reserve=reserve))
    most = 140 * GIB - kept
    wish = {"gpu": "GPU-0", "id": "llm"}
    assert ask(world, supervisor, Allocate, **wish, size=most + 1) is Refusal.CONFLICT
    assert ask(world, supervisor, Allocate, **wish, size=most) is None


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"gpu": "GPU-7"}, Refusal.NO_SUCH_GPU),
        ({"size": 0}, Refusal.INVALID),
        ({"size": -GIB}, Refusal.INVALID),
        ({"id": ""}, Refusal.INVALID),
        ({"id": "two\nlines"}, Refusal.INVALID),
        ({"id": "llm"}, Refusal.CONFLICT),
    ],
)
def test_a_bad_wish_changes_nothing(fields: dict[str, object], refusal: Refusal) -> None:
    world, supervisor = held()
    promise(world, supervisor, GIB)
    wish = {"gpu": "GPU-0", "id": "two", "size": GIB, **fields}
    assert ask(world, supervisor, Allocate, **wish) is refusal
    assert list(supervisor.state.gpu_states["GPU-0"].allocations) == ["llm"]


def test_what_nobody_is_told_of_ends_with_the_service() -> None:
    world, supervisor = held()
    promise(world, supervisor, GIB)
    wish = {"gpu": "GPU-0", "id": "two", "size": GIB}
    assert ask(world, supervisor, Allocate, **wish) is None
    world.service.exits = True
    world.run(supervisor, lambda: world.events("service.failed"))
    assert list(supervisor.state.gpu_states["GPU-0"].allocations) == ["llm"]


@pytest.mark.parametrize("by", [ME, Caller(via="tcp")], ids=["seen", "unseen"])
@pytest.mark.parametrize("hidden", [None, "another namespace"], ids=["listed", "hidden"])
def test_where_guests_cannot_be_told_from_others_the_stressor_stops(
    by: Caller, hidden: str | None
) -> None:
    world = World(hidden=hidden)
    supervisor = world.supervisor(CALM, with_api=True)
    world.run(supervisor, lambda: world.events("stressor.ready"))
    world.run_for(supervisor, 1.0)
    promise(world, supervisor, GIB, by=by)
    world.run_for(supervisor, 30.0)
    stays = isinstance(stressor(supervisor), Running)
    assert stays is (by is ME and hidden is None)
    assert ask(world, supervisor, Deallocate, id="llm") is None
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Running))


def test_our_own_stressor_is_nobodys_guest_though_a_holder_may_have_started_us() -> None:
    """A shell that starts sentinel and then asks for memory is above all that sentinel starts."""
    world, supervisor = held()
    child = world.at(0).child
    assert child is not None
    by = Caller(via="unix", uid=1000, pid=1, started=1)
    ours = GpuProcess(pid=child.pid, memory=9 * GIB, started=child.pid, ancestors=(50, 1))
    promise(world, supervisor, 10 * GIB, by=by)
    here = supervisor.state.gpu_states["GPU-0"]
    memory = Memory(total=140 * GIB, used=9 * GIB, free=131 * GIB)
    seen = Reading(uuid="GPU-0", at=world.now, memory=memory, processes=(ours,))
    here = attributed(here, seen)
    assert here.attribution.own == (ours,)
    assert here.attribution.allocated == {}
    assert outstanding(here) == 10 * GIB + CONTEXT_BYTES


def test_a_gpu_with_guests_is_nobodys_to_reserve_and_a_reserved_one_no_strangers() -> None:
    world, supervisor = held(gpus=2)
    promise(world, supervisor, GIB)
    wish = {"id": "r", "reason": "demo", "seconds": 60.0}
    assert ask(world, supervisor, Reserve, gpus=("GPU-0",), **wish) is Refusal.CONFLICT
    assert "llm" in world.service.replies[-1].text
    assert ask(world, supervisor, Reserve, count=1, **wish) is None
    assert world.service.replies[-1].gpus == ("GPU-1",)
    more = {"id": "two", "gpu": "GPU-1", "size": GIB}
    stranger = Caller(via="unix", uid=2000, pid=9, started=9)
    assert ask(world, supervisor, Allocate, by=stranger, **more) is Refusal.CONFLICT
    assert ask(world, supervisor, Allocate, **more) is None


def test_what_is_left_beside_a_large_promise_is_not_for_a_stressor() -> None:
    world, supervisor = held()
    promise(world, supervisor, 138 * GIB)
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Stopped))
    before = len(world.spawner.started)
    world.run_for(supervisor, 120.0)
    assert len(world.spawner.started) == before
    assert world.service.views["GPU-0"].rule == "allocations"
    assert ask(world, supervisor, Deallocate, id="llm") is None
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Running))


def test_a_stressor_grows_again_some_time_after_the_last_promise_was_given_back() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    small = world.at(0).used
    assert ask(world, supervisor, Deallocate, id="llm") is None
    at, before = world.now, len(world.spawner.started)
    world.run(supervisor, lambda: len(world.spawner.started) > before, within=REGROW_S + 5)
    assert world.now >= at + REGROW_S
    world.run(supervisor, lambda: isinstance(stressor(supervisor), Running))
    assert world.at(0).used > small


def test_many_small_promises_are_no_way_around_the_limit() -> None:
    world, supervisor = held(replace(CALM, budget_limit=10 * GIB))
    for number in range(50):
        wish = {"id": str(number), "gpu": "GPU-0", "size": 1}
        assert ask(world, supervisor, Allocate, **wish) is None
    here = supervisor.state.gpu_states["GPU-0"]
    assert outstanding(here) == CONTEXT_BYTES + 50
    assert allocated_processes(here, (process(5000, 3 * GIB, started=70),)) == {}


def test_there_are_no_more_promises_than_can_be_shown_at_once() -> None:
    world, supervisor = held(gpus=2)
    refusals = [
        ask(world, supervisor, Allocate, id=str(number), gpu=f"GPU-{number % 2}", size=1)
        for number in range(130)
    ]
    assert refusals == [None] * 128 + [Refusal.CONFLICT] * 2


def test_a_hand_over_beside_a_guest_is_over_as_soon_as_our_memory_is_back() -> None:
    world, supervisor = held()
    promise(world, supervisor)
    beside(world, supervisor)
    world.at(0).unlisted = 9 * 2**20  # what the driver takes for a context and names nobody for
    world.at(0).foreign = [process(5000, 30 * GIB, started=70)]
    world.run_for(supervisor, 1.0)
    world.at(0).foreign.append(process(7000, GIB, parent=1))
    world.run(supervisor, lambda: world.events("gpu.handed_over"), within=2.0)
    (event,) = world.events("gpu.handed_over")
    assert event.fields["memory_back_s"] is not None
    assert not world.events("gpu.memory_leaked")


def test_a_gpu_with_guests_is_not_the_one_that_is_left_idle() -> None:
    world = World(gpus=2)
    supervisor = world.supervisor(replace(CALM, leave_idle=1), with_api=True)
    world.run(supervisor, lambda: world.events("stressor.ready"))
    free = next(i for i in (0, 1) if world.at(i).child is None)
    promise(world, supervisor, GIB, gpu=f"GPU-{free}")
    world.run(supervisor, lambda: all(world.at(i).child is None for i in (0, 1)), within=10.0)


# --- whose processes are whose ---------------------------------------------------------------


def gpu_state(*sizes: int, by: Caller = ME) -> GpuState:
    allocations = {
        str(number): Allocation(id=str(number), gpu="GPU-0", size=size, by=by, since=0.0)
        for number, size in enumerate(sizes)
    }
    return GpuState(gpu=GPU, allocations=allocations)


@pytest.mark.parametrize(
    ("one", "is_guest"),
    [
        (process(5000, GIB, started=70), True),
        (process(5000, GIB, started=71), False),  # another one of this number
        (process(6000, GIB, parent=5000, started=90), True),
        (process(6000, GIB, parent=5000, started=60), False),  # older than its ancestor
        (process(6000, None, parent=5000), False),
        (GpuProcess(pid=5000, memory=GIB), False),  # it is not in /proc
    ],
)
def test_who_is_a_guest(one: GpuProcess, *, is_guest: bool) -> None:
    assert (one.pid in allocated_processes(gpu_state(GIB), (one,))) is is_guest


@given(
    sizes=st.lists(st.integers(1, 40), max_size=3),
    amounts=st.lists(st.integers(0, 60), max_size=4),
)
def test_guests_never_hold_more_than_was_promised_to_them(
    sizes: list[int], amounts: list[int]
) -> None:
    here = gpu_state(*(size * GIB for size in sizes))
    processes = tuple(
        process(6000 + number, amount * GIB, parent=5000) for number, amount in enumerate(amounts)
    )
    found = allocated_processes(here, processes)
    held_by_guests = sum(
        max(0, (one.memory or 0) - CONTEXT_ALLOWANCE_BYTES) for one in processes if one.pid in found
    )
    most = sum(size * GIB for size in sizes) + (CONTEXT_BYTES if sizes else 0)
    assert held_by_guests <= most
    memory = Memory(total=140 * GIB, used=0, free=0)
    seen = Reading(uuid="GPU-0", at=0.0, memory=memory, processes=processes)
    assert outstanding(attributed(here, seen)) == most - held_by_guests


def test_occupied_worlds_promise_nothing() -> None:
    _, supervisor = occupied()
    assert outstanding(supervisor.state.gpu_states["GPU-0"]) == 0
