"""The folder of a run may be another user's: what is no file of a run is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.run import earlier_work
from sentinel.burnin.run_folder import RunFolder, lines, read_object
from sentinel.errors import ConfigError
from tests.harness.other_user import STRANGER

#: Deeper than any parser goes.
DEEP = "[" * 100_000


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "not a regular file"),
    (endless, "not a regular file"),
    (lambda path: path.write_text(f"{DEEP}\n"), "not JSON"),
    (lambda path: path.write_bytes(b"\xff\xfe\n"), "not JSON"),
]


@pytest.mark.parametrize(("make", "why"), ODD)
def test_an_odd_file_is_refused(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    folder = RunFolder(path=tmp_path)
    make(folder.header)
    make(folder.events)
    with pytest.raises(ConfigError, match=f"run.json.*{why}"):
        read_object(folder.header)
    with pytest.raises(ConfigError, match=f"run.json.*{why}"):
        read_run(folder)
    with pytest.raises(ConfigError, match=f"events.jsonl.*{why}"):
        list(lines(folder.events))


def test_a_list_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("[]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        read_object(path)


def test_a_line_that_is_too_long_is_not_read_whole_and_no_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": 1}\n')
    os.truncate(path, 2**36)  # it has no blocks; as one line, it would not fit into the memory
    read = lines(path)
    assert next(read) == {"event": 1}
    with pytest.raises(ConfigError, match="line 2: longer than"):
        next(read)
    assert RunFolder(path=tmp_path / "none").event_count() == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a file away")
def test_the_run_of_another_user_is_not_resumed(tmp_path: Path) -> None:
    """Its plan names workloads, which are code."""
    folder = RunFolder(path=tmp_path)
    folder.write(folder.header, {"plan": {}})
    with pytest.raises(ConfigError, match="not a run of this version"):
        earlier_work(folder, datetime.now(UTC), (), Thresholds())
    os.chown(folder.header, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"belongs to uid {STRANGER}") as refused:
        earlier_work(folder, datetime.now(UTC), (), Thresholds())
    assert "who began the run" in str(refused.value.remedy)
