"""Random jobs: they are drawn within their limits, and never ask for what other jobs hold."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.host_gpus import Card
from benchmarks.random_jobs import Crowd, Job, Ledger, Run, TokenHolder, failures, plan
from sentinel.host.simulation import Registry

TOTAL = 16 * 2**30
CARDS = [Card(uuid=f"GPU-{n}", index=n, name="", total=TOTAL) for n in range(4)]


def job(number: int, share: float, gpus: int = 1) -> Job:
    return Job(number=number, arrival_s=0.0, gpus=gpus, share=share, stay_s=1.0, end="exit")


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_a_plan_has_every_kind_of_job_within_its_limits(gpus: int) -> None:
    jobs = plan(400, 600.0, gpus, random.Random(0))
    assert len(jobs) == 400
    assert [job.number for job in jobs] == list(range(400))
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    assert {job.end for job in jobs} == {"exit", "crash", "fork"}
    assert all(1 <= job.gpus <= gpus and 0 < job.share <= 1 for job in jobs)
    assert all(job.arrival_s <= 540 and job.stay_s <= 60 for job in jobs)
    assert sum(job.share == 1 for job in jobs) > 40
    assert sum(job.gpus > 1 for job in jobs) > 40


def test_the_same_seed_draws_the_same_jobs() -> None:
    assert plan(50, 60.0, 8, random.Random(3)) == plan(50, 60.0, 8, random.Random(3))
    assert plan(50, 60.0, 8, random.Random(3)) != plan(50, 60.0, 8, random.Random(4))


def test_jobs_on_a_gpu_never_hold_more_than_it_has() -> None:
    chance, ledger = random.Random(1), Ledger(CARDS)
    held: Counter[str] = Counter()
    living: dict[int, tuple[list[str], int]] = {}
    for number in range(500):
        taken = ledger.take(job(number, chance.uniform(0.02, 1), chance.randint(1, 3)), chance)
        if taken is not None:
            living[number] = taken
            held.update(dict.fromkeys(taken[0], taken[1]))
            assert len(set(taken[0])) == len(taken[0])
        if taken is None or chance.random() < 0.3:
            ended = chance.choice(list(living))
            ledger.give_back(ended)
            gpus, size = living.pop(ended)
            held.subtract(dict.fromkeys(gpus, size))
        assert max(held.values()) <= TOTAL
        assert len(ledger) == len(living)


def test_a_job_waits_for_as_many_gpus_with_room_as_it_needs() -> None:
    chance, ledger = random.Random(1), Ledger(CARDS)
    assert ledger.take(job(0, 1.0, 3), chance)
    assert ledger.take(job(1, 0.5, 2), chance) is None
    assert ledger.take(job(2, 0.5), chance)
    ledger.give_back(0)
    assert ledger.take(job(1, 0.6, 3), chance)
    assert ledger.take(job(3, 0.6), chance) is None


# --- what makes a run fail -------------------------------------------------------------------


class QuietDaemon:
    """A daemon whose events are given."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = events

    def events(self, within: float) -> tuple[dict[str, Any], ...]:
        return self._events


class SilentJobs:
    """A program of jobs whose lines are given."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self._lines = [*lines]

    def take_lines(self) -> list[dict[str, Any]]:
        lines, self._lines = self._lines, []
        return lines


def held(gpu: str) -> tuple[dict[str, Any], ...]:
    names = ("gpu.idle", "stressor.starting", "stressor.ready")
    return tuple({"event": name, "gpu": gpu, "index": 0} for name in names)


def make_run(folder: Path, events: tuple[dict[str, Any], ...] = (), jobs: Any = None) -> Run:
    registry = Registry.create(folder, 1)
    (gpu,) = registry.gpus()
    card = Card(uuid=gpu.uuid, index=0, name=gpu.name, total=gpu.memory_total)
    return Run(
        daemon=cast("Any", QuietDaemon(*(events or held(gpu.uuid)))),
        jobs=jobs or cast("Any", SilentJobs()),
        cards=[card],
        registry=registry,
        chance=random.Random(0),
    )


def make_crowd(holder: TokenHolder | None = None) -> Crowd:
    crowd = Crowd(cast("Any", None), 0, 0)
    crowd.holder = holder
    return crowd


def test_a_run_without_any_fault_passes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.occupy()
    assert failures(run, 0, make_crowd()) == []


def two_stressors(run: Run) -> None:
    run.wrong["two stressors on a GPU"] += 1


def refusal(run: Run) -> None:
    run.refused.append(7)


def crash(run: Run) -> None:
    run.failed.append({"event": "stressor.failed", "reason": "it crashed"})


def illegal_event(run: Run) -> None:
    run.histories.add({"event": "stressor.starting", "gpu": run.cards[0].uuid, "index": 0})
    run.histories.states[run.cards[0].uuid] = "RUNNING"


def free_gpu(run: Run) -> None:
    run.histories.states[run.cards[0].uuid] = "STOPPED"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (two_stressors, "1 times two stressors on a GPU"),
        (refusal, "1 jobs did not get their memory"),
        (crash, "stressor.failed: it crashed"),
        (illegal_event, "stressor.starting on GPU 0: its stressor is RUNNING"),
        (free_gpu, "0 of 1 GPUs are held at the end"),
    ],
)
def test_each_fault_fails_the_run(
    tmp_path: Path, fault: Callable[[Run], None], message: str
) -> None:
    run = make_run(tmp_path)
    run.occupy()
    fault(run)
    assert failures(run, 0, make_crowd()) == [message]


def test_a_job_that_has_not_ended_fails_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.occupy()
    assert failures(run, 1, make_crowd()) == ["0 of 1 jobs ended"]


def test_a_holder_of_the_token_without_an_answer_fails_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.occupy()
    holder = TokenHolder(1, "token")  # no process listens at port 1
    holder.start()
    until = time.monotonic() + 60
    while not holder.failures:
        assert time.monotonic() < until
        time.sleep(0.01)
    holder.end()
    (failure,) = failures(run, 0, make_crowd(holder))
    assert failure.startswith("the holder of the token: {'ConnectionRefusedError'")


@pytest.mark.parametrize("end", ["exit", "fork", "crash"])
def test_a_job_is_done_once_its_last_process_has_left(tmp_path: Path, end: str) -> None:
    job = Job(number=0, arrival_s=0.0, gpus=1, share=0.5, stay_s=0.0, end=end)
    lines = [
        {"job": 0, "event": "began"},
        {"job": 0, "event": "got", "got": True, "wait_s": 0.25},
        {"job": 0, "event": "left"},
        *([{"job": 0, "event": "ended", "got": True}] if end == "fork" else []),
    ]

    class Jobs(SilentJobs):
        def send_line(self, line: str) -> None:
            self._lines = lines

    run = make_run(tmp_path, jobs=Jobs())
    run.work([job])
    assert (run.done, run.waits_s, run.refused) == (1, [0.25], [])
