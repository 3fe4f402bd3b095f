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
#: The newest runs that are looked at.
MAX_RUNS = 100
#: A larger report is left out, in bytes.
_MAX_BYTES = 64 * 2**20
#: Verdicts as reports have them.
_FAILED = "FAIL"
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


def newest_reports(paths: Iterable[Path]) -> dict[Path, float]:
    """Select the newest reports: the modification time of each, oldest first."""
    times = {path: _modified(path) for path in paths}
    return dict(sorted(times.items(), key=lambda item: item[1])[-MAX_RUNS:])


def read_reports(paths: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Read the newest reports of this user, oldest first; one that is invalid is no report."""
    for path in newest_reports(paths):
        # Another user's file could make a card look slow, or good.
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if path.stat().st_uid == getuid():
                yield json.loads(read_regular(path, _MAX_BYTES))


def last_verdicts(paths: Iterable[Path]) -> dict[str, LastVerdict]:
    """Collect the last verdict of each GPU from reports, by its UUID.

    A fault stays one until the GPU has passed: a later burn-in that was cut short, or a screen,
    found none and proves nothing.
    """
    found: dict[str, LastVerdict] = {}
    for report in read_reports(paths):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            for uuid, last in _verdicts(report).items():
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
