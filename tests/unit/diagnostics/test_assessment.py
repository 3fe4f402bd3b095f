"""The assessment of a trial, by its measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.diagnostics.trial.assessment import TrialResult, judge
from sentinel.diagnostics.trial.measurement import Failure, Stop, Trial
from sentinel.protocol.gpu import Gpu, Memory, Reading
from sentinel.protocol.stressor import FailureKind, Progress, Ready

GIB = 2**30
GPU = Gpu(uuid="GPU-1", index=0, name="GPU", pci_bus_id="0", memory_total=16 * GIB)


def make_progress(longest: float = 0.02, errors: int = 0) -> Progress:
    return Progress(
        seconds=1.0,
        iterations=50,
        flops=1e12,
        bytes=0.0,
        checks=50,
        errors=errors,
        max_quantum_s=longest,
    )


def reading(used: int, at: float = 1.0) -> Reading:
    return Reading(uuid=GPU.uuid, at=at, memory=Memory(total=16 * GIB, used=used, free=0))


WELL = Trial(
    workload="work",
    gpu=GPU,
    start=1.0,
    ready=Ready(held=14 * GIB, asked=14 * GIB, chunks=28, refused=False),
    ran=5.0,
    progress=tuple(make_progress() for _ in range(5)),
    readings=(reading(14 * GIB), reading(14 * GIB)),
    stop=Stop(after=0.03, killed=False),
)


def failed(kind: FailureKind) -> Trial:
    return replace(WELL, stop=None, failure=Failure(kind=kind.value, reason="the reason"))


def test_a_workload_without_problems_passes() -> None:
    judgement = judge(WELL)
    assert judgement.verdict is TrialResult.WELL
    assert (judgement.problems, judgement.incomplete) == ((), None)


@pytest.mark.parametrize(
    ("trial", "kind", "what", "do"),
    [
        (failed(FailureKind.WORKLOAD), "workload", "the reason", "Fix the error"),
        (failed(FailureKind.RETURNED), "returned", "the reason", "until ctx.pace() is False"),
        (failed(FailureKind.MALFORMED), "malformed", "the reason", ""),
        (failed(FailureKind.OUT_OF_MEMORY), "out_of_memory", "the reason", "second call"),
        (failed(FailureKind.NOT_READY), "not_ready", "the reason", "ctx.pace() twice"),
        (failed(FailureKind.HANG), "hang", "the reason", "ctx.quantum"),
        (failed(FailureKind.STUCK), "stuck", "the reason", "GIL"),
        (failed(FailureKind.CRASH), "crash", "the reason", "standard error"),
        (failed(FailureKind.GARBAGE), "garbage", "the reason", "socket"),
        (
            replace(WELL, newcomer=64 * 2**20, stop=None),
            "memory_growth",
            "grew by 64 MiB after it was ready, and no other process is listed on the GPU",
            "before the second call",
        ),
        (
            replace(WELL, newcomer=64 * 2**20, stop=None, all_listed=False),
            "memory_growth",
            "(processes may be hidden here)",
            "before the second call",
        ),
        (
            replace(
                WELL, readings=(reading(14 * GIB), reading(14 * GIB + 2**24), reading(14 * GIB))
            ),
            "memory_growth",
            "grew by 16 MiB after it was ready",
            "before the second call",
        ),
        (
            replace(
                WELL,
                progress=(
                    make_progress(),
                    make_progress(0.12),
                    make_progress(),
                    make_progress(0.2),
                    make_progress(),
                ),
            ),
            "long_quantum",
            "up to 200 ms between two calls of ctx.pace(); at most 50 ms is allowed",
            "Queue less",
        ),
        (
            replace(WELL, progress=(make_progress(2.0),)),
            "long_quantum",
            "up to 2 s between",
            "Queue less",
        ),
        (
            replace(WELL, stop=Stop(after=2.0, killed=True)),
            "slow_stop",
            "did not stop within 2 s after the request, and was killed",
            "as soon as ctx.pace() is False",
        ),
        (
            replace(WELL, progress=(make_progress(), make_progress(errors=2))),
            "wrong_results",
            "2 results were reported as wrong",
            "another GPU",
        ),
        (replace(WELL, findings=1), "wrong_results", "evidence of 1 faults", "another GPU"),
    ],
)
def test_each_problem_is_reported_with_advice(trial: Trial, kind: str, what: str, do: str) -> None:
    judgement = judge(trial)
    assert judgement.verdict is TrialResult.MISBEHAVED
    (problem,) = judgement.problems
    assert problem.kind == kind
    assert what in problem.what
    assert do in problem.do


def test_one_long_quantum_among_many_is_attributed_to_a_busy_host() -> None:
    assert judge(replace(WELL, progress=(*WELL.progress, make_progress(0.2)))).problems == ()


def test_small_changes_of_memory_are_not_attributed_to_the_workload() -> None:
    assert (
        judge(replace(WELL, readings=(reading(14 * GIB), reading(14 * GIB + 2**16)))).problems == ()
    )


@pytest.mark.parametrize("kind", [FailureKind.UNUSABLE, FailureKind.SPAWN])
def test_a_failure_without_a_fault_of_the_workload_is_unusable(kind: FailureKind) -> None:
    assert judge(failed(kind)).verdict is TrialResult.UNUSABLE


@pytest.mark.parametrize(
    ("trial", "reason_text"),
    [
        (replace(WELL, newcomer=GIB, processes=("job (pid 7)",), stop=None), "job (pid 7)"),
        (replace(WELL, ready=None, newcomer=GIB, stop=None), "while the workload started"),
        (replace(WELL, interrupted="SIGINT"), "ended by SIGINT"),
        (Trial(workload="work", waiting="MIG is on"), "no GPU was idle: MIG is on"),
        (Trial(workload="work"), "none was read in time"),
        (replace(WELL, stop=None, waiting="the GPU is lost"), "released: the GPU is lost"),
    ],
)
def test_a_trial_ended_by_a_newcomer_is_incomplete(trial: Trial, reason_text: str) -> None:
    judgement = judge(trial)
    assert judgement.verdict is TrialResult.INCOMPLETE
    assert reason_text in str(judgement.incomplete)


def test_a_problem_before_a_newcomer_is_still_reported() -> None:
    trial = replace(WELL, interrupted="SIGINT", progress=(make_progress(0.3), make_progress(0.3)))
    assert judge(trial).verdict is TrialResult.MISBEHAVED


@pytest.mark.parametrize("changes", [{"ready": None}, {"interrupted": "SIGINT"}])
def test_a_stop_after_a_signal_is_not_counted_as_ignored(changes: dict[str, Any]) -> None:
    trial = replace(WELL, stop=Stop(after=2.0, killed=True), **changes)
    assert judge(trial).problems == ()


def test_every_kind_of_failure_has_advice() -> None:
    for kind in FailureKind:
        assert judge(failed(kind)).problems[0].kind == kind
