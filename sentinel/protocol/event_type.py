"""Describe a type of event: its word, kind, sentence, description and fields.

A sentence is a template:

- ``{field}`` inserts a field, ``{field:format}`` formats it first: for the terminal in
  cli/display/log_lines.py, for the web page in web/event_text.js.
- ``[a|b]`` inserts the first alternative with all of its fields set; 0 and false count as not set.
- ``{field?}`` inserts nothing. In an alternative with such fields, only they have to be set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

#: What only the log gets, at the debug level: at the rate of the checks, it would crowd all else
#: out of the history and the last lines of the status.
DEBUG_EVENTS = frozenset({"gpu.checked"})


#: A field, up to the next line that begins with a name and a type.
_FIELD = re.compile(r"^\s*(\w+) \((.+?)\):\s+(.+?)(?=^\s*\w+ \(|\Z)", re.MULTILINE | re.DOTALL)


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
    #: Its fields, as :attr:`fields` reads them.
    described: str = ""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields: ``name (type): meaning``, a line each, with further lines indented."""
        found = _FIELD.finditer(self.described)
        return tuple(Field(*(" ".join(part.split()) for part in match.groups())) for match in found)


# Fields that several types of events have.
BY = "by (caller): who sent the command"
BY_OR_NULL = "by (caller or null): who sent the command; null if the time had expired"
FOR = "for_s (seconds or null): duration; null is until another command"
EVIDENCE = """\
evidence (`memory`, `process`, `computing`): what showed the newcomer first; `computing` only if
    processes may be hidden
evidence_at (seconds, monotonic): start of the reading with the evidence
read_s (seconds): duration of that reading; normally below 0.001"""
EXIT_CODE = "exit_code (whole number): its exit code; negative is the signal that ended it"
ALLOCATION = """\
id (text): the allocation
size (bytes): its size"""
RULE = """\
rule (a [rule](#rules)): the rule that decides; `running` with a stressor
reason (text): the same for people
left_s (seconds or null): time until it may decide otherwise; null if that is not known"""
SENSORS = """\
power_w (watts or null): mean power draw since the last poll
temperature_c (degrees Celsius or null): temperature of the GPU
sm_clock_mhz (MHz or null): clock of its multiprocessors"""
RESULTS = """\
errors (whole number): wrong results since the last report, about a second ago
checks (whole number): checked results in that time"""
WORKLOAD = "workload (text): the workload"
PACE = """\
util_target (0 to 1 or null): `util.target`
power_target_w (watts or null): `power`
rests (true or false): whether it rests by `duty`
health (0 to 1): the share that the health of the GPU permits"""
