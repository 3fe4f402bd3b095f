"""What must have been read of a GPU before anything is said of its health. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sentinel.burnin.checks import counter_checks, link_checks
from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import CheckResult, Status, Thresholds
from sentinel.burnin.checks.evidence import MomentEvidence
from sentinel.burnin.checks.expected_checks import unproved
from sentinel.burnin.checks.required_evidence import MODELS, required
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu import HIGHEST_C, IMPOSSIBLE

_CHECKS = Table(counter_checks.TABLE, link_checks.TABLE)


@dataclass(frozen=True, kw_only=True)
class ReadingGroup:
    """Checks of one subject, as required.toml explains them."""

    name: str
    #: Their ids.
    checks: tuple[str, ...]
    counters: tuple[str, ...]
    alone: tuple[str, ...] = ()
    of_model: bool = True
    #: One of MODELS, or empty.
    models: str = ""
    needs_ecc: bool = False


#: The groups that every GPU needs, as far as it has them.
REQUIRED = required(ReadingGroup, "readings")


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
    found, unjudged, failed = {}, {}, dict(counters.failed)
    if counters.temperature_c is not None and counters.temperature_c > HIGHEST_C:
        failed["temperature_c"] = IMPOSSIBLE.format(counters.temperature_c)
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
    if not group.models or (group.needs_ecc and counters.ecc is False):
        return False
    return MODELS[group.models].search(counters.name) is not None


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
