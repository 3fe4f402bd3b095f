"""Where a daemon logs: the file of ``--log-file``, and the place that its record names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from sentinel.config.setting import variable_of
from sentinel.config.sources import Sources, checked
from sentinel.errors import ConfigError
from sentinel.host.daemons.daemon_lookup import locate
from sentinel.host.files.paths import Places

_KEY, _FLAG = "log.file", "--log-file"


def chosen_log(sources: Sources) -> Path | None:
    """Return the absolute path of the log's file that a setting names, or None.

    A relative one is that of the current folder, as far as the setting has one: a flag and a
    variable, but no file of settings.

    Raises:
        ConfigError: A setting is invalid.
    """
    text = checked(sources).log_file
    if text is None:
        return None
    if text.startswith("~/"):
        return Path(os.environ.get("HOME") or "/") / text.removeprefix("~/")
    source = sources.source_of(_KEY)
    if not text.startswith("/") and source not in {_FLAG, variable_of(_FLAG)}:
        raise ConfigError(
            f"{source}: {text!r} is not an absolute path",
            "Start it with a slash or ~/: the daemon that reads this has another folder.",
        )
    return Path(text).absolute()


def with_chosen_log(where: Places, sources: Sources) -> Places:
    """Return the paths with the log's file that a setting names, if there is one.

    Raises:
        ConfigError: A setting is invalid.
    """
    log = chosen_log(sources)
    return where if log is None else replace(where, log=log, log_named=True)


def recorded_log(where: Places) -> str | None:
    """Find where the daemon logs: a file, a command of journalctl, or None for neither.

    Without the record of a running daemon, it is the file that follows from the paths.
    """
    record = locate(str(where.socket)).record
    if record is None or not record.alive:
        return str(where.log)
    return record.log or (f"journalctl {record.journal}" if record.journal else None)
