"""Earlier runs beside a run: what its cards did in the same plan before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.burnin.run_folder import RunFolder
from sentinel.host.last_verdicts import read_reports
from sentinel.protocol.stressor import LinkPart

#: The name of the measurement of an all-reduce.
_ALL_REDUCE_RATE = f"{LinkPart.ALL_REDUCE}_bytes_per_s"


@dataclass(frozen=True, kw_only=True)
class Former:
    """What a card did in an earlier run."""

    run: str
    #: The median of each measurement, by its phase and its name.
    medians: Mapping[tuple[str, str], float]
    #: That of the temperature of the last steady phase.
    temperature_c: float | None
    #: The enforced limit in watts.
    power_limit_w: float | None = None
    vbios: str | None = None
    #: The best bytes a second of an all-reduce, and the number of GPUs that took part in one.
    all_reduce: float | None = None
    gpus: int = 0


def is_copy(workload: str) -> bool:
    """Check whether a workload does nothing but to read and write the GPU's memory."""
    return workload.partition(":")[0] == "elementwise"


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
    for report in read_reports(beside):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            for card, former in list(_of_same_plan(report, header)):
                found.setdefault(card, []).append(former)
    return found


def _of_same_plan(
    report: Mapping[str, Any], header: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], Former]]:
    """Yield what each card did in a run that can be compared with another one."""
    run = report["run"]
    if (
        not report["schema_version"].startswith("1.")
        or run["plan"]["hash"] != header["plan"]["hash"]
        or report["node"]["driver"] != header["node"]["driver"]
        or datetime.fromisoformat(run["started"]) >= datetime.fromisoformat(header["started"])
    ):
        return
    summed = sum(bool(_all_reduces(gpu)) for gpu in report["gpus"])
    for gpu in report["gpus"]:
        rows = gpu["measurements"]
        steady = {row["name"]: row["median"] for row in rows if row["steady"]}
        if "flops_per_s" in steady and gpu["verdict"] != "FAIL" and gpu["serial"]:
            former = Former(
                run=run["id"],
                medians={(row["phase"], row["name"]): row["median"] for row in rows},
                temperature_c=steady.get("temperature_c"),
                power_limit_w=(gpu["counters"]["before"] or {}).get("power_limit_w"),
                vbios=gpu["vbios"],
                all_reduce=max(_all_reduces(gpu), default=None),
                gpus=summed,
            )
            yield (gpu["uuid"], gpu["serial"]), former


def _all_reduces(gpu: Mapping[str, Any]) -> list[float]:
    """List the best rate of each phase in which a GPU of a report took part in an all-reduce."""
    return [row["highest"] for row in gpu["measurements"] if row["name"] == _ALL_REDUCE_RATE]
