"""All checks, and what those of the load judge: a run, read from its folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from types import MappingProxyType
from typing import Any

from sentinel.burnin.checks import (
    growth_checks,
    load_checks,
    measured_link_checks,
    peer_checks,
    xid_checks,
)
from sentinel.burnin.checks.check import Table
from sentinel.burnin.checks.load_checks import LoadEvidence, Reference
from sentinel.burnin.checks.node_checks import MOMENT
from sentinel.burnin.record import GpuRecord, load
from sentinel.burnin.run_folder import Former, RunFolder, lines, read_object
from sentinel.config.plan import Plan
from sentinel.errors import ConfigError
from sentinel.protocol.codec import DecodeError, from_json
from sentinel.protocol.counters import Counters, HostCounters


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
    #: The GPUs on the PCI bus, or None if unknown.
    pci_devices: Sequence[str] | None
    #: The host before and after, as far as it was read.
    host: tuple[HostCounters, ...]
    #: How many GPUs the node should have, or None; and those that were known before the run.
    expected: int | None
    known: Mapping[str, str]
    #: Why XIDs are unknown, or None.
    kernel_log_error: str | None


def read_run(folder: RunFolder) -> Recorded:
    """Read everything that the folder of a run has.

    Raises:
        ConfigError: The folder has no run, or a file of it is invalid.
    """
    header = read_object(folder.header)
    try:
        plan = from_json(Plan, {k: v for k, v in header["plan"].items() if k != "hash"}, "plan")
        counters = read_object(folder.counters) if folder.counters.exists() else {}
        node = tuple(from_json(Counters, row, "counters") for row in counters.get("before", ()))
        before = {gpu.uuid: gpu for gpu in node}
        after = _by_uuid(counters.get("after", ()))
        resumed = [
            (_by_uuid(one["after"] or ()), _by_uuid(one["before"]))
            for one in counters.get("resumed", ())
        ]
        host = tuple(
            from_json(HostCounters, counters[name], "counters")
            for name in ("host_before", "host_after")
            if name in counters
        )
    except (DecodeError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{folder.path}: it is not a run of this version: {error}") from None
    try:
        records = load(plan, lines(folder.events), lines(folder.samples))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
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
        pci_devices=counters.get("pci_devices"),
        host=host,
        expected=_expected(header),
        known=counters.get("known", {}),
        kernel_log_error=counters.get("kernel_log_error", "the run was cut off"),
    )


def _expected(header: Mapping[str, Any]) -> int | None:
    """Look up what ``--expect-gpus`` named at the beginning of a run."""
    found = (one["value"] for one in header.get("settings") or () if one["key"] == "expect-gpus")
    value = next(found, None)
    return None if value is None else int(value)


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
        kernel_log_error=run.kernel_log_error,
        xids=xids,
    )


def load_references() -> dict[str, tuple[Reference, ...]]:
    """Load the shipped references, by the name of the model."""
    text = resources.files(__package__).joinpath("references.toml").read_text()
    return {
        model: tuple(Reference(**entry) for entry in entries)
        for model, entries in tomllib.loads(text).items()
    }


def _by_uuid(values: Iterable[Any]) -> dict[str, Counters]:
    found = [from_json(Counters, value, "counters") for value in values]
    return {counters.uuid: counters for counters in found}


# --- all checks, in the order of the report --------------------------------------------------

CHECKS = Table(
    MOMENT,
    growth_checks.TABLE,
    load_checks.TABLE,
    peer_checks.TABLE,
    measured_link_checks.TABLE,
    xid_checks.TABLE,
)
