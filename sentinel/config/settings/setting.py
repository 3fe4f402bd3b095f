"""One row of the table of everything that can be set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of Config as a person sets it.

    Attributes:
        key: Its dotted name in a configuration file.
        field: Its name in Config.
        flag: Its flag, from which its variable follows.
        default: What it is when nobody sets it, as text.
        parse: Makes its value of text; raises ValueError with what is allowed.
        least: The smallest value that is allowed, as text, and so ``most``.
        per_gpu: Whether it may be another for single GPUs.
        many: Whether it is a list; its flag may be given several times.
        settled: Whether it holds from the start of a daemon to its end.
    """

    key: str
    field: str
    flag: str
    metavar: str
    help: str
    parse: Callable[[str], Any]
    default: str = ""
    least: str | None = None
    most: str | None = None
    per_gpu: bool = False
    many: bool = False
    settled: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "SENTINEL_" + self.flag.removeprefix("--").replace("-", "_").upper()
