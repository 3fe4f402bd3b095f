"""The texts of settings are parsed, or rejected with a message."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.setting import (
    Form,
    one_of,
    parse_address,
    parse_count,
    parse_gpus,
    parse_memory,
    parse_names,
    parse_power,
    parse_rate,
    parse_share,
)
from sentinel.protocol.stressor import MemoryTarget
from sentinel.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("88%", MemoryTarget(share=0.88)),
        ("88 %", MemoryTarget(share=0.88)),
        ("100%", MemoryTarget(share=1.0)),
        ("0.5%", MemoryTarget(share=0.005)),
        ("20GiB", MemoryTarget(size=20 * 2**30)),
        ("1B", MemoryTarget(size=1)),
    ],
)
def test_memory_is_a_share_or_a_size(text: str, target: MemoryTarget) -> None:
    assert parse_memory(text) == target


#: What a parser rejects, and how it says so.
REJECTED: list[tuple[Callable[[str], object], str, list[str]]] = [
    (
        parse_memory,
        r"is not a share.* such as 88%",
        ["0", "0%", "101%", "-0.5", "", "half", "20 GiBit"],
    ),
    (
        parse_share,
        "is not a share; write one above 0% and up to 100%",
        ["0", "0%", "101%", "101", "-5%", "5 percent", ""],
    ),
    (parse_names, "has an empty name", ["", "0,", ",", "0,,1", " "]),
    (parse_gpus, "has an empty name", ["0,", ",", "0,,1"]),
    (parse_gpus, "no GPU is named", ["", " "]),
    (parse_gpus, "the range '3-1' ends before it begins", ["0,3-1"]),
    (
        parse_count,
        "is not a whole number",
        ["", "-1", "1.5", "1e3", "two", "٣", "0x2", "1234567890"],
    ),
    (parse_rate, "is not a number", ["", "-1", "1e3", "1.", ".5", "fast", "nan", "inf"]),
    (parse_power, "is not a power", ["", "400", "W", "0W", "-1W", "400 MW", "50%", "1e2W"]),
    (
        parse_address,
        "is not an address; write one such as",
        ["", ":", "host", "host:", "65536", "-1", "::1", "::1:80", "[x]:1", "a b:1", "1:2:3"],
    ),
]


@pytest.mark.parametrize(
    ("parse", "why", "text"),
    [(parse, why, text) for parse, why, texts in REJECTED for text in texts],
)
def test_what_is_malformed_is_rejected(parse: Callable[[str], object], why: str, text: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "forms"),
    [
        (parse_memory, "0.5", "50% for a share or 0.5GiB for a size"),
        (parse_memory, "1", "100% for a share or 1GiB for a size"),
        (parse_memory, "38", "38% for a share or 38GiB for a size"),
        (parse_memory, "2048", "2048GiB for a size"),
        (parse_share, "0.05", "5% or 0.05%"),
        (parse_share, "1", "100% or 1%"),
        (parse_share, "25", "25%"),
    ],
)
def test_what_has_no_unit_is_rejected_with_its_forms(
    parse: Callable[[str], object], text: str, forms: str
) -> None:
    """GPU Occupy and doma mean GB, and a share of 1 is all."""
    with pytest.raises(ValueError, match=f"{text!r} has no unit; write {forms}$"):
        parse(text)


@given(st.integers(min_value=1, max_value=100))
def test_a_percentage_is_a_hundredth(percent: int) -> None:
    assert parse_memory(f"{percent}%") == MemoryTarget(share=percent / 100)


@pytest.mark.parametrize(
    ("text", "names"),
    [("0", ("0",)), ("0, GPU-1a", ("0", "GPU-1a")), ("all", ()), ("all,0", ("all", "0"))],
)
def test_a_list_of_names_has_commas(text: str, names: tuple[str, ...]) -> None:
    assert parse_names(text) == names


@pytest.mark.parametrize(
    ("text", "selectors"),
    [
        ("all", ()),
        ("0-3,7", ("0", "1", "2", "3", "7")),
        ("0-0", ("0",)),
        ("2-3, 1-2,01", ("2", "3", "1", "01")),
        ("12345678-1111", ("12345678-1111",)),
        ("GPU-1a, 0000:01:00.0", ("GPU-1a", "0000:01:00.0")),
        ("-1,1-,a-b", ("-1", "1-", "a-b")),
    ],
)
def test_a_range_of_gpus_is_its_indices(text: str, selectors: tuple[str, ...]) -> None:
    """The beginning of a UUID, of eight digits and a hyphen, is no range."""
    assert parse_gpus(text) == selectors


@given(st.text() | st.text("0123456789-, ", max_size=12))
def test_any_text_is_parsed_or_raises_value_error(text: str) -> None:
    for parse in (parse_gpus, parse_memory, parse_size, parse_duration):
        with contextlib.suppress(ValueError):
            parse(text)


def test_counts_and_rates_are_numbers() -> None:
    assert [parse_count("0"), parse_count(" 12 ")] == [0, 12]
    assert [parse_rate("2"), parse_rate("0.25")] == [2.0, 0.25]


def test_a_power_is_a_number_with_a_unit() -> None:
    powers = ["400W", "0.4kW", " 400 w", "1.5KW"]
    assert list(map(parse_power, powers)) == [400.0, 400.0, 400.0, 1500.0]


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


def test_off_is_none_and_other_texts_are_parsed() -> None:
    parse = Form(parse=parse_address, metavar="ADDRESS").or_off().parse
    assert parse(" off ") is None
    assert parse("8765") == "127.0.0.1:8765"
    with pytest.raises(ValueError, match="not an address"):
        parse("offline")
