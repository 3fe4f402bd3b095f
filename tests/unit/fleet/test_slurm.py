"""What is asked of Slurm, what its answers mean, and when a job that it does not list is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import ConfigError
from sentinel.fleet import slurm_engine
from sentinel.fleet.engine import EngineError, NodeTask, TaskState
from sentinel.fleet.run_folder import FleetFolder, FleetRun, new_id
from sentinel.fleet.slurm_engine import JobList, Slurm, choose_nodes, parse_jobs
from tests.harness.example_fleet import SUBMITTED, fleet_run

NODES = tuple(f"n{number}" for number in range(1, 7))
OTHERS = "700"


@dataclass
class FakeSlurm:
    """A queue of jobs and a list of nodes behind the commands that are used."""

    #: The folder of the run, and the run before it is submitted.
    folder: FleetFolder
    new: FleetRun
    #: The state and the reason of each job, by id; all have the name of the run.
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: The jobs of other users.
    others: set[str] = field(default_factory=lambda: {OTHERS})
    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NODES, "idle"))
    scripts: list[str] = field(default_factory=list)
    submitted: list[Sequence[str]] = field(default_factory=list)
    #: The command that fails.
    fails: str = ""

    def run(self, words: Sequence[str], text: str = "") -> str:  # noqa: C901 - a case for each command
        name, *rest = words
        if self.fails in {name, " ".join(words[:2])}:
            raise EngineError(f"{name} failed")
        match name, *rest:
            case "sbatch", *_:
                job = str(100 + len(self.submitted))
                self.jobs[job] = ("PENDING", "JobHeldUser")
                self.submitted.append(words)
                self.scripts.append(text)
                return f"{job}\n"
            case "scontrol", "release", ids:
                for job in ids.split(","):
                    if self.jobs[job] == ("PENDING", "JobHeldUser"):
                        self.jobs[job] = ("RUNNING", "None")
                return ""
            case "squeue", *_:
                return self._list(rest)
            case "scancel", *_:
                self._cancel(rest)
                return ""
            case "scontrol", "show", *names:
                return "\n".join(names[1].split(",")) if names[1:] else "MinJobAge = 300 sec"
            case "sinfo", *_, "--format=%P":
                return "other\ngpu*\n"
            case "sinfo", *_:
                return "\n".join(f"{node}|{state}" for node, state in self.states.items())
        raise AssertionError(words)

    def _list(self, options: Sequence[str]) -> str:
        if f"--name={self.new.id}" not in options:
            return ""
        return "\n".join(
            f"{job}|{state}|{0 if 'eld' in reason else 7}|{reason}"
            for job, (state, reason) in self.jobs.items()
        )

    def _cancel(self, words: Sequence[str]) -> None:
        names = [word for word in words if word.startswith("--name=")]
        given = {word for word in words if not word.startswith("--")}
        if not names:
            self.others -= given
        if not names or names == [f"--name={self.new.id}"]:
            for job in given or set(self.jobs):
                self.jobs.pop(job, None)

    def submit(self) -> FleetRun:
        """Submit the run."""
        return Slurm(self.folder).submit(self.new, self.folder, NODES)

    def count(self, state: str) -> int:
        return sum(job[0] == state for job in self.jobs.values())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, folder: FleetFolder) -> FakeSlurm:
    name, command = new_id("x", SUBMITTED, folder.path), ("sentinel", "fleet", "run-node")
    given = {"options": ("--partition=gpu",), "command": (*command, str(folder.path))}
    run = fleet_run(*NODES, id=name, batch=2, **given)
    found = FakeSlurm(folder=folder, new=run)
    monkeypatch.setattr(slurm_engine, "run_tool", found.run)
    return found


def test_each_node_has_a_job_of_its_own_and_a_batch_begins(fake: FakeSlurm) -> None:
    run = fake.submit()
    assert fake.folder.read() == run
    assert set(run.tasks) == set(NODES)
    assert len(set(run.tasks.values())) == len(NODES)
    assert fake.count("RUNNING") == fake.new.batch
    for node, words in zip(NODES, fake.submitted, strict=True):
        assert f"--nodelist={node}" in words
        assert "--partition=gpu" in words
        assert not [word for word in words if "gres" in word or "gpus" in word]
    assert fake.scripts[0] == f"#!/bin/sh\nexec sentinel fleet run-node '{fake.folder.path}'\n"


def test_a_task_that_ends_lets_the_next_begin_and_never_too_many(fake: FakeSlurm) -> None:
    run = fake.submit()
    for number, node in enumerate(NODES):
        Slurm(fake.folder).advance(run, ending=node)
        del fake.jobs[run.tasks[node]]
        assert fake.count("RUNNING") == min(fake.new.batch, len(NODES) - 1 - number)
    assert fake.jobs == {}


def test_two_tasks_that_end_at_once_are_made_up_for(fake: FakeSlurm) -> None:
    run = fake.submit()
    Slurm(fake.folder).advance(run, ending="n1")
    Slurm(fake.folder).advance(run, ending="n2")  # n1 is still in the queue
    assert fake.count("RUNNING") <= 2 + fake.new.batch
    del fake.jobs[run.tasks["n1"]], fake.jobs[run.tasks["n2"]]
    Slurm(fake.folder).advance(run)
    assert fake.count("RUNNING") == fake.new.batch


def test_a_node_that_is_down_takes_one_turn_and_no_more(fake: FakeSlurm) -> None:
    run = fake.submit()
    fake.jobs[run.tasks["n1"]] = ("PENDING", "ReqNodeNotAvail")
    fake.states["n1"] = "down*"
    for node in NODES[1:]:
        Slurm(fake.folder).advance(run, ending=node)
        del fake.jobs[run.tasks[node]]
    tasks = Slurm(fake.folder).tasks(run)
    assert tasks["n1"].state is TaskState.WAITING
    assert tasks["n1"].node_unavailable
    assert {tasks[node].state for node in NODES[1:]} == {TaskState.OVER}


@pytest.mark.parametrize("fails", ["sbatch", "scontrol release"])
def test_nothing_remains_of_a_run_that_was_refused(fake: FakeSlurm, fails: str) -> None:
    fake.fails = fails
    with pytest.raises(EngineError):
        fake.submit()
    assert fake.jobs == {}
    assert not fake.folder.run_file.exists()


def test_a_run_that_goes_on_keeps_its_file_if_slurm_refuses(fake: FakeSlurm) -> None:
    run = fake.submit()
    fake.fails = "sbatch"
    with pytest.raises(EngineError):
        Slurm(fake.folder).submit(run, fake.folder, NODES[:1])
    assert fake.folder.read() == run


def test_a_resumption_begins_no_more_than_a_batch(fake: FakeSlurm) -> None:
    run = fake.submit()
    Slurm(fake.folder).advance(run, ending="n1")
    del fake.jobs[run.tasks["n1"]]  # n2 and n3 run, the others are held
    again = Slurm(fake.folder).submit(run, fake.folder, ["n1"])
    assert fake.count("RUNNING") == fake.new.batch
    for node in ("n2", "n3", "n4", "n5", "n6", "n1"):
        Slurm(fake.folder).advance(again, ending=node)
        fake.jobs.pop(again.tasks[node])
        assert fake.count("RUNNING") <= fake.new.batch
    assert fake.jobs == {}


def test_a_percent_sign_of_the_folder_is_none_of_sbatch(fake: FakeSlurm, tmp_path: Path) -> None:
    folder = FleetFolder(path=tmp_path / "50%j")
    folder.create()
    Slurm(folder).submit(fake.new, folder, NODES[:1])
    assert f"--output={tmp_path}/50%%j/logs/n1.txt" in fake.submitted[0]


def test_a_partition_has_all_nodes_and_a_number_only_those_that_can_be_used(
    fake: FakeSlurm,
) -> None:
    fake.states |= {"n1": "down*", "n2": "drained", "n3": "allocated", "n4": "idle*", "n5": "mixed"}
    assert choose_nodes("gpu", None, None) == NODES
    assert choose_nodes(None, None, None) == NODES
    assert choose_nodes("gpu", 2, None) == ("n6", "n3")
    with pytest.raises(EngineError, match="--nodes 4: 3 of 6 nodes can be used"):
        choose_nodes("gpu", 4, None)
    assert choose_nodes(None, None, "n2,n1") == ("n2", "n1")
    with pytest.raises(EngineError, match="Slurm has no node x9") as refused:
        choose_nodes(None, None, "n1,x9")
    assert refused.value.remedy == "`sinfo --Node --all` lists the nodes."


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        *((state, True) for state in ("idle", "mixed", "allocated", "completing")),
        *((state, True) for state in ("reserved", "planned")),
        ("idle~", True),  # powered down, and started for a job
        *((state, False) for state in ("down", "idle*", "draining", "drained*")),
        *((state, False) for state in ("inval", "powering_down", "reboot^")),
    ],
)
def test_in_which_states_a_task_can_begin(fake: FakeSlurm, state: str, *, usable: bool) -> None:
    fake.states = {"n1": state}
    assert ("n1" not in slurm_engine.unavailable(["n1"])) == usable


def test_a_run_without_tasks_has_none_that_runs(fake: FakeSlurm) -> None:
    tasks = Slurm(fake.folder).tasks(replace(fake.new, tasks={}))
    assert {task.state for task in tasks.values()} == {TaskState.OVER}


def test_a_folder_that_cannot_be_written_starts_nothing(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: FleetFolder, run: FleetRun) -> None:
        raise ConfigError("No space left on device")

    monkeypatch.setattr(FleetFolder, "write", full)
    with pytest.raises(ConfigError):
        fake.submit()
    assert fake.jobs == {}


# --- jobs of others --------------------------------------------------------------------------


def test_the_jobs_of_another_folder_are_left_alone(fake: FakeSlurm, tmp_path: Path) -> None:
    run = fake.submit()
    before = dict(fake.jobs)
    forged = FleetFolder(path=tmp_path / "forged")
    forged.create()
    for command in (run.command, (*run.command[:-1], str(forged.path)), ()):
        named = replace(run, command=command)
        with pytest.raises(EngineError, match="jobs that were not begun with this folder"):
            Slurm(forged).cancel(named)
        Slurm(forged).advance(named)
    assert fake.jobs == before
    assert Slurm(fake.folder).tasks(run)["n1"].state is TaskState.RUNNING


def test_a_folder_is_the_same_by_another_path(fake: FakeSlurm, tmp_path: Path) -> None:
    run = fake.submit()
    (tmp_path / "link").symlink_to(fake.folder.path)
    Slurm(FleetFolder(path=tmp_path / "link")).cancel(run)
    assert fake.jobs == {}


def test_a_folder_that_was_moved_can_be_cancelled(fake: FakeSlurm, tmp_path: Path) -> None:
    run = fake.submit()
    moved = FleetFolder(path=fake.folder.path.rename(tmp_path / "moved"))
    fake.folder.node("n1").mkdir(parents=True)  # by a task that still works
    Slurm(moved).cancel(run)
    assert fake.jobs == {}


@pytest.mark.parametrize("forged", ["owner", "mode", "link", "other", "none", "copy"])
def test_a_folder_that_only_looks_as_if_it_was_moved_ends_no_job(
    fake: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forged: str,
) -> None:
    run = fake.submit()
    before = dict(fake.jobs)
    moved = FleetFolder(path=fake.folder.path.rename(tmp_path / "moved"))
    if forged == "owner":
        monkeypatch.setattr("os.geteuid", lambda: moved.run_file.stat().st_uid + 1)
    elif forged == "mode":
        moved.run_file.chmod(0o664)
    elif forged == "link":
        moved.run_file.symlink_to(moved.run_file.rename(tmp_path / "elsewhere"))
    elif forged == "other":  # replaced since it was read
        moved.write(replace(run, id=new_id("y", SUBMITTED, fake.folder.path)))
    elif forged == "none":
        moved.run_file.unlink()
    else:
        fake.folder.path.mkdir()
        fake.folder.write(run)
    with pytest.raises(EngineError, match="jobs that were not begun with this folder"):
        Slurm(moved).cancel(run)
    Slurm(moved).advance(run)
    assert fake.jobs == before


def test_an_id_that_slurm_gave_to_another_job_is_not_cancelled(fake: FakeSlurm) -> None:
    run = fake.submit()
    del fake.jobs[run.tasks["n1"]]  # forgotten, and given to another user
    forgotten = replace(run, tasks={**run.tasks, "n1": OTHERS})
    Slurm(fake.folder).cancel(forgotten)
    assert fake.others == {OTHERS}
    assert fake.jobs == {}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        *(({"tasks": {"n1": job}}, "tasks.n1: .* is not the id of a job")
          for job in ("", "--user=root", "1,2", "1 2", "17_0", "\u0661")),
        *(({"id": name}, ".* is not the id of a run") for name in ("", "a,b", "--me", "a b")),
    ],
)  # fmt: skip
def test_an_id_that_is_no_single_number_or_name_is_refused(
    fake: FakeSlurm, changed: dict[str, Any], what: str
) -> None:
    fake.folder.write(replace(fake.new, **changed))
    with pytest.raises(ConfigError, match=f"fleet.json: {what}"):
        fake.folder.read()


# --- what squeue answers -------------------------------------------------------------------------

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
    assert found.task == NodeTask(state=TaskState.WAITING, **why)
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
