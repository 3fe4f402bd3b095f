"""Judge a node by an expectation, from its report or from the GPUs of its daemon. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from sentinel.burnin.checks.check import CheckResult, Status, Thresholds, worst_first
from sentinel.burnin.checks.evidence import ExpectedEvidence, MomentEvidence
from sentinel.burnin.checks.node_report import MOMENT
from sentinel.config.expectation import Expectation, Wanted, parse_expectation
from sentinel.errors import ConfigError
from sentinel.fleet.node_result import GpuCounters, GpuResult, NodeResult
from sentinel.protocol.api_types import GpuStatus, GpuTelemetry
from sentinel.protocol.counters import Counters, HostCounters, NvLink

_NAMES = {field.name for field in fields(Counters)} & {field.name for field in fields(GpuCounters)}
_NO_HOST = HostCounters(error="a report does not have it: the node itself must be judged by this")

#: The subject that is the node itself.
NODE = "node"
#: The fields of an expectation that the status of a daemon has.
_IN_STATUS = frozenset({"driver", "memory_mib", "power_limit_w"})
_TELEMETRY = {field.name for field in fields(Counters)} & {
    field.name for field in fields(GpuTelemetry)
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The results of the checks of an expectation on one report."""

    node: tuple[CheckResult, ...] = ()
    #: Of each GPU, in the order of the report.
    gpus: tuple[CheckResult | None, ...] = ()


def expectation_of(result: NodeResult) -> Expectation:
    """Parse the expectation by which a node was judged; nothing without one."""
    recorded = result.run.expectation
    return Expectation() if recorded is None else _parsed(recorded.text)


@cache
def _parsed(text: str) -> Expectation:
    try:
        return parse_expectation(text, "the expectation of a node")
    except ConfigError:  # of another version: it excuses nothing
        return Expectation()


def judge_by(expectation: Expectation, result: NodeResult) -> Expected:
    """Judge a report by what it has; the ports of a node are judged by the node itself alone."""
    own = result.run.expectation
    is_same = own is not None and own.text.strip() == expectation.text.strip()
    if not expectation.text:
        return Expected(gpus=(None,) * len(result.gpus))
    known = {check.id for check in result.checks} | ({"node.expected"} if is_same else set())
    listed = tuple(next(_readings(gpu, result)) for gpu in result.gpus)
    evidence = ExpectedEvidence(expectation=expectation, listed=listed, hosts=(_NO_HOST,))
    return Expected(
        node=tuple(
            MOMENT[name].run(evidence, Thresholds())
            for name in ("node.gpus", "node.expected")
            if name not in known
        ),
        gpus=tuple(_judge_gpu(expectation, gpu, result) for gpu in result.gpus),
    )


def _judge_gpu(expectation: Expectation, gpu: GpuResult, result: NodeResult) -> CheckResult | None:
    """Judge the GPU before and after its run, unless its node has; the worse decides."""
    if any(check.id == "gpu.expected" for check in gpu.checks):
        return None
    found = [
        MOMENT["gpu.expected"].run(
            MomentEvidence(counters=counters, expectation=expectation), Thresholds()
        )
        for counters in _readings(gpu, result)
    ]
    unknown = (one for one in found if one.status is Status.NOT_TESTED)
    return next(iter(worst_first(found)), None) or next(unknown, found[0])


def _readings(gpu: GpuResult, result: NodeResult) -> Iterator[Counters]:
    """Yield the counters before and after a run, as far as a report has them."""
    known = (gpu.counters.before, gpu.counters.after)
    for counters in filter(None, known) if any(known) else (gpu.before,):
        values = {name: getattr(counters, name) for name in _NAMES}
        yield Counters(
            **{**values, "nvlinks": _links(counters.nvlinks)},
            uuid=gpu.uuid,
            index=gpu.index,
            name=str(gpu.model),
            at=0.0,
            driver=result.node.driver,
            serial=gpu.serial,
        )


def _links(found: object) -> tuple[NvLink, ...] | None:
    """Convert what is judged of NVLinks; a thousand nodes have 300,000 of them."""
    links = []
    for one in found if isinstance(found, list) else (None,):
        known = one if isinstance(one, dict) else {}
        link, active, speed = (known.get(name) for name in ("link", "active", "speed_mbps"))
        if type(link) is not int or not isinstance(active, bool | None):
            return None
        links.append(
            NvLink(link=link, active=active, speed_mbps=speed if type(speed) is int else None)
        )
    return tuple(links)


# --- the GPUs of a daemon --------------------------------------------------------------------


def subject_of(gpu: str) -> str:
    """Return the subject that is the GPU with this UUID."""
    return f"expected of {gpu}"


def not_in_status(expectation: Expectation) -> list[str]:
    """Name what is expected, and cannot be compared with the status of a daemon."""
    tables = (expectation.all, *expectation.models.values())
    names = {name for table in tables for name in table} - _IN_STATUS
    return sorted(names) + ["infiniband"] * bool(expectation.infiniband)


def differences(
    expectation: Expectation, gpus: Sequence[GpuStatus], driver: str, *, is_whole: bool
) -> dict[str, str | None]:
    """Describe what a daemon knows to differ from an expectation.

    Args:
        expectation: What the node must be.
        gpus: Those to judge.
        driver: The version of the driver.
        is_whole: Whether they are all GPUs of the host.

    Returns:
        By the subject, the difference, or None if there is none; not those that are not known.
    """
    if not expectation.text:
        return {}
    found: dict[str, str | None] = {}
    wanted = replace(
        expectation,
        all=_in_status(expectation.all),
        models={name: _in_status(fields) for name, fields in expectation.models.items()},
        infiniband=(),
    )
    listed = tuple(_counters_of(gpu, driver) for gpu in gpus)
    for counters in listed:
        evidence = MomentEvidence(counters=counters, node=listed, expectation=wanted)
        result = MOMENT["gpu.expected"].run(evidence, Thresholds())
        if result.status is not Status.NOT_TESTED:
            text = f"{result.evidence} on GPU {counters.index} ({counters.uuid})"
            found[subject_of(counters.uuid)] = text if result.status is Status.FAIL else None
    if is_whole:
        node = ExpectedEvidence(expectation=wanted, listed=listed)
        results = [MOMENT[name].run(node, Thresholds()) for name in ("node.gpus", "node.expected")]
        bad = [f"{one.id}: {one.evidence}" for one in results if one.status is Status.FAIL]
        found[NODE] = "; ".join(bad) or None
    return found


def _in_status(fields: Mapping[str, Wanted]) -> dict[str, Wanted]:
    return {name: wanted for name, wanted in fields.items() if name in _IN_STATUS}


def _counters_of(gpu: GpuStatus, driver: str) -> Counters:
    values = {} if gpu.telemetry is None else vars(gpu.telemetry)
    return Counters(
        **{name: values[name] for name in _TELEMETRY & values.keys()},
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        at=0.0,
        driver=driver,
        serial=gpu.serial,
        pci_bus_id=gpu.pci_bus_id,
        memory_total=gpu.memory_total,
    )
