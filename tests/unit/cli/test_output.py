"""Tables fit their width, colours and characters the stream; JSON has the types of the API."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from sentinel.cli.display import output
from sentinel.cli.display.output import Table, cell_width, terminal_width, to_json
from sentinel.client.requester import decode
from sentinel.errors import ExitCode, NotRunningError, SentinelError
from sentinel.protocol.history_types import PastUse, Usage

HEADER = ("GPU", "NAME", "HOURS", "VERDICT")
ROW = ("0", "NVIDIA H200 NVL", "1,234.5 h", "PASS standard 2026-11-20")


TABLE = Table(HEADER, flexible=1, right=(0, 2))


def lines(width: int) -> list[str]:
    return TABLE.lines([ROW], width, colour=False)


def test_a_wide_table_has_one_line_per_row() -> None:
    assert lines(80) == [
        "GPU NAME                HOURS VERDICT",
        "  0 NVIDIA H200 NVL 1,234.5 h PASS standard 2026-11-20",
    ]


def test_the_flexible_column_is_cut_first() -> None:
    assert lines(50)[1] == "  0 NVIDIA H20… 1,234.5 h PASS standard 2026-11-20"


@pytest.mark.parametrize("width", [44, 40, 30])
def test_columns_without_room_continue_below_and_are_not_cut(width: int) -> None:
    made = lines(width)
    assert "1,234.5 h" in made[1]
    assert made[2] == "      VERDICT PASS standard 2026-11-20"
    assert "VERDICT" not in made[0]
    assert all(len(line) <= max(width, 38) for line in made)


def test_every_number_is_there_however_narrow() -> None:
    for width in range(1, 80):
        text = " ".join(lines(width))
        assert "1,234.5 h" in text
        assert "2026-11-20" in text


def test_an_empty_cell_takes_no_line_of_its_own() -> None:
    assert len(TABLE.lines([("0", "H200", "1 h", "")], 16)) == 2
    assert len(Table(("A", "B"), flexible=0).lines([("x", "")], 1)) == 2


def test_control_characters_are_question_marks_and_wide_ones_take_two_columns() -> None:
    made = Table(("WHO", "N"), flexible=0).lines([("\x1b[2Jpy\nthon\x07 日本", "1")], 40)
    assert made[1] == "?[2Jpy?thon? 日本 1"
    assert cell_width(made[0]) == cell_width(made[1])
    assert Table(("WHO",), flexible=0).lines([("日本日本日本",)], 7)[1] == "日本日…"
    assert [cell_width(text) for text in ("🚀", "e\u0301", "ดิ", "日本 a")] == [2, 1, 1, 6]


def test_styles_are_escape_sequences_only_in_colour() -> None:
    table = Table(("V",), flexible=0, styles={"PASS": "green"})
    assert table.lines([("PASS",)], 9, colour=False) == ["V", "PASS"]
    assert table.lines([("PASS",)], 9, colour=True)[1] == "\x1b[32mPASS\x1b[0m"


def test_a_pipe_is_wide_and_columns_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() > 200
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal_width() == 72


VARIABLES = ("NO_COLOR", "FORCE_COLOR", "TERM")
REPORT = """go on with: sentinel burnin --resume /a/long/path
run A, contiguous, sentinel 0.2.0, torch 2.13
PASS  GPU 0
      memory  done   10 s of work, 1 of 1 passes"""


class Stream(io.StringIO):
    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize("tty", [True, False])
def test_a_report_fits_a_terminal_but_for_commands(
    monkeypatch: pytest.MonkeyPatch, *, tty: bool
) -> None:
    monkeypatch.setattr(sys, "stdout", Stream(tty=tty))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    fitted = REPORT.replace("1 of 1", "1 of\n        1").replace("torch 2", "torch\n  2")
    assert output.fit_report(REPORT) == (fitted if tty else REPORT)


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


ANY = "a… 2 \N{MULTIPLICATION SIGN} b ü 日█▁"


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("ascii", ANY, b"a~ 2 x b ? ?#_"),
        ("latin-1", ANY, b"a~ 2 \xd7 b \xfc ?#_"),
        # The name of a file that is no text.
        ("utf-8", b"log\xff".decode(errors="surrogateescape"), b"log?"),
    ],
)
def test_what_an_encoding_does_not_have_is_replaced(
    monkeypatch: pytest.MonkeyPatch, encoding: str, text: str, expected: bytes
) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer, encoding=encoding))
    output.degrade_streams()
    sys.stdout.write(text)
    sys.stdout.flush()
    assert buffer.getvalue() == expected


FROM_API = {
    "gpu": "GPU-a",
    "index": 0,
    "from": "2026-11-23T15:27:39+00:00",
    "until": "2026-11-23T15:35:22+00:00",
    "going_on": False,
    "who": "sentinel",
    "ours": True,
    "pid": 6166,
    "user": None,
    "seconds": 463.0,
}


def test_a_use_is_printed_as_the_api_returned_it() -> None:
    (use,) = decode(Usage, {"schema_version": 1, "usage": [FROM_API]}).usage
    assert isinstance(use, PastUse)
    printed = to_json(use)
    assert printed.keys() == FROM_API.keys()
    assert datetime.fromisoformat(printed["from"]) == datetime(2026, 11, 23, 15, 27, 39, tzinfo=UTC)


def test_without_a_terminal_an_error_that_stays_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, other = NotRunningError("no daemon runs"), NotRunningError("no answer")
    results: list[SentinelError | list[str]] = [gone, gone, ["a row"], gone, other, other]

    def show() -> list[str]:
        if not results:
            raise KeyboardInterrupt
        result = results.pop(0)
        if isinstance(result, SentinelError):
            raise result
        return result

    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert output.repeat(show, 1.0) == ExitCode.INTERRUPTED
    printed = capsys.readouterr()
    assert printed.out == "a row\n\n"
    lines = [line for line in printed.err.splitlines() if line.startswith("sentinel: ")]
    assert lines == ["sentinel: no daemon runs"] * 2 + ["sentinel: no answer"]
