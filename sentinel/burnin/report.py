"""Build the report of a burn-in from its folder; every other format is made of it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.check import CheckResult, Status, Thresholds, judged_checks
from sentinel.burnin.checks.evidence import (
    ExpectedEvidence,
    HostEvidence,
    NodeEvidence,
    ParticipationEvidence,
)
from sentinel.burnin.checks.expected_checks import count_unchecked
from sentinel.burnin.checks.own_checks import judge_by_own_checks, registered_checks
from sentinel.burnin.checks.recorded_run import (
    CHECKS,
    evidence_of_kernel,
    evidence_of_load,
    read_run,
)
from sentinel.burnin.checks.required_evidence import not_compared, not_linked
from sentinel.burnin.detection_power import detection_power
from sentinel.burnin.former_runs import former_runs
from sentinel.burnin.levels import LEVELS, find_plan
from sentinel.burnin.power_swing import power_swing
from sentinel.burnin.record import GpuRecord, PhaseRecord
from sentinel.burnin.run_files import torch_version
from sentinel.burnin.run_folder import RunFolder, digest
from sentinel.burnin.timeline import Span, absences, span
from sentinel.burnin.verdict import (
    MEANING,
    STRICT_WARN,
    GpuVerdict,
    Verdict,
    first_reason,
    judge_gpu,
    judge_node,
)
from sentinel.config.plan import Plan
from sentinel.host.procfs import boot_id
from sentinel.protocol import __version__

#: The version of the report: additions raise the second number, other changes the first.
SCHEMA_VERSION = "1.7"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A run with its verdicts."""

    #: The folder of the run.
    path: Path
    header: Mapping[str, Any]
    plan: Plan
    gpus: tuple[GpuVerdict, ...]
    #: The checks of the node itself.
    node: tuple[CheckResult, ...]
    verdict: Verdict
    thresholds: Thresholds
    #: The file of other thresholds than those of the run; None if it is judged by its own.
    judged_again_by: str | None
    #: The SHA-256 of each file that the verdicts are made of, by its name.
    files: Mapping[str, str]
    #: Whether the process of a check survives SIGKILL; the interpreter's own exit would wait.
    stuck: bool = False
    #: Whether a WARN does not pass, however the run was begun.
    read_strictly: bool = False

    @property
    def strict(self) -> bool:
        """Whether a WARN of the run, or of a part of it, ends with 1."""
        if self.read_strictly:
            return True
        parts = (self.header, *self.header["resumed"])
        return any(one["key"] == "strict" for part in parts for one in part["settings"] or ())

    @property
    def span(self) -> Span:
        """When it was."""
        return span(gpu.record for gpu in self.gpus)

    @property
    def cut_short(self) -> str | None:
        """Why it did not come to the end of its plan; None if each GPU did."""
        causes = {gpu.record.cut_short for gpu in self.gpus} - {None}
        return "; ".join(sorted(map(str, causes))) or None

    @property
    def resume_command(self) -> str | None:
        """The command that goes on with it; None if none can, or a fault is final."""
        now = datetime.now().astimezone()
        if self.verdict is not Verdict.INCOMPLETE or self.cut_short is None:
            return None
        if why_not_resumed(self.header, self.plan, now) is not None:
            return None
        return f"sentinel burnin --resume {shlex.quote(str(self.path.absolute()))}"


def why_not_resumed(header: Mapping[str, Any], plan: Plan, now: datetime) -> str | None:
    """Explain why a run cannot be resumed on this host, whatever its GPUs are; None if it can."""
    if header.get("version") != __version__:
        return f"it was begun by version {header.get('version')}, this is {__version__}"
    if header.get("boot") != boot_id():
        return "the host was started again since"
    recorded, installed = header["node"].get("torch"), torch_version()
    if recorded not in {None, installed}:
        return f"it was begun with torch {recorded}, this is {installed}"
    if header["plan"]["hash"] != plan.hash:
        return "its plan was changed"
    if plan.name in LEVELS and plan.hash != find_plan(plan.name).hash:
        return f"the level {plan.name} has other phases now"
    age = (now - datetime.fromisoformat(header["started"])).total_seconds()
    if age > plan.resumable:
        hours, allowed = age / 3600, plan.resumable / 3600
        return f"it was begun {hours:.1f} h ago; {plan.name} allows {allowed:.1f} h"
    return None


