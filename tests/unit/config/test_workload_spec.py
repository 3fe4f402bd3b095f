"""Workload specifications are parsed, and unknown names are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sentinel.config.workload_spec import check_workload, known_workloads, parse_workload
from sentinel.errors import ConfigError

if TYPE_CHECKING:
    pass


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
    ("text", "message"),
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
def test_a_malformed_specification_is_an_error_with_its_text(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_workload(text)
    assert message in str(caught.value)


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
