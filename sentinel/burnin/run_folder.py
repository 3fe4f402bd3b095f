"""The folder of one burn-in: its header, events and samples, and the earlier runs beside it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from sentinel.config.plan import Plan
from sentinel.diagnostics.counters import CountersResult
from sentinel.errors import ConfigError
from sentinel.host.last_verdicts import RUNS, read_reports
from sentinel.host.lookups import node_name
from sentinel.host.paths import identity
from sentinel.host.procfs import boot_id
from sentinel.host.regular_file import File, locked, open_regular, read_regular, replace_file
from sentinel.protocol import __version__
from sentinel.protocol.counters import HostCounters
from sentinel.protocol.stressor import LinkPart

#: A longer line is none of ours, and neither is a larger file with one object; in bytes.
_MAX_LINE = 2**20
_MAX_OBJECT = 2**26
#: The files are for the administrators of the host, too.
_MODE = 0o644

#: A process that only looks whether a run is recorded holds its lock for a moment, in seconds.
_LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The files of one run."""

    path: Path
    #: What is run, where and with what: written before the start.
    header = File("run.json")
    #: The events, one JSON object a line.
    events = File("events.jsonl")
    #: The samples, one JSON object a line.
    samples = File("samples.jsonl")
    #: The counters of each GPU before and after.
    counters = File("counters.json")
    #: The report for programs; there only if those in all other formats are.
    report = File("report.json")
    #: The SHA-256 of each file, once there is a report, and the signature of that.
    manifest = File("manifest.json")
    signature = File("manifest.json.sig")

    def create(self) -> None:
        """Create the folder.

        Raises:
            ConfigError: It cannot be created, or has a run already.
        """
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--report {self.path}: {error.strerror}") from None
        self.check_new()

    def check_new(self) -> None:
        """Check that the folder has no run.

        Raises:
            ConfigError: It has one.
        """
        if self.header.exists() or self.events.exists():
            what = f"--report {self.path}: it has a run already"
            raise ConfigError(what, "Name another folder, or go on with that run by --resume.")

    @property
    def is_recorded(self) -> bool:
        """Whether a process still records the run."""
        try:
            with locked(self._open(), 0.0, shared=True):
                return False
        except OSError:
            return self.path.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Show other processes that this one records the run, also before it has a file.

        Raises:
            ConfigError: Another process records it.
        """
        folder = self._open()
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder, _LOCK_TIMEOUT_S))
            except OSError:
                raise ConfigError(f"{self.path}: another process records this run") from None
            if identity(self.path.resolve()) != identity(folder):
                raise ConfigError(f"{self.path}: another process has removed it", "Start again.")
            yield

    def _open(self) -> int:
        """Open the folder itself: its files are replaced, and a lock is of one file."""
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def event_count(self) -> int:
        """Count the events, without a last one that was not written completely."""
        try:
            with os.fdopen(open_regular(self.events, os.O_RDONLY), "rb") as file:
                return sum(line.endswith(b"\n") for line in _lines(file))
        except OSError:
            return 0

    def write(self, path: Path, content: Mapping[str, Any] | str) -> None:
        """Write one file completely or not at all.

        Raises:
            ConfigError: It cannot be written.
        """
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        try:
            replace_file(path, text + "\n", _MODE)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None

    def appended(self, path: Path) -> TextIO:
        """Open one file to add lines; a link in its place could lead to any file.

        Raises:
            ConfigError: It cannot be written.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            return os.fdopen(open_regular(path, flags, _MODE), "a")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None

    def remove_if_empty(self) -> None:
        """Remove the run if nothing was started."""
        own = {self.events, self.samples, self.counters, self.header}
        with contextlib.suppress(OSError):
            started = self.events.exists() and self.events.stat().st_size
            if not started and set(self.path.iterdir()) <= own:
                for path in own:
                    path.unlink(missing_ok=True)
                self.path.rmdir()


