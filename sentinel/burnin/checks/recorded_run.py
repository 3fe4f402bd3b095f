"""All checks, and what those of the load judge: a run, read from its folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sentinel.burnin.checks import (
    golden_checks,
    growth_checks,
    history_checks,
    kernel_checks,
    load_checks,
    measured_link_checks,
    peer_checks,
    work_checks,
    xid_checks,
)
from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.evidence import NOTHING, Findings
from sentinel.burnin.checks.kernel_checks import KernelEvidence
from sentinel.burnin.checks.load_evidence import LoadEvidence, Reference
from sentinel.burnin.checks.node_report import MOMENT
from sentinel.burnin.checks.thresholds_file import recorded
from sentinel.burnin.former_runs import Former
from sentinel.burnin.kernel_faults import KernelFault, foreign, is_of_device
from sentinel.burnin.loading import checked, load
from sentinel.burnin.record import GpuRecord
from sentinel.burnin.run_folder import RunFolder, lines, plan_object, read_object
from sentinel.burnin.xids import XidEvent
from sentinel.config.expectation import Expectation, expect_gpus, parse_expectation
from sentinel.config.plan import Plan
from sentinel.errors import ConfigError
from sentinel.protocol import __version__
from sentinel.protocol.codec import DecodeError, check_fields, from_json
from sentinel.protocol.counters import Counters, HostCounters
from sentinel.protocol.gpu_names import is_same_device
from sentinel.protocol.shipped_tables import shipped_table

#: All checks of a run.
CHECKS = Table(
    MOMENT,
    growth_checks.TABLE,
    load_checks.TABLE,
    peer_checks.TABLE,
    history_checks.TABLE,
    work_checks.TABLE,
    golden_checks.TABLE,
    measured_link_checks.TABLE,
    xid_checks.TABLE,
    kernel_checks.TABLE,
)

_TYPES_OF_COUNTERS: Mapping[str, Any] = {
    "selected": bool | None,
    "ignored_devices": str | None,
    "held_elsewhere": Mapping[str, str] | None,
    "pci_devices": tuple[str, ...] | None,
    "pci_paths": Mapping[str, tuple[str, ...]] | None,
    "known": Mapping[str, str] | None,
    "unacknowledged": tuple[str, ...] | None,
    "driver_error": str | None,
    "kernel_log_error": str | None,
}
#: What the files of a run always have: the header, the counters, and those after the run.
_HEADER = ("id", "started", "settings", "resumed", "node", "thresholds", "expectation")
_COUNTERS = (
    *("before", "pci_devices", "selected", "known", "host_before", "pci_paths"),
    *("unacknowledged", "findings"),
)
_AFTER = ("host_after", "driver_error", "kernel_log_error")
#: The versions that have not recorded all of it.
_EARLIER = ("0.1.", "0.2.")


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A recorded setting."""

    key: str
    value: str
    source: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A beginning of a run."""

    started: datetime
    settings: tuple[_Setting, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _Node:
    """The node of a run."""

    hostname: str
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Confirmed:
    """The GPUs with a confirmed fault."""

    known: int
    found_first: int


@dataclass(frozen=True, kw_only=True)
class _Expected:
    """A recorded expectation."""

    source: str
    text: str


#: The fields that are read of the header and of the counters, with their types.
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("id", "tool", "version"), str),
    "started": datetime,
    "settings": tuple[_Setting, ...] | None,
    "resumed": tuple[_Part, ...],
    "node": _Node,
    "confirmed_faulty": _Confirmed | None,
    "expectation": _Expected | None,
}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run as it was recorded."""

    header: Mapping[str, Any]
    plan: Plan
    #: By UUID.
    records: Mapping[str, GpuRecord]
    #: The counters of all GPUs before.
    node: tuple[Counters, ...]
    #: Whether GPUs were selected, or None if unknown.
    selected: bool | None
    #: What CUDA ignored of the variable that selected them, or None.
    ignored_devices: str | None
    #: The holders of GPUs that were to be tested and were left out, by UUID.
    held_elsewhere: Mapping[str, str]
    #: The GPUs on the PCI bus, or None if unknown.
    pci_devices: Sequence[str] | None
    #: The host before and after, as far as it was read.
    host: tuple[HostCounters, ...]
    #: What the node must be, and the GPUs that were known before the run.
    expectation: Expectation
    known: Mapping[str, str]
    #: By which it was begun.
    thresholds: Thresholds
    #: Why XIDs are unknown, or None.
    kernel_log_error: str | None
    #: The ports above each device of NVIDIA, by its address; None if they were not recorded, as by
    #: a version that recorded no faults beside XIDs.
    pci_paths: Mapping[str, Sequence[str]] | None
    #: The faults since the boot that were not acknowledged before the run.
    unacknowledged: Sequence[str]
    #: What daemons knew against GPUs before, by UUID; of "", against any other.
    findings: Mapping[str, Findings]

    @property
    def faults_unread(self) -> str | None:
        """Why faults beside XIDs are unknown, or None."""
        return "this run recorded XIDs only" if self.pci_paths is None else None

    def ports_of(self, address: str) -> Sequence[str]:
        """Return the ports above a device, as far as they are known."""
        paths = (self.pci_paths or {}).items()
        return next((ports for one, ports in paths if is_same_device(one, address)), ())


