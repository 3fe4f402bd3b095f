"""The faults of the kernel's log beside XIDs as data, and the checks of a GPU and a node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Severity,
    Status,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.xid_checks import SEVERITIES, judge_xids
from sentinel.burnin.kernel_faults import PAIRED_S, KernelFault, distinct
from sentinel.burnin.xids import XidEvent
from sentinel.protocol.gpu_names import device_of
from sentinel.protocol.shipped_tables import shipped_table

TABLE = Table()

_OTHER_SXID = "sxid.other"
#: The XIDs that report the same as a line without one.
_PAIRED = {"nvrm.off_bus": {79}, "nvrm.gsp": {119, 120}, "nvrm.watchdog": {8}}
_SIMULATED = "simulated GPUs have none"
#: More corrected PCIe errors of a device, SAME_S apart and more, are no noise: Sentinel's number.
_MANY = 10
#: Only so many faults are described.
_DESCRIBED = 5


@dataclass(frozen=True, kw_only=True)
class KernelFaultGroup:
    """One kind of fault line."""

    name: str
    #: NVIDIA's bucket of immediate actions.
    bucket: str
    #: ``pass`` for one that is only listed.
    meaning: Status
    source: str


def _load() -> dict[str, KernelFaultGroup]:
    """Load the kinds of faults by their ids."""
    return {
        kind: KernelFaultGroup(
            name=name, bucket=bucket, meaning=Status(group["meaning"]), source=group["source"]
        )
        for group in shipped_table("sentinel.burnin.checks", "kernel_faults.toml")["group"]
        for kind, (name, bucket) in group["kinds"].items()
    }


#: All kinds of faults by their ids.
KINDS = _load()


def kind_of(fault: KernelFault) -> KernelFaultGroup:
    """Look up the kind of a fault; only that of an SXid without a severity may be unknown."""
    return KINDS.get(fault.kind, KINDS[_OTHER_SXID])


@dataclass(frozen=True, kw_only=True)
class KernelEvidence:
    """What the kernel's log has during a run that no GPU of the run has."""

    faults: Sequence[KernelFault] = ()
    xids: Sequence[XidEvent] = ()
    #: The faults and XIDs that are certainly of another device, or of a GPU that was left out on
    #: purpose: a warning at most.
    foreign: Collection[KernelFault] = ()
    others: Sequence[XidEvent] = ()
    #: The XIDs of all GPUs, which may report the same.
    reported: Sequence[XidEvent] = ()
    #: Why some faults may be missing, or None.
    unread: str | None = None
    #: Whether the GPUs are simulated.
    is_simulated: bool = False
    #: What the log had since the boot when the run began, and was not acknowledged.
    before: Sequence[str] = ()
    #: The verdicts of XIDs that a file of thresholds replaces, by number.
    overrides: Mapping[int, str] = field(default_factory=dict)


@TABLE.check("gpu.kernel_faults")
def _gpu_kernel_faults(evidence: LoadEvidence, _: Limits) -> Judgement:
    """Judge the faults of the GPU in the kernel's log."""
    record = evidence.record
    is_simulated = record.before is not None and record.before.is_simulated
    unread = evidence.kernel_log_error or evidence.faults_unread
    if not record.closed:
        unread = unread or "the samples of the run are not complete"
    found = judge_faults(unpaired(evidence.faults, record.own_xids()))
    return _or_unread(found, unread, is_simulated=is_simulated)


@TABLE.check("node.kernel_faults")
def _node_kernel_faults(evidence: KernelEvidence, _: Limits) -> Judgement:
    """Judge the faults in the kernel's log that are of no GPU of the run."""
    found = [
        judge_faults(unpaired(evidence.faults, evidence.reported), evidence.foreign),
        _of_xids(evidence.xids, evidence.overrides),
        _at_most_warn(_of_xids(evidence.others, evidence.overrides)),
    ]
    found.sort(key=lambda judgement: judgement.status.rank)
    worst = found[0]
    values = [str(one.value) for one in found if one.value != "none"]
    texts = [one.evidence for one in found if one.evidence]
    if evidence.before:
        texts.append(f"before the run, not acknowledged: {'; '.join(evidence.before)}")
    worst = replace(worst, value=", ".join(values) or "none", evidence="; ".join(texts))
    return _or_unread(worst, evidence.unread, is_simulated=evidence.is_simulated)


