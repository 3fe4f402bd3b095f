"""Events as entries of the journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.cli.display.journal import entry, priority
from sentinel.host.systemd import field_name
from tests.harness.gpu_environment import ROOT

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
