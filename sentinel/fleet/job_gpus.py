"""Keep the GPUs of Slurm's jobs free from the prolog to the epilog, by reservations.

Each job has a file with its GPUs. A reservation of these functions lasts as long as the file of any
job names one of its GPUs, and has no end of its own. So a GPU that jobs share (shards, MPS) is kept
free until the last of them ends. What an epilog could not end, because no daemon ran or the node
crashed, ends with the next prolog, epilog or health check; what no epilog was run for, with the
next health check.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from sentinel.client import Client
from sentinel.errors import NotRunningError, SentinelError
from sentinel.fleet.engine import run_tool
from sentinel.host.procfs import boot_id, read_status
from sentinel.host.regular_file import file_errors, locked, open_regular, read_regular, replace_file
from sentinel.protocol.api_types import GpuStatus
from sentinel.protocol.gpu_names import is_named, parse_address

#: With AutoDetect, slurmd asks the driver, which takes seconds without persistence mode.
_TIMEOUT_S = 15.0
#: A line of `slurmd -G`. Shards and MPS have lines of their own for the same device files.
_LINE = re.compile(r"\bGres Name=gpu .*?\bCount=(\d+) .*?\bFile=(\S+)")
_DEVICE = re.compile(r"/nvidia(\d+)$")

#: How the reason of every such reservation begins; the job's id follows.
REASON = "Slurm job"
#: The wait for each GPU by itself, in seconds, after not all of them were available together.
_SINGLE_WAIT_S = 2.0
_MAX_BYTES = 2**16
#: The title of the process that serves a step of a job, such as ``slurmstepd: [7.batch]``.
_STEP = re.compile(rb"slurmstepd: \[(\d+)[.+]")


def read_gres() -> tuple[int | None, ...]:
    """Query the node's list of GPUs; see :func:`parse_gres`.

    Raises:
        EngineError: slurmd is missing, failed, or did not answer in time.
    """
    # The list is a part of the log.
    return tuple(parse_gres(run_tool(("slurmd", "-G"), timeout_s=_TIMEOUT_S, with_errors=True)))


def parse_gres(text: str) -> Iterator[int | None]:
    """Parse what ``slurmd -G`` prints: the minor number of each place's device file, or None.

    A place with several files (MultipleFiles) is a MIG instance: the first is its GPU's.
    """
    for count, listed in _LINE.findall(text):
        files = list(expand(listed))
        places = int(count)
        first_files = files if len(files) == places else files[:1] * places
        for file in first_files or [""] * places:
            device = _DEVICE.search(file)
            yield int(device[1]) if device is not None else None


def expand(text: str) -> Iterator[str]:
    """Expand a list of Slurm, such as ``/dev/nvidia[0-2,5],/dev/nvidia7``."""
    for part in re.findall(r"[^,\[\]]*(?:\[[^\]]*\])?", text):
        if not part:
            continue
        start, _, numbers = part.rstrip("]").partition("[")
        if not numbers:
            yield start
            continue
        for item in numbers.split(","):
            first, _, last = item.partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()):
                continue
            yield from (
                f"{start}{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)
            )


def gpus_of_job(
    names: Sequence[str],
    gres: Sequence[int | None],
    addresses: Mapping[int, str],
    gpus: Sequence[GpuStatus],
) -> tuple[GpuStatus, ...]:
    """Find the GPUs of a job among those of the daemon; it may not have all of them.

    A place without a known device file is taken for NVML's index: both count in the order of the
    PCI bus where the list is complete, as AutoDetect=nvml makes it.

    Args:
        names: ``SLURM_JOB_GPUS``: places, or the UUIDs or PCI addresses of GPUs.
        gres: From :func:`read_gres`; empty if it is not known.
        addresses: The PCI address by the minor number of the device file.
        gpus: The GPUs of the daemon.
    """
    found: dict[str, GpuStatus] = {}
    for name in names:
        minor = gres[int(name)] if name.isdecimal() and int(name) < len(gres) else None
        own = name if minor is None else addresses.get(minor, name)
        found |= {gpu.uuid: gpu for gpu in gpus if is_named(gpu, own)}
    return tuple(found.values())


def names_of_job(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Read the names of a job's GPUs from the variables of a prolog; empty without any."""
    text = environment.get("SLURM_JOB_GPUS") or environment.get("CUDA_VISIBLE_DEVICES") or ""
    names = [part.strip() for part in text.split(",")]
    return tuple(
        name
        for name in names
        if name.isdecimal() or name.startswith("GPU-") or parse_address(name) is not None
    )


