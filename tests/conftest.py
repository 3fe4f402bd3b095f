"""What all tests share: those that need a real GPU are skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs a real NVIDIA GPU")
