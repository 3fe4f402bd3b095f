"""Fixtures of the tests of stressors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.stressor_harness import Child, stressors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Return a function that starts stressors on a simulated GPU; all end with the test."""
    with stressors(tmp_path) as start:
        yield start
