"""A table fits its width: only the flexible column is cut, and what has no room continues below."""

from __future__ import annotations

import pytest

from sentinel.cli.display.output import Table, cell_width, terminal_width

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


def test_styles_are_escape_sequences_only_in_colour() -> None:
    table = Table(("V",), flexible=0, styles={"PASS": "green"})
    assert table.lines([("PASS",)], 9, colour=False) == ["V", "PASS"]
    assert table.lines([("PASS",)], 9, colour=True)[1] == "\x1b[32mPASS\x1b[0m"


def test_a_pipe_is_wide_and_columns_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() > 200
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal_width() == 72
