"""Judge a recorded burn-in by the rules of other tools; see README.md.

Only the rules are theirs. The load is that of the run, which has other shapes and durations than
those tools, so this shows what a method sees, not what the tool would have printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.record import GpuRecord, PhaseRecord
from sentinel.burnin.report import judge_run
from sentinel.burnin.run_folder import RunFolder
from sentinel.errors import SentinelError

#: gpu-fryer 1.2.0, src/main.rs: the tolerance to the best GPU, and the reasons that it counts. It
#: compares the whole set of a reading with each, so that two at once are none.
FRYER_TOLERANCE = 0.10
FRYER_REASONS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown")
#: DCGM 4.6.0, targeted_power: the mean power draw as a share of the target, here the limit.
DCGM_POWER = (0.75, 1.2)
#: DCGM 4.6.0, diag-skus.yaml.in: the minimum of an H200's memory bandwidth, in MB/s. The value is
#: that of GB/s, so the check cannot fail.
DCGM_BANDWIDTH_MB_S = 2333.0
#: gpu-burn 3ead140 exits with 0, also for a GPU that it calls FAULTY (its issue 12).
BURN_EXIT_CODE = 0


@dataclass(frozen=True)
class Finding:
    """What a method says of one GPU."""

    passed: bool
    why: str


_Method = Callable[[GpuRecord, Sequence[GpuRecord]], Finding | None]


def judge(records: Mapping[str, GpuRecord]) -> dict[str, dict[str, Finding | None]]:
    """Judge each GPU by each method, by the method's name and the UUID.

    A method that needs what the run has not measured gives None.
    """
    everything = tuple(records.values())
    return {
        name: {uuid: method(record, everything) for uuid, record in records.items()}
        for name, method in METHODS.items()
    }


def _gpu_fryer(record: GpuRecord, everything: Sequence[GpuRecord]) -> Finding | None:
    """Compare the mean rate with the best one, and look for throttling."""
    phase = _steady(record)
    if phase is None or not phase.reports:
        return None
    rate = _mean_rate(phase)
    phases = filter(None, map(_steady, everything))
    best = max(_mean_rate(phase) for phase in phases)
    throttled = [
        reason
        for reading in phase.telemetry
        for reason in FRYER_REASONS
        if tuple(reading.values["reasons"] or ()) == (reason,)
    ]
    share = rate / best if best else 0.0
    text = f"{rate / 1e12:.1f} TFLOP/s, {share:.1%} of the best"
    if throttled:
        text += f"; {throttled[0]} in {len(throttled)} readings"
    return Finding(bool(rate) and share >= 1 - FRYER_TOLERANCE and not throttled, text)


def _dcgm_power(record: GpuRecord, _: Sequence[GpuRecord]) -> Finding | None:
    """Compare the mean power draw with the limit."""
    phase = _steady(record)
    readings = [] if phase is None else [sample.values for sample in phase.judged(phase.telemetry)]
    pairs = [(reading["power_w"], reading["power_limit_w"]) for reading in readings]
    shares = [power / limit for power, limit in pairs if power and limit]
    if not shares:
        return None
    low, high = DCGM_POWER
    share = fmean(shares)
    return Finding(low <= share <= high, f"{share:.1%} of the limit; {low:.0%} to {high:.0%} pass")


def _dcgm_bandwidth(record: GpuRecord, _: Sequence[GpuRecord]) -> Finding | None:
    """Compare the memory's bandwidth with the minimum of the table."""
    rates = [
        rate
        for phase in record.phases
        if phase.phase.workload.startswith("elementwise")
        for rate in phase.rates("bytes")
    ]
    if not rates:
        return None
    rate = fmean(rates) / 1e6
    text = f"{rate:,.0f} MB/s; {DCGM_BANDWIDTH_MB_S:,.0f} pass"
    return Finding(rate >= DCGM_BANDWIDTH_MB_S, text)


def _gpu_burn(record: GpuRecord, _: Sequence[GpuRecord]) -> Finding | None:
    """Count the results that differ from others of the same inputs on the same GPU."""
    work = [phase.work for phase in record.phases if phase.work.checks]
    if not work:
        return None
    errors = sum(done.errors for done in work)
    checks = sum(done.checks for done in work)
    return Finding(not errors, f"{errors:,} of {checks:,} wrong; exit code {BURN_EXIT_CODE}")


#: The methods, by the tool and what it judges.
METHODS: Mapping[str, _Method] = {
    "gpu-fryer 1.2.0": _gpu_fryer,
    "DCGM 4.6.0 targeted_power": _dcgm_power,
    "DCGM 4.6.0 memory_bandwidth": _dcgm_bandwidth,
    "gpu-burn 3ead140": _gpu_burn,
}


def _steady(record: GpuRecord) -> PhaseRecord | None:
    """Find the phase in which rates are judged."""
    return next((phase for phase in record.phases if phase.phase.steady), None)


def _mean_rate(phase: PhaseRecord) -> float:
    """Compute the mean rate of a phase with its warm-up, which those tools do not leave out."""
    seconds = sum(report.values["seconds"] for report in phase.reports)
    return sum(report.values["flops"] for report in phase.reports) / seconds if seconds else 0.0


def table(folder: RunFolder) -> list[str]:
    """Build the lines of a table: each method and each GPU, and the verdict of Sentinel."""
    run = read_run(folder)
    lines = ["| method | GPU | verdict | why |", "| --- | --- | --- | --- |"]
    for name, found in judge(run.records).items():
        for uuid, finding in found.items():
            verdict = (
                "not measured" if finding is None else "pass" if finding.passed else "**FAIL**"
            )
            why = "" if finding is None else finding.why
            lines.append(f"| {name} | {run.records[uuid].index} | {verdict} | {why} |")
    for gpu in judge_run(folder, Thresholds()).gpus:
        why = "; ".join(gpu.reasons)
        lines.append(f"| Sentinel | {gpu.record.index} | {gpu.verdict.value} | {why} |")
    return lines


def main() -> int:
    """Print the table of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    folder = RunFolder(path=parser.parse_args().run)
    try:
        print("\n".join(table(folder)))
    except SentinelError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
