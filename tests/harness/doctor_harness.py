"""Runs of ``sentinel doctor``: exit code, output and report lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.harness.timing import TIMEOUT_S


def doctor(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run ``sentinel doctor``; return its exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "doctor", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def rows(output: str) -> dict[str, dict[str, Any]]:
    """Parse the JSON report; return the last line of each check."""
    body = json.loads(output)
    assert body.keys() == {"schema_version", "verdict", "lines"}
    for row in body["lines"]:
        assert row.keys() == {"check", "gpu", "level", "found", "means", "do"}
    return {row["check"]: row for row in body["lines"]}
