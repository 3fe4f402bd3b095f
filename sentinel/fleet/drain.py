"""Drain failing nodes in Slurm, after a fleet run or by a health check; take that back.

What another program drained is not touched.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sentinel.burnin.checks.node_report import PASSED, proven_fault
from sentinel.errors import ConfigError
from sentinel.fleet.engine import EngineError, run_tool
from sentinel.fleet.expected import subject_of
from sentinel.fleet.run_folder import FleetFolder, write_shared
from sentinel.host.regular_file import file_errors, read_regular, replace_file
from sentinel.protocol.api_types import GpuStatus
from sentinel.protocol.codec import from_json
from sentinel.protocol.rules import why_unknown
from sentinel.units import format_count

#: How every reason of this project begins.
PREFIX = "gpu-sentry:"
_MAX_BYTES = 2**24
#: The longest list of nodes for one command, in one argument of at most 128 KB.
_MAX_NAMES = 500
#: One node as `scontrol --oneliner show node` prints it.
_NAME = re.compile(r"\bNodeName=(\S+)")
_STATE = re.compile(r"\bState=(\S+)")
#: The reason ends with the user and the time that wrote it; it may have spaces and equals signs.
#: One of slurm.conf has neither; what follows it in the line is then taken for a part of it.
_REASON = re.compile(r"\bReason=(.*?)(?: \[[^\[\]]*@[^\[\]]*\]|$)")
#: What a reason cannot have: scontrol reads its arguments from one line, the brackets would end it
#: above, and the rest comes from the file of a node.
_UNSAFE = re.compile(r"[^ !#-&(-Z^-~]+")
#: The length of a reason: the name of a check and a UUID have 80 characters.
_MAX_REASON = 240


@dataclass(frozen=True, kw_only=True)
class NodeAdmin:
    """What the administration of Slurm says about a node."""

    #: No new job begins there.
    is_drained: bool
    #: Why, or an empty string.
    reason: str


def read_nodes(nodes: Sequence[str]) -> dict[str, NodeAdmin]:
    """Query the state and the reason of nodes, by name.

    Raises:
        EngineError: Slurm does not answer, or does not know one of them.
    """
    if not nodes:
        return {}
    found: dict[str, NodeAdmin] = {}
    for first in range(0, len(nodes), _MAX_NAMES):
        names = ",".join(nodes[first : first + _MAX_NAMES])
        found |= parse_nodes(run_tool(("scontrol", "--oneliner", "show", "node", names)))
    if missing := [node for node in nodes if node not in found]:
        raise EngineError(f"scontrol does not show node {missing[0]}")
    return found


def parse_nodes(text: str) -> Iterator[tuple[str, NodeAdmin]]:
    """Parse what ``scontrol --oneliner show node`` prints, a node a line."""
    for line in text.splitlines():
        name, state, reason = _NAME.search(line), _STATE.search(line), _REASON.search(line)
        if name is not None:
            flags = state[1].upper().split("+") if state is not None else []
            yield (
                name[1],
                NodeAdmin(is_drained="DRAIN" in flags, reason=reason[1] if reason else ""),
            )


def why_not_drained(node: NodeAdmin) -> str | None:
    """Return why a node is left as it is, or None if it may be drained.

    A reason that is there says what an operator or another program knows about the node; one of
    this project was written for an earlier fault.
    """
    if node.reason:
        return f"it has a reason already: {node.reason}"
    return "it is drained already, without a reason" if node.is_drained else None


def why_not_undrained(node: NodeAdmin, written: str) -> str | None:
    """Return why a node stays drained, or None if what this run wrote is still what is there."""
    if node.reason != written:
        return f"its reason is not that of this run: {node.reason or 'none'}"
    return None if node.is_drained else "it is not drained any more"


def reason_text(what: str) -> str:
    """Build a reason: ``gpu-sentry: memory.errors on GPU 3 (GPU-…)``."""
    words = _UNSAFE.sub(" ", what).split()
    return f"{PREFIX} {' '.join(words)}"[:_MAX_REASON].rstrip()


def drain_nodes(
    folder: FleetFolder, reasons: Mapping[str, str], *, again: bool
) -> dict[str, str | None]:
    """Drain nodes, and record which reasons are those of this run.

    An operator who has made a drained node usable since is not overruled by a command that only
    shows an old run.

    Args:
        folder: The folder of the run.
        reasons: The reason of each failing node; see :func:`reason_text`.
        again: Whether to drain a node that this run has drained before.

    Returns:
        By node, why it was left as it is, or what Slurm has refused; None if it is drained now.

    Raises:
        EngineError: Slurm does not answer.
        ConfigError: The record cannot be read or written; then nothing was drained.
    """
    before = recorded(folder)
    results: dict[str, str | None] = {}
    if not again:
        why = "this run has drained it before; `sentinel fleet report --drain` does it again"
        results = {node: why for node in reasons if node in before}
    there = read_nodes([node for node in reasons if node not in results])
    results |= {node: why_not_drained(admin) for node, admin in there.items()}
    chosen = {node: reasons[node] for node, why_not in results.items() if why_not is None}
    if not chosen:
        return results
    # Recorded first: a node that was drained without a record could not be taken back.
    _write_reasons(folder, before | chosen)
    for node, reason in chosen.items():
        try:
            _drain(node, reason)
        except EngineError as error:
            results[node] = error.what
    refused = [node for node in chosen if results[node] is not None and node not in before]
    if refused:
        _write_reasons(
            folder, {n: reason for n, reason in (before | chosen).items() if n not in refused}
        )
    return results


def undrain_nodes(folder: FleetFolder) -> dict[str, str | None]:
    """Take back what a run has drained, where its reason is still there.

    Returns:
        By node of the record, why it was left as it is; None if it can be used again.

    Raises:
        EngineError: Slurm does not answer, or refuses.
        ConfigError: The record cannot be read or written.
    """
    everything = recorded(folder)
    written = {node: reason for node, reason in everything.items() if reason}
    there = read_nodes(list(written))
    results = {node: why_not_undrained(there[node], reason) for node, reason in written.items()}
    for node, why_not in results.items():
        if why_not is None:
            _undrain(node)
    if written:
        _write_reasons(folder, dict.fromkeys(everything, ""))
    return results


def recorded(folder: FleetFolder) -> dict[str, str]:
    """Read the reasons that a run has written, by node; empty ones were taken back.

    Raises:
        ConfigError: The record is invalid.
    """
    path = folder.drained
    found = _read(path, Mapping[str, str]) or {}
    for node, reason in found.items():
        # Those of operators are never taken back, whatever a file says.
        if reason and not reason.startswith(PREFIX):
            what = f"{path}: {node}: {reason!r} is not a reason that a run has written"
            raise ConfigError(what, f"Such a reason begins with {PREFIX}")
    return found


def _write_reasons(folder: FleetFolder, reasons: Mapping[str, str]) -> None:
    write_shared(folder.drained, json.dumps(reasons, indent=1))


def _read(path: Path, kind: Any) -> Any:
    """Read what was written into Slurm, or None without a record.

    Raises:
        ConfigError: The record is invalid.
    """
    try:
        return from_json(kind, json.loads(read_regular(path, _MAX_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _drain(node: str, reason: str) -> None:
    run_tool(("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"))


def _undrain(node: str) -> None:
    # RESUME would also declare a node usable that is down.
    run_tool(("scontrol", "update", f"NodeName={node}", "State=UNDRAIN"))


# --- the health check of a node --------------------------------------------------------------


def faults(gpus: Sequence[GpuStatus]) -> dict[str, str]:
    """Describe the faults that GPUs have shown or that are known, by UUID."""
    found = {}
    for gpu in gpus:
        last = gpu.verdict
        verdict, plan = (None, None) if last is None else (last.verdict, last.plan)
        texts = [known.text for known in gpu.faults or ()]
        if (fault := proven_fault(verdict, plan, gpu.verified)) is not None:
            texts.append(fault)
        if texts:
            name = gpu.uuid if gpu.renumbered else f"GPU {gpu.index} ({gpu.uuid})"
            found[gpu.uuid] = f"{', '.join(texts)} on {name}"
    return found


def passed(gpus: Sequence[GpuStatus], since: float = 0.0) -> frozenset[str]:
    """Collect the UUIDs of the GPUs without a fault whose last burn-in proves that.

    Args:
        gpus: The GPUs of the daemon.
        since: It has ended later than this, in seconds since the epoch.
    """
    faulty = faults(gpus)
    return frozenset(
        gpu.uuid
        for gpu in gpus
        if gpu.uuid not in faulty
        and gpu.verdict is not None
        and gpu.verdict.verdict in PASSED
        and gpu.verdict.no_proof is None
        and (0.0 if gpu.verdict.ended is None else gpu.verdict.ended.timestamp()) >= since
    )


def state_of_node(gpus: Sequence[GpuStatus], unlike: Mapping[str, str]) -> str:
    """Describe the faults of a node; one whose state is not known is not without a fault.

    Args:
        gpus: The GPUs of the daemon.
        unlike: What is not as expected, by its subject.
    """
    found = faults(gpus)
    unknown = {
        gpu.uuid: f"{gpu.uuid if gpu.renumbered else f'GPU {gpu.index}'}: {why}"
        for gpu in gpus
        if gpu.uuid not in found and (why := why_unknown(gpu)) is not None
    }
    texts = [*unlike.values(), *found.values(), *unknown.values()]
    bad = found.keys() | unknown.keys()
    if good := sum(gpu.uuid not in bad and subject_of(gpu.uuid) not in unlike for gpu in gpus):
        texts.append(f"no fault on {format_count(good, 'GPU')}")
    return "; ".join(texts) or "no GPU"


@dataclass(frozen=True, kw_only=True)
class DrainRecord:
    """What the health check of this node has written into Slurm."""

    reason: str
    #: The UUIDs of the GPUs with a fault.
    gpus: tuple[str, ...]
    #: When, in seconds since the epoch.
    at: float = 0.0


def next_step(
    faulty: AbstractSet[str], good: AbstractSet[str], record: DrainRecord | None
) -> Literal["nothing", "drain", "undrain"]:
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
        return "drain"
    if record is not None and not faulty and drained <= good:
        return "undrain"
    return "nothing"


def drain_by_health(
    folder: Path, node: str, gpus: Sequence[GpuStatus], expected: Mapping[str, str | None]
) -> str | None:
    """Drain a node or take that back, as :func:`next_step` says; return what was done, or None.

    Args:
        folder: Has the record.
        node: The name of this node in Slurm.
        gpus: The GPUs of the daemon.
        expected: What differs from an expectation, by its subject; None if nothing does.

    Raises:
        EngineError: Slurm does not answer, or refuses.
        ConfigError: The record cannot be read or written; then nothing was drained.
    """
    found = faults(gpus) | {key: text for key, text in expected.items() if text}
    as_expected = {key for key, text in expected.items() if text is None}
    record: DrainRecord | None = _read(_record_file(folder), DrainRecord)
    good = passed(gpus, 0.0 if record is None else record.at) | as_expected
    step = next_step(found.keys(), good, record)
    if step == "nothing":
        return None
    there = read_nodes([node])[node]
    if step == "undrain" and record is not None:
        why_not = why_not_undrained(there, record.reason)
        if why_not is None:
            _undrain(node)
        _write_record(folder, None)
        return f"not undrained: {why_not}" if why_not else "undrained"
    why_not = why_not_drained(there)
    if record is not None and there.is_drained and there.reason == record.reason:
        # One more fault: the reason keeps the first, and the record is of both.
        _write_record(folder, DrainRecord(reason=record.reason, gpus=tuple(found), at=time.time()))
        return None
    if why_not is not None:
        return f"not drained: {why_not}"
    reason = reason_text("; ".join(found.values()))
    # Recorded first: a node that was drained without a record could not be taken back.
    _write_record(folder, DrainRecord(reason=reason, gpus=tuple(found), at=time.time()))
    try:
        _drain(node, reason)
    except BaseException:
        _write_record(folder, record)  # so that the next health check tries again
        raise
    return f"drained: {reason}"


def _record_file(folder: Path) -> Path:
    return folder / "drained.json"


def _write_record(folder: Path, record: DrainRecord | None) -> None:
    path = _record_file(folder)
    with file_errors(f"{path} cannot be written"):
        if record is None:
            path.unlink(missing_ok=True)
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(record)))
