"""The health check of one node in Slurm: drain it for a proven fault, and take that back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from sentinel.burnin.checks.proven_fault import PASSED, proven_fault
from sentinel.errors import ConfigError
from sentinel.fleet.engine import run_tool
from sentinel.fleet.slurm.drain import read_nodes, reason_text, why_not_drained, why_not_undrained
from sentinel.host.files.regular_file import read_regular, replace_file
from sentinel.protocol.api_types import GpuStatus
from sentinel.protocol.codec import from_json

_MAX_BYTES = 2**16


def faults(gpus: Sequence[GpuStatus]) -> dict[str, str]:
    """Describe the faults that GPUs have shown, by UUID."""
    found = {}
    for gpu in gpus:
        last = gpu.verdict
        verdict, plan = (None, None) if last is None else (last.verdict, last.plan)
        if (fault := proven_fault(verdict, plan, gpu.verified)) is not None:
            found[gpu.uuid] = f"{fault} on GPU {gpu.index} ({gpu.uuid})"
    return found


def passed(gpus: Sequence[GpuStatus]) -> frozenset[str]:
    """Collect the UUIDs of the GPUs without a fault whose last burn-in was complete."""
    faulty = faults(gpus)
    return frozenset(
        gpu.uuid
        for gpu in gpus
        if gpu.uuid not in faulty and gpu.verdict is not None and gpu.verdict.verdict in PASSED
    )


@dataclass(frozen=True, kw_only=True)
class DrainRecord:
    """What the health check of this node has written into Slurm."""

    reason: str
    #: The UUIDs of the GPUs with a fault.
    gpus: tuple[str, ...]


class Step(Enum):
    """What a health check does in Slurm."""

    NOTHING = "nothing"
    DRAIN = "drain"
    UNDRAIN = "undrain"


def next_step(faulty: AbstractSet[str], good: AbstractSet[str], record: DrainRecord | None) -> Step:
    """Decide what to do; a healthy node, and one that was drained for the same, need no call.

    An operator who resumes a drained node, though its fault is known, is not overruled: only a
    fault of another GPU drains it again.

    Args:
        faulty: The UUIDs of the GPUs with a fault.
        good: The UUIDs of the GPUs that have passed a burn-in; a missing GPU has not.
        record: What was written before, or None.
    """
    drained = frozenset() if record is None else frozenset(record.gpus)
    if faulty - drained:
        return Step.DRAIN
    if record is not None and not faulty and drained <= good:
        return Step.UNDRAIN
    return Step.NOTHING


def apply(folder: Path, node: str, gpus: Sequence[GpuStatus]) -> str | None:
    """Drain a node or take that back, as :func:`next_step` says; return what was done, or None.

    Args:
        folder: Has the record.
        node: The name of this node in Slurm.
        gpus: The GPUs of the daemon.

    Raises:
        EngineError: Slurm does not answer, or refuses.
        ConfigError: The record cannot be read or written; then nothing was drained.
    """
    found = faults(gpus)
    record = _read(folder)
    step = next_step(found.keys(), passed(gpus), record)
    if step is Step.NOTHING:
        return None
    there = read_nodes([node])[node]
    if step is Step.UNDRAIN and record is not None:
        why_not = why_not_undrained(there, record.reason)
        if why_not is None:
            run_tool(("scontrol", "update", f"NodeName={node}", "State=UNDRAIN"))
        _write(folder, None)
        return f"not undrained: {why_not}" if why_not else "undrained"
    why_not = why_not_drained(there)
    if record is not None and there.is_drained and there.reason == record.reason:
        # One more fault: the reason keeps the first, and the record is of both.
        _write(folder, DrainRecord(reason=record.reason, gpus=tuple(found)))
        return None
    if why_not is not None:
        return f"not drained: {why_not}"
    reason = reason_text("; ".join(found.values()))
    # Recorded first: a node that was drained without a record could not be taken back.
    _write(folder, DrainRecord(reason=reason, gpus=tuple(found)))
    try:
        run_tool(("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"))
    except BaseException:
        _write(folder, record)  # so that the next health check tries again
        raise
    return f"drained: {reason}"


def _file(folder: Path) -> Path:
    return folder / "drained.json"


def _read(folder: Path) -> DrainRecord | None:
    path = _file(folder)
    try:
        return from_json(DrainRecord, json.loads(read_regular(path, _MAX_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _write(folder: Path, record: DrainRecord | None) -> None:
    path = _file(folder)
    try:
        if record is None:
            path.unlink(missing_ok=True)
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(record)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
