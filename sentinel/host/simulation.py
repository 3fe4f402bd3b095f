"""Simulated GPUs: a folder that a probe, stressors and foreign test jobs share.

Each GPU is a folder. Each process on it shares a few bytes there that state how much memory it
holds and what it does, and holds a lock beside them. The kernel drops the lock when the process
dies, so a dead process holds nothing, as on a real card, and nothing remains after a SIGKILL. Only
one that dies in a call of the driver keeps its memory a moment longer, and one that was forked and
has the file of the lock open for as long as that is. The kernel also reports the
holder of the lock in the PID namespace of the reader, or not at all: as a real driver does. Only
the device is simulated: its processes are real and get real signals.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import struct
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.errors import ConfigError
from sentinel.host.device_order import INFORMATION, information
from sentinel.host.paths import SIMULATE_ELSEWHERE, SIMULATED, check_own_simulation
from sentinel.host.procfs import read_stat
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind

#: Memory of one simulated GPU in bytes.
DEFAULT_TOTAL = 16 * 2**30

#: How often an allocation looks whether a teardown has freed its memory, in seconds.
_TEARDOWN_POLL_S = 0.002
_CLOSE_TRIES = 3

#: struct flock: type, whence, start, length and, as the result of a query, the PID of the holder.
_FLOCK = struct.Struct("hhqqi4x")

#: What one process states: the fields of _Stated, of 8 bytes each, which no reader sees in parts.
#: The fake driver of the tests reads them, too.
_STATED = struct.Struct("qddd?7xd")
#: The place of the last of them.
_DIED_AT = _STATED.size - 8

#: The locks of this process, by file: its PID and the descriptor. They last as long as the process,
#: and the kernel does not report them to the process itself.
_own_locks: dict[str, tuple[int, int]] = {}


def default_folder() -> Path:
    """Find the folder of the registry: ``$SENTINEL_SIM_DIR``, or one per user in temp files."""
    chosen = os.environ.get(SIMULATED)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"sentinel-sim-{os.getuid()}"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a simulated driver takes; the defaults are those of an H200, but for modules."""

    #: From the first memory of a process until it is listed: 28 to 57 ms.
    listing_s: float = 0.045
    #: From the death of a process in a call of the driver until its memory is free. Any other
    #: memory is free at once: an allocation waits for a teardown that has begun.
    release_s: float = 0.1
    #: For the module of an operation, before its first use. It is a call of the driver.
    module_load_s: float = 0.0


class _Stated(NamedTuple):
    """What one process states about itself."""

    memory: int = 0
    #: From when on the driver lists it.
    listed_at: float = 0.0
    #: The seconds of work so far, NaN if they are not counted, and when the last of them ends.
    worked_s: float = math.nan
    works_until: float = 0.0
    #: Whether it is in a call of the driver.
    in_call: bool = False
    #: When it was first seen dead, by another process; 0 while it lives.
    died_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Share:
    """The memory of one process."""

    #: 0 if the process lives in a PID namespace that is not visible from here, None if it is dead.
    pid: int | None
    stated: _Stated
    path: str

    @property
    def is_being_freed(self) -> bool:
        """Whether the process exits, so that its memory will be free in a moment."""
        if not self.pid or self.stated.in_call:
            return False
        process = read_stat(self.pid)
        return process is None or process.exiting


