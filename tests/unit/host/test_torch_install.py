"""The command that installs torch is for the driver's CUDA, and for what installs packages."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from sentinel.host.installed.torch_install import Installer, how_to_install, installer

PIP = Installer(python="/venv/bin/python")


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("595.10", "whl/cu130"),
        ("580.65.06", "whl/cu130"),
        ("579.99", "whl/cu126"),
        ("525.60.13", "whl/cu126"),
        ("520.61.05", "whl/cu118"),
        ("450.80.02", "whl/cu118"),
        ("450.66", "install driver 525 or newer"),
        ("what", "https://pytorch.org/get-started/locally/"),
        (None, "https://pytorch.org/get-started/locally/"),
    ],
)
def test_the_index_is_for_the_newest_cuda_that_the_driver_supports(
    driver: str | None, expected: str
) -> None:
    assert expected in how_to_install(driver, PIP)


def test_another_build_is_replaced() -> None:
    """Pip keeps an installed 2.13.0+cpu, as that satisfies any requirement of torch 2.13.0."""
    index = "https://download.pytorch.org/whl/cu130"
    assert how_to_install("580.65", PIP) == (
        f"Run: /venv/bin/python -m pip install torch --index-url {index}"
    )
    assert how_to_install("580.65", PIP, replace=True) == (
        "Run: /venv/bin/python -m pip uninstall --yes torch && "
        f"/venv/bin/python -m pip install torch --index-url {index}"
    )


def test_an_environment_without_pip_is_for_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    index = "https://download.pytorch.org/whl/cu130"
    assert how_to_install("580.65", installer(), replace=True) == (
        f"Run: uv pip install --python {sys.executable} --reinstall-package torch torch "
        f"--index-url {index}"
    )
