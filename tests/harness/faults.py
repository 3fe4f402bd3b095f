"""The table of faults: what is done to the record of a burn-in, and the verdict that is right.

The right verdict of each kind has a source outside this project where one exists. Rows are kinds at
several moments and in nodes of several sizes; ``docs/reference/faults.md`` is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sentinel.config.plan import Phase
from sentinel.protocol.stressor import LinkPart
from sentinel.protocol.views import ROW_IN_USE, UNCORRECTABLE
from tests.harness.fault_changes import (
    AFTER,
    ALL,
    ALL_BUT_ONE,
    ALL_BUT_TWO,
    BEFORE,
    CYCLES,
    EVERY,
    FIRST,
    GAP,
    LAST,
    LIMITED,
    LOCKED,
    MIDDLE,
    MOMENTS,
    NO_KERNEL_LOG,
    ONE_MOMENT,
    SECOND,
    Apply,
    Moment,
    absent_everywhere,
    add_job,
    after,
    after_three_runs,
    all_limited,
    before,
    blind_kernel,
    both,
    checksums,
    corrected,
    counted_again,
    counters,
    cycle,
    during,
    ended,
    ended_twice,
    events,
    everywhere,
    expected,
    given_up,
    given_up_by_all,
    half_pair,
    heat,
    in_a_row,
    in_gap,
    kernel,
    lasting,
    later,
    limit_for,
    links,
    links_counted_again,
    little_energy,
    lost_at_the_end_of_a_part,
    lost_samples,
    never_read_again,
    no_bridge,
    no_energy,
    no_host_link,
    no_link_of_one,
    no_part,
    not_ended,
    not_listed,
    nvlinks,
    of_model,
    once,
    one_way,
    reloaded,
    sampled_error,
    shown,
    slower,
    standing,
    state_unread,
    stuck_heat,
    stuck_warm,
    swapped,
    telemetry,
    twins,
    unit_wrong,
    unlisted_gpu,
    unlisted_link,
    unread,
    without,
    xid,
)
from tests.harness.recorded_node import (
    A100,
    BEGAN,
    COPY,
    FP16,
    GEFORCE,
    H100,
    LINKS,
    MEMORY,
    PHASES,
    STEADY,
    RecordedNode,
    Row,
)

FAIL, INCOMPLETE, WARN, PASS = "FAIL", "INCOMPLETE", "WARN", "PASS"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault, or a good node that looks like one.

    Attributes:
        group: The heading under which the page lists it.
        text: What is wrong, for the page.
        right: The verdict of the GPU that has it, or of the node where ``of_node``.
        by: What of the reasons names it; empty if there is none.
        source: Why that verdict is right.
        exempt: An excuse, or a reading error: the property of faults names it.
    """

    name: str
    group: str
    text: str
    apply: Apply
    right: str
    by: str = ""
    source: str
    moments: tuple[Moment, ...] = ONE_MOMENT
    sizes: tuple[int, ...] = (2,)
    model: str = H100
    phases: tuple[Phase, ...] = PHASES
    of_node: bool = False
    exempt: bool = False
    #: By the number of GPUs: another verdict, where fewer GPUs prove less.
    others: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row: a kind at a moment in a node of a size, alone or beside a job."""

    kind: Kind
    moment: Moment
    gpus: int
    beside: bool = False

    @property
    def name(self) -> str:
        """A name for people and programs."""
        beside = ", beside a job" if self.beside else ""
        return f"{self.kind.name}, {self.moment.name}, {self.gpus} GPUs{beside}"

    @property
    def right(self) -> str:
        """The right verdict."""
        return dict(self.kind.others).get(self.gpus, self.kind.right)

    def node(self) -> RecordedNode:
        """Record a node that has it."""
        node = RecordedNode(gpus=self.gpus, model=self.kind.model, phases=self.kind.phases)
        if self.beside:
            add_job(node)
        self.kind.apply(node, self.moment)
        return node


_FB = "engineering.fb.com, silent data corruption, 2022: one wrong result is a fault"
_BITS = "same inputs, kernels and model give the same bits"
_XID = "NVIDIA's Xid Catalog"
_ERRORS = "NVIDIA, GPU memory error management; RMA policy"
_NVSENTINEL = "NVIDIA/NVSentinel, runbooks"
_DCGM = "NVIDIA/DCGM 4.6.0, hardware limits and diagnostics"
_FIELD = "a broken card answers with errors (gpustack/runtime#26, NordicHPC/sonar#72)"
_GONE = "NVIDIA's Xid Catalog: 79; facebookresearch/gcm: GpuIsLost on any call fails the GPU"
_FRYER = "huggingface/gpu-fryer: 0.90 of the others"
_VIOLATION = "NVIDIA/DCGM: any violation warns; the share is decided here"
_OWN = "decided here: no limit of others is published"
_NHC = "Azure/azurehpc-health-checks"

MISMATCH = ("stressor.mismatch", {"errors": 1, "checks": 100})
FINDING = {"number": 1, "kind": "transient", "workload": "memtest", "dtype": None, "count": 1}
CUDA_ECC = "AcceleratorError: CUDA error: uncorrectable ECC error encountered"
LOST = "the GPU fell off the bus or is otherwise lost; see `dmesg` for its XID"
HANG = ("stressor.failed", {"kind": "hang", "reason": "no progress for 30 s"})
ECC = ("ecc_corrected_total", "ecc_uncorrected_total")
LIFETIME = ("ecc_corrected_lifetime_total", "ecc_uncorrected_lifetime_total")
REMAPS = ("remapped_uncorrected_total", "remap_pending", "remap_failed")
TIMES = (
    *("hardware_thermal_throttled_s", "software_thermal_throttled_s", "thermal_throttled_s"),
    *("power_brake_throttled_s", "power_throttled_s"),
)
NO_TIMES = dict.fromkeys(TIMES)
TENTH = slice(None, None, 10)
#: The driver slows the last tenth of one steady phase of four.
SLOWED_TENTH = telemetry(f"{STEADY}-2", which=slice(-8, None), reasons=["sw_thermal_slowdown"])
SIZES = (1, 2, 4, 8)
ENDS = (BEFORE, AFTER)


def _kind(
    group: str, name: str, text: str, apply: Apply, right: str, by: str = "", **more: Any
) -> Kind:
    return Kind(name=name, group=group, text=text, apply=apply, right=right, by=by, **more)


def _reading(name: str, value: float) -> Row:
    return {name: value}


# fmt: off
# A row is read at once.


def _results() -> Iterator[Kind]:
    kind = partial(_kind, "Results")
    yield kind("wrong-result", "one wrong result", events(MISMATCH), FAIL, "results.wrong",
               source=_FB, moments=MOMENTS, sizes=(1, 8))
    yield kind("finding-memory", "a word of the memory that changed",
               events(("stressor.finding", {**FINDING, "place": "memory", "detail": "bit 3"})),
               FAIL, "results.finding", source=_FB, moments=MOMENTS, sizes=(1, 4))
    yield kind("checksum", "a golden checksum that no other GPU computes",
               checksums("0x2", "0x1", None), FAIL, "golden.peers", source=_BITS, sizes=(4, 8))
    yield kind("record-wrong", "a stored checksum that most GPUs contradict",
               checksums("0x1", "0x1", "0x9"), WARN, "golden.stored", source=_BITS, sizes=(4, 8),
               exempt=True)
    yield kind("record-alone", "a stored checksum that the only GPU contradicts",
               checksums("0x1", "0x1", "0x9"), FAIL, "golden.stored", source=_BITS, sizes=(1,))
    yield kind("no-results", "no result was checked", ended(checks=0), INCOMPLETE, "no result",
               source=_OWN, sizes=(1, 2))
    yield kind("unit-wrong", "a wrong result that the count of a unit has alone", unit_wrong, FAIL,
               "results.wrong", source=_FB)
    yield kind("steady-unchecked", "no result of the steady phase was checked", ended(STEADY,
               checks=0), INCOMPLETE, "checked nothing", source=_OWN)
    yield kind("ended-twice", "a wrong result that only the first of two ends of a phase has",
               ended_twice, FAIL, "results.wrong", source=_FB)
    yield kind("sampled-error", "a wrong result that a sample has alone", sampled_error, FAIL,
               "results.wrong", source=_FB)
    yield kind("link-data", "wrong bytes over a link", links(LinkPart.TO_DEVICE, wrong=8), FAIL,
               "links.data", source=_FB, sizes=(1, 2))


def _loss_and_hangs() -> Iterator[Kind]:
    kind = partial(_kind, "Loss and hangs")
    yield kind("lost", "NVML calls it lost for seconds, and it comes back",
               events(("gpu.unknown", {"reason": LOST, "lost": True})), FAIL, "gpu.lost",
               source=_GONE, moments=MOMENTS, sizes=(1, 8))
    yield kind("lost-and-unsaid", "a fault says that it was lost, and no reading does",
               shown("lost", f"the driver has lost it: {LOST}"), FAIL, "gpu.lost", source=_GONE)
    yield kind("not-listed", "it is not listed any more after the run", not_listed, FAIL,
               "gpu.lost", source=_GONE, moments=(AFTER,), sizes=(2, 8))
    yield kind("lost-before", "it is lost when the run begins", standing(lost=LOST), FAIL,
               "gpu.lost", source=_GONE, moments=ENDS)
    yield kind("unanswered", "one reading in the run was not answered in time, and no more",
               events(("gpu.unknown", {"reason": "the call took 6 s", "lost": False})), PASS,
               source="NVIDIA/NVSentinel#1748: calls are slow under load; it is unread, not lost",
               exempt=True)
    yield kind("unanswered-often", "forty readings were not answered in time", events(*(
        ("gpu.unknown", {"reason": "the call took 6 s", "lost": False}) for _ in range(40))), WARN,
        "gpu.hang", source=_OWN)
    yield kind("hang", "a stressor makes no progress for 30 s, twice", events(HANG, HANG), FAIL,
               "gpu.hang", source=_OWN, moments=MOMENTS)
    yield kind("hang-once", "a stressor makes no progress for 30 s", events(HANG), WARN,
               "gpu.hang", source=_OWN, moments=(MIDDLE,))
    yield kind("lost-in-a-gap", "it is lost after the first of two parts, and comes back",
               lost_at_the_end_of_a_part, FAIL, "gpu.lost", source=_GONE, moments=(GAP,))
    yield kind("crash-ecc", "a stressor fails once: CUDA names an uncorrectable ECC error", events(
        ("stressor.failed", {"kind": "crash", "reason": CUDA_ECC})), FAIL, "stressor.failures",
        source="CUDA: cudaErrorECCUncorrectable", sizes=(1, 2), moments=(FIRST, LAST))
    yield kind("crash-one-format", "products in fp16 crash on it and on no other",
               given_up(FP16, "its stressors failed 3 times"), FAIL, "phase.given_up",
               source="pytorch/torchtitan#951: NaN on one of 256 GPUs", sizes=(2, 4, 8),
               others=((2, WARN),))
    yield kind("crash-all", "products in fp16 crash on all GPUs", both(*(events(
        ("stressor.failed", {"kind": "crash", "reason": "SIGSEGV"})) for _ in range(3)),
        given_up_by_all), WARN, "stressor.failures", source=_OWN, sizes=(1, 8))
    yield kind("crash-mandatory", "the memory test crashes on it",
               given_up(MEMORY, "its stressors failed 3 times"), INCOMPLETE, "memory", source=_OWN,
               sizes=(1,))


def _memory() -> Iterator[Kind]:
    kind = partial(_kind, "Memory")
    for name, text, values in (
        ("uncorrectable", "an uncorrectable error", {"ecc_uncorrected_total": 1}),
        ("uncorrectable-lifetime", "an uncorrectable error of the card's life",
         {"ecc_uncorrected_lifetime_total": 1}),
        ("sram-uncorrectable", "an uncorrectable SRAM error",
         {"sram_uncorrected_lifetime_total": 1}),
        ("row-uncorrectable", "a row remapped after an uncorrectable error",
         {"remapped_uncorrected_total": 1}),
    ):  # fmt: skip
        kept = "lifetime" in next(iter(values)) or "remapped" in next(iter(values))
        yield kind(name, text, standing(**values), FAIL, "_new", source=_ERRORS,
                   moments=(AFTER, GAP) if kept else (AFTER,))
    for name, text, flags, moments in (
        ("remap-failed", "a row could not be remapped", {"remap_failed": True}, (*ENDS, GAP)),
        ("sram-threshold", "the SRAM threshold is exceeded", {"sram_threshold_exceeded": True},
         (*ENDS, GAP)),
        ("unrepairable", "memory is unrepairable", {"memory_unrepairable": True}, ENDS),
        ("recovery-reset", "the driver wants a reset", {"recovery_action": "gpu_reset"},
         (*ENDS, GAP)),
        ("recovery-reboot", "the driver wants a reboot", {"recovery_action": "node_reboot"}, ENDS),
    ):  # fmt: skip
        by = "recovery.action" if "recovery" in name else "memory."
        yield kind(name, text, standing(**flags), FAIL, by, source=_ERRORS, moments=moments)
    for name, text, pending in (
        ("remap-pending", "a remap waits for a reset", {"remap_pending": True}),
        ("channel-repair", "a repair of a channel waits", {"channel_repair_pending": True}),
        ("tpc-repair", "a repair of multiprocessors waits", {"tpc_repair_pending": True}),
    ):
        yield kind(name, text, standing(**pending), FAIL, "memory.repair_new", source=_ERRORS,
                   moments=(AFTER,))
        yield kind(f"{name}-gap", f"{text}, between two parts only", standing(**pending), FAIL,
                   "memory.repair_new", source=_ERRORS, moments=(GAP,))
        yield kind(f"{name}-old", f"{text} since before the run", standing(**pending), WARN,
                   "memory.repair_pending", source=_ERRORS, moments=(BEFORE,))
    yield kind("row-corrected", "a row remapped after correctable errors",
               after(remapped_corrected_total=1), WARN, "memory.remapped_corrected_new",
               source=_ERRORS, moments=(AFTER,))
    for cause, right in (("uncorrected", FAIL), ("corrected", WARN)):
        name = f"retired_{cause}_total"
        yield kind(f"retired-{cause}", f"a page retired after {cause} errors", both(
            lasting(**{name: 0}), standing(**{name: 1})), right,
            f"memory.retired_{cause}_new", source=f"{_XID}: 63", moments=(AFTER,), model=A100)
    yield kind("banks", "banks without spare rows", after(remap_banks_none=1), WARN,
               "memory.bank_headroom", source=_ERRORS, moments=(AFTER,))
    for name, text, shows in (
        ("recovery-withdrawn", "the driver wants a reset for seconds, and then no more",
         shown("recovery", "the driver demands a recovery: gpu reset")),
        ("uncorrectable-withdrawn", "an uncorrectable error is counted for seconds only",
         shown("uncorrectable", UNCORRECTABLE.format(1))),
    ):  # fmt: skip
        yield kind(name, text, shows, FAIL, source=_ERRORS, moments=MOMENTS, sizes=(1, 2))
    yield kind("pending-and-withdrawn", "a remap waits since before the run; the driver wants a "
               "reset for seconds", both(lasting(remap_pending=True),
                shown("recovery", ROW_IN_USE), shown("recovery", "the driver demands a recovery")),
               FAIL, "recovery.action", source=_ERRORS)
    yield kind("known-again", "a remap and uncorrectable errors are known before the run, and "
               "once could not be read", both(
                lasting(remap_pending=True, ecc_uncorrected_total=2), shown("recovery",
                ROW_IN_USE), shown(
                    "uncorrectable", UNCORRECTABLE.format(2))), WARN, "memory.repair_pending",
               source=_ERRORS)
    yield kind("corrected-again", "its count of corrected errors began again in the run",
               counted_again, INCOMPLETE, "gpu.reset", source=_ERRORS)
    yield kind("uncorrectable-old", "an uncorrectable error since the driver was loaded",
               both(standing(ecc_uncorrected_total=1), after(ecc_uncorrected_total=1)), WARN,
               "ecc.uncorrected", source=_ERRORS, moments=(BEFORE,))
    yield kind("corrected-flood", "5,000 corrected errors a second under load", corrected(5000),
               FAIL, "ecc.corrected_load", source="NVIDIA/NVSentinel#1748, NVIDIA/DCGM#313",
               moments=(FIRST, MIDDLE), sizes=(1, 8))
    for name in ("ecc", "sram"):
        yield kind(f"corrected-{name}-lifetime",
                   f"10,000 corrected errors in the card's own count of {name.upper()}",
                   standing(**{f"{name}_corrected_lifetime_total": 10_000}), WARN,
                   "ecc.corrected_lifetime_new", source=_DCGM, moments=(AFTER, GAP))
    yield kind("corrected-some", "a corrected error every five seconds", corrected(0.2), WARN,
               "ecc.corrected", source=_DCGM)


def _xids() -> Iterator[Kind]:
    kind = partial(_kind, "XIDs")
    for number, text in (
        (48, "double-bit error"), (64, "a row could not be remapped"), (74, "NVLink error"),
        (79, "fallen off the bus"), (95, "uncontained error"), (119, "GSP does not answer"),
    ):  # fmt: skip
        yield kind(f"xid-{number}", f"XID {number}, {text}", xid(number), FAIL, "xid", source=_XID,
                   moments=MOMENTS if number in {48, 79} else (MIDDLE,))
    yield kind("xid-action", "XID 154: the driver wants a reset",
               xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
               FAIL, "xid", source=_XID, moments=MOMENTS)
    yield kind("xid-gap", "XID 48 between two parts of the run", in_gap(xid(48)), FAIL, "xid",
               source=_XID, moments=(GAP,))
    yield kind("xid-load", "XID 92, many corrected errors, under its load", xid(92), FAIL, "xid",
               source=_XID, moments=(MIDDLE,))
    for word, right in (("Fatal", FAIL), ("Nonfatal", WARN)):
        yield kind(f"xid-145-{word}", f"XID 145, {word.lower()} by the word in its line",
                   xid(145, f"RLW_REMAP {word} XC0 i0 Link 00"), right, "xid", source=_XID,
                   moments=(MIDDLE,))
    yield kind("xid-half-read", "XID 63, and neither source of XIDs is complete",
               both(xid(63), blind_kernel), INCOMPLETE, "xid",
               source="NVIDIA/NVSentinel#1417: a log that rotates loses XIDs")
    for name, text, line, source in (
        ("watchdog", "the driver's watchdog has no answer of a GPU, and no XID comes",
         "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
         "NVIDIA, open-gpu-kernel-modules, kernel_rc_watchdog.c"),
        ("retrained", "the kernel trains its PCIe link again, at 2.5 GT/s",
         "pcieport 0000:00:01.0: broken device, retraining non-functional downstream link",
         "Linux, drivers/pci/quirks.c"),
    ):  # fmt: skip
        yield kind(name, text, kernel(line), WARN, "kernel_faults", source=source,
                   moments=(MIDDLE,), of_node=True)
    yield kind("switch-gap", "a fatal SXid of an NVSwitch between two parts of the run", in_gap(
        kernel("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")),
        FAIL, source="NVIDIA, open-gpu-kernel-modules: the word in the line", moments=(GAP,),
        of_node=True)
    yield kind("xid-94", "XID 94, a contained error", xid(94), FAIL, "xid", source=_XID,
               moments=(MIDDLE,))
    yield kind("xid-application", "XID 13 of another process, once", xid(13, pid=9), PASS,
               source=_XID, moments=(MIDDLE,), exempt=True)


def _what_could_not_be_read() -> Iterator[Kind]:
    kind = partial(_kind, "What could not be read")
    for name, text, names in (
        ("ecc", "the counters of ECC", ECC),
        ("lifetime", "the counters of the card's life", LIFETIME),
        ("rows", "remapped rows", REMAPS),
        ("recovery", "the recovery action", ("recovery_action",)),
        ("nvlinks", "the NVLinks", ("nvlinks",)),
        ("replays", "replays on PCIe", ("pcie_replays_total",)),
        ("sram", "the SRAM threshold", ("sram_threshold_exceeded",)),
    ):
        yield kind(f"unread-{name}", f"{text} fail to be read", unread(*names), INCOMPLETE,
                   "not judged", source=_FIELD, moments=ENDS)
        yield kind(f"once-{name}", f"{text} are answered before the run, and not after it",
                   unread(*names, why=None), INCOMPLETE, "not judged", source=_FIELD,
                   moments=(AFTER,))
    yield kind("twin", "counters of ECC that only its twin has", lasting(**dict.fromkeys((*ECC,
               *LIFETIME))), INCOMPLETE, "not judged", source=_FIELD, sizes=(2, 8))
    yield kind("no-xids", "neither source of XIDs is complete", blind_kernel, INCOMPLETE, "xid",
               source="NVIDIA/NVSentinel#1417: a log that rotates loses XIDs")
    yield kind("only-nvml", "only NVML's XIDs were watched, all the time", NO_KERNEL_LOG, PASS,
               source=_OWN, exempt=True)
    yield kind("lost-events", "events were lost", lost_samples, INCOMPLETE, "recorded",
               source=_OWN, sizes=(1, 2))
    yield kind("power-unread", "its power is not known", telemetry(power_w=None), INCOMPLETE,
               "load.power", source=_FIELD)
    yield kind("power-zero", "its power reads 0 in most readings", telemetry(power_w=0.0),
               INCOMPLETE, "load.power", source=_FIELD, sizes=(2, 4))
    yield kind("width-zero", "the width of its link reads 0", telemetry(pcie_width=0), INCOMPLETE,
               "pcie.width", source=_FIELD)
    yield kind("width-unread", "the width of its link is read in a part of the time only",
               telemetry(pcie_width=None), INCOMPLETE, "load.recorded", source=_FIELD,
               moments=(Moment("last", slice(300, 1000), 0.75),))
    yield kind("reasons-unread", "what slows its clocks is not read under load, nor counted",
               both(telemetry(reasons=None), lasting(**NO_TIMES)), INCOMPLETE, "throttling",
               source=_FIELD)
    yield kind("no-work", "no work of the steady phase was recorded", without("work", STEADY),
               INCOMPLETE, "load.recorded", source=_OWN, moments=(ALL,), sizes=(1, 8))
    yield kind("no-readings", "no readings of half of the steady phase", without(
        "telemetry", STEADY), INCOMPLETE, "load.recorded", source=_OWN,
        moments=(Moment("last", slice(500, 1000), 0.75),), sizes=(1, 8))
    for phase in (FP16, COPY):
        yield kind(f"no-work-{phase}", f"no work of the phase {phase} was recorded",
                   without("work", phase), INCOMPLETE, "load.recorded", source=_OWN, sizes=(1, 8))
    for name, values in (("power", {"power_w": None}), ("temperature", {"temperature_c": None})):
        yield kind(f"gaps-{name}", f"no {name} in every second reading", telemetry(which=SECOND,
               **values), INCOMPLETE, "load.recorded", source=_FIELD)
    yield kind("no-links", "no link was measured, and the phase is done", without("link", LINKS),
               INCOMPLETE, "load.recorded", source=_OWN, sizes=(1, 2, 8))
    yield kind("no-link-of-one", "the link from one peer was not measured", no_link_of_one,
               INCOMPLETE, "load.recorded", source=_OWN, sizes=(2, 8))
    yield kind("no-host-link", "no copy to or from the host was recorded of any GPU",
               no_host_link, INCOMPLETE, "load.recorded", source=_OWN, sizes=(1, 2, 8))
    yield kind("power-impossible", "its power reads 4 MW", telemetry(power_w=4294967.0),
               INCOMPLETE, "load.power", source=_FIELD)
    for name, text in (("power_w", "power"), ("temperature_c", "temperature"),
                       ("memory_clock_mhz", "memory clock")):  # fmt: skip
        yield kind(f"nan-{text}", f"its {text} is no number in any reading",
                   telemetry(**_reading(name, float("nan"))), INCOMPLETE, "load", source=_FIELD)
    yield kind("nan-rate", "its rate is no number", slower(float("nan"), STEADY), INCOMPLETE,
               "missing", source=_FIELD, sizes=(1, 8))
    for name, text, phases in (
        ("temperature_c", "temperature", (STEADY,)), ("memory_clock_mhz", "memory clock", (COPY,)),
        ("pcie_width", "link's width", (MEMORY, COPY)),
    ):  # fmt: skip
        yield kind(f"zero-{text}", f"its {text} reads 0 in {' and '.join(phases)}",
                   telemetry(*phases, **_reading(name, 0)), INCOMPLETE, "load.recorded",
                   source=_FIELD)
    yield kind("zero-maximum", "its link has x4 and a maximum of 0 lanes", both(
        lasting(pcie_width_maximum=0), telemetry(pcie_width=4)),
        INCOMPLETE, "pcie.width", source=_FIELD, sizes=(1,))
    yield kind("work-gap", "no work was recorded for 30 s of the steady phase", without("work",
               STEADY, which=in_a_row(30)), INCOMPLETE, "load.recorded", source=_OWN, sizes=(1, 8))
    yield kind("energy", "its energy counter stands still at 690 W", no_energy, INCOMPLETE,
               "load.power", source=_FIELD)
    yield kind("no-part", "no counters were recorded between two parts", no_part, INCOMPLETE,
               "between two parts", source=_OWN, moments=(GAP,))
    yield kind("not-ended", "the record does not say that its run has ended", not_ended,
               INCOMPLETE, "ended", source=_OWN, sizes=(1, 2))
    yield kind("gap", "no readings for 40 s of the steady phase", without("telemetry", STEADY),
               INCOMPLETE, "load.recorded", source=_OWN, moments=(Moment("middle", slice(
                   400, 700), 0.5),))
    yield kind("memory-heat-zero", "the temperature of its memory reads 0", both(telemetry(
        memory_temperature_c=0), lasting(memory_temperature_c=0)),
        INCOMPLETE, "temperature.memory", source=_FIELD)
    yield kind("memory-heat-none", "the temperature of its memory is known on its twin only", both(
        telemetry(memory_temperature_c=None), lasting(memory_temperature_c=None)), INCOMPLETE,
        "temperature.memory", source=_FIELD)
    for model, name in ((H100, "h100"), (A100, "a100")):
        yield kind(f"memory-heat-{name}", f"no temperature of the memory of any {name.upper()}",
                   absent_everywhere("memory_temperature_c", "memory_maximum_c"), INCOMPLETE,
                   "temperature.memory", source="NVML: field 82, MEMORY_TEMP", model=model,
                   sizes=(1, 8))
    yield kind("power-frozen", "its power is the same to the milliwatt in each reading",
               telemetry(power_w=690.123), INCOMPLETE, "load.power", source=_OWN, sizes=(1, 8))
    yield kind("power-frozen-steady", "its power is the same to the milliwatt in steady",
               telemetry(STEADY, power_w=690.123), INCOMPLETE, "load.power", source=_OWN,
               sizes=(1, 8))
    yield kind("half-memory", "half of the memory was tested", ended(MEMORY, share=0.5), "N/A",
               "memory.covered", source=_OWN, sizes=(1, 8))
    yield kind("no-share", "no pattern has covered the memory", ended(MEMORY, share=None),
               INCOMPLETE, "memory.covered", source=_OWN)
    yield kind("not-read-again", "its counters after the run are those before it",
               never_read_again, INCOMPLETE, "had ended", source=_OWN, moments=(AFTER,))
    for name, text in (("temperature_c", "a temperature"),
                       ("memory_temperature_c", "a temperature of its memory")):
        yield kind(f"stuck-{name}", f"{text} of 40 or 41 C at any power", stuck_heat(name),
                   INCOMPLETE, "temperature.sensor", source=_FIELD, sizes=(2, 8))
    yield kind("memory-clock-none", "its memory clock is not known", both(
        telemetry(memory_clock_mhz=None), lasting(memory_clock_mhz=None)), INCOMPLETE,
               "memory clock", source=_FIELD)
    yield kind("memory-clock-maximum-zero", "the maximum of its memory clock reads 0", lasting(
        memory_clock_maximum_mhz=0), INCOMPLETE, "memory clock", source=_FIELD, sizes=(1,))
    yield kind("spikes", "95 C in every third reading", telemetry(STEADY, which=slice(None, None,
               3), temperature_c=95), FAIL, "temperature.gpu",
               source="NVML: the card's own maximum", sizes=(1,))
    for name, value in (("none", None), ("zero", 0), ("constant", 25), ("127", 127), ("255", 255)):
        readings: dict[str, Any] = {"temperature_c": value}
        yield kind(f"sensor-{name}", f"its temperature reads {value} at any power",
                   both(telemetry(**readings), lasting(**readings)), INCOMPLETE, "temperature",
                   source=_FIELD)
    yield kind("sensor-after", "a reading of 255 C after the run", after(temperature_c=255), PASS,
               source=_OWN, moments=(AFTER,), exempt=True)
    yield kind("no-bytes", "no byte over its links was compared", both(*(
        links(part, checked=0) for part in LinkPart)), INCOMPLETE, "load.recorded", source=_OWN,
        sizes=(1, 2))
    yield kind("sensor-spike", "one reading of 255 C between two of 63", once(temperature_c=255),
               PASS, source=_OWN, moments=MOMENTS, exempt=True)


def _what_was_read_in_part() -> Iterator[Kind]:
    kind = partial(_kind, "What could not be read")
    for number in (2, 4):
        yield kind(f"sensor-frozen-{number}", f"its temperature is frozen in cycle {number}",
                   stuck_warm(f"{STEADY}-{number}", f"{COPY}-{number - 1}"), INCOMPLETE,
                   "temperature.sensor", source=_FIELD, phases=CYCLES, sizes=(1, 8))
    yield kind("sensor-frozen", "its temperature is frozen in the steady phase",
               stuck_warm(STEADY, MEMORY), INCOMPLETE, "temperature.sensor", source=_FIELD,
               sizes=(1, 8))
    yield kind("little-energy", "its energy counter grows by a tenth of its power", little_energy,
               INCOMPLETE, "load.power", source=_FIELD, sizes=(1, 2))
    yield kind("zero-often", "its temperature reads 0 in every second reading", telemetry(
        STEADY, which=SECOND, temperature_c=0), INCOMPLETE, "load.recorded", source=_FIELD,
               sizes=(1, 2))
    yield kind("255-often", "its temperature reads 255 C in every second reading", telemetry(
        STEADY, which=SECOND, temperature_c=255), INCOMPLETE, "temperature.sensor", source=_FIELD,
               sizes=(1, 2))
    yield kind("vbios-once", "its VBIOS is not read after the run", unread("vbios", why=None),
               INCOMPLETE, "gpu.identity", source=_FIELD, moments=(AFTER,))
    yield kind("warned-and-unread", "a remap waits since before the run, and is not read after it",
               both(before(remap_pending=True), unread("remap_pending")), INCOMPLETE,
               "memory.repair_pending", source=_FIELD, moments=(AFTER,))
    yield kind("corrected-and-unread", "10,000 corrected errors, and those of SRAM are not read",
               both(after(ecc_corrected_lifetime_total=10_000), unread(
                   "sram_corrected_lifetime_total")), INCOMPLETE, "ecc.corrected_lifetime_new",
               source=_FIELD, moments=(AFTER,))
    yield kind("uncovered", "two of four patterns of the memory test were not written",
               ended(MEMORY, covered={"0": 2, "1": 2, "2": 0, "3": 0}), INCOMPLETE, "passes",
               source=_OWN, sizes=(1, 2))


def _rates() -> Iterator[Kind]:
    kind = partial(_kind, "Rates")
    slow: Row = {"sm_clock_mhz": 345, "power_w": 160.0, "temperature_c": 42, "reasons": []}
    yield kind("stuck-clock", "a fifth of the rate at 160 W", slower(0.2, STEADY, FP16, **slow),
               FAIL, "rate.", source=_FRYER,
               sizes=SIZES)
    yield kind("slow-80", "80 % of the rate of its peers", slower(0.8, STEADY, FP16), FAIL,
               "rate.peers", source=_FRYER, sizes=(4, 8))
    yield kind("slow-91", "91.3 % of the rate of its peers", slower(0.913, STEADY, FP16), WARN,
               "rate.peers", source=_OWN, sizes=(8,))
    yield kind("slow-half", "half the rate of the other one, without a reference",
               slower(0.5, STEADY), WARN, "rate.peers", source=_OWN, sizes=(2, 3), model=A100)
    yield kind("slow-part", "30 % of the rate in a third of the phase", slower(0.3, STEADY), FAIL,
               "rate.worst", source=_OWN, moments=MOMENTS, sizes=(1, 8))
    yield kind("slow-moment", "1 % of the rate for six seconds",
               slower(0.01, STEADY, which=in_a_row(6)), WARN, "rate.worst", source=_OWN, sizes=(1,
               8))
    yield kind("few-checks", "a tenth of the checks of its peers",
               slower(0.1, unit="checks"), FAIL, "work.peers", source=_OWN, sizes=(8,))
    yield kind("slow-format", "half the rate in fp16", slower(0.5, FP16), FAIL, "rate.peers",
               source=_FRYER, sizes=(4, 8))
    yield kind("slow-copy", "83 % of the bandwidth of its peers", slower(0.83, COPY, unit="bytes"),
               FAIL, "bandwidth.peers", source=_OWN, sizes=(4, 8))
    yield kind("slow-memtest", "a fifth of the bandwidth of its peers in the memory test",
               slower(0.2, MEMORY, unit="bytes"), FAIL, "work.peers", source=_OWN, sizes=(2, 8),
               others=((2, WARN),))
    yield kind("few-iterations", "a fifth of the iterations of its peers",
               slower(0.2, MEMORY, unit="iterations"), FAIL, "work.peers", source=_OWN, sizes=(8,))
    yield kind("slow-most", "half the rate on all GPUs but two, without a reference",
               slower(0.5, STEADY, FP16, gpus=ALL_BUT_TWO), FAIL, "rate.peers", source=_FRYER,
               sizes=(8,), model=A100)
    yield kind("slow-two", "half the rate on two of four GPUs, without a reference",
               slower(0.5, STEADY, FP16, gpus=slice(2)), FAIL, "rate.peers", source=_FRYER,
               sizes=(4,), model=A100)
    yield kind("every-second", "40 % of the rate in every second reading",
               slower(0.4, STEADY, which=SECOND), FAIL, "rate.", source=_OWN, sizes=(1, 8))
    yield kind("slow-but-one", "half the rate on all GPUs but one, without a reference",
               both(slower(0.5, STEADY, FP16, COPY, gpus=ALL_BUT_ONE),
                    slower(0.5, COPY, unit="bytes", gpus=ALL_BUT_ONE)), WARN, "bandwidth.peers",
                    source=_OWN, sizes=(4, 8), model=A100)
    yield kind("later", "half the rate, at another time than all its peers", later, WARN,
               "rate.peers", source=_OWN, sizes=(2, 8), model=A100)
    yield kind("slow-copy-95", "95 % of the bandwidth of its peers",
               slower(0.95, COPY, unit="bytes"), WARN, "bandwidth.peers", source=_OWN, sizes=(8,))
    for number in (1, 2, 4):
        yield kind(f"cycle-{number}", f"cycle {number} of four at half of everything",
                   cycle(number, 0.5, power_w=300.0), FAIL, "rate.", source=_OWN, sizes=(1, 8),
                   phases=CYCLES)
    yield kind("beyond-limit", "a fifth of the rate at a limit of 650 of 700 W", both(
        LIMITED, slower(0.2, STEADY, FP16, power_limit_w=650.0, power_w=640.0),
        after(power_limit_w=650.0)), FAIL, "rate.", source=_OWN, sizes=(8,))
    yield kind("limit-once", "40 % of the rate, and a power limit of 200 W in one reading",
               limit_for(0.4, STEADY, limit=200.0), FAIL, "rate.", source=_OWN, sizes=(1, 8))
    yield kind("limit-later", "40 % of the rate, and a power limit of 200 W after it",
               limit_for(0.4, LINKS, limit=200.0, reads=12), FAIL, "rate.", source=_OWN,
               sizes=(8,))
    yield kind("limit-unused", "half of the rate at 160 W, and a power limit of 400 W", both(
        LIMITED, slower(5 / 7, STEADY, FP16, power_w=160.0)), FAIL, "rate.", source=_OWN,
        sizes=(8,))
    yield kind("limit-small", "80 % of the rate, and 98 % of the power limit", both(
        slower(0.8, STEADY, FP16, power_limit_w=686.0, power_w=680.0), after(power_limit_w=686.0)),
        FAIL, "rate.", source=_OWN, sizes=(8,))
    yield kind("limit-raised", "82 % of the rate of its peers, and a higher power limit", both(
        slower(0.82, STEADY, FP16), telemetry(power_limit_w=750.0), lasting(power_limit_w=750.0)),
               FAIL, "rate.peers", source=_FRYER, sizes=(8,), model=A100)
    yield kind("maximum-clock", "85 % of the rate of its peers, and a lower maximum clock",
               both(slower(0.85, STEADY, FP16, sm_clock_mhz=1360),
                    lasting(sm_clock_maximum_mhz=1500)), FAIL, "rate.peers", source=_FRYER,
                    sizes=(8,), model=A100)
    yield kind("limit-format", "a fifth of the rate in fp16, at a limit of 650 of 700 W there",
               slower(0.2, FP16, power_limit_w=650.0, power_w=640.0), FAIL, "rate.peers",
               source=_OWN, sizes=(8,))
    yield kind("locked-elsewhere", "30 % of the rate in a third of the time, and locked clocks in "
               "another", both(during(LAST, slower(0.3, STEADY)), during(MIDDLE, slower(
                   0.7, STEADY, **LOCKED))), FAIL, "rate.worst", source=_OWN, sizes=(1, 8))
    yield kind("locked-mostly", "70 % of the rate, and locked clocks in 60 % of the time", both(
        slower(0.7, STEADY), telemetry(STEADY, which=slice(-86, None), **LOCKED)), FAIL,
        "rate.worst", source=_OWN, sizes=(8,))
    yield kind("slower-format", "70 % of the rate of three runs before in fp16", both(
        after_three_runs, slower(0.7, FP16)), FAIL, "rate.history", source="SuperBench: 5 %",
        sizes=(1,), model=A100)
    yield kind("slower-copy", "70 % of the bandwidth of three runs before", both(
        after_three_runs, slower(0.7, COPY, unit="bytes")), WARN, "bandwidth.history",
        source=_OWN, sizes=(1,), model=A100)
    yield kind("slow-all", "80 % of the reference on all GPUs", slower(0.8, gpus=EVERY), WARN,
               "rate.reference", source=_OWN, sizes=(2, 8))
    yield kind("slow-limited", "half the rate of seven peers with the same lowered limit",
               all_limited, FAIL, "rate.peers", source=_FRYER, sizes=(8,))


def _clocks_power_and_heat() -> Iterator[Kind]:
    kind = partial(_kind, "Clocks, power and heat")
    for name, reason in (
        ("slowdown", "hw_slowdown"), ("thermal", "hw_thermal_slowdown"),
        ("brake", "hw_power_brake_slowdown"),
    ):  # fmt: skip
        yield kind(f"hw-{name}", f"{reason} in every reading", telemetry(reasons=[reason]), FAIL,
                   "clocks.hardware_slowdown", source=_NVSENTINEL, sizes=(1, 8))
        yield kind(f"hw-{name}-10", f"{reason} in one of ten readings", telemetry(
            which=TENTH, reasons=[reason]),
                   FAIL, "clocks.hardware_slowdown", source=_NVSENTINEL)
    yield kind("hw-thermal-once", "hw_thermal_slowdown in one reading",
               once(reasons=["hw_thermal_slowdown"]), WARN, "clocks.hardware_slowdown",
               source="Azure/cyclecloud-healthagent: mask 0xE8", moments=(MIDDLE,))
    yield kind("hw-thermal-cycle", "hw_thermal_slowdown in a sixth of one steady phase of four",
               telemetry(f"{STEADY}-2", which=slice(None, None, 6),
                         reasons=["hw_thermal_slowdown"]), FAIL, "clocks.hardware_slowdown",
                         source=_NVSENTINEL, sizes=(1,), phases=CYCLES)
    yield kind("sw-thermal-cycle",
               "sw_thermal_slowdown for a tenth of one steady phase of four, and no counter of it",
               both(everywhere(**NO_TIMES), SLOWED_TENTH), FAIL, "throttle.software_thermal",
               source=_VIOLATION, model=GEFORCE, phases=CYCLES)
    yield kind("sw-thermal-part",
               "sw_thermal_slowdown for a tenth of one steady phase, 2 % by its counter",
               both(after(software_thermal_throttled_s=6.0), SLOWED_TENTH), FAIL,
               "throttle.software_thermal", source=_VIOLATION, sizes=(1,), phases=CYCLES)
    yield kind("sw-thermal-unlike",
               "sw_thermal_slowdown in all readings of one steady phase, and none by its counter",
               telemetry(f"{STEADY}-2", reasons=["sw_thermal_slowdown"]), WARN,
               "throttle.software_thermal", source=_VIOLATION, phases=CYCLES)
    yield kind("hw-thermal-time", "2 % of the time throttled by the hardware",
               after(hardware_thermal_throttled_s=5.0), FAIL, "throttle.hardware_thermal",
               source=_VIOLATION, moments=(AFTER,))
    yield kind("sw-thermal-time", "10 % of the time throttled by the driver",
               after(software_thermal_throttled_s=25.0), FAIL, "throttle.software_thermal",
               source=_VIOLATION, moments=(AFTER,))
    yield kind("brake-time", "2 % of the time under the power brake",
               after(power_brake_throttled_s=5.0), FAIL, "throttle.power_brake",
               source=_NVSENTINEL, moments=(AFTER,))
    yield kind("sw-thermal-sampled",
               "sw_thermal_slowdown in every reading, and no counter of time",
               both(everywhere(**NO_TIMES), telemetry(reasons=["sw_thermal_slowdown"])), FAIL,
               "throttle.software_thermal", source=_VIOLATION, model=GEFORCE)
    yield kind("hot", "88 C, above the maximum of 87", telemetry(temperature_c=88), FAIL,
               "temperature.gpu", source="NVML: the card's own maximum", moments=MOMENTS)
    yield kind("warm", "85 C, below the maximum of 87", telemetry(temperature_c=85), WARN,
               "temperature.gpu", source=_OWN, moments=(MIDDLE,), sizes=(1,))
    yield kind("hot-and-broken", "88 C, and 255 C in every second reading", both(
        telemetry(temperature_c=88), telemetry(which=SECOND, temperature_c=255)), FAIL,
               "temperature.gpu", source="NVML: the card's own maximum", sizes=(1, 8))
    yield kind("hot-memory", "memory of 96 C, above its maximum of 95",
               telemetry(memory_temperature_c=96), FAIL, "temperature.memory",
               source="NVML: the card's own maximum", moments=(FIRST, LAST))
    yield kind("no-margin", "a margin of -3 C, below its slowdown at -2",
               telemetry(temperature_margin_c=-3), FAIL, "temperature.limit", source=_NVSENTINEL,
               moments=(FIRST, LAST))
    yield kind("hotter", "20 C hotter than its peers", heat(20), WARN, "load.temperature_spread",
               source=_OWN, sizes=(8,))
    yield kind("memory-clock-copy", "61 % of the memory clock while it copies",
               telemetry(COPY, memory_clock_mhz=1593), FAIL, "load.memory_clock", source=_OWN)
    yield kind("memory-clock-maximum", "a maximum memory clock of 61 % of its twin's", both(
        lasting(memory_clock_maximum_mhz=1593), telemetry(memory_clock_mhz=1593)), FAIL,
               "load.memory_clock", source=_OWN, sizes=(2, 8))
    yield kind("memory-clock", "61 % of the memory clock", telemetry(memory_clock_mhz=1593), FAIL,
               "load.memory_clock", source=_OWN, moments=(*MOMENTS, ALL))


def _pcie_and_nvlink() -> Iterator[Kind]:
    kind = partial(_kind, "PCIe and NVLink")
    for name, values in (("width", {"pcie_width": 1}), ("generation", {"pcie_generation": 1})):
        yield kind(f"{name}-moment", f"{name} 1 under load for five seconds",
                   telemetry(STEADY, which=in_a_row(5), **values), FAIL, f"pcie.{name}",
                   source="NVIDIA/NVSentinel#890", sizes=(1,))
    yield kind("width", "x4 of x16 under load", telemetry(pcie_width=4), FAIL, "pcie.width",
               source="NVIDIA/NVSentinel#890", moments=(*MOMENTS, ALL), sizes=(1,))
    yield kind("generation", "generation 1 of 5 under load", telemetry(pcie_generation=1), FAIL,
               "pcie.generation", source="NVIDIA/NVSentinel#890", moments=(*MOMENTS, ALL),
               sizes=(1,))
    yield kind("width-elsewhere", "x4 of x16 in the phases that are not steady",
               telemetry(MEMORY, FP16, COPY, LINKS, pcie_width=4), FAIL, "pcie.width",
               source="NVIDIA/NVSentinel#890", sizes=(1, 8))
    uses: dict[str, Row] = {"": {}, ", its use is not read": {"utilization": None}}
    for name, use in uses.items():
        yield kind(f"width-copy{len(use)}", f"x8 of x16 while it copies{name}", telemetry(
            COPY, pcie_width=8, **use), FAIL, "pcie.width", source="NVIDIA/NVSentinel#890",
            sizes=(1,))
    yield kind("host-link-often", "half the rate to the host in most seconds",
               links(LinkPart.TO_HOST, 0.5, often=True), WARN, "links.host", source=_OWN,
               sizes=(1, 8))
    yield kind("peer-link-often", "half the rate to its peers in most seconds",
               links(LinkPart.PEER, 0.5, often=True), WARN, "links.peer", source=_OWN,
               sizes=(2, 8))
    yield kind("links-again", "the replays of an NVLink began again, at 3", links_counted_again,
               INCOMPLETE, "nvlink.replays", source=_FIELD, moments=(AFTER,))
    yield kind("half-pair", "the links between two of eight GPUs at half of their rate", half_pair,
               FAIL, "links.peer", source="IBM Autopilot: 80 %", sizes=(8,))
    yield kind("narrow-slot", "GPU and slot allow 8 lanes, those of seven peers 16",
               both(lasting(pcie_width_maximum=8), telemetry(pcie_width=8)), WARN, "pcie.width",
               source="NVIDIA/NVSentinel#890", sizes=(2, 8))
    yield kind("replays", "100,000 replays", after(pcie_replays_total=100_000), FAIL,
               "pcie.replay", source=_DCGM, moments=(AFTER,))
    yield kind("host-link", "40 % of the rate to the host", links(LinkPart.TO_HOST, 0.4), FAIL,
               "links.host", source=_NHC, sizes=(1, 2))
    yield kind("peer-link", "half the rate to its peers", links(LinkPart.PEER, 0.5), FAIL,
               "links.peer", source="IBM Autopilot: 80 %", sizes=(8,))
    yield kind("sender", "a GPU receives at the usual rate, and sends at a tenth of it", one_way,
               WARN, "", source=_OWN, sizes=(2, 3, 8), model=A100, of_node=True)
    yield kind("peer-links-all", "all links between GPUs at half of the reference",
               links(LinkPart.PEER, 0.5, gpus=EVERY), WARN, "links.peer", source=_OWN, sizes=(2, 8))
    yield kind("dead-link", "one NVLink is inactive on both ends",
               nvlinks(5, both=True, before=True, active=False), FAIL, "nvlink.inactive",
               source="NVIDIA Health Validation: 0 inactive links", sizes=(1, 2, 8))
    yield kind("dead-link-a100", "one NVLink of two A100 is inactive",
               nvlinks(5, both=True, before=True, active=False), FAIL, "nvlink.inactive",
               source="NVIDIA Health Validation: 0 inactive links", model=A100)
    for gpus, right in ((4, WARN), (8, FAIL)):
        yield kind(f"dead-link-v100-{gpus}", f"one NVLink of {gpus} V100 SXM2 is inactive on each",
                   both(of_model("Tesla V100-SXM2-32GB", 6),
                        nvlinks(5, both=True, before=True, active=False)), right,
                   "nvlink.inactive", source="NVIDIA, DGX-1: 6 links of each V100",
                   model=A100, sizes=(gpus,))
    for model, number, right in (
        ("NVIDIA H800", 8, FAIL), ("NVIDIA H100 96GB HBM3", 18, WARN),
    ):  # fmt: skip
        yield kind(f"dead-link-{model[7:11].lower()}-{number}",
                   f"one NVLink of each {model} is inactive", both(of_model(model, number), nvlinks(
                       5, both=True, before=True, active=False)), right, "nvlink.inactive",
                   source="NVIDIA Health Validation: 0 inactive links", sizes=(1, 8))
    yield kind("links-unlisted", "each GPU lists 9 of its 18 NVLinks", of_model(H100, 9), WARN,
               "nvlink.inactive", source="NVIDIA Health Validation: 18 links expected",
               sizes=(1, 8))
    yield kind("links-slow-a100", "all NVLinks of all A100 at half of their speed", both(*(
        nvlinks(number, both=True, before=True, speed_mbps=12500) for number in range(12))), FAIL,
        "nvlink.speed", source="NVIDIA A100 data sheet: 12 links have 600 GB/s, both ways",
        model=A100, sizes=(1, 8))
    yield kind("peer-zero", "no byte a second over the links to its peers",
               links(LinkPart.PEER, 0.0), FAIL, "links.peer", source="IBM Autopilot: 80 %",
               sizes=(2, 8))
    yield kind("peer-zero-most", "no byte a second to its peers, on all GPUs but one",
               links(LinkPart.PEER, 0.0, gpus=ALL_BUT_ONE), FAIL, "links.peer",
               source="IBM Autopilot: 80 %", sizes=(4, 8))
    yield kind("dead-links", "no NVLink of any GPU is active",
               both(*(nvlinks(number, both=True, before=True, active=False)
                      for number in range(18))), FAIL, "nvlink.inactive",
               source="NVIDIA Health Validation: 0 inactive links", sizes=(2, 8))
    yield kind("no-bridge", "no active NVLink on one of four cards, the others have bridges",
               no_bridge, WARN, "nvlink.inactive", source=_OWN, sizes=(4,))
    yield kind("link-state", "the state of an NVLink is not read", nvlinks(5, active=None),
               INCOMPLETE, "nvlink.", source=_FIELD, moments=(AFTER,))
    yield kind("link-lost", "an NVLink went down in the run", nvlinks(5, active=False), FAIL,
               "nvlink.", source=f"{_XID}: 74", moments=(AFTER,), sizes=(1, 8))
    yield kind("link-unlisted", "an NVLink is not listed any more", unlisted_link, FAIL, "nvlink.",
               source=f"{_XID}: 74", moments=(AFTER,), sizes=(1, 2))
    yield kind("link-crc", "10^6 CRC errors on an NVLink", nvlinks(5, crc_errors_total=10**6),
               FAIL, "nvlink.crc_rate", source=_DCGM, moments=(AFTER,))
    yield kind("link-slow", "an NVLink at half of its speed", nvlinks(5, speed_mbps=13281), FAIL,
               "nvlink.speed", source="NVIDIA Health Validation: 26,562 MB/s a link",
               moments=(AFTER,), sizes=(1, 8))
    yield kind("links-slow", "all NVLinks of one GPU at half of their speed", both(*(
        nvlinks(number, before=True, speed_mbps=13281) for number in range(18))), FAIL,
        "nvlink.speed", source="NVIDIA Health Validation: 26,562 MB/s a link", sizes=(2, 8))
    yield kind("links-slow-all", "all NVLinks of all GPUs at half of the model's speed", both(*(
        nvlinks(number, both=True, before=True, speed_mbps=13281) for number in range(18))), FAIL,
        "nvlink.speed", source="NVIDIA Health Validation: 26,562 MB/s a link", sizes=(1, 8))
    yield kind("link-speed-unread", "the speed of one active NVLink is not read",
               nvlinks(5, before=True, speed_mbps=None), INCOMPLETE, "NVLink not judged",
               source=_FIELD)
    yield kind("link-state-before", "the state of an NVLink is not read before the run",
               state_unread, INCOMPLETE, "nvlink.inactive", source=_FIELD, moments=(BEFORE,))
    yield kind("link-unread", "the counters of one active NVLink are not read", nvlinks(
        5, before=True, replays_total=None, crc_errors_total=None), INCOMPLETE, "NVLink not judged",
        source=_FIELD)
    yield kind("link-replay", "a replay on an NVLink", nvlinks(5, replays_total=1), WARN,
               "nvlink.replays", source=_DCGM, moments=(AFTER,))
    yield kind("link-recovery", "an NVLink was trained again", nvlinks(5, recoveries_total=1),
               WARN, "nvlink.recoveries", source=_DCGM, moments=(AFTER,))
    yield kind("fabric", "the fabric is unhealthy", standing(fabric_health="unhealthy"), FAIL,
               "fabric.health", source="NVML: NVML_GPU_FABRIC_HEALTH_SUMMARY", moments=ENDS)
    yield kind("fabric-gone", "a fabric that is not supported after the run",
               after(fabric_state="not_supported"), INCOMPLETE, "fabric.state", source=_FIELD,
               moments=(AFTER,))
    yield kind("fabric-twin", "a fabric that only its twin has", lasting(
        fabric_state="not_supported"), INCOMPLETE, "fabric.state", source=_FIELD, sizes=(2, 8))
    yield kind("link-ber", "a link with errors beyond 10^-12 before the run",
               nvlinks(5, before=True, effective_ber=1e-5), FAIL, "nvlink.bit_error_rate",
               source=_DCGM, moments=(BEFORE,))


def _the_card_and_its_settings() -> Iterator[Kind]:
    kind = partial(_kind, "The card and its settings")
    yield kind("reset", "it was reset in the run", after(energy_j=1000.0), INCOMPLETE, "reset",
               source=_OWN, moments=(MIDDLE,), sizes=(1, 4))
    yield kind("replays-again", "its count of replays began again, at 100", both(
        before(pcie_replays_total=10**9), after(pcie_replays_total=100)), INCOMPLETE, "gpu.reset",
        source=_OWN)
    yield kind("reset-between", "it was reset between two parts of the run",
               standing(energy_j=5.0), INCOMPLETE, "reset", source=_OWN, moments=(GAP,))
    yield kind("reload", "the driver was reloaded in the run", reloaded, INCOMPLETE, "reset",
               source=_OWN, moments=(MIDDLE,))
    yield kind("mig", "MIG is on", lasting(mig=True), INCOMPLETE, "gpu.whole",
               source="NVML: MIG divides it", sizes=(1, 2))
    for profile in ("A100-40C", "A10-2B4", "H100L-1-12CME"):
        yield kind(f"virtual-{profile}", f"it is a virtual GPU, {profile}",
               everywhere(name=f"NVIDIA {profile}"), INCOMPLETE, "virtual", model=A100,
                   source="NVIDIA, virtual GPU software: a profile is a share of a GPU")
    yield kind("mig-once", "MIG was on", standing(mig=True), INCOMPLETE, "gpu.whole",
               source="NVML: MIG divides it", moments=ENDS)
    yield kind("moved", "another PCI address after the run", after(
        pci_bus_id="00000000:99:00.0"), INCOMPLETE, "gpu.identity", source=_OWN, moments=(AFTER,))
    yield kind("addresses-swapped", "two GPUs have exchanged their PCI addresses", swapped,
               INCOMPLETE, "gpu.identity", source=_OWN, moments=(AFTER,))
    yield kind("no-serial", "its serial number is not read at one end", standing(serial=None),
               INCOMPLETE, "gpu.identity", source=_FIELD, moments=ENDS)
    yield kind("swapped", "another serial number after the run", after(serial="1"), INCOMPLETE,
               "gpu.identity", source=_OWN, moments=(AFTER,))
    yield kind("flashed", "another VBIOS after the run", after(vbios="97"), INCOMPLETE,
               "gpu.identity", source=_OWN, moments=(AFTER,))
    yield kind("ecc-off", "ECC is off",
               lasting(**dict.fromkeys((*ECC, *LIFETIME)), ecc=False), WARN,
               "ecc.mode", source=_OWN, sizes=(1,))
    yield kind("limited", "an operator lowered its power limit in the run", LIMITED, WARN,
               "power.limit", source=_OWN, sizes=(8,),
               exempt=True)
    yield kind("limited-late", "an operator lowered its power limit in the last third", LIMITED,
               WARN, "power.limit", source=_OWN, moments=(LAST,), sizes=(1, 8), exempt=True)
    yield kind("limited-cycle", "an operator lowered its power limit for cycle 2 of four",
               cycle(2, 0.7, power_limit_w=400.0, power_w=395.0), WARN, "power.limit", source=_OWN,
               sizes=(1, 8), phases=CYCLES, exempt=True)
    lock: dict[str, Any] = {"source": "NVML: applications clocks setting", "exempt": True}
    yield kind("locked", "an operator locked its clocks", both(
        slower(0.7, STEADY, FP16), telemetry(**LOCKED)), WARN, "clocks.locked", sizes=(8,), **lock)
    yield kind("locked-late", "an operator locked its clocks for a third of the time",
               slower(0.7, STEADY, FP16, **LOCKED), WARN, "CONFIG", moments=(MIDDLE, LAST),
               sizes=(1, 8), **lock)
    yield kind("locked-cycle", "an operator locked its clocks for cycle 2 of four",
               cycle(2, 0.7, **LOCKED), WARN, "CONFIG", sizes=(1, 8), phases=CYCLES, **lock)
    yield kind("locked-history", "an operator locked its clocks, and three runs before were faster",
               both(after_three_runs, slower(0.7, STEADY, FP16), telemetry(**LOCKED)), WARN,
               "clocks.locked", sizes=(1,), **lock)
    yield kind("locked-format", "an operator locked its clocks in fp16, and three runs before were "
               "faster", both(after_three_runs, slower(0.7, FP16, **LOCKED)), WARN, "CONFIG",
               sizes=(1,), model=A100, **lock)
    yield kind("inforom", "its InfoROM is corrupted", standing(inforom_valid=False), WARN,
               "inforom.valid", source="NVML: NVML_ERROR_CORRUPTED_INFOROM", moments=ENDS)
    yield kind("reflashed", "another InfoROM after the run", after(inforom="G521"), INCOMPLETE,
               "gpu.identity", source=_OWN, moments=(AFTER,))
    yield kind("shrunk", "8 GiB less memory after the run", after(memory_total=72 * 2**30),
               INCOMPLETE, "gpu.identity", source=f"{_XID}: 168", moments=(AFTER,))
    yield kind("smaller", "8 GiB less memory than its peers", lasting(
        memory_total=72 * 2**30), WARN, "memory.size",
        source=f"{_XID}: 168", sizes=(2, 8))
    yield kind("same-address", "another form of its PCI address after the run", after(
        pci_bus_id="0000:01:00.0"), PASS, source="NVML and the kernel print it differently",
        moments=(AFTER,), exempt=True)
    for name, value in (("ecc", False), ("mig", True)):
        yield kind(f"{name}-switched", f"{name.upper()} was switched in the run",
                   after(**{name: value}), INCOMPLETE, "", source="nvidia-smi: after a reset",
                   moments=(AFTER,))
    for name in ("power_brake", "thermal"):
        yield kind(f"{name}-again", f"its time of {name.replace('_', ' ')} began again",
                   before(**{f"{name}_throttled_s": 50.0}), INCOMPLETE, "gpu.reset",
                   source="NVML: since the driver was loaded", moments=(AFTER,))
    yield kind("before-late", "its counters before the run are read in the run", before(
        at=BEGAN + 50), INCOMPLETE, "had begun", source=_OWN, moments=(BEFORE,))
    yield kind("after-early", "its counters after the run are read in the run", after(
        at=BEGAN + 50), INCOMPLETE, "had ended", source=_OWN, moments=(AFTER,))
    for name, text in (("serial", "serial number"), ("pci_bus_id", "PCI address")):
        yield kind(f"twins-{name}", f"two GPUs have one {text}", twins(name), WARN, "node.serials",
                   source=_OWN, of_node=True)
    yield kind("fewer", "fewer GPUs are there than its expectation says", expected("gpus = 9"),
               FAIL, source="NVIDIA/NVSentinel#684", of_node=True, sizes=(1, 4, 8))
    yield kind("unlisted", "a GPU on the PCI bus that NVML does not list", unlisted_gpu, FAIL,
               source=_GONE, of_node=True, sizes=(1, 4, 7))
    yield kind("known-gone", "a GPU of earlier runs is not there", counters(
        known={"GPU-gone": "GPU 8, burned in on 2026-11-20"}), WARN, "node.known",
               source="NVIDIA/NVSentinel#684", of_node=True, sizes=(2, 7))


# fmt: on
_GROUPS = (
    _results,
    _loss_and_hangs,
    _memory,
    _xids,
    _what_could_not_be_read,
    _what_was_read_in_part,
    _rates,
    _clocks_power_and_heat,
    _pcie_and_nvlink,
    _the_card_and_its_settings,
)
#: All kinds, by group.
KINDS = tuple(kind for group in _GROUPS for kind in group())
#: Kinds that a job on another GPU must not hide.
_BESIDE = {
    *("wrong-result", "lost", "stuck-clock", "uncorrectable", "remap-failed", "xid-48"),
    *("unread-ecc", "hw-thermal", "slow-part", "width", "reset", "sensor-constant"),
}


def rows() -> Iterator[Fault]:
    """Yield every row of the table."""
    for kind in KINDS:
        for moment in kind.moments:
            for gpus in kind.sizes:
                yield Fault(kind=kind, moment=moment, gpus=gpus)
        if kind.name in _BESIDE:
            yield Fault(kind=kind, moment=kind.moments[0], gpus=max(2, kind.sizes[-1]), beside=True)


ROWS = tuple(rows())
