"""The process of one check of a package: it imports the check, reads the run and judges it.

Code of a package may hang, crash or print; here it costs its own check only.
"""

from __future__ import annotations

import importlib
import math
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.check import Check, CheckResult, Severity, Status
from sentinel.burnin.checks.own_check import (
    GpuCheck,
    NodeCheck,
    OwnCheck,
    OwnDone,
    OwnResult,
    OwnSpec,
    RunEvidence,
)
from sentinel.burnin.checks.recorded_run import Recorded, evidence_of_load, read_run
from sentinel.burnin.checks.thresholds import Limit, Thresholds
from sentinel.burnin.records.history import former_runs
from sentinel.burnin.records.run_folder import RunFolder
from sentinel.errors import ConfigError
from sentinel.host.processes.child_setup import InheritedFd, setup_child_process
from sentinel.protocol.codec import encode
from sentinel.protocol.shared_memory import InflightCalls
from sentinel.stressor.loader import describe

#: What is announced before the import, and before each judgement.
IMPORT, JUDGE = "import", "judge"

#: Longer texts are cut: a result is one datagram.
_MAX_TEXT = 2000


def run(spec: OwnSpec, channel: socket.socket, parent: int, board: InheritedFd) -> None:
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
            thresholds = _thresholds(spec, check)
            for gpu, evidence in _evidence(check, recorded, Path(spec.folder)):
                calls.announce(0, JUDGE)
                yield _judge(check, gpu, evidence, thresholds)
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, even SystemExit
        known = isinstance(error, ConfigError)
        yield OwnDone(error=str(error) if known else describe(error))
    else:
        yield OwnDone()


def _load(spec: OwnSpec) -> GpuCheck | NodeCheck:
    """Import the check of an entry point.

    Raises:
        ConfigError: It is no check, or has another id.
    """
    module, _, attribute = spec.place.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not isinstance(found, GpuCheck | NodeCheck):
        raise ConfigError(f"{spec.place} is a {type(found).__name__}, not a GpuCheck or NodeCheck")
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


def _thresholds(spec: OwnSpec, check: Check[Any]) -> Thresholds:
    """Build the thresholds from the limits that a file has replaced."""
    replaced: dict[str, Limit] = {
        name: replace(check.limits[name], value=value, origin=spec.origin)
        for name, value in spec.limits.items()
    }
    return Thresholds(replaced={check.id: replaced} if replaced else {}, origin=spec.origin)


def _evidence(check: Check[Any], run: Recorded, folder: Path) -> Iterable[tuple[str | None, Any]]:
    """Yield what the check judges: each GPU, or the node."""
    gpus = sorted(run.records.values(), key=lambda record: record.index)
    if isinstance(check, NodeCheck):
        yield None, RunEvidence(plan=run.plan, gpus=tuple(gpus))
        return
    former = former_runs(RunFolder(path=folder), run.header)
    for one in gpus:
        yield one.uuid, evidence_of_load(one, run, former)


def _judge(check: Check[Any], gpu: str | None, evidence: Any, thresholds: Thresholds) -> OwnResult:
    """Judge one GPU, or the node; a check that raises has not tested it."""
    try:
        return _result(gpu, check.run(evidence, thresholds))
    except Exception as error:  # noqa: BLE001 - code of a package
        return OwnResult(
            gpu=gpu,
            status=Status.NOT_TESTED,
            number=None,
            text=None,
            severity=Severity.NONE,
            threshold=check.default_threshold[:_MAX_TEXT],
            action="",
            evidence=f"its judgement raised {describe(error)}",
        )


def _result(gpu: str | None, result: CheckResult) -> OwnResult:
    """Build the message.

    Raises:
        TypeError: The judgement has a value or a status of another type.
    """
    value: Any = result.value  # by its declaration; code of a package may have put anything
    if isinstance(value, float) and not math.isfinite(value):
        message = f"its value is {value}"
        raise TypeError(message)
    if not isinstance(value, float | int | str | None):
        message = f"its value is a {type(value).__name__}, not a number or text"
        raise TypeError(message)
    text = isinstance(value, str)
    return OwnResult(
        gpu=gpu,
        status=Status(result.status),
        number=None if text or value is None else float(value),
        text=value[:_MAX_TEXT] if isinstance(value, str) else None,
        severity=Severity(result.severity),
        threshold=result.threshold[:_MAX_TEXT],
        action=result.action[:_MAX_TEXT],
        evidence=result.evidence[:_MAX_TEXT],
    )
