"""Go on with a run that was cut short: what each GPU has done of it, and whether that still counts.

A run is resumed only where nothing has changed that its work depends on, and within the age that
the plan allows. A reboot ends it, too: it may have been the GPU's doing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.records.record import PhaseRecord
from sentinel.burnin.records.run_folder import RunFolder, read_object
from sentinel.burnin.reports.report import judge_run
from sentinel.burnin.reports.verdict import Verdict
from sentinel.config.plan import Plan
from sentinel.core.burnin_state import Burnin
from sentinel.errors import ConfigError
from sentinel.host.files.regular_file import why_foreign
from sentinel.host.processes.procfs import boot_id
from sentinel.protocol.counters import Counters
from sentinel.protocol.phase_work import PhaseWork
from sentinel.protocol.version import __version__

#: What must be the same: the card, its firmware and its driver.
_SAME = ("uuid", "serial", "vbios", "driver")


def earlier_work(
    folder: RunFolder, now: datetime, counters: tuple[Counters, ...], thresholds: Thresholds
) -> tuple[Plan, dict[str, Burnin]]:
    """Load the plan of a run, and what each GPU has done of it.

    Args:
        folder: The run.
        now: The time, with its zone.
        counters: The GPUs as they are now.
        thresholds: The limits in force; a FAIL by them or in the last report is final.

    Raises:
        ConfigError: It cannot be resumed; the message says why.
    """
    _check_own(folder)
    run = read_run(folder)
    header, plan = run.header, run.plan
    failed = [
        *(
            gpu.record.index
            for gpu in judge_run(folder, thresholds).gpus
            if gpu.verdict is Verdict.FAIL
        ),
        *_reported_failures(folder),
    ]
    where = f"--resume {folder.path}"
    if header.get("version") != __version__:
        _refuse(where, f"it was begun by version {header.get('version')}, this is {__version__}")
    if failed:
        _refuse(where, f"GPU {failed[0]} has failed, which is final")
    if header.get("boot") != boot_id():
        _refuse(where, "the host was started again since")
    if header["plan"]["hash"] != plan.hash:
        _refuse(where, "its plan was changed")
    age = (now - datetime.fromisoformat(header["started"])).total_seconds()
    if age > plan.resumable:
        _refuse(
            where,
            f"it was begun {age / 3600:.1f} h ago; {plan.name} allows"
            f" {plan.resumable / 3600:.1f} h",
        )
    present = {counter.uuid: counter for counter in counters}
    found = {}
    for uuid, record in run.records.items():
        before, is_ = record.before, present.get(uuid)
        if before is None or is_ is None:
            _refuse(where, f"GPU {record.index} ({uuid}) is not there any more")
        changed = [name for name in _SAME if getattr(before, name) != getattr(is_, name)]
        if changed:
            _refuse(where, f"GPU {record.index} has another {', '.join(changed)}")
        found[uuid] = _burnin(record.phases)
    if all(one.phase >= len(plan.phases) for one in found.values()):
        _refuse(where, "each GPU has done its phases, but for those that it could not do")
    return plan, found


def _check_own(folder: RunFolder) -> None:
    """Refuse a run that another user could have written: its plan names workloads, which are code.

    Raises:
        ConfigError: It is such a run.
    """
    foreign = why_foreign(folder.header)
    if foreign is not None:
        remedy = "The user who began the run can resume it."
        raise ConfigError(f"--resume {folder.path}: {foreign}", remedy)


def can_go_on(report: Mapping[str, Any]) -> bool:
    """Check whether a run has a phase left that is neither complete nor given up.

    Args:
        report: The report of the run.
    """
    return report["verdict"] == Verdict.INCOMPLETE and any(
        not phase["complete"] and phase["not_tested"] is None
        for gpu in report["gpus"]
        for phase in gpu["coverage"]
    )


def _reported_failures(folder: RunFolder) -> list[int]:
    """List the GPUs that have failed by the last report, whose limits may have been others."""
    with suppress(ConfigError, ValueError, KeyError, TypeError):
        report = read_object(folder.path / "report.json")
        return [int(gpu["index"]) for gpu in report["gpus"] if gpu["verdict"] == Verdict.FAIL]
    return []  # a run that was killed has none


def _burnin(phases: Sequence[PhaseRecord]) -> Burnin:
    """Build the progress of a GPU: up to the first phase that is neither complete nor given up."""
    work = []
    for phase in phases:
        fields = {
            key: value for key, value in phase.work.items() if key in PhaseWork.__dataclass_fields__
        }
        work.append(PhaseWork(**{**fields, "stretch": 0.0}))
        if not phase.complete and phase.work.get("given_up") is None:
            return Burnin(phase=len(work) - 1, work=tuple(work))
    return Burnin(phase=len(work), work=tuple(work))


def _refuse(where: str, why: str) -> NoReturn:
    raise ConfigError(f"{where}: {why}", "Start a new run.")
