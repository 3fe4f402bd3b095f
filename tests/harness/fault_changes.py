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


def telemetry(*phases: str, **values: Any) -> Apply:
    """Change readings in a part of each phase, or of these."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        for row in node.rows(BAD, "telemetry", *phases, part=moment.part):
            row.update(values)

    return apply


def some(share: int, *phases: str, **values: Any) -> Apply:
    """Change one of so many readings."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in node.rows(BAD, "telemetry", *phases)[::share]:
            row.update(values)

    return apply


def slowed_cycle(node: RecordedNode, _: Moment) -> None:
    """Let the hardware slow a sixth of the readings of one steady phase of four."""
    for row in node.rows(BAD, "telemetry", f"{STEADY}-2")[::6]:
        row["reasons"] = ["hw_thermal_slowdown"]


def slowed_tenth(node: RecordedNode, _: Moment) -> None:
    """Let the driver slow a tenth of the readings of one steady phase of four."""
    rows = node.rows(BAD, "telemetry", f"{STEADY}-2")
    for row in rows[-len(rows) // 10 :]:
        row["reasons"] = ["sw_thermal_slowdown"]


def in_a_row(number: int, *phases: str, **values: Any) -> Apply:
    """Change so many readings in a row."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in node.rows(BAD, "telemetry", *phases)[60 : 60 + number]:
            row.update(values)

    return apply


def once(**values: Any) -> Apply:
    """Change one reading."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        rows = node.rows(BAD, "telemetry", STEADY)
        rows[int(moment.share * (len(rows) - 2)) + 1].update(values)

    return apply


def slower(factor: float, *phases: str, unit: str = "flops", **readings: Any) -> Apply:
    """Scale the rate of a part of phases, and change the readings with it."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        for row in node.rows(BAD, "work", *phases, part=moment.part):
            row[unit] *= factor
        for row in node.rows(BAD, "telemetry", *phases, part=moment.part):
            row.update(readings)

    return apply


def slower_all(node: RecordedNode, _: Moment) -> None:
    """Let all GPUs compute at 80 % of their rate."""
    for row in node.samples:
        if row["event"] == "work":
            row["flops"] *= 0.8


def links(part: LinkPart, factor: float = 1.0, *, often: bool = False, **values: Any) -> Apply:
    """Scale the rates of one part of the test of links; ``often``: but for one in six seconds."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in node.rows(BAD, "link", LINKS):
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


def absent(*names: str) -> Apply:
    """Let counters be missing at both ends."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in (node.before[BAD], node.after[BAD]):
            row.update(dict.fromkeys(names))

    return apply


def given_up(phase: str, why: str) -> Apply:
    """Give up a phase."""

    def apply(node: RecordedNode, _: Moment) -> None:
        node.ends_of(BAD, phase).update(given_up=why, seconds=0.0, longest=0.0, passes=0)

    return apply


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


def no_link_of_one(node: RecordedNode, _: Moment) -> None:
    """Measure no link from one peer."""
    gone = {id(row) for row in node.rows(BAD, "link") if row["peer"] == 1}
    node.samples[:] = [row for row in node.samples if id(row) not in gone]


def half_memory(node: RecordedNode, _: Moment) -> None:
    """Test half of the memory."""
    node.ends_of(BAD, MEMORY)["share"] = 0.5


def no_part(node: RecordedNode, _: Moment) -> None:
    """Record no counters between two parts."""
    resume(node, {})
    del node.counters["resumed"]


def no_share(node: RecordedNode, _: Moment) -> None:
    """Let no pattern say how much of the memory it has covered."""
    node.ends_of(BAD, MEMORY)["share"] = None


def slow_links(node: RecordedNode, _: Moment) -> None:
    """Let all links between GPUs have half of their rate."""
    for row in node.samples:
        if row["event"] == "link" and row["part"] == LinkPart.PEER:
            row["rate"] *= 0.5


def dead_links_but_one(node: RecordedNode, _: Moment) -> None:
    """Let the links of all GPUs but the last to others have no rate."""
    for row in node.samples:
        own = row["event"] == "link" and row["part"] == LinkPart.PEER
        if own and row["gpu"] != uuid(node.gpus - 1):
            row["rate"] = 0.0


def slow_moment(node: RecordedNode, _: Moment) -> None:
    """Let the rate fall for six seconds."""
    for row in node.rows(BAD, "work", STEADY)[60:66]:
        row["flops"] *= 0.01


def slow_most(node: RecordedNode, _: Moment) -> None:
    """Let all GPUs but two compute at half of their rate."""
    for index in range(node.gpus - 2):
        for row in node.rows(index, "work", STEADY, FP16):
            row["flops"] *= 0.5


def slow_but_one(node: RecordedNode, _: Moment) -> None:
    """Let all GPUs but one have half of their rate and bandwidth."""
    for index in range(node.gpus - 1):
        for row in node.rows(index, "work", STEADY, FP16, COPY):
            row.update({"flops": row["flops"] * 0.5, "bytes": row["bytes"] * 0.5})


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


def without(event: str, *phases: str) -> Apply:
    """Record none of these samples in a part of phases."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        gone = {id(row) for row in node.rows(BAD, event, *phases, part=moment.part)}
        node.samples[:] = [row for row in node.samples if id(row) not in gone]

    return apply


def no_work_for(number: int) -> Apply:
    """Record no work of so many seconds in a row of the steady phase."""

    def apply(node: RecordedNode, _: Moment) -> None:
        gone = {id(row) for row in node.rows(BAD, "work", STEADY)[60 : 60 + number]}
        node.samples[:] = [row for row in node.samples if id(row) not in gone]

    return apply


def never_read_again(node: RecordedNode, _: Moment) -> None:
    """Let the counters after the run be those before it."""
    node.after[BAD] = dict(node.before[BAD])


def unchecked_phase(node: RecordedNode, _: Moment) -> None:
    """Check no result of the steady phase."""
    node.ends_of(BAD, STEADY)["checks"] = 0


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
        for row in (node.before[BAD], node.after[BAD]):
            row[name] = 40

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


def uncovered(node: RecordedNode, _: Moment) -> None:
    """Write two of four patterns of the memory test only."""
    node.ends_of(BAD, MEMORY)["covered"] = {"0": 2, "1": 2, "2": 0, "3": 0}


def every_second(node: RecordedNode, _: Moment) -> None:
    """Let the rate fall in every second reading."""
    for row in node.rows(BAD, "work", STEADY)[::2]:
        row["flops"] *= 0.4


def half_fast(node: RecordedNode, _: Moment) -> None:
    """Let half of the GPUs compute at half of their rate."""
    for index in range(node.gpus // 2):
        for row in node.rows(index, "work", STEADY, FP16):
            row["flops"] *= 0.5


def half_pair(node: RecordedNode, _: Moment) -> None:
    """Let the links between two GPUs have half of their rate."""
    for gpu, peer in ((BAD, 3), (3, BAD)):
        for row in node.rows(gpu, "link", LINKS):
            row["rate"] *= 0.5 if row["peer"] == peer else 1.0


def little_energy(node: RecordedNode, _: Moment) -> None:
    """Count a tenth of the energy."""
    begin, end = node.before[BAD], node.after[BAD]
    end["energy_j"] = begin["energy_j"] + (end["energy_j"] - begin["energy_j"]) / 10


def narrow_slot(node: RecordedNode, _: Moment) -> None:
    """Let GPU and slot allow half of the lanes."""
    for row in (node.before[BAD], node.after[BAD]):
        row["pcie_width_maximum"] = 8
    telemetry(pcie_width=8)(node, ALL)


def no_results(node: RecordedNode, _: Moment) -> None:
    """Check nothing."""
    for phase in node.spans:
        node.ends_of(BAD, phase)["checks"] = 0


def not_listed(node: RecordedNode, _: Moment) -> None:
    """Leave the GPU out of the list after the run."""
    node.after[BAD] = {}


def lost_samples(node: RecordedNode, _: Moment) -> None:
    """Lose events."""
    row = {"at": node.spans[STEADY][2], "event": "log.dropped", "gpu": None, "index": None}
    node.samples.append({**row, "events": 5})


def blind_kernel(node: RecordedNode, _: Moment) -> None:
    """Read no kernel's log, and watch NVML's XIDs with a break."""
    node.counters["kernel_log_error"] = "/dev/kmsg cannot be read: Operation not permitted"
    for row in node.samples:
        if row["event"] == "xids_watched" and row["gpu"] == uuid(BAD):
            row["last"] = node.spans[STEADY][2]


def only_nvml(node: RecordedNode, _: Moment) -> None:
    """Read no kernel's log, and watch NVML's XIDs all the time."""
    node.counters["kernel_log_error"] = "/dev/kmsg cannot be read: Operation not permitted"


def gone(node: RecordedNode, _: Moment) -> None:
    """Know of a GPU of earlier runs."""
    node.counters["known"] = {"GPU-gone": "GPU 8, burned in on 2026-11-20"}


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


def virtual(profile: str) -> Apply:
    """Let all GPUs be virtual ones."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in (*node.before, *node.after):
            row["name"] = f"NVIDIA {profile}"

    return apply


def state_unread(node: RecordedNode, _: Moment) -> None:
    """Read the state of an NVLink after the run only."""
    node.before[BAD]["nvlinks"][5]["active"] = None


def ended_twice(node: RecordedNode, _: Moment) -> None:
    """Let a phase end with errors, and once more without."""
    row = node.ends_of(BAD, STEADY)
    place = node.events.index(row)
    node.events.insert(place, {**row, "errors": 3})


def mig(node: RecordedNode, _: Moment) -> None:
    """Divide the GPU."""
    for row in (node.before[BAD], node.after[BAD]):
        row["mig"] = True


def reset(node: RecordedNode, _: Moment) -> None:
    """Let the counters of energy begin again."""
    node.after[BAD]["energy_j"] = 1000.0


def reloaded(node: RecordedNode, _: Moment) -> None:
    """Change the driver for all."""
    for row in node.after:
        row["driver"] = "590.10.01"


def limited(node: RecordedNode, moment: Moment) -> None:
    """Lower the power limit."""
    slower(0.7, STEADY, FP16, power_limit_w=400.0, power_w=395.0)(node, moment)
    node.after[BAD]["power_limit_w"] = 400.0


def limit_for(share: float, *phases: str, limit: float, reads: int = 1) -> Apply:
    """Lower the power limit in some readings of phases, and the rate all the time."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        slower(share, STEADY, FP16)(node, moment)
        for row in node.rows(BAD, "telemetry", *phases)[-reads:]:
            row["power_limit_w"] = limit

    return apply


def raised(node: RecordedNode, moment: Moment) -> None:
    """Raise the power limit; the card is slow."""
    slower(0.82, STEADY, FP16)(node, moment)
    telemetry(power_limit_w=750.0)(node, moment)
    node.before[BAD]["power_limit_w"] = node.after[BAD]["power_limit_w"] = 750.0


def lower_maximum(node: RecordedNode, moment: Moment) -> None:
    """Let the maximum clock be lower, and the rate with it."""
    slower(0.85, STEADY, FP16, sm_clock_mhz=1360)(node, moment)
    node.before[BAD]["sm_clock_maximum_mhz"] = node.after[BAD]["sm_clock_maximum_mhz"] = 1500


def all_limited(node: RecordedNode, _: Moment) -> None:
    """Lower the power limit of all GPUs before the run; one is slower than the others."""
    for row in (*node.before, *node.after):
        row["power_limit_w"] = 500.0
    for row in node.samples:
        if row["event"] == "telemetry":
            row.update({"power_limit_w": 500.0, "power_w": min(row["power_w"], 495.0)})
    slower(0.5, STEADY)(node, ALL)


def locked(node: RecordedNode, moment: Moment) -> None:
    """Lock the clocks."""
    reasons = ["applications_clocks_setting"]
    slower(0.7, STEADY, FP16, power_w=560.0, sm_clock_mhz=1150)(node, moment)
    telemetry(reasons=reasons)(node, ALL)


def no_time_of(*names: str) -> Apply:
    """Remove the counters of throttled time from all GPUs."""

    def apply(node: RecordedNode, _: Moment) -> None:
        for row in (*node.before, *node.after):
            row.update(dict.fromkeys(names))

    return apply


def both(*parts: Apply) -> Apply:
    """Do several things."""

    def apply(node: RecordedNode, moment: Moment) -> None:
        for part in parts:
            part(node, moment)

    return apply


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
