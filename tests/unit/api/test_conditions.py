"""GPUs that are not free are named by their state, those of one state together."""

from __future__ import annotations

import time
from dataclasses import replace

from sentinel.api.snapshots import _describe
from tests.harness.api_harness import gpu_view

VIEW = gpu_view(0)


def test_many_gpus_of_one_state_are_one_part_of_the_text() -> None:
    stopping = [
        replace(VIEW, index=index, stressor="STOPPING", since=time.monotonic() - 2.1 - index)
        for index in range(8)
    ]
    busy = replace(VIEW, index=9, stressor="STOPPED", occupancy="BUSY", since=None, held=None)
    leaked = replace(busy, index=10, leaked=True)
    text = _describe([*stopping, busy, leaked])
    assert text.startswith("GPUs 0-7 (stopping for up to 9.1 s, 8.0 GiB in all), GPU 9 (stopped, ")
    assert text.endswith("busy), GPU 10 (stopped, memory leaked)")


def test_one_gpu_has_its_own_time_and_memory() -> None:
    view = replace(VIEW, stressor="STOPPING", since=time.monotonic() - 61)
    assert _describe([view]) == "GPU 0 (stopping for 1 min 1 s, 1.0 GiB)"
