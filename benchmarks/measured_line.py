"""What a program of a benchmark writes to the one that runs it: a line of JSON at a time."""

from __future__ import annotations

import json
import sys


def write_line(**fields: object) -> None:
    """Write one line for the benchmark."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
