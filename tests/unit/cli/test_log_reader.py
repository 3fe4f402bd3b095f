"""A log is read from its end, and followed while it is rotated."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.cli.display import log_reader
from sentinel.cli.display.log_reader import follow, last_lines, last_wanted
from sentinel.errors import ConfigError
from sentinel.host.log_file import MAX_OLD_FILES, RotatingLog


@pytest.mark.parametrize("block", [1, 7, 2**16])
@pytest.mark.parametrize(
    ("content", "count", "lines"),
    [
        ("a\nb\n", 0, []),
        ("a\nb\nunfinished", 1, ["b"]),
        ("\n\n\n", 2, ["", ""]),
        ("x" * 300 + "\nb\n", 2, ["x" * 300, "b"]),
        ("", 5, []),
        ("unfinished", 5, []),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb\nc\n", 9, ["a", "b", "c"]),
        ("a\n" + "skip\n" * 50 + "b\nskip\nc", 2, ["a", "b"]),
        ("\na\n", 2, ["", "a"]),
    ],
)
def test_the_last_lines_are_complete_and_wanted_ones_are_found_behind_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    content: str,
    count: int,
    lines: list[str],
) -> None:
    monkeypatch.setattr(log_reader, "_BLOCK_BYTES", block)
    path = tmp_path / "log"
    path.write_text(content)
    assert last_wanted(path, count, lambda line: line != "skip") == lines
    if "skip" not in content:
        assert last_lines(path, count) == lines


def test_the_search_for_wanted_lines_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_BLOCK_BYTES", 5)
    monkeypatch.setattr(log_reader, "_MAX_SEARCHED_BYTES", 50)
    path = tmp_path / "log"
    path.write_text("a\n" + "skip\n" * 50)
    assert last_wanted(path, 1, lambda line: line != "skip") == []


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\n")
    assert last_lines(path, 1) == ["\ufffd\ufffd"]


def test_a_missing_log_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log cannot be read: No such file"):
        last_lines(tmp_path / "log", 1)


def test_the_log_of_another_user_names_what_shows_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(log_reader, "open_regular", refuse)
    with pytest.raises(ConfigError, match="Permission denied") as error:
        last_lines(tmp_path / "log", 1)
    assert "sentinel history --events" in error.value.remedy


class EndedError(Exception):
    """No step is left."""


def followed(path: Path, *steps: Callable[[], object]) -> list[str]:
    """Follow a log, with one step at each wait; return the lines."""
    remaining = iter(steps)

    def wait(_: float) -> None:
        step = next(remaining, None)
        if step is None:
            raise EndedError
        step()

    lines: list[str] = []
    with pytest.raises(EndedError):
        lines.extend(follow(path, 1, wait))
    return lines


def test_a_line_is_yielded_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\nlast\n")
    with path.open("a", buffering=1) as log:
        steps = [lambda: log.write("ne"), log.flush, lambda: log.write("w\nnext\n")]
        assert followed(path, *steps) == ["last", "new", "next"]


def test_a_rotated_log_is_read_to_its_end_and_then_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\n")
    with path.open("a", buffering=1) as log:

        def rotate() -> None:
            log.write("b\n")
            path.rename(tmp_path / "log.1")

        def go_on() -> None:
            log.write("c\n")
            path.write_text("d\n")

        assert followed(path, rotate, go_on) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("older", [0, 3])
def test_a_reader_that_is_several_rotations_behind_misses_no_line(
    tmp_path: Path, older: int
) -> None:
    """Also if its file was moved or deleted meanwhile; no line comes twice."""
    path = tmp_path / "log"
    numbers = iter(range(1000))

    def write(count: int) -> None:
        for file in tmp_path.iterdir():  # the times of files are no finer than some milliseconds
            there = file.stat().st_mtime_ns
            os.utime(file, ns=(there, there - 10**9))
        for _ in range(count):
            log.write(f"{next(numbers):03}\n")

    with closing(RotatingLog(path, max_bytes=4)) as log:
        write(older + 1)
        steps = [
            lambda: write(1),
            lambda: write(MAX_OLD_FILES),
            lambda: path.rename(tmp_path / "elsewhere"),
            lambda: write(2),
        ]
        assert followed(path, *steps) == [f"{older + number:03}" for number in range(9)]
        deleted = followed(path, lambda: write(MAX_OLD_FILES + 3))
        assert deleted == [f"{older + number:03}" for number in (8, *range(11, 17))]


@pytest.mark.parametrize("then", ["b\n", "another line, longer than the first one\nand one more\n"])
def test_a_truncated_log_is_read_from_its_start(tmp_path: Path, then: str) -> None:
    """Also if it has grown beyond what was read before."""
    path = tmp_path / "log"
    path.write_text("a long line\n")
    lines = ["a long line", *then.splitlines()]
    assert followed(path, lambda: path.write_text(then)) == lines


def test_a_log_that_is_copied_and_truncated_is_read_to_the_end_of_its_copy(tmp_path: Path) -> None:
    """As by ``copytruncate`` of logrotate; no line comes twice, also twice within one poll."""
    path, copies = tmp_path / "log", [tmp_path / "log.1", tmp_path / "log.2"]
    path.write_text("0 a\n")
    numbers = iter(range(1, 1000))

    def write(count: int) -> None:
        with path.open("a") as log:
            log.writelines(f"{next(numbers)} {'x' * 20}\n" for _ in range(count))

    def rotate(before: int, after: int) -> None:
        write(before)
        if copies[0].exists():
            copies[0].rename(copies[1])
        shutil.copy(path, copies[0])
        os.truncate(path, 0)
        write(after)

    def rotate_twice() -> None:
        rotate(1, 2)
        rotate(0, 20)

    steps = [lambda: write(3), lambda: rotate(2, 1), lambda: rotate(2, 9), rotate_twice]
    assert [int(line.split()[0]) for line in followed(path, *steps)] == list(range(41))
