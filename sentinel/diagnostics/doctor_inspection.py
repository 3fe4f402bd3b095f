"""Gather the facts about the host and its driver; a call into the driver may hang or crash."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from sentinel.config.gpu_selection import pci_order, read_visible
from sentinel.config.model import Config
from sentinel.config.specs import find_driver
from sentinel.diagnostics.counters import TIMEOUTS, read_counters
from sentinel.diagnostics.doctor_facts import (
    DriverFacts,
    Folder,
    GpuFacts,
    Held,
    HostFacts,
    Numbers,
    Quota,
    Room,
    Unread,
)
from sentinel.diagnostics.one_shot import Timeouts
from sentinel.diagnostics.survey import read_once
from sentinel.errors import SentinelError
from sentinel.host import lock_holders, simulation
from sentinel.host.packages import bindings, installer, torch_build
from sentinel.host.paths import lock_folders
from sentinel.host.process_setup import why_processes_are_hidden
from sentinel.host.regular_file import why_full, why_untrusted
from sentinel.protocol.counters import Counters, CountersSpec, GpuAccess
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import NVML
from sentinel.supervisor.discovery import Options

#: Version 1 writes "no limit" as the largest multiple of a page.
_NO_LIMIT = 2**60

_NO_ANSWER = "the driver did not answer in time"

#: The prefix of both MPS processes: the control daemon and the server that it starts for clients.
_MPS = "nvidia-cuda-mps-"


@dataclass(frozen=True, kw_only=True)
class DriverInspection:
    """What the driver answered."""

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...]
    #: Whether a process survives SIGKILL, hung in the driver.
    stuck: bool


def inspect_driver(timeouts: Timeouts = TIMEOUTS) -> DriverInspection:
    """Make every call to the driver; a GPU on which one hangs or crashes loses only its own.

    Args:
        timeouts: How long each call may take.
    """
    found = read_counters(None, timeouts=timeouts, spec=CountersSpec(access=True))
    version, missing = found.driver, found.driver_error
    cuda = None if version is None else version.cuda
    driver = DriverFacts(
        version=None if version is None else version.version,
        cuda=Unread() if cuda is None else (cuda,),
        missing=missing,
    )
    gpus = tuple(
        _gpu(counters, found.access.get(counters.index, GpuAccess(index=counters.index)))
        for counters in found.counters
    )
    stuck = found.stuck
    if missing is None and not any(counters.unanswered for counters in found.counters):
        gpus, survives = _with_readings(gpus, Options(config=Config()))
        stuck = stuck or survives
    return DriverInspection(driver=driver, gpus=gpus, stuck=stuck)


def _with_readings(
    gpus: tuple[GpuFacts, ...], options: Options
) -> tuple[tuple[GpuFacts, ...], bool]:
    """Have a probe read the GPUs once, as a daemon's does; add why it could not.

    Returns:
        The GPUs, and whether the probe survived SIGKILL.
    """
    try:
        found, readings, stuck = read_once(options)
    except SentinelError:  # the other checks name it
        return gpus, False
    faults = {
        gpu.uuid: _NO_ANSWER if (reading := readings.get(gpu.uuid)) is None else reading.fault
        for gpu in found.gpus
    }
    return tuple(replace(gpu, unread=faults.get(gpu.uuid or "")) for gpu in gpus), stuck


def _gpu(counters: Counters, access: GpuAccess) -> GpuFacts:
    """Build the facts about a GPU; a call that was not made or is not supported has no numbers."""
    values = {**vars(counters), **vars(access)}
    failed = {**counters.failed, **access.failed}

    def read(*names: str) -> Numbers:
        found = [values[name] for name in names]
        if None in found:
            return Unread(why=next((failed[name] for name in names if name in failed), None))
        numbers = found[0] if isinstance(found[0], tuple) else found
        return tuple(map(int, numbers))

    minor = read("minor")
    unreachable = None if counters.uuid else next(iter(failed.values()), None)
    return GpuFacts(
        index=counters.index,
        uuid=counters.uuid or None,
        name=counters.name,
        lost=counters.lost or unreachable,
        node=None if isinstance(minor, Unread) else f"/dev/nvidia{minor[0]}",
        memory=read("memory"),
        persistence=read("persistence"),
        compute_mode=read("compute_mode"),
        mig=read("mig", "mig_pending"),
        display=read("display"),
        ecc=read("ecc", "ecc_pending"),
        volatile=read("ecc_uncorrected_total"),
        aggregate=read("ecc_uncorrected_lifetime_total"),
        remapped=read(
            "remapped_corrected_total",
            "remapped_uncorrected_total",
            "remap_pending",
            "remap_failed",
        ),
        retiring=read("retirement_pending"),
        compute=read("computing"),
        mps=read("mps"),
    )


def least_quota(proc: Path = Path("/proc")) -> Quota | None:
    """Find the tightest quota of processor time on this process, or None.

    Args:
        proc: The mount point of /proc.
    """
    quotas = []
    for folder in _folders("cpu", proc):
        cpus = _cpus(folder)
        if cpus is not None:
            quotas.append(Quota(cpus=cpus, where=str(folder)))
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def least_room(proc: Path = Path("/proc")) -> Room | None:
    """Find how much more memory this process can use, by the host or by one of its groups."""
    rooms = []
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(proc / "meminfo"), re.MULTILINE)
    if found:
        rooms.append(Room(available=int(found[1]) * 1024, where="MemAvailable"))
    for folder in _folders("memory", proc):
        left = _left(folder)
        if left is not None:
            rooms.append(Room(available=left, where=str(folder)))
    return min(rooms, key=lambda room: room.available, default=None)


def _cpus(folder: Path) -> float | None:
    """Read how many processors a group may use, or None if it may use all."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")  # version 2: "50000 100000"
    if not quota:
        quota, period = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    numbers = quota.isdigit() and period.isdigit() and int(period) > 0  # no quota: "max", or "-1"
    return int(quota) / int(period) if numbers else None


