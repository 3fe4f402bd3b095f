"""How a workload is named and how it gets its options; no plugin is imported but this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from sentinel.errors import ConfigError
from sentinel.stressor.loading import (
    bind_options,
    check_workload,
    describe,
    known_workloads,
    load_workload,
    parse_workload,
)

if TYPE_CHECKING:
    from sentinel.stressor.context import WorkloadContext


def sample(  # type: ignore[no-untyped-def] # one option says nothing of its type
    ctx: WorkloadContext,
    size: int = 0,
    *,
    rate: float = 0.5,
    check: bool = True,
    mode: Literal["fast", "slow"] = "fast",
    width: Literal[8, 16] = 8,
    plain="x",  # noqa: ANN001
) -> None:
    """Take one option of each kind."""


def needy(ctx: object, *, target: str) -> None:
    """Need an option."""


def strange(ctx: object, *, when: list[int] | None = None) -> None:
    """Have an option that nobody can write."""


def lonely() -> None:
    """Take no context."""


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("gemm", "gemm", {}),
        (" gemm ", "gemm", {}),
        ("gemm:size=8192", "gemm", {"size": "8192"}),
        ("my-own.work_load:a=1, b = two", "my-own.work_load", {"a": "1", "b": "two"}),
        ("package.module:attribute", "package.module:attribute", {}),
        ("module:Some.thing:a=1", "module:Some.thing", {"a": "1"}),
        ("dump:path=/a:b,flag=x=y", "dump", {"path": "/a:b", "flag": "x=y"}),
        ("module:work:path=/a:b", "module:work", {"path": "/a:b"}),
        ("gemm:text=", "gemm", {"text": ""}),
    ],
)
def test_a_name_and_its_options_are_read(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_workload(text) == (name, options)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "does not name a workload"),
        (":", "does not name a workload"),
        (":size=1", "does not name a workload"),
        ("gemm:", "does not name a workload"),
        ("size=1", "does not name a workload"),
        ("a b", "does not name a workload"),
        ("module:attribute:", "does not name a workload"),
        ("my-module:attribute", "does not name a workload"),
        ("module:1st", "does not name a workload"),
        ("gemm:size=1,", "'' in 'gemm:size=1,' is not key=value"),
        ("gemm:size=1,fast", "'fast' in 'gemm:size=1,fast' is not key=value"),
        ("gemm:=1", "'=1' in 'gemm:=1' is not key=value"),
        ("gemm:size=1,size=2", "gives the option 'size' twice"),
        ("module:attribute:size", "'size' in 'module:attribute:size' is not key=value"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_workload(text)
    assert complaint in str(caught.value)


def test_the_built_in_workloads_are_known_with_where_they_come_from() -> None:
    known = known_workloads()
    assert {"elementwise", "gemm", "hold"} <= known.keys()
    assert known["gemm"].startswith("gpu-sentry ")
    assert known["gemm"].endswith(" (sentinel.stressor.workloads.gemm:gemm)")


def test_a_workload_is_checked_by_its_name_alone() -> None:
    check_workload("gemm:size=8192")
    check_workload("nowhere:to.be.found:a=1")
    with pytest.raises(
        ConfigError, match=r"no workload 'gem'; known are elementwise, .*gemm, hold"
    ):
        check_workload("gem:size=8192")


def test_every_kind_of_option_is_converted() -> None:
    given = {
        "size": "8192",
        "rate": "1e-3",
        "check": "No",
        "mode": "slow",
        "width": "16",
        "plain": "7",
    }
    assert bind_options(sample, given) == {
        "size": 8192,
        "rate": 0.001,
        "check": False,
        "mode": "slow",
        "width": 16,
        "plain": "7",
    }
    assert bind_options(sample, {}) == {}


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("size", "1.5", "a whole number"),
        ("rate", "nan", "a number"),
        ("rate", "fast", "a number"),
        ("check", "maybe", "true or false"),
        ("mode", "medium", "one of fast, slow"),
        ("width", "32", "one of 8, 16"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(key: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_options(sample, {key: value})
    text = str(caught.value)
    assert f"workload sample: option {key}={value!r} is not {allowed}; its options are" in text
    assert "size (a whole number, default 0), rate (a number, default 0.5)" in text


def test_an_unknown_option_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="workload sample has no option 'sise'; its options are"):
        bind_options(sample, {"sise": "1"})
    with pytest.raises(ConfigError, match=r"needs the option 'target'; .* target [(]text[)]"):
        bind_options(needy, {})
    with pytest.raises(ConfigError, match="which cannot be written as an option"):
        bind_options(strange, {"when": "1"})
    with pytest.raises(ConfigError, match="does not take a context"):
        bind_options(lonely, {})


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere_to_be_found:work", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("json:nothing", "AttributeError"),
        ("json:__name__", "workload json:__name__ is a str, which cannot be called"),
        ("gem", "there is no workload 'gem'"),
    ],
)
def test_a_workload_that_cannot_be_loaded_is_named(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_workload(name)
    assert complaint in str(caught.value)


def test_an_error_is_described_in_one_bounded_line() -> None:
    def fail() -> None:
        raise ValueError("first\nsecond " + "x" * 10_000)

    with pytest.raises(ValueError, match="first") as caught:
        fail()
    line = describe(caught.value)
    assert line.startswith("ValueError: first second xxx")
    assert line.endswith(" in fail)")
    assert "(test_workload_names.py:" in line
    assert len(line) < 1200


def test_an_error_whose_text_cannot_be_had_is_still_described() -> None:
    class Mute(Exception):  # noqa: N818 - it says nothing, not even that
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Mute()) == "Mute"