def judge_run(folder: RunFolder, given: Thresholds | None = None) -> Judged:
    """Judge everything that the folder of a run has.

    Args:
        folder: The folder.
        given: The thresholds; None for those that the run was begun with.

    Raises:
        ConfigError: As for :func:`read_run` and :func:`registered_checks`.
    """
    run = read_run(folder)
    thresholds = run.thresholds if given is None else given
    settings = run.header["settings"] or ()
    # Versions before 1.7 of the report recorded the name of the file, and not what it says.
    unknown = "thresholds" not in run.header and any(
        setting["key"] == "thresholds" for setting in settings
    )
    again = unknown or thresholds.overridden() != run.thresholds.overridden()
    former = former_runs(folder, run.header)
    own = judge_by_own_checks(
        registered_checks(CHECKS.ids), folder.path, run.records.keys(), thresholds
    )
    records = sorted(run.records.values(), key=lambda record: record.index)
    results = {
        record.uuid: CHECKS.run(evidence_of_load(record, run, former, thresholds.xids), thresholds)
        for record in records
    }
    judged = {uuid: judged_checks(found) for uuid, found in results.items()}
    gpus = []
    for record in records:
        twins = {
            check
            for other in records
            if other is not record and other.model == record.model
            for check in judged[other.uuid]
        }
        everything = [*results[record.uuid], *own.gpus[record.uuid]]
        alone = len(run.node) == 1 and run.pci_devices is not None and len(run.pci_devices) == 1
        gpus.append(judge_gpu(record, everything, run.plan, twins, thresholds, alone=alone))
    devices = None if run.pci_devices is None else tuple(run.pci_devices)
    host = run.host if run.selected is False else ()
    whole = {counters.uuid for counters in run.node} == set(run.records) or run.selected is False
    tested = run.records.keys()
    parts = ParticipationEvidence(
        listed=run.node,
        tested=tested,
        selected=run.selected,
        ignored=run.ignored_devices,
        held=run.held_elsewhere,
    )
    expected = ExpectedEvidence(
        expectation=run.expectation,
        listed=run.node,
        known=run.known,
        findings=run.findings,
        pci_devices=devices,
        hosts=run.host,
        selected=bool(run.selected),
        tested=tested,
    )
    node = (
        *(
            CHECKS.run(NodeEvidence(gpus=run.node, pci_devices=devices), thresholds)
            if whole
            else ()
        ),
        *(CHECKS.run(HostEvidence(before=host[0], after=host[-1]), thresholds) if host else ()),
        *CHECKS.run(expected, thresholds),
        *(CHECKS.run(parts, thresholds) if run.records else ()),
        *CHECKS.run(evidence_of_kernel(run, thresholds.xids), thresholds),
        *own.node,
    )
    return Judged(
        path=folder.path,
        header=run.header,
        plan=run.plan,
        gpus=tuple(gpus),
        node=node,
        verdict=judge_node(gpus, node),
        thresholds=thresholds,
        judged_again_by=(thresholds.origin or "the default thresholds") if again else None,
        files=_digests(folder),
        stuck=own.stuck,
    )


def report_object(run: Judged) -> dict[str, Any]:
    """Return the report as JSON values; docs/report.schema.json describes it."""
    header, time = run.header, run.span
    verdicts = [gpu.verdict.value for gpu in run.gpus]
    cut, interrupted = run.cut_short, any(gpu.record.interruptions for gpu in run.gpus)
    return {
        "schema_version": SCHEMA_VERSION,
        "run": {
            **{
                key: value
                for key, value in header.items()
                if key not in {"node", "gpus", "thresholds"}
            },
            "ended": time.iso(time.last),
            "duration_s": time.seconds,
            "mode": "accumulated" if interrupted else "contiguous",
            "cut_short": cut,
            "resume": run.resume_command,
            "sha256": dict(run.files),
        },
        "node": header["node"],
        "verdict": run.verdict.value,
        "meaning": _meaning(run, cut),
        "strict": run.strict,
        "judged_by": __version__,
        "summary": {verdict.value: verdicts.count(verdict.value) for verdict in Verdict},
        "checks": [asdict(result) for result in run.node],
        "gpus": [_gpu(gpu, time) for gpu in run.gpus],
        "judged_again_by": run.judged_again_by,
        "thresholds_overridden": run.thresholds.overridden(),
        "correctness_overridden": dict(run.thresholds.excused),
    }


def _meaning(run: Judged, cut: str | None) -> str:
    """Say what the verdict means, and by which other limits it came about."""
    again = run.judged_again_by and f"judged again by {run.judged_again_by}"
    is_said = run.verdict is Verdict.INCOMPLETE and cut is None
    unproved = None if is_said else run.thresholds.why_unproved
    unchecked = count_unchecked(run.node)
    return "; ".join(filter(None, (again, unproved, _reason(run, cut), unchecked)))


def _reason(run: Judged, cut: str | None) -> str:
    """Say what led to the verdict, or what it does not say."""
    meaning = MEANING[run.verdict]
    if cut is not None:
        meaning = f"cut short: {cut}; {meaning}"
    if run.verdict is Verdict.PASS:
        texts = [
            *filter(None, dict.fromkeys(not_compared(gpu.results) for gpu in run.gpus)),
            *filter(None, {not_linked(gpu.results, gpu.record.model) for gpu in run.gpus}),
        ]
        phases = (phase for gpu in run.gpus for phase in gpu.record.phases)
        undone = dict.fromkeys(one.phase.name for one in phases if one.work.given_up)
        texts += [f"phases not done: {', '.join(undone)}"] if undone else []
        return f"{meaning} ({'; '.join(texts)})" if texts else meaning
    if run.verdict is Verdict.WARN and run.strict:
        meaning = STRICT_WARN
    first = first_reason(run.gpus, run.node)
    return meaning if first is None or cut is not None else f"{meaning}: {first}"


