"""What a person reads of the events, and what is left out."""

from __future__ import annotations

import io

import pytest

from sentinel.cli.event_format import text_lines
from sentinel.core.actions import Event
from sentinel.protocol.gpu import Gpu

GPU = Gpu(uuid="GPU-1", index=3, name="Fake", pci_bus_id="0", memory_total=1)


def told(name: str, **fields: object) -> str:
    """Return the line for an event, if there is one."""
    stream = io.StringIO()
    text_lines(stream, {GPU.uuid: GPU}, colour=False)(
        Event(name=name, at=0.0, gpu=GPU.uuid, fields=fields)
    )
    return stream.getvalue().rstrip("\n")


def test_how_a_stressor_is_listed_is_told_only_where_somebody_may_be_missing() -> None:
    known = {"mode": "direct", "reason": "NVML lists our stressor by its PID, 7"}
    assert told("gpu.identity", **known, hidden=None, complete=True) == ""
    line = told("gpu.identity", **known, hidden="a container", complete=False)
    assert "GPU 3" in line
    assert "a container" in line
    assert "memory tells of newcomers" in line


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bytes": 2**28, "utilization": None}, "256 MiB stay in use by no process"),
        ({"bytes": 0, "utilization": 1.0}, "used 100% of the time by no process"),
    ],
)
def test_a_ghost_is_told_as_what_it_is(fields: dict[str, object], words: str) -> None:
    assert words in told("gpu.memory_leaked", **fields)


FULL = {"util_target": None, "power_target_w": None, "rests": False, "health": 1.0, "share": 1.0}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "as hard as it can"),
        ({"util_target": 0.5}, "busy for 50% of the time"),
        ({"power_target_w": 400.0, "health": 0.8}, "at 400 W, for 80% of the time at most"),
        ({"util_target": 0.5, "rests": True}, "rests now, and keeps its memory"),
        ({"health": 0.0}, "rests for the sake of the GPU's health"),
    ],
)
def test_a_pace_is_told_in_words(fields: dict[str, object], words: str) -> None:
    assert words in told("stressor.pace", **(FULL | fields))


def test_a_status_tells_how_a_paced_gpu_does() -> None:
    status = {"stressor": "RUNNING", "running_s": 9.0, "note": None}
    status |= {"utilization": None, "power_w": 412.4}
    assert told("gpu.status", **FULL, **status).endswith("holds its memory, for 9 s")
    paced = FULL | {"util_target": 0.5, "share": 0.48}
    assert "works 48% of the time, 412 W" in told("gpu.status", **paced, **status)
    read = status | {"utilization": 0.51}
    assert "works 48% of the time, used 51%, 412 W" in told("gpu.status", **paced, **read)


def test_an_event_without_words_shows_its_fields() -> None:
    assert told("gpu.strange", one=1, two="b").endswith("gpu.strange one=1 two=b")


def test_a_condition_is_told_with_what_it_follows_from() -> None:
    fields = {"before": "optimal", "health": "throttled", "memory_foreign_share": 0.25}
    line = told("gpu.health_changed", **fields, temperature_c=76, multiplier=0.5)
    assert "throttled at 76 C, 25% of its memory others'; it was optimal" in line
    assert "throttled, 25%" in told(
        "gpu.health_changed", **fields, temperature_c=None, multiplier=0.5
    )
    assert "91 C, above 89 C" in told("gpu.overheat", temperature_c=91, limit_c=89.0)


def test_memory_that_is_promised_and_given_back_is_told() -> None:
    by = {"via": "unix", "uid": 0, "pid": 7}
    assert "4.0 GiB as llm" in told("memory.allocated", id="llm", size=2**32, by=by)
    assert "4.0 GiB as llm" in told("memory.deallocated", id="llm", size=2**32, by=by)
