"""The example of a workload package: it runs, and its check detects damage."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel.errors import ChildExitCode
from sentinel.protocol.stressor import Failed, FailureKind
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.stressor_harness import Child, stressors

EXAMPLE = Path(__file__).parents[3] / "examples" / "sentinel-workload-fft"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Child]]:
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))  # a spawned child inherits the import path
    with stressors(tmp_path) as start:
        yield start
    sys.modules.pop("sentinel_workload_fft", None)


@pytest.fixture
def workload() -> str:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    return str(project["entry-points"]["sentinel.workloads"]["fft"])


def install(source: Path, installed: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--target", str(installed)]
    subprocess.run([*pip, *offline, str(source)], check=True)


@pytest.mark.long
def test_the_installed_example_runs_by_its_name(simulated: SimulatedHost, tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "source")  # the build writes into its folder
    installed = tmp_path / "installed"
    install(source, installed)
    flags = ("--poll", "200ms", "--status-every", "1s", "--workload", "fft:length=1024")
    with simulated.sentinel(1, *flags, environment={"PYTHONPATH": str(installed)}) as sentinel:
        eventually(lambda: any(event.get("checks", 0) > 0 for event in sentinel.events))
        assert "stressor.failed" not in sentinel.names()


@pytest.mark.long
def test_the_package_of_the_document_runs_by_its_name(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    text = (EXAMPLE.parents[1] / "docs" / "guides/workloads.md").read_text()
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (source / "pyproject.toml").write_text(project)
    shutil.copy(EXAMPLE.parent / "workloads/traffic.py", source)
    install(source, installed)
    flags = ("--poll", "200ms", "--status-every", "1s", "--workload", "traffic:turns=2")
    with simulated.sentinel(1, *flags, environment={"PYTHONPATH": str(installed)}) as sentinel:
        eventually(lambda: any(event.get("bytes_per_s") for event in sentinel.events))
        assert "stressor.failed" not in sentinel.names()


@pytest.mark.long
def test_the_example_runs_with_its_option(start: Callable[..., Child], workload: str) -> None:
    child = start(f"{workload}:length=1024")
    progress = child.wait_for_work("iterations", "flops")
    assert progress.checks == progress.iterations
    assert progress.errors == 0
    assert child.stop() == ChildExitCode.DONE


@pytest.mark.long
def test_the_example_refuses_an_invalid_option(start: Callable[..., Child], workload: str) -> None:
    failed = start(f"{workload}:length=1000").wait_for(Failed)
    assert failed.kind is FailureKind.UNUSABLE
    assert failed.reason == "fft: length=1000 is not a power of two from 16 to 1048576"


@pytest.mark.parametrize("damage", [float("nan"), 1e6])
def test_the_check_of_the_example_detects_damage(
    start: Callable[..., Child], workload: str, damage: float
) -> None:
    module: Any = import_module(workload.partition(":")[0])
    blocks = [torch.empty(4, 16, dtype=torch.complex64) for _ in range(2)]
    transform = module._Transform(torch.device("cpu"), blocks)
    for _ in range(4):
        transform.step()
    assert transform.errors.last_news() == 0
    blocks[1][2, 3] = damage
    transform.step()
    assert transform.errors.last_news() == 0, "the other block is intact"
    transform.step()
    assert transform.errors.last_news() == 1
