"""What the faults of the table do to the record of a burn-in, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sentinel.burnin.kernel_faults import parse_fault
from sentinel.protocol.stressor import LinkPart
from tests.harness.recorded_node import (
    BEGAN,
    COPY,
    FP16,
    LINKS,
    MEMORY,
    PHASES,
    STEADY,
    RecordedNode,
    Row,
    kind_of,
    uuid,
)

Apply = Callable[[RecordedNode, "Moment"], None]
#: The GPU that has the fault.
BAD = 0
EVERY, SECOND = slice(None), slice(None, None, 2)
#: GPUs.
ONLY_BAD, ALL_BUT_ONE, ALL_BUT_TWO = slice(BAD, BAD + 1), slice(-1), slice(-2)


def in_a_row(number: int) -> slice:
    """Select so many rows of a phase, from its 60th on."""
    return slice(60, 60 + number)


@dataclass(frozen=True)
class Moment:
    """When a fault shows."""

    name: str
    #: The part of each phase, in thousandths.
    part: slice
    #: When it is, as a share of the run.
    share: float

    def at(self, node: RecordedNode) -> float:
        """Return the moment in seconds since the run began, within a phase."""
        _, ready, _, end = node.spans[STEADY]
        first = ready - BEGAN
        return first + (end - ready) * self.share


FIRST = Moment("first", slice(0, 300), 0.15)
MIDDLE = Moment("middle", slice(350, 650), 0.5)
LAST = Moment("last", slice(700, 1000), 0.97)
ALL = Moment("all the time", slice(0, 1000), 0.5)
#: What is read before or after the run has no part in it.
BEFORE = Moment("before", slice(0, 0), 0.0)
AFTER = Moment("after", slice(0, 0), 1.0)
GAP = Moment("in a gap", slice(0, 0), 0.5)
MOMENTS = (FIRST, MIDDLE, LAST)
ONE_MOMENT = (ALL,)


def both(*parts: Apply) -> Apply:
    """Do several things."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        for part in parts:
            part(node, moment)

    return apply


def after(**values: Any) -> Apply:
    """Change counters after the run."""

    def apply(node: RecordedNode, _: Moment) -> None:
        node.after[BAD] |= values

    return apply


def before(**values: Any) -> Apply:
    """Change counters before the run."""

    def apply(node: RecordedNode, _: Moment) -> None:
        node.before[BAD] |= values

    return apply


def standing(**values: Any) -> Apply:
    """Change counters or flags at one end of the run, or between its parts."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        if moment is GAP:
            resume(node, values)
        else:
            (node.before if moment is BEFORE else node.after)[BAD].update(values)

    return apply


def resume(node: RecordedNode, between: Row) -> None:
    """Cut the run in two after its memory phase; the counters after the gap differ for good."""
    _, _, _, end = node.spans[MEMORY]
    gpus = [{"uuid": uuid(index), "index": index} for index in range(node.gpus)]
    at = end - BEGAN
    again = [{**row, "at": end + 0.3} for row in node.before]
    node.counters["resumed"] = [
        {"after": [{**row, "at": end + 0.2} for row in node.before], "before": again}
    ]
    again[BAD].update(between)
    lasting = {name: value for name, value in between.items() if "total" in name}
    node.after[BAD].update(lasting)
    for index in range(node.gpus):
        node.tell(index, "burnin.ended", at + 0.2, plan="lab", reason="SIGINT")
    node.tell(None, "burnin.run_started", at + 0.35, gpus=gpus)
    node.samples.append({"at": end + 0.25, "event": "last", "gpu": None, "index": None})


def telemetry(*phases: str, which: slice = EVERY, **values: Any) -> Apply:
    """Change readings in a part of each phase, or of these; ``which``: only these of them."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        for row in node.rows(BAD, "telemetry", *phases, part=moment.part)[which]:
            row.update(values)

    return apply


