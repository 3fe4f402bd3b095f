"""Installed packages are inspected without an import, and torch is installed for the driver."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.host.packages import (
    Installer,
    TorchBuild,
    bindings,
    how_to_install,
    installer,
    misreads,
    torch_build,
    version_of,
)
from tests.harness.parameters import mostly_long
from tests.harness.programs import run_program


@contextmanager
def installed(folder: Path, files: Mapping[str, str]) -> Iterator[None]:
    """Create files in the first folder of the import path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    before = sys.modules.pop("pynvml", None)  # an imported module would be found instead
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if before is not None:
            sys.modules["pynvml"] = before


def distribution(name: str, version: str, *files: str) -> dict[str, str]:
    """Build the files of an installed distribution."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/METADATA"))
    return {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/RECORD": record,
        **dict.fromkeys(files, ""),
    }


def test_the_installed_binding_is_from_nvidia() -> None:
    found = bindings()
    assert found.version is not None
    assert found.rivals == ()
    assert found.shadow is None


def test_distributions_that_shadow_the_binding_are_found(tmp_path: Path) -> None:
    files = distribution("pynvml", "11.5.3", "pynvml/__init__.py")
    files |= distribution("nvidia_ml_py3", "7.352.0", "pynvml.py")
    with installed(tmp_path, files):
        found = bindings()
    assert found.rivals == ("nvidia-ml-py3 7.352.0", "pynvml 11.5.3")
    assert found.shadow == str(tmp_path / "pynvml/__init__.py")
    assert found.version is not None


def test_a_pynvml_distribution_without_a_module_does_not_shadow(tmp_path: Path) -> None:
    with installed(tmp_path, distribution("pynvml", "13.0.1", "pynvml_utils/__init__.py")):
        found = bindings()
    assert (found.rivals, found.shadow) == ((), None)


def test_a_stray_file_that_shadows_the_binding_is_found(tmp_path: Path) -> None:
    with installed(tmp_path, {"pynvml.py": ""}):
        assert bindings().shadow == str(tmp_path / "pynvml.py")


@mostly_long(
    "text, version, cuda, without",
    [
        (
            "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n",
            "2.11.0+cu130",
            "13.0",
            False,
        ),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "2.13.0+cpu", None, True),
        ("__version__ = '2.6'\ncuda = '12.4'\n", "2.6", "12.4", False),
        ("nothing of the kind\n", None, None, False),
    ],
    quick=2,
)
def test_the_cuda_version_of_torch_is_read_without_an_import(
    tmp_path: Path,
    text: str,
    version: str | None,
    cuda: str | None,
    without: bool,  # noqa: FBT001 - a column of the table
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "torch/version.py").write_text(text)
    code = "from sentinel.host.packages import torch_build; print(vars(torch_build()))"
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    words = [sys.executable, "-c", code]
    done = run_program(*words, env={**os.environ, "PYTHONPATH": paths}, check=True)
    assert ast.literal_eval(done.stdout) == {"version": version, "cuda": cuda, "without": without}


@pytest.mark.parametrize(
    ("driver", "binding", "wrong"),
    [
        ("580.159.04", "13.615.71", False),
        ("535.42", "12.535.108", False),
        ("535.43.02", "12.535.108", True),
        ("535.86.10", "13.615.71", True),
        ("535.87", "13.615.71", False),
        ("535.54.03", "12.535.77", False),
        ("580.159.04", "12.535.77", True),
        ("unknown", "12.535.77", False),
        ("unknown", "13.615.71", False),
    ],
)
def test_only_certain_pairs_of_driver_and_binding_misread_pids(
    driver: str, binding: str, *, wrong: bool
) -> None:
    assert (misreads(version_of(driver), version_of(binding)) is not None) is wrong


#: What an import of torch finds, and how ``torch_build`` describes it.
BUILDS: dict[str, tuple[dict[str, str], TorchBuild | None]] = {
    "with CUDA": (
        {"torch/__init__.py": "", "torch/version.py": "__version__ = '2.13'\ncuda = '13.0'\n"},
        TorchBuild(version="2.13", cuda="13.0", without=False),
    ),
    "without CUDA": (
        {"torch/__init__.py": "", "torch/version.py": "__version__ = '2.13'\ncuda = None\n"},
        TorchBuild(version="2.13", cuda=None, without=True),
    ),
    "one file": ({"torch.py": ""}, TorchBuild(version=None, cuda=None, without=False)),
    "a folder": ({"torch/notes.txt": ""}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("files", "expected"), BUILDS.values(), ids=BUILDS)
def test_the_build_of_torch_is_read_without_an_import(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    expected: TorchBuild | None,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert torch_build() == expected
    assert "torch" not in sys.modules


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
