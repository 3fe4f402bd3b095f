"""Sizes and durations with units are parsed, formatted and rejected with a message."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.units import (
    format_duration,
    format_exit,
    format_indices,
    format_scaled,
    format_size,
    parse_duration,
    parse_duration_or_zero,
    parse_lifetime,
    parse_size,
    parse_size_or_zero,
)

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("1kB", 1000),
        ("1KiB", KIB),
        ("512MiB", 512 * MIB),
        ("512mib", 512 * MIB),
        ("20GiB", 20 * GIB),
        ("20 GiB", 20 * GIB),
        ("4Gi", 4 * GIB),
        ("512 Mi", 512 * MIB),
        (" 20GiB ", 20 * GIB),
        ("1.5GB", 1_500_000_000),
        ("0.5TiB", TIB // 2),
        ("2TB", 2 * 10**12),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("0MiB", 0), (" 0.0 GiB ", 0), ("512MiB", 512 * MIB)]
)
def test_a_size_may_be_zero_where_that_is_allowed(text: str, size: int) -> None:
    assert parse_size_or_zero(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("25ms", 0.025),
        ("10s", 10.0),
        ("0.5s", 0.5),
        ("5m", 300.0),
        ("10 min", 600.0),
        ("1 h 5 min", 3900.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("1.5h", 5400.0),
        ("7d", 604800.0),
        ("1m500ms", 60.5),
    ],
)
def test_a_duration_is_one_or_more_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == parse_lifetime(text) == pytest.approx(seconds)


SIZES = ["", "20", "GiB", "20 G", "20GiBs", "-1GiB", "0GiB", "0.4B", "1e3MiB", "1,5GiB", "20%"]
DURATIONS = ["", "-1s", "s", "1 hour", "10sec", "1h30", "nan", "inf", "1e3", "1h,30m"]
#: What a parser rejects, and how it says so.
REJECTED: list[tuple[Callable[[str], float], str, list[str]]] = [
    (parse_size, r"is not a size|has no unit|may be", [*SIZES, "٣GiB x"]),
    (parse_size_or_zero, r"is not a size|has no unit", ["", "-0", "512", "0 bytes", "0%"]),
    (parse_duration, "is not a duration", DURATIONS),
    (parse_lifetime, "is not a duration", DURATIONS),
    (parse_duration, "is out of range; write a duration above 0", ["0", "0s", "0.0h"]),
    (parse_lifetime, "is above 366d$", ["366d1s", "400d"]),
    # MB for one program is GB for another.
    (parse_size, "'2048' has no unit; write 2048MiB or", ["2048"]),
    *(
        (parse, f"has no unit; write {forms}$", [text])
        for parse in (parse_duration, parse_duration_or_zero)
        for text, forms in (("90", "90s, 90m, 90h or 90d"), (" 0.5 ", "0.5s, 0.5m, 0.5h or 0.5d"))
    ),
]


@pytest.mark.parametrize(
    ("parse", "why", "text"),
    [(parse, why, text) for parse, why, texts in REJECTED for text in texts],
)
def test_what_is_malformed_is_rejected_and_quoted(
    parse: Callable[[str], float], why: str, text: str
) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse(text)
    assert repr(text) in str(caught.value) or repr(text.strip()) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), (" 0 ", 0.0), ("0.0", 0.0), ("0s", 0.0), ("5m", 300.0)]
)
def test_a_duration_may_be_zero_where_that_is_allowed(text: str, seconds: float) -> None:
    assert parse_duration_or_zero(text) == seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (GIB - 1, "1.0 GiB"),
        (TIB - 1, "1.0 TiB"),
        (KIB, "1 KiB"),
        (512 * MIB, "512 MiB"),
        (123 * GIB, "123.0 GiB"),
        (int(139.3 * GIB), "139.3 GiB"),
        (2 * TIB, "2.0 TiB"),
        (5000 * TIB, "5000.0 TiB"),
        (-3 * MIB, "-3 MiB"),
    ],
)
def test_a_size_is_formatted_in_its_largest_fitting_unit(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.025, "25 ms"),
        (0, "0 ms"),
        (1, "1 s"),
        (1.5, "1.5 s"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (10.02, "10 s"),
        (59.9, "59.9 s"),
        (59.97, "1 min"),
        (60, "1 min"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (5430, "1 h 30 min"),
        (172740, "47 h 59 min"),
        (172800, "2 d"),
        (421200, "4 d 21 h"),
        (259800, "3 d 10 min"),
        (179940, "2 d 1 h 59 min"),
    ],
)
def test_a_duration_is_formatted_in_a_few_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=1, max_value=2**50))
def test_a_formatted_size_parses_to_nearly_the_same(size: int) -> None:
    unit = max(unit for unit in (1, KIB, MIB, GIB, TIB) if unit <= size)
    assert abs(parse_size(format_size(size)) - size) <= unit / 2


@given(st.floats(min_value=0.001, max_value=59.9))
def test_a_formatted_short_duration_parses_to_nearly_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=0.051)


@pytest.mark.parametrize(
    ("indices", "text"),
    [([], ""), ([3], "3"), ([1, 0], "0-1"), ([7, 0, 1, 2, 2, 9], "0-2, 7, 9")],
)
def test_indices_are_shown_in_order_and_runs_as_ranges(indices: list[int], text: str) -> None:
    assert format_indices(indices) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 B/s"),
        (12.34, "12.3 B/s"),
        (999.4, "999 B/s"),
        (999.5, "1 kB/s"),
        (2.62e7, "26.2 MB/s"),
        (3.94e12, "3.94 TB/s"),
        (1.5e15, "1.5 PB/s"),
    ],
)
def test_a_rate_has_the_prefix_that_fits(value: float, text: str) -> None:
    assert format_scaled(value, "B/s") == text


def test_the_end_of_a_process_names_the_signal() -> None:
    assert format_exit(3) == "exited with code 3"
    for number in range(1, 16):
        name = signal.Signals(number).name
        assert format_exit(-number).partition(" (")[0] == f"was ended by {name}"
    assert format_exit(-signal.SIGKILL).endswith("where memory runs out: see `dmesg`)")
    assert format_exit(-40) == "was ended by signal 40"
