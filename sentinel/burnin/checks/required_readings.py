"""What must have been read of a GPU before anything is said of its health. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sentinel.burnin.checks import counter_checks, link_checks
from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import CheckResult, Status, Thresholds
from sentinel.burnin.checks.counter_checks import DATA_CENTRE
from sentinel.burnin.checks.evidence import MomentEvidence
from sentinel.burnin.checks.expected_checks import unproved
from sentinel.burnin.checks.required_evidence import REMAPPING
from sentinel.protocol.counters import Counters

_CHECKS = Table(counter_checks.TABLE, link_checks.TABLE)


@dataclass(frozen=True, kw_only=True)
class ReadingGroup:
    """Checks of one subject; a GPU of which no one could be read is not known to be good."""

    name: str
    #: Their ids.
    checks: tuple[str, ...]
    #: How the names of the counters begin that they read: an idle GPU leaves checks of a link
    #: untested, too, and was read.
    counters: tuple[str, ...]
    why: str
    #: Those of the checks that no other one stands for: an error of their calls is enough.
    alone: tuple[str, ...] = ()
    #: Whether each GPU of a model has it, if one has.
    of_model: bool = True
    #: The models that have it.
    models: re.Pattern[str] | None = None
    #: Whether they have it with ECC only.
    needs_ecc: bool = False


#: The groups that every GPU needs, as far as it has them.
REQUIRED = (
    ReadingGroup(
        name="memory errors",
        checks=("ecc.uncorrected", "memory.sram_threshold"),
        counters=("ecc_uncorrected", "sram_"),
        why="an uncorrectable error is the most frequent fault of a card",
        alone=("ecc.uncorrected", "memory.sram_threshold"),
        models=DATA_CENTRE,
        needs_ecc=True,
    ),
    ReadingGroup(
        name="memory repairs",
        checks=(
            *("memory.remap_failed", "memory.repair_pending", "memory.unrepairable"),
            *("memory.bank_headroom", "memory.retired_pages"),
        ),
        counters=("remap", "retire", "retirement", "channel_repair", "tpc_repair", "memory_unrep"),
        why="they outlast a reset, and decide on the return of a card",
        alone=("memory.remap_failed", "memory.repair_pending", "memory.unrepairable"),
        models=REMAPPING,
        needs_ecc=True,
    ),
    ReadingGroup(
        name="temperature",
        checks=("temperature.gpu", "temperature.limit"),
        counters=("temperature_", "maximum_c", "slowdown_"),
        why="a card without a temperature cannot be protected from heat",
        models=DATA_CENTRE,
    ),
    ReadingGroup(
        name="power and clocks",
        checks=("clocks.hardware_slowdown", "power.limit"),
        counters=("reasons", "power_limit"),
        why="a slowdown by the hardware is seen nowhere else",
        alone=("clocks.hardware_slowdown",),
        models=DATA_CENTRE,
    ),
    ReadingGroup(
        name="PCIe link",
        checks=("pcie.generation", "pcie.width"),
        counters=("pcie_",),
        why="a card whose link cannot be read may be off the bus soon",
    ),
    ReadingGroup(
        name="NVLink",
        checks=("nvlink.inactive",),
        counters=("nvlinks",),
        why="a link that is down is seen nowhere else",
        of_model=False,
    ),
    ReadingGroup(
        name="recovery action",
        checks=("recovery.action",),
        counters=("recovery_action",),
        why="it is the driver's own demand for a reset",
    ),
    ReadingGroup(
        name="MIG mode",
        checks=("gpu.whole",),
        counters=("mig",),
        why="the values of a part of a GPU say nothing of the whole",
        of_model=False,
    ),
    ReadingGroup(
        name="NVLink fabric",
        checks=("fabric.state", "fabric.health"),
        counters=("fabric_",),
        why="a GPU outside its fabric cannot reach the others",
        of_model=False,
    ),
)


def unread_groups(
    statuses: Mapping[str, Status],
    counters: Counters,
    twins: AbstractSet[str] = frozenset(),
) -> dict[str, str]:
    """Find the groups of which nothing could be read.

    Args:
        statuses: The results by check.
        counters: The GPU, with the errors of its calls.
        twins: The checks that have judged another GPU of the model.

    Returns:
        By the name of the group, the error of its first call that failed, or another reason.
    """
    found, unjudged, failed = {}, {}, counters.failed
    for group in REQUIRED:
        known = {statuses[check] for check in group.checks if check in statuses}
        error = next((failed[name] for name in failed if name.startswith(group.counters)), None)
        judged = known - {Status.NOT_APPLICABLE} != {Status.NOT_TESTED}
        lacking = any(statuses.get(check) is Status.NOT_TESTED for check in group.alone)
        if error is not None and (lacking or not judged):
            found[group.name] = error
        elif Status.NOT_APPLICABLE in known and not any(status.has_judged for status in known):
            unjudged[group.name] = "not supported, though another GPU of its model has it"
            if group.of_model and not twins.isdisjoint(group.checks):
                found[group.name] = unjudged[group.name]
            elif _has(group, counters):
                found[group.name] = f"not supported, though each {counters.name} has it"
    if not found and len(unjudged) == len(REQUIRED):
        return dict.fromkeys(unjudged, "the driver says that none of it is supported")
    return found


def _has(group: ReadingGroup, counters: Counters) -> bool:
    """Check whether the model of a GPU is known to have what a group judges."""
    if group.models is None or (group.needs_ecc and counters.ecc is False):
        return False
    return group.models.search(counters.name) is not None


def why_unread(
    counters: Counters, results: Iterable[CheckResult], twins: AbstractSet[str] = frozenset()
) -> str | None:
    """Name what of a GPU could not be read and should have been, or return None."""
    if (why := counters.lost or counters.why_unread) is not None:
        return why
    results = list(results)
    groups = unread_groups({result.id: result.status for result in results}, counters, twins)
    if not groups:
        return next(iter(unproved(results)), None)
    return f"could not be read: {', '.join(groups)}: {next(iter(groups.values()))}"


def unread(counters: Counters) -> str | None:
    """Name what of a GPU could not be read and should have been, by checks at one moment."""
    evidence = MomentEvidence(counters=counters, node=(counters,))
    return why_unread(counters, _CHECKS.run(evidence, Thresholds()))
