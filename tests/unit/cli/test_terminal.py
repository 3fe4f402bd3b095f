"""Colours follow --color, NO_COLOR, FORCE_COLOR and the terminal; texts degrade to the encoding."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from sentinel.cli.display import output

VARIABLES = ("NO_COLOR", "FORCE_COLOR", "TERM")


class Stream(io.StringIO):
    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    yield
    output._Choice.colour = "auto"


@pytest.mark.parametrize(
    ("option", "environment", "tty", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "", "TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_the_option_decides_before_the_variables_and_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    environment: dict[str, str],
    *,
    tty: bool,
    expected: bool,
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    @click.command
    @output.color_option
    def command() -> None:
        assert output.wants_colour(Stream(tty=tty)) is expected

    result = CliRunner().invoke(command, ["--color", option], catch_exceptions=False)
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("ascii", b"a~ 2 x b ? ?#_"), ("latin-1", b"a~ 2 \xd7 b \xfc ?#_")],
)
def test_what_an_encoding_does_not_have_is_replaced(
    monkeypatch: pytest.MonkeyPatch, encoding: str, expected: bytes
) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer, encoding=encoding))
    output.degrade_streams()
    sys.stdout.write("a… 2 \N{MULTIPLICATION SIGN} b ü 日█▁")
    sys.stdout.flush()
    assert buffer.getvalue() == expected


def test_a_name_of_a_file_that_is_no_text_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer, encoding="utf-8"))
    output.degrade_streams()
    sys.stdout.write(b"log\xff".decode(errors="surrogateescape"))
    sys.stdout.flush()
    assert buffer.getvalue() == b"log?"