def _left(folder: Path) -> int | None:
    """Read how much memory a group may still use, or None if it has no limit.

    Inactive file cache counts as free: the kernel reclaims it first.
    """
    if limit := _text(folder / "memory.max"):
        used, name = _text(folder / "memory.current"), "inactive_file"
    else:
        limit, used = (_text(folder / f"memory.{n}_in_bytes") for n in ("limit", "usage"))
        name = "total_inactive_file"
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _NO_LIMIT:
        return None
    cached = re.search(rf"^{name} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(cached[1]) if cached else 0))


def _folders(controller: str, proc: Path) -> Iterator[Path]:
    """Yield the folder of this process's group and those above it, as far as they are visible.

    With both versions mounted, a controller is in one of them only; the other's folder has no file
    of its name, which means no limit.
    """
    paths: dict[str, str] = {}
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for line in _text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, mount = (_unescaped(field) for field in before.split(" ")[3:5])
        matches = kind == "cgroup2" or controller in options.split(" ")[-1].split(",")
        if matches and kind in paths:
            yield from _upwards(paths[kind], root, Path(mount))


def _upwards(path: str, root: str, mount: Path) -> Iterator[Path]:
    """Yield the folders from a group up to the mount, which shows ``root``.

    A container may see the host's path of its group, or one outside of the mount: then the mount is
    its own group.
    """
    start = root.rstrip("/")
    inner = path.removeprefix(start) if f"{path}/".startswith(f"{start}/") else ""
    folder = mount / ("" if ".." in inner.split("/") else inner.strip("/"))
    yield folder
    while folder != mount:
        folder = folder.parent
        yield folder


def _unescaped(field: str) -> str:
    """Replace the octal escapes of blanks in a field of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _text(path: Path) -> str:
    """Read the stripped text of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def examine(
    simulate: int | None, timeouts: Timeouts = TIMEOUTS, driver: str = NVML.name
) -> tuple[HostFacts, bool]:
    """Gather all facts; return them, and whether a process survives SIGKILL.

    Args:
        simulate: How many GPUs to simulate, instead of inspecting the driver, or None.
        timeouts: How long driver calls may take.
        driver: The setting of that name.
    """
    folders, simulated = list(lock_holders.SHARED_FOLDERS), None
    if simulate is not None:
        simulated = simulation.default_folder()
        inspected, folders = _simulated(simulated, simulate), [simulated / "locks"]
    elif driver == NVML.name:
        inspected = inspect_driver(timeouts)
    else:
        inspected = _inspect_own(driver)
    no_inotify, gpus = _watched(inspected.gpus)
    usable_gpus, ignored = _count_usable(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    private = lock_folders(os.environ, os.getuid(), simulated)
    facts = HostFacts(
        driver=inspected.driver,
        gpus=gpus,
        usable_gpus=usable_gpus,
        ignored=ignored,
        bindings=bindings(),
        torch=torch_build(),
        installer=installer(),
        hidden=None if simulate is not None else why_processes_are_hidden(),
        no_inotify=no_inotify,
        mps=tuple(_mps_processes()) if simulate is None else (),
        folders=tuple(_folder(folder) for folder in folders),
        held=tuple(_held(folders, private, [gpu.uuid for gpu in gpus if gpu.uuid])),
        uid=os.getuid(),
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        policy=_policy(),
        quota=least_quota(),
        room=least_room(),
    )
    return facts, inspected.stuck


# --- GPUs ------------------------------------------------------------------------------------


def _simulated(folder: Path, count: int) -> DriverInspection:
    """Have a probe read the first simulated GPUs; missing ones are created."""
    registry = simulation.Registry.create(folder, count)
    listed = tuple(
        GpuFacts(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            node=str(registry.node(gpu.uuid)),
            memory=(gpu.memory_total,),
            compute=(),
            mig=(int(bool(registry.figures(gpu.uuid).get("mig"))),),
        )
        for gpu in registry.gpus()[:count]
    )
    gpus, stuck = _with_readings(listed, Options(config=Config(), simulate=count))
    return DriverInspection(driver=DriverFacts(simulated=True), gpus=gpus, stuck=stuck)


def _inspect_own(driver: str) -> DriverInspection:
    """Have a probe load the driver of a package, and read its GPUs once."""
    own = driver
    try:
        own = f"driver {driver} of {find_driver(driver).origin}"
        options = Options(config=Config(driver=driver))
        found, readings, stuck = read_once(options)
    except SentinelError as error:
        facts = DriverFacts(missing=error.what, own=own)
        return DriverInspection(driver=facts, gpus=(), stuck=False)
    gpus = tuple(_own_gpu(gpu, readings.get(gpu.uuid)) for gpu in found.gpus)
    facts = DriverFacts(version=found.driver, own=own)
    return DriverInspection(driver=facts, gpus=gpus, stuck=stuck)


def _own_gpu(gpu: Gpu, reading: Reading | None) -> GpuFacts:
    """Build the facts about a GPU of a package's driver; without a reading, its calls hang."""
    why = _NO_ANSWER if reading is None else reading.fault
    is_lost = reading is None or reading.lost
    pids = None if reading is None or why is not None else reading.processes
    return GpuFacts(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        lost=why if is_lost else None,
        unread=None if is_lost else why,
        memory=(gpu.memory_total,),
        compute=Unread(why=why) if pids is None else tuple(process.pid for process in pids),
    )


def _count_usable(gpus: Sequence[GpuFacts], visible: str | None) -> tuple[int, str | None]:
    """Count the GPUs with a known UUID that CUDA_VISIBLE_DEVICES shows; add what CUDA ignores.

    Numbers are counted in the order of the PCI bus, which NVML's is: CUDA's own order may show
    others, but as many.
    """
    named = tuple(
        Gpu(uuid=gpu.uuid, index=gpu.index, name=gpu.name, pci_bus_id="", memory_total=0)
        for gpu in gpus
        if gpu.uuid is not None and gpu.lost is None
    )
    try:
        shown, ignored = read_visible(visible, named, pci_order(named))
    except SentinelError:
        return 0, None
    return len(shown), ignored


def _watched(gpus: Sequence[GpuFacts]) -> tuple[str | None, tuple[GpuFacts, ...]]:
    """Try to watch every node; return why none can be, and the GPUs with their result."""
    from inotify_simple import INotify, flags  # type: ignore[import-untyped]

    try:
        inotify = INotify()
    except OSError as error:
        full = "no inotify instance is left" if error.errno == errno.EMFILE else error.strerror
        return full, tuple(gpus)
    found = []
    with inotify:
        for gpu in gpus:
            why = None
            if gpu.node is not None:
                try:
                    inotify.add_watch(gpu.node, flags.OPEN)
                except OSError as error:
                    none_left = error.errno == errno.ENOSPC
                    why = "no inotify watch is left" if none_left else error.strerror
            found.append(replace(gpu, unwatched=why))
    return None, tuple(found)


# --- the host --------------------------------------------------------------------------------


def _mps_processes() -> Iterator[tuple[int, str]]:
    """Yield every visible MPS process."""
    for process in psutil.process_iter(["name"]):  # psutil completes truncated names
        name = str(process.info["name"] or "")
        if name.startswith(_MPS):
            yield process.pid, name


def _folder(path: Path) -> Folder:
    """Check whether records can be created in a folder, without creating one."""
    if (why := why_untrusted(path)) is not None:
        return Folder(path=str(path), unusable=why)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        parent = path.parent
        able = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        why = None if able else f"it does not exist, and {parent} is not writable"
        return Folder(path=str(path), unusable=why, missing=True, private=_private(path))
    except OSError as error:
        return Folder(path=str(path), unusable=error.strerror)
    if not stat.S_ISDIR(mode):
        return Folder(path=str(path), unusable="it is not a folder")
    why = None if os.access(path, os.W_OK | os.X_OK) else "it is not writable"
    return Folder(
        path=str(path),
        unusable=why or why_full(path),
        shared=stat.S_IMODE(mode) & 0o007 == 0o007,  # noqa: PLR2004 - the rights of all users
        private=_private(path),
    )


def _private(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Check whether systemd mounted a folder for this service alone (PrivateTmp=)."""
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return False
    mounts = {line.split()[4]: line.split()[3] for line in lines}  # the last one is on top
    over = next((p for p in (path, *path.parents) if str(p) in mounts), None)
    return over is not None and "/systemd-private-" in mounts[str(over)]


def _held(folders: Sequence[Path], private: Sequence[Path], uuids: Sequence[str]) -> Iterator[Held]:
    """Yield each sentinel, and each process that one left behind, that holds a GPU."""
    recorded, uid = lock_holders.holders(folders), os.getuid()
    for uuid, owner in lock_holders.locked_by((*folders, *private), uuids).items():
        if owner.stray is not None:
            yield Held(uuid=uuid, holder=str(owner.stray), uid=uid, stray=owner.stray.pid)
        elif not any(holder.uid == uid for holder in recorded.get(uuid, ())):
            holder = f"a sentinel of this user without a record ({owner})"
            yield Held(uuid=uuid, holder=holder, uid=uid)
    for uuid, holders in sorted(recorded.items()):
        yield from (Held(uuid=uuid, holder=holder.by_name(), uid=holder.uid) for holder in holders)


def _policy() -> str:
    """Name the scheduling policy that children inherit."""
    names = ("SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE", "SCHED_FIFO", "SCHED_RR")
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    return next((name for name in names if getattr(os, name) == policy), f"policy {policy}")
