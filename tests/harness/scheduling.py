"""Which worker runs a test and when: shared setups, the order, and a limit of time for a run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_ROOT = Path(__file__).parents[2]


class SharedSetupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Run tests that share an expensive setup in one worker, so that it is done once.

    Any other test runs on its own, in whichever worker is free. Marks of ``xdist_group`` would
    do, but xdist 3.8 writes them to an attribute that pytest 9.2 no longer has.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _shared_setup(file_of(nodeid)) or nodeid

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a finished unit: xdist 3.8 counts the tests of all units after each test."""
        nodeid = self.registered_collections[node][item_index]
        scope = self._split_scope(nodeid)
        units = self.assigned_work[node]
        if scope in units:  # a test may be reported twice
            units[scope][nodeid] = True
            if all(units[scope].values()):
                del units[scope]
        self._reschedule(node)


def file_of(nodeid: str) -> str:
    """Return the path of the file of a test, from the root of the repository."""
    return nodeid.partition("::")[0]


def mixed(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Mix the tests that mostly wait, those of processes, evenly with those that mostly compute.

    Otherwise the cores are idle during the first half of a run and overloaded in the second.
    """
    waiting = [item for item in items if "integration" in item.path.parts]
    computing = [item for item in items if "integration" not in item.path.parts]
    shares = [
        ((number + 0.5) / len(group), index, item)
        for index, group in enumerate((waiting, computing))
        for number, item in enumerate(group)
    ]
    return [item for *_, item in sorted(shares, key=lambda share: share[:2])]


@cache
def _shared_setup(path: str) -> str | None:
    """Name what the tests of a module share: a process with torch, module fixtures, or nothing.

    The API process of most tests of the API is such a fixture, of their ``conftest.py``.
    """
    source = (_ROOT / path).read_text()
    if "stressor_harness" in source:
        return "stressor_harness"
    return path if 'scope="module"' in source or "api: ApiServer" in source else None


#: The files that find most. A run that has no time for all tests begins with them, after the files
#: whose tests share a setup: they take longest in one worker, and xdist starts them first.
FIRST = (
    "tests/integration/supervisor/test_handover.py",
    "tests/integration/supervisor/test_shutdown.py",
    "tests/integration/supervisor/test_nvml_faults.py",
    "tests/integration/supervisor/test_daemon.py",
    "tests/integration/supervisor/test_two_daemons.py",
    "tests/integration/burnin/test_trial.py",
    "tests/integration/api/test_openapi_conformance.py",
    "tests/integration/api/test_web.py",
)
_LEFT_OUT = "left out for lack of time"


def add_options(parser: pytest.Parser) -> None:
    """Add the options of a run that may not have time for all tests."""
    group = parser.getgroup("time budget")
    group.addoption(
        "--begin-until",
        type=float,
        metavar="TIME",
        help="leave out the tests that are not begun by then, in seconds since 1970",
    )
    group.addoption(
        "--rotate",
        metavar="KEY",
        help="run the files in an order that differs with every key, those that find most first",
    )


def rotated(items: Sequence[pytest.Item], key: str) -> list[pytest.Item]:
    """Sort tests by their files: :data:`FIRST`, then the others in an order that follows the key.

    The same file is not always the last one, which a run may have no time for.
    """

    def place(item: pytest.Item) -> tuple[int, str]:
        file = file_of(item.nodeid)
        if file in FIRST:
            return FIRST.index(file), ""
        return len(FIRST), hashlib.sha256(f"{key} {file}".encode()).hexdigest()

    return sorted(items, key=place)


def leave_out_if_late(config: pytest.Config) -> None:
    """Skip a test that begins too late.

    Raises:
        Skipped: The time of ``--begin-until`` is over.
    """
    until: float | None = config.option.begin_until
    if until is not None and time.time() >= until:
        pytest.skip(_LEFT_OUT)


def list_left_out(reporter: pytest.TerminalReporter) -> None:
    """Print how many tests of each file were left out."""
    left_out: dict[str, int] = {}
    for report in reporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(_LEFT_OUT):
            file = file_of(report.nodeid)
            left_out[file] = left_out.get(file, 0) + 1
    for file, number in sorted(left_out.items()):
        reporter.write_line(f"{_LEFT_OUT}: {file}, {number} tests")
