"""Read the folder of a fleet's run: the reports of all nodes, and their shared thresholds.

No report is ever taken for another one: a node passes only by its own report of this run.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.own_checks import own_limits, registered_checks
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.checks.thresholds_file import parse
from sentinel.burnin.verdict import Verdict
from sentinel.config.expectation import Expectation, parse_expectation
from sentinel.config.toml_text import decode_toml
from sentinel.errors import ConfigError
from sentinel.fleet import fleet_checks
from sentinel.fleet.acceptance import CLOCK_TOLERANCE
from sentinel.fleet.node_names import fold_names
from sentinel.fleet.node_result import NodeFile, NodeResult, node_result, short
from sentinel.fleet.progress import read_progress, read_reasons
from sentinel.fleet.run_folder import MAX_REPORT_BYTES, NOT_NODES, FleetFolder, FleetRun
from sentinel.host.regular_file import read_regular
from sentinel.protocol.codec import DecodeError

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

#: Names of files that programs leave beside a file, and what they are.
_COPIES = {
    re.compile(r"\._.+"): "what macOS keeps beside a file",
    re.compile(r"\.#.+|#.+#|.+~|.+\.(?:sw[a-p]|bak|orig)"): "an editor's copy",
}

#: A larger file is not read, in bytes.
_MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class FleetFiles:
    """Everything that the folder of a fleet's run has."""

    #: What was run, or None without ``fleet.json``: then nodes without a file are not known.
    run: FleetRun | None
    #: By name.
    nodes: tuple[NodeFile, ...]
    #: The nodes of files that are not of the run, or not complete and not on the list.
    unexpected: tuple[str, ...] = ()
    #: Files that are no report, and what they are.
    copies: tuple[str, ...] = ()
    #: Whether all nodes are known without a run, by their names or by their number.
    expected: bool = False
    number: int | None = None


def read_fleet(path: Path, expected: tuple[str, ...] | int = ()) -> FleetFiles:
    """Read the folder of a fleet's run.

    Args:
        path: The folder.
        expected: Without ``fleet.json``: all nodes, or their number; empty if they are not known.

    Raises:
        ConfigError: It is no folder, it has no report, or its ``fleet.json`` cannot be read.
    """
    folder = FleetFolder(path=path)
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "Name the folder of a fleet's run."
        ) from None
    copies = {file: what for file in files if (what := _what_copy(file.name))}
    reports = {file for file in files if file.suffix.lower() == ".json"} - copies.keys()
    there = {_name(file) for file in reports} - NOT_NODES
    run = folder.read() if folder.run_file.exists() else None
    if run is None and there >= {"counters", "run"}:
        how = f"To print its report: sentinel report {shlex.quote(str(path))}"
        raise ConfigError(f"{path} is the run of a burn-in of one host, not of a fleet", how)
    if run is None and not there:
        what = f"{path} has no fleet.json and no report of a node"
        raise ConfigError(
            what, "Name the folder of a fleet's run: it has a file NODE.json for each."
        )
    known = run.nodes if run is not None else () if isinstance(expected, int) else expected
    others = there - set(known) if known else set()
    unlisted = others if run is None else set()
    names = sorted({*(known or there), *unlisted})
    reasons = {
        _name(file): f"{_printable(file.name)} must be called {_name(file)}.json"
        for file in reports
        if file.suffix != ".json"
    } | read_reasons(folder)
    with _many_objects():
        nodes = tuple(_read(folder, name, run, reasons.get(name, "")) for name in names)
    marked = [replace(one, unlisted=one.name in unlisted) for one in _without_copies(nodes)]
    found = tuple(node for node in marked if not (node.unlisted and node.missing))
    return FleetFiles(
        run=run,
        nodes=found,
        unexpected=tuple(sorted(others - {node.name for node in found})),
        copies=tuple(f"{_printable(file.name)} is {what}" for file, what in copies.items()),
        expected=bool(expected),
        number=expected if isinstance(expected, int) else None,
    )


def _what_copy(name: str) -> str:
    """Name what a file is that some program left beside another; empty if it is none."""
    return next((what for pattern, what in _COPIES.items() if pattern.fullmatch(name)), "")


