"""Uses of GPUs are derived from views; readings and events are stored beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.api.event_streams import LoggedEvent
from sentinel.api.history_recorder import (
    MAX_GAP_S,
    SAMPLE_COLUMNS,
    Recorder,
    TimedRecord,
    UsageTracker,
    Use,
    sample_of,
)
from sentinel.protocol.views import GpuHealth, GpuView, LogRecord
from tests.harness.history_harness import (
    BEGIN,
    UUID,
    WALL,
    busy_view,
    make_telemetry,
    make_view,
    process,
)

AHEAD = WALL - BEGIN


def track(views: Sequence[GpuView]) -> tuple[UsageTracker, list[tuple[str | None, float, float]]]:
    """Track the uses in these views; return the tracker and the spans of ended uses."""
    uses = UsageTracker()
    for view in views:
        uses.update(view, AHEAD)
    return uses, [span(use) for use in uses.ended]


def span(use: Use) -> tuple[str | None, float, float]:
    return use.who, use.began - WALL, use.until - WALL


def at(second: float) -> float:
    return BEGIN + second


JOB, FIRST, SECOND = process(7), process(1, "one"), process(2, "two")


def unreadable(begin: int, end: int) -> list[GpuView]:
    return [make_view(at(second), occupancy="UNKNOWN") for second in range(begin, end)]


#: The views, and who has used the GPU from which second to which.
USES: dict[str, tuple[list[GpuView], list[tuple[str | None, int, int]]]] = {
    "from the first to the last view of its process": (
        [make_view(at(0)), busy_view(at(1), JOB), busy_view(at(2), JOB), make_view(at(3))],
        [("python", 1, 3)],
    ),
    "a stressor, while its process exists": (
        [
            *(
                make_view(at(second), stressor=state, pid=9)
                for second, state in enumerate(("STARTING", "RUNNING", "STOPPING"))
            ),
            make_view(at(3)),
        ],
        [("sentinel", 0, 3)],
    ),
    "each of several processes": (
        [
            busy_view(at(0), FIRST),
            busy_view(at(1), FIRST, SECOND, stressor="STOPPING", pid=9),
            busy_view(at(2), SECOND),
            make_view(at(3)),
        ],
        [("one", 0, 2), ("sentinel", 1, 2), ("two", 1, 3)],
    ),
    "with a name that is read later": (
        [busy_view(at(0), replace(JOB, name=None)), busy_view(at(1), JOB), make_view(at(2))],
        [("python", 0, 2)],
    ),
    "unnamed, without a listed process": (
        [*(busy_view(at(second)) for second in range(20)), busy_view(at(20), JOB)],
        [(None, 0, 20)],
    ),
    "over a short gap of readings": (
        [busy_view(at(0), JOB), *unreadable(1, 10), busy_view(at(10), JOB), make_view(at(11))],
        [("python", 0, 11)],
    ),
    "until its last view before a long gap": (
        [busy_view(at(0), JOB), *unreadable(1, round(MAX_GAP_S) + 2)],
        [("python", 0, 0)],
    ),
}


@pytest.mark.parametrize("case", USES)
def test_a_use_lasts(case: str) -> None:
    views, expected = USES[case]
    uses, ended = track(views)
    assert sorted(ended, key=str) == expected
    assert len(uses.open) == (views[-1].occupancy == "BUSY")


def test_an_allocated_process_is_a_use_beside_the_stressor() -> None:
    view = make_view(
        at(0), stressor="RUNNING", pid=9, allocated_processes=(process(3, "notebook"),)
    )
    uses, _ = track([view])
    assert sorted(str(use.who) for use in uses.open) == ["notebook", "sentinel"]


def test_an_unnamed_use_gets_the_name_of_the_process_listed_soon_after() -> None:
    uses, ended = track(
        [make_view(at(0)), busy_view(at(1)), busy_view(at(2)), busy_view(at(3), process(7))]
    )
    assert ended == []
    assert [span(use) for use in uses.open] == [("python", 1, 3)]
    assert [span(use)[:2] for use in uses.replaced] == [(None, 1)]


@pytest.mark.parametrize("rule", ["mig", "display", "exclusive", "leak"])
def test_a_gpu_that_is_busy_without_processes_has_no_use(rule: str) -> None:
    uses, _ = track([make_view(at(0), occupancy="BUSY", rule=rule)])
    assert uses.open == []


def test_a_use_on_a_gpu_without_views_ends_at_its_last_view() -> None:
    uses, _ = track([busy_view(at(0), process(7)), busy_view(at(5), process(7))])
    uses.expire(at(5 + MAX_GAP_S - 1))
    assert len(uses.open) == 1
    uses.expire(at(5 + MAX_GAP_S + 1))
    assert [span(use) for use in uses.ended] == [("python", 0, 5)]
    assert uses.open == []


def test_a_use_that_is_seen_before_its_file_is_read_began_when_the_file_says() -> None:
    job = process(7)
    (stored,) = track([busy_view(at(0), job), busy_view(at(1), job)])[0].open
    uses, _ = track([busy_view(at(5), job)])
    (seen,) = uses.open
    uses.resume(stored)
    assert uses.replaced == [seen]
    uses.update(busy_view(at(6), job), AHEAD)
    assert [span(use) for use in uses.open] == [("python", 0, 6)]


def test_a_reused_pid_is_another_use() -> None:
    first = process(7)
    second = replace(first, started=1)
    _, ended = track([busy_view(at(0), first), busy_view(at(1), second), make_view(at(2))])
    assert ended == [("python", 0, 1), ("python", 1, 2)]


def test_a_jump_of_the_clock_does_not_extend_a_use() -> None:
    uses, job = UsageTracker(), process(7)
    uses.update(busy_view(at(0), job), AHEAD)
    uses.update(busy_view(at(1), job), AHEAD + 10**8)
    uses.update(make_view(at(2)), AHEAD + 10**8)
    assert [span(use) for use in uses.ended] == [("python", 0, 2)]


PIDS = st.sets(st.integers(1, 4), max_size=3)


@given(st.lists(st.one_of(st.none(), PIDS), max_size=30))
def test_uses_cover_exactly_the_seconds_with_processes(history: list[set[int] | None]) -> None:
    """``None`` is a second without a reading; such gaps are shorter than MAX_GAP_S here."""
    history = [*history, set()]
    views = []
    for second, present in enumerate(history):
        if present is None:
            views.append(make_view(at(second), occupancy="UNKNOWN"))
        else:
            processes = [process(pid, f"job{pid}") for pid in sorted(present)]
            views.append(busy_view(at(second), *processes) if processes else make_view(at(second)))
    uses, ended = track(views)
    assert uses.open == []
    for pid in range(1, 5):
        listed_at = [second for second, present in enumerate(history) if present and pid in present]
        covered = [
            second
            for name, began, until in ended
            if name == f"job{pid}"
            for second in listed_at
            if began <= second <= until
        ]
        assert covered == listed_at, "each second is covered once"
        total = sum(until - began for name, began, until in ended if name == f"job{pid}")
        assert total <= len(history)


# --- readings and events ---------------------------------------------------------------------


def sample(view: GpuView) -> dict[str, float | None]:
    return dict(zip(SAMPLE_COLUMNS, sample_of(view), strict=True))


def test_an_unknown_value_is_null_and_never_zero() -> None:
    unread = sample(make_view(at(0), read=None, occupancy="UNKNOWN"))
    assert {name for name, value in unread.items() if value is not None} == {"ours"}
    old = sample(
        make_view(at(100), read=at(90), telemetry=make_telemetry(at(90), memory_utilization=0.5))
    )
    assert (old["temperature_c"], old["memory_utilization"], old["busy"]) == (None, None, 0)


def test_telemetry_and_view_complete_each_other() -> None:
    row = sample(
        make_view(
            at(0),
            temperature_c=None,
            power_w=300.5,
            health=GpuHealth.THROTTLED,
            telemetry=make_telemetry(at(0), temperature_c=71, power_w=1.0, memory_temperature_c=80),
        )
    )
    assert (row["temperature_c"], row["power_w"], row["memory_temperature_c"]) == (71, 300.5, 80)
    assert row["health"] == 2


def record(number: int, **fields: Any) -> TimedRecord:
    return TimedRecord(LoggedEvent.of(LogRecord(number=number, event=fields)), AHEAD)


def test_events_are_stored_except_for_readings_and_lost_records_are_counted() -> None:
    batch = Recorder().build_batch(
        [
            record(4, event="gpu.busy", gpu=UUID, time="2026-11-20T19:40:16.093+00:00"),
            record(5, event="gpu.status", gpu=UUID),
            record(9, event="probe.ready", time="never"),
        ],
        BEGIN,
    )
    assert [(name, gpu) for _, name, gpu, _ in batch.events] == [
        ("gpu.busy", UUID),
        ("lost", None),
        ("probe.ready", None),
    ]
    assert [at_s for at_s, *_ in batch.events] == [1_795_203_616.093, WALL, WALL]
    assert json.loads(batch.events[1][3])["count"] == 3


@pytest.mark.parametrize("fields", [{}, {"no": "event"}])
def test_a_record_without_an_event_is_ignored(fields: dict[str, Any]) -> None:
    batch = Recorder().build_batch([record(1, **fields)], BEGIN)
    assert batch.events == []
