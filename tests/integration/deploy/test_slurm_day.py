"""A day of 16 nodes: jobs, idle burn-ins, a faulty GPU, a lost controller and a lost node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.harness.slurm_cluster import needs_slurm, slurm_cluster
from tests.harness.slurm_day import BURNED_IN, OPTIONS, PLAIN, WITH_DAEMON, Day
from tests.harness.timing import TIMEOUT_S

#: Slurm's programs of a node, each of which records its time.
HOOKS = ("prolog", "epilog", "healthcheck")
FAULTY, LOST = WITH_DAEMON[2], WITH_DAEMON[4]


def spend(day: Day) -> None:
    """Let the events of a day happen."""
    day.begin()

    day.finish(day.start((*WITH_DAEMON, *PLAIN), 2), "morning")
    day.finish(day.start(BURNED_IN[:2], 2), "preemption")
    day.wait(lambda: all(day.holds(name) for name in (*WITH_DAEMON, *BURNED_IN)))

    # Jobs outlast their controller, and no node is drained without one.
    working = day.start((*WITH_DAEMON[:2], *PLAIN[:2]), 45)
    day.wait(lambda: all(job.got() for job in working))
    day.nodes[FAULTY].write_verdict(0, "FAIL")
    day.lose_controller(lambda: day.verdict(FAULTY) == "FAIL")
    day.wait(lambda: day.drained() == {FAULTY})
    day.finish(working, "outage")
    day.acknowledge(FAULTY)

    dying = day.start((LOST,), 600)
    day.wait(lambda: all(job.got() for job in dying))
    day.lose(LOST)
    assert "drain" in day.cluster.state(FAULTY)  # until a burn-in has passed
    day.nodes[FAULTY].write_verdict(0, "PASS")
    day.restore(LOST)
    day.finish(dying, "lost")
    day.wait(lambda: day.cluster.state(FAULTY) == "idle")

    day.finish(day.start((*WITH_DAEMON, *PLAIN), 2), "evening")
    day.wait(lambda: all(day.holds(name) for name in (*WITH_DAEMON, *BURNED_IN)))


@pytest.mark.long
@needs_slurm
@pytest.mark.timeout(20 * TIMEOUT_S)
@pytest.mark.usefixtures("fake_torch")
def test_every_job_gets_its_gpu_and_only_the_faulty_node_is_drained(tmp_path: Path) -> None:
    with slurm_cluster(**OPTIONS) as cluster:
        day = Day(cluster, tmp_path)
        try:
            spend(day)
        finally:
            hooks = [hook for name in HOOKS for hook in day.hooks(name)]
            if file := os.environ.get("SLURM_DAY_RECORD"):
                records = (*day.record, *day.jobs, *hooks)
                Path(file).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert day.drained() == {FAULTY}
    gone = {change["node"] for change in day.record if change["state"] == "lost"}
    assert gone == {"controller", LOST}
    assert [job for job in day.jobs if not job["got"]] == []
    assert {job["kind"] for job in day.jobs if job["code"]} <= {"lost"}
    assert all(hook["took_s"] < TIMEOUT_S for hook in hooks if hook["kind"] == "prolog")
