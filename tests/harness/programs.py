"""Programs that a test runs, scripts that it writes, and commands of the documents."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.gpu_environment import ROOT
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


@contextmanager
def started_program(*words: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program without input whose output and errors can be read; kill it at the end.

    Args:
        words: The command line.
        options: Of :class:`subprocess.Popen`.
    """
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, text=True, **{**given, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


def piped_program(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start a program to whose input a test writes, and whose output it reads.

    Args:
        words: The command line.
        options: Of :class:`subprocess.Popen`.
    """
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(words, text=True, **{**given, **options})


def output_of(process: subprocess.Popen[str], code: int) -> str:
    """Wait for the end of a program, which must have this exit code; return its output."""
    output, errors = process.communicate(timeout=3 * TIMEOUT_S)
    assert process.returncode == code, f"{output}{errors}"
    return output


def documented_commands(document: str, name: str) -> str:
    """Read the commands of a document in ``docs/`` that are marked for a test."""
    pattern = rf"^<!-- test: {name} -->\n```\n(.*?)^```$"
    text = (ROOT / "docs" / document).read_text()
    (found,) = re.findall(pattern, text, re.DOTALL | re.MULTILINE)
    return str(found)


def write_script(file: Path, text: str) -> Path:
    """Write an executable script for the shell; the former one may be running."""
    new = file.with_suffix(".new")
    new.write_text(f"#!/bin/sh\n{text}\n")
    new.chmod(0o755)
    return new.replace(file)
