"""The last verdict of each GPU by the reports of its burn-ins; a FAIL stands until disproved."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.host.regular_file import read_regular
from sentinel.units import format_duration

#: The folder of all runs in the state directory.
RUNS = "runs"
#: The newest runs that are looked at; of older ones, only those that matter to a fault.
MAX_RUNS = 100
#: A larger report cannot be read, in bytes.
_MAX_REPORT_BYTES = 64 * 2**20
_MAX_MANIFEST_BYTES = 2**20
#: A clock may have been ahead by so much, in seconds, when a run began or ended.
AHEAD_S = 3600.0
#: Verdicts as reports have them.
_FAILED = "FAIL"
#: What a report with a FAIL contains, as it is written.
_HAS_FAILED = b'"verdict": "FAIL"'
_PROVES_NOTHING = frozenset({"INCOMPLETE", "N/A"})
#: The statuses of a check that found no fault.
_GOOD = frozenset({"pass", "warn"})

#: Options that say how long a part of the work takes, and not what it is.
_LENGTHS = ("retention=", "seconds=")

#: The work that a check needs, by the beginning of its id; every other check needs all of its plan.
_NEEDS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "results.": lambda phase: bool(phase["errors"]),
    "memory.covered": lambda phase: bool(phase["quota_passes"]),
    "rate.": lambda phase: _name(phase) == "gemm",
    "load.": lambda phase: _name(phase) == "gemm",
    "links.": lambda phase: _name(phase) == "links",
}

_UNKNOWN_PHASE = {
    "workload": "",
    "mandatory": True,
    "complete": False,
    "not_tested": None,
    "errors": 0,
    "done_s": 0.0,
    "quota_s": 0.0,
    "passes": 0,
    "quota_passes": 0,
}


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much of one kind of work was asked for, or done."""

    seconds: float = 0.0
    #: How often every pattern of a memory test covers the memory.
    passes: int = 0


#: How much of each kind of work: see kind_of_work.
Work = Mapping[str, Amount]


@dataclass(frozen=True, kw_only=True)
class LastVerdict:
    """The verdict of a GPU's last run that decides; see last_verdicts."""

    verdict: str
    plan: str
    run: str
    #: When the run ended; None if it was cut off before its first event.
    ended: datetime | None
    index: int
    model: str
    #: The board's serial number, if it is known.
    serial: str | None = None
    pci_bus_id: str | None = None
    #: Why the run proves nothing, whatever its verdict; None if it does.
    no_proof: str | None = None
    #: Why the last run after a FAIL has not taken it back; None without such a run.
    not_taken_back: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One GPU in one report."""

    last: LastVerdict
    #: The statuses of its checks by id.
    checks: Mapping[str, str]
    #: What its plan asked for by failed check; empty ids stand for a report without checks.
    failed: Mapping[str, Work] = field(default_factory=dict)
    done: Work
    started: datetime | None
    #: The limits that a file of thresholds replaced, by the id of the check and the limit's name.
    replaced: Mapping[str, str] = field(default_factory=dict)

    def replaced_of(self, check: str) -> dict[str, str]:
        """Select the replaced limits of a check; of all where its id is unknown."""
        start = f"{check}." if check else ""
        return {name: limit for name, limit in self.replaced.items() if name.startswith(start)}


def sorted_reports(paths: Iterable[Path]) -> dict[Path, float]:
    """Sort reports by their modification times, oldest first."""
    times = {path: _modified(path) for path in paths}
    return dict(sorted(times.items(), key=lambda item: item[1]))


def read_reports(paths: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Read the newest reports of this user, oldest first; one that is invalid is no report."""
    for path in list(sorted_reports(paths))[-MAX_RUNS:]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            text = _own_text(path)
            if text is not None:
                yield json.loads(text)


