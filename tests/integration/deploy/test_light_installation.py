"""Everything but a stressor works without torch, and a present torch is left alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import documented_commands, run_program, started_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TEST_TIMEOUT_S, TIMEOUT_S
from tests.harness.wheels import (
    INSTALL_TIMEOUT_S,
    TORCH,
    Environment,
    add_torch,
    build_wheel,
    light_dependencies,
    own_environment,
)

pytestmark = [
    pytest.mark.long,  # environments are made, and the dependencies installed into them
    pytest.mark.timeout(2 * INSTALL_TIMEOUT_S + TEST_TIMEOUT_S),
]

CONSTRAINTS = ROOT / "constraints.txt"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


# --- without torch ---------------------------------------------------------------------------


class Light:
    """An installation without torch, and two simulated GPUs.

    Args:
        environment: The installation.
        folder: The folder of the simulated GPUs.
    """

    def __init__(self, environment: Environment, folder: Path) -> None:
        self.sentinel = environment.bin / "sentinel"
        self.python = environment.python
        self.folder = folder
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        self.environment = own_environment(
            SENTINEL_SIM_DIR=str(folder),
            SENTINEL_SOCKET=str(runtime / "sentinel.sock"),
            XDG_RUNTIME_DIR=str(runtime),
            XDG_STATE_HOME=str(folder / "state"),
            HOME=str(folder),
            COLUMNS="100",
        )

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command that must end with this exit code; return both outputs."""
        done = self.done(self.sentinel, *words)
        assert done.returncode == code, (words, done.stdout)
        assert "Traceback" not in done.stdout
        return done.stdout

    def run_python(self, script: str) -> str:
        """Run a script in this installation; return its output."""
        done = self.done(self.python, "-c", script)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def done(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program with the variables of this installation."""
        both = subprocess.STDOUT
        return run_program(*command, cwd=self.folder, env=self.environment, stderr=both)


@pytest.fixture(scope="module")
def without_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("light") / "venv")
    environment.pip("install", "--no-compile", "-c", CONSTRAINTS, "textual", *light_dependencies())
    environment.pip("install", "--no-compile", "--no-deps", wheel)
    assert environment.torch() == ""
    return environment


@pytest.fixture
def light(without_torch: Environment, tmp_path: Path) -> Light:
    return Light(without_torch, tmp_path)


def test_what_needs_no_daemon_works_without_torch(light: Light) -> None:
    assert "sentinel, version" in light.run("--version")
    assert "SENTINEL" in light.run("--help").upper()
    assert json.loads(light.run("--once", "--simulate", "2", "--json"))["gpus"]
    assert "gemm" in light.run("config", "show", "--offline")
    assert "ecc.mode" in light.run("check", "--verbose", "--simulate", "1")
    assert "complete" in light.run("completion", "bash")
    assert "[Service]" in light.run("install-unit", "--print")
    assert f"ExecStart={light.sentinel} " in light.run("install-unit", "--print")
    assert "no sentinel daemon runs" in light.run("status", code=3)


def test_a_missing_torch_is_reported_with_what_to_do(light: Light) -> None:
    doctor = " ".join(light.run("doctor", "--simulate", "1", code=2).split())
    assert re.search(r"problem torch not installed stressors cannot start do: ", doctor)
    for words in (
        ["run", "--simulate", "1"],
        ["start", "--simulate", "1"],
        ["workloads", "selftest", "--simulate", "1"],
        ["workloads", "try", "gemm", "--simulate", "1"],
        ["demo"],
    ):
        text = light.run(*words, code=2)
        assert "torch is not installed: stressors cannot start" in text
        assert "sentinel run --monitor" in text
        assert "The foreign job" not in text, "the demo proves nothing"
    assert "torch is not installed." in light.run("workloads", code=1)


USES_THE_LIBRARY = """
import sentinel, sys
client = sentinel.connect()
print([(gpu.index, gpu.stressor, gpu.occupied) for gpu in client.status().gpus])
with client.reserve([0], bound=True) as mine:
    print(mine.indices)
with sentinel.Monitor() as monitor:
    print(monitor.is_available(), monitor.speed_multiplier(1))
"""
READS_METRICS = """
import os
from sentinel.client.transport import Address, stream_lines
print(*stream_lines(Address(socket=os.environ["SENTINEL_SOCKET"]), "/metrics", {}, 10, 10))
"""
LOOKS_AT_TOP = """
import asyncio, sentinel
from sentinel.cli.tui import Live

async def look():
    client = sentinel.connect()
    app = Live(client, client.status(), every=1)
    async with app.run_test():
        print(app.query_one("#gpus").row_count)

asyncio.run(look())
"""


def test_a_monitor_serves_its_clients_without_torch(light: Light) -> None:
    def answers() -> bool:
        return light.done(light.sentinel, "status").returncode == 0

    words = (light.sentinel, "run", "--monitor", "--simulate", "2", "--tcp", "127.0.0.1:0")
    options = {"cwd": light.folder, "env": light.environment, "stdout": subprocess.DEVNULL}
    with started_program(*words, **options) as process:
        eventually(lambda: process.poll() is not None or answers())
        assert process.poll() is None
        assert json.loads(light.run("status", "--json"))["daemon"]["simulated"] is True
        assert light.run_python(USES_THE_LIBRARY).splitlines() == [
            "[(0, 'STOPPED', False), (1, 'STOPPED', False)]",
            "(0,)",
            "True 1.0",
        ]
        assert "sentinel_gpu_memory_used_bytes" in light.run_python(READS_METRICS)
        assert light.run_python(LOOKS_AT_TOP) == "2\n"
        assert "http://127.0.0.1:" in light.run("status", "--page")
        light.run("history")
        light.run("stop")
        assert process.wait(TIMEOUT_S) == 0


# --- the recipes of docs/guides/installation.md ------------------------------------------------


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install uv and pipx."""
    environment = Environment(tmp_path_factory.mktemp("tools") / "venv")
    environment.pip("install", "--no-compile", "uv", "pipx")
    return environment


def follow(environment: Environment, recipes: list[str], wheel: Path, **variables: str) -> None:
    """Run the commands of recipes as an administrator types them, with this wheel as gpu-sentry."""
    text = "".join(documented_commands("guides/installation.md", name) for name in recipes)
    text = re.sub(r"gpu-sentry(\[\w+\])?", lambda found: f"{wheel}{found[1] or ''}", text)
    environment.install(
        ["bash", "-ec", text],
        cwd=environment.folder,
        PATH=os.pathsep.join([str(environment.bin), variables.pop("PATH", ""), os.environ["PATH"]]),
        # The versions that CI has already, and no other torch than this one.
        PIP_CONSTRAINT=str(CONSTRAINTS),
        UV_CONSTRAINT=str(CONSTRAINTS),
        **variables,
    )


@pytest.mark.parametrize(
    ("installer", "recipes"),
    [("pip", ["pin", "pip"]), ("conda", ["pin", "pip"]), ("uv", ["pin", "uv"])],
)
def test_the_torch_of_the_site_is_kept(
    wheel: Path, tools: Environment, tmp_path: Path, installer: str, recipes: list[str]
) -> None:
    """A stand-in for torch: its metadata are those of a build that no index has."""
    environment = Environment(tmp_path / "venv")
    add_torch(environment.packages, installer)
    before = environment.files_of_torch()
    follow(environment, recipes, wheel, PATH=str(tools.bin))
    assert environment.torch() == TORCH
    assert environment.files_of_torch() == before
    assert not list(environment.packages.glob("nvidia/cu*")), "nothing of CUDA came with it"
    done = subprocess.run([environment.bin / "sentinel", "--version"], check=False)
    assert done.returncode == 0


def test_an_installation_that_would_replace_torch_fails(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    add_torch(environment.packages, "pip", version="2.1.0+site")
    before = environment.files_of_torch()
    with pytest.raises(AssertionError, match="torch"):
        follow(environment, ["pin", "pip"], wheel)
    assert environment.files_of_torch() == before


def test_pipx_uses_the_torch_outside_its_environment(
    wheel: Path, tools: Environment, tmp_path: Path
) -> None:
    """The stand-in is in the user's packages, which such an environment sees as the system's."""
    home = tmp_path / "home"
    packages = home / ".local" / "lib" / tools.packages.parent.name / "site-packages"
    packages.mkdir(parents=True)
    add_torch(packages, "pip")
    variables = {"HOME": str(home), "PIPX_HOME": str(tmp_path / "pipx")}
    (tools.folder / "torch.txt").write_text(f"torch=={TORCH}\n")
    follow(tools, ["pipx"], wheel, PIPX_BIN_DIR=str(tmp_path / "bin"), **variables)
    (python,) = (tmp_path / "pipx").glob("venvs/*/bin/python")
    show = "import torch; print(torch.__version__)"
    done = run_program(python, "-c", show, env=own_environment(**variables), check=True)
    assert done.stdout.strip() == TORCH
    assert not list((tmp_path / "pipx").glob("venvs/*/lib/python*/site-packages/torch*"))
    assert (tmp_path / "bin" / "sentinel").exists()


@pytest.mark.parametrize("name", ["light-pip", "light-uv"])
def test_the_recipes_without_torch_install_none(
    wheel: Path, tools: Environment, tmp_path: Path, name: str
) -> None:
    environment = Environment(tmp_path / "venv")
    follow(environment, [name], wheel, PATH=str(tools.bin))
    assert environment.torch() == ""
    assert "sentinel, version" in Light(environment, tmp_path).run("--version")
