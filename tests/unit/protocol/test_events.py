"""The catalogue of events knows which are about the host, as their examples show."""

from __future__ import annotations

import json

import pytest

from sentinel.protocol.events import EVENTS, HOST_EVENTS
from tests.harness.gpu_environment import ROOT

#: Events that are about a GPU if the probe was in a call on one.
SOMETIMES = {"probe.exited", "probe.hung"}

EXAMPLES = [json.loads(line) for line in (ROOT / "docs" / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example["event"]))
def test_an_event_about_the_host_has_no_gpu_and_every_other_has_one(
    example: dict[str, object],
) -> None:
    name = example["event"]
    assert name in EVENTS
    if name not in SOMETIMES:
        assert (name in HOST_EVENTS) == ("gpu" not in example)


def test_every_event_about_the_host_is_in_the_catalogue() -> None:
    assert set(EVENTS) >= HOST_EVENTS
    assert not HOST_EVENTS & SOMETIMES