def once(**values: Any) -> Apply:
    """Change one reading."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        rows = node.rows(BAD, "telemetry", STEADY)
        rows[int(moment.share * (len(rows) - 2)) + 1].update(values)

    return apply


def slower(
    factor: float,
    *phases: str,
    unit: str = "flops",
    which: slice = EVERY,
    gpus: slice = ONLY_BAD,
    **readings: Any,
) -> Apply:
    """Scale the rate of a part of phases, and change the readings of the bad GPU with it.

    Args:
        factor: By which it is scaled.
        phases: Those that are slower; all by default.
        unit: What is counted of the work.
        which: Only these of the rows.
        gpus: The slower ones.
        readings: What is read meanwhile.
    """

    def apply(node: RecordedNode, moment: Moment) -> None:
        for gpu in range(node.gpus)[gpus]:
            for row in node.rows(gpu, "work", *phases, part=moment.part)[which]:
                row[unit] *= factor
        for row in node.rows(BAD, "telemetry", *phases, part=moment.part):
            row.update(readings)

    return apply


def links(
    part: LinkPart,
    factor: float = 1.0,
    *,
    often: bool = False,
    gpus: slice = ONLY_BAD,
    **values: Any,
) -> Apply:
    """Scale the rates of one part of the test of links; ``often``: but for one in six seconds."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for gpu in range(node.gpus)[gpus]:
            for row in node.rows(gpu, "link", LINKS):
                if row["part"] == part and not (often and int(row["at"]) % 6 == 0):
                    row["rate"] *= factor
                    row.update(values)

    return apply


def events(*found: tuple[str, Row]) -> Apply:
    """Add events at the moment, a second apart."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        for number, (name, fields) in enumerate(found):
            node.tell(BAD, name, moment.at(node) + number, **fields)

    return apply


def xid(number: int, text: str = "", pid: int | None = None) -> Apply:
    """Log an XID of the GPU."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        node.log(moment.at(node), number, BAD, text, pid)

    return apply


def unread(*names: str, why: str | None = "unknown error") -> Apply:
    """Let counters fail to be read at one end, or be missing there without a reason."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        row = (node.before if moment is BEFORE else node.after)[BAD]
        row.update(dict.fromkeys(names))
        if why is not None:
            row["failed"] = {**row.get("failed", {}), **dict.fromkeys(names, why)}

    return apply


def lasting(**values: Any) -> Apply:
    """Change counters at both ends of the run."""
    return both(before(**values), after(**values))


def everywhere(**values: Any) -> Apply:
    """Change counters of all GPUs at both ends of the run."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in (*node.before, *node.after):
            row.update(values)

    return apply


def ended(*phases: str, **values: Any) -> Apply:
    """Change what is said of phases, or of all, at their ends."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for phase in phases or node.spans:
            node.ends_of(BAD, phase).update(values)

    return apply


def given_up(phase: str, why: str) -> Apply:
    """Give up a phase."""
    return ended(phase, given_up=why, seconds=0.0, longest=0.0, passes=0)


def checksums(own: str, others: str, stored: str | None) -> Apply:
    """Let GPUs compute golden checksums."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for index in range(node.gpus):
            value = own if index == BAD else others
            row = {"at": node.spans[STEADY][1] + 0.1, "event": "checksum", "gpu": uuid(index)}
            node.samples.append({**row, "key": "bf16", "checksum": value, "stored": stored})

    return apply


