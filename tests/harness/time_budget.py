"""A run that may not have time for all tests: which come first, and which are left out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import pytest

from tests.harness.scheduling import file_of

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
_REASON = "left out for lack of time"


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
        pytest.skip(_REASON)


def list_left_out(reporter: pytest.TerminalReporter) -> None:
    """Print how many tests of each file were left out."""
    left_out: dict[str, int] = {}
    for report in reporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(_REASON):
            file = file_of(report.nodeid)
            left_out[file] = left_out.get(file, 0) + 1
    for file, number in sorted(left_out.items()):
        reporter.write_line(f"{_REASON}: {file}, {number} tests")
