"""Pretended GPUs: a folder that a probe, stressors and foreign test jobs share.

Each GPU is a folder; each process on it owns one file there that says how much it holds, and keeps
a lock beside it. The kernel drops the lock when the process dies, so a dead process holds nothing,
as on a real card, and nobody has to clean up after a SIGKILL. The kernel also says who keeps it, in
the PIDs of whoever asks, and to another PID namespace not at all: as a real driver does. Whoever
counts its work shares a few bytes of memory for that. Only the device is pretended: whoever joins
is a real process and gets real signals.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind

#: Memory of one pretended GPU in bytes.
DEFAULT_TOTAL = 16 * 2**30

#: How long a context exists before the driver lists its process. On an H200 the PID showed 28 to
#: 57 ms after the first growth of memory (docs/benchmarks.md tells how that was measured).
LISTING_DELAY = 0.04

#: struct flock: type, whence, start, length and, for whoever asks, the PID of who keeps the lock.
_FLOCK = struct.Struct("hhqqi4x")

#: The work of one process: how many seconds of it there were so far, and until when they last.
_WORK = struct.Struct("dd")

#: The locks that this process keeps, by file: its PID and the descriptor. They last as long as it
#: does, and the kernel does not report them to the process itself.
_ours: dict[str, tuple[int, int]] = {}


def default_folder() -> Path:
    """Return the registry's folder: ``$SENTINEL_SIM_DIR``, or one per user in the temp folder."""
    chosen = os.environ.get("SENTINEL_SIM_DIR")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"sentinel-sim-{os.getuid()}"


@dataclass(frozen=True, kw_only=True)
class _Share:
    """One process's file: how much it holds, and from when on the driver would list it.

    ``pid`` is 0 where it lives in a PID namespace that cannot be seen from here.
    """

    pid: int
    memory: int
    listed_at: float
    path: str