def drop_torn_line(path: Path) -> None:
    """Cut off a last line that was not written completely."""
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_NOFOLLOW), "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _MAX_LINE))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(end - len(tail) + tail.rfind(b"\n") + 1)


def digest(path: Path, flags: int = 0) -> str:
    """Compute the SHA-256 of a regular file, opened with these flags.

    Raises:
        OSError: It cannot be read.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY | flags), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object.

    Raises:
        ConfigError: It cannot be read, or has something else.
    """
    try:
        value = json.loads(read_regular(path, _MAX_OBJECT))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return value


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; one that is too long, as of another kind of file, comes in pieces."""
    return iter(lambda: file.readline(_MAX_LINE + 1), b"")


def lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Read JSON objects, one a line; a last line that is incomplete ends them.

    Raises:
        ConfigError: The file cannot be read, or a line in its middle is invalid: what comes after
            it may be a fault.
    """
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            for number, line in enumerate(_lines(file), start=1):
                if len(line) > _MAX_LINE:
                    raise ConfigError(f"{path}, line {number}: longer than {_MAX_LINE} bytes")
                if not line.endswith(b"\n"):
                    return
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    raise ConfigError(f"{path}, line {number}: not JSON") from None
                yield value
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def plan_object(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {**asdict(plan), "hash": plan.hash}


def find_run(state: Path, name: str | None) -> Path:
    """Find the folder of a run.

    Args:
        state: The state directory.
        name: A folder, or the name of a run in the state directory; None for the newest there.

    Raises:
        ConfigError: There is none.
    """
    kept = state / RUNS
    if name is None:
        newest = max(kept.glob("*/run.json"), key=_begun, default=None)
        if newest is None:
            raise ConfigError(f"{kept} has no run", "Name the folder of a run.")
        return newest.parent
    for path in (Path(name), kept / name):
        if RunFolder(path=path).header.exists():
            return path
    raise ConfigError(f"{name} is not a run", f"Name a folder, or a run in {kept}.")


def _begun(header: Path) -> tuple[float, Path]:
    """Return when a run was begun or resumed last, and its header, to sort runs.

    The name of a run has a local time, which a change of the zone or of summer time sets back.
    """
    with contextlib.suppress(ConfigError, LookupError, TypeError, ValueError):
        run = read_object(header)
        last = (run.get("resumed") or [run])[-1]
        return datetime.fromisoformat(last["started"]).timestamp(), header
    return header.stat().st_mtime, header


# --- what a run records of itself ------------------------------------------------------------


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
            that others of the node are none of the run's; ``known``, the GPUs of earlier runs and
            of verified work; ``host_before``, what the kernel says of the host; ``pci_paths``,
            the ports above each device of NVIDIA; ``unacknowledged``, the faults of the kernel's
            log since the boot, for people.

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
    folder: RunFolder, settings: Sequence[Mapping[str, Any]], before: CountersResult
) -> None:
    """Prepare the folder of a run for its resumption; it may be of a run that was killed.

    Args:
        folder: The folder of the run.
        settings: What to record of the settings: those that it was not begun with.
        before: The counters of all GPUs before this part.
    """
    _mend(folder, before)
    header = read_object(folder.header)
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    begun = [value | {"source": None} for value in header["settings"]]
    changed = [value for value in settings if {**value, "source": None} not in begun]
    resumed = [*header.get("resumed", ()), {"started": started, "settings": changed}]
    folder.write(folder.header, {**header, "resumed": resumed})


def count_lines(path: Path) -> int:
    """Count the JSON objects of a file, as ``lines`` reads them."""
    return sum(1 for _ in lines(path))


def last_moment(folder: RunFolder) -> float:
    """Find when the last event or sample of a run was recorded, by the monotonic clock.

    Raises:
        ConfigError: A file is invalid.
    """
    rows = (row for path in (folder.events, folder.samples) for row in lines(path))
    return max((float(row["at"]) for row in rows), default=0.0)


