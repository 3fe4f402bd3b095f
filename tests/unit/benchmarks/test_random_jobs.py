"""Random jobs: they are drawn within their limits, and never ask for what other jobs hold."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.host_gpus import Card
from benchmarks.random_jobs import Job, Ledger, plan

TOTAL = 16 * 2**30
CARDS = [Card(uuid=f"GPU-{n}", index=n, name="", total=TOTAL) for n in range(4)]


def job(number: int, share: float, gpus: int = 1) -> Job:
    return Job(number=number, arrival_s=0.0, gpus=gpus, share=share, stay_s=1.0, end="exit")


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_a_plan_has_every_kind_of_job_within_its_limits(gpus: int) -> None:
    jobs = plan(400, 600.0, gpus, random.Random(0))
    assert len(jobs) == 400
    assert [one.number for one in jobs] == list(range(400))
    assert [one.arrival_s for one in jobs] == sorted(one.arrival_s for one in jobs)
    assert {one.end for one in jobs} == {"exit", "crash", "fork"}
    assert all(1 <= one.gpus <= gpus and 0 < one.share <= 1 for one in jobs)
    assert all(one.arrival_s <= 540 and one.stay_s <= 60 for one in jobs)
    assert sum(one.share == 1 for one in jobs) > 40
    assert sum(one.gpus > 1 for one in jobs) > 40


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
