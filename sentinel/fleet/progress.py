"""How far a node is (progress/NODE.json), and why it has no report (missing.json)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.burnin.loading import parse
from sentinel.errors import ConfigError
from sentinel.fleet.run_folder import FleetFolder, write_shared
from sentinel.host.regular_file import read_regular
from sentinel.protocol.burnin_events import (
    BurninEvent,
    Ended,
    FindingReported,
    PhaseStarted,
    Progressed,
    StatusReported,
)
from sentinel.protocol.codec import DecodeError, from_json

#: A larger file is none of ours.
_MAX_BYTES = 2**16

#: A larger file is none of ours: 100,000 nodes with a line each have 20 MB.
_MAX_BYTES_MISSING_NODES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class NodeProgress:
    """How far a node is, as ``progress/<node>.json`` has it."""

    node: str
    #: ``starting``, ``running`` or ``ended``.
    state: str
    #: When it was written, by the clock of the node.
    time: datetime
    #: How often the task was begun: above 1, it was requeued.
    attempt: int = 1
    #: The phase of the GPU that is furthest from the end, its number and how many there are.
    phase: str | None = None
    number: int = 0
    phases: int = 0
    #: The work left on the GPU that has most, in seconds; None before the first report.
    left_s: float | None = None
    #: The GPUs that take part, and those that have done all phases.
    gpus: int = 0
    gpus_done: int = 0
    #: The highest temperature of the last readings in degrees Celsius, or None if unknown.
    temperature_c: float | None = None
    #: Proofs of wrong results, on all GPUs.
    findings: int = 0
    #: Why nothing counts on a GPU at the moment, or why the run was not gone on with; or None.
    note: str | None = None
    #: The exit code of the burn-in; None before its end.
    exit_code: int | None = None


@dataclass
class _GpuProgress:
    """What the events have said about one GPU."""

    phase: str | None = None
    number: int = 0
    left_s: float | None = None
    temperature_c: float | None = None
    waiting: str | None = None
    findings: int = 0
    done: bool = False


@dataclass
class ProgressBuilder:
    """Folds the events of a node's run. What one lost event said, the next progress says again."""

    _gpus: dict[str, _GpuProgress] = field(default_factory=dict)
    _phases: int = 0

    def take(self, row: Mapping[str, Any]) -> None:
        """Add one event, as ``events.jsonl`` has it; one of another version may lack fields."""
        name, uuid = row.get("event"), row.get("gpu")
        if not isinstance(name, str) or not isinstance(uuid, str):
            return
        try:
            event = parse(row)
        except DecodeError:
            return
        if isinstance(event, PhaseStarted | Progressed | Ended | FindingReported):
            self._gpus.setdefault(uuid, _GpuProgress())
        if uuid in self._gpus:
            self._take_event(self._gpus[uuid], event)

    def _take_event(self, gpu: _GpuProgress, event: BurninEvent | None) -> None:
        """Add one event of a GPU of the run."""
        match event:
            case PhaseStarted() | Progressed():
                gpu.phase, gpu.number, self._phases = event.phase, event.number, event.phases
                gpu.done, gpu.left_s = False, event.left_s
            case Ended():
                gpu.done, gpu.waiting, gpu.left_s = True, None, 0.0
            case StatusReported():
                gpu.temperature_c = event.temperature_c
            case FindingReported():
                gpu.findings += 1
        if isinstance(event, Progressed):
            gpu.waiting, gpu.temperature_c = event.waiting, event.temperature_c
            gpu.findings = max(gpu.findings, event.findings)

    def progress(self, node: str, state: str, time: datetime, **more: Any) -> NodeProgress:
        """Build the state of the node; ``more`` are further fields."""
        gpus = list(self._gpus.values())
        working = [gpu for gpu in gpus if not gpu.done]
        slowest = min(working, key=lambda gpu: gpu.number, default=None)
        left = [gpu.left_s for gpu in gpus if gpu.left_s is not None]
        heat = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
        waits = next((gpu.waiting for gpu in working if gpu.waiting), None)
        return NodeProgress(
            **{
                "node": node,
                "state": state,
                "time": time,
                "phase": slowest.phase if slowest else None,
                "number": slowest.number if slowest else 0,
                "phases": self._phases,
                "left_s": max(left, default=None),
                "gpus": len(gpus),
                "gpus_done": len(gpus) - len(working),
                "temperature_c": max(heat, default=None),
                "findings": sum(gpu.findings for gpu in gpus),
                "note": waits,
                **more,
            }
        )


def write_progress(path: Path, progress: NodeProgress) -> None:
    """Write the state of a node by rename.

    Raises:
        ConfigError: It cannot be written.
    """
    values = {**asdict(progress), "time": progress.time.isoformat(timespec="seconds")}
    write_shared(path, json.dumps(values, indent=1))


def read_progress(path: Path) -> NodeProgress | None:
    """Read the state of a node; None if there is none yet, or if it cannot be read."""
    try:
        return from_json(NodeProgress, json.loads(read_regular(path, _MAX_BYTES)))
    except (OSError, ValueError, RecursionError, DecodeError, ConfigError):
        return None


# --- why nodes have no report ----------------------------------------------------------------


def read_reasons(folder: FleetFolder) -> dict[str, str]:
    """Read the reason of each node that has one; a file that cannot be read has none."""
    try:
        found = json.loads(read_regular(folder.missing, _MAX_BYTES_MISSING_NODES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {node: text for node, text in found.items() if isinstance(text, str) and text}


def record_reasons(
    folder: FleetFolder, missing: Collection[str], reasons: Mapping[str, str]
) -> None:
    """Write why nodes are missing; one without a new reason keeps the one that it has.

    The engine forgets a task some minutes after its end, and a later look finds no reason.

    Args:
        folder: The folder of the run.
        missing: All nodes that are missing now.
        reasons: What is known of them now.

    Raises:
        ConfigError: The file cannot be written.
    """
    before = read_reasons(folder)
    known = {**before, **reasons}
    found = {node: known[node] for node in sorted(missing) if node in known}
    if found != before:
        write_shared(folder.missing, json.dumps(found, indent=1))
