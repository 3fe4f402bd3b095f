"""Queries of the real binding over the fake libnvidia-ml, in a separate process."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

#: Imports the binding without loading the library, runs each script in a fork, prints exit codes.
SERVER = """
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
SCRIPT = """
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
def server(library: Path) -> subprocess.Popen[str]:
    """Start a process that runs scripts with this library."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", SERVER],
        env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process, wait for it and close its pipes."""
    with process:
        process.kill()


def answers(library: Path, faults: Path, *steps: Step, script: str = SCRIPT) -> list[Any]:
    """Make each ``(call, argument, faults injected before it)``; return the results."""
    process = server(library)
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
