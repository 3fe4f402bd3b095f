"""Write the events of a daemon to the system journal, and read them through journalctl.

An entry has a sentence, a priority and one field for each value of the event.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sentinel.cli.display.log_lines import describe, is_hidden
from sentinel.cli.display.output import printable
from sentinel.errors import ConfigError
from sentinel.host.systemd import Journal, field_name
from sentinel.protocol.events import EVENTS, Kind
from sentinel.protocol.gpu import Gpu

if TYPE_CHECKING:  # slow to import, and not needed to read
    from sentinel.host.event_lines import Sink
    from sentinel.protocol.events import Event

#: The field with the whole event as JSON, as in the file of a log; the reader takes it.
JSON_FIELD = "SENTINEL_JSON"
#: The first part of the names of all other fields of an event.
_PREFIX = "SENTINEL_"

#: Priorities of syslog(3).
_ERROR, _WARNING, _NOTICE, _INFO, _DEBUG = 3, 4, 5, 6, 7
#: The events that ask for an operator.
_ERRORS = {
    "driver.unavailable",
    "gpu.overheat",
    "stressor.fatal",
    "stressor.finding",
    "stressor.unkillable",
}
_PRIORITIES = {Kind.FINDING: _WARNING, Kind.COMMAND: _NOTICE, Kind.DETAIL: _INFO}
#: The matches that a daemon has. Its word becomes an argument of journalctl, which also has options
#: that delete entries.
_MATCH = re.compile(r"(_SYSTEMD_INVOCATION_ID=[0-9a-f]{32}|_PID=[0-9]{1,10})", re.ASCII)


def journal_sink(journal: Journal, gpus: Mapping[str, Gpu]) -> Sink:
    """Build a sink that sends each event to the journal."""
    from sentinel.host.event_lines import event_object

    def write(event: Event) -> None:
        journal.send(entry(event_object(event, gpus)))

    return write


def entry(event: Mapping[str, Any]) -> dict[str, str]:
    """Build the fields of an entry.

    Args:
        event: The JSON object of the event.
    """
    name = event["event"]
    own = {key: value for key, value in event.items() if key not in {"event", "time", "at", "gpu"}}
    index = own.pop("index", None)
    word, text = describe(name, own)
    place = "" if "gpu" not in event else f"GPU {'?' if index is None else index}: "
    given = {"event": name, "gpu": event.get("gpu"), "index": index, **own}
    return {
        "MESSAGE": printable(f"{place}{word} {text}".rstrip()),
        "PRIORITY": str(priority(name, own)),
        "SYSLOG_IDENTIFIER": "sentinel",
        **{
            _PREFIX + field_name(key): _text(value)
            for key, value in given.items()
            if value is not None
        },
        JSON_FIELD: json.dumps(event, default=str),
    }


def priority(name: str, fields: Mapping[str, Any]) -> int:
    """Return the syslog priority of an event: 3, error, to 7, debug."""
    if is_hidden(name, fields):
        return _DEBUG
    if name in _ERRORS:
        return _ERROR
    return _PRIORITIES.get(EVENTS[name].kind, _INFO) if name in EVENTS else _INFO


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


# --- reading ---------------------------------------------------------------------------------


def journal_lines(
    match: str, count: int, *, following: bool = False, hidden: bool = True
) -> Iterator[str]:
    """Yield the last entries of a daemon: events as JSON lines, other output as it is.

    Args:
        match: The match for journalctl.
        count: The number of entries to start with.
        following: Whether to go on with each new entry, without end.
        hidden: Whether to include events that only programs need: see :func:`priority`.

    Raises:
        ConfigError: The match is none of a daemon; or journalctl is missing or fails.
    """
    if _MATCH.fullmatch(match) is None:
        raise ConfigError(f"the log is in the journal, but {match!r} is no match of a daemon there")
    fields = f"--output-fields=MESSAGE,{JSON_FIELD}"
    command = ["journalctl", "--quiet", "--no-pager", "--all", "--output=json", fields]
    command += [f"--lines={count}", *(["--follow"] if following else [])]
    command += [*([] if hidden else [f"--priority={_INFO}"]), match]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except OSError as error:
        what = f"the log is in the journal, and journalctl cannot be started: {error.strerror}"
        raise ConfigError(what, f"Where it can be: journalctl {match}") from error
    with process:
        assert process.stdout is not None  # noqa: S101 - as asked for
        try:
            for line in process.stdout:
                with contextlib.suppress(ValueError, TypeError):
                    yield _of_entry(json.loads(line))
        finally:
            if process.poll() is None and following:
                process.terminate()
    if process.returncode not in {0, None} and not following:
        raise ConfigError(
            f"the log is in the journal, and journalctl exited with code {process.returncode}",
            f"Run it by hand: journalctl {match}",
        )


def _of_entry(entry: dict[str, str | list[int]]) -> str:
    """Return the event of an entry, or its message; journalctl lists the bytes of other text."""
    value = entry.get(JSON_FIELD) or entry.get("MESSAGE") or ""
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")
