"""Programs that a test runs to their end, and scripts that it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.harness.timing import TIMEOUT_S

#: A line of a script that becomes the command of this checkout, with the arguments of the script.
EXEC_SENTINEL = f'exec {sys.executable} -P -m sentinel "$@"'


def run_program(
    *words: str | Path, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its exit code, its output and its errors.

    Args:
        words: The command line.
        check: Fail if the exit code is not 0.
        options: Of :func:`subprocess.run`; by default, there is no input.
    """
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": TIMEOUT_S}
    if "input" not in options:
        given["stdin"] = subprocess.DEVNULL
    return subprocess.run(words, check=check, text=True, **{**given, **options})


def write_script(file: Path, text: str) -> Path:
    """Write an executable script for the shell; the former one may be running."""
    new = file.with_suffix(".new")
    new.write_text(f"#!/bin/sh\n{text}\n")
    new.chmod(0o755)
    return new.replace(file)
