"""What a run writes of itself into its folder, from its start to its end or its resumption."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sentinel.burnin.run_folder import RunFolder, drop_torn_line, plan_object, read_object
from sentinel.config.plan import Plan
from sentinel.diagnostics.counters import CountersResult
from sentinel.errors import ConfigError
from sentinel.host.last_verdicts import RUNS
from sentinel.host.lookups import node_name
from sentinel.host.paths import SIMULATE_ELSEWHERE, SIMULATED, STATE_ELSEWHERE
from sentinel.host.procfs import boot_id
from sentinel.protocol import __version__
from sentinel.protocol.counters import HostCounters


@contextmanager
def new_run(folder: RunFolder) -> Iterator[None]:
    """Create and lock the folder of a new run, and remove it if nothing was started.

    Raises:
        ConfigError: It cannot be created, or has a run already.
    """
    folder.create()
    with ExitStack() as stack:
        # First: what is in the folder until then is another process's, which has yet to start.
        stack.enter_context(folder.locked())
        folder.check_new()
        stack.callback(folder.remove_if_empty)
        yield


def prepare(
    folder: RunFolder,
    plan: Plan,
    before: CountersResult,
    settings: Sequence[Mapping[str, Any]],
    known: Mapping[str, Any],
    *,
    simulated: bool,
    beside: Mapping[str, Any],
) -> None:
    """Write the header of a new run, and the counters before it.

    Args:
        folder: The folder of the run.
        plan: What is run.
        before: The counters of all GPUs.
        settings: What to record of the settings.
        known: What else the header has: ``confirmed_faulty``, how many GPUs of the host have a
            confirmed fault, and were found first; ``thresholds``, by which it is judged;
            ``expectation``, what the node must be.
        simulated: Whether the GPUs are simulated.
        beside: What to record beside the counters: ``selected``, whether GPUs were selected, so
            that others of the node are none of the run's; ``ignored_devices``, what CUDA ignores of
            CUDA_VISIBLE_DEVICES, so that others may be left out by mistake; ``held_elsewhere``, the
            holders of GPUs that were to be tested; ``known``, the GPUs of earlier runs and of
            verified work; ``host_before``, what the kernel says of the host; ``pci_paths``, the
            ports above each device of NVIDIA; ``unacknowledged``, the faults of the kernel's log
            since the boot, for people; ``findings``, what daemons know against GPUs.

    Raises:
        ConfigError: They cannot be written.
    """
    _write_header(folder, plan, before, settings, known, simulated=simulated)
    counters = [asdict(gpu) for gpu in before.counters]
    found = {"before": counters, "pci_devices": before.pci_devices, **beside}
    folder.write(folder.counters, found)


def complete(
    folder: RunFolder, after: CountersResult, unread: str | None, host: HostCounters
) -> None:
    """Add the counters after a run, and why the kernel's log was not read, or None."""
    first = read_object(folder.counters)
    folder.write(
        folder.counters,
        {
            **first,
            "after": [asdict(gpu) for gpu in after.counters],
            "host_after": asdict(host),
            "driver_error": after.driver_error,
            "kernel_log_error": first.get("kernel_log_error") or unread,
        },
    )


def reopen(
    folder: RunFolder,
    settings: Sequence[Mapping[str, Any]],
    before: CountersResult,
    findings: Mapping[str, Any],
) -> None:
    """Prepare the folder of a run for its resumption; it may be of a run that was killed.

    Args:
        folder: The folder of the run.
        settings: What to record of the settings: those that it was not begun with.
        before: The counters of all GPUs before this part.
        findings: What daemons know against GPUs now.
    """
    _mend(folder, before, findings)
    header = read_object(folder.header)
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    begun = [value | {"source": None} for value in header["settings"]]
    changed = [value for value in settings if {**value, "source": None} not in begun]
    resumed = [*header.get("resumed", ()), {"started": started, "settings": changed}]
    folder.write(folder.header, {**header, "resumed": resumed})