def read_run(folder: RunFolder) -> Recorded:
    """Read everything that the folder of a run has.

    Raises:
        ConfigError: The folder has no run, or a file of it is invalid.
    """
    header = read_object(folder.header)
    try:
        plan = from_json(Plan, {k: v for k, v in header["plan"].items() if k != "hash"}, "plan")
        header["plan"] = plan_object(plan) | {"hash": header["plan"]["hash"]}
        counters = read_object(folder.counters) if folder.counters.exists() else {}
        _check_keys(header, counters)
        check_fields(header, _TYPES, "run")
        check_fields(counters, _TYPES_OF_COUNTERS, "counters")
        node = tuple(from_json(Counters, row, "counters") for row in counters.get("before", ()))
        before = {gpu.uuid: gpu for gpu in node}
        after = _by_uuid(counters.get("after", ()))
        resumed = [
            (_by_uuid(one["after"] or ()), _by_uuid(one["before"]))
            for one in counters.get("resumed", ())
        ]
        thresholds = recorded(header.get("thresholds"))
        findings = {
            uuid: from_json(Findings, found, "findings")
            for uuid, found in counters.get("findings", {}).items()
        }
        host = tuple(
            from_json(HostCounters, counters[name], "counters")
            for name in ("host_before", "host_after")
            if name in counters
        )
    except (DecodeError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{folder.path}: it is not a run of this version: {error}") from None
    if header.get("version") == __version__ and header["plan"]["hash"] != plan.hash:
        raise ConfigError(f"{folder.header}: the plan was changed after the run")
    try:
        records = load(plan, checked(lines(folder.events)), checked(lines(folder.samples)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        kind = "" if isinstance(error, DecodeError) else f"{type(error).__name__}: "
        what = f"{kind}{error}"
        raise ConfigError(f"{folder.path}: an event or a sample is invalid: {what}") from None
    for uuid, record in records.items():
        record.before, record.after = before.get(uuid), after.get(uuid)
        record.resumed = [(end.get(uuid), again.get(uuid)) for end, again in resumed]
        known = "after" in counters and counters.get("driver_error") is None
        if record.before is not None and record.after is None and known:
            # One that is listed, but could not be opened, has no UUID.
            blind = after.get("")
            if blind is not None and (why := blind.why_unread) is not None:
                record.after = record.before.unread(why)
            else:
                gone = "it is not listed any more after the run"
                record.after = replace(record.before, lost=gone)
    return Recorded(
        header=header,
        plan=plan,
        records=records,
        node=node,
        selected=counters.get("selected"),
        ignored_devices=counters.get("ignored_devices"),
        held_elsewhere=counters.get("held_elsewhere") or {},
        pci_devices=counters.get("pci_devices"),
        host=host,
        expectation=_expectation(header),
        known=counters.get("known") or {},
        thresholds=thresholds,
        kernel_log_error=counters.get("kernel_log_error", "the run was cut off"),
        pci_paths=counters.get("pci_paths"),
        unacknowledged=counters.get("unacknowledged") or (),
        findings=findings,
    )


def _check_keys(header: Mapping[str, Any], counters: Mapping[str, Any]) -> None:
    """Check that nothing was taken from the header or the counters of a run.

    Raises:
        KeyError: A key that each run has is missing: what it says would count for nothing.
    """
    if not header["version"].startswith(_EARLIER):
        needed = (*_COUNTERS, *(_AFTER if "after" in counters else ())) if counters else ()
        for found, names in ((header, _HEADER), (counters, needed)):
            for name in names:
                found[name]


def _expectation(header: Mapping[str, Any]) -> Expectation:
    """Parse what a node had to be at the beginning of a run.

    Raises:
        ConfigError: It is not an expectation of this version.
    """
    if (recorded := header.get("expectation")) is not None:
        return parse_expectation(recorded["text"], recorded["source"])
    # As versions before expectations recorded it.
    found = (one["value"] for one in header.get("settings") or () if one["key"] == "expect-gpus")
    return next((expect_gpus(int(value)) for value in found), NOTHING)


def evidence_of_load(
    record: GpuRecord,
    run: Recorded,
    former: Mapping[tuple[str, str], Sequence[Former]],
    xids: Mapping[int, str] = MappingProxyType({}),
) -> LoadEvidence:
    """Build the evidence for the checks of the load of one GPU.

    Args:
        record: The GPU.
        run: The run that it is of.
        former: Earlier runs by the UUID and the serial number of each card.
        xids: The verdicts of XIDs that a file of thresholds replaces.
    """
    model = record.before.name if record.before is not None else ""
    return LoadEvidence(
        record=record,
        peers=[
            gpu
            for gpu in run.records.values()
            if gpu.before is not None and gpu.before.name == model
        ],
        references=load_references().get(model, ()),
        former=former.get((record.uuid, (record.before and record.before.serial) or ""), ()),
        model=model or "this GPU",
        node=run.node,
        expectation=run.expectation,
        findings=run.findings.get(record.uuid, run.findings.get("", Findings())),
        kernel_log_error=run.kernel_log_error,
        faults=list(_faults_of(record.before, record.faults, run)),
        faults_unread=run.faults_unread,
        xids=xids,
    )


def evidence_of_kernel(
    run: Recorded, xids: Mapping[int, str] = MappingProxyType({})
) -> KernelEvidence:
    """Build the evidence for the check of what the kernel logged of no GPU of the run.

    Args:
        run: The run.
        xids: The verdicts of XIDs that a file of thresholds replaces.
    """
    records = list(run.records.values())
    faults, logged = (records[0].faults, records[0].xids) if records else ([], [])
    tested = [record.before for record in records]
    skipped = [gpu for gpu in run.node if run.selected and gpu.uuid not in run.records]
    owned = {fault for gpu in tested for fault in _faults_of(gpu, faults, run)}
    left = [fault for fault in faults if fault not in owned]
    others = [xid for xid in logged if not any(_is_xid_of(gpu, xid) for gpu in tested)]
    of_skipped = [xid for xid in others if any(_is_xid_of(gpu, xid) for gpu in skipped)]
    mapped = run.pci_paths is not None and all(
        any(is_same_device(path, gpu.pci_bus_id) for path in run.pci_paths)
        for gpu in run.node
        if gpu.pci_bus_id is not None
    )
    return KernelEvidence(
        faults=left,
        xids=[xid for xid in others if xid not in of_skipped],
        foreign={
            *foreign(left, run.pci_paths if mapped else None),
            *(fault for gpu in skipped for fault in _faults_of(gpu, left, run)),
        },
        others=of_skipped,
        reported=logged,
        unread=run.kernel_log_error
        or run.faults_unread
        or (None if records and records[0].closed else "the samples of the run are not complete"),
        is_simulated=bool(run.header.get("simulated")),
        before=run.unacknowledged,
        overrides=xids,
    )


def _faults_of(
    gpu: Counters | None, faults: Iterable[KernelFault], run: Recorded
) -> Iterator[KernelFault]:
    """Select the faults of a GPU, and of the ports above it."""
    if gpu is None or gpu.pci_bus_id is None:
        return
    ports = run.ports_of(gpu.pci_bus_id)
    yield from (fault for fault in faults if is_of_device(fault, gpu.pci_bus_id, ports))


def _is_xid_of(gpu: Counters | None, xid: XidEvent) -> bool:
    return gpu is not None and is_same_device(xid.pci_bus_id, gpu.pci_bus_id)


def load_references() -> dict[str, tuple[Reference, ...]]:
    """Load the shipped references, by the name of the model."""
    return {
        model: tuple(Reference(**entry) for entry in entries)
        for model, entries in shipped_table("sentinel.burnin.checks", "references.toml").items()
    }


def _by_uuid(values: Iterable[Any]) -> dict[str, Counters]:
    found = [from_json(Counters, value, "counters") for value in values]
    return {counters.uuid: counters for counters in found}
