"""The queue of reservations: each GPU goes to the first request that can use it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.core.decide import first_state
from sentinel.core.gpu_state import Busy, Idle
from sentinel.core.node import commands, grants, reservation_queue
from sentinel.core.node.grants import QUEUE
from sentinel.core.node.reservation_queue import choose
from sentinel.core.observation import ApiFacts, Observation
from sentinel.core.state import State, reservation_of
from sentinel.core.step import SendTo, Step, chain
from sentinel.protocol.commands import (
    LEASE_S,
    Caller,
    CancelGrant,
    CommandReply,
    Extend,
    GrantKind,
    Level,
    Refusal,
    Reserve,
)
from sentinel.protocol.events import Event
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.views import Reservation
from tests.harness.world import World

RESERVATION = GrantKind.RESERVATION
ALICE = Caller(via="unix", uid=1001, pid=4711, started=99, level=Level.OPERATE)
BOB = Caller(via="unix", uid=1002, pid=4712, started=98, level=Level.OPERATE)
API = Caller(via="sentinel", level=Level.OWN)
GPUS = tuple(
    Gpu(uuid=f"GPU-{i}", index=i, name="H200", pci_bus_id=f"{i}", memory_total=1) for i in range(4)
)


@dataclass
class Node:
    """GPUs without stressors, the queue, and a clock."""

    state: State = field(default_factory=lambda: first_state(GPUS, 0.0, Config()))
    now: float = 0.0
    due: float = 0.0
    events: tuple[Event, ...] = ()
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        for index in range(len(GPUS)):
            self.set_busy(index, busy=False)

    def set_busy(self, index: int, *, busy: bool) -> None:
        gpu_state = self.state.gpu_states[f"GPU-{index}"]
        occupancy = Busy(rule="foreign", reason="in use by others") if busy else Idle(since=0.0)
        gpu_state = replace(gpu_state, occupancy=occupancy)
        self.state = self.state.with_gpu_states(
            {**self.state.gpu_states, f"GPU-{index}": gpu_state}
        )

    def apply(self, command: Reserve | Extend | CancelGrant) -> CommandReply:
        facts = ApiFacts(generation=1, commands=(command,))
        step = commands.apply(self.state, Observation(now=self.now, api=facts))
        self.state, self.events = step.state, step.events
        (reply,) = step.actions
        assert isinstance(reply, SendTo)
        assert isinstance(reply.message, CommandReply)
        return reply.message

    def reserve(
        self, id_: str, *, gpus: tuple[int, ...] = (), by: Caller = ALICE, **wish: Any
    ) -> CommandReply:
        named = tuple(f"GPU-{index}" for index in gpus)
        wish = {"reason": "", "wait": True, **wish}
        return self.apply(Reserve(number=next(self.numbers), by=by, id=id_, gpus=named, **wish))

    def extend(self, id_: str, *, kept: bool = False, by: Caller = ALICE) -> CommandReply:
        number = next(self.numbers)
        return self.apply(Extend(number=number, by=by, kind=RESERVATION, id=id_, kept=kept))

    def leave(self, id_: str, by: Caller = API, *, gives_up: bool = False) -> CommandReply:
        number = next(self.numbers)
        return self.apply(
            CancelGrant(number=number, by=by, kind=RESERVATION, id=id_, gives_up=gives_up)
        )

    def step(self, seconds: float = 0.0) -> list[str]:
        """Serve the queue after some seconds; return the names of the events."""
        self.now += seconds
        rules = grants.expire, grants.serve
        step = chain(Step(self.state), rules, Observation(now=self.now))
        self.state, self.due = step.state, step.due
        return [event.name for event in step.events]

    @property
    def waiting(self) -> list[str]:
        return [
            reservation.id
            for reservation in self.state.reservations.values()
            if not reservation.gpus
        ]

    def holds(self, id_: str) -> list[int]:
        held = self.state.reservations.get(id_)
        return [] if held is None else sorted(int(uuid[-1]) for uuid in held.gpus)


def busy_node() -> Node:
    node = Node()
    for index in range(len(GPUS)):
        node.set_busy(index, busy=True)
    return node


def test_requests_are_served_in_the_order_in_which_they_came() -> None:
    node = busy_node()
    first = node.reserve("a", count=1)
    assert (first.refused, first.gpus) == (None, ())
    why = "GPUs 0-3 are in use"
    assert first.text.startswith(f"waits at place 1: {why}")
    (queued,) = node.events
    assert (queued.name, queued.fields["place"]) == ("reservation.queued", 1)
    assert node.reserve("b", count=1, by=BOB).text.startswith("waits at place 2")
    assert node.step(5.0) == []
    node.set_busy(2, busy=False)
    assert node.step(5.0) == ["gpu.reserved"]
    assert (node.holds("a"), node.waiting) == ([2], ["b"])
    assert node.step() == []


def test_an_answer_names_gpus_with_the_same_reason_together() -> None:
    node = busy_node()
    every = "GPUs 0-3 are in use by others"
    assert node.reserve("a", count=1, wait=False).text == every
    node.set_busy(1, busy=False)
    node.reserve("one", gpus=(1,))
    mixed = node.reserve("b", count=1, wait=False).text
    assert mixed == "GPUs 0, 2-3 are in use by others; GPU 1 is reserved by user 1001 (one)"


@pytest.mark.parametrize(
    ("wish", "end"),
    [
        ({"seconds": None}, ""),
        ({"seconds": 600.0, "reason": "demo"}, " for 10 min more: demo"),
        ({"bound": True}, " until PID 4711 ends"),
    ],
)
def test_an_answer_says_by_whom_and_how_long_a_gpu_is_reserved(
    wish: dict[str, Any], end: str
) -> None:
    node = busy_node()
    node.set_busy(1, busy=False)
    node.reserve("one", gpus=(1,), **wish)
    refused = node.reserve("b", gpus=(1,), wait=False).text
    assert refused == f"GPU 1 is reserved by user 1001{end} (one)"
    node.reserve("late", gpus=(1,))
    assert node.leave("late", gives_up=True).text == refused


def test_an_answer_has_at_most_four_reasons() -> None:
    state = Node().state
    first = state.gpu_states["GPU-0"]
    taken = {
        f"GPU-{index}": replace(
            first,
            gpu=replace(first.gpu, uuid=f"GPU-{index}", index=index),
            occupancy=Busy(rule="foreign", reason=f"R{index}"),
        )
        for index in range(9)
    }
    request = Reservation(id="a", count=9, reason="", by=ALICE, since=0.0)
    gpus, why = choose(state.with_gpu_states(taken), request, {}, 0.0)
    assert gpus == ()
    listed = "; ".join(f"GPU {index} is R{index}" for index in range(4))
    assert why == f"{listed}; and 5 more, GPUs 4-8"


def test_a_large_request_is_not_passed_by_smaller_ones() -> None:
    node = busy_node()
    node.reserve("large", count=3)
    node.reserve("small", count=1)
    for index in (0, 1):
        node.set_busy(index, busy=False)
        assert node.step() == []
    late = node.reserve("late", count=1, wait=False)
    assert late.refused is Refusal.CONFLICT
    assert "GPUs 0-1 are for an earlier request (large)" in late.text
    node.set_busy(3, busy=False)
    node.step()
    assert (node.holds("large"), node.waiting) == ([0, 1, 3], ["small"])


def test_a_request_that_no_earlier_one_can_be_delayed_by_is_served_at_once() -> None:
    node = busy_node()
    node.reserve("two", gpus=(0, 1))
    node.set_busy(0, busy=False)
    node.set_busy(3, busy=False)
    assert node.step() == []
    assert node.reserve("other", count=1).gpus == ("GPU-3",)
    refused = node.reserve("same", gpus=(0,), wait=False)
    assert refused.refused is Refusal.CONFLICT
    node.set_busy(1, busy=False)
    node.step()
    assert node.holds("two") == [0, 1]


def test_a_number_of_named_gpus_waits_for_these_alone() -> None:
    node = busy_node()
    first = node.reserve("a", gpus=(1, 2, 3), count=2)
    why = "GPUs 1-3 are in use by others"
    assert first.text == f"waits at place 1: {why}"
    node.set_busy(0, busy=False)
    assert node.reserve("b", count=1, by=BOB).gpus == ("GPU-0",), "a does not need it"
    node.set_busy(3, busy=False)
    assert node.step() == []
    assert node.reserve("c", gpus=(3,), wait=False).refused is Refusal.CONFLICT
    node.set_busy(1, busy=False)
    node.step()
    assert node.holds("a") == [1, 3]


@pytest.mark.parametrize(
    ("wish", "kind", "why"),
    [
        ({"gpus": (0, 1), "count": 3}, Refusal.NO_SUCH_GPU, "3 GPUs requested; 2 named"),
        ({"gpus": (0,), "count": 2}, Refusal.NO_SUCH_GPU, "2 GPUs requested; 1 named"),
        ({"count": 5}, Refusal.NO_SUCH_GPU, "5 GPUs requested; the daemon has 4"),
        ({}, Refusal.INVALID, "name GPUs, or their number"),
        ({"gpus": (0,), "count": -1}, Refusal.INVALID, "name GPUs, or their number"),
    ],
)
def test_more_gpus_than_there_are_to_choose_from_never_wait(
    wish: dict[str, Any], kind: Refusal, why: str
) -> None:
    node = busy_node()
    refused = node.reserve("a", **wish)
    assert (refused.refused, refused.text, node.waiting) == (kind, why, [])


def test_a_client_that_gives_up_is_told_what_it_waited_for() -> None:
    node = busy_node()
    node.reserve("large", count=2)
    node.set_busy(0, busy=False)
    left = node.leave("large", gives_up=True)
    assert left.text == "only 1 of 2 GPUs can be reserved: GPUs 1-3 are in use by others"
    assert node.waiting == []


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("used by foreign processes", "GPU 0 is used by foreign processes"),
        ("memory is still in use by no process", "GPU 0: memory is still in use by no process"),
        ("MIG is enabled", "GPU 0: MIG is enabled"),
    ],
)
def test_the_reason_of_a_busy_gpu_makes_a_sentence(reason: str, text: str) -> None:
    node = busy_node()
    busy = Busy(rule="leak", reason=reason)
    gpu_state = replace(node.state.gpu_states["GPU-0"], occupancy=busy)
    node.state = node.state.with_gpu(gpu_state)
    assert node.reserve("a", gpus=(0,), wait=False).text == text


def test_a_client_that_leaves_makes_room_for_the_next() -> None:
    node = busy_node()
    node.reserve("large", count=2)
    node.reserve("small", count=1, by=BOB)
    node.set_busy(0, busy=False)
    assert node.step(2.0) == []
    assert node.leave("large", by=BOB).refused is Refusal.FORBIDDEN
    assert node.leave("large").text == "request large has ended"
    assert [(event.name, event.fields["waited_s"]) for event in node.events] == [
        ("reservation.left", 2.0)
    ]
    node.step()
    assert node.holds("small") == [0]
    node.leave("small")
    assert not node.state.reservations


def test_a_request_keeps_its_place_and_its_gpus_for_a_lease() -> None:
    node = busy_node()
    node.reserve("a", count=1)
    node.reserve("b", count=1, by=BOB)
    assert node.step(LEASE_S - 1.0) == []
    assert node.reserve("b", count=1, by=BOB).text == "waits at place 2", "sent again"
    assert node.extend("a").refused is None, "by the API process, while its client waits"
    assert node.extend("a", kept=True).refused is Refusal.NOT_FOUND, "it has no GPU yet"
    node.set_busy(0, busy=False)
    assert node.step(1.0) == ["gpu.reserved"]
    again = node.reserve("a", count=1)
    assert (again.text, again.gpus, node.events) == ("reserved GPU 0", ("GPU-0",), ())
    assert node.step() == []
    assert node.due == 2 * LEASE_S - 1.0
    assert node.step(LEASE_S - 1.0) == ["reservation.left"], "the client of b has not returned"
    assert node.step(1.0) == ["gpu.unreserved"], "nor has the client of a"
    assert not node.state.reservations


def test_a_stored_answer_ends_the_lease() -> None:
    node = Node()
    seconds = 100.0
    node.reserve("a", count=1, seconds=seconds)
    assert node.extend("a", kept=True).refused is None
    assert node.reserve("a", count=1, seconds=seconds).gpus == ("GPU-0",), "the same answer"
    assert node.extend("a").refused is None
    assert node.step(seconds - 1.0) == []
    assert node.due == seconds
    assert node.step(1.0) == ["gpu.unreserved"]
    assert node.extend("a", kept=True).refused is Refusal.NOT_FOUND


@pytest.mark.parametrize(
    "changes",
    [
        {"by": BOB},
        {"count": 2},
        {"count": 0, "gpus": (0,)},
        {"gpus": (0, 1, 2, 3)},
        {"seconds": 1.0},
        {"reason": "another"},
        {"bound": True},
    ],
)
def test_an_id_belongs_to_one_request_of_one_user(changes: dict[str, Any]) -> None:
    node = Node()
    for wait in ("granted", "waits"):
        wish: dict[str, Any] = {"count": 1 if wait == "granted" else 4}
        node.reserve(wait, **wish)
        refused = node.reserve(wait, **{**wish, **changes})
        assert (refused.refused, refused.gpus) == (Refusal.CONFLICT, ())
        assert refused.text == f"the id {wait!r} is in use"


def test_a_lease_that_is_renewed_too_late_is_no_rejected_command_of_its_client() -> None:
    """A request gives up after 30 s, at which its lease is renewed, too."""
    node = busy_node()
    node.reserve("a", count=1)
    node.leave("a", gives_up=True)
    assert node.extend("a").refused is Refusal.NOT_FOUND
    assert node.events == ()


def test_a_bound_reservation_belongs_to_one_process() -> None:
    node = Node()
    assert node.reserve("a", count=1, bound=True).gpus
    assert node.reserve("a", count=1, bound=True).gpus
    other = replace(ALICE, pid=1)
    assert node.reserve("a", count=1, bound=True, by=other).refused is Refusal.CONFLICT
    assert node.reserve("b", count=1).gpus
    assert node.reserve("b", count=1, by=other).gpus, "only a bound one depends on the process"


def test_operators_leave_room_in_the_queue_for_others_and_for_administrators() -> None:
    node = busy_node()
    share = QUEUE.share

    def wait_as(uid: int, level: Level, number: int) -> list[CommandReply]:
        by = Caller(via="unix", uid=uid, user=f"user{uid}", level=level)
        replies = [node.reserve(f"{uid}-{nth}", count=1, by=by) for nth in range(number)]
        return [reply for reply in replies if reply.refused is not None]

    for uid in (1001, 1002, 1003):
        (full,) = wait_as(uid, Level.OPERATE, share + 1)
        assert full.refused is Refusal.CONFLICT
        assert f"user{uid} has {share} requests in the queue, and each user has at" in full.text
        assert "their users and administrators can end some" in full.text
        assert full.text.endswith("; GPUs 0-3 are in use by others")
    (full,) = wait_as(1004, Level.OPERATE, 5)
    assert full.text.startswith("36 of 48 places for further requests in the queue are taken, and")
    assert wait_as(1005, Level.OPERATE, 1) == [], "each user's first request waits"
    assert wait_as(1006, Level.ADMINISTER, 7) == []
    assert len(wait_as(0, Level.OWN, 8)) == 1
    assert len(node.waiting) == QUEUE.total + 7


def test_the_supervisor_grants_in_the_tick_in_which_a_reservation_ends() -> None:
    world = World(gpus=1, with_api=True)
    world.run(lambda: world.events("stressor.ready"))

    def send(command: type, **fields: object) -> None:
        world.api.post(command, **fields)
        world.supervisor.turn()

    def waiting() -> list[str]:
        assert world.api.host is not None
        return [
            reservation.id for reservation in world.api.host.reservations if not reservation.gpus
        ]

    send(Reserve, id="a", reason="", count=1)
    send(Reserve, id="b", reason="next", count=1, wait=True)
    assert waiting() == ["b"]
    send(CancelGrant, kind=RESERVATION, id="a")
    assert set(world.state.reservations) == {"b"}
    assert waiting() == []
    assert "waited_s" in world.events("gpu.reserved")[-1].fields


def test_a_full_queue_reads_each_gpu_once_in_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick comes before each newcomer, and a wait may have no end."""
    node = busy_node()
    for number in range(QUEUE.total):
        owner = replace(ALICE, uid=number)
        node.reserve(f"r{number}", count=1, by=replace(owner, level=Level.OWN))
    assert len(node.waiting) == QUEUE.total
    reads: list[str] = []

    def count(state: State, uuid: str) -> Reservation | None:
        reads.append(uuid)
        return reservation_of(state, uuid)

    monkeypatch.setattr(reservation_queue, "reservation_of", count)
    node.step(1.0)
    assert sorted(reads) == [gpu.uuid for gpu in GPUS]