def nvlinks(number: int, *, both: bool = False, before: bool = False, **values: Any) -> Apply:
    """Change an NVLink; ``both``: on all GPUs; ``before``: at both ends of the run."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for rows in (node.before, node.after) if before else (node.after,):
            for row in rows if both else rows[BAD : BAD + 1]:
                row["nvlinks"][number] |= values

    return apply


def given_up_by_all(node: RecordedNode, _: Moment) -> None:
    """Give up a phase on all GPUs."""
    for index in range(node.gpus):
        node.ends_of(index, FP16).update(given_up="it failed 3 times", seconds=0.0, longest=0.0)


def no_bridge(node: RecordedNode, _: Moment) -> None:
    """Let all GPUs be cards with bridges, but one, which has none."""
    for row in (*node.before, *node.after):
        row["name"] = "NVIDIA H100 NVL"
        for link in row["nvlinks"]:
            link["active"] = row["index"] != BAD


def no_energy(node: RecordedNode, _: Moment) -> None:
    """Count no energy."""
    node.after[BAD]["energy_j"] = node.before[BAD]["energy_j"]


def not_ended(node: RecordedNode, _: Moment) -> None:
    """Do not say that the run has ended."""
    node.events[:] = [row for row in node.events if row["event"] != "burnin.ended"]


def no_host_link(node: RecordedNode, _: Moment) -> None:
    """Record no copy to or from the host."""
    parts = {LinkPart.TO_DEVICE, LinkPart.TO_HOST}
    node.samples[:] = [row for row in node.samples if row.get("part") not in parts]


def no_link_of_one(node: RecordedNode, _: Moment) -> None:
    """Measure no link from one peer."""
    gone = {id(row) for row in node.rows(BAD, "link") if row["peer"] == 1}
    node.samples[:] = [row for row in node.samples if id(row) not in gone]


def no_part(node: RecordedNode, _: Moment) -> None:
    """Record no counters between two parts."""
    resume(node, {})
    del node.counters["resumed"]


def later(node: RecordedNode, _: Moment) -> None:
    """Let the GPU do its steady phase when its peers have done theirs; it is slow."""
    slower(0.5, STEADY)(node, ALL)
    node.ends_of(BAD, STEADY)["interruptions"] = 1
    begin = node.spans[STEADY][0]
    for row in (*node.events, *node.samples):
        if row["gpu"] == uuid(BAD):
            row["at"] += 400.0 if row["at"] >= begin else 0.0
            row.update({"last": row["last"] + 400.0} if "last" in row else {})
    node.events.sort(key=lambda row: float(row["at"]))
    node.ended += 400.0
    node.after[BAD].update(at=node.ended, energy_j=node.after[BAD]["energy_j"] + 300e3)


def one_way(node: RecordedNode, _: Moment) -> None:
    """Let the GPU send at a tenth of the rate."""
    for row in node.samples:
        if row["event"] == "link" and row["part"] == LinkPart.PEER and row["peer"] == BAD:
            row["rate"] *= 0.1


def unlisted_link(node: RecordedNode, _: Moment) -> None:
    """Remove an NVLink from the list."""
    del node.after[BAD]["nvlinks"][5]


def without(event: str, *phases: str, which: slice = EVERY) -> Apply:
    """Record none of these samples in a part of phases; ``which``: but for others of them."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        rows = node.rows(BAD, event, *phases, part=moment.part)[which]
        gone = {id(row) for row in rows}
        node.samples[:] = [row for row in node.samples if id(row) not in gone]

    return apply


def never_read_again(node: RecordedNode, _: Moment) -> None:
    """Let the counters after the run be those before it."""
    node.after[BAD] = dict(node.before[BAD])


def sampled_error(node: RecordedNode, _: Moment) -> None:
    """Have a wrong result in a sample alone."""
    node.rows(BAD, "work", STEADY)[50]["errors"] = 1


def unit_wrong(node: RecordedNode, _: Moment) -> None:
    """Count a wrong result of a unit, and report none."""
    row = {"at": node.spans[STEADY][2], "event": "unit", "gpu": uuid(BAD), "unit": "tensor"}
    node.samples.append({**row, "checks": 10, "wrong": 1, "not_exercised": None})


def stuck_heat(name: str) -> Apply:
    """Vary a temperature by a degree of noise at any power."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for number, row in enumerate(node.rows(BAD, "telemetry")):
            row[name] = 40 + number % 2
        lasting(**{name: 40})(node, ALL)

    return apply


def stuck_warm(phase: str, before: str) -> Apply:
    """Let the temperature of a phase be the last one of the phase before it."""

    def apply(node: RecordedNode, _: Moment) -> None:
        last = node.rows(BAD, "telemetry", before)[-1]["temperature_c"]
        telemetry(phase, temperature_c=last)(node, ALL)

    return apply


def shown(kind: str, reason: str) -> Apply:
    """Let the driver show a fault for seconds."""
    fields = {"fault": kind, "reason": reason}
    return events(("gpu.fault", {**fields, "remedy": "reset it"}), ("gpu.fault_over", fields))


def in_gap(apply: Apply) -> Apply:
    """Do something between two parts of the run."""

    def between(node: RecordedNode, _: Moment) -> None:
        resume(node, {})
        first, last = node.spans[STEADY][1], node.spans[STEADY][3]
        share = (node.spans[MEMORY][3] + 0.27 - first) / (last - first)
        apply(node, Moment(GAP.name, GAP.part, share))

    return between


def lost_at_the_end_of_a_part(node: RecordedNode, _: Moment) -> None:
    """Lose the GPU after the first of two parts."""
    resume(node, {})
    node.counters["resumed"][0]["after"][BAD]["lost"] = "the GPU fell off the bus"


def kernel(*lines: str) -> Apply:
    """Log lines that are no XIDs."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        at = BEGAN + moment.at(node)
        for fault in filter(None, (parse_fault(line, at) for line in lines)):
            row = {"event": "kernel_fault", "gpu": None, "index": None, **vars(fault)}
            node.samples.append(row)

    return apply


