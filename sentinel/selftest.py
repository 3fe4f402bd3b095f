"""Prove on one GPU that flipped bits are found: runs the trials in a stressor and hears it out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import wait as wait_for_files

from sentinel import simulation, wire
from sentinel.children import spawn_stressor
from sentinel.discovery import Options, check_torch
from sentinel.errors import AccessDeniedError, ConfigError, SelftestError, WireError
from sentinel.locks import DEFAULT_FOLDERS, GpuLocks
from sentinel.messages import (
    Attaching,
    Failed,
    FailureKind,
    Finding,
    Gpu,
    Lease,
    MemoryTarget,
    Note,
    Progress,
    Proof,
    Proved,
    Ready,
    Stop,
    StressorSpec,
)
from sentinel.spawning import Child
from sentinel.wiring import LEASE, survey

__all__ = ["CLEAN", "Trials", "run_selftest"]

#: The place of a trial in which nothing was flipped.
CLEAN = "clean"

_MEMORY = MemoryTarget(size=2 * 2**30)
_CHUNK = 512 * 2**20
_WORKLOAD = "sentinel.stressor.selftest:selftest"

#: How often the lease is renewed, in seconds.
_RENEWAL = 0.5

#: How long the child may say nothing, in seconds: its first import of torch may take minutes.
_PATIENCE = 180.0

#: How long it may take to end when it is asked, in seconds.
_GRACE = 5.0

_AT_ONCE = 64
_SAYS = (Attaching, Failed, Finding, Note, Progress, Proof, Proved, Ready)


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What is to be tried: ``flips`` bits in each place, ``rounds`` results with none.

    No ``dtypes`` are all that the GPU can do.
    """

    flips: int
    rounds: int
    dtypes: tuple[str, ...] = ()


def run_selftest(
    options: Options, trials: Trials, tell: Callable[[Gpu, Proof], None]
) -> tuple[Gpu, tuple[Proof, ...]]:
    """Run the trials on the first GPU that is meant, and return how each went.

    Args:
        options: Which GPUs are meant.
        trials: What is to be tried.
        tell: Called with each as it is known.

    Raises:
        AccessDeniedError: Somebody uses the GPU.
        ConfigError: The GPU cannot do what is asked, or torch cannot use it.
        SelftestError: The stressor did not come to its end.
        SentinelError: No GPU, no driver, or another sentinel holds the GPU.
    """
    gpu = _free_gpu(options)
    folder = simulation.default_folder() if options.simulate is not None else None
    locks = GpuLocks([gpu], (folder / "locks",) if folder else DEFAULT_FOLDERS)
    spec = StressorSpec(
        gpu=gpu,
        memory=_MEMORY,
        chunk=_CHUNK,
        workload=_WORKLOAD,
        options={
            "flips": str(trials.flips),
            "rounds": str(trials.rounds),
            "dtypes": "+".join(trials.dtypes),
        },
        lease=LEASE,
        simulation=str(folder) if folder else None,
    )
    try:
        child = spawn_stressor(spec, locks.files(gpu))
    except OSError as error:
        locks.release()
        raise SelftestError(f"no stressor could be spawned: {error}") from error
    try:
        return gpu, _hear(child, lambda proof: tell(gpu, proof))
    finally:
        _end(child)
        locks.release()


def _free_gpu(options: Options) -> Gpu:
    """Return the first GPU that is meant; nobody may be on it."""
    if options.simulate is None:
        check_torch()
    seen = survey(replace(options, config=replace(options.config, dry_run=True)))[0]
    if seen.occupancy != "IDLE":
        why = seen.verdict.reason
        raise AccessDeniedError(
            f"GPU {seen.gpu.index} is not idle: {why}",
            "Choose another one with --gpu, or wait: nothing was started.",
        )
    return seen.gpu


def _hear(child: Child, tell: Callable[[Proof], None]) -> tuple[Proof, ...]:
    """Renew the lease and note what the child says, until its last proof."""
    proofs: list[Proof] = []
    heard = time.monotonic()
    while True:
        wait_for_files(child.files(), _RENEWAL)
        child.send(Lease())
        ended = child.ended()  # looked at first, so that its last words are all there
        said = child.receive(_AT_ONCE)
        for datagram in said:
            heard = time.monotonic()
            message = _understand(datagram)
            if isinstance(message, Proof):
                proofs.append(message)
                tell(message)
            elif isinstance(message, Proved):
                return tuple(proofs)
        if ended and not said:
            raise SelftestError("the stressor ended without its last word")
        if time.monotonic() - heard >= _PATIENCE:
            raise SelftestError(f"the stressor said nothing for {_PATIENCE:g} s")


def _understand(datagram: bytes) -> object:
    """Return a message of the child that tells of no failure.

    Raises:
        ConfigError: It cannot do what was asked.
        SelftestError: It can do no more, or a bit was wrong that nobody had flipped.
    """
    try:
        message = wire.decode(datagram, _SAYS)
    except WireError as error:
        raise SelftestError(f"the stressor sent garbage: {error.what}") from error
    match message:
        case Finding():
            raise SelftestError(_describe(message))
        case Failed(kind=FailureKind.UNUSABLE, reason=reason):
            raise ConfigError(reason)
        case Failed(reason=reason):
            raise SelftestError(reason)
        case _:
            return message


def _describe(finding: Finding) -> str:
    """Return a finding that nobody planted, in words."""
    where = f" at {finding.first}" if finding.first else ""
    dtype = f" of {finding.dtype}" if finding.dtype else ""
    return f"a {finding.place.value}{dtype} was wrong{where}, and nothing had been flipped in it"


def _end(child: Child) -> None:
    """Ask the child to end, kill it if it does not, and reap it where that is possible."""
    child.send(Stop())
    wait_for_files([child.pidfd], _GRACE)
    child.kill()
    wait_for_files([child.pidfd], _GRACE)
    if child.ended():
        child.reap()
    else:
        child.forget()