def _digests(folder: RunFolder) -> dict[str, str]:
    """Compute the SHA-256 of the recorded files, so that a copy can be compared."""
    paths = (folder.header, folder.events, folder.samples, folder.counters)
    return {path.name: digest(path) for path in paths if path.exists()}


def _gpu(gpu: GpuVerdict, time: Span) -> dict[str, Any]:
    """Return one GPU of the report."""
    record = gpu.record
    before = record.before
    coverage = [_phase(phase) for phase in record.phases]
    return {
        "uuid": record.uuid,
        "index": record.index,
        "model": before.name if before else None,
        "serial": before.serial if before else None,
        "pci_bus_id": before.pci_bus_id if before else None,
        "vbios": before.vbios if before else None,
        "verdict": gpu.verdict.value,
        "cut_short": record.cut_short,
        "reasons": list(gpu.reasons),
        "incomplete": list(gpu.incomplete),
        "too_short": gpu.too_short,
        "coverage": coverage,
        "not_tested": [
            f"{result.id}: {result.evidence}"
            for result in gpu.results
            if result.status is Status.NOT_TESTED
        ],
        "interruptions": [
            {**asdict(interruption), "away_s": away.last - away.first}
            for interruption, away in zip(record.interruptions, absences(record), strict=True)
        ],
        "checks": [asdict(result) for result in gpu.results],
        "measurements": _measurements(record),
        "detection_power": detection_power(record, coverage),
        "longest_contiguous_s": max((phase.work.longest for phase in record.phases), default=0.0),
        "duty": _duty(record, time),
        # How often it became warm in a steady phase, after it had ended another load.
        "thermal_cycles": len(record.named("burnin.warm")),
        "findings": [dict(finding) for finding in record.named("stressor.finding")],
        "golden_checksums": _golden_checksums(record),
        "counters": {
            "before": asdict(before) if before else None,
            "after": asdict(record.after) if record.after else None,
        },
    }


def _golden_checksums(record: GpuRecord) -> list[dict[str, Any]]:
    """Return each checksum that a GPU has computed once, so that nodes can be compared."""
    found = {(checksum.key, checksum.checksum): checksum for checksum in record.checksums}
    return [asdict(found[name]) for name in sorted(found)]


def _phase(phase: PhaseRecord) -> dict[str, Any]:
    """Return what was done of one phase."""
    asked, work = phase.phase, phase.work
    return {
        "phase": asked.name,
        "workload": asked.workload,
        "mandatory": asked.mandatory,
        "complete": phase.complete,
        "done_s": phase.done,
        "quota_s": asked.seconds,
        "passes": phase.passes,
        "quota_passes": asked.passes,
        "uncounted_s": work.uncounted,
        **{name: getattr(work, name) for name in ("checks", "errors", "bytes", "flops")},
        "memory_share": work.share,
        "retained_share": work.retained,
        "units": phase.exercised(),
        "memory_heat": _memory_heat(phase),
        "power_swing": power_swing(phase),
        "interruptions": work.interruptions,
        "began": phase.began,
        "ended": phase.ended,
        "not_tested": work.given_up,
    }


def _memory_heat(phase: PhaseRecord) -> dict[str, Any] | None:
    """Return how warm the memory was while a phase tested it, by its own sensor or the GPU's."""
    for sensor, name in (("memory", "memory_temperature_c"), ("gpu", "temperature_c")):
        values = phase.readings(name) if phase.phase.passes else []
        if values:
            spread = _spread(values)
            return {"sensor": sensor, **{k: spread[k] for k in ("lowest", "median", "highest")}}
    return None


def _measurements(record: GpuRecord) -> list[dict[str, Any]]:
    """Return the rates, power, temperature and clock of each phase, over the work that counts."""
    found = []
    for phase in record.phases:
        for unit in ("flops", "bytes"):
            rates = phase.rates(unit)
            if rates:
                found.append({**_named(phase, f"{unit}_per_s"), **_spread(rates)})
        for name, rates in phase.link_rates().items():
            found.append({**_named(phase, name), **_spread(rates)})
        for name in ("temperature_c", "memory_temperature_c", "power_w", "sm_clock_mhz"):
            values = phase.readings(name)
            if values:
                found.append({**_named(phase, name), **_spread(values)})
    return found


def _named(phase: PhaseRecord, name: str) -> dict[str, Any]:
    return {"phase": phase.phase.name, "steady": phase.phase.steady, "name": name}


def _spread(values: list[float]) -> dict[str, float]:
    """Return the median, the 5th and 95th percentile and the extremes."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[round(share * (len(ordered) - 1))]

    return {
        "n": len(ordered),
        "median": statistics.median(ordered),
        "p5": at(0.05),
        "p95": at(0.95),
        "lowest": ordered[0],
        "highest": ordered[-1],
    }


def _duty(record: GpuRecord, time: Span) -> float | None:
    """Compute the share of the run's time in which work was done that counts."""
    counted = sum(phase.work.seconds for phase in record.phases)
    return counted / time.seconds if time.seconds else None
