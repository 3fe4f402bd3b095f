"""The check of histories: a legal one passes, and each illegal event is found."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu_histories import GpuHistories

IDLE = [{"event": "gpu.idle"}]
HELD = [*IDLE, {"event": "stressor.starting"}, {"event": "stressor.ready"}]
YIELDED = [*HELD, {"event": "gpu.yielding"}, {"event": "gpu.busy"}, {"event": "gpu.handed_over"}]


def history(*events: dict[str, Any], gpu: str = "GPU-0") -> GpuHistories:
    histories = GpuHistories()
    for event in events:
        histories.add({"gpu": gpu, "index": 0, **event})
    return histories


@pytest.mark.parametrize(
    "events",
    [
        [
            *YIELDED,
            {"event": "gpu.idle"},
            *HELD[1:],
            {"event": "gpu.status", "stressor": "RUNNING"},
        ],
        [*HELD[:2], {"event": "gpu.yielding"}, {"event": "gpu.handed_over"}],
        [*HELD, {"event": "gpu.unwatched"}, {"event": "stressor.stopped"}, *HELD[1:]],
        [*HELD, {"event": "stressor.failed"}, {"event": "gpu.status", "stressor": "BACKOFF"}],
        [*HELD, {"event": "gpu.status", "stressor": "STOPPING"}, {"event": "stressor.stopped"}],
        [{"event": "sentinel.started", "gpu": None}, {"event": "gpu.health_changed"}],
    ],
)
def test_a_legal_history_passes(events: list[dict[str, Any]]) -> None:
    assert history(*events).violations == []


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([*HELD, {"event": "stressor.starting"}], "starting on GPU 0: its stressor is RUNNING"),
        ([*HELD[:2], {"event": "stressor.starting"}], "its stressor is STARTING"),
        ([*HELD, {"event": "gpu.yielding"}, {"event": "stressor.starting"}], "is YIELDING"),
        ([{"event": "stressor.starting"}], "its last occupancy is None"),
        ([{"event": "gpu.busy"}, {"event": "stressor.starting"}], "occupancy is gpu.busy"),
        ([{"event": "gpu.unknown"}, {"event": "stressor.starting"}], "occupancy is gpu.unknown"),
        ([*IDLE, {"event": "stressor.ready"}], "ready on GPU 0: its stressor is STOPPED"),
        ([*HELD, {"event": "gpu.handed_over"}], "its stressor is RUNNING"),
        ([*HELD, {"event": "gpu.yielding"}, {"event": "stressor.stopped"}], "is YIELDING"),
        ([*YIELDED, {"event": "gpu.yielding"}], "its stressor is STOPPED"),
        ([*HELD, {"event": "gpu.status", "stressor": "STOPPED"}], "is STOPPED, but it is RUNNING"),
    ],
)
def test_an_illegal_event_is_found(events: list[dict[str, Any]], why: str) -> None:
    (violation,) = history(*events).violations
    assert why in violation


def test_each_gpu_has_its_own_history() -> None:
    histories = history(*HELD)
    for event in HELD[:2]:
        histories.add({"gpu": "GPU-1", "index": 1, **event})
    assert histories.violations == []
    assert histories.held() == 1