def judge_faults(faults: Iterable[KernelFault], foreign: Collection[KernelFault] = ()) -> Judgement:
    """Judge faults: the worst of them decides; lines of one event are counted once.

    Args:
        faults: What was logged.
        foreign: Those among them that warn at most.
    """
    events = list(distinct(faults))
    often = Counter(fault.same for fault in events)
    judged = [
        (_status(fault, fault in foreign, is_many=often[fault.same] > _MANY), fault)
        for fault in events
    ]
    judged.sort(key=lambda one: one[0].rank)
    counts = Counter(_label(fault) for _, fault in judged)
    value = ", ".join(
        label if count == 1 else f"{label} ({count} times)" for label, count in counts.items()
    )
    # One of each kind first: a storm of one hides no other.
    first = {_label(fault): fault for _, fault in reversed(judged)}
    texts = [describe_fault(first[label]) for label in counts]
    more = len(texts) - _DESCRIBED
    text = "; ".join(texts[:_DESCRIBED]) + (f"; and {more} more" if more > 0 else "")
    if not judged or judged[0][0] is Status.PASS:
        return Judgement(status=Status.PASS, value=value or "none", evidence=text)
    status, worst = judged[0]
    kind = kind_of(worst)
    return Judgement(
        status=status,
        value=value,
        evidence=text,
        source=kind.source,
        severity=SEVERITIES.get(kind.bucket, Severity.ISOLATE),
        action=f"{kind.bucket}: see `dmesg`: {kind.name}.",
    )


def unpaired(faults: Iterable[KernelFault], xids: Sequence[XidEvent]) -> Iterator[KernelFault]:
    """Select the faults that no XID reports as well."""
    for fault in faults:
        numbers = _PAIRED.get(fault.kind, ())
        if not any(xid.number in numbers and _is_same(fault, xid) for xid in xids):
            yield fault


def _is_same(fault: KernelFault, xid: XidEvent) -> bool:
    """Check whether a fault and an XID may be of the same moment and GPU."""
    devices = {device_of(address) for address in (fault.device, xid.pci_bus_id) if address}
    return len(devices) <= 1 and xid.at - PAIRED_S <= fault.at <= xid.last + PAIRED_S


def describe_fault(fault: KernelFault) -> str:
    """Describe a fault for people, with the words of the kernel."""
    return f"{kind_of(fault).name}: {fault.text}"


def _label(fault: KernelFault) -> str:
    """Name a fault in the value of a check: ``SXid 20034 fatal``, ``aer.fatal``."""
    if fault.number is None:
        return fault.kind
    word = fault.kind.removeprefix("sxid.").replace("_", "-")
    return f"SXid {fault.number}" + ("" if word.isdigit() else f" {word}")


def _status(fault: KernelFault, is_foreign: bool, *, is_many: bool) -> Status:  # noqa: FBT001
    meaning = kind_of(fault).meaning
    if fault.kind == "aer.corrected" and is_many:
        meaning = Status.WARN
    if not is_foreign:
        return meaning
    return Status.WARN if meaning is Status.FAIL else Status.PASS


def _of_xids(xids: Iterable[XidEvent], overrides: Mapping[int, str]) -> Judgement:
    found = judge_xids(list(distinct(xids)), overrides=overrides)
    return replace(found, value=found.value if found.value == "none" else f"XID {found.value}")


def _at_most_warn(found: Judgement) -> Judgement:
    return replace(found, status=Status.WARN) if found.status is Status.FAIL else found


def _or_unread(found: Judgement, unread: str | None, *, is_simulated: bool) -> Judgement:
    """Return a fault that was found in any case; no PASS if others may be missing."""
    if found.status in {Status.FAIL, Status.WARN} or (unread is None and not is_simulated):
        return found
    if is_simulated:
        return not_applicable("; ".join(filter(None, (_SIMULATED, found.evidence))))
    return untested("; ".join(filter(None, (unread, found.evidence))))
