"""Specifications of workloads are parsed, and options are bound to their signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from sentinel.config.workload_spec import check_workload, known_workloads, parse_workload
from sentinel.errors import ConfigError, WorkloadError
from sentinel.protocol.inspection import WorkloadOption
from sentinel.stressor.loader import describe, load_workload
from sentinel.stressor.options import bind_options, list_options, start, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    """Have an option without a text form."""


def lonely() -> None:
    """Take no context."""


def placed(ctx: object, size: int, /) -> None:
    """Want an option by its place."""


def keyed(*, ctx: object) -> None:
    """Want the context by its name."""


def yields(ctx: object) -> Iterator[None]:
    """Be a generator."""
    yield


async def waits(ctx: object) -> None:
    """Be a coroutine."""


class Warmth:
    """Be a workload that is a class.

    More of it.

    Args:
        size: Rows of the matrix,
            a multiple of 64.
        fast: Whether to hurry.
    """

    def __init__(self, *, size: int = 64, fast: bool = False) -> None:
        self.given = (size, fast)
        self.ran: list[object] = []

    def run(self, ctx: list[object]) -> None:
        """Leave a trace."""
        ctx.append(self.given)


class Plain:
    """Have no options."""

    def run(self, ctx: list[object]) -> None:
        """Leave a trace."""
        ctx.append("plain")


class Still:
    """Have no run."""


class Greedy:
    """Have a run that wants more."""

    def run(self, ctx: object, more: object) -> None:
        """Do nothing."""


class Callee:
    """Be called, as an instance is that a module made."""

    def __call__(self, ctx: WorkloadContext, *, rate: float = 0.5) -> None:
        """Do nothing."""


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
def test_a_specification_is_split_into_name_and_options(
    text: str, name: str, options: dict[str, str]
) -> None:
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
def test_a_malformed_specification_is_an_error_with_its_text(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_workload(text)
    assert complaint in str(caught.value)


def test_the_built_in_workloads_are_listed_with_their_origin() -> None:
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
def test_an_invalid_value_is_an_error_with_the_allowed_values(
    key: str, value: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_options(sample, {key: value})
    text = str(caught.value)
    assert f"workload sample: option {key}={value!r} is not {allowed}; its options are" in text
    assert "size (a whole number, default 0), rate (a number, default 0.5)" in text


def test_an_unknown_option_is_an_error_with_the_known_options() -> None:
    with pytest.raises(ConfigError, match="workload sample has no option 'sise'; its options are"):
        bind_options(sample, {"sise": "1"})
    with pytest.raises(ConfigError, match=r"needs the option 'target'; .* target [(]text[)]"):
        bind_options(needy, {})
    with pytest.raises(ConfigError, match="which cannot be written as an option"):
        bind_options(strange, {"when": "1"})
    with pytest.raises(ConfigError, match="cannot be called with a context"):
        bind_options(lonely, {})


@pytest.mark.parametrize(
    ("workload", "complaint", "remedy"),
    [
        (lonely, "workload lonely cannot be called with a context and", "(ctx, *, option"),
        (keyed, "cannot be called with a context and options by name", "(ctx, *, option"),
        (placed, "options by name: missing a required", "def placed(ctx, *"),
        (yields, "workload yields is a generator: it has a `yield`", "(ctx, *"),
        (waits, "workload waits is a coroutine: it is an `async def`", "(ctx, *"),
        (Still, "workload Still is a class without a method `run`", "`run(self, ctx)`"),
        (Greedy, "its `run` cannot be called with the context alone", "`run(self, ctx)`"),
    ],
)
def test_a_wrong_signature_is_an_error_with_the_expected_one(
    workload: Callable[..., object], complaint: str, remedy: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        bind_options(workload, {})
    assert complaint in caught.value.what
    assert remedy in caught.value.remedy


def test_a_class_is_created_with_its_options_and_then_run() -> None:
    trace: list[object] = []
    start(Warmth, trace, bind_options(Warmth, {"size": "128", "fast": "yes"}))
    start(Plain, trace, bind_options(Plain, {}))
    start(Warmth, trace, {})
    assert trace == [(128, True), "plain", (64, False)]


def test_the_annotations_of_a_callable_instance_are_read() -> None:
    assert bind_options(Callee(), {"rate": "2"}) == {"rate": 2.0}


def test_options_are_described_by_the_docstring() -> None:
    assert summary(Warmth) == "Be a workload that is a class."
    assert list_options(Warmth) == (
        WorkloadOption(
            name="size",
            kind="a whole number",
            default="64",
            text="Rows of the matrix, a multiple of 64.",
        ),
        WorkloadOption(
            name="fast", kind="true or false", default="false", text="Whether to hurry."
        ),
    )
    (needed,) = list_options(needy)
    assert (needed.default, needed.text) == (None, "")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere_to_be_found:work", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("json:nothing", "AttributeError"),
        ("json:__name__", "workload json:__name__ is a str, which cannot be called"),
        ("gem", "there is no workload 'gem'"),
    ],
)
def test_an_unloadable_workload_is_an_error_with_its_name(name: str, complaint: str) -> None:
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
    assert "(test_workload_spec.py:" in line
    assert len(line) < 1200


def test_an_error_without_a_readable_text_is_still_described() -> None:
    class Mute(Exception):  # noqa: N818 - it says nothing, not even that
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Mute()) == "Mute"
