"""The checks of a workload, by the events of its trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sentinel.burnin.checks.workload_checks import (
    TrialEvidence,
    TrialResult,
    problems_of,
    remarks_of,
    result_of,
)
from sentinel.burnin.loading import load
from sentinel.config.plan import Phase, Plan
from sentinel.protocol.stressor import FailureKind

GIB = 2**30
PLAN = Plan(name="trial", phases=(Phase(name="trial", workload="work", seconds=5.0),))

Events = Sequence[Mapping[str, Any]]


def event(name: str, at: float, **fields: object) -> Mapping[str, Any]:
    return {"event": name, "at": at, "gpu": "GPU-1", "index": 0, **fields}


def status(at: float, used: int = 14 * GIB, longest: float = 0.02) -> Mapping[str, Any]:
    # The longest quantum of two reports is never the same.
    quantum = longest + at * 1e-6
    return event(
        "gpu.status", at, running_s=at, memory_used=used, longest_quantum_s=quantum, note=None
    )


def waiting(reason: str, *processes: Mapping[str, Any]) -> Mapping[str, Any]:
    return event("gpu.status", 9.0, reason=reason, processes=list(processes))


def ended(errors: int = 0) -> Mapping[str, Any]:
    return event("burnin.phase_ended", 6.0, phase="trial", seconds=5.0, checks=9, errors=errors)


def stopped(*, killed: bool = False, after: float = 0.03) -> Mapping[str, Any]:
    return event("stressor.stopped", 6.1, cause="policy", stop_s=after, killed=killed)


def yielding(at: float = 4.0, grown: int = 64 * 2**20, **fields: object) -> Mapping[str, Any]:
    known = {"evidence": "memory", "grown": grown, "processes": []}
    return event("gpu.yielding", at, **{**known, **fields})


JOB = {"pid": 7, "name": "job", "user": None}
STARTING = (event("burnin.phase_started", 0.0, phase="trial"), event("stressor.starting", 0.1))
READY = (*STARTING, event("stressor.ready", 1.0, held=14 * GIB, chunks=28, start_s=0.9))
RAN = (*READY, *(status(at) for at in (2.0, 3.0, 4.0, 5.0)))


def evidence(events: Events, **more: Any) -> TrialEvidence:
    return TrialEvidence(record=load(PLAN, events, [])["GPU-1"], **more)


def failed(kind: FailureKind, name: str = "stressor.failed") -> Events:
    return (*RAN, event(name, 5.5, kind=kind.value, reason="the reason"), ended())


WELL = (*RAN, ended(), stopped())


def test_a_workload_without_problems_passes() -> None:
    trial = evidence(WELL)
    assert (problems_of(trial), remarks_of(trial), trial.incomplete) == ([], [], None)
    assert result_of(trial) is TrialResult.WELL


SILENT = (*RAN, event("burnin.phase_ended", 6.0, phase="trial", seconds=5.0, iterations=0))


def test_a_workload_that_reports_nothing_gets_a_remark() -> None:
    trial = evidence((*SILENT, stopped()))
    assert (problems_of(trial), result_of(trial)) == ([], TrialResult.REMARKS)
    (remark,) = remarks_of(trial)
    assert (remark["kind"], remark["what"]) == ("no_report", "it reported no work in 5 s")
    assert "ctx.report()" in remark["do"]


@pytest.mark.parametrize(
    "work",
    [{"seconds": 5.0, count: 1} for count in ("iterations", "flops", "bytes", "checks")]
    + [{"seconds": 0.0, "iterations": 0}],
)
def test_any_report_will_do_and_none_is_asked_for_before_work(work: dict[str, float]) -> None:
    trial = evidence((*RAN, event("burnin.phase_ended", 6.0, phase="trial", **work), stopped()))
    assert (remarks_of(trial), result_of(trial)) == ([], TrialResult.WELL)


@pytest.mark.parametrize(
    ("trial", "result"),
    [
        (evidence((*SILENT, stopped(killed=True))), TrialResult.MISBEHAVED),
        (evidence((*SILENT, stopped()), interrupted="SIGINT"), TrialResult.INCOMPLETE),
    ],
)
def test_a_remark_hides_nothing_worse(trial: TrialEvidence, result: TrialResult) -> None:
    assert (result_of(trial), len(remarks_of(trial))) == (result, 1)


@pytest.mark.parametrize(
    ("events", "kind", "what", "do"),
    [
        (failed(FailureKind.WORKLOAD), "workload", "the reason", "Fix the error"),
        (failed(FailureKind.RETURNED), "returned", "the reason", "until ctx.pace() is False"),
        (failed(FailureKind.OUT_OF_MEMORY), "out_of_memory", "the reason", "second call"),
        (failed(FailureKind.NOT_READY), "not_ready", "the reason", "ctx.pace() twice"),
        (failed(FailureKind.HANG), "hang", "the reason", "ctx.quantum"),
        (failed(FailureKind.PEERS), "peers", "the reason", "in a phase together"),
        (failed(FailureKind.STUCK), "stuck", "the reason", "GIL"),
        (failed(FailureKind.CRASH), "crash", "the reason", "standard error"),
        (failed(FailureKind.GARBAGE), "garbage", "the reason", "socket"),
        (
            (*RAN, yielding(), ended()),
            "memory_growth",
            "grew by 64 MiB after it was ready, and no other process is listed on the GPU:",
            "before the second call",
        ),
        (
            (event("gpu.identity", 0.5, complete=False), *RAN, yielding(), ended()),
            "memory_growth",
            "(processes may be hidden here)",
            "before the second call",
        ),
        (
            (*RAN, status(5.5, used=14 * GIB + 2**24), status(5.6), ended(), stopped()),
            "memory_growth",
            "grew by 16 MiB after it was ready",
            "before the second call",
        ),
        (
            (*RAN, status(5.2, longest=0.12), status(5.6, longest=0.2), ended(), stopped()),
            "long_quantum",
            "up to 200 ms between two calls of ctx.pace(); at most 50 ms is allowed",
            "Queue less",
        ),
        (
            (*READY, status(2.0, longest=2.0), ended(), stopped()),
            "long_quantum",
            "up to 2 s between",
            "Queue less",
        ),
        (
            (*RAN, ended(), stopped(killed=True, after=2.0)),
            "slow_stop",
            "did not stop within 2 s after the request, and was killed",
            "as soon as ctx.pace() is False",
        ),
        (
            (*RAN, ended(), event("stressor.unkillable", 9.0, pid=1, since_s=3.0)),
            "slow_stop",
            "did not stop after the request",
            "as soon as ctx.pace() is False",
        ),
        (
            (*RAN, ended(errors=2), stopped()),
            "wrong_results",
            "2 results were reported as wrong",
            "another GPU",
        ),
        (
            (*RAN, event("stressor.finding", 5.0), ended(), stopped()),
            "wrong_results",
            "evidence of 1 faults",
            "another GPU",
        ),
    ],
)
def test_each_problem_is_reported_with_advice(
    events: Events, kind: str, what: str, do: str
) -> None:
    trial = evidence(events)
    assert result_of(trial) is TrialResult.MISBEHAVED
    (problem,) = problems_of(trial)
    assert problem["kind"] == kind
    assert what in problem["what"]
    assert do in problem["do"]


@pytest.mark.parametrize(
    "more",
    [
        (status(5.5, longest=0.2),),
        (status(5.5, used=14 * GIB + 2**16),),
        # The same report is in two states.
        (status(5.5, longest=0.2), {**status(5.5, longest=0.2), "at": 5.6}),
    ],
    ids=["one long quantum of a busy host", "noise of the memory", "one report twice"],
)
def test_what_is_not_the_workloads_fault_is_no_problem(more: Events) -> None:
    assert problems_of(evidence((*RAN, *more, ended(), stopped()))) == []


@pytest.mark.parametrize("kind", [FailureKind.UNUSABLE, FailureKind.MALFORMED, FailureKind.SPAWN])
def test_a_workload_that_never_ran_is_unusable(kind: FailureKind) -> None:
    trial = evidence(failed(kind, "stressor.fatal"))
    assert result_of(trial) is TrialResult.UNUSABLE
    (problem,) = problems_of(trial)
    assert (problem["kind"], problem["what"]) == (kind, "the reason")


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        (evidence((*RAN, yielding(processes=[JOB]))), "needed by job (pid 7)"),
        (evidence((*RAN, yielding(), event("gpu.busy", 4.1, processes=[JOB]))), "job (pid 7)"),
        (evidence((*RAN, yielding(evidence="computing"))), "an unlisted process that computes"),
        (evidence((*STARTING, yielding(0.5))), "while the workload started"),
        (evidence(WELL, interrupted="SIGINT"), "ended by SIGINT"),
        (
            evidence((STARTING[0], waiting("used by foreign processes", JOB))),
            "no GPU was idle: used by foreign processes: job (pid 7)",
        ),
        (evidence(STARTING[:1]), "none was read in time"),
        (evidence((*RAN, waiting("the GPU is lost"))), "released: the GPU is lost"),
    ],
)
def test_a_trial_ended_by_a_newcomer_is_incomplete(trial: TrialEvidence, reason: str) -> None:
    assert result_of(trial) is TrialResult.INCOMPLETE
    assert reason in str(trial.incomplete)


def test_a_problem_before_a_signal_is_still_reported() -> None:
    long = (status(5.2, longest=0.3), status(5.3, longest=0.3))
    trial = evidence((*RAN, *long, stopped()), interrupted="SIGINT")
    assert result_of(trial) is TrialResult.MISBEHAVED


@pytest.mark.parametrize(
    "trial",
    [
        evidence((*STARTING, stopped(killed=True))),
        evidence((*RAN, stopped(killed=True)), interrupted="SIGINT"),
    ],
    ids=["never ready", "ended by a signal"],
)
def test_a_kill_that_is_no_ignored_stop_is_no_problem(trial: TrialEvidence) -> None:
    assert problems_of(trial) == []


def test_a_failure_at_the_stop_counts_unless_a_newcomer_came() -> None:
    reported = {"kind": "workload", "reason": "boom"}
    (problem,) = problems_of(evidence(WELL, reported=reported))
    assert (problem["kind"], problem["what"]) == ("workload", "boom")
    assert not problems_of(evidence((*RAN, yielding(processes=[JOB])), reported=reported))


def test_every_kind_of_failure_has_a_check() -> None:
    for kind in FailureKind:
        assert problems_of(evidence(failed(kind)))[0]["kind"] == kind
