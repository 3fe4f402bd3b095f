"""A run that has no time for all tests begins with those that find most, and says what it left."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program
from tests.harness.scheduling import FIRST, rotated
from tests.harness.timing import TIMEOUT_S

SMALL = "tests/unit/core/test_daemon.py"
OTHERS = [f"tests/unit/test_{number}.py" for number in range(8)]


def order(key: str, files: list[str]) -> list[str]:
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{file}::test_{n}") for file in files for n in (2, 1)
    ]
    return [item.nodeid for item in rotated(items, key)]


def test_those_that_find_most_come_first_and_the_others_take_turns_to_be_last() -> None:
    files = [*OTHERS, *reversed(FIRST)]
    orders = {key: order(key, files) for key in "abcdefgh"}
    for found in orders.values():
        assert [name.partition("::")[0] for name in found][: 2 * len(FIRST) : 2] == list(FIRST)
        assert sorted(found) == sorted(order("a", sorted(files)))
        assert all(
            found.index(f"{file}::test_2") + 1 == found.index(f"{file}::test_1") for file in files
        )
    assert len({found[-1] for found in orders.values()}) > 2
    assert orders["a"] == order("a", sorted(files)), "the order of a key is always the same"


def run_pytest(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    done = run_program(*command, *words, SMALL, cwd=ROOT)
    return done.returncode, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_what_is_not_begun_in_time_is_left_out_and_named(workers: tuple[str, ...]) -> None:
    code, output = run_pytest(*workers, "--rotate", "a", "--begin-until", "0")
    assert code == 0, output
    assert " passed" not in output
    assert f"left out for lack of time: {SMALL}, " in output


@pytest.mark.long
def test_what_is_begun_in_time_runs() -> None:
    code, output = run_pytest("--begin-until", str(time.time() + TIMEOUT_S))
    assert code == 0, output
    assert " passed" in output
    assert "left out" not in output