def _mend(folder: RunFolder, before: CountersResult, findings: Mapping[str, Any]) -> None:
    """Drop what was not written completely, and what says how the run ended.

    The report and the counters after the former part are not those of this one, which may be
    killed, too. What a part has counted stays, since a reset between two parts drops it.
    """
    for path in (folder.report, folder.manifest, folder.signature):
        path.unlink(missing_ok=True)
    for path in (folder.events, folder.samples):
        drop_torn_line(path)
    counters = read_object(folder.counters)
    unread = counters.get("kernel_log_error")
    again = {"after": counters.get("after"), "before": [asdict(gpu) for gpu in before.counters]}
    names = (
        *("before", "pci_devices", "selected", "ignored_devices", "held_elsewhere", "known"),
        *("host_before", "pci_paths", "unacknowledged"),
    )
    kept = {name: counters[name] for name in names if name in counters}
    kept |= {"resumed": [*counters.get("resumed", ()), again], "findings": findings}
    folder.write(folder.counters, kept | ({"kernel_log_error": unread} if unread else {}))


def new_folder(state: Path, plan: Plan) -> RunFolder:
    """Create the folder of a new run.

    Raises:
        ConfigError: It cannot be created.
    """
    path = _make_entry(state, plan, lambda folder: folder.mkdir(mode=0o755))
    if isinstance(path, str):
        raise ConfigError(
            f"the folder of the run cannot be created: {path}",
            f"{SIMULATE_ELSEWHERE if os.environ.get(SIMULATED) else STATE_ELSEWHERE}"
            " Or give --report DIR.",
        )
    return RunFolder(path=path)


def _make_entry(state: Path, plan: Plan, make: Callable[[Path], None]) -> Path | str:
    """Make an entry among the runs of the state directory; its name is the time and the plan.

    Args:
        state: The state directory.
        plan: What is run.
        make: Makes it, or raises FileExistsError: another run may have begun within this second.

    Returns:
        Its path, or why it cannot be made.
    """
    path = state / RUNS / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{plan.name}"
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        for number in itertools.count(1):
            entry = path.with_name(path.name if number == 1 else f"{path.name}-{number}")
            with contextlib.suppress(FileExistsError):
                make(entry)
                return entry
    except OSError as error:
        return f"{path.parent}: {error.strerror}"
    raise AssertionError  # the numbers do not end


def register(folder: RunFolder, state: Path, plan: Plan) -> str | None:
    """Link a run elsewhere among those of the state directory, where other commands look.

    Args:
        folder: The folder of the run.
        state: The state directory.
        plan: What is run.

    Returns:
        Why that failed, or None.
    """
    if folder.path.resolve().parent == (state / RUNS).resolve():
        return None
    made = _make_entry(state, plan, lambda link: link.symlink_to(folder.path.absolute()))
    return made if isinstance(made, str) else None


def _write_header(
    folder: RunFolder,
    plan: Plan,
    before: CountersResult,
    settings: Sequence[Mapping[str, Any]],
    known: Mapping[str, Any],
    *,
    simulated: bool,
) -> None:
    """Record what is run, where and with what."""
    drivers = sorted({gpu.driver for gpu in before.counters if gpu.driver})
    folder.write(
        folder.header,
        {
            "id": folder.path.name,
            "plan": plan_object(plan),
            "tool": "sentinel",
            "version": __version__,
            "boot": boot_id(),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "simulated": simulated,
            "settings": list(settings),
            **known,
            "resumed": [],
            "node": {
                "hostname": node_name(),
                "machine_id": _machine_id(),
                "kernel": platform.release(),
                "python": platform.python_version(),
                "torch": torch_version(),
                "driver": drivers[0] if drivers else None,
                "uid": os.getuid(),
            },
        },
    )


def torch_version() -> str | None:
    """Read the version of the installed torch, without an import; None without one."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _machine_id() -> str | None:
    """Read the identity of this host, which systemd keeps; None without one."""
    try:
        return Path("/etc/machine-id").read_text().strip() or None
    except OSError:
        return None
