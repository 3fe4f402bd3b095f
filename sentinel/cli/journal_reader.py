"""Read the log of a daemon from the system journal, through journalctl."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator

from sentinel.cli.journal_sink import JSON_FIELD
from sentinel.errors import ConfigError

#: The matches that a daemon has. Its word becomes an argument of journalctl, which also has options
#: that delete entries.
_MATCH = re.compile(r"(_SYSTEMD_INVOCATION_ID=[0-9a-f]{32}|_PID=[0-9]{1,10})", re.ASCII)


def journal_lines(match: str, count: int, *, following: bool = False) -> Iterator[str]:
    """Yield the last entries of a daemon: events as JSON lines, other output as it is.

    Args:
        match: The match for journalctl.
        count: The number of entries to start with.
        following: Whether to go on with each new entry, without end.

    Raises:
        ConfigError: The match is none of a daemon; or journalctl is missing or fails.
    """
    if _MATCH.fullmatch(match) is None:
        raise ConfigError(f"the log is in the journal, but {match!r} is no match of a daemon there")
    fields = f"--output-fields=MESSAGE,{JSON_FIELD}"
    command = ["journalctl", "--quiet", "--no-pager", "--all", "--output=json", fields]
    command += [f"--lines={count}", *(["--follow"] if following else []), match]
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
                    yield _line(json.loads(line))
        finally:
            if process.poll() is None and following:
                process.terminate()
    if process.returncode not in {0, None} and not following:
        raise ConfigError(
            f"the log is in the journal, and journalctl exited with code {process.returncode}",
            f"Run it by hand: journalctl {match}",
        )


def _line(entry: dict[str, str | list[int]]) -> str:
    """Return the event of an entry, or its message; journalctl lists the bytes of other text."""
    value = entry.get(JSON_FIELD) or entry.get("MESSAGE") or ""
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")
