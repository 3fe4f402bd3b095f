"""Asks the real binding over a pretended libnvidia-ml, in a process that loads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Runs in a process that loads the library, and prints each result or error as JSON.
SCRIPT = """
import dataclasses, json, sys
from pathlib import Path
from sentinel.gpu.driver import DriverError
from sentinel.gpu.nvml import NvmlDriver

driver = NvmlDriver()
faults = Path(sys.argv[1])
said = []
for call, argument, planted in json.loads(sys.argv[2]):
    faults.write_text(planted)
    try:
        answer = getattr(driver, call)(*([] if argument is None else [argument]))
    except DriverError as error:
        cause = type(error.__cause__).__name__
        answer = dict(
            error=type(error).__name__, code=error.code, reason=error.reason, cause=cause
        )
    said.append(answer)
print(json.dumps(said, default=lambda o: vars(o) if dataclasses.is_dataclass(o) else str(o)))
"""

Argument = str | list[str] | None
Step = tuple[str, Argument, str]

OPEN: tuple[Step, ...] = (("open", None, ""), ("gpus", [], ""))

#: The codes that say that there is no such thing on this GPU, or with this driver.
ABSENT = (3, 13, 25, 26)


def answers(library: Path, faults: Path, *steps: Step, script: str = SCRIPT) -> list[Any]:
    """Return what the driver answers to each ``(call, argument, faults planted before it)``."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(faults), json.dumps(steps)],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": str(faults),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, list)
    return answer
