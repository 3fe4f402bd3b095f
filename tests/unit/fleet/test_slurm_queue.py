"""What the answers of squeue mean, and when a job that it does not list is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from sentinel.fleet import slurm_engine
from sentinel.fleet.engine import EngineError, Task, TaskState
from sentinel.fleet.slurm_engine import JobList, parse_jobs
from tests.harness.example_fleet import SUBMITTED, fleet_run

SEE, RELEASE = "see: scontrol show job 12", "release it: scontrol release 12"
RUN = fleet_run("n1", id="sentinel-x", tasks={"n1": "12"}, submitted=SUBMITTED)


@pytest.mark.parametrize(
    ("state", "over", "waits"),
    [
        *((name, False, False) for name in ("RUNNING", "COMPLETING", "REQUEUED", "A_LATER_STATE")),
        ("PENDING", False, True),
        *((name, True, False) for name in ("COMPLETED", "CANCELLED", "NODE_FAIL")),
    ],
)
def test_states_of_jobs(state: str, *, over: bool, waits: bool) -> None:
    ((job, found),) = parse_jobs(f"12|{state}|7|None\n")
    assert job == "12"
    assert (found.task.state is TaskState.OVER) == over
    assert (found.task.state is TaskState.WAITING) == waits
    assert found.is_alive is not over
    assert found.task.reason == (f"job 12 has ended: {state}" if over else "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("PENDING|7|Resources", {"reason": "Resources"}),
        ("PENDING|7|a|b", {"reason": "a|b"}),
        ("PENDING|7|QOSMaxJobsPerUserLimit", {"reason": "QOSMaxJobsPerUserLimit"}),
        ("PENDING|7|PartitionTimeLimit", {"hold": f"PartitionTimeLimit; {SEE}"}),
        (
            "PENDING|7|QOSMaxWallDurationPerJobLimit",
            {"hold": f"QOSMaxWallDurationPerJobLimit; {SEE}"},
        ),
        ("PENDING|0|JobHeldUser", {"awaits_turn": True}),
        # These are what Slurm 22.05 prints for hold, requeuehold and a prolog that fails.
        ("PENDING|0|JobHeldAdmin", {"hold": f"held: JobHeldAdmin; {RELEASE}"}),
        (
            "PENDING|0|launch failed requeued held",
            {"hold": f"held: launch failed requeued held; {RELEASE}"},
        ),
        (
            "SPECIAL_EXIT|0|job requeued in held state",
            {"hold": f"held: job requeued in held state; {RELEASE}"},
        ),
    ],
)
def test_why_a_job_waits(line: str, why: dict[str, Any]) -> None:
    ((_, found),) = parse_jobs(f"12|{line}\n")
    assert found.task == Task(state=TaskState.WAITING, **why)
    assert found.is_alive


class FakeController:
    """Answers for one job; the time is that of the test."""

    def __init__(self) -> None:
        self.line = ""
        self.min_age = "MinJobAge               = 300 sec"
        self.now = SUBMITTED.timestamp()
        self.asked: list[Sequence[str]] = []

    def run(self, words: Sequence[str], text: str = "") -> str:
        del text
        self.asked.append(words)
        if words[0] == "squeue":
            return self.line
        if not self.min_age:
            raise EngineError("scontrol failed")
        return f"Configuration data\n{self.min_age}\nMpiDefault = none\n"


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> FakeController:
    found = FakeController()
    monkeypatch.setattr(slurm_engine, "run_tool", found.run)
    monkeypatch.setattr(time, "time", lambda: found.now)
    return found


LOST = (
    "Slurm does not know job 12 any more (a restarted controller forgot it):"
    " sentinel fleet resume sentinel-x"
)


def reason(jobs: JobList) -> str:
    task = jobs.look(RUN)["n1"]
    assert task.state is TaskState.OVER
    return task.reason


def test_a_job_that_was_just_submitted_and_is_unknown_was_forgotten(
    controller: FakeController,
) -> None:
    jobs = JobList()
    controller.now += 60
    assert reason(jobs) == LOST
    controller.now += 1000  # it stays so
    assert reason(jobs) == LOST
    assert len([words for words in controller.asked if words[0] == "scontrol"]) == 1


def test_a_job_that_ended_long_ago_is_over_and_no_more_is_said(controller: FakeController) -> None:
    controller.now += 280
    assert reason(JobList()) == ""


def test_a_job_that_was_just_seen_and_is_unknown_was_forgotten(controller: FakeController) -> None:
    jobs = JobList()
    controller.now += 5000
    controller.line = "12|RUNNING|7|None\n"
    assert jobs.look(RUN)["n1"].state is TaskState.RUNNING
    controller.now += 60
    controller.line = ""
    assert reason(jobs) == LOST
    controller.line = "12|RUNNING|7|None\n"  # a controller that begins lists its jobs late
    assert jobs.look(RUN)["n1"].state is TaskState.RUNNING
    controller.line = "12|TIMEOUT|7|None\n"
    assert reason(jobs) == "job 12 has ended: TIMEOUT"


@pytest.mark.parametrize("min_age", ["", "MinJobAge = 2 sec", "MinJobAge = unknown"])
def test_nothing_is_said_if_the_controller_keeps_no_records(
    controller: FakeController, min_age: str
) -> None:
    controller.min_age = min_age
    controller.now += 1
    assert reason(JobList()) == ""