def _mend(folder: RunFolder, before: CountersResult) -> None:
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
        *("before", "pci_devices", "selected", "known", "host_before"),
        *("pci_paths", "unacknowledged"),
    )
    kept = {name: counters[name] for name in names if name in counters}
    kept["resumed"] = [*counters.get("resumed", ()), again]
    folder.write(folder.counters, kept | ({"kernel_log_error": unread} if unread else {}))


def new_folder(state: Path, plan: Plan) -> RunFolder:
    """Create the folder of a new run.

    Raises:
        ConfigError: It cannot be created.
    """
    path = _make_entry(state, plan, lambda folder: folder.mkdir(mode=0o755))
    if isinstance(path, str):
        raise ConfigError(path)
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


# --- earlier runs on the same cards ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Former:
    """What a card did in the steady phase of an earlier run."""

    run: str
    #: Median TFLOP/s and degrees Celsius.
    rate: float
    temperature_c: float | None
    #: The enforced limit in watts.
    power_limit_w: float | None = None
    vbios: str | None = None
    #: Median TB/s of copying in the GPU's memory; None without such a phase.
    copy: float | None = None
    #: The best bytes a second of an all-reduce, and the number of GPUs that took part in one.
    all_reduce: float | None = None
    gpus: int = 0


#: The name of the measurement of an all-reduce.
_ALL_REDUCE_RATE = f"{LinkPart.ALL_REDUCE}_bytes_per_s"


def is_copy(workload: str) -> bool:
    """Check whether a workload does nothing but to read and write the GPU's memory."""
    return workload.partition(":")[0] == "elementwise"


def former_runs(
    folder: RunFolder, header: Mapping[str, Any]
) -> dict[tuple[str, str], list[Former]]:
    """Collect the earlier runs beside a run, by the UUID and the serial number of each card.

    Only those of the same plan and driver, on this node, that found no fault.

    Args:
        folder: The run, in whose parent folder the others are.
        header: Its header.
    """
    found: dict[tuple[str, str], list[Former]] = {}
    own = folder.path.resolve()
    beside = [path for path in own.parent.glob("*/report.json") if path.parent != own]
    for report in read_reports(beside):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            for card, former in list(_of_same_plan(report, header)):
                found.setdefault(card, []).append(former)
    return found


def _of_same_plan(
    report: Mapping[str, Any], header: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], Former]]:
    """Yield what each card did in a run that can be compared with another one."""
    run = report["run"]
    if (
        not report["schema_version"].startswith("1.")
        or run["plan"]["hash"] != header["plan"]["hash"]
        or report["node"]["driver"] != header["node"]["driver"]
        or datetime.fromisoformat(run["started"]) >= datetime.fromisoformat(header["started"])
    ):
        return
    summed = sum(bool(_all_reduces(gpu)) for gpu in report["gpus"])
    copies = {phase["name"] for phase in run["plan"]["phases"] if is_copy(phase["workload"])}
    for gpu in report["gpus"]:
        copied = [
            row["median"] / 1e12
            for row in gpu["measurements"]
            if row["name"] == "bytes_per_s" and row["phase"] in copies
        ]
        steady = {row["name"]: row["median"] for row in gpu["measurements"] if row["steady"]}
        rate = steady.get("flops_per_s")
        if rate is not None and gpu["verdict"] != "FAIL" and gpu["serial"]:
            temperature = steady.get("temperature_c")
            former = Former(
                run=run["id"],
                rate=rate / 1e12,
                temperature_c=temperature,
                power_limit_w=(gpu["counters"]["before"] or {}).get("power_limit_w"),
                vbios=gpu["vbios"],
                copy=copied[-1] if copied else None,
                all_reduce=max(_all_reduces(gpu), default=None),
                gpus=summed,
            )
            yield (gpu["uuid"], gpu["serial"]), former


def _all_reduces(gpu: Mapping[str, Any]) -> list[float]:
    """List the best rate of each phase in which a GPU of a report took part in an all-reduce."""
    return [row["highest"] for row in gpu["measurements"] if row["name"] == _ALL_REDUCE_RATE]
