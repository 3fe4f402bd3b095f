"""Earlier runs on the same cards: what a card did before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.burnin.records.run_folder import RunFolder
from sentinel.host.stores.run_reports import read_reports


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
        with contextlib.suppress(KeyError, TypeError, AttributeError):
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
