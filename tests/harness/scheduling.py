"""The distribution of tests over the workers of pytest-xdist."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

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
    """Name what the tests of a module share: a process with torch, module fixtures, or nothing."""
    source = (_ROOT / path).read_text()
    if "stressor_harness" in source:
        return "stressor_harness"
    return path if 'scope="module"' in source else None
