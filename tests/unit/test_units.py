"""Values with units are parsed, formatted and rejected with a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.parsers import (
    one_of,
    parse_address,
    parse_count,
    parse_memory,
    parse_names,
    parse_power,
    parse_rate,
)
from sentinel.config.setting import Form
from sentinel.protocol.stressor import MemoryTarget
from sentinel.units import format_duration, format_size, parse_duration, parse_size

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
        (" 20GiB ", 20 * GIB),
        ("1.5GB", 1_500_000_000),
        ("0.5TiB", TIB // 2),
        ("2TB", 2 * 10**12),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "20",
        "GiB",
        "20 G",
        "20GiBs",
        "-1GiB",
        "0GiB",
        "0.4B",
        "1e3MiB",
        "1,5GiB",
        "20%",
        "٣GiB x",
    ],
)
def test_a_malformed_size_is_rejected_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("0.88", MemoryTarget(share=0.88)),
        ("88%", MemoryTarget(share=0.88)),
        ("88 %", MemoryTarget(share=0.88)),
        ("100%", MemoryTarget(share=1.0)),
        ("1", MemoryTarget(share=1.0)),
        ("0.5%", MemoryTarget(share=0.005)),
        ("20GiB", MemoryTarget(size=20 * GIB)),
        ("1B", MemoryTarget(size=1)),
    ],
)
def test_memory_is_a_share_or_a_size(text: str, target: MemoryTarget) -> None:
    assert parse_memory(text) == target


@pytest.mark.parametrize("text", ["0", "0%", "1.01", "101%", "88", "-0.5", "", "half", "20 GiBit"])
def test_a_share_outside_zero_to_one_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (share|size)"):
        parse_memory(text)


@given(st.integers(min_value=1, max_value=100))
def test_a_percentage_is_a_hundredth(percent: int) -> None:
    assert parse_memory(f"{percent}%") == MemoryTarget(share=percent / 100)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("25ms", 0.025),
        ("10s", 10.0),
        ("90", 90.0),
        ("0.5", 0.5),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("1.5h", 5400.0),
        ("7d", 604800.0),
        ("1m500ms", 60.5),
    ],
)
def test_a_duration_is_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1s", "s", "1 hour", "10sec", "1h30", "nan", "inf", "1e3", "1h,30m"]
)
def test_a_malformed_duration_is_rejected_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@given(st.text())
def test_any_text_is_parsed_or_raises_value_error(text: str) -> None:
    for parse in (parse_size, parse_memory, parse_duration):
        try:
            parse(text)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
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
        (59.9, "59.9 s"),
        (60, "1 min"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (5430, "1 h 30 min"),
        (172800, "48 h"),
    ],
)
def test_a_duration_is_formatted_in_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=1, max_value=2**50))
def test_a_formatted_size_parses_to_nearly_the_same(size: int) -> None:
    unit = max(unit for unit in (1, KIB, MIB, GIB, TIB) if unit <= size)
    assert abs(parse_size(format_size(size)) - size) <= unit / 2


@given(st.floats(min_value=0.001, max_value=59.9))
def test_a_formatted_short_duration_parses_to_nearly_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=0.051)


@pytest.mark.parametrize(
    ("text", "names"),
    [("0", ("0",)), ("0, GPU-1a", ("0", "GPU-1a")), ("all", ()), ("all,0", ("all", "0"))],
)
def test_a_list_of_names_has_commas(text: str, names: tuple[str, ...]) -> None:
    assert parse_names(text) == names


@pytest.mark.parametrize("text", ["", "0,", ",", "0,,1", " "])
def test_an_empty_name_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="has an empty name"):
        parse_names(text)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "two", "٣", "0x2", "1234567890"])
def test_a_malformed_count_is_rejected(text: str) -> None:
    assert [parse_count("0"), parse_count(" 12 ")] == [0, 12]
    with pytest.raises(ValueError, match="is not a whole number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["", "-1", "1e3", "1.", ".5", "fast", "nan", "inf"])
def test_a_malformed_rate_is_rejected(text: str) -> None:
    assert [parse_rate("2"), parse_rate("0.25")] == [2.0, 0.25]
    with pytest.raises(ValueError, match="is not a number"):
        parse_rate(text)


def test_a_power_is_a_number_with_a_unit() -> None:
    powers = ["400W", "0.4kW", " 400 w", "1.5KW"]
    assert list(map(parse_power, powers)) == [400.0, 400.0, 400.0, 1500.0]


@pytest.mark.parametrize("text", ["", "400", "W", "0W", "-1W", "400 MW", "50%", "1e2W"])
def test_a_malformed_power_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a power"):
        parse_power(text)


def test_only_the_listed_words_are_accepted() -> None:
    parse = one_of("each", "all").parse
    assert [parse("each"), parse(" all ")] == ["each", "all"]
    with pytest.raises(ValueError, match="'any' is not one of each, all"):
        parse("any")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8765", "127.0.0.1:8765"),
        (":8765", "127.0.0.1:8765"),
        ("0", "127.0.0.1:0"),
        ("localhost:08765", "localhost:8765"),
        ("0.0.0.0:1", "0.0.0.0:1"),
        (" gpu-7.lan:65535 ", "gpu-7.lan:65535"),
        ("[::1]:8765", "[::1]:8765"),
    ],
)
def test_an_address_without_a_host_is_the_loopback_address(text: str, address: str) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", "65536", "-1", "::1", "::1:80", "[x]:1", "a b:1", "1:2:3"]
)
def test_a_malformed_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address; write one such as"):
        parse_address(text)


def test_off_is_none_and_other_texts_are_parsed() -> None:
    parse = Form(parse=parse_address, metavar="ADDRESS").or_off().parse
    assert parse(" off ") is None
    assert parse("8765") == "127.0.0.1:8765"
    with pytest.raises(ValueError, match="not an address"):
        parse("offline")
