"""``sentinel logs``: show the log of the daemon, wherever it is, and follow it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import click

from sentinel.cli.display.event_format import readable
from sentinel.cli.display.terminal import color_option, printable
from sentinel.cli.journal_sink import JSON_FIELD
from sentinel.cli.options.client_options import address_options, simulated_folder
from sentinel.client import connect
from sentinel.errors import ConfigError, ExitCode, NotRunningError, SentinelError
from sentinel.host.daemons.daemon_lookup import Location, last_location, locate
from sentinel.host.files.paths import stderr_file
from sentinel.host.files.regular_file import open_regular

#: How often a log is polled.
POLL_INTERVAL_S = 0.25

_BLOCK_BYTES = 64 * 1024
#: A longer line is truncated at its beginning.
_MAX_LINE_BYTES = 2**20
#: How much of the end of a log is searched for wanted lines.
_MAX_SEARCHED_BYTES = 2**23


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last ``count`` lines of a file, without newlines.

    Raises:
        ConfigError: The file cannot be read.
    """
    with _opened(path) as file:
        lines, _ = _end(file, count)
    return lines


def last_wanted(path: Path, count: int, wanted: Callable[[str], bool]) -> list[str]:
    """Return the last ``count`` lines of a file that are wanted, of its last 8 MiB.

    Args:
        path: The file.
        count: The number of lines, at least 1.
        wanted: Checks a line.

    Raises:
        ConfigError: The file cannot be read.
    """
    with _opened(path) as file:
        found = islice(filter(wanted, map(_text, _backwards(file))), count)
        return list(found)[::-1]


def follow(path: Path, count: int, wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield the last ``count`` lines of a file, then each new line, without end.

    A renamed file is read to its end before its successor; a truncated file is read from its start.

    Args:
        path: The file.
        count: The number of lines to start with.
        wait: Sleeps between two polls; a test may raise in it to end the loop.

    Raises:
        ConfigError: The file cannot be read at the start.
    """
    file = _opened(path)
    try:
        lines, rest = _end(file, count)
        yield from lines
        while True:
            successor = _successor(path, file)
            while data := file.read(_BLOCK_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                yield from map(_text, whole)
                rest = rest[-_MAX_LINE_BYTES:]
            if successor is not None:
                if rest:
                    yield _text(rest)
                file.close()
                file, rest = successor, b""
                continue
            if file.tell() > os.fstat(file.fileno()).st_size:
                file.seek(0)
                rest = b""
                continue
            wait(POLL_INTERVAL_S)
    finally:
        file.close()


def _opened(path: Path) -> BinaryIO:
    try:
        return os.fdopen(open_regular(path, os.O_RDONLY), "rb")
    except OSError as error:
        raise ConfigError(f"the log {path} cannot be read: {error.strerror}") from error


def _successor(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Open the successor of a rotated file, or return None if there is none."""
    current = os.fstat(file.fileno())
    try:
        there = path.stat()
        if (there.st_dev, there.st_ino) == (current.st_dev, current.st_ino):
            return None
        return os.fdopen(open_regular(path, os.O_RDONLY), "rb")
    except OSError:  # during the rotation; the next poll finds it
        return None


def _end(file: BinaryIO, count: int) -> tuple[list[str], bytes]:
    """Return the last complete lines and the start of the next one; leave the file at its end."""
    end = position = file.seek(0, os.SEEK_END)
    data = b""
    while position > 0 and data.count(b"\n") <= count:
        step = min(_BLOCK_BYTES, position)
        position -= step
        file.seek(position)
        data = file.read(step) + data
    file.seek(end)
    *whole, rest = data.split(b"\n")
    return [_text(line) for line in whole[-count:]] if count else [], rest


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines at the end of a file, the last one first."""
    position = file.seek(0, os.SEEK_END)
    least = max(0, position - _MAX_SEARCHED_BYTES)
    rest, complete = b"", False
    while position > least:
        step = min(_BLOCK_BYTES, position)
        position -= step
        file.seek(position)
        rest, *lines = (file.read(step) + rest).split(b"\n")
        if lines and not complete:
            lines.pop()  # not written completely yet, or empty
            complete = True
        yield from reversed(lines)
    if complete and position == 0:
        yield rest


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


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


#: How many lines of the standard error of a daemon that has ended are shown.
_STDERR_LINES = 20


@click.command("logs")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the log.")
@click.option(
    "-n",
    "--lines",
    "count",
    metavar="N",
    type=click.IntRange(0, 1_000_000),
    default=50,
    show_default=True,
    help="Number of lines to show first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON lines of the log.")
@color_option
@address_options
def command(
    following: bool,  # noqa: FBT001 - click's
    count: int,
    as_json: bool,  # noqa: FBT001
    socket: str | None,
    simulated: bool,  # noqa: FBT001
) -> int:
    """Show the end of the daemon's log, also after its end or a start that failed.

    Without a running daemon, it is the log of the last one, whatever directory it used. A daemon in
    a unit of systemd logs to the journal, which is read by journalctl. Exit code 3 if there is no
    log.
    """
    folder = simulated_folder(chosen=simulated)
    named = socket is not None or simulated
    where = locate(socket, folder) if named else last_location()
    path, match, runs = _log(where)
    lines: Iterable[str]
    if match is not None:
        lines = journal_lines(match, count, following=following)
    else:
        lines = follow(path, count) if following else last_lines(path, count)
    for line in filter(_is_event, lines) if as_json else readable(lines):
        print(line, flush=True)
    if not runs and not as_json:
        for line in _after_the_end(where, path if match is None else None):
            click.echo(line, err=True)
    return int(ExitCode.OK)


def _log(where: Location) -> tuple[Path, str | None, bool]:
    """Find the log: the one that the daemon reports, or else that of the last one.

    Returns:
        The file, or the match for journalctl, and whether the daemon runs.

    Raises:
        ConfigError: The daemon has no log.
        NotRunningError: There is no daemon, and no log of one.
    """
    log, match, runs = where.log, where.journal, False
    with contextlib.suppress(SentinelError):
        daemon = connect(where.socket, timeout=3.0).status().daemon
        log, match, runs = None if daemon.log is None else Path(daemon.log), daemon.journal, True
    if match is not None:
        return Path(), match, runs
    if log is None:
        raise ConfigError(
            "this daemon writes no log: it runs in the foreground, and its standard output has all",
            "A daemon that `sentinel start` began writes one; this one with --log-file FILE.",
        )
    if not runs and not log.exists():
        raise NotRunningError(
            f"there is no log: no daemon runs at {where.socket}, and {log} is missing",
            "Start a daemon with `sentinel start`, or name another: --socket PATH, --simulated.",
        )
    return log, None, runs


def _after_the_end(where: Location, path: Path | None) -> Iterator[str]:
    """Yield what a daemon that has ended left on its standard error, and that it has ended."""
    if path is not None:
        with contextlib.suppress(ConfigError):
            yield from map(printable, last_lines(stderr_file(path), _STDERR_LINES))
    kept = "the journal" if path is None else str(path)
    yield f"sentinel: no daemon runs at {where.socket}; this was the log of the last, in {kept}"


def _is_event(line: str) -> bool:
    """Check for a line of JSON: the journal has other output, too."""
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False
