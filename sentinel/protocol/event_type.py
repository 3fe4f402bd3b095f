"""Describe a type of event: its word, kind, sentence, description and fields.

A sentence is a template:

- ``{field}`` inserts a field, ``{field:format}`` formats it first: for the terminal in
  cli/display/log_lines.py, for the web page in web/event_text.js.
- ``[a|b]`` inserts the first alternative with all of its fields set; 0 and false count as not set.
- ``{field?}`` inserts nothing. In an alternative with such fields, only they have to be set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

#: What only the log gets, at the debug level: at the rate of the checks, it would crowd all else
#: out of the history and the last lines of the status.
DEBUG_EVENTS = frozenset({"gpu.checked"})


class Kind(StrEnum):
    """What an event is about."""

    USE = "use"
    YIELD = "yield"
    HANDOVER = "handover"
    FINDING = "finding"
    COMMAND = "command"
    #: Not in the timeline of the web page.
    DETAIL = "detail"


class Field(NamedTuple):
    """One field of an event."""

    name: str
    #: The type and the unit, as text.
    type: str
    text: str


@dataclass(frozen=True)
class EventType:
    """One type of event."""

    name: str
    #: The word before the sentence.
    word: str
    kind: Kind
    #: The template of the sentence.
    sentence: str
    #: When the event is published.
    description: str
    fields: tuple[Field, ...] = ()


BOOL, TEXT, COUNT, SECONDS, BYTES = "true or false", "text", "whole number", "seconds", "bytes"
MONOTONIC, SHARE, DEGREES = "seconds, monotonic", "0 to 1", "degrees Celsius"
OR_NULL = " or null"
PROCESSES = "list of processes"
BY = Field("by", "caller", "who sent the command")
BY_OR_NULL = Field("by", "caller or null", "who sent the command; null if the time had expired")
FOR = Field("for_s", "seconds or null", "duration; null is until another command")
EVIDENCE = (
    Field(
        "evidence",
        "`memory`, `process`, `computing`",
        "what showed the newcomer first; `computing` only if processes may be hidden",
    ),
    Field("evidence_at", MONOTONIC, "start of the reading with the evidence"),
    Field("read_s", SECONDS, "duration of that reading; normally below 0.001"),
)
EXIT_CODE = Field("exit_code", COUNT, "its exit code; negative is the signal that ended it")
ALLOCATION = (Field("id", TEXT, "the allocation"), Field("size", BYTES, "its size"))
RULE = (
    Field("rule", "a [rule](#rules)", "the rule that decides; `running` with a stressor"),
    Field("reason", TEXT, "the same for people"),
    Field(
        "left_s", SECONDS + OR_NULL, "time until it may decide otherwise; null if that is not known"
    ),
)
SENSORS = (
    Field("power_w", "watts or null", "mean power draw since the last poll"),
    Field("temperature_c", DEGREES + OR_NULL, "temperature of the GPU"),
    Field("sm_clock_mhz", "MHz or null", "clock of its multiprocessors"),
)
RESULTS = (
    Field("errors", COUNT, "wrong results since the last report, about a second ago"),
    Field("checks", COUNT, "checked results in that time"),
)
WORKLOAD = Field("workload", TEXT, "the workload")
PACE = (
    Field("util_target", SHARE + OR_NULL, "`util.target`"),
    Field("power_target_w", "watts or null", "`power`"),
    Field("rests", BOOL, "whether it rests by `duty`"),
    Field("health", SHARE, "the share that the health of the GPU permits"),
)