def _own_text(path: Path) -> bytes | None:
    """Read a report of this user: another user's could make a card look slow, or good.

    Raises:
        OSError: It cannot be read, and is this user's.
    """
    try:
        owner = path.stat().st_uid
    except OSError:
        # Whose it was is known by the entry of its run, which may be a link to nothing.
        if path.parent.lstat().st_uid == os.getuid():
            raise
        return None
    return read_regular(path, _MAX_REPORT_BYTES) if owner == os.getuid() else None


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A run of which is not known what it has found."""

    #: When it was last written or changed, in seconds since the epoch.
    at: float
    why: str

    @classmethod
    def of(cls, report: Path) -> Unknown:
        """Describe a run whose report cannot be read, or is not the one that was written."""
        why = f"the report of {report.parent} cannot be read or was changed, and may be a FAIL"
        at = max(_modified(report), report.parent.lstat().st_mtime)
        return cls(at=at, why=f"{why}: put it back, or run again")


def _check_manifest(report: Path, text: bytes) -> None:
    """Check a report against the manifest of its run, if there is one.

    Raises:
        ValueError: The report was changed.
        OSError, RecursionError, LookupError, TypeError, AttributeError: The manifest is unusable.
    """
    try:
        manifest = read_regular(report.with_name("manifest.json"), _MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        return
    if json.loads(manifest)["files"][report.name] != hashlib.sha256(text).hexdigest():
        raise ValueError("the report was changed")


def last_verdicts(
    paths: Iterable[Path], least: Work | None = None, unknown: Iterable[Unknown] = ()
) -> dict[str, LastVerdict]:
    """Collect the last verdict of each GPU from reports, by its UUID.

    A FAIL stands until later runs have judged each check that failed as PASS or WARN, by the same
    limits, with at least the work that the plan of the failed run asked for and that the check
    needs. A report that cannot be read may be one: runs before it prove nothing.

    Args:
        paths: The reports.
        least: Leave out runs whose plans ask for less work, unless they failed; None for none.
        unknown: Further runs that may have failed.
    """
    found: dict[str, LastVerdict] = {}
    standing: dict[str, _Run] = {}
    #: The run of each GPU that began last.
    newest: dict[str, _Run] = {}
    doubts = list(unknown)
    for path, report in _in_order(paths, standing, doubts):
        try:
            short = least is not None and lacking(_asked(report), least) is not None
            for uuid, run in _runs(report).items():
                later = newest.get(uuid, run)
                later = run if _is_before(later, run) else later
                if later is not run and not run.failed:
                    continue  # an earlier run that was judged again
                if run.failed or not short:
                    newest[uuid] = later
                before = standing.pop(uuid, None)
                after = run if before is None else _after_failure(before, run)
                if later is not run and before is None:
                    after = _after_failure(run, later)
                if after.failed:
                    standing[uuid] = after
                if after.failed or not short:
                    found[uuid] = after.last
                elif before is not None:
                    del found[uuid]  # taken back by a run that is left out
        except (AttributeError, KeyError, TypeError, ValueError):
            doubts.append(Unknown.of(path))
    return {uuid: _doubted(last, newest.get(uuid), doubts) for uuid, last in found.items()}


def _doubted(last: LastVerdict, run: _Run | None, unknown: Iterable[Unknown]) -> LastVerdict:
    """Let a verdict prove nothing if what a run that may be later has found is not known."""
    began = 0.0 if run is None or run.started is None else run.started.timestamp()
    why = next((one.why for one in unknown if one.at >= began), None)
    return replace(last, no_proof=last.no_proof or why)


def _in_order(
    paths: Iterable[Path], standing: Mapping[str, _Run], unknown: list[Unknown]
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Read reports, oldest first; of the older ones, only those with a FAIL or while one stands."""
    ordered = list(sorted_reports(paths))
    for number, path in enumerate(ordered, start=1):
        try:
            text = _own_text(path)
            # Parsing takes most of the time.
            is_old = number <= len(ordered) - MAX_RUNS and not standing
            if text is None or (is_old and _HAS_FAILED not in text):
                continue
            _check_manifest(path, text)
            report = json.loads(text)
        except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
            unknown.append(Unknown.of(path))
        else:
            yield path, report


