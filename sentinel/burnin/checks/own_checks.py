"""Judge a run by the checks of other packages, each in a process of its own.

A package registers a check as an entry point of the group ``sentinel.checks``. Its name is the id
of the check, so that no code of a package runs here, not even to know what there is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from sentinel.burnin.checks.check import CheckResult, Severity, Status, Value
from sentinel.burnin.checks.own_check import OwnCheck, OwnDone, OwnMessage, OwnResult, OwnSpec
from sentinel.burnin.checks.own_checks_process import IMPORT, JUDGE, run
from sentinel.burnin.checks.thresholds import Limits, Thresholds
from sentinel.diagnostics.one_shot import START, Timeouts, run_one_shot
from sentinel.errors import ConfigError

#: The entry-point group of checks.
GROUP = "sentinel.checks"

#: An import may be of torch, from a cold disk; a judgement computes on a record in memory.
TIMEOUTS = Timeouts(opening=120.0, call=30.0)

_ID = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
#: The process gets no GPU to create a context on, and one thread.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_SUBJECTS = {START: "the start of its process", IMPORT: "its import", JUDGE: "its judgement"}


@dataclass(frozen=True, kw_only=True)
class OwnResults:
    """The results of all checks of packages."""

    #: By the UUID of the GPU.
    gpus: Mapping[str, tuple[CheckResult, ...]] = field(default_factory=dict)
    node: tuple[CheckResult, ...] = ()
    #: Whether a process survives SIGKILL; the interpreter's own exit would wait for it.
    stuck: bool = False


@dataclass
class _Received:
    """What the process of one check has sent."""

    check: OwnCheck | None = None
    results: dict[str | None, OwnResult] = field(default_factory=dict)
    error: str | None = None
    stuck: bool = False

    def take(self, message: OwnMessage) -> bool:
        """Store a message; return whether it was the last."""
        match message:
            case OwnCheck():
                self.check = message
            case OwnResult():
                self.results[message.gpu] = message
            case OwnDone():
                self.error = message.error
                return True
        return False


def registered_checks(built_in: Collection[str]) -> tuple[EntryPoint, ...]:
    """List the entry points of all checks of packages by id, without importing them.

    Args:
        built_in: The ids of Sentinel's own checks.

    Raises:
        ConfigError: An id is malformed, registered twice or that of a check of Sentinel.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(
        entry_points(group=GROUP), key=lambda entry_point: (entry_point.name, entry_point.value)
    ):
        where = f"the check {entry.name!r} of {_package(entry)}"
        if not _ID.fullmatch(entry.name):
            remedy = "An id is two or more words in small letters, joined by dots: site.fan_speed."
            raise ConfigError(f"{where}: its entry point has no valid id", remedy)
        if entry.name in built_in:
            raise ConfigError(f"{where}: Sentinel has a check of that id", "Choose another id.")
        if entry.name in found:
            what = f"{where} is also one of {_package(found[entry.name])}"
            raise ConfigError(what, "Remove one of the packages, or choose another id.")
        found[entry.name] = entry
    return tuple(found.values())


def own_limits(entries: Iterable[EntryPoint], timeouts: Timeouts = TIMEOUTS) -> dict[str, Limits]:
    """Collect the default limits of checks by id; of one that cannot be imported, none."""
    known: dict[str, Limits] = {}
    for entry in entries:
        check = _run(OwnSpec(id=entry.name, place=entry.value), timeouts).check
        if check is not None and check.limits:
            known[entry.name] = check.limits
    return known


def judge_by_own_checks(
    entries: Iterable[EntryPoint],
    folder: Path,
    uuids: Collection[str],
    thresholds: Thresholds,
    timeouts: Timeouts = TIMEOUTS,
) -> OwnResults:
    """Judge a run by every registered check; one that fails has not tested anything.

    Args:
        entries: From :func:`registered_checks`.
        folder: The folder of the run.
        uuids: The GPUs of the run.
        thresholds: The limits that a file has replaced.
        timeouts: For the import and for a judgement.
    """
    gpus: dict[str, list[CheckResult]] = {uuid: [] for uuid in uuids}
    node: list[CheckResult] = []
    stuck = False
    for entry in entries:
        limits = thresholds.replaced.get(entry.name, {})
        spec = OwnSpec(
            id=entry.name,
            place=entry.value,
            folder=str(folder),
            limits={name: limit.value for name, limit in limits.items()},
            origin=thresholds.origin if limits else "",
        )
        received = _run(spec, timeouts)
        stuck = stuck or received.stuck
        if received.check is None or received.check.of_node:
            node.append(_result(entry, received, None, spec.origin))
        else:
            for uuid in uuids:
                gpus[uuid].append(_result(entry, received, uuid, spec.origin))
    return OwnResults(
        gpus={uuid: tuple(results) for uuid, results in gpus.items()},
        node=tuple(node),
        stuck=stuck,
    )


def _run(spec: OwnSpec, timeouts: Timeouts) -> _Received:
    """Run the process of one check to its end."""
    received = _Received()
    kinds: tuple[type[OwnMessage], ...] = (OwnCheck, OwnResult, OwnDone)
    done = run_one_shot(
        run,
        spec,
        _ENVIRONMENT,
        kinds=kinds,
        take=received.take,
        timeout_s=partial(timeouts.limit_s, {IMPORT}),
    )
    received.stuck = done.stuck
    if done.failure is not None:
        subject = _SUBJECTS.get(done.failure.call, "its process")
        received.error = f"{subject} {done.failure.what}"
    return received


def _result(entry: EntryPoint, received: _Received, uuid: str | None, origin: str) -> CheckResult:
    """Build the result for one GPU or the node; without a message, it was not tested."""
    check, found = received.check, received.results.get(uuid)
    source = (check.source if check is not None else "") or "its package"
    return CheckResult(
        id=entry.name,
        status=Status.NOT_TESTED if found is None else found.status,
        value=None if found is None else _value(found),
        unit=check.unit if check is not None else "",
        threshold=found.threshold if found is not None else check.threshold if check else "",
        source=f"{origin or source} ({_package(entry)})",
        severity=Severity.NONE if found is None else found.severity,
        action="" if found is None else found.action,
        evidence=(received.error or "it sent no result") if found is None else found.evidence,
    )


def _value(found: OwnResult) -> Value:
    """Return the value; a whole number as such."""
    if found.number is None:
        return found.text
    return int(found.number) if found.number.is_integer() else found.number


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
