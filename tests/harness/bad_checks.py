"""Checks of a package that fail in every way that one may."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from sentinel.checks import GpuCheck, Judgement, Limits, LoadEvidence, Severity, Status, below


def _check(name: str, judge: Any) -> GpuCheck:
    return GpuCheck(
        id=f"bad.{name}",
        title=name,
        reads="nothing",
        source="a test",
        severity=Severity.MONITOR,
        action="TRIAGE: nothing.",
        limits={"fail": below(5)},
        judge=judge,
    )


def _raise(evidence: LoadEvidence, limits: Limits) -> Judgement:
    message = f"GPU {evidence.record.index} is not mine"
    raise ValueError(message)


def _hang_on_the_second(evidence: LoadEvidence, limits: Limits) -> Judgement:
    if evidence.record.index == 1:
        threading.Event().wait()
    return Judgement(status=Status.FAIL, value=evidence.record.index)


def _crash(evidence: LoadEvidence, limits: Limits) -> Judgement:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def _print(evidence: LoadEvidence, limits: Limits) -> Judgement:
    print("not a report")  # noqa: T201 - that is what it does
    value: Any = 7.0
    return Judgement(status=Status.WARN if limits["fail"].value > 5 else Status.PASS, value=value)


def _not_a_number(evidence: LoadEvidence, limits: Limits) -> Judgement:
    return Judgement(status=Status.PASS, value=float("nan"))


def _not_a_judgement(evidence: LoadEvidence, limits: Limits) -> Any:
    return True


raises = _check("raises", _raise)
hangs = _check("hangs", _hang_on_the_second)
crashes = _check("crashes", _crash)
prints = _check("prints", _print)
not_a_number = _check("not_a_number", _not_a_number)
not_a_judgement = _check("not_a_judgement", _not_a_judgement)
not_a_check = 7
