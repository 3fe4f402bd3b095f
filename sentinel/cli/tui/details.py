"""The lines about one GPU: its state, sensors against their limits, graphs and last hand-overs."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.cli.display import gpu_table
from sentinel.cli.display.terminal import cut, printable
from sentinel.cli.tui.columns import power_limit_w, temperature_limit_c
from sentinel.cli.tui.samples import Samples, highest
from sentinel.client import GpuStatus
from sentinel.protocol.api_types import GpuTelemetry, Handover
from sentinel.units import format_brief, format_duration

#: The width of the names of the graphs, and of the values after them.
_LABEL, _VALUE = 7, 22


def detail_lines(gpu: GpuStatus, samples: Samples, width: int) -> list[str]:
    """Return the lines about a GPU.

    Args:
        gpu: The GPU.
        samples: Its last samples.
        width: The columns that there are; longer lines are cut, except the graphs, which are
            as long as there is room.
    """
    lines = [
        f"GPU {gpu.index}  {gpu.name}  {gpu_table.state(gpu)}",
        f"{gpu.uuid}  {gpu.pci_bus_id}",
        f"{gpu_table.why(gpu)}{f'; {gpu.note}' if gpu.note else ''}",
        *([f"health: {gpu_table.health(gpu)}"] if gpu.health is not None else []),
        *_graphs(gpu, samples, width),
        *_sensors(gpu),
        *_work(gpu),
    ]
    if gpu.handover is not None:
        lines.append(_handover(gpu.handover))
    return [cut(printable(line), width) for line in lines]


def _graphs(gpu: GpuStatus, samples: Samples, width: int) -> Iterator[str]:
    room = max(10, width - _LABEL - _VALUE)
    hottest = float(temperature_limit_c(gpu) or highest(samples.temperature_c))
    strongest = power_limit_w(gpu) or highest(samples.power_w)
    used = gpu.memory_used
    memory = "" if used is None else f"{used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB"
    rows = (
        ("load", samples.load, 1.0, _percent(gpu.utilization)),
        ("memory", samples.memory, 1.0, memory),
        ("power", samples.power_w, strongest, _against(gpu.power_w, power_limit_w(gpu), "W")),
        (
            "temp",
            samples.temperature_c,
            hottest,
            _against(gpu.temperature_c, temperature_limit_c(gpu), "C"),
        ),
    )
    for name, values, most, now in rows:
        drawn = gpu_table.graph(list(values)[-room:], most)
        yield f"{name:<{_LABEL}}{now:<{_VALUE}}{drawn}".rstrip()


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _against(value: float | None, limit: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.0f} {unit}" if limit is None else f"{value:.0f} of {limit:.0f} {unit}"


def _sensors(gpu: GpuStatus) -> Iterator[str]:
    """Yield the lines of telemetry; what a GPU does not have is left out."""
    one = gpu.telemetry
    clocks = [] if gpu.sm_clock_mhz is None else [f"SM {gpu.sm_clock_mhz} MHz"]
    if one is None:
        if clocks:
            yield f"clocks {clocks[0]}"
        return
    if one.memory_clock_mhz is not None:
        clocks.append(f"memory {one.memory_clock_mhz} MHz")
    if one.performance_state is not None:
        clocks.append(f"P{one.performance_state}")
    if one.reasons:
        clocks.append(", ".join(one.reasons))
    if clocks:
        yield f"clocks {', '.join(clocks)}"
    if heat := list(_heat(one)):
        yield f"heat   {', '.join(heat)}"
    if links := list(_links(one)):
        yield f"links  {', '.join(links)}"
    if errors := list(_errors(one)):
        yield f"ECC    {', '.join(errors)}"


def _heat(one: GpuTelemetry) -> Iterator[str]:
    for text, value in (
        ("memory {} C", one.memory_temperature_c),
        ("slows down at {} C", one.slowdown_c),
        ("off at {} C", one.shutdown_c),
    ):
        if value is not None:
            yield text.format(value)
    if one.fan_share is not None:
        yield f"fan {one.fan_share:.0%}"
    if one.thermal_throttled_s:
        yield f"throttled for {format_duration(round(one.thermal_throttled_s))}"


def _links(one: GpuTelemetry) -> Iterator[str]:
    if one.pcie_generation is not None and one.pcie_width is not None:
        yield f"PCIe {one.pcie_generation} x{one.pcie_width}"
    if one.pcie_replays_total:
        yield f"{one.pcie_replays_total} replays"


def _errors(one: GpuTelemetry) -> Iterator[str]:
    if one.ecc_corrected_total is not None or one.ecc_uncorrected_total is not None:
        yield f"{one.ecc_corrected_total or 0} corrected"
        yield f"{one.ecc_uncorrected_total or 0} uncorrected"
    if one.remap_pending:
        yield "a row waits for a reset"
    if one.remap_failed:
        yield "a row could not be replaced"


def _work(gpu: GpuStatus) -> Iterator[str]:
    """Yield what a stressor does and has proved, and what is wrong."""
    facts = []
    if rate := gpu_table.rate(gpu):
        facts.append(rate)
    if gpu.checks:
        facts.append(f"{gpu.checks:,} results checked, {gpu.errors or 0:,} wrong")
    if gpu.verified is not None and gpu.verified.checks:
        facts.append(f"verified for {format_duration(round(gpu.verified.seconds))} in all")
    if facts:
        yield f"work   {', '.join(facts)}"
    if gpu.findings:
        last = f"; last: {gpu.last_finding}" if gpu.last_finding else ""
        yield f"WRONG  {gpu.findings} findings, it cannot be trusted{last}"


def _handover(one: Handover) -> str:
    free = "" if one.memory_back is None else f", memory free after {format_brief(one.memory_back)}"
    took = f"exited after {format_brief(one.exit)}{free}"
    return f"gave   {format_brief(one.ago_s)} ago to a newcomer ({one.evidence}): {took}"
