"""The native protocol of the journal: how entries are encoded, and when the journal is used."""

from __future__ import annotations

import os
import re
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.host.systemd import encode, field_name, gets_stream, match_of_this_run
from tests.harness.journal_harness import decode

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(), max_size=6))
def test_an_encoded_entry_has_the_same_fields(fields: dict[str, str]) -> None:
    expected = {name: text.encode(errors="backslashreplace") for name, text in fields.items()}
    assert decode(encode(fields)) == expected


def test_the_encoding_is_that_of_the_protocol() -> None:
    sized = b"B\n" + struct.pack("<Q", 3) + b"x\ny\n"
    assert encode({"A": "1", "B": "x\ny"}) == b"A=1\n" + sized


@given(st.text())
def test_a_name_of_a_field_is_valid(text: str) -> None:
    assert re.fullmatch(r"([A-Z][A-Z0-9_]{0,63})?", field_name(text))


@pytest.mark.parametrize(
    ("text", "name"), [("gpu", "GPU"), ("temperature_c", "TEMPERATURE_C"), ("_1a.b", "A_B")]
)
def test_names_are_in_capital_letters(text: str, name: str) -> None:
    assert field_name(text) == name


def test_only_a_stream_to_the_journal_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(path))
        read, write = os.pipe()
        try:
            there = os.fstat(write)
            environ = {"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}"}
            assert gets_stream(write, environ, path)
            other, _ = os.pipe()
            assert not gets_stream(other, environ, path)  # a child that was redirected
            assert not gets_stream(write, {}, path)
            assert not gets_stream(write, {"JOURNAL_STREAM": "nonsense"}, path)
            assert not gets_stream(write, environ, tmp_path / "missing")
        finally:
            for file in (read, write, other, _):
                os.close(file)
        assert not gets_stream(write, environ, path)  # closed


def test_the_entries_of_a_run_are_found_by_its_invocation_or_its_pid() -> None:
    assert match_of_this_run({"INVOCATION_ID": "ab" * 16}) == f"_SYSTEMD_INVOCATION_ID={'ab' * 16}"
    assert match_of_this_run({"INVOCATION_ID": "--root=/"}) == f"_PID={os.getpid()}"
    assert match_of_this_run({}) == f"_PID={os.getpid()}"
