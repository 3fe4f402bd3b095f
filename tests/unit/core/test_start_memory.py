"""What a start explains of the used memory, by what it announced and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.core import start_memory
from sentinel.core.attribution import CONTEXT_BYTES, SLACK_BYTES
from sentinel.core.child_facts import fold
from sentinel.core.gpu_state import (
    Attribution,
    EvidenceKind,
    GpuState,
    Idle,
    Launch,
    Running,
    Starting,
    StopCause,
    Stopping,
)
from sentinel.core.newcomer import expect, held_since, limit_memory, newcomer
from sentinel.core.observation import ChildFacts, Observation
from sentinel.core.start_memory import LIBRARY_BYTES, VALID_S
from sentinel.core.step import Send
from sentinel.protocol.commands import Caller
from sentinel.protocol.gpu import Gpu, Memory, Reading
from sentinel.protocol.stressor import (
    LARGE_BUFFER_BYTES,
    Announcement,
    CreatingContext,
    MemoryContention,
    MemoryLimit,
    MemoryTarget,
    Ready,
    StartStage,
    size_in_chunks,
)
from sentinel.protocol.views import Allocation
from tests.harness.narrowing import not_none
from tests.harness.world.gpus import fake_gpu

GIB, MIB = 2**30, 2**20
TOTAL, BASELINE = 140 * GIB, 500 * MIB
#: The used memory of a stressor that keeps still, and what it takes then.
QUIET, TAKEN = 2 * GIB, 120 * GIB
CONFIG = Config(memory=MemoryTarget(share=0.88))
NOW = 100.0
GPU: Gpu = fake_gpu(0)
NOTHING = Attribution()


def reading(used: int, at: float = NOW) -> Reading:
    memory = Memory(total=TOTAL, used=used, free=TOTAL - used)
    return Reading(uuid=GPU.uuid, at=at, memory=memory, processes=(), processes_at=at)


def gpu(starting: Starting | Running, attribution: Attribution = NOTHING) -> GpuState:
    launch = Launch(
        at=NOW - 10.0,
        baseline=BASELINE,
        most=start_memory.most_memory(reading(BASELINE), CONFIG),
    )
    return GpuState(
        gpu=GPU,
        generation=1,
        occupancy=Idle(since=0.0),
        attribution=attribution,
        stressor=starting,
        launch=launch,
    )


def announced(
    stage: StartStage, used: int | None = None, more: int = 0, at: float = NOW
) -> Starting:
    starting = Starting(since=NOW - 10.0, attaching=NOW - 5.0)
    return start_memory.begin_stage(starting, Announcement(stage=stage, used=used, more=more), at)


ATTACHING = Starting(since=NOW - 10.0, attaching=NOW - 5.0)
REHEARSING = announced(StartStage.REHEARSING, more=GIB)
TAKING = announced(StartStage.TAKING, QUIET, TAKEN)
PREPARING = announced(StartStage.PREPARING, QUIET + TAKEN)
OWN = announced(StartStage.PREPARING, more=LIBRARY_BYTES)


@pytest.mark.parametrize(
    ("starting", "explains"),
    [
        (Starting(since=NOW - 10.0), BASELINE),
        (ATTACHING, BASELINE + CONTEXT_BYTES),
        (REHEARSING, BASELINE + CONTEXT_BYTES + GIB),
        (TAKING, QUIET + TAKEN),
        (PREPARING, QUIET + TAKEN),
    ],
)
def test_growth_beyond_what_a_stage_explains_is_a_newcomer(
    starting: Starting, explains: int
) -> None:
    state = gpu(starting)
    assert newcomer(state, reading(explains + SLACK_BYTES), NOW, CONFIG) is None
    evidence = not_none(newcomer(state, reading(explains + SLACK_BYTES + 1), NOW, CONFIG))
    assert (evidence.kind, evidence.grown) == (EvidenceKind.MEMORY, SLACK_BYTES + 1)


def test_an_own_workload_that_prepares_may_take_what_it_likes() -> None:
    assert newcomer(gpu(OWN), reading(TOTAL), NOW, CONFIG) is None


@pytest.mark.parametrize("starting", [ATTACHING, REHEARSING, TAKING, PREPARING])
def test_growth_beside_processes_that_may_grow_is_judged_by_the_list(starting: Starting) -> None:
    state = gpu(starting, attribution=Attribution(may_grow=True))
    assert newcomer(state, reading(TOTAL), NOW, CONFIG) is None


def test_an_announcement_explains_no_more_than_the_target_and_what_is_beside_it() -> None:
    state = gpu(announced(StartStage.TAKING, QUIET, 10 * TOTAL))
    most = BASELINE + int((TOTAL - BASELINE) * 0.88) + LARGE_BUFFER_BYTES
    most += CONTEXT_BYTES + LIBRARY_BYTES
    assert newcomer(state, reading(most + SLACK_BYTES), NOW, CONFIG) is None
    assert newcomer(state, reading(most + SLACK_BYTES + 1), NOW, CONFIG) is not None
    lying = gpu(announced(StartStage.PREPARING, 10 * TOTAL))
    assert newcomer(lying, reading(most + SLACK_BYTES + 1), NOW, CONFIG) is not None


def test_an_announcement_expires_and_what_was_seen_until_then_stays_explained() -> None:
    state, seen = gpu(TAKING), QUIET + 50 * GIB
    state = expect(state, reading(seen, NOW + 1.0), NOW + 1.0)
    late = NOW + VALID_S + 0.1
    state = expect(state, reading(seen + GIB, late), late)
    assert newcomer(state, reading(seen + SLACK_BYTES, late), late, CONFIG) is None
    assert newcomer(state, reading(seen + SLACK_BYTES + 1, late), late, CONFIG) is not None


@pytest.mark.parametrize("stage", [StartStage.REHEARSING, StartStage.TAKING])
def test_an_announcement_that_is_sent_again_expires_as_the_first_does(stage: StartStage) -> None:
    """The code of a workload can send one all the time."""
    state, late = gpu(TAKING), NOW + VALID_S + 0.1
    for now in (NOW + 1.0, late - 0.05, late):
        again = Announcement(stage=stage, used=TOTAL, more=TOTAL)
        state = fold(state, ChildFacts(generation=1, messages=(again,)), now).state
        seen = reading(QUIET + SLACK_BYTES + 1, now - 0.01)
    assert newcomer(state, seen, late, CONFIG) is not None


def test_a_rehearsal_may_announce_that_it_takes_more() -> None:
    more = Announcement(stage=StartStage.REHEARSING, more=3 * GIB)
    state = fold(gpu(REHEARSING), ChildFacts(generation=1, messages=(more,)), NOW).state
    explains = BASELINE + CONTEXT_BYTES + 3 * GIB
    assert newcomer(state, reading(explains + SLACK_BYTES), NOW, CONFIG) is None
    assert newcomer(state, reading(explains + SLACK_BYTES + 1), NOW, CONFIG) is not None


def test_a_context_begins_once() -> None:
    """From then on the GPU must be watched; its beginning is no news later."""
    message = CreatingContext(torch="2.9")
    state = fold(gpu(REHEARSING), ChildFacts(generation=1, messages=(message,)), NOW).state
    assert held_since(state) == NOW - 5.0


def test_a_reading_from_before_the_announcement_explains_nothing_later() -> None:
    """A rehearsal has given its memory back by then."""
    state = expect(gpu(TAKING), reading(QUIET + 5 * GIB, NOW - 0.1), NOW)
    late = NOW + VALID_S + 0.1
    assert newcomer(state, reading(QUIET + GIB, late), late, CONFIG) is not None


# --- Ready ------------------------------------------------------------------------------------

READY = Ready(held=TAKEN, asked=TAKEN, chunks=240, refused=False)


def ready(starting: Starting) -> GpuState:
    facts = ChildFacts(generation=1, messages=(READY,))
    return fold(gpu(starting), facts, NOW).state


def test_a_newcomer_between_ready_and_the_first_reading_after_it_is_seen() -> None:
    state, grown = ready(PREPARING), QUIET + TAKEN + SLACK_BYTES + 1
    state = expect(state, reading(grown, NOW + 0.01), NOW + 0.01)
    assert isinstance(state.stressor, Running)
    assert state.stressor.expected is None, "its memory would be expected from now on"
    assert newcomer(state, reading(grown, NOW + 0.01), NOW + 0.01, CONFIG) is not None


def test_what_was_announced_is_expected_after_ready() -> None:
    state = expect(ready(PREPARING), reading(QUIET + TAKEN, NOW + 0.01), NOW + 0.01)
    assert isinstance(state.stressor, Running)
    assert state.stressor.expected == QUIET + TAKEN
    assert newcomer(state, reading(QUIET + TAKEN, NOW + 0.01), NOW + 0.01, CONFIG) is None


@pytest.mark.parametrize("starting", [OWN, TAKING, ATTACHING])
def test_the_first_reading_after_ready_counts_where_nothing_exact_was_announced(
    starting: Starting,
) -> None:
    state = expect(ready(starting), reading(TOTAL - GIB, NOW + 0.01), NOW + 0.01)
    assert isinstance(state.stressor, Running)
    assert state.stressor.expected == TOTAL - GIB


def test_an_allocation_that_is_taken_at_ready_is_no_newcomer() -> None:
    by = Caller(via="unix", uid=1, pid=5000, started=70)
    allocation = Allocation(id="llm", gpu=GPU.uuid, size=4 * GIB, by=by, since=NOW)
    state = replace(ready(PREPARING), allocations={"llm": allocation})
    granted = QUIET + TAKEN + 4 * GIB
    assert newcomer(state, reading(granted, NOW + 0.01), NOW + 0.01, CONFIG) is None
    more = reading(granted + CONTEXT_BYTES + 2 * SLACK_BYTES, NOW + 0.01)
    assert newcomer(state, more, NOW + 0.01, CONFIG) is not None


# --- what the child and the supervisor tell each other ------------------------------------------


def test_a_stressor_that_kills_itself_in_its_start_has_yielded() -> None:
    message = MemoryContention(grown=20 * MIB, at=NOW - 0.01, took=0.001, killed_at=NOW - 0.005)
    step = fold(gpu(TAKING), ChildFacts(generation=1, messages=(message,)), NOW)
    stopping = step.state.stressor
    assert isinstance(stopping, Stopping)
    assert (stopping.cause, stopping.killed_at) == (StopCause.YIELD, NOW - 0.005)
    assert [event.name for event in step.events] == ["gpu.yielding"]


def test_a_yield_of_which_only_the_end_is_known_has_no_time_before_it() -> None:
    message = MemoryContention(grown=20 * MIB, killed_at=NOW - 0.005)
    step = fold(gpu(TAKING), ChildFacts(generation=1, messages=(message,)), NOW)
    assert step.events[0].fields["evidence_at"] == NOW - 0.005


def test_a_starting_stressor_is_told_once_that_others_may_grow() -> None:
    seen = Observation(now=NOW, readings={})
    assert not limit_memory(gpu(TAKING), seen, CONFIG).actions
    state = gpu(TAKING, attribution=Attribution(may_grow=True))
    step = limit_memory(state, seen, CONFIG)
    (action,) = step.actions
    assert isinstance(action, Send)
    assert action.message == MemoryLimit(used=None)
    assert not limit_memory(step.state, seen, CONFIG).actions


def test_a_stressor_that_is_ready_is_told_that_others_may_grow_even_if_none_could_before() -> None:
    seen = Observation(now=NOW, readings={})
    assert not limit_memory(ready(PREPARING), seen, CONFIG).actions, "that of the start holds"
    state = replace(ready(PREPARING), attribution=Attribution(may_grow=True))
    step = limit_memory(state, seen, CONFIG)
    assert [one.message for one in step.actions if isinstance(one, Send)] == [
        MemoryLimit(used=None)
    ]
    assert not limit_memory(step.state, seen, CONFIG).actions


@pytest.mark.parametrize(("at", "since"), [(NOW - 0.5, NOW - 0.5), (0.0, NOW)])
def test_what_a_starting_stressor_saw_is_evidence_from_when_it_saw_it(
    at: float, since: float
) -> None:
    message = MemoryContention(grown=MIB // 2, at=at, took=0.001)
    state = fold(gpu(TAKING), ChildFacts(generation=1, messages=(message,)), NOW).state
    evidence = not_none(newcomer(state, reading(QUIET), NOW, CONFIG))
    assert (evidence.at, evidence.grown) == (since, MIB // 2)


def test_a_reading_from_before_an_announcement_is_not_judged_by_it() -> None:
    """The rehearsal took more than the chunks will."""
    small = gpu(announced(StartStage.TAKING, QUIET, 64 * MIB))
    assert newcomer(small, reading(QUIET + GIB, NOW - 0.01), NOW, CONFIG) is None
    assert newcomer(small, reading(QUIET + GIB, NOW), NOW, CONFIG) is not None


# --- properties ---------------------------------------------------------------------------------

sizes = st.integers(0, TOTAL)


@given(
    stage=st.sampled_from(StartStage),
    said=st.none() | sizes,
    more=st.integers(0, 4 * TOTAL),
    used=sizes,
    age=st.floats(0.0, 10.0),
)
def test_nothing_that_is_announced_hides_memory_beyond_the_most(
    stage: StartStage, said: int | None, more: int, used: int, age: float
) -> None:
    state = gpu(announced(stage, said, more))
    known = start_memory.explained(state, state.stressor, NOW + age)  # type: ignore[arg-type]
    assert known is None or known <= state.launch.most
    if known is not None and used > known + SLACK_BYTES:
        assert newcomer(state, reading(used, NOW + age), NOW + age, CONFIG) is not None


@given(taken=st.integers(0, TAKEN // (512 * MIB)), growth=st.integers(SLACK_BYTES + 1, 8 * GIB))
def test_an_exact_stage_hides_no_newcomer(taken: int, growth: int) -> None:
    """Once all chunks are taken, and before the first."""
    held = QUIET + taken * 512 * MIB
    state = gpu(announced(StartStage.PREPARING, held))
    assert newcomer(state, reading(held + growth), NOW, CONFIG) is not None
    state = gpu(announced(StartStage.TAKING, held, 0))
    assert newcomer(state, reading(held + growth), NOW, CONFIG) is not None


@given(asked=st.integers(1, TOTAL), chunk=st.integers(MIB, 4 * GIB))
def test_chunks_take_no_more_than_was_computed(asked: int, chunk: int) -> None:
    """A model of torch's allocator: small pieces share 20 MiB, large ones are rounded up."""
    count, rest = divmod(asked, chunk)
    if chunk < 10 * MIB:
        segments = -(-count // (20 * MIB // chunk))
        taken = segments * 20 * MIB
    else:
        taken = count * (-(-chunk // (2 * MIB)) * 2 * MIB)
    taken += rest - rest % (2 * MIB) if rest >= 10 * MIB else 0
    assert taken <= size_in_chunks(asked, chunk)


def test_the_target_of_a_size_counts_as_far_as_it_is_free() -> None:
    config = replace(CONFIG, memory=MemoryTarget(size=10 * GIB))
    most = start_memory.most_memory(reading(BASELINE), config)
    beside = CONTEXT_BYTES + LIBRARY_BYTES + LARGE_BUFFER_BYTES
    assert most == BASELINE + 10 * GIB + beside
