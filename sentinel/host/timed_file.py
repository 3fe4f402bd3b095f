"""Files of things that end at a time: their times by two clocks, and files that are invalid.

The monotonic clock cannot be set but restarts at a reboot; seconds since the epoch are for use
after one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from sentinel.host.regular_file import read_regular, set_aside

T = TypeVar("T")

#: A larger file is not one of ours: 256 reservations of 16 GPUs have less.
_MAX_BYTES = 4 * 2**20


class Timed(Protocol):
    """The times of a stored thing."""

    @property
    def since(self) -> float:
        """When it began, in seconds since the epoch."""

    @property
    def until(self) -> float | None:
        """When it ends, in seconds since the epoch, or None."""

    @property
    def since_monotonic(self) -> float | None:
        """When it began, by the monotonic clock; None if that was not stored."""

    @property
    def until_monotonic(self) -> float | None:
        """When it ends, by the monotonic clock."""

    @property
    def boot(self) -> str:
        """The boot of the host during which it was stored."""


def monotonic_times(
    one: Timed, wall: float, monotonic: float, boot: str
) -> tuple[float, float | None]:
    """Compute the start and the end by the monotonic clock of this boot.

    Args:
        one: The stored thing.
        wall: The current time, in seconds since the epoch.
        monotonic: The current time, by the monotonic clock.
        boot: The current boot of the host.
    """
    since = one.since_monotonic
    # A start in the future was stored by another clock, whatever the boot is called.
    if since is not None and since <= monotonic and boot and one.boot == boot:
        return since, one.until_monotonic
    offset = wall - monotonic
    if one.until is None:
        return one.since - offset, None
    # If the clock was set back, it lasts at most its whole duration from now.
    until = min(one.until, wall + one.until - one.since)
    return one.since - offset, until - offset


def check_times(one: Timed, where: str) -> None:
    """Refuse times that are no dates: with them, the API could not describe its daemon.

    Args:
        one: The stored thing.
        where: Its place in the file, for the error.

    Raises:
        ValueError: One is before the year 1 or after 9999.
    """
    for seconds in (one.since, one.until):
        try:
            datetime.fromtimestamp(seconds or 0.0, UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError(f"{where}: {seconds:g} is no date: {error}") from error


def load_file(
    path: Path, parse: Callable[[str], tuple[T, ...]], what: str
) -> tuple[tuple[T, ...], str | None]:
    """Read what a file has, and the problem with the file or None.

    A missing file is empty. An invalid file is set aside and counts as empty, so that the daemon
    starts and its content is kept.

    Args:
        path: The file.
        parse: Parses its text, or raises ValueError.
        what: What it has, for the problem, such as ``reservations``.
    """
    try:
        return parse(read_regular(path, _MAX_BYTES).decode()), None
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{path}: cannot be read: {error.strerror}; its {what} are ignored"
    except ValueError as error:
        try:
            bad = set_aside(path)
        except OSError as failed:
            return (), f"{path}: {error}; renaming it failed: {failed.strerror}"
        return (), f"{path}: {error}; it was renamed to {bad}, and its {what} are ignored"
