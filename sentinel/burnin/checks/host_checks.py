"""The checks of the host around the GPUs: its InfiniBand ports and its memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Unjudged,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import HostEvidence
from sentinel.protocol.counters import HostCounters, Port

TABLE = Table()

_ACTIVE = "ACTIVE"


def _read(host: HostCounters) -> HostCounters:
    """Return what was read.

    Raises:
        Unjudged: Nothing was.
    """
    if host.error is not None:
        raise Unjudged(untested(host.error))
    return host


@TABLE.check("node.infiniband")
def _node_infiniband(evidence: HostEvidence, limits: Limits) -> Judgement:
    """Count the InfiniBand ports with a fault."""
    first, last = _read(evidence.before), _read(evidence.after or evidence.before)
    if not first.ports:
        return not_applicable("the host has no InfiniBand port")
    if all(port.state is None for port in last.ports):
        return untested("the state of no port could be read")
    later = {port.name: port for port in last.ports}
    active = {port.layer for port in last.ports if port.state == _ACTIVE}
    troubles = {
        port.name: list(_troubles(port, later.get(port.name), active)) for port in first.ports
    }
    bad = [f"{name}: {', '.join(found)}" for name, found in troubles.items() if found]
    text = f"{sum(port.state == _ACTIVE for port in last.ports)} of {len(first.ports)} are active"
    return by_limits(len(bad), limits, "; ".join([text, *bad]))


def _troubles(port: Port, later: Port | None, active: set[str | None]) -> Iterator[str]:
    """Describe what is wrong with a port after a run, or now."""
    if later is None:
        yield "it is gone"
        return
    if later.state not in {_ACTIVE, None} and (later.layer in active or port.state == _ACTIVE):
        yield f"it is {later.state}"
    if None not in {port.rate, later.rate} and port.rate != later.rate:
        yield f"its rate was {port.rate}, and is {later.rate}"
    for name, count in later.errors.items():
        grown = _grown(port.errors.get(name, count), count)
        if grown > 0:
            yield f"{name} +{grown:,}"


def _grown(before: int, after: int) -> int:
    """Compute how much was counted: after a reset of the counter, at least what it shows."""
    return after - before if after >= before else after


@TABLE.check("node.memory_errors")
def _node_memory_errors(evidence: HostEvidence, limits: Limits) -> Judgement:
    """Count the errors of the host's memory."""
    first, last = _read(evidence.before), _read(evidence.after or evidence.before)
    if not last.memory:
        return not_applicable("the kernel counts no errors of this host's memory")
    counted = {}
    for name, count in last.memory.items():
        before = first.memory.get(name, count)
        ever = name.endswith("ue_count")
        counted[name] = max(before, count) if ever else _grown(before, count)
    text = ", ".join(f"{name} {count:,}" for name, count in counted.items() if count)
    return by_limits(sum(counted.values()), limits, text)
