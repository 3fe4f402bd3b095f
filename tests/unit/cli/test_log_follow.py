"""The end of a log is read and followed across rotation and truncation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.cli.display import log_lines
from sentinel.cli.display.log_lines import follow, last_lines, last_wanted
from sentinel.errors import ConfigError


@pytest.mark.parametrize(
    ("content", "count", "lines"),
    [
        ("", 5, []),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb\nc\n", 9, ["a", "b", "c"]),
        ("a\nb\n", 0, []),
        ("a\nb\nunfinished", 1, ["b"]),
        ("\n\n\n", 2, ["", ""]),
        ("x" * 300 + "\nb\n", 2, ["x" * 300, "b"]),
    ],
)
def test_the_last_lines_are_complete(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    count: int,
    lines: list[str],
) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK_BYTES", 7)
    path = tmp_path / "log"
    path.write_text(content)
    assert last_lines(path, count) == lines


@pytest.mark.parametrize("block", [1, 7, 2**16])
@pytest.mark.parametrize(
    ("content", "count", "lines"),
    [
        ("", 5, []),
        ("unfinished", 5, []),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb\nc\n", 9, ["a", "b", "c"]),
        ("a\n" + "skip\n" * 50 + "b\nskip\nc", 2, ["a", "b"]),
        ("\na\n", 2, ["", "a"]),
    ],
)
def test_the_last_wanted_lines_are_found_behind_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    content: str,
    count: int,
    lines: list[str],
) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK_BYTES", block)
    path = tmp_path / "log"
    path.write_text(content)
    assert last_wanted(path, count, lambda line: line != "skip") == lines


def test_the_search_for_wanted_lines_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK_BYTES", 5)
    monkeypatch.setattr(log_lines, "_MAX_SEARCHED_BYTES", 50)
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


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long line\n")
    assert followed(path, lambda: path.write_text("b\n")) == ["a long line", "b"]