class Registry:
    """The pretended GPUs of one folder.

    Args:
        folder: Where they live; made by :meth:`create`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, count: int, total: int = DEFAULT_TOTAL) -> Registry:
        """Make sure that ``folder`` holds at least ``count`` GPUs of ``total`` bytes.

        GPUs that are already there stay as they are, with whoever is on them.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "namespace").exists():
            _write(folder / "namespace", Path("/proc/self/ns/pid").stat().st_ino)
        for index in range(count):
            # The same UUIDs on every run, and unlike each other from the first digits on.
            gpu = Gpu(
                uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'sentinel simulated gpu {index}')}",
                index=index,
                name="Simulated GPU",
                pci_bus_id=f"00000000:{index + 1:02X}:00.0",
                memory_total=total,
            )
            place = folder / gpu.uuid
            place.mkdir(parents=True, exist_ok=True)
            (place / "node").touch()
            if not (place / "gpu.json").exists():
                _write(place / "gpu.json", {"gpu": vars(gpu)})
        return cls(folder)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all GPUs in index order; none where the folder is missing."""
        found = [
            Gpu(**json.loads(path.read_text())["gpu"])
            for path in self.folder.glob("GPU-*/gpu.json")
        ]
        return tuple(sorted(found, key=lambda gpu: gpu.index))

    def namespace(self) -> int:
        """Return the inode of the PID namespace of the pretended host: that of whoever made it."""
        return int(json.loads((self.folder / "namespace").read_text()))

    def node(self, gpu: str) -> Path:
        """Return the pretended device node, which everyone opens who uses the GPU."""
        return self.folder / gpu / "node"

    def memory(self, gpu: str) -> Memory:
        """Return the memory of ``gpu`` as held by the processes that are alive."""
        total = self._gpu(gpu).memory_total
        used = sum(share.memory for share in self._shares(gpu))
        return Memory(total=total, used=used, free=total - used)

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes that a driver would list by now, to somebody in this namespace."""
        now = time.monotonic()
        return tuple(
            GpuProcess(pid=share.pid, kind=ProcessKind.COMPUTE, memory=share.memory)
            for share in self._shares(gpu)
            if share.listed_at <= now and share.pid
        )

    def work(self, gpu: str) -> dict[str, float | None]:
        """Return how many seconds each living process has worked by now, by the name of its file.

        ``None`` stands for one that does not count its work.
        """
        return {share.path: _worked(share.path) for share in self._shares(gpu)}

    def hidden(self, gpu: str) -> int:
        """Return how many processes on ``gpu`` live in PID namespaces that are not seen here."""
        return sum(not share.pid for share in self._shares(gpu))

    def fault(self, gpu: str) -> str | None:
        """Return the fault that a test planted on ``gpu``; gpu/simulated.py has their names."""
        try:
            return (self.folder / gpu / "fault").read_text().strip() or None
        except FileNotFoundError:
            return None

    def plant(self, gpu: str, fault: str | None) -> None:
        """Plant a fault on ``gpu`` for a test, or take it away."""
        path = self.folder / gpu / "fault"
        if fault is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(fault)

    def heat(self, gpu: str) -> int | None:
        """Return the temperature that a test planted on ``gpu``, in degrees Celsius."""
        try:
            return int((self.folder / gpu / "heat").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def warm(self, gpu: str, degrees: int | None) -> None:
        """Let ``gpu`` have this temperature for a test, or that of its work again."""
        path = self.folder / gpu / "heat"
        if degrees is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(str(degrees))

    def attach(self, gpu: str) -> Membership:
        """Join ``gpu`` as this process, holding nothing yet; opens its node."""
        with self.node(gpu).open("rb"):
            return Membership(self, gpu)

    @contextlib.contextmanager
    def locked(self, gpu: str) -> Iterator[None]:
        """Keep every other allocation on ``gpu`` waiting."""
        with (self.folder / gpu / "allocation.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _gpu(self, gpu: str) -> Gpu:
        return Gpu(**json.loads((self.folder / gpu / "gpu.json").read_text())["gpu"])

    def _shares(self, gpu: str) -> list[_Share]:
        """Return what each living process holds, and sweep out the files of dead ones."""
        shares = []
        with os.scandir(self.folder / gpu) as entries:
            paths = [entry.path for entry in entries if entry.name.endswith(".share")]
        for path in paths:
            lock = path.removesuffix(".share") + ".lock"
            try:
                body = json.loads(Path(path).read_bytes())
                pid = _keeper(lock)
            except (FileNotFoundError, ValueError):
                continue
            if pid is None:
                Path(path).unlink(missing_ok=True)
                Path(lock).unlink(missing_ok=True)
                _work_of(path).unlink(missing_ok=True)
                continue
            memory, listed_at = body["memory"], body["listed_at"]
            shares.append(_Share(pid=pid, memory=memory, listed_at=listed_at, path=path))
        return shares


class Membership:
    """What this process holds on one pretended GPU. Ends with the process, or by :meth:`close`."""

    def __init__(self, registry: Registry, gpu: str) -> None:
        self._registry = registry
        self._gpu = gpu
        stem = registry.folder / gpu / os.urandom(8).hex()
        self._path = stem.with_suffix(".share")
        self._lock = stem.with_suffix(".lock")
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        _ours[str(self._lock)] = os.getpid(), descriptor
        self._listed_at = time.monotonic() + LISTING_DELAY
        self._work: mmap.mmap | None = None
        self.held = 0

    def allocate(self, size: int) -> bool:
        """Take ``size`` more bytes; ``False``, with nothing taken, where they are not free."""
        with self._registry.locked(self._gpu):
            if size > self._registry.memory(self._gpu).free:
                return False
            self.held += size
            self._save()
            return True

    def free(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self.held -= size
        self._save()

    def count_work(self, seconds: float, until: float) -> None:
        """Say how many seconds of work there were so far, the last of which ends ``until`` then.

        Who never says so is taken to work all the time.
        """
        if self._work is None:
            place = _work_of(str(self._path))
            place.write_bytes(bytes(_WORK.size))
            with place.open("r+b") as file:
                self._work = mmap.mmap(file.fileno(), _WORK.size)
        _WORK.pack_into(self._work, 0, seconds, until)

    def close(self) -> None:
        """Leave the GPU."""
        if self._work is not None:
            self._work.close()
        _work_of(str(self._path)).unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)
        mine = _ours.pop(str(self._lock), None)
        if mine is not None:
            os.close(mine[1])

    def _save(self) -> None:
        _write(self._path, {"memory": self.held, "listed_at": self._listed_at})


def _keeper(lock: str) -> int | None:
    """Return the PID of who keeps a lock, 0 where it is not to be seen from here, None if nobody.

    A process that opens and closes a file loses its own locks on it, so it never asks for those.

    Raises:
        FileNotFoundError: There is no such lock.
    """
    if lock in _ours and _ours[lock][0] == os.getpid():
        return os.getpid()
    with Path(lock).open("rb") as file:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid


def _work_of(share: str) -> Path:
    """Return the file that counts the work of whoever has this share."""
    return Path(share.removesuffix(".share") + ".work")


def _worked(share: str) -> float | None:
    """Return the seconds of work that are done by now; ``None`` where they are not counted."""
    try:
        seconds, until = map(float, _WORK.unpack(_work_of(share).read_bytes()))
    except (FileNotFoundError, struct.error):
        return None
    return seconds - max(0.0, until - time.monotonic())


def _write(path: Path, body: object) -> None:
    """Replace ``path`` at once, so that no reader ever sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(body))
    draft.replace(path)
