"""Import torch, and a workload by its name; this is where plugin code first runs."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.config.specs import find_workload
from sentinel.errors import ConfigError, SentinelError, WorkloadError
from sentinel.host.processes.child_setup import InheritedFd, setup_child_process
from sentinel.host.processes.unprivileged import become
from sentinel.protocol.codec import encode
from sentinel.protocol.counters import WorkloadInfo
from sentinel.protocol.shared_memory import InflightCalls
from sentinel.protocol.stressor import Account
from sentinel.stressor.options import Workload, bind_options, list_options, summary

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
    places = [frame for frame in frames if not frame.filename.startswith("<frozen ")]
    if not places:
        return line
    last = places[-1]
    return f"{line} ({Path(last.filename).name}:{last.lineno} in {last.name})"


#: The name under which the import of torch is announced; that of a workload is its number.
TORCH = "torch"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One workload to describe."""

    number: int
    #: Its name, or its ``module:attribute``.
    place: str
    #: Options to check, as they are given; None checks none, not even whether one is missing.
    options: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class DescribeSpec:
    """What a describing process has to do."""

    wanted: tuple[Wanted, ...]
    #: The user whose stressors are to run them; None is the user of this process.
    account: Account | None = None


def run(spec: DescribeSpec, channel: socket.socket, parent: int, board: InheritedFd) -> None:
    """Describe each workload in a WorkloadInfo; the target of a spawned process.

    Ends by ``os._exit``, so that no exit hook of a plugin can delay it.

    Args:
        spec: The workloads, and the user.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each import is announced before it begins.
    """
    code = 1
    try:
        setup_child_process(parent, "sentinel: lists workloads")
        if spec.account is not None:
            become(spec.account, parent)
        channel.settimeout(None)
        calls = InflightCalls.attach(board.detach())
        # Nearly all workloads import torch. Its first import from a cold disk takes a while, which
        # must not count against one of them. If it is missing, each workload reports that itself.
        calls.announce(0, TORCH)
        with contextlib.suppress(Exception):
            import_torch()
        for wanted in spec.wanted:
            calls.announce(0, str(wanted.number))
            channel.sendall(encode(_describe(wanted)))
        code = 0
    finally:
        os._exit(code)


def _describe(wanted: Wanted) -> WorkloadInfo:
    """Import one workload, describe it, and check its options."""
    try:
        workload = load_workload(wanted.place)
        options = list_options(workload)
        if wanted.options is not None:
            bind_options(workload, wanted.options)
        return WorkloadInfo(number=wanted.number, summary=summary(workload), options=options)
    except SentinelError as error:
        return WorkloadInfo(number=wanted.number, error=" ".join(str(error).split()))
    except BaseException as error:  # noqa: BLE001 - a plugin's objects may raise anywhere
        return WorkloadInfo(number=wanted.number, error=describe(error))