# --- reservations ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """The files of the jobs of this node."""

    #: The folder; it is created when it is needed.
    path: Path

    def locked(
        self, gpu: str | None = None, timeout: float = math.inf
    ) -> AbstractContextManager[int]:
        """Exclude other prologs and epilogs, or other prologs of one GPU.

        Args:
            gpu: The UUID of the GPU.
            timeout: How long another may keep the lock, in seconds; then entering raises OSError.

        Raises:
            ConfigError: The folder cannot be written.
        """
        name = "lock" if gpu is None else f"{gpu}.lock"
        with file_errors(f"{self.path} cannot be written"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = open_regular(self.path / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        return locked(file, timeout)

    def add(self, job: str, gpus: Sequence[str], seconds: float) -> None:
        """Write the file of a job, which counts for at most ``seconds``.

        Raises:
            ConfigError: It cannot be written.
        """
        until = time.monotonic() + seconds
        content = {"boot": boot_id(), "until": until, "gpus": list(gpus)}
        with file_errors(f"{self._file(job)} cannot be written"):
            replace_file(self._file(job), json.dumps(content))

    def remove(self, job: str) -> None:
        """Delete the file of a job, if there is one."""
        self._file(job).unlink(missing_ok=True)

    def written(self) -> dict[str, int]:
        """List the jobs with a file, each with the time in nanoseconds when it was written."""
        found: dict[str, int] = {}
        for file in self.path.glob("*.job"):
            with contextlib.suppress(FileNotFoundError):
                found[file.stem] = file.stat().st_mtime_ns
        return found

    def gpus(self) -> frozenset[str] | None:
        """Collect the UUIDs of the GPUs of all jobs that may still run; delete the other files.

        Returns:
            None if a file cannot be read now, as after too many open files: it may be of any GPU.
        """
        found: set[str] = set()
        try:
            with os.scandir(self.path) as entries:  # glob would ignore errors
                files = [Path(entry.path) for entry in entries if entry.name.endswith(".job")]
            for file in files:
                try:
                    content = json.loads(read_regular(file, _MAX_BYTES))
                    boot, gpus = str(content["boot"]), list(map(str, content["gpus"]))
                    until = float(content.get("until", math.inf))  # of an earlier version
                except FileNotFoundError:
                    continue
                except (ValueError, KeyError, TypeError, RecursionError):
                    boot, gpus, until = "", [], 0.0  # not written by add
                if boot == boot_id() and time.monotonic() < until:
                    found.update(gpus)
                else:
                    file.unlink(missing_ok=True)
        except OSError:
            return None
        return frozenset(found)

    def _file(self, job: str) -> Path:
        return self.path / f"{job}.job"


def reserve_for_job(
    client: Client, files: JobFiles, job: str, gpus: Sequence[str], *, wait: float, longest: float
) -> list[str]:
    """Reserve GPUs for a job; return once they are free, or say of each why it is not.

    A GPU that is not free in time is in use by a process that neither Slurm nor the daemon has
    started. The daemon holds it no more than after a success.

    Args:
        client: The client of the daemon.
        files: The files of the jobs.
        job: The job's id.
        gpus: The UUIDs.
        wait: The longest wait, in seconds.
        longest: When the job is over without an epilog, in seconds.

    Raises:
        NotRunningError: No daemon runs, so nothing is held.
        SentinelError: The daemon does not answer, or the file cannot be written.
    """
    until = time.monotonic() + wait
    with files.locked():
        files.add(job, gpus, longest)
    with contextlib.ExitStack() as locks:
        # The prolog of another job that shares a GPU may be about to reserve it, or wait until it
        # is free. All lock in the same order; in the end, this one asks all the same.
        with contextlib.suppress(OSError):
            for uuid in sorted(gpus):
                locks.enter_context(files.locked(uuid, until - time.monotonic()))
        with files.locked():
            held = _end_unused(client, files)
        missing = [uuid for uuid in gpus if uuid not in held]
        left = max(0.0, until - time.monotonic())
        return _reserve(client, job, missing, wait=left) if missing else []


def _reserve(client: Client, job: str, missing: Sequence[str], *, wait: float) -> list[str]:
    """Reserve GPUs together, or those that are available; return why not the others."""
    attempts = [missing] if len(missing) == 1 else [missing, *([uuid] for uuid in missing)]
    problems: list[str] = []
    for number, attempt in enumerate(attempts):
        seconds = wait if number == 0 else min(wait, _SINGLE_WAIT_S)
        try:
            client.reserve(attempt, reason=f"{REASON} {job}", seconds=None, wait=seconds)
        except NotRunningError:
            raise
        except SentinelError as error:
            if number or len(attempts) == 1:
                problems.append(error.what)
        else:
            if number == 0:
                break
    return problems


def release_job(client: Client, files: JobFiles, job: str) -> None:
    """End the reservations of a job, unless another job uses the same GPUs.

    Raises:
        SentinelError: The daemon does not run or answer; the next call ends them.
    """
    with files.locked():
        files.remove(job)
        _end_unused(client, files)


def end_unused(client: Client, files: JobFiles) -> None:
    """End the reservations of jobs that are over.

    Raises:
        SentinelError: As for :func:`release_job`.
    """
    with files.locked():
        _end_unused(client, files)


def end_lost(client: Client, files: JobFiles, node: str) -> None:
    """End the reservations of jobs that are over without an epilog.

    A controller that has lost its state sends none for a job whose processes are gone. Such a job
    has no slurmstepd here and is not on this node for the controller, which is only asked about
    jobs without a slurmstepd. If it does not answer, all reservations stay.

    Args:
        client: The client of the daemon.
        files: The files of the jobs.
        node: The name of this node in Slurm.

    Raises:
        EngineError: Slurm does not answer.
        SentinelError: As for :func:`release_job`.
    """
    before = files.written()
    suspects = before.keys() - _jobs_with_steps()
    if not suspects:
        return
    # The controller gives a job its node before the prolog, so a file without a job is an old one.
    words = ("squeue", "--noheader", "--all", "--local", f"--nodelist={node}", "--format=%A")
    lost = suspects.difference(run_tool(words, timeout_s=_TIMEOUT_S).split())
    if not lost:
        return
    with files.locked():
        now = files.written()
        for job in lost:
            if now.get(job) == before[job]:  # a job that was requeued may be back
                files.remove(job)
        _end_unused(client, files)


def _jobs_with_steps() -> frozenset[str]:
    """Collect the ids of the jobs that a slurmstepd of this node serves, from process titles.

    slurmd runs both slurmstepd and the health check as its own user; a job can choose any title.
    """
    found: set[str] = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            match = _STEP.match(file.read_bytes())
            if match and read_status(int(file.parent.name), "Uid")[:1] == [str(os.getuid())]:
                found.add(match[1].decode())
    return frozenset(found)


def _end_unused(client: Client, files: JobFiles) -> frozenset[str]:
    """End the reservations that no job needs; return the UUIDs of those that are left."""
    used = files.gpus()
    left: set[str] = set()
    for reservation in client.reservations():
        # Another user's may have the same words.
        if not reservation.reason.startswith(f"{REASON} ") or reservation.holder.uid != os.getuid():
            continue
        if used is not None and used.isdisjoint(reservation.gpus):
            client.cancel_reservation(reservation.id)
        else:
            left.update(reservation.gpus)
    return frozenset(left)
