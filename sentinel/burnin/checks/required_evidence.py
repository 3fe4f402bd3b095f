"""What a burn-in must have judged for a PASS, and what of it was not. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sentinel.burnin.checks.check import CheckResult, Status
from sentinel.burnin.checks.counter_checks import DATA_CENTRE
from sentinel.burnin.checks.link_checks import links_of

#: Models that remap rows of their memory (NVIDIA, GPU memory error management).
REMAPPING = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")
#: Models whose memory has a thermometer (NVML, field 82; NVIDIA's data sheets of HBM).
_HEATED = re.compile(r"\b(A100|A800|H20|H100|H200|H800)\b")
#: A virtual GPU: its profile ends the name of the model (NVIDIA, virtual GPU software).
_VIRTUAL = re.compile(r"\bGRID\b|-\d{1,3}(CME|QME|QGFX|[ABCQ]\d?)$")
#: Comparisons that need other GPUs, a reference or earlier runs, and what to call their lack.
_COMPARISONS: Mapping[str, str] = {
    "rate.peers": "peers",
    "rate.reference": "reference",
}


@dataclass(frozen=True, kw_only=True)
class Required:
    """One piece of evidence."""

    #: In words.
    what: str
    #: The checks that judge it.
    checks: tuple[str, ...]
    #: Whether one of them is enough.
    any_of: bool = False
    #: The models that have it: there, a check that does not apply has not judged.
    models: re.Pattern[str] | None = None
    #: Whether every GPU has it.
    always: bool = False
    #: Whether only a steady phase shows it.
    steady: bool = False


#: Everything that must have been judged.
REQUIRED = (
    Required(what="results", checks=("results.wrong",), always=True),
    Required(what="whether it was lost", checks=("gpu.lost",), always=True),
    Required(what="the whole GPU", checks=("gpu.whole",)),
    Required(what="one card without a reset", checks=("gpu.identity", "gpu.reset")),
    Required(what="what is expected", checks=("gpu.expected",)),
    Required(
        what="errors of the memory",
        checks=("ecc.uncorrected_new", "ecc.uncorrected_lifetime_new", "ecc.corrected_new"),
        models=DATA_CENTRE,
    ),
    Required(
        what="remapped rows and repairs",
        checks=(
            *("memory.remap_failed", "memory.remapped_uncorrected_new"),
            *("memory.repair_pending", "memory.sram_threshold"),
        ),
        models=REMAPPING,
    ),
    Required(
        what="the card's own counts",
        checks=(
            *("memory.sram_uncorrected_new", "memory.unrepairable"),
            *("memory.remapped_corrected_new", "ecc.corrected_lifetime_new"),
        ),
    ),
    Required(what="the recovery action", checks=("recovery.action",)),
    Required(what="earlier findings", checks=("daemon.findings",)),
    Required(
        what="NVLink",
        checks=(
            *("nvlink.lost", "nvlink.inactive", "nvlink.speed"),
            *("nvlink.recoveries", "nvlink.replays", "nvlink.crc_rate"),
        ),
    ),
    Required(what="the NVLink fabric", checks=("fabric.state",)),
    Required(what="replays on PCIe", checks=("pcie.replays",), models=DATA_CENTRE),
    Required(what="the memory", checks=("memory.covered",)),
    Required(what="XIDs", checks=("xid",), always=True),
    Required(what="the load", checks=("load.power", "load.recorded"), steady=True),
    Required(
        what="the memory clock under load",
        checks=("load.memory_clock",),
        models=DATA_CENTRE,
        steady=True,
    ),
    Required(
        what="the PCIe link under load",
        checks=("pcie.width", "pcie.generation"),
        models=DATA_CENTRE,
        steady=True,
    ),
    Required(
        what="throttling",
        checks=("throttle.hardware_thermal", "throttle.thermal", "clocks.hardware_slowdown"),
        any_of=True,
    ),
    Required(what="temperatures", checks=("temperature.sensor",)),
    Required(what="the memory's heat", checks=("temperature.memory",), models=_HEATED),
    Required(what="temperatures", checks=("temperature.gpu", "temperature.limit"), any_of=True),
)


def missing_evidence(
    results: Collection[CheckResult],
    *,
    has_steady: bool,
    name: str,
    ecc: bool | None,
    twins: Collection[str] = (),
) -> Iterator[str]:
    """Yield what was not judged of a GPU, with the reason.

    Args:
        results: Of its checks.
        has_steady: Whether the plan has a steady phase.
        name: The model; empty if it is not known.
        ecc: Its ECC mode before the run; None if it is not known.
        twins: The checks that have judged another GPU of its model.
    """
    found = {result.id: result for result in results}
    if _VIRTUAL.search(name):
        yield f"the whole GPU was not judged: {name} is a virtual GPU"
    for one in REQUIRED:
        if one.steady and not has_steady:
            continue
        unjudged = [
            found[check]
            for check in one.checks
            if check in found and not _is_judged(found[check], one, name, ecc=ecc, twins=twins)
        ]
        if unjudged and (not one.any_of or len(unjudged) == len(one.checks)):
            worst = unjudged[0]
            more = f"; {len(unjudged) - 1} more of it" if len(unjudged) > 1 else ""
            yield f"{one.what} not judged: {worst.id}: {worst.unread or worst.evidence}{more}"


def _is_judged(
    result: CheckResult, one: Required, name: str, *, ecc: bool | None, twins: Collection[str]
) -> bool:
    """Check whether a result is one, or nothing that there is was left out."""
    if result.status is Status.NOT_APPLICABLE:
        if one.any_of or one.always:
            return False
        has_it = one.models is not None and one.models.search(name) and ecc is not False
        if result.id == "nvlink.lost":
            has_it = bool(links_of(name))
        of_twins = result.id in twins and result.id != "nvlink.inactive"
        return not has_it and not of_twins
    return result.status is not Status.NOT_TESTED and not result.unread


def not_compared(results: Collection[CheckResult]) -> str | None:
    """Say what the rate of a GPU was not compared with, because there is none; None if nothing."""
    found = {
        _COMPARISONS[result.id]: result.status for result in results if result.id in _COMPARISONS
    }
    lacking = [f"no {name}" for name, status in found.items() if status is Status.NOT_APPLICABLE]
    unjudged = (Status.NOT_APPLICABLE, Status.NOT_TESTED)
    judged = [name for name, status in found.items() if status not in unjudged]
    what = f"rates compared with {judged[0]} only" if judged else "rates not compared"
    return f"{what}: {', '.join(lacking)}" if lacking else None
