"""A fake libnvidia-ml.so.1, built by the C compiler, controlled by a file.

The binding, the struct layouts and the process around them are real. The file is read at every
call, so that a test can change the driver under a running sentinel. Each line is a name and a word:

- ``gpu UUID``: a GPU that NVML lists, in this order; FIRST and SECOND by default.
- ``FUNCTION WORD``, for one GPU ``FUNCTION@UUID WORD``: what calls of that function do instead of
  succeeding: return a number as an error, ``hang`` for ever, ``crash`` or ``segfault`` the process.
- ``driver VERSION``: the version of the driver; ``undecodable 1``: one that is not text.
- ``stale CODE``: the error of handles that were not looked up by UUID.
- ``left CODE``: the error of handles of a GPU that is no longer listed; 15 by default.
- ``used@UUID``, ``total@UUID``, ``pid@UUID``: figures, and additional PIDs in the compute list.
- ``many@UUID N``: so many processes are in the compute list.
- ``field@UUID NUMBER:VALUE``: a supported field and its value, ``NUMBER.SCOPE:VALUE`` for one link;
  a value ``error CODE`` is ``NUMBER:eCODE``.
- ``NAME=@UUID VALUE``: the value of a counter or a limit.
- ``sample@UUID PID:TIME:SHARE``: a sample of process utilization.
- ``xid@UUID NUMBER``: the n-th such line is the n-th event of the GPU, which a set delivers once.
- ``types@UUID BITS``: the supported types of events; 8 is that of XIDs.
- ``lost@UUID CODE``: the error of each wait of a set with that GPU.
- ``grow N``: how often the compute list grows while it is copied.
- ``overflow 1``: the compute list reports more entries than there is room for.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sentinel.host.simulation import Registry
from tests.harness.gpu_environment import TESTS, SimulatedHost
from tests.harness.programs import piped_program

COMPILER = shutil.which("cc") or shutil.which("gcc")
NO_COMPILER = "no C compiler to build a library with"
NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

FIRST = "GPU-11111111-0000-0000-0000-000000000000"
SECOND = "GPU-22222222-0000-0000-0000-000000000000"


def build(
    root: Path, *flags: str, source_text: str | None = None, name: str = "libnvidia-ml.so.1"
) -> Path:
    """Compile a library, the fake driver by default, once per ``root``; return its folder.

    The folder is named after a hash of the source, so that workers of pytest-xdist share one build.
    """
    assert COMPILER is not None
    if source_text is None:
        source_text = (TESTS / "fake_nvml.c").read_text()
    digest = hashlib.sha256(repr((source_text, flags)).encode()).hexdigest()[:16]
    folder = root / f"{name}-{digest}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            source = folder / "library.c"
            source.write_text(source_text)
            draft = folder / "draft"
            command = [COMPILER, "-shared", "-fPIC", "-w", *flags, "-o", str(draft), str(source)]
            subprocess.run(command, check=True)
            draft.rename(folder / name)
    return folder


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Find the temporary folder that all workers of one pytest run share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


class NvmlHost(SimulatedHost):
    """Two simulated GPUs that the probe reads through pynvml and the fake library.

    Args:
        folder: The folder of the registry and the control file.
        library: The folder of the fake library.
    """

    module = "sentinel_over_nvml"

    def __init__(self, folder: Path, library: Path) -> None:
        super().__init__(folder / "gpus")
        self.registry = Registry.create(self.folder, 2)
        self._library = library
        self._file = folder / "driver"
        self.inject()

    def inject(self, *lines: str, order: tuple[int, ...] = (0, 1)) -> None:
        """Set the GPUs that NVML lists, their order and the injected faults."""
        draft = self._file.with_suffix(".draft")
        listed = [f"gpu {self.uuid(gpu)}" for gpu in order]
        draft.write_text("\n".join([*listed, *lines, ""]))
        draft.replace(self._file)

    def environment(self, **more: str) -> dict[str, str]:
        """Build an environment in which the fake library is loaded."""
        return super().environment(**more) | {
            "LD_LIBRARY_PATH": str(self._library),
            "FAKE_NVML": str(self._file),
            "FAKE_NVML_WORLD": str(self.folder),
        }


#: Imports the binding without loading the library, runs each script in a fork, prints exit codes.
_QUERY_SERVER = """
import dataclasses, json, os, sys
import sentinel.probe.nvml_driver

for line in sys.stdin:
    script, *sys.argv[1:] = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(1, 2)
        os.environ["FAKE_NVML"] = sys.argv[1]
        exec(script, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

#: Runs in a process that loads the library, and prints each result or error as JSON.
QUERIES = """
import dataclasses, json, sys
from pathlib import Path
from sentinel.probe.driver import DriverError
from sentinel.probe.nvml_driver import NvmlDriver

driver = NvmlDriver()
faults = Path(sys.argv[1])
results = []
for call, argument, injected in json.loads(sys.argv[2]):
    faults.write_text(injected)
    try:
        answer = getattr(driver, call)(*([] if argument is None else [argument]))
    except DriverError as error:
        cause = type(error.__cause__).__name__
        answer = dict(
            error=type(error).__name__, code=error.code, reason=error.reason, cause=cause
        )
    results.append(answer)
print(json.dumps(results, default=lambda o: vars(o) if dataclasses.is_dataclass(o) else str(o)))
"""

Argument = str | list[str] | None
Step = tuple[str, Argument, str]

#: Makes calls to an open NVML, and returns their results.
Ask = Callable[..., list[Any]]

OPEN: tuple[Step, ...] = (("open", None, ""), ("gpus", [], ""))

#: The codes of calls that this GPU or driver does not support.
ABSENT = (3, 13, 25, 26)


@cache
def query_server(library: Path) -> subprocess.Popen[str]:
    """Start a process that runs scripts with this library."""
    process = piped_program(
        sys.executable,
        "-u",
        "-c",
        _QUERY_SERVER,
        env={**os.environ, "LD_LIBRARY_PATH": str(library)},
    )
    atexit.register(_end_server, process)
    return process


def _end_server(process: subprocess.Popen[str]) -> None:
    """Kill a process, wait for it and close its pipes."""
    with process:
        process.kill()


def answers(library: Path, faults: Path, *steps: Step, script: str = QUERIES) -> list[Any]:
    """Make each ``(call, argument, faults injected before it)``; return the results."""
    process = query_server(library)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([script, str(faults), json.dumps(steps)]) + "\n")
    process.stdin.flush()
    output: list[str] = []
    while not (line := process.stdout.readline()).strip().lstrip("-").isdecimal():
        assert line, f"the process ended after {output}"
        output.append(line)
    assert int(line) == 0, "".join(output)
    answer = json.loads(output[-1])
    assert isinstance(answer, list)
    return answer
