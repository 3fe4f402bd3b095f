"""Import a workload by its name; only here a plugin's code begins to run."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from sentinel.config.workload_spec import find_workload
from sentinel.errors import ConfigError, WorkloadError
from sentinel.stressor.options import Workload

#: How much of a foreign error's text is passed on.
_LONGEST_TEXT = 1000


def load_workload(name: str) -> Workload:
    """Import the workload called ``name`` and return it.

    Raises:
        ConfigError: There is no such workload.
        WorkloadError: Importing it failed, or it cannot be called.
    """
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            found: object = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        else:
            found = find_workload(name).load()
    except ConfigError:
        raise
    except BaseException as error:  # a plugin may do anything while it is imported, even exit
        raise WorkloadError(f"workload {name} cannot be imported: {describe(error)}") from error
    if not callable(found):
        what = f"workload {name} is a {type(found).__name__}, which cannot be called"
        raise WorkloadError(what, "Name a function that takes a context, or a class with a `run`.")
    return found


def describe(error: BaseException) -> str:
    """Return one line of bounded length that says what ``error`` is and where it was raised."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception of a plugin whose own text cannot be had
        text = ""
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(line) > _LONGEST_TEXT:
        line = line[:_LONGEST_TEXT] + " ..."
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return line
    last = frames[-1]
    return f"{line} ({Path(last.filename).name}:{last.lineno} in {last.name})"