# --- properties ------------------------------------------------------------------------------

Wish = st.one_of(
    st.tuples(st.integers(1, 4), st.just(frozenset[int]())),
    st.frozensets(st.integers(0, 3), min_size=1).flatmap(
        lambda named: st.tuples(st.integers(0, len(named)), st.just(named))
    ),
)
Change = st.one_of(
    st.tuples(st.just("reserve"), Wish, st.booleans()),
    st.tuples(st.just("busy"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 30), st.none()),
)


def usable(wish: tuple[int, frozenset[int]]) -> set[int]:
    """List the GPUs that a request can use."""
    return set(wish[1]) or set(range(len(GPUS)))


@settings(max_examples=6 * settings().max_examples)
@given(st.lists(Change, max_size=40))
def test_no_request_is_passed_on_a_gpu_that_it_can_use(
    steps: list[tuple[str, object, object]],
) -> None:
    node = Node()
    wishes: dict[str, tuple[int, frozenset[int]]] = {}
    order: list[str] = []
    for number, (what, first, second) in enumerate(steps):
        before = set(node.state.reservations)
        ahead = list(node.waiting)
        if what == "reserve":
            id_ = f"r{number}"
            wishes[id_] = cast("tuple[int, frozenset[int]]", first)
            count, named = wishes[id_]
            node.reserve(id_, count=count, gpus=tuple(named), wait=bool(second))
            order.append(id_)
        elif what == "busy":
            node.set_busy(first, busy=bool(second))  # type: ignore[arg-type]
        elif order:
            node.leave(order[first % len(order)])  # type: ignore[operator]
        node.step(1.0)
        for id_ in set(node.state.reservations) - before:
            # Of those that came earlier and still wait, none could have used one of these GPUs.
            earlier = [one for one in ahead if one in node.waiting and one != id_]
            earlier = [one for one in earlier if order.index(one) < order.index(id_)]
            for one in earlier:
                assert not usable(wishes[one]) & set(node.holds(id_)), (one, id_)
        for id_ in node.state.reservations:
            count, held = wishes[id_][0] or len(wishes[id_][1]), node.holds(id_)
            assert len(held) in {0, count}
            assert set(held) <= usable(wishes[id_])
        taken = [gpu for id_ in node.state.reservations for gpu in node.holds(id_)]
        assert len(taken) == len(set(taken))


@pytest.mark.long
@settings(max_examples=2 * settings().max_examples)
@given(st.lists(Wish, min_size=1, max_size=12), st.data())
def test_every_request_is_served_if_gpus_become_free(
    wishes: list[tuple[int, frozenset[int]]], data: st.DataObject
) -> None:
    node = busy_node()
    for number, (count, named) in enumerate(wishes):
        node.reserve(f"r{number}", count=count, gpus=tuple(named))
    rounds = 0
    while node.waiting:
        first = node.waiting[0]
        for index in data.draw(st.permutations(range(len(GPUS)))):
            node.set_busy(index, busy=False)
            node.step(1.0)
        assert first not in node.waiting, "the first is served once all GPUs have been free"
        for id_ in list(node.state.reservations):
            node.leave(id_)
        for index in data.draw(st.frozensets(st.integers(0, 3))):
            node.set_busy(index, busy=True)
        rounds += 1
    assert rounds <= len(wishes)