def _name(path: Path) -> str:
    """Return the name of a node; one that cannot be printed is escaped, and has no report."""
    return _printable(path.stem)


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)[1:-1]


@contextmanager
def _many_objects() -> Iterator[None]:
    """Pause the search for cycles: parsed JSON has none, and it would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read(folder: FleetFolder, name: str, run: FleetRun | None, known: str) -> NodeFile:
    """Read the report of one node; without one, ``known`` is what its engine knew."""
    try:
        data = read_regular(folder.report(name), MAX_REPORT_BYTES)
    except FileNotFoundError:
        return _without_report(folder, name, known)
    except OSError as error:
        return NodeFile(name=name, missing=f"its report cannot be read: {error.strerror}")
    try:
        value = _parse(data)
    except (ValueError, RecursionError):
        why = "its report is not complete JSON" if data.strip() else "its report is empty"
        return NodeFile(name=name, missing=why)
    try:
        result = node_result(value)
    except DecodeError as error:
        return NodeFile(name=name, missing=f"its file is not a report: {error}")
    if run is not None and (why := _of_another_run(result, name, run)):
        return NodeFile(name=name, missing=why)
    has_page = (folder.node(name) / "report.html").is_file()
    return NodeFile(name=name, result=result, has_page=has_page)


def _parse(data: bytes) -> Any:
    """Parse JSON in UTF-8; half a character (a lone surrogate) could not be written again.

    Raises:
        ValueError: It is not valid.
        RecursionError: It is nested too deeply.
    """
    text = data.decode("utf-8-sig")
    value = json.loads(text)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _without_report(folder: FleetFolder, name: str, known: str) -> NodeFile:
    """Describe a node that has no report by what its engine knew, and by what it wrote last."""
    last = read_progress(folder.progress(name))
    why = f"it has no report: {known}" if known else "it has no report"
    if last is None:
        return NodeFile(name=name, missing=why)
    phase = f" in phase {last.phase} ({last.number} of {last.phases})" if last.phase else ""
    note = f": {last.note}" if last.note else ""
    found = f"; it had proved {last.findings:,} wrong results" if last.findings else ""
    return NodeFile(
        name=name,
        missing=why,
        last_seen=f"it wrote last at {last.time.isoformat()}{phase}{note}{found}",
        findings=last.findings,
    )


def _of_another_run(result: NodeResult, name: str, run: FleetRun) -> str:
    """Explain why a report is not of this node in this run; empty if it is."""
    plan, host = result.run.plan, short(result.node.hostname)
    if plan.hash != run.plan_hash:
        return (
            f"its report is of another plan: {plan.name} ({plan.hash}), and not {run.plan}"
            f" ({run.plan_hash})"
        )
    if result.run.started < run.started - CLOCK_TOLERANCE:
        began, submitted = result.run.started.isoformat(), run.started.isoformat()
        return f"its report is of an earlier run: it began {began}, and this run {submitted}"
    if result.run.simulated and run.simulate is None:
        return "its report is of simulated GPUs, and the run is not"
    other = {short(node): node for node in run.nodes}.get(host)
    if other is not None and other != name and short(name) != host:
        return f"its report is that of {other}"
    return ""


def _without_copies(nodes: tuple[NodeFile, ...]) -> Iterator[NodeFile]:
    """Drop reports of one run or one host for several nodes: it is that of the node it names.

    If it names several of them, as by two names of the host, only a fault is kept.
    """
    alike: dict[tuple[object, ...], list[NodeFile]] = defaultdict(list)
    for node in nodes:
        for key in _origins(node.result):
            alike[key].append(node)
    for node in nodes:
        others = {
            other.name: other
            for key in _origins(node.result)
            for other in alike[key]
            if other is not node
        }
        if node.result is None or not others:
            yield node
            continue
        failed = node.result.verdict is Verdict.FAIL
        if node.names_itself and (failed or not any(o.names_itself for o in others.values())):
            yield node
            continue
        copies = [
            other.name
            for other in others.values()
            if other.result is not None and other.result.run.record == node.result.run.record
        ]
        why = f"its report is of {node.result.node.hostname}, which {min(others)} has reported, too"
        if copies:
            why = f"its run was reported as that of {fold_names((node.name, *copies))}"
        yield replace(node, result=None, missing=why)


def _origins(result: NodeResult | None) -> set[tuple[object, ...]]:
    """Identify the run and the host of a report: equal ones are of one run or one host.

    A record is of one run, and a GPU in one host, whatever names the host has. Simulated GPUs are
    the same on every host, and one machine may be several hosts with simulated GPUs, by name
    spaces.
    """
    if result is None:
        return set()
    found: set[tuple[object, ...]] = {("record", result.run.record)}
    if result.run.simulated:
        return {*found, ("host", short(result.node.hostname), result.node.machine_id)}
    return {*found, *(("GPU", gpu.uuid) for gpu in result.gpus)}


# --- thresholds ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SharedThresholds:
    """What a file replaces, by what applies it."""

    #: For the checks of a node: of Sentinel, of packages, and XIDs.
    node: Thresholds = field(default_factory=Thresholds)
    #: For the comparisons of a fleet.
    fleet: Thresholds = field(default_factory=Thresholds)
    #: The text of the file; empty without one.
    text: str = ""

    @property
    def hash(self) -> str | None:
        """The hash of the text, or None without a file."""
        return hash_of(self.text)


def read_thresholds(path: Path) -> SharedThresholds:
    """Read a file of thresholds; it may also change the checks of other packages.

    Raises:
        OSError: It cannot be read, or is larger than 1 MiB.
        ConfigError: It is not UTF-8 text, or has something that is not allowed, or two packages
            have the same check.
    """
    text = decode_toml(read_regular(path, _MAX_FILE_BYTES), str(path))
    own = own_limits(registered_checks(CHECKS.ids | fleet_checks.CHECKS.ids))
    found = parse(text, str(path), {**CHECKS.limits, **own, **fleet_checks.CHECKS.limits})
    node = found.replaced.keys() - fleet_checks.CHECKS.ids
    return SharedThresholds(
        node=found.only(node, xids=True),
        fleet=found.only(found.replaced.keys() & fleet_checks.CHECKS.ids, xids=False),
        text=text,
    )


def read_run_thresholds(folder: FleetFolder, run: FleetRun) -> SharedThresholds:
    """Read the thresholds with which a run was begun; the defaults if it was begun without a file.

    Raises:
        ConfigError: Its copy of the file is missing, was changed or cannot be used here.
    """
    if run.thresholds_hash is None:
        return SharedThresholds()
    check_copy(folder, run)
    try:
        return read_thresholds(folder.thresholds)
    except OSError as error:
        raise ConfigError(f"{folder.thresholds} cannot be read: {error}") from None


def read_run_expectation(folder: FleetFolder, run: FleetRun) -> Expectation:
    """Read what the nodes of a run must be; nothing if it was begun without that.

    Raises:
        ConfigError: As for :func:`read_run_thresholds`.
    """
    text = _read_copy(folder.expectation, run.expectation_hash, run)
    return parse_expectation(text, str(folder.expectation)) if text else Expectation()


def check_copy(folder: FleetFolder, run: FleetRun) -> None:
    """Check that thresholds and expectation of a run are those with which it was begun, if any.

    Raises:
        ConfigError: They are not.
    """
    _read_copy(folder.thresholds, run.thresholds_hash, run)
    _read_copy(folder.expectation, run.expectation_hash, run)


def _read_copy(path: Path, wanted: str | None, run: FleetRun) -> str:
    """Read a file with which a run was begun; nothing without a hash.

    Raises:
        ConfigError: It is missing, or was changed.
    """
    if wanted is None:
        return ""
    try:
        text = read_regular(path, _MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        what = f"{path}: the {path.stem} of run {run.id} cannot be read: {error}"
        raise ConfigError(what, "Restore the file, or begin a new run.") from None
    if hash_of(text) != wanted:
        what = f"{path}: it was changed since run {run.id} began"
        why = f"its hash is {hash_of(text)}, and that of the run {wanted}"
        raise ConfigError(f"{what}: {why}", "Restore the file, or begin a new run.")
    return text


def hash_of(text: str) -> str | None:
    """Compute the hash of a file without the newlines at its end; None without a text."""
    return hashlib.sha256(text.rstrip("\n").encode()).hexdigest()[:16] if text else None