def counted_again(node: RecordedNode, _: Moment) -> None:
    """Let the count of corrected errors in the readings begin again at 0."""
    rows = node.rows(BAD, "telemetry", STEADY)
    for number, row in enumerate(rows[: len(rows) // 2]):
        row["ecc_corrected_total"] = number


def links_counted_again(node: RecordedNode, _: Moment) -> None:
    """Let the replays of an NVLink begin again, and reach 3."""
    node.before[BAD]["nvlinks"][3]["replays_total"] = 50
    node.after[BAD]["nvlinks"][3]["replays_total"] = 3


def swapped(node: RecordedNode, _: Moment) -> None:
    """Let two GPUs exchange their PCI addresses."""
    one, other = node.after[:2]
    one["pci_bus_id"], other["pci_bus_id"] = other["pci_bus_id"], one["pci_bus_id"]


def half_pair(node: RecordedNode, _: Moment) -> None:
    """Let the links between two GPUs have half of their rate."""
    for gpu, peer in ((BAD, 3), (3, BAD)):
        for row in node.rows(gpu, "link", LINKS):
            row["rate"] *= 0.5 if row["peer"] == peer else 1.0


def little_energy(node: RecordedNode, _: Moment) -> None:
    """Count a tenth of the energy."""
    begin, end = node.before[BAD], node.after[BAD]
    end["energy_j"] = begin["energy_j"] + (end["energy_j"] - begin["energy_j"]) / 10


def not_listed(node: RecordedNode, _: Moment) -> None:
    """Leave the GPU out of the list after the run."""
    node.after[BAD] = {}


def lost_samples(node: RecordedNode, _: Moment) -> None:
    """Lose events."""
    row = {"at": node.spans[STEADY][2], "event": "log.dropped", "gpu": None, "index": None}
    node.samples.append({**row, "events": 5})


def counters(**values: Any) -> Apply:
    """Change what was read of the host."""

    def apply(node: RecordedNode, _: Moment) -> None:
        node.counters |= values

    return apply


#: Read no kernel's log, and watch NVML's XIDs all the time.
NO_KERNEL_LOG = counters(kernel_log_error="/dev/kmsg cannot be read: Operation not permitted")


def blind_kernel(node: RecordedNode, _: Moment) -> None:
    """Read no kernel's log, and watch NVML's XIDs with a break."""
    NO_KERNEL_LOG(node, ALL)
    for row in node.samples:
        if row["event"] == "xids_watched" and row["gpu"] == uuid(BAD):
            row["last"] = node.spans[STEADY][2]


def absent_everywhere(*names: str) -> Apply:
    """Let counters be missing on all GPUs, and readings of that name, too."""

    def apply(node: RecordedNode, _: Moment) -> None:
        readings = [row for row in node.samples if row["event"] == "telemetry"]
        for row in (*node.before, *node.after, *readings):
            row.update(dict.fromkeys(name for name in names if name in row))

    return apply


def of_model(name: str, links: int) -> Apply:
    """Let all GPUs be of another model, which has so many NVLinks."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in (*node.before, *node.after):
            row["name"], row["nvlinks"] = name, row["nvlinks"][:links]
            row |= {"fabric_state": "not_supported", "fabric_health": "not_supported"}

    return apply


def expected(text: str) -> Apply:
    """Expect something of the node."""

    def apply(node: RecordedNode, _: Moment) -> None:
        node.expectation = {"source": "node.toml", "text": text}

    return apply


def unlisted_gpu(node: RecordedNode, _: Moment) -> None:
    """Have one more GPU on the PCI bus than NVML lists."""
    addresses = [str(row["pci_bus_id"]) for row in node.before]
    node.counters["pci_devices"] = [*addresses, "00000000:7F:00.0"]


def twins(name: str) -> Apply:
    """Give two GPUs one serial number or address."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for rows in (node.before, node.after):
            rows[1][name] = rows[0][name]

    return apply


def state_unread(node: RecordedNode, _: Moment) -> None:
    """Read the state of an NVLink after the run only."""
    node.before[BAD]["nvlinks"][5]["active"] = None


def ended_twice(node: RecordedNode, _: Moment) -> None:
    """Let a phase end with errors, and once more without."""
    row = node.ends_of(BAD, STEADY)
    place = node.events.index(row)
    node.events.insert(place, {**row, "errors": 3})


def reloaded(node: RecordedNode, _: Moment) -> None:
    """Change the driver for all."""
    for row in node.after:
        row["driver"] = "590.10.01"


def during(part: Moment, apply: Apply) -> Apply:
    """Do something at this moment, whatever that of the row is."""
    return lambda node, _: apply(node, part)


def after_three_runs(node: RecordedNode, _: Moment) -> None:
    """Have three healthy runs of the same GPUs before."""
    node.earlier = 3


#: What is read while an operator has locked the clocks.
LOCKED: Row = {
    "reasons": ["applications_clocks_setting"],
    "sm_clock_mhz": 1150,
    "power_w": 560.0,
}
LIMITED = both(
    slower(0.7, STEADY, FP16, power_limit_w=400.0, power_w=395.0), after(power_limit_w=400.0)
)


def limit_for(share: float, *phases: str, limit: float, reads: int = 1) -> Apply:
    """Lower the power limit in some readings of phases, and the rate all the time."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        slower(share, STEADY, FP16)(node, moment)
        for row in node.rows(BAD, "telemetry", *phases)[-reads:]:
            row["power_limit_w"] = limit

    return apply


def all_limited(node: RecordedNode, _: Moment) -> None:
    """Lower the power limit of all GPUs before the run; one is slower than the others."""
    for row in (*node.before, *node.after):
        row["power_limit_w"] = 500.0
    for row in node.samples:
        if row["event"] == "telemetry":
            row.update({"power_limit_w": 500.0, "power_w": min(row["power_w"], 495.0)})
    slower(0.5, STEADY)(node, ALL)


def heat(degrees: int) -> Apply:
    """Let the GPU be hotter under load."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in node.rows(BAD, "telemetry"):
            row["temperature_c"] += degrees

    return apply


def corrected(rate: float) -> Apply:
    """Count corrected errors under load from the moment on."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        rows = node.rows(BAD, "telemetry")
        begin = BEGAN + moment.at(node) if moment is not ALL else rows[0]["at"]
        for row in rows:
            row["ecc_corrected_total"] = int(max(0.0, row["at"] - begin) * rate)
        node.after[BAD]["ecc_corrected_total"] = rows[-1]["ecc_corrected_total"]

    return apply


CYCLES = tuple(
    replace(phase, name=f"{phase.name}-{number}", seconds=seconds)
    for number in range(1, 5)
    for phase, seconds in ((PHASES[1], 60.0), (PHASES[3], 10.0))
)


def cycle(number: int, factor: float, **readings: Any) -> Apply:
    """Slow down one cycle of a soak."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for phase in (f"{STEADY}-{number}", f"{COPY}-{number}"):
            unit = "flops" if kind_of(phase) == STEADY else "bytes"
            slower(factor, phase, unit=unit, **readings)(node, ALL)

    return apply


def add_job(node: RecordedNode) -> None:
    """Let a job have the last GPU for the second half of its memory phase."""
    gpu, (begin, _, _, end) = node.gpus - 1, node.spans[MEMORY]
    at, back = (begin + end) / 2 - BEGAN, end - BEGAN - 1.0
    node.tell(gpu, "gpu.yielding", at, processes=[{"pid": 7, "name": "train"}], evidence="process")
    node.tell(gpu, "burnin.interrupted", at, phase=MEMORY, stretch_s=10.0)
    node.tell(gpu, "stressor.starting", back, pid=77)
    node.tell(gpu, "stressor.ready", back + 0.5, pid=77)
    away = slice(500, 970)
    gone = [
        id(row)
        for event in ("telemetry", "work")
        for row in node.rows(gpu, event, MEMORY, part=away)
    ]
    node.samples[:] = [row for row in node.samples if id(row) not in set(gone)]
