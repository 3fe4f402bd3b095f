"""The reports of earlier burn-ins in a state folder, and the last verdict of each GPU."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from os import getuid
from pathlib import Path
from typing import Any

from sentinel.host.files.regular_file import read_regular

#: The folder of all runs in the state directory.
RUNS = "runs"
#: The newest runs that are looked at; of older ones, only those that matter to a fault.
MAX_RUNS = 100
#: A larger report is left out, in bytes.
_MAX_BYTES = 64 * 2**20
#: Verdicts as reports have them.
_FAILED = "FAIL"
#: What a report with a FAIL contains, as it is written.
_HAS_FAILED = b'"verdict": "FAIL"'
_PROVES_NOTHING = frozenset({"INCOMPLETE", "N/A"})


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
        OSError: It cannot be read.
    """
    return read_regular(path, _MAX_BYTES) if path.stat().st_uid == getuid() else None


def last_verdicts(paths: Iterable[Path]) -> dict[str, LastVerdict]:
    """Collect the last verdict of each GPU from reports, by its UUID.

    A fault stays one until the GPU has passed: a later burn-in that was cut short, or a screen,
    found none and proves nothing.
    """
    found: dict[str, LastVerdict] = {}
    ordered = list(sorted_reports(paths))
    for number, path in enumerate(ordered, start=1):
        is_old = number <= len(ordered) - MAX_RUNS
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, RecursionError):
            text = _own_text(path)
            if text is None:
                continue
            failed = any(one.verdict == _FAILED for one in found.values())
            if is_old and not failed and _HAS_FAILED not in text:
                continue  # parsing takes most of the time
            for uuid, last in _verdicts(json.loads(text)).items():
                known = found.get(uuid)
                if known is None or known.verdict != _FAILED or last.verdict not in _PROVES_NOTHING:
                    found[uuid] = last
    return found


def report_paths(state: Path) -> list[Path]:
    """List the reports in a state folder."""
    return list((state / RUNS).glob("*/report.json"))


def _verdicts(report: Mapping[str, Any]) -> dict[str, LastVerdict]:
    """Extract the verdicts of one report, by UUID."""
    run = report["run"]
    ended = None if run["ended"] is None else datetime.fromisoformat(run["ended"])
    return {
        str(gpu["uuid"]): LastVerdict(
            verdict=str(gpu["verdict"]),
            plan=str(run["plan"]["name"]),
            run=str(run["id"]),
            ended=ended,
            index=int(gpu["index"]),
            model=str(gpu["model"]),
            serial=gpu.get("serial"),
        )
        for gpu in report["gpus"]
    }


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
