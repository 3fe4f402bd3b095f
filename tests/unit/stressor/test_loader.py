"""Workloads are imported by name, and their options are read from their signatures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from sentinel.config.specs import WORKLOADS
from sentinel.errors import ConfigError, WorkloadError
from sentinel.protocol.counters import WorkloadOption
from sentinel.stressor.loader import (
    bind,
    bind_options,
    describe,
    list_options,
    load_built_in,
    load_workload,
    summary,
)
from tests.harness.registered import register_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sentinel.stressor.context import WorkloadContext


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_to_be_found:work", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("json:nothing", "AttributeError"),
        ("json:__name__", "workload json:__name__ is a str, which cannot be called"),
        ("gem", "there is no workload 'gem'"),
    ],
)
def test_an_unloadable_workload_is_an_error_with_its_name(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_workload(name)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["foo", "gemm"])
def test_a_bad_registration_below_sentinel_costs_no_built_in_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    entries = {name: f"sentinel.stressor.nosuch:{name}"}
    monkeypatch.syspath_prepend(register_package(tmp_path, WORKLOADS, "bad_pkg", entries))
    load_built_in()
    assert load_workload("gemm").__module__ == "sentinel.stressor.workloads"
    if name == "foo":
        with pytest.raises(WorkloadError, match="workload foo cannot be imported: ModuleNotFound"):
            load_workload("foo")


def test_a_module_that_is_not_found_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_another.py").write_text("\nimport not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkloadError) as caught:
        load_workload("nowhere_to_be_found.sub:work")
    assert "PYTHONPATH" in caught.value.remedy
    assert "<frozen" not in str(caught.value)
    assert "import_module" not in str(caught.value), "it says nothing about the error"
    with pytest.raises(WorkloadError) as caught:
        load_workload("needs_another:work")
    assert caught.value.remedy == ""
    assert "(needs_another.py:2 in <module>)" in str(caught.value)


def test_a_misspelt_workload_of_a_module_has_the_nearest_one() -> None:
    with pytest.raises(WorkloadError, match="module 'json' has no attribute 'dmups'") as caught:
        load_workload("json:dmups")
    assert caught.value.remedy == "Did you mean dumps?"
    assert "loader.py" not in str(caught.value), "it says nothing about the error"


def test_an_error_is_described_in_one_bounded_line() -> None:
    def fail() -> None:
        raise ValueError("first\nsecond " + "x" * 10_000)

    with pytest.raises(ValueError, match="first") as caught:
        fail()
    line = describe(caught.value)
    assert line.startswith("ValueError: first second xxx")
    assert line.endswith(" in fail)")
    assert "(test_loader.py:" in line
    assert len(line) < 1200


def test_a_refused_thread_names_the_limit() -> None:
    refused = describe(RuntimeError("can't start new thread"))
    assert refused == "RuntimeError: can't start new thread; see `ulimit -u`"
    assert describe(RuntimeError("another")) == "RuntimeError: another"


def test_an_error_without_a_readable_text_is_still_described() -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class UnreadableRuntimeError(RuntimeError, UnreadableError):
        pass

    assert describe(UnreadableError()) == "UnreadableError"
    assert "ulimit" not in describe(UnreadableRuntimeError())


def sample(  # type: ignore[no-untyped-def] # one option has no annotation
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


def requires_option(ctx: object, *, target: str) -> None:
    """Have an option without a default."""


def unsupported_option(ctx: object, *, when: list[int] | None = None) -> None:
    """Have an option without a text form."""


def without_context() -> None:
    """Have no parameter for the context."""


def positional_option(ctx: object, size: int, /) -> None:
    """Have a positional-only option."""


def keyword_context(*, ctx: object) -> None:
    """Have a keyword-only context."""


def generator(ctx: object) -> Iterator[None]:
    """Yield, as a generator does."""
    yield


async def coroutine(ctx: object) -> None:
    """Run as a coroutine."""


class WithOptions:
    """Run a workload that is a class.

    More text.

    Args:
        size: Rows of the matrix,
            a multiple of 64.
        fast: Whether to run fast.
    """

    def __init__(self, *, size: int = 64, fast: bool = False) -> None:
        self.given = (size, fast)
        self.ran: list[object] = []

    def run(self, ctx: list[object]) -> None:
        """Record the options."""
        ctx.append(self.given)


class WithoutOptions:
    """Run without options."""

    def run(self, ctx: list[object]) -> None:
        """Record the options."""
        ctx.append("plain")


class WithoutRun:
    """Have no method ``run``."""


class WithBadRun:
    """Have a ``run`` with too many parameters."""

    def run(self, ctx: object, more: object) -> None:
        """Do nothing."""


class CallableInstance:
    """Run by a call of an instance."""

    def __call__(self, ctx: WorkloadContext, *, rate: float = 0.5) -> None:
        """Do nothing."""


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
        bind_options(requires_option, {})
    with pytest.raises(ConfigError, match="which cannot be written as an option"):
        bind_options(unsupported_option, {"when": "1"})
    with pytest.raises(ConfigError, match="cannot be called with a context"):
        bind_options(without_context, {})


@pytest.mark.parametrize(
    ("workload", "message", "remedy"),
    [
        (
            without_context,
            "workload without_context cannot be called with a context and",
            "(ctx, *, option",
        ),
        (keyword_context, "cannot be called with a context and options by name", "(ctx, *, option"),
        (positional_option, "options by name: missing a required", "def positional_option(ctx, *"),
        (generator, "workload generator is a generator: it has a `yield`", "(ctx, *"),
        (coroutine, "workload coroutine is a coroutine: it is an `async def`", "(ctx, *"),
        (WithoutRun, "workload WithoutRun is a class without a method `run`", "`run(self, ctx)`"),
        (WithBadRun, "its `run` cannot be called with the context alone", "`run(self, ctx)`"),
    ],
)
def test_a_wrong_signature_is_an_error_with_the_expected_one(
    workload: Callable[..., object], message: str, remedy: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        bind_options(workload, {})
    assert message in caught.value.what
    assert remedy in caught.value.remedy


def test_a_class_is_created_with_its_options_and_then_run() -> None:
    trace: list[object] = []
    bind(WithOptions, bind_options(WithOptions, {"size": "128", "fast": "yes"})).run(trace)
    bind(WithoutOptions, bind_options(WithoutOptions, {})).run(trace)
    bind(WithOptions, {}).run(trace)
    assert trace == [(128, True), "plain", (64, False)]


def test_the_annotations_of_a_callable_instance_are_read() -> None:
    assert bind_options(CallableInstance(), {"rate": "2"}) == {"rate": 2.0}


def test_options_are_described_by_the_docstring() -> None:
    assert summary(WithOptions) == "Run a workload that is a class."
    assert list_options(WithOptions) == (
        WorkloadOption(
            name="size",
            kind="a whole number",
            default="64",
            text="Rows of the matrix, a multiple of 64.",
        ),
        WorkloadOption(
            name="fast", kind="true or false", default="false", text="Whether to run fast."
        ),
    )
    (needed,) = list_options(requires_option)
    assert (needed.default, needed.text) == (None, "")


@pytest.mark.long
def test_no_search_for_garbage_stops_a_stressor_and_no_compiler_is_loaded_for_it() -> None:
    """In another process: this one has what other tests load."""
    script = """
import gc, json, sys
from sentinel.stressor.main import load_torch
from sentinel.host.process_setup import settle_heap
found = []
gc.callbacks.append(lambda phase, info: found.append(info['generation']))
load_torch()
searches = found.count(2), gc.isenabled()
import torch
from sentinel.stressor.simulated_device import TensorAccount
with TensorAccount(lambda size: True, lambda: 2**30) as account:
    torch.empty(8)[:4]
settle_heap()
left = len(gc.get_objects())
print(json.dumps([searches, left, account.operations, 'torch._dynamo' in sys.modules]))
"""
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    searches, left, operations, compiler = json.loads(output)
    assert searches == [0, True]
    assert left < 1000, "an import of torch makes more than 100,000"
    assert (operations > 0, compiler) == (True, False)
