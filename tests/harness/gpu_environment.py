"""Hosts for tests of whole sentinels: simulated or real GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.host.simulation import DEFAULT_TOTAL, Registry
from tests.harness.narrowing import not_none
from tests.harness.sentinel_process import SentinelProcess, eventually, run_sentinel
from tests.harness.timing import MACHINE_SLOWNESS, TIMEOUT_S

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent
#: A foreign job on a simulated GPU that has loaded everything, and begins with a line of input.
LOADED_JOB = """
import sys
from sentinel.cli.tools.demo import job_command
print('{"event": "loaded"}', flush=True)
sys.stdin.readline()
job_command()
"""
#: What a context takes of a GPU before any data.
CONTEXT_BYTES = 300 * 2**20


def replace_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch by ``fake_torch.py`` in stressors, by a link in ``folder``."""
    place = folder / "fake_torch"
    place.mkdir()
    (place / "torch.py").symlink_to(TESTS / "fake_torch.py")
    paths = [str(place), str(TESTS), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@contextmanager
def foreign_process(registry: Registry, gpu: int, size: int = CONTEXT_BYTES) -> Iterator[None]:
    """Let this process use memory of a simulated GPU, which a sentinel leaves to it meanwhile."""
    with closing(registry.attach(registry.gpus()[gpu].uuid)) as used:
        assert used.allocate(size)
        yield


class Job:
    """A foreign process that needs a part of a GPU in its first allocation.

    Args:
        process: It prints JSON objects; one of them has the result of the allocation.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def start(self) -> None:
        """Send the line that some jobs wait for."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def got_memory(self) -> bool:
        """Wait for the result of the allocation; return whether it succeeded."""
        for line in not_none(self.process.stdout):
            result = json.loads(line)
            if "got" in result:
                return bool(result["got"])
            if result.get("event") in {"job.got", "job.refused"}:
                return bool(result["event"] == "job.got")
        raise AssertionError("the job ended without a result")

    def wait_for_exit(self) -> None:
        """Wait until the job has exited."""
        self.process.wait(TIMEOUT_S)

    def kill(self) -> None:
        """Kill the job."""
        self.process.kill()


def named(name: str) -> tuple[str, ...]:
    """Build the prefix of a foreign job that gives its process a name, see ``GpuHost.job``."""
    program = f"""
import runpy, sys
from sentinel.host import process_setup
process_setup.DEMO_JOB = {name!r}
sys.argv = sys.argv[3:]
runpy.run_module("sentinel", None, "__main__")
"""
    return (sys.executable, "-c", program)


class GpuHost(ABC):
    """GPUs, counted from 0, for sentinels and foreign jobs.

    Args:
        folder: A folder for files.
    """

    #: The number of GPUs.
    count: int
    #: The maximum of used memory on a GPU without processes.
    idle_bytes: int
    #: The module that ``python -m`` runs.
    module: str = "sentinel"
    #: The range in which used memory varies without a cause.
    noise_bytes: int = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def flags(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """List the flags of ``run`` that choose these GPUs."""

    @abstractmethod
    def index(self, gpu: int) -> int:
        """Look up nvidia-smi's index of a GPU."""

    @abstractmethod
    def held(self, gpu: int = 0) -> int:
        """Read the used memory of a GPU, in bytes."""

    @abstractmethod
    def total(self, gpu: int = 0) -> int:
        """Read the usable memory of an empty GPU, in bytes."""

    @abstractmethod
    def command(self, gpu: int, share: float, stay: float, crowd: int = 1) -> list[str]:
        """Build the command of a job that needs a share and stays for ``stay`` seconds."""

    def gpus(self, at_most: int) -> range:
        """List the first ``at_most`` GPUs, or all if there are fewer."""
        return range(min(at_most, self.count))

    def empty(self, gpu: int = 0) -> bool:
        """Check that no process holds memory on a GPU."""
        return self.held(gpu) <= self.idle_bytes

    def environment(self, **more: str) -> dict[str, str]:
        """Build the environment of sentinels and jobs."""
        removed = ("CUDA_", "SENTINEL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
        kept["SENTINEL_CONFIG"] = os.devnull  # not the settings of the host's own sentinel
        paths = [str(TESTS), more.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
        return kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | more

    def sentinel(
        self,
        gpus: int | Sequence[int],
        *flags: str,
        read: bool = True,
        api: bool = False,
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> AbstractContextManager[SentinelProcess]:
        """Run a sentinel on the first GPUs, or on these; see :func:`run_sentinel`.

        Args:
            gpus: A number of GPUs, or the GPUs.
            flags: Flags of ``run``.
            read: Whether to read the standard output.
            api: Whether to start the API process, which takes a second more.
            environment: More variables.
            within: A prefix of the command, such as one that creates a namespace.
        """
        flags = flags if api else ("--no-api", *flags)
        chosen = range(gpus) if isinstance(gpus, int) else gpus
        if max(chosen) >= self.count:
            pytest.skip(f"needs {max(chosen) + 1} GPUs")
        run = [
            sys.executable,
            "-m",
            self.module,
            "run",
            "--log-format",
            "json",
            *self.flags(chosen),
            *flags,
        ]
        command = [*within, *run]
        indices = [self.index(gpu) for gpu in range(self.count)]
        return run_sentinel(
            command, self.environment(**(environment or {})), indices=indices, read=read
        )

    @contextmanager
    def job(
        self,
        gpu: int = 0,
        *,
        share: float = 0.97,
        stay: float = 1.0,
        within: Sequence[str] = (),
        crowd: int = 1,
    ) -> Iterator[Job]:
        """Run a foreign job that needs a share of a GPU, optionally ``within`` a namespace.

        It is one of a ``crowd`` that starts at once: so many hand-overs share the host's cores.
        """
        with self._started([*within, *self.command(gpu, share, stay, crowd)]) as job:
            job.start()
            yield job

    @contextmanager
    def _started(self, command: Sequence[str]) -> Iterator[Job]:
        """Start a foreign job; kill it at the end."""
        process = subprocess.Popen(
            command,
            env=self.environment(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Job(process)
        finally:
            process.kill()
            process.wait(TIMEOUT_S)
            process.stdin.close()
            process.stdout.close()


class SimulatedHost(GpuHost):
    """Simulated GPUs in a separate registry."""

    count = 64
    idle_bytes = 0
    # A workload that measures the CPU may choose other sizes in its next start: two segments.
    noise_bytes = 2**22

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.registry = Registry.create(folder, 1)

    def flags(self, gpus: Sequence[int]) -> tuple[str, ...]:
        return ("--simulate", str(max(gpus) + 1), "--gpus", ",".join(map(str, gpus)))

    def index(self, gpu: int) -> int:
        return gpu

    def uuid(self, gpu: int = 0) -> str:
        """Look up the UUID of a GPU."""
        return self.registry.gpus()[gpu].uuid

    def held(self, gpu: int = 0) -> int:
        return self.registry.memory(self.uuid(gpu)).used if self.registry.gpus() else 0

    def total(self, gpu: int = 0) -> int:
        return DEFAULT_TOTAL

    def take_memory(self, gpu: int = 0) -> None:
        """Be a newcomer in this process: wait for the end of the stressor, then take all memory.

        A job takes its memory at a time, which a busy host may not keep. This one waits for the
        event instead, where a test does not concern the time.
        """
        membership = self.registry.attach(self.uuid(gpu))
        try:
            assert membership.allocate(CONTEXT_BYTES)
            eventually(lambda: self.held(gpu) == membership.held)
            assert membership.allocate(self.total(gpu) - membership.held)
        finally:
            membership.close()

    def command(self, gpu: int, share: float, stay: float, crowd: int = 1) -> list[str]:
        job = ["demo", "job", "--json", "--gpus", str(gpu), "--memory", f"{share:.2%}"]
        job += ["--for", f"{stay}s"]
        # The benchmarks measure the speed of a hand-over; here the host is busy with other tests.
        crowding = max(1.0, crowd / len(os.sched_getaffinity(0)))
        context = f"{0.7 * MACHINE_SLOWNESS * crowding:.1f}s"
        return [sys.executable, "-m", "sentinel", *job, "--context", context]

    @contextmanager
    def loaded_job(self, context_s: float) -> Iterator[Job]:
        """Provide a foreign job that needs 97 % of a GPU, so long after its :meth:`Job.start`.

        It keeps what it got until the end.
        """
        words = ("--json", "--memory", "97%", "--context", f"{context_s:.2f}s", "--for", "1h")
        with self._started([sys.executable, "-c", LOADED_JOB, *words]) as job:
            assert "loaded" in not_none(job.process.stdout).readline()
            yield job

    def environment(self, **more: str) -> dict[str, str]:
        # On a busy host, no process can be on time to the millisecond.
        patience = f"{min(5.0, MACHINE_SLOWNESS):.2f}s"
        own = {
            "SENTINEL_SIM_DIR": str(self.folder),
            "SENTINEL_UNWATCHED_AFTER": patience,
            "SENTINEL_STANDBY": "off",  # it would take the time of other tests
        }
        return own | super().environment(**more)


class RealHost(GpuHost):
    """The GPUs of this machine, divided among the workers of pytest-xdist."""

    idle_bytes = 2**24

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
        # CUDA programs that started on other GPUs changed it by 64 KiB for a moment.
        self.noise_bytes = 2**18 if workers > 1 else 0
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in self._gpus]
        self._totals = [info.used + info.free for info in map(self._memory, range(self.count))]
        # The memory of a process that the previous test killed takes half a second to be free.
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
        """Look up the UUID of a GPU."""
        return str(self._nvml.nvmlDeviceGetUUID(self._handles[gpu]))

    def held(self, gpu: int = 0) -> int:
        return int(self._memory(gpu).used)

    def total(self, gpu: int = 0) -> int:
        return int(self._totals[gpu])

    def command(self, gpu: int, share: float, stay: float, crowd: int = 1) -> list[str]:
        # A bare CUDA program allocates sooner after its start than any other.
        job = ["bare", "--ask", str(int(share * self.total(gpu))), "--stay", str(stay)]
        visible = ["env", f"CUDA_VISIBLE_DEVICES={self.uuid(gpu)}"]
        return [*visible, sys.executable, "-m", "benchmarks.newcomer", *job]
