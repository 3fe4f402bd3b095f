"""The callbacks for training loops, with the real Lightning and Transformers."""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from sentinel.errors import NotRunningError
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.programs import piped_program, run_program
from tests.harness.timing import MACHINE_SLOWNESS

EXAMPLES = ROOT / "examples" / "training"

#: The installation of two large packages, and two runs that import them, from a cold disk.
INSTALL_TIMEOUT_S = RUN_TIMEOUT_S = 300 * MACHINE_SLOWNESS


@pytest.fixture(scope="module")
def pace() -> ModuleType:
    """Import the example that the callbacks share."""
    spec = importlib.util.spec_from_file_location("pace", EXAMPLES / "pace.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Readings:
    """A monitor with these speeds, one for each read; the last one stays."""

    def __init__(self, *speeds: float | None) -> None:
        self.speeds = list(speeds)

    def speed_multiplier(self, gpu: str | int = 0) -> float:
        speed = self.speeds.pop(0) if len(self.speeds) > 1 else self.speeds[0]
        if speed is None:
            raise NotRunningError("no daemon runs")
        return speed


@pytest.fixture
def clock(pace: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock by one that only sleeping advances; return the times slept."""
    slept: list[float] = []
    monkeypatch.setattr(pace, "time", clock := ModuleType("time"))
    clock.__dict__.update(monotonic=lambda: sum(slept), sleep=slept.append)
    return slept


@pytest.mark.parametrize(
    ("speeds", "seconds", "slept"),
    [
        ([1.0], 2.0, []),
        ([0.5], 2.0, [2.0]),
        ([0.8], 2.0, [0.5]),
        ([0.0, 0.0, 0.5], 2.0, [1.0, 1.0, 2.0]),
        ([None], 2.0, []),
    ],
)
def test_the_gpu_works_for_the_permitted_share_of_time(
    pace: ModuleType,
    clock: list[float],
    speeds: Sequence[float | None],
    seconds: float,
    slept: Sequence[float],
) -> None:
    one = pace.Pace(Readings(*speeds), 0)
    assert one.after_step(seconds)
    assert clock == pytest.approx(slept)
    assert one.paused_s == pytest.approx(sum(slept))


def test_a_training_that_cannot_go_on_stops(pace: ModuleType, clock: list[float]) -> None:
    assert not pace.Pace(Readings(0.0), 0, patience_s=30).after_step(1.0)
    assert sum(clock) == 30


def test_the_health_is_read_at_most_once_a_second(pace: ModuleType, clock: list[float]) -> None:
    one = pace.Pace(Readings(1.0, 0.5), 0)
    assert one.after_step(0.1)
    assert one.after_step(0.1)
    assert one.speed == 1.0
    clock.append(1.0)  # a step of a second
    assert one.after_step(1.0)
    assert one.speed == 0.5


AGREES = """
import sys, torch
from torch import distributed
sys.path.insert(0, sys.argv[1])
from pace import any_stops
rank = int(sys.argv[2])
store = distributed.FileStore(sys.argv[3], 2)
cpu = torch.device("cpu")
assert any_stops(True, cpu) and not any_stops(False, cpu), "alone"
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
print(any_stops(rank == 1, cpu), any_stops(False, cpu))
"""


@pytest.mark.long  # two imports of torch
def test_all_processes_of_a_distributed_training_stop_together(tmp_path: Path) -> None:
    ranks = [
        piped_program(
            sys.executable, "-c", AGREES, str(EXAMPLES), str(rank), str(tmp_path / "store")
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=RUN_TIMEOUT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert outputs == ["True False\n"] * 2


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install both libraries beside the packages of this environment; return their Python."""
    folder = tmp_path_factory.mktemp("libraries")
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text("\n".join(site.getsitepackages()))
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--constraint"]
    words = [*command, str(ROOT / "constraints.txt"), "lightning", "transformers[torch]"]
    done = run_program(*words, timeout=INSTALL_TIMEOUT_S)
    if done.returncode != 0:
        pytest.skip(f"lightning and transformers cannot be installed: {done.stderr[-300:]}")
    return python


def train(python: Path, script: str, environment: Mapping[str, str]) -> str:
    """Run an example on a simulated GPU; return the last line of its output."""
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("CUDA_")}
    words = (python, EXAMPLES / script, "--simulate", "1", "--steps", "3", "--patience", "0.5")
    done = run_program(
        *words, env={**inherited, **environment, "PYTHONPATH": str(ROOT)}, timeout=RUN_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert "goes on at full speed" not in done.stderr, "the health was read"
    return done.stdout.splitlines()[-1]


@pytest.mark.long  # installs two large libraries
@pytest.mark.timeout(INSTALL_TIMEOUT_S + 2 * RUN_TIMEOUT_S)
@pytest.mark.parametrize("script", ["lightning_callback.py", "hugging_face_callback.py"])
def test_a_hot_gpu_stops_a_training_and_a_cool_one_does_not(
    libraries: Path, script: str, simulated: SimulatedHost
) -> None:
    environment = {
        "SENTINEL_SIM_DIR": str(simulated.folder),
        "SENTINEL_SOCKET": str(simulated.folder / "no daemon"),
    }
    assert train(libraries, script, environment) == "3 of 3 steps, paused for 0.0 s, speed 1.0"
    simulated.registry.warm(simulated.uuid(0), 120)
    last = train(libraries, script, environment)
    assert re.fullmatch(r"1 of 3 steps, paused for [012].0 s, speed 0\.0", last), last
