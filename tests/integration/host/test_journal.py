"""Entries reach a journal over a real datagram socket, whatever their size."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sentinel.host.systemd import Journal
from tests.harness.journal_harness import fake_journal


@pytest.mark.parametrize("size", [0, 1, 10_000, 300_000, 3_000_000])
def test_an_entry_of_any_size_arrives(tmp_path: Path, size: int) -> None:
    path = tmp_path / "socket"
    with fake_journal(path) as journal, closing(Journal(path)) as sender:
        before = len(list(Path("/proc/self/fd").iterdir()))
        sender.send({"MESSAGE": "x" * size, "LINES": "a\nb"})
        assert journal.take() == {"MESSAGE": "x" * size, "LINES": "a\nb"}
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_journal_that_comes_back_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with closing(Journal(path)) as sender:
        with fake_journal(path):
            sender.send({"MESSAGE": "1"})
        with pytest.raises(ConnectionRefusedError):
            sender.send({"MESSAGE": "2"})
        path.unlink()
        with fake_journal(path) as journal:
            sender.send({"MESSAGE": "3"})
            assert journal.take() == {"MESSAGE": "3"}
