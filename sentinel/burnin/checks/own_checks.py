"""Judge a run by the checks of other packages, each in a process of its own.

A package registers a check as an entry point of the group ``sentinel.checks``. Its name is the id
of the check, so that no code of a package runs here, not even to know what there is. Code of a
package may hang, crash or print; in its own process it costs its own check only.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.check import (
    Check,
    CheckResult,
    Limit,
    Limits,
    Severity,
    Status,
    Thresholds,
)
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.recorded_run import Recorded, evidence_of_load, read_run
from sentinel.burnin.former_runs import former_runs
from sentinel.burnin.record import GpuRecord
from sentinel.burnin.run_folder import RunFolder
from sentinel.config.plan import Plan
from sentinel.config.registrations import Registration, read_registrations, unreadable_packages
from sentinel.diagnostics.one_shot import START, Timeouts, run_one_shot
from sentinel.errors import ConfigError
from sentinel.host.process_setup import InheritedFd, setup_child_process
from sentinel.host.trusted_code import describe_error, leave_out_untrusted
from sentinel.protocol.codec import encode
from sentinel.protocol.shared_memory import InflightCalls

#: What is announced before the import, and before each judgement.
IMPORT, JUDGE = "import", "judge"
#: Longer texts are cut: a result is one datagram.
_MAX_TEXT = 2000
_TEXTS = ("id", "unit", "threshold", "source", "action", "evidence")
#: The entry-point group of checks.
GROUP = "sentinel.checks"
#: An import may be of torch, from a cold disk; a judgement computes on a record in memory.
TIMEOUTS = Timeouts(opening=120.0, call=30.0)
_ID = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
#: The process gets no GPU to create a context on, and one thread.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_SUBJECTS = {START: "the start of its process", IMPORT: "its import", JUDGE: "its judgement"}


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """All that a check of the node may use."""

    plan: Plan
    #: Every GPU of the run, by index.
    gpus: tuple[GpuRecord, ...]


@dataclass(frozen=True, kw_only=True)
class GpuCheck(Check[LoadEvidence]):
    """A check of each GPU of a run."""


@dataclass(frozen=True, kw_only=True)
class NodeCheck(Check[RunEvidence]):
    """A check of all GPUs of a run together."""


# --- messages --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OwnSpec:
    """What the process of one check has to do."""

    #: The id of the check, which is the name of its entry point.
    id: str
    #: Its ``module:attribute``.
    target: str
    #: The folder of the run; None to describe the check only.
    folder: str | None = None
    #: The limits that a file has replaced.
    thresholds: Thresholds = Thresholds()  # noqa: RUF009 - frozen


@dataclass(frozen=True, kw_only=True)
class OwnCheck:
    """A check, as its package declares it."""

    #: Whether it judges the node, or each GPU.
    of_node: bool
    unit: str
    threshold: str
    source: str
    limits: Mapping[str, Limit] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OwnResult:
    """The result of a check for one GPU, or for the node."""

    #: The UUID, or None for the node.
    gpu: str | None
    result: CheckResult


@dataclass(frozen=True, kw_only=True)
class OwnDone:
    """The check has judged everything, or cannot judge."""

    #: Why it cannot be used, or None.
    error: str | None = None


OwnMessage = OwnCheck | OwnResult | OwnDone


def run_check_process(
    spec: OwnSpec, channel: socket.socket, parent: int, board: InheritedFd
) -> None:
    """Describe a check, and judge a run by it; the target of a spawned process.

    Ends by ``os._exit``, so that no exit hook of a package can delay it.

    Args:
        spec: The check and the folder of the run.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each step is announced before it begins.
    """
    code = 1
    try:
        setup_child_process(parent, "sentinel: judges a run by a check of a package")
        os.dup2(2, 1)  # standard output belongs to the report
        channel.settimeout(None)
        calls = InflightCalls.attach(board.detach())
        for message in _messages(spec, calls):
            channel.sendall(encode(message))
        code = 0
    finally:
        os._exit(code)


def _messages(spec: OwnSpec, calls: InflightCalls) -> Iterator[OwnCheck | OwnResult | OwnDone]:
    try:
        calls.announce(0, IMPORT)
        check = _load(spec)
        yield _describe(check)
        if spec.folder is not None:
            recorded = read_run(RunFolder(path=Path(spec.folder)))
            for gpu, evidence in _evidence(check, recorded, Path(spec.folder)):
                calls.announce(0, JUDGE)
                yield OwnResult(gpu=gpu, result=_judge(check, evidence, spec.thresholds))
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, even SystemExit
        known = isinstance(error, ConfigError)
        yield OwnDone(error=str(error) if known else describe_error(error, __file__))
    else:
        yield OwnDone()


def _load(spec: OwnSpec) -> GpuCheck | NodeCheck:
    """Import the check of an entry point.

    Raises:
        ConfigError: It is no check, or has another id.
    """
    leave_out_untrusted()
    module, _, attribute = spec.target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not isinstance(found, GpuCheck | NodeCheck):
        kind = type(found).__name__
        raise ConfigError(f"{spec.target} is of type {kind}, not a GpuCheck or NodeCheck")
    if found.id != spec.id:
        raise ConfigError(f"its id is {found.id!r}; its entry point is called {spec.id!r}")
    return found


def _describe(check: Check[Any]) -> OwnCheck:
    return OwnCheck(
        of_node=isinstance(check, NodeCheck),
        unit=str(check.unit),
        threshold=check.default_threshold[:_MAX_TEXT],
        source=str(check.source)[:_MAX_TEXT],
        limits=check.limits,
    )


def _evidence(
    check: Check[Any], recorded: Recorded, folder: Path
) -> Iterable[tuple[str | None, Any]]:
    """Yield what the check judges: each GPU, or the node."""
    gpus = sorted(recorded.records.values(), key=lambda record: record.index)
    if isinstance(check, NodeCheck):
        yield None, RunEvidence(plan=recorded.plan, gpus=tuple(gpus))
        return
    former = former_runs(RunFolder(path=folder), recorded.header)
    for gpu in gpus:
        yield gpu.uuid, evidence_of_load(gpu, recorded, former)


def _judge(check: Check[Any], evidence: Any, thresholds: Thresholds) -> CheckResult:
    """Judge one GPU, or the node; a check that raises has not tested it."""
    try:
        return _sendable(check.run(evidence, thresholds))
    except Exception as error:  # noqa: BLE001 - code of a package
        why = f"its judgement raised {describe_error(error, __file__)}"
        return _untested(check.id, check.unit, check.default_threshold[:_MAX_TEXT], why[:_MAX_TEXT])


def _sendable(result: CheckResult) -> CheckResult:
    """Check and cut what code of a package may have put into a result.

    Raises:
        TypeError: The judgement has a value or a status of another type.
        ValueError: The status or the severity is none.
    """
    value: Any = result.value  # by its declaration; code of a package may have put anything
    if isinstance(value, float) and not math.isfinite(value):
        message = f"its value is {value}"
        raise TypeError(message)
    if not isinstance(value, float | int | str | None):
        message = f"its value is of type {type(value).__name__}, not a number or text"
        raise TypeError(message)
    if isinstance(value, str):
        value = value[:_MAX_TEXT]
    return CheckResult(
        status=Status(result.status),
        value=int(value) if isinstance(value, bool) else value,
        severity=Severity(result.severity),
        **{name: getattr(result, name)[:_MAX_TEXT] for name in _TEXTS},
    )


def _untested(check: str, unit: str, threshold: str, why: str) -> CheckResult:
    """Build the result of a check that could not judge."""
    return CheckResult(
        id=check,
        status=Status.NOT_TESTED,
        value=None,
        unit=unit,
        threshold=threshold,
        source="",
        severity=Severity.NONE,
        action="",
        evidence=why,
    )


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
    results: dict[str | None, CheckResult] = field(default_factory=dict)
    error: str | None = None
    stuck: bool = False

    def take(self, message: OwnMessage) -> bool:
        """Store a message; return whether it was the last."""
        match message:
            case OwnCheck():
                self.check = message
            case OwnResult():
                self.results[message.gpu] = message.result
            case OwnDone():
                self.error = message.error
                return True
        return False


def registered_checks(built_in: Collection[str]) -> tuple[Registration, ...]:
    """List all checks of packages by id, without importing them.

    Args:
        built_in: The ids of Sentinel's own checks.

    Raises:
        ConfigError: An id is malformed, registered twice or that of a check of Sentinel; or the
            entry points of a package, which may have a check, cannot be read.
    """
    found: dict[str, Registration] = {}
    for why in unreadable_packages():
        raise ConfigError(why, "Reinstall or remove the package.")
    for one in read_registrations(GROUP):
        where = f"the check {one.name!r} of {one.owner}"
        if not _ID.fullmatch(one.name):
            remedy = "An id is two or more words in small letters, joined by dots: site.fan_speed."
            raise ConfigError(f"{where}: its entry point has no valid id", remedy)
        if one.name in built_in:
            raise ConfigError(f"{where}: Sentinel has a check of that id", "Choose another id.")
        if one.name in found:
            what = f"{where} is also one of {found[one.name].owner}"
            raise ConfigError(what, "Remove one of the packages, or choose another id.")
        found[one.name] = one
    return tuple(found.values())


def own_limits(entries: Iterable[Registration]) -> dict[str, Limits]:
    """Collect the default limits of checks by id; of one that cannot be imported, none."""
    known: dict[str, Limits] = {}
    for entry in entries:
        check = _run(entry, TIMEOUTS).check
        if check is not None and check.limits:
            known[entry.name] = check.limits
    return known


def judge_by_own_checks(
    entries: Iterable[Registration],
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
        given = thresholds.only({entry.name}, xids=False)
        received = _run(entry, timeouts, folder=str(folder), thresholds=given)
        stuck = stuck or received.stuck
        if received.check is None or received.check.of_node:
            node.append(_check_result(entry, received, None, given))
        else:
            for uuid in uuids:
                gpus[uuid].append(_check_result(entry, received, uuid, given))
    return OwnResults(
        gpus={uuid: tuple(results) for uuid, results in gpus.items()},
        node=tuple(node),
        stuck=stuck,
    )


def _run(
    entry: Registration,
    timeouts: Timeouts,
    folder: str | None = None,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - frozen
) -> _Received:
    """Run the process of one check to its end; a malformed entry point has none."""
    received = _Received(error=entry.problem)
    if entry.problem is not None:
        return received
    spec = OwnSpec(id=entry.name, target=entry.target, folder=folder, thresholds=thresholds)
    kinds: tuple[type[OwnMessage], ...] = (OwnCheck, OwnResult, OwnDone)
    done = run_one_shot(
        run_check_process,
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


def _check_result(
    entry: Registration, received: _Received, uuid: str | None, thresholds: Thresholds
) -> CheckResult:
    """Return the result for one GPU or the node; without a message, it was not tested."""
    check, found = received.check, received.results.get(uuid)
    if found is None:
        unit, threshold = (check.unit, check.threshold) if check is not None else ("", "")
        found = _untested(entry.name, unit, threshold, received.error or "it sent no result")
    own = (check.source if check is not None else "") or "its package"
    return replace(found, source=f"{thresholds.source_of(entry.name, own)} ({entry.owner})")
