"""Waiting notifications are bounded, joined by event and GPU, and none is lost uncounted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sentinel.api.notifier import MAX_WAITING, Outbox
from tests.harness.narrowing import not_none

EVERY_S = 30.0


def event(name: str, gpu: str | None = None, number: int = 0) -> dict[str, object]:
    about = {} if gpu is None else {"gpu": gpu}
    return {"event": name, "time": f"t{number}", "number": number, **about}


def test_the_first_event_is_due_at_once_and_repeated_ones_are_joined() -> None:
    outbox = Outbox(EVERY_S)
    assert outbox.add(event("gpu.idle", "A", 1), 0.0)
    first = not_none(outbox.take(0.0))
    assert (first.count, first.event["number"]) == (1, 1)
    for number in (2, 3, 4):
        assert outbox.add(event("gpu.idle", "A", number), 1.0)
    assert outbox.take(1.0) is None
    assert outbox.next_due() == EVERY_S
    joined = not_none(outbox.take(EVERY_S))
    assert (joined.count, joined.event["number"], joined.since) == (3, 4, "t2")
    assert outbox.next_due() is None


def test_events_of_other_gpus_and_names_do_not_wait_for_each_other() -> None:
    outbox = Outbox(EVERY_S)
    for one in (event("gpu.idle", "A"), event("gpu.idle", "B"), event("gpu.xid", "A")):
        outbox.add(one, 0.0)
    taken = [outbox.take(0.0) for _ in range(3)]
    assert [one.key for one in taken if one] == [
        ("gpu.idle", "A"),
        ("gpu.idle", "B"),
        ("gpu.xid", "A"),
    ]


def test_an_event_without_room_is_counted() -> None:
    outbox = Outbox(EVERY_S)
    for number in range(MAX_WAITING):
        assert outbox.add(event("gpu.idle", f"GPU-{number}"), 0.0)
    assert not outbox.add(event("gpu.idle", "more"), 0.0)
    assert outbox.add(event("gpu.idle", "GPU-0"), 0.0), "it is joined"
    assert (len(outbox), outbox.dropped) == (MAX_WAITING, 1)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("AB"), st.floats(0.0, 40.0), st.booleans())
    )
)
def test_every_event_is_taken_once_and_no_key_more_often_than_allowed(
    steps: list[tuple[str, str, float, bool]],
) -> None:
    outbox, now, added, counted = Outbox(EVERY_S), 0.0, 0, 0
    last: dict[tuple[str, str | None], float] = {}
    for name, gpu, pause, takes in steps:
        now += pause
        outbox.add(event(name, gpu), now)
        added += 1
        while takes and (one := outbox.take(now)) is not None:
            assert now - last.get(one.key, -EVERY_S) >= EVERY_S
            last[one.key] = now
            counted += one.count
    while (one := outbox.take(now + EVERY_S)) is not None:
        counted += one.count
    assert counted == added