def _is_before(first: _Run, second: _Run) -> bool:
    """Check whether a run began before another one, or at an unknown time."""
    return first.started is None or second.started is None or first.started <= second.started


def _after_failure(before: _Run, run: _Run) -> _Run:
    """Judge a run after a FAIL: what stands is the FAIL, as far as the run does not disprove it."""
    left = {}
    why = None
    for check, needs in before.failed.items():
        not_disproved = _why_not_disproved(check, needs, before, run)
        if not_disproved is not None:
            left[check] = needs
            why = why or not_disproved
    if run.failed:
        # A check that fails again needs what either plan asked for.
        again = {check: _most(left.get(check), needs) for check, needs in run.failed.items()}
        replaced = dict(run.replaced)
        for check in left:  # by the limits by which it failed first
            for name in run.replaced_of(check):
                replaced.pop(name, None)
            replaced |= before.replaced_of(check)
        return replace(run, failed=left | again, replaced=replaced)
    if not left:
        return run
    later = f"{run.last.plan} ({run.last.verdict}) takes nothing back: {why}"
    return replace(before, last=replace(before.last, not_taken_back=later), failed=left)


def _why_not_disproved(check: str, needs: Work, before: _Run, run: _Run) -> str | None:
    """Explain why a run does not take back the failure of a check, or return None if it does."""
    if run.last.no_proof is not None:
        return run.last.no_proof
    if not _is_before(before, run):
        return "it began before the run that failed"
    status = run.checks.get(check)
    if check and status not in _GOOD:
        return f"{check} failed, and is {status or 'missing'} there"
    if run.replaced_of(check) != before.replaced_of(check):
        return f"it judged {check or 'the checks'} by other limits"
    short = lacking(run.done, needs)
    return None if short is None else f"{check or 'the plan that failed'} needs {short}"


def _most(first: Work | None, second: Work) -> Work:
    """Combine two demands: the greater of each kind."""
    both = {**second}
    for kind, amount in (first or {}).items():
        other = both.get(kind, Amount())
        both[kind] = Amount(
            seconds=max(amount.seconds, other.seconds), passes=max(amount.passes, other.passes)
        )
    return both


# --- work ------------------------------------------------------------------------------------


def kind_of_work(workload: str) -> str:
    """Name the kind of a workload: its name and its options, but for those that are lengths."""
    name, _, options = workload.partition(":")
    kept = [one for one in options.split(",") if one and not one.startswith(_LENGTHS)]
    return f"{name}:{','.join(kept)}" if kept else name


def work_of(phases: Iterable[Mapping[str, Any]]) -> dict[str, Amount]:
    """Add up what the phases of a plan ask for; ``hold`` is no work."""
    return _added((phase["workload"], phase["seconds"], phase["passes"]) for phase in phases)


def lacking(work: Work, least: Work) -> str | None:
    """Describe the first kind of which there is less work than the least, or return None."""
    for kind, needed in least.items():
        there = work.get(kind, Amount())
        if there.seconds < needed.seconds:
            done = format_duration(there.seconds) if there.seconds else "0 s"
            return f"{format_duration(needed.seconds)} of {kind}, not {done}"
        if there.passes < needed.passes:
            return f"{needed.passes} passes of {kind}, not {there.passes}"
    return None


def _added(parts: Iterable[tuple[str, float, int]]) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    for workload, seconds, passes in parts:
        kind = kind_of_work(workload)
        if kind != "hold":
            before = found.get(kind, Amount())
            found[kind] = Amount(seconds=before.seconds + seconds, passes=before.passes + passes)
    return found


def _name(phase: Mapping[str, Any]) -> str:
    name: str = phase["workload"].partition(":")[0]
    return name


