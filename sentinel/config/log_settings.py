"""The settings of the log: its file, and how much is in it."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.parsers import one_of, parse_file
from sentinel.config.setting import Form, setting, start_setting

#: The value of ``log.level`` with which each check of each GPU is logged.
DEBUG = "debug"


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Where the log is, and what it has."""

    log_file: str | None = start_setting(
        "Write the log to this file, also in the foreground; `off`, the default, is `sentinel.log`"
        " in the state directory for a daemon, and no file in the foreground.",
        Form(parse=parse_file, metavar="FILE", trusted=True).or_off(),
        key="log.file",
    )
    log_level: str = setting(
        "How much is logged; debug adds the used memory of each GPU at every check.",
        one_of("info", DEBUG),
        "info",
        key="log.level",
    )
