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


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-0.5", "", "half", "20 GiBit"])
def test_a_share_outside_zero_to_one_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a share.* such as 88%"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("0.5", "50% for a share or 0.5GiB for a size"),
        ("1", "100% for a share or 1GiB for a size"),
        ("38", "38% for a share or 38GiB for a size"),
        ("2048", "2048GiB for a size"),
    ],
)
def test_memory_without_a_unit_is_rejected_with_both_forms(text: str, forms: str) -> None:
    """GPU Occupy and doma mean GB, and a share of 1 is all."""
    with pytest.raises(ValueError, match=f"{text!r} has no unit; write {forms}$"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "forms"),
    [("0.05", "5% or 0.05%"), ("1", "100% or 1%"), ("25", "25%")],
)
def test_a_share_without_a_unit_is_rejected_with_both_forms(text: str, forms: str) -> None:
    with pytest.raises(ValueError, match=f"has no unit; write {forms}$"):
        parse_share(text)


@pytest.mark.parametrize("text", ["0", "0%", "101%", "101", "-5%", "5 percent", ""])
def test_a_share_that_is_none_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a share; write one above 0% and up to 100%"):
        parse_share(text)


@given(st.integers(min_value=1, max_value=100))
def test_a_percentage_is_a_hundredth(percent: int) -> None:
    assert parse_memory(f"{percent}%") == MemoryTarget(share=percent / 100)


@pytest.mark.parametrize(
    ("text", "names"),
    [("0", ("0",)), ("0, GPU-1a", ("0", "GPU-1a")), ("all", ()), ("all,0", ("all", "0"))],
)
def test_a_list_of_names_has_commas(text: str, names: tuple[str, ...]) -> None:
    assert parse_names(text) == names


@pytest.mark.parametrize("parse", [parse_names, parse_gpus])
@pytest.mark.parametrize("text", ["", "0,", ",", "0,,1", " "])
def test_an_empty_name_is_rejected(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match="has an empty name"):
        parse(text)


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


def test_a_range_that_ends_before_it_begins_is_rejected() -> None:
    with pytest.raises(ValueError, match="'0,3-1' has '3-1', which ends before it begins, in it"):
        parse_gpus("0,3-1")


@given(st.text() | st.text("0123456789-, ", max_size=12))
def test_any_text_is_parsed_or_raises_value_error(text: str) -> None:
    for parse in (parse_gpus, parse_memory, parse_size, parse_duration):
        with contextlib.suppress(ValueError):
            parse(text)


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
