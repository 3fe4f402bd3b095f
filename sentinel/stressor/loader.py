"""Import torch, and a workload by its name; this is where plugin code first runs."""

from __future__ import annotations

import importlib
import traceback
import warnings
from pathlib import Path

from sentinel.config.workload_spec import find_workload
from sentinel.errors import ConfigError, WorkloadError
from sentinel.stressor.options import Workload

#: The maximum length of a plugin's error text.
_MAX_TEXT_LENGTH = 1000
#: What to do about a module that is not found.
_FOLDER = (
    "Put its folder into PYTHONPATH; only `python -m sentinel` in the foreground also searches the "
    "current directory."
)


def import_torch() -> None:
    """Import torch without its warning about a missing numpy, which Sentinel does not need."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch  # noqa: F401 - not before the lease is running


def load_workload(name: str) -> Workload:
    """Import the workload called ``name``.

    Raises:
        ConfigError: There is no such workload.
        WorkloadError: The import failed, or the object is not callable.
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
    except ModuleNotFoundError as error:
        missing = name.partition(":")[0]
        remedy = _FOLDER if f"{missing}.".startswith(f"{error.name}.") else ""
        what = f"workload {name} cannot be imported: {describe(error)}"
        raise WorkloadError(what, remedy) from error
    except BaseException as error:  # a plugin's import may raise anything, even SystemExit
        raise WorkloadError(f"workload {name} cannot be imported: {describe(error)}") from error
    if not callable(found):
        what = f"workload {name} is a {type(found).__name__}, which cannot be called"
        raise WorkloadError(what, "Name a function that takes a context, or a class with a `run`.")
    return found


def describe(error: BaseException) -> str:
    """Describe ``error`` and where it was raised in one line of limited length."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a plugin's exception whose __str__ raises
        text = ""
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(line) > _MAX_TEXT_LENGTH:
        line = line[:_MAX_TEXT_LENGTH] + " ..."
    frames = traceback.extract_tb(error.__traceback__)
    places = [one for one in frames if not one.filename.startswith("<frozen ")]
    if not places:
        return line
    last = places[-1]
    return f"{line} ({Path(last.filename).name}:{last.lineno} in {last.name})"
