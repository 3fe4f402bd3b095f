"""Where whole sentinels are tested: on simulated GPUs, and in the same way on real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.host.simulation import DEFAULT_TOTAL, Registry
from tests.harness.sentinel_process import Sentry, sentry
from tests.harness.timing import TIMEOUT_S

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent


def replace_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stressors import ``fake_torch.py`` as torch, by a link in ``folder``."""
    place = folder / "fake_torch"
    place.mkdir()
    (place / "torch.py").symlink_to(TESTS / "fake_torch.py")
    paths = [str(place), str(TESTS), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


class Job:
    """A foreign process that wants a part of a GPU in its first allocation.

    Args:
        process: It says a JSON object a line, one of which tells how the allocation went.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def got(self) -> bool:
        """Return how its allocation went, once that is known."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "got" in said:
                return bool(said["got"])
            if said.get("event") in {"job.got", "job.refused"}:
                return bool(said["event"] == "job.got")
        raise AssertionError("it ended without a word")

    def left(self) -> None:
        """Wait until it is gone."""
        self.process.wait(TIMEOUT_S)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()


class Ground(ABC):
    """Some GPUs, counted from 0, on which sentinels and jobs of others meet.

    Args:
        folder: A folder for whatever has to be kept.
    """

    #: How many GPUs there are.
    count: int
    #: The most that can be in use on an idle GPU, in bytes.
    nothing: int
    #: What is run as ``python -m``.
    module: str = "sentinel"
    #: How much the used memory may move on an idle GPU, in bytes.
    noise: int = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def flags(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """Return the flags of ``run`` that choose these GPUs."""

    @abstractmethod
    def index(self, gpu: int) -> int:
        """Return nvidia-smi's index of a GPU."""

    @abstractmethod
    def held(self, gpu: int = 0) -> int:
        """Return the bytes in use on a GPU."""

    @abstractmethod
    def total(self, gpu: int = 0) -> int:
        """Return the bytes that can be used on an empty GPU."""

    @abstractmethod
    def command(self, gpu: int, share: float, stay: float) -> list[str]:
        """Return the command of a job that wants a share and stays for so many seconds."""

    def gpus(self, at_most: int) -> range:
        """Return the first GPUs: so many, or all where there are fewer."""
        return range(min(at_most, self.count))

    def empty(self, gpu: int = 0) -> bool:
        """Return whether all memory of a GPU is free again."""
        return self.held(gpu) <= self.nothing

    def surroundings(self, **more: str) -> dict[str, str]:
        """Return the environment of sentinels and jobs."""
        others = ("CUDA_", "SENTINEL_")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        ours["SENTINEL_CONFIG"] = os.devnull  # not what the host's own sentinel is told
        paths = [str(TESTS), more.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
        return ours | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | more

    def sentry(
        self,
        gpus: int | Sequence[int],
        *flags: str,
        read: bool = True,
        api: bool = False,
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> AbstractContextManager[Sentry]:
        """Run a sentinel on the first so many GPUs, or on these; see :func:`sentry.sentry`.

        ``within`` is the beginning of its command, such as that of a namespace. Clients can be
        served with the ``api``, which takes a second more to begin.
        """
        flags = flags if api else ("--no-api", *flags)
        chosen = range(gpus) if isinstance(gpus, int) else gpus
        if max(chosen) >= self.count:
            pytest.skip(f"needs {max(chosen) + 1} GPUs")
        run = [sys.executable, "-m", self.module, "run", *self.flags(chosen), *flags]
        command = [*within, *run]
        indices = [self.index(gpu) for gpu in range(self.count)]
        return sentry(command, self.surroundings(**(environment or {})), indices=indices, read=read)

    @contextmanager
    def job(
        self, gpu: int = 0, *, share: float = 0.97, stay: float = 1.0, within: Sequence[str] = ()
    ) -> Iterator[Job]:
        """Run a foreign job that wants a share of a whole GPU, ``within`` a namespace, say."""
        process = subprocess.Popen(
            [*within, *self.command(gpu, share, stay)],
            env=self.surroundings(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("\n")  # the word for those that wait for one
            process.stdin.flush()
            yield Job(process)
        finally:
            process.kill()
            process.wait(TIMEOUT_S)
            process.stdin.close()
            process.stdout.close()


class SimulatedGround(Ground):
    """As many simulated GPUs as a test likes, in a registry of its own."""

    count = 64
    nothing = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.registry = Registry.create(folder, 1)

    def flags(self, gpus: Sequence[int]) -> tuple[str, ...]:
        return ("--simulate", str(max(gpus) + 1), "--gpus", ",".join(map(str, gpus)))

    def index(self, gpu: int) -> int:
        return gpu

    def uuid(self, gpu: int = 0) -> str:
        """Return the UUID of a GPU."""
        return self.registry.gpus()[gpu].uuid

    def held(self, gpu: int = 0) -> int:
        return self.registry.memory(self.uuid(gpu)).used if self.registry.gpus() else 0

    def total(self, gpu: int = 0) -> int:
        return DEFAULT_TOTAL

    def command(self, gpu: int, share: float, stay: float) -> list[str]:
        job = ["simulate-job", "--gpu", str(gpu), "--memory", f"{share:.2%}", "--for", f"{stay}s"]
        # Several tests at once make a busy host; how fast sentinel is, the benchmark says.
        return [sys.executable, "-m", "sentinel", *job, "--context", "700ms"]

    def gpus(self, at_most: int) -> range:
        """Return the first GPUs: so many, or all where there are fewer."""
        return range(min(at_most, self.count))

    def empty(self, gpu: int = 0) -> bool:
        """Return whether all memory of a GPU is free again."""
        return self.held(gpu) <= self.nothing

    def surroundings(self, **more: str) -> dict[str, str]:
        return super().surroundings(**more) | {"SENTINEL_SIM_DIR": str(self.folder)}


class RealGround(Ground):
    """This host's GPUs; tests that run at the same time in several workers share them out."""

    nothing = 2**24

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        self.count, first = pynvml.nvmlDeviceGetCount() // workers, 0
        if not self.count:
            pytest.skip("there are fewer GPUs than workers; choose fewer with -n")
        first = worker * self.count
        self._gpus = range(first, first + self.count)
        # CUDA programs that start on other GPUs were seen to move it by 64 KiB for a moment.
        self.noise = 2**18 if workers > 1 else 0
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in self._gpus]
        self._totals = [info.used + info.free for info in map(self._memory, range(self.count))]
        # The memory of what was killed last, by the test before, takes half a second to be free.
        until = time.monotonic() + TIMEOUT_S
        for gpu in range(self.count):
            while not self.empty(gpu):
                in_use = f"GPU {self.index(gpu)} is in use: {self.held(gpu)} bytes"
                assert time.monotonic() < until, in_use
                time.sleep(0.01)

    def _memory(self, gpu: int) -> Any:
        nvml = self._nvml
        return nvml.nvmlDeviceGetMemoryInfo(self._handles[gpu], version=nvml.nvmlMemory_v2)

    def flags(self, gpus: Sequence[int]) -> tuple[str, ...]:
        return ("--gpus", ",".join(str(self.index(gpu)) for gpu in gpus))

    def index(self, gpu: int) -> int:
        return self._gpus[gpu]

    def uuid(self, gpu: int = 0) -> str:
        """Return the UUID of a GPU."""
        return str(self._nvml.nvmlDeviceGetUUID(self._handles[gpu]))

    def held(self, gpu: int = 0) -> int:
        return int(self._memory(gpu).used)

    def total(self, gpu: int = 0) -> int:
        return int(self._totals[gpu])

    def command(self, gpu: int, share: float, stay: float) -> list[str]:
        # A bare CUDA program asks for memory sooner after its start than any other.
        job = ["bare", "--ask", str(int(share * self.total(gpu))), "--stay", str(stay)]
        visible = ["env", f"CUDA_VISIBLE_DEVICES={self.uuid(gpu)}"]
        return [*visible, sys.executable, "-m", "benchmarks.newcomer", *job]