class Registry:
    """The simulated GPUs of one folder.

    Args:
        folder: The folder; :meth:`create` creates it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, count: int, total: int = DEFAULT_TOTAL) -> Registry:
        """Create ``folder`` with at least ``count`` GPUs of ``total`` bytes.

        Existing GPUs stay as they are, with their processes.

        Raises:
            ConfigError: The folder belongs to another user, or cannot be created.
        """
        registry = cls(folder)
        try:
            registry._add(count, total)
        except OSError as error:
            what = f"the folder {folder} of simulated GPUs cannot be created: {error.strerror}"
            raise ConfigError(what, SIMULATE_ELSEWHERE) from error
        return registry

    def _add(self, count: int, total: int) -> None:
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        check_own_simulation(folder)
        if not (folder / "namespace").exists():
            _write(folder / "namespace", Path("/proc/self/ns/pid").stat().st_ino)
        for index in range(count):
            # The same UUIDs on every run, which differ from the first digits on.
            gpu = Gpu(
                uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'sentinel simulated gpu {index}')}",
                index=index,
                name="Simulated GPU",
                pci_bus_id=f"00000000:{index + 1:02X}:00.0",
                memory_total=total,
                serial=f"SIM{index:010}",
            )
            place = folder / gpu.uuid
            place.mkdir(parents=True, exist_ok=True)
            (place / "node").touch()
            if not (place / "gpu.json").exists():
                (place / INFORMATION).write_text(information(gpu.pci_bus_id, index))
                _write(place / "gpu.json", {"gpu": vars(gpu)})

    def gpus(self) -> tuple[Gpu, ...]:
        """List all GPUs in index order; none if the folder is missing."""
        found = [
            Gpu(**json.loads(path.read_text())["gpu"])
            for path in self.folder.glob("GPU-*/gpu.json")
        ]
        return tuple(sorted(found, key=lambda gpu: gpu.index))

    def namespace(self) -> int:
        """Read the inode of the simulated host's PID namespace: that of its creator."""
        return int(json.loads((self.folder / "namespace").read_text()))

    def node(self, gpu: str) -> Path:
        """Compute the path of the simulated device node, which every process on the GPU opens."""
        return self.folder / gpu / "node"

    def memory(self, gpu: str) -> Memory:
        """Sum the memory of ``gpu`` that processes hold."""
        total = self._gpu(gpu).memory_total
        used = sum(share.stated.memory for share in self._shares(gpu))
        return Memory(total=total, used=used, free=total - used)

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """List the processes that a driver would list by now, in this PID namespace."""
        now = time.monotonic()
        return tuple(
            GpuProcess(pid=share.pid, kind=ProcessKind.COMPUTE, memory=share.stated.memory)
            for share in self._shares(gpu)
            if share.stated.listed_at <= now and share.pid
        )

    def work(self, gpu: str) -> dict[str, float | None]:
        """Compute how many seconds each living process has worked, by the name of its file.

        None stands for one that does not count its work.
        """
        shares = [share for share in self._shares(gpu) if share.pid is not None]
        return {share.path: _worked(share.stated) for share in shares}

    def hidden(self, gpu: str) -> int:
        """Count the processes on ``gpu`` in PID namespaces that are not visible here."""
        return sum(share.pid == 0 for share in self._shares(gpu))

    def fault(self, gpu: str) -> str | None:
        """Read the fault that a test injected into ``gpu``; see probe/simulated_driver.py."""
        try:
            return (self.folder / gpu / "fault").read_text().strip() or None
        except FileNotFoundError:
            return None

    def inject(self, gpu: str, fault: str | None) -> None:
        """Plant a fault on ``gpu`` for a test, or remove it."""
        _write_fact(self.folder / gpu / "fault", fault)

    def timing(self, gpu: str) -> Timing:
        """Read how long the driver of ``gpu`` takes."""
        try:
            return Timing(**json.loads((self.folder / gpu / "timing").read_text()))
        except FileNotFoundError:
            return Timing()

    def set_timing(self, gpu: str, timing: Timing) -> None:
        """Set how long the driver of ``gpu`` takes for what begins later."""
        _write(self.folder / gpu / "timing", asdict(timing))

    def heat(self, gpu: str) -> int | None:
        """Read the temperature that a test injected into ``gpu``, in degrees Celsius."""
        try:
            return int((self.folder / gpu / "heat").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def warm(self, gpu: str, degrees: int | None) -> None:
        """Plant this temperature on ``gpu`` for a test, or remove it."""
        _write_fact(self.folder / gpu / "heat", None if degrees is None else str(degrees))

    def throw_xids(self, gpu: str, *numbers: int) -> None:
        """Plant XIDs of ``gpu`` for a test; one driver delivers each of them once."""
        _write(self.folder / gpu / "xids", numbers)

    def take_xids(self, gpu: str) -> list[int]:
        """Remove the XIDs that a test planted, and return them."""
        path = str(self.folder / gpu / "xids")
        taken = f"{path}.{os.getpid()}"
        try:
            os.rename(path, taken)  # noqa: PTH104 - see _shares; one of several drivers wins
        except FileNotFoundError:
            return []
        numbers = [int(number) for number in json.loads(_read(taken))]
        _remove(taken)
        return numbers

    def figures(self, gpu: str) -> dict[str, Any]:
        """Read the counters of ``gpu`` that a test replaced, by their names.

        Raises:
            ValueError: The file is not a JSON object.
        """
        try:
            found = json.loads((self.folder / gpu / "figures").read_text())
        except FileNotFoundError:
            return {}
        if not isinstance(found, dict):
            raise ValueError("the injected figures are not an object")  # noqa: TRY004 - of a file
        return found

    def inject_figures(self, gpu: str, figures: Mapping[str, Any] | None) -> None:
        """Replace these counters of ``gpu`` for a test; None removes all replacements."""
        _write_fact(self.folder / gpu / "figures", None if figures is None else json.dumps(figures))

    def attach(self, gpu: str) -> Membership:
        """Join ``gpu`` as this process, holding nothing yet; opens its node."""
        with self.node(gpu).open("rb"):
            return Membership(self, gpu)

    def has_room(self, gpu: str, size: int) -> bool | None:
        """Check whether ``size`` bytes of ``gpu`` are free; None while a teardown frees memory."""
        shares = self._shares(gpu)
        if size <= self._gpu(gpu).memory_total - sum(share.stated.memory for share in shares):
            return True
        return None if any(share.is_being_freed for share in shares) else False

    @contextlib.contextmanager
    def locked(self, gpu: str) -> Iterator[None]:
        """Block every other allocation on ``gpu``."""
        with (self.folder / gpu / "allocation.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _gpu(self, gpu: str) -> Gpu:
        return Gpu(**json.loads((self.folder / gpu / "gpu.json").read_text())["gpu"])

    def _shares(self, gpu: str) -> list[_Share]:
        """List the shares of memory that are in use, and remove the files of dead processes.

        The names of the files are never those of a Path: Python 3.12 keeps the parts of every path
        for good, 0.6 KiB for each process that was ever on a GPU.
        """
        shares = []
        with os.scandir(self.folder / gpu) as entries:
            paths = [entry.path for entry in entries if entry.name.endswith(".share")]
        for path in paths:
            lock = path.removesuffix(".share") + ".lock"
            try:
                pid = _holder_pid(lock)  # first: what a dead process stated does not change
                stated = _Stated(*_STATED.unpack(_read(path)))
            except (FileNotFoundError, struct.error):
                continue
            share = _Share(pid=pid, stated=stated, path=path)
            if pid is None and not self._keeps_memory(gpu, share):
                _remove(path)
                _remove(lock)
            elif stated.memory:
                shares.append(share)
        return shares

    def _keeps_memory(self, gpu: str, dead: _Share) -> bool:
        """Check whether the memory of a dead process is not free yet.

        It states nothing about its death, so the first reader does: a probe, a watching stressor or
        a newcomer, which read more often than a release takes.
        """
        lock = dead.path.removesuffix(".share") + ".lock"
        # The kernel drops the lock of a process that ends a moment before it closes the file.
        for _ in range(_CLOSE_TRIES):
            if not _is_open(lock):
                break
            time.sleep(_TEARDOWN_POLL_S)
        else:
            return True
        if not dead.stated.in_call:
            return False
        died_at = dead.stated.died_at
        if not died_at:
            died_at = time.monotonic()
            with open(dead.path, "r+b") as file:  # noqa: PTH123 - see _shares
                os.pwrite(file.fileno(), struct.pack("d", died_at), _DIED_AT)
        return time.monotonic() < died_at + self.timing(gpu).release_s


class Membership:
    """The share of this process on one simulated GPU; ends with the process or :meth:`close`."""

    def __init__(self, registry: Registry, gpu: str) -> None:
        self._registry = registry
        self._gpu = gpu
        stem = registry.folder / gpu / os.urandom(8).hex()
        self._path = stem.with_suffix(".share")
        self._lock = stem.with_suffix(".lock")
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)  # of this process
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # of all that share its open file
        _own_locks[str(self._lock)] = os.getpid(), descriptor
        listed_at = time.monotonic() + registry.timing(gpu).listing_s
        self._stated = _Stated(listed_at=listed_at)
        self._path.write_bytes(_STATED.pack(*self._stated))
        with self._path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _STATED.size)

    @property
    def held(self) -> int:
        """The memory of this process in bytes."""
        return self._stated.memory

    def allocate(self, size: int) -> bool:
        """Allocate ``size`` more bytes; return False if they are not free.

        It waits for a teardown that frees memory, as a driver does.
        """
        while True:
            with self._registry.locked(self._gpu):
                room = self._registry.has_room(self._gpu, size)
                if room:
                    self._state(memory=self.held + size)
            if room is not None:
                return room
            time.sleep(_TEARDOWN_POLL_S)

    def free(self, size: int) -> None:
        """Free ``size`` bytes."""
        self._state(memory=self.held - size)

    @contextlib.contextmanager
    def driver_call(self) -> Iterator[None]:
        """State that this process is in a call of the driver, which delays its teardown."""
        before = self._stated.in_call
        self._state(in_call=True)
        try:
            yield
        finally:
            self._state(in_call=before)

    def count_work(self, seconds: float, until: float) -> None:
        """Record the seconds of work so far, the last of which ends at ``until``.

        A process that never does counts as working all the time.
        """
        self._state(worked_s=seconds, works_until=until)

    def close(self) -> None:
        """Leave the GPU."""
        self._shared.close()
        self._path.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)
        own = _own_locks.pop(str(self._lock), None)
        if own is not None:
            os.close(own[1])

    def _state(self, **changes: Any) -> None:
        """Change what this process states."""
        self._stated = self._stated._replace(**changes)
        self._shared[:] = _STATED.pack(*self._stated)  # pack_into would write zeros first


