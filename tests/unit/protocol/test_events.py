"""The catalogue of events knows which are about the host, as their examples show."""

from __future__ import annotations

import json
import typing
from dataclasses import fields

import pytest

from sentinel.protocol.burnin_events import (
    EVENT_KINDS,
    BurninEvent,
    PhaseEnded,
    Published,
    fields_of,
)
from sentinel.protocol.events import EVENTS, HOST_EVENTS
from tests.harness.document_programs import document_program
from tests.harness.gpu_environment import ROOT

#: Events that are about a GPU if the probe was in a call on one.
SOMETIMES = {"probe.exited", "probe.hung"}

#: What the documents say of each.
TEXTS = document_program("event_texts").event_texts()
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


@pytest.mark.parametrize("kind", EVENT_KINDS.values(), ids=EVENT_KINDS)
def test_a_typed_event_has_the_fields_of_its_table(kind: type[BurninEvent]) -> None:
    """What the supervisor publishes has all of them; what is only read has those it needs."""
    declared = {field.name for field in TEXTS[kind.name].fields}
    own = {field.name for field in fields(kind)}
    if kind is PhaseEnded:
        own = set(fields_of(PhaseEnded(phase="one")))
    assert own == declared if kind in typing.get_args(Published) else own <= declared