def _needs(check: str, phases: Iterable[Mapping[str, Any]]) -> Work:
    """Collect the work that a check needs, of what the phases of its GPU asked for."""
    # What a GPU cannot do at all is no part of the proof.
    asked = [phase for phase in phases if phase["mandatory"] or phase["not_tested"] is None]
    selects = next((rule for start, rule in _NEEDS.items() if check.startswith(start)), None)
    chosen = [one for one in asked if selects is not None and selects(one)] or asked
    return _added((one["workload"], one["quota_s"], one["quota_passes"]) for one in chosen)


# --- reports ---------------------------------------------------------------------------------


def report_paths(state: Path) -> list[Path]:
    """List the reports in a state folder, also of runs elsewhere that are not there any more."""
    exists = os.path.exists  # Path.exists raises for a closed folder of another user
    reports = {entry / "report.json": entry for entry in (state / RUNS).glob("*")}
    return [path for path, entry in reports.items() if exists(path) or not exists(entry)]


def _asked(report: Mapping[str, Any]) -> dict[str, Amount]:
    return work_of(report["run"]["plan"].get("phases", ()))


def _runs(report: Mapping[str, Any]) -> dict[str, _Run]:
    """Extract what one report says about each GPU, by UUID."""
    run = report["run"]
    ended = None if run["ended"] is None else datetime.fromisoformat(run["ended"])
    checks = report.get("checks", ())
    failed = next((str(check["id"]) for check in checks if check["status"] == "fail"), None)
    # What no GPU is accused of may be of any.
    node = None if failed is None else f"the node failed {failed}"
    return {
        str(gpu["uuid"]): _run(
            run,
            gpu,
            LastVerdict(
                verdict=str(gpu["verdict"]),
                plan=str(run["plan"]["name"]),
                run=str(run["id"]),
                ended=ended,
                index=int(gpu["index"]),
                model=str(gpu["model"]),
                serial=gpu.get("serial"),
                pci_bus_id=gpu.get("pci_bus_id"),
                no_proof=_why_no_proof(run, gpu) or node,
            ),
            report.get("thresholds_overridden") or {},
        )
        for gpu in report["gpus"]
    }


def _run(
    run: Mapping[str, Any],
    gpu: Mapping[str, Any],
    last: LastVerdict,
    replaced: Mapping[str, str],
) -> _Run:
    """Extract what decides whether a FAIL stands."""
    checks = {str(one["id"]): str(one["status"]) for one in gpu.get("checks", ())}
    # Reports of earlier versions lack some keys.
    phases = [{**_UNKNOWN_PHASE, **phase} for phase in gpu.get("coverage", ())]
    failed = [check for check, status in checks.items() if status == "fail"] or [""]
    return _Run(
        last=last,
        checks=checks,
        failed={check: _needs(check, phases) for check in failed}
        if last.verdict == _FAILED
        else {},
        done=_added(
            (one["workload"], max(one["done_s"], one["quota_s"]), one["passes"])
            if one["complete"]
            else (one["workload"], one["done_s"], one["passes"])
            for one in phases
        ),
        started=datetime.fromisoformat(run["started"]) if "started" in run else None,
        replaced=replaced,
    )


def _why_no_proof(run: Mapping[str, Any], gpu: Mapping[str, Any]) -> str | None:
    """Explain why a run proves nothing about a GPU, or return None."""
    began = datetime.fromisoformat(run["started"]).timestamp() if "started" in run else 0.0
    if began > time.time() + AHEAD_S:
        return "it began in the future: compare the clocks"
    if (too_short := gpu.get("too_short")) is not None:
        return str(too_short)
    if gpu["verdict"] in _PROVES_NOTHING:
        return f"it is {gpu['verdict']}"
    if gpu.get("incomplete"):
        return "it is not complete"
    if run["plan"].get("screen"):  # in reports of earlier versions
        return "it is a screen"
    return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
