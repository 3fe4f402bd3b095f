"""Events are sentences for people, and entries of the journal."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from sentinel.cli.display.journal import entry, priority
from sentinel.cli.display.log_lines import describe, text_lines
from sentinel.host.systemd import field_name
from sentinel.protocol.events import Event
from sentinel.protocol.gpu import Gpu
from tests.harness.gpu_environment import ROOT

GPU = Gpu(uuid="GPU-1", index=3, name="Fake", pci_bus_id="0", memory_total=1)


def line(name: str, **fields: object) -> str:
    """Format an event; return an empty string if it is hidden."""
    stream = io.StringIO()
    text_lines(stream, {GPU.uuid: GPU}, colour=False)(
        Event(name=name, at=0.0, gpu=GPU.uuid, fields=fields)
    )
    return stream.getvalue().rstrip("\n")


def test_a_terminal_gets_lines_that_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "60")
    fields = {"reason": "not read for 5 s while its driver is asked for the memory"}
    for colour in (False, True):
        stream = Terminal()
        text_lines(stream, {}, colour=colour)(Event(name="gpu.unknown", at=0.0, fields=fields))
        lines = re.sub(r"\x1b\[\d*m", "", stream.getvalue()).splitlines()
        assert max(map(len, lines)) <= 60
        assert ("\x1b[" in stream.getvalue()) == colour
        assert " ".join(map(str.strip, lines)).endswith(fields["reason"])


def test_the_identity_is_shown_only_where_processes_may_be_hidden() -> None:
    known = {"mode": "direct", "reason": "NVML lists the stressor by its PID, 7"}
    assert line("gpu.identity", **known, hidden=None, complete=True) == ""
    text = line("gpu.identity", **known, hidden="a container", complete=False)
    assert "GPU 3" in text
    assert "processes may be hidden: a container; memory shows newcomers" in text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"bytes": 2**28, "utilization": None}, "256 MiB in use without a process"),
        ({"bytes": 0, "utilization": 1.0}, "100% utilization without a process"),
    ],
)
def test_a_leak_is_memory_or_utilization(fields: dict[str, object], expected: str) -> None:
    assert expected in line("gpu.memory_leaked", **fields)


FULL = {"util_target": None, "power_target_w": None, "rests": False, "health": 1.0, "share": 1.0}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "full speed"),
        ({"util_target": 0.5}, "utilization 50%"),
        ({"power_target_w": 400.0, "health": 0.8}, "400 W, at most 80% of the time because of"),
        ({"util_target": 0.5, "rests": True}, "rests, and keeps its memory"),
        ({"health": 0.0}, "rests because of the GPU's health"),
    ],
)
def test_a_pace_shows_its_targets_or_the_reason_of_a_rest(
    fields: dict[str, object], expected: str
) -> None:
    assert expected in line("stressor.pace", **(FULL | fields))


def test_a_status_shows_share_utilization_and_power_of_a_paced_stressor() -> None:
    status = {"stressor": "RUNNING", "running_s": 9.0, "note": None}
    status |= {"utilization": None, "power_w": 412.4}
    assert line("gpu.status", **FULL, **status).endswith("holds its memory, for 9 s")
    paced = FULL | {"util_target": 0.5, "share": 0.48}
    assert "works 48% of the time, 412 W" in line("gpu.status", **paced, **status)
    read = status | {"utilization": 0.51}
    assert "works 48% of the time, utilization 51%, 412 W" in line("gpu.status", **paced, **read)
    rates = status | {"flops_per_s": 1.68e9, "bytes_per_s": 2.62e7}
    assert "1.68 GFLOP/s, 26.2 MB/s" in line("gpu.status", **FULL, **rates)


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("policy", "after its release"),
        ("unknown", "the GPU cannot be read"),
        ("lease ran out", "lease ran out"),
    ],
)
def test_the_end_of_a_stressor_has_its_cause(cause: str, text: str) -> None:
    assert line("stressor.stopped", cause=cause, killed=False).endswith(text)


@pytest.mark.parametrize("name", ["gpu.strange", "gpu.idle"])
def test_an_event_without_a_matching_sentence_is_shown_with_its_fields(name: str) -> None:
    fields: dict[str, object] = {"one": 1, "left_alone_s": "b"}
    assert " ".join(line(name, **fields).split()).endswith(f"{name} one=1 left_alone_s=b")


def test_a_change_of_health_shows_temperature_and_cause() -> None:
    fields = {"before": "optimal", "health": "throttled", "memory_foreign_share": 0.25}
    fields["cause"] = "temperature"
    text = line("gpu.health_changed", **fields, temperature_c=76, multiplier=0.5)
    assert "throttled at 76 C, because of its temperature; before: optimal" in text
    unknown = line("gpu.health_changed", **fields, temperature_c=None, multiplier=0.5)
    assert "throttled, because" in unknown
    better = {"before": "throttled", "health": "optimal", "cause": None}
    assert "optimal at 40 C; before: throttled" in line(
        "gpu.health_changed", **better, temperature_c=40
    )
    assert "91 C, above 89 C" in line("gpu.overheat", temperature_c=91, limit_c=89.0)


def test_allocations_are_shown_with_size_and_name() -> None:
    by = {"via": "unix", "uid": 0, "pid": 7}
    allocated = line("memory.allocated", id="llm", size=2**32, by=by)
    assert allocated.endswith("4.0 GiB as llm, by uid 0 (pid 7) over unix")
    named = line("memory.allocated", id="llm", size=2**32, by={**by, "user": "root"})
    assert named.endswith("4.0 GiB as llm, by root (pid 7) over unix")
    assert "4.0 GiB as llm" in line("memory.deallocated", id="llm", size=2**32, by=by)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"processes": [{"pid": 7, "name": "python", "user": "ann"}], "grown": 1},
            "to python (pid 7, ann)",
        ),
        ({"processes": [], "grown": 2**20}, "to a process that allocated 1 MiB"),
        ({"processes": [], "grown": 0}, "to a process that computes and is not listed"),
    ],
)
def test_a_sentence_uses_the_first_alternative_with_all_fields(
    fields: dict[str, object], sentence: str
) -> None:
    assert describe("gpu.yielding", fields)[1] == sentence


@pytest.mark.parametrize(
    ("repeats", "repeated", "expected"),
    [(3, 0, ", bit 1, 0 of 3 repetitions wrong;"), (None, None, ", bit 1; this GPU")],
)
def test_a_marked_field_decides_alone_about_its_alternative(
    repeats: int | None, repeated: int | None, expected: str
) -> None:
    finding = {"place": "result", "dtype": None, "kind": None, "count": 1, "first": [5, 9]}
    counts = {"bits": [0, 1, 0], "repeats": repeats, "repeated": repeated}
    assert expected in describe("stressor.finding", finding | counts)[1]


EXAMPLES = [json.loads(line) for line in Path(ROOT / "docs/events.jsonl").read_text().splitlines()]
YIELDING = next(one for one in EXAMPLES if one["event"] == "gpu.yielding")


def test_an_entry_has_a_sentence_a_priority_and_each_value() -> None:
    fields = entry(YIELDING)
    assert fields["MESSAGE"].startswith(f"GPU {YIELDING['index']}: yielding ")
    assert fields["SYSLOG_IDENTIFIER"] == "sentinel"
    assert fields["SENTINEL_EVENT"] == "gpu.yielding"
    assert fields["SENTINEL_GPU"] == YIELDING["gpu"]
    assert fields["SENTINEL_INDEX"] == str(YIELDING["index"])
    assert fields["SENTINEL_EVIDENCE"] == YIELDING["evidence"]
    assert json.loads(fields["SENTINEL_JSON"]) == YIELDING


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda one: str(one["event"]))
def test_every_event_is_a_valid_entry(event: dict[str, object]) -> None:
    fields = entry(event)
    assert all(field_name(name) == name for name in fields)
    assert "\n" not in fields["MESSAGE"]
    assert fields["PRIORITY"] in set("34567")
    assert json.loads(fields["SENTINEL_JSON"]) == event


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stressor.finding", 3),
        ("stressor.failed", 4),
        ("gpu.paused", 5),
        ("gpu.idle", 6),
        ("gpu.status", 6),
        ("gpu.strange", 6),
        ("burnin.measured", 7),
    ],
)
def test_the_priority_follows_from_the_event(name: str, expected: int) -> None:
    assert priority(name, {}) == expected
