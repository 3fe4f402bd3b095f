"""The record of a daemon that is none hides no other, and ends no command."""

from __future__ import annotations

from pathlib import Path

from sentinel.host.daemons.daemon_records import describe_own, read_all, write


def test_a_record_that_is_none_is_left_out(tmp_path: Path) -> None:
    own = describe_own(tmp_path, socket="/run/sentinel.sock")
    assert write(own, tmp_path)
    for name, text in (("deep", "[" * 15_000), ("list", "[]"), ("key", '{"key": 1}')):
        (tmp_path / f"{name}.json").write_text(text)
    assert read_all(tmp_path) == [own]