def _holder_pid(lock: str) -> int | None:
    """Find the holder of a lock: its PID, 0 if it is not visible from here, or None.

    A process that opens and closes a file loses its own locks on it, so its own are looked up here.

    Raises:
        FileNotFoundError: The lock does not exist.
    """
    if lock in _own_locks and _own_locks[lock][0] == os.getpid():
        return os.getpid()
    with open(lock, "rb") as file:  # noqa: PTH123 - see _shares
        query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else pid


def _is_open(lock: str) -> bool:
    """Check whether a process that the dead holder of a lock has forked keeps its file open."""
    try:
        with open(lock, "rb") as file:  # noqa: PTH123 - see _shares
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:  # another reader has removed it
        return False
    except BlockingIOError:
        return True
    return False


def _write_fact(path: Path, text: str | None) -> None:
    """Write the file of an injected fact, or remove it."""
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(text)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - see _shares
        return file.read()


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - see _shares


def _worked(stated: _Stated) -> float | None:
    """Compute the seconds of work done by now, or None if they are not counted."""
    if math.isnan(stated.worked_s):
        return None
    return stated.worked_s - max(0.0, stated.works_until - time.monotonic())


def _write(path: Path, body: object) -> None:
    """Replace ``path`` atomically, so that no reader sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(body))
    draft.replace(path)
