"""Simulated GPUs: a folder that a probe, stressors and foreign test jobs share.

Each GPU is a folder. Each process on it owns one file there that states how much memory it holds,
and holds a lock beside it. The kernel drops the lock when the process dies, so a dead process holds
nothing, as on a real card, and nothing remains after a SIGKILL. The kernel also reports the holder
of the lock in the PID namespace of the reader, or not at all: as a real driver does. A process that
counts its work shares a few bytes of memory for that. Only the device is simulated: its processes
are real and get real signals.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.host.device_order import INFORMATION, information
from sentinel.host.paths import SIMULATED
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind

#: Memory of one simulated GPU in bytes.
DEFAULT_TOTAL = 16 * 2**30

#: How long a context exists before the driver lists its process. On an H200 the PID showed 28 to
#: 57 ms after the first growth of memory (see docs/internals/benchmarks.md).
LISTING_DELAY = 0.04

#: struct flock: type, whence, start, length and, as the result of a query, the PID of the holder.
_FLOCK = struct.Struct("hhqqi4x")

#: The work of one process: its seconds so far, and when the last of them ends.
_WORK = struct.Struct("dd")

#: The locks of this process, by file: its PID and the descriptor. They last as long as the process,
#: and the kernel does not report them to the process itself.
_own_locks: dict[str, tuple[int, int]] = {}


def default_folder() -> Path:
    """Find the folder of the registry: ``$SENTINEL_SIM_DIR``, or one per user in temp files."""
    chosen = os.environ.get(SIMULATED)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"sentinel-sim-{os.getuid()}"


@dataclass(frozen=True, kw_only=True)
class _Share:
    """The file of one process: how much it holds, and from when on the driver lists it."""

    #: 0 if the process lives in a PID namespace that is not visible from here.
    pid: int
    memory: int
    listed_at: float
    path: str


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
        """
        folder.mkdir(parents=True, exist_ok=True)
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
        return cls(folder)

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
        """Sum the memory of ``gpu`` that living processes hold."""
        total = self._gpu(gpu).memory_total
        used = sum(share.memory for share in self._shares(gpu))
        return Memory(total=total, used=used, free=total - used)

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """List the processes that a driver would list by now, in this PID namespace."""
        now = time.monotonic()
        return tuple(
            GpuProcess(pid=share.pid, kind=ProcessKind.COMPUTE, memory=share.memory)
            for share in self._shares(gpu)
            if share.listed_at <= now and share.pid
        )

    def work(self, gpu: str) -> dict[str, float | None]:
        """Compute how many seconds each living process has worked, by the name of its file.

        None stands for one that does not count its work.
        """
        return {share.path: _worked(share.path) for share in self._shares(gpu)}

    def hidden(self, gpu: str) -> int:
        """Count the processes on ``gpu`` in PID namespaces that are not visible here."""
        return sum(not share.pid for share in self._shares(gpu))

    def fault(self, gpu: str) -> str | None:
        """Read the fault that a test injected into ``gpu``; see probe/simulated_driver.py."""
        try:
            return (self.folder / gpu / "fault").read_text().strip() or None
        except FileNotFoundError:
            return None

    def inject(self, gpu: str, fault: str | None) -> None:
        """Plant a fault on ``gpu`` for a test, or remove it."""
        _write_fact(self.folder / gpu / "fault", fault)

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

    @contextlib.contextmanager
    def locked(self, gpu: str) -> Iterator[None]:
        """Block every other allocation on ``gpu``."""
        with (self.folder / gpu / "allocation.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _gpu(self, gpu: str) -> Gpu:
        return Gpu(**json.loads((self.folder / gpu / "gpu.json").read_text())["gpu"])

    def _shares(self, gpu: str) -> list[_Share]:
        """List the shares of living processes, and remove the files of dead ones.

        The names of the files are never those of a Path: Python 3.12 keeps the parts of every path
        for good, 0.6 KiB for each process that was ever on a GPU.
        """
        shares = []
        with os.scandir(self.folder / gpu) as entries:
            paths = [entry.path for entry in entries if entry.name.endswith(".share")]
        for path in paths:
            lock = path.removesuffix(".share") + ".lock"
            try:
                body = json.loads(_read(path))
                pid = _holder_pid(lock)
            except (FileNotFoundError, ValueError):
                continue
            if pid is None:
                for file in (path, lock, _work_of(path)):
                    _remove(file)
                continue
            memory, listed_at = body["memory"], body["listed_at"]
            shares.append(_Share(pid=pid, memory=memory, listed_at=listed_at, path=path))
        return shares


class Membership:
    """The share of this process on one simulated GPU; ends with the process or :meth:`close`."""

    def __init__(self, registry: Registry, gpu: str) -> None:
        self._registry = registry
        self._gpu = gpu
        stem = registry.folder / gpu / os.urandom(8).hex()
        self._path = stem.with_suffix(".share")
        self._lock = stem.with_suffix(".lock")
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        _own_locks[str(self._lock)] = os.getpid(), descriptor
        self._listed_at = time.monotonic() + LISTING_DELAY
        self._work: mmap.mmap | None = None
        self.held = 0

    def allocate(self, size: int) -> bool:
        """Allocate ``size`` more bytes; return False if they are not free."""
        with self._registry.locked(self._gpu):
            if size > self._registry.memory(self._gpu).free:
                return False
            self.held += size
            self._save()
            return True

    def free(self, size: int) -> None:
        """Free ``size`` bytes."""
        self.held -= size
        self._save()

    def count_work(self, seconds: float, until: float) -> None:
        """Record the seconds of work so far, the last of which ends at ``until``.

        A process that never does counts as working all the time.
        """
        if self._work is None:
            place = Path(_work_of(str(self._path)))
            place.write_bytes(bytes(_WORK.size))
            with place.open("r+b") as file:
                self._work = mmap.mmap(file.fileno(), _WORK.size)
        _WORK.pack_into(self._work, 0, seconds, until)

    def close(self) -> None:
        """Leave the GPU."""
        if self._work is not None:
            self._work.close()
        _remove(_work_of(str(self._path)))
        self._path.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)
        own = _own_locks.pop(str(self._lock), None)
        if own is not None:
            os.close(own[1])

    def _save(self) -> None:
        _write(self._path, {"memory": self.held, "listed_at": self._listed_at})


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


def _write_fact(path: Path, text: str | None) -> None:
    """Write the file of an injected fact, or remove it."""
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(text)


def _work_of(share: str) -> str:
    """Compute the path of the file that counts the work of this share."""
    return share.removesuffix(".share") + ".work"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - see _shares
        return file.read()


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - see _shares


def _worked(share: str) -> float | None:
    """Compute the seconds of work done by now, or None if they are not counted."""
    try:
        seconds, until = map(float, _WORK.unpack(_read(_work_of(share))))
    except (FileNotFoundError, struct.error):
        return None
    return seconds - max(0.0, until - time.monotonic())


def _write(path: Path, body: object) -> None:
    """Replace ``path`` atomically, so that no reader sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(body))
    draft.replace(path)
