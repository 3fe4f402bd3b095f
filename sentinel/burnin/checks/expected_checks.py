"""The checks of an expectation: a node and its GPUs are what ``node.toml`` says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    CheckResult,
    Judgement,
    Limits,
    Status,
    Unjudged,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import ExpectedEvidence, GpuEvidence, read
from sentinel.config.expectation import (
    GPU_FIELDS,
    PORT_FIELDS,
    Expectation,
    Kind,
    Value,
    Wanted,
    WantedPort,
    show,
)
from sentinel.protocol.counters import Counters, HostCounters, NvLink, Port

TABLE = Table()

#: The checks of an expectation: where one of them could not judge, nothing is proved.
EXPECTED: Final = frozenset({"node.gpus", "node.expected", "gpu.expected"})
_PROVING: Final = EXPECTED | {"daemon.findings"}


def unproved(results: Iterable[CheckResult]) -> list[str]:
    """Name what of an expectation, of earlier findings or of the GPUs could not be judged."""
    return [
        f"{result.id}: {result.evidence}"
        for result in results
        if result.status is Status.NOT_TESTED and (result.id in _PROVING or _is_held(result))
    ]


def _is_held(result: CheckResult) -> bool:
    """Check whether GPUs were to be tested and were held elsewhere; early records do not say it."""
    return result.id == "node.tested" and result.value is not None


def count_unchecked(results: Iterable[CheckResult]) -> str | None:
    """Say that the number of GPUs was not checked, or return None."""
    found = (result for result in results if result.id == "node.gpus")
    texts = (one.evidence for one in found if one.status is Status.NOT_APPLICABLE)
    return next((text.partition(":")[0] for text in texts), None)


# --- values ----------------------------------------------------------------------------------


def _active(links: Sequence[NvLink]) -> int | None:
    states = [link.active for link in links]
    return None if None in states else sum(filter(None, states))


def _slowest(links: Sequence[NvLink]) -> int | None:
    speeds = [link.speed_mbps for link in links if link.active]
    return None if None in speeds else min(filter(None, speeds), default=0)


def _same(value: Any) -> Any:
    return value


#: By the names of GPU_FIELDS: the counter that has the value, and its conversion.
_COUNTERS: Mapping[str, tuple[str, Callable[[Any], Value | None]]] = {
    **{name: (name, _same) for name in ("driver", "vbios", "ecc", "mig", "persistence")},
    "memory_mib": ("memory_total", lambda size: size // 2**20),
    "power_limit_w": ("power_limit_w", round),
    "pcie_generation": ("pcie_generation_maximum", _same),
    "pcie_width": ("pcie_width_maximum", _same),
    "nvlinks": ("nvlinks", _active),
    "nvlink_speed_mbps": ("nvlinks", _slowest),
}


def value_of(counters: Counters, name: str) -> Value:
    """Read a field of an expectation.

    Raises:
        Unjudged: It is not known.
    """
    counter, convert = _COUNTERS[name]
    value = convert(read(counters, counter))
    if value is None:
        raise Unjudged(untested("not every NVLink could be read"))
    return value


def _values(evidence: GpuEvidence, name: str) -> Iterator[Value]:
    """Yield all values of a field: at each reading and, where that is known, under load.

    Raises:
        Unjudged: One is not known.
    """
    if name == "power_limit_w":
        yield from map(round, evidence.samples(name))
    if name.startswith("pcie_"):
        with suppress(Unjudged):
            yield evidence.under_load(name)
    for counters in evidence.readings:
        yield value_of(counters, name)


# --- judgements ------------------------------------------------------------------------------


class _Differences:
    """Collects what is not as expected, and what is not known."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.unknown: list[str] = []

    def compare(self, name: str, wanted: Wanted, values: Iterable[Value]) -> None:
        """Compare the values of a field, each of which must be allowed."""
        try:
            for value in values:
                if not (allowed := wanted.allows(value)):
                    text = f"{name} is {show(value)}, expected {wanted}"
                    (self.unknown if allowed is None else self.differences).append(text)
                    return
        except Unjudged as unjudged:
            why = unjudged.judgement.evidence
            self.unknown.append(f"{name} is not known: {why}; expected {wanted}")

    def judgement(self) -> Judgement:
        """Judge what was collected: a difference fails, whatever else is not known."""
        status = Status.PASS
        if self.differences or self.unknown:
            status = Status.FAIL if self.differences else Status.NOT_TESTED
        text = "; ".join([*self.differences, *self.unknown])
        return Judgement(status=status, value=len(self.differences), evidence=text)


