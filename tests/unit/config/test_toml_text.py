"""A TOML document that others wrote is read, or refused with its source, in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.thresholds_file import parse
from sentinel.burnin.levels import load_plan
from sentinel.config.sources import read_file
from sentinel.config.toml_text import MAX_DEPTH, parse_toml
from sentinel.errors import ConfigError

DIGITS = "1" * 5_000
#: Documents that are refused, and words of the error.
REFUSED = {
    "no TOML": ("a 5", "plan.toml: not TOML: Expected '='"),
    "digits": (f"a = {DIGITS}", "an integer of more than 64 bits"),
    "hexadecimal digits": (f"a = [{{b = 0x{DIGITS}}}]", "an integer of more than 64 bits"),
    "one bit too many": (f"a = {2**63}", "an integer of more than 64 bits"),
    "a long key": (".".join("a" * 20_000) + " = 1", "a key has more than 16 parts"),
    "a long quoted key": ("""['"' . "\\"" . """ + "'' . a . " * 8 + "a]", "16 parts"),
    "a key under a long one": (f"[{'.'.join('a' * 16)}]\na = 1", "nested too deeply"),
    "lists": ("a = " + "[" * 30_000, "nested too deeply; allowed are 16 levels"),
    "tables": ("a = " + "{a.a.a = " * 6 + "1" + "}" * 6, "nested too deeply"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_toml(text, "plan.toml")
    assert str(caught.value).startswith("plan.toml: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_before_a_file_is_no_part_of_it() -> None:
    assert parse_toml('\ufeffworkload = "gemm"\r\n', "file") == {"workload": "gemm"}


def test_what_files_have_is_read() -> None:
    text = f'{".".join("a" * MAX_DEPTH)} = {2**63 - 1}\nb = "1.2.3.4.5.6.7.8.9.10.11.12.13.14.15"'
    table = parse_toml(text + f"\nc = [{-(2**63)}, 1.5e300, 1979-05-27, true]", "")
    assert table.keys() == {"a", "b", "c"}


def _plan(path: Path) -> Any:
    return load_plan("", path)


@pytest.mark.parametrize(
    "read", [read_file, _plan, lambda path: parse(path.read_text(), str(path), {})]
)
def test_every_file_in_toml_is_read_by_it(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "file.toml"
    path.write_text(f"a = {DIGITS}")
    with pytest.raises(ConfigError, match=r"file\.toml: it has an integer of more than 64 bits"):
        read(path)
