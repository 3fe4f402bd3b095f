"""Earlier runs on the same cards: what a card did before, and its last verdict."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import getuid
from pathlib import Path
from typing import Any

from sentinel.burnin.run_folder import RunFolder
from sentinel.host.regular_file import read_regular

#: The newest runs that are looked at.
MAX_RUNS = 100
#: A larger report is left out, in bytes.
_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Former:
    """What a card did in the steady phase of an earlier run."""

    run: str
    #: Median TFLOP/s and degrees Celsius.
    rate: float
    temperature_c: float | None
    #: The enforced limit in watts.
    power_limit_w: float | None = None
    vbios: str | None = None


@dataclass(frozen=True, kw_only=True)
class LastVerdict:
    """The verdict of a card's last run."""

    verdict: str
    plan: str
    run: str
    #: When the run ended, with its zone; None if it was cut off before its first event.
    ended: str | None
    index: int
    model: str
    serial: str | None = None


def last_verdicts(runs: Path) -> dict[str, LastVerdict]:
    """Collect the last verdict of each card from the runs in a folder, by its UUID."""
    found: dict[str, LastVerdict] = {}
    for report in _reports(runs.glob("*/report.json")):
        with contextlib.suppress(KeyError, TypeError):
            for gpu in report["gpus"]:
                found[gpu["uuid"]] = LastVerdict(
                    verdict=gpu["verdict"],
                    plan=report["run"]["plan"]["name"],
                    run=report["run"]["id"],
                    ended=report["run"]["ended"],
                    index=gpu["index"],
                    model=gpu["model"],
                    serial=gpu["serial"],
                )
    return found


def former_runs(
    folder: RunFolder, header: Mapping[str, Any]
) -> dict[tuple[str, str], list[Former]]:
    """Collect the earlier runs beside a run, by the UUID and the serial number of each card.

    Only those of the same plan and driver, on this node, that found no fault.

    Args:
        folder: The run, in whose parent folder the others are.
        header: Its header.
    """
    found: dict[tuple[str, str], list[Former]] = {}
    own = folder.path.resolve()
    beside = [path for path in own.parent.glob("*/report.json") if path.parent != own]
    for report in _reports(beside):
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            for card, former in list(_of_same_plan(report, header)):
                found.setdefault(card, []).append(former)
    return found


def _reports(paths: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Read the newest reports of this user, oldest first; one that is invalid is no report."""
    for path in sorted(paths, key=_modified)[-MAX_RUNS:]:
        # Another user's file could make a card look slow, or good.
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_uid == getuid():
                yield json.loads(read_regular(path, _MAX_BYTES))


def _of_same_plan(
    report: Mapping[str, Any], header: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], Former]]:
    """Yield what each card did in a run that can be compared with another one."""
    run = report["run"]
    if (
        not report["schema_version"].startswith("1.")
        or run["plan"]["hash"] != header["plan"]["hash"]
        or report["node"]["driver"] != header["node"]["driver"]
        or run["started"] >= header["started"]
    ):
        return
    for gpu in report["gpus"]:
        steady = {one["name"]: one["median"] for one in gpu["measurements"] if one["steady"]}
        rate = steady.get("flops_per_s")
        if rate is not None and gpu["verdict"] != "FAIL" and gpu["serial"]:
            temperature = steady.get("temperature_c")
            former = Former(
                run=run["id"],
                rate=rate / 1e12,
                temperature_c=temperature,
                power_limit_w=(gpu["counters"]["before"] or {}).get("power_limit_w"),
                vbios=gpu["vbios"],
            )
            yield (gpu["uuid"], gpu["serial"]), former


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
