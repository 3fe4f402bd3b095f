"""The faults of the kernel's log since the boot that were not acknowledged, for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from sentinel.burnin.checks.check import Status
from sentinel.burnin.checks.kernel_checks import describe_fault, kind_of, unpaired
from sentinel.burnin.checks.xid_checks import judge_xids
from sentinel.burnin.kernel_faults import KernelFault, distinct, is_of_device
from sentinel.burnin.xids import LogParser, XidEvent
from sentinel.diagnostics.kernel_log import KernelRecord, read_past
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu_names import is_same_device

#: Of more kinds of faults, the newest are listed.
_MOST = 20
#: A log that begins later after the boot has lost records, in seconds.
_BOOT_S = 120.0


def faults_since_boot(gpus: Sequence[Counters], acknowledged: Mapping[str, float]) -> list[str]:
    """Describe the faults of the kernel's log, or why they are unknown.

    Args:
        gpus: All GPUs of the node.
        acknowledged: When the faults of a GPU were acknowledged last, by its UUID; seconds since
            the epoch.
    """
    records, error = read_past()
    if error is not None:
        return [f"faults are unknown: {error}"]
    epoch = time.time() - time.monotonic()
    return [*_lost(records, epoch), *describe_unacknowledged(records, gpus, acknowledged, epoch)]


def _lost(records: Sequence[KernelRecord], epoch: float) -> Iterator[str]:
    if records and records[0].at > _BOOT_S:
        began = _time(records[0].at, epoch)
        yield f"faults before {began} are unknown: the kernel's log begins then"


def describe_unacknowledged(
    records: Iterable[KernelRecord],
    gpus: Sequence[Counters],
    acknowledged: Mapping[str, float],
    epoch: float,
) -> list[str]:
    """Describe the faults of records, one line for each kind and GPU, the oldest first.

    Args:
        records: Those of the kernel's log.
        gpus: All GPUs of the node.
        acknowledged: As for ``faults_since_boot``.
        epoch: The time of the zero of the monotonic clock, in seconds since the epoch.
    """
    parser = LogParser()
    found = [event for record in records for event in parser.parse(record.text, record.at)]
    xids = list(distinct(event for event in found if isinstance(event, XidEvent)))
    faults = distinct(event for event in found if isinstance(event, KernelFault))
    counts: dict[str, int] = {}
    last: dict[str, float] = {}
    events: list[XidEvent | KernelFault] = [*xids, *unpaired(faults, xids)]
    for event in sorted(events, key=lambda one: one.at):
        gpu = next((gpu for gpu in gpus if _is_of(event, gpu)), None)
        done = acknowledged.get(gpu.uuid, 0.0) if gpu is not None else 0.0
        if event.at + epoch > done and _status(event) in {Status.FAIL, Status.WARN}:
            where = f"GPU {gpu.index}" if gpu is not None else "no known GPU"
            text = f"{where}: {_describe(event)}"
            counts[text] = counts.get(text, 0) + 1
            last[text] = event.at
    lines = [
        f"{text} ({'' if count == 1 else f'{count} times, last '}{_time(last[text], epoch)})"
        for text, count in counts.items()
    ]
    more = len(lines) - _MOST
    return [*([f"{more} older kinds"] if more > 0 else []), *lines[-_MOST:]]


def _is_of(event: XidEvent | KernelFault, gpu: Counters) -> bool:
    if gpu.pci_bus_id is None:
        return False
    if isinstance(event, XidEvent):
        return is_same_device(event.pci_bus_id, gpu.pci_bus_id)
    return is_of_device(event, gpu.pci_bus_id)


def _status(event: XidEvent | KernelFault) -> Status:
    if isinstance(event, XidEvent):
        return judge_xids([event]).status
    return kind_of(event).meaning


def _describe(event: XidEvent | KernelFault) -> str:
    if isinstance(event, XidEvent):
        found = judge_xids([event])
        place = f" at {event.pci_bus_id}" if event.pci_bus_id else ""
        return f"XID {found.evidence}{place}"
    return describe_fault(event)


def _time(at: float, epoch: float) -> str:
    return datetime.fromtimestamp(at + epoch).astimezone().isoformat(sep=" ", timespec="seconds")