@TABLE.check("gpu.expected")
def _gpu_expected(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Compare the GPU with the expectation of its model."""
    expectation, found = evidence.expectation, _Differences()
    model = evidence.now.name
    wanted = expectation.of(model)
    if not wanted and not expectation.models:
        return not_applicable("nothing is expected of it")
    if not model:
        return untested("its model is not known")
    if expectation.models:
        found.compare("model", Wanted(one_of=tuple(expectation.models), kind=Kind.TEXT), [model])
    for name, one in wanted.items():
        found.compare(name, one, _values(evidence, name))
    return found.judgement()


@TABLE.check("node.expected")
def _node_expected(evidence: ExpectedEvidence, _: Limits) -> Judgement:
    """Compare serial numbers and InfiniBand ports with the expectation."""
    expectation, found = evidence.expectation, _Differences()
    if not expectation.serials and not expectation.infiniband:
        return not_applicable("nothing is expected of it")
    if expectation.serials:
        _compare_serials(expectation, evidence.listed, found)
    hosts = evidence.hosts or (HostCounters(error="the ports were not read"),)
    for wanted in expectation.infiniband:
        for name, one in wanted.fields.items():
            label = f"{name} of port {wanted.port}"
            found.compare(label, one, (_of_port(host, wanted, name) for host in hosts))
    return found.judgement()


def _compare_serials(
    expectation: Expectation, listed: Sequence[Counters], found: _Differences
) -> None:
    there = {gpu.serial: gpu.index for gpu in listed if gpu.serial is not None}
    unread = [gpu for gpu in listed if gpu.serial is None]
    missing = [serial for serial in expectation.serials if serial not in there]
    found.differences += [
        f"serial of GPU {there[serial]} is {serial}, expected another"
        for serial in there.keys() - set(expectation.serials)
    ]
    for serial in missing:
        text = f"no GPU has the serial number {serial}"
        (found.unknown if len(unread) >= len(missing) else found.differences).append(text)


def _of_port(host: HostCounters, wanted: WantedPort, name: str) -> Value:
    """Read a field of a port; one that is not there has the state "missing".

    Raises:
        Unjudged: It is not known.
    """
    if host.error is not None:
        raise Unjudged(untested(host.error))
    port = next((port for port in host.ports if port.name == wanted.port), None)
    if port is None:
        return "missing"
    value = port_value(port, name)
    if value is None:
        raise Unjudged(untested("the kernel does not say it"))
    return value


def port_value(port: Port, name: str) -> Value | None:
    """Read a field of PORT_FIELDS; None if it is not known."""
    if name == "state":
        return port.state
    try:
        return float((port.rate or "").split()[0])
    except (IndexError, ValueError):
        return None


# --- learning --------------------------------------------------------------------------------


def learn(
    gpus: Sequence[Counters], host: HostCounters, source: str
) -> tuple[Expectation, list[str]]:
    """Build the expectation that a node meets now.

    Args:
        gpus: Its GPUs.
        host: What the kernel says of its ports.
        source: Where it is to be from.

    Returns:
        It, and what it leaves out, for people.
    """
    models: dict[str, dict[str, Wanted]] = {}
    left_out = ["serials: name them by serials = [...] if cards must not be exchanged"]
    for model in dict.fromkeys(gpu.name for gpu in gpus):
        fields: dict[str, Wanted] = {}
        for name, kind in GPU_FIELDS.items():
            try:
                values = dict.fromkeys(value_of(gpu, name) for gpu in gpus if gpu.name == model)
            except Unjudged as unjudged:
                left_out.append(f"{name} of {model}: {unjudged.judgement.evidence}")
                continue
            fields[name] = Wanted(one_of=tuple(values), kind=kind)
        models[model] = fields
    ports = [port for port in host.ports if port.state == "ACTIVE"]
    left_out += [f"port {port.name}: {port.state}" for port in host.ports if port not in ports]
    wanted = [
        WantedPort(
            port=port.name,
            fields={
                name: Wanted(one_of=(value,), kind=kind)
                for name, kind in PORT_FIELDS.items()
                if (value := port_value(port, name)) is not None
            },
        )
        for port in ports
    ]
    found = Expectation(gpus=len(gpus), models=models, infiniband=tuple(wanted), source=source)
    return found, left_out
