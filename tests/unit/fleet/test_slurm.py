"""What is asked of Slurm, and what its answers mean, with a table in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sentinel.errors import ConfigError
from sentinel.fleet import slurm
from sentinel.fleet.engine import EngineError, TaskState
from sentinel.fleet.run_file import FleetFolder, FleetRun
from sentinel.fleet.slurm import Slurm, choose_nodes, parse_tasks

NODES = tuple(f"n{number}" for number in range(1, 7))
RUN = FleetRun(
    id="sentinel-x",
    engine="slurm",
    plan="x",
    plan_hash="0" * 16,
    nodes=NODES,
    started=datetime(2026, 11, 23, tzinfo=UTC),
    batch=2,
    command=("sentinel", "fleet", "run-node", "/shared/a run"),
    options=("--partition=gpu",),
)


@dataclass
class FakeSlurm:
    """A queue of jobs and a list of nodes behind the commands that are used."""

    #: The state and the reason of each job, by id.
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
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
                self.jobs[job] = ("PD", "JobHeldUser")
                self.submitted.append(words)
                self.scripts.append(text)
                return f"{job}\n"
            case "scontrol", "release", ids:
                for job in ids.split(","):
                    if self.jobs[job] == ("PD", "JobHeldUser"):
                        self.jobs[job] = ("R", "None")
                return ""
            case "squeue", *_:
                return "\n".join(f"{job}|{one[0]}|{one[1]}" for job, one in self.jobs.items())
            case "scancel", "--quiet", *ids:
                named = any(word.startswith("--name=") for word in ids)
                for job in list(self.jobs) if named else ids:
                    self.jobs.pop(job, None)
                return ""
            case "scontrol", "show", "hostnames", names:
                return "\n".join(names.split(","))
            case "sinfo", *_, "--format=%P":
                return "other\ngpu*\n"
            case "sinfo", *_:
                return "\n".join(f"{node}|{state}" for node, state in self.states.items())
        raise AssertionError(words)

    def count(self, state: str) -> int:
        return sum(one[0] == state for one in self.jobs.values())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    found = FakeSlurm()
    monkeypatch.setattr(slurm, "run_tool", found.run)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    found = FleetFolder(path=tmp_path)
    found.create()
    return found


def test_each_node_has_a_job_of_its_own_and_a_batch_begins(
    fake: FakeSlurm, folder: FleetFolder
) -> None:
    run = Slurm().submit(RUN, folder, NODES)
    assert folder.read() == run
    assert set(run.tasks) == set(NODES)
    assert len(set(run.tasks.values())) == len(NODES)
    assert fake.count("R") == RUN.batch
    for node, words in zip(NODES, fake.submitted, strict=True):
        assert f"--nodelist={node}" in words
        assert "--partition=gpu" in words
        assert not [word for word in words if "gres" in word or "gpus" in word]
    assert fake.scripts[0] == "#!/bin/sh\nexec sentinel fleet run-node '/shared/a run'\n"


def test_a_task_that_ends_lets_the_next_begin_and_never_too_many(
    fake: FakeSlurm, folder: FleetFolder
) -> None:
    run = Slurm().submit(RUN, folder, NODES)
    for number, node in enumerate(NODES):
        Slurm().advance(run, ending=node)
        del fake.jobs[run.tasks[node]]
        assert fake.count("R") == min(RUN.batch, len(NODES) - 1 - number)
    assert fake.jobs == {}


def test_two_tasks_that_end_at_once_are_made_up_for(fake: FakeSlurm, folder: FleetFolder) -> None:
    run = Slurm().submit(RUN, folder, NODES)
    Slurm().advance(run, ending="n1")
    Slurm().advance(run, ending="n2")  # n1 is still in the queue
    assert fake.count("R") <= 2 + RUN.batch
    del fake.jobs[run.tasks["n1"]], fake.jobs[run.tasks["n2"]]
    Slurm().advance(run)
    assert fake.count("R") == RUN.batch


def test_a_node_that_is_down_takes_one_turn_and_no_more(
    fake: FakeSlurm, folder: FleetFolder
) -> None:
    run = Slurm().submit(RUN, folder, NODES)
    fake.jobs[run.tasks["n1"]] = ("PD", "ReqNodeNotAvail")
    fake.states["n1"] = "down*"
    for node in NODES[1:]:
        Slurm().advance(run, ending=node)
        del fake.jobs[run.tasks[node]]
    tasks = Slurm().tasks(run)
    assert tasks["n1"].state is TaskState.WAITING
    assert tasks["n1"].node_unavailable
    assert {tasks[node].state for node in NODES[1:]} == {TaskState.OVER}


@pytest.mark.parametrize("fails", ["sbatch", "scontrol release"])
def test_nothing_remains_of_a_run_that_was_refused(
    fake: FakeSlurm, folder: FleetFolder, fails: str
) -> None:
    fake.fails = fails
    with pytest.raises(EngineError):
        Slurm().submit(RUN, folder, NODES)
    assert fake.jobs == {}
    assert not folder.run_file.exists()


def test_a_run_that_goes_on_keeps_its_file_if_slurm_refuses(
    fake: FakeSlurm, folder: FleetFolder
) -> None:
    run = Slurm().submit(RUN, folder, NODES)
    fake.fails = "sbatch"
    with pytest.raises(EngineError):
        Slurm().submit(run, folder, NODES[:1])
    assert folder.read() == run


def test_a_resumption_begins_no_more_than_a_batch(fake: FakeSlurm, folder: FleetFolder) -> None:
    run = Slurm().submit(RUN, folder, NODES)
    Slurm().advance(run, ending="n1")
    del fake.jobs[run.tasks["n1"]]  # n2 and n3 run, the others are held
    again = Slurm().submit(run, folder, ["n1"])
    assert fake.count("R") == RUN.batch
    for node in ("n2", "n3", "n4", "n5", "n6", "n1"):
        Slurm().advance(again, ending=node)
        fake.jobs.pop(again.tasks[node])
        assert fake.count("R") <= RUN.batch
    assert fake.jobs == {}


def test_a_percent_sign_of_the_folder_is_none_of_sbatch(fake: FakeSlurm, tmp_path: Path) -> None:
    folder = FleetFolder(path=tmp_path / "50%j")
    folder.create()
    Slurm().submit(RUN, folder, NODES[:1])
    assert f"--output={tmp_path}/50%%j/logs/n1.txt" in fake.submitted[0]


def test_some_tasks_or_all_are_cancelled(fake: FakeSlurm, folder: FleetFolder) -> None:
    run = Slurm().submit(RUN, folder, NODES)
    Slurm().cancel(run, ["n3"])
    assert len(fake.jobs) == len(NODES) - 1
    Slurm().cancel(run)
    assert fake.jobs == {}


def test_states_of_jobs() -> None:
    found = dict(parse_tasks("1|R|None\n2|PD|Resources\n3|CG|None\n4|PD|JobHeldUser\n5|PD|a|b\n"))
    assert [one.state for one in found.values()] == [
        TaskState.RUNNING,
        TaskState.WAITING,
        TaskState.RUNNING,
        TaskState.WAITING,
        TaskState.WAITING,
    ]
    assert found["2"].reason == "Resources"
    assert found["4"].is_held
    assert found["5"].reason == "a|b"


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
    with pytest.raises(EngineError, match="Slurm has no node x9"):
        choose_nodes(None, None, "n1,x9")


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("idle", True),
        ("mixed", True),
        ("allocated", True),
        ("completing", True),
        ("reserved", True),
        ("planned", True),
        ("idle~", True),  # powered down, and started for a job
        ("down", False),
        ("idle*", False),
        ("draining", False),
        ("drained*", False),
        ("inval", False),
        ("powering_down", False),
        ("reboot^", False),
    ],
)
def test_in_which_states_a_task_can_begin(fake: FakeSlurm, state: str, *, usable: bool) -> None:
    fake.states = {"n1": state}
    assert ("n1" not in slurm.unavailable(["n1"])) == usable


def test_a_run_without_tasks_has_none_that_runs(fake: FakeSlurm) -> None:
    tasks = Slurm().tasks(replace(RUN, tasks={}))
    assert {task.state for task in tasks.values()} == {TaskState.OVER}


def test_a_folder_that_cannot_be_written_starts_nothing(
    fake: FakeSlurm, folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: FleetFolder, run: FleetRun) -> None:
        raise ConfigError("No space left on device")

    monkeypatch.setattr(FleetFolder, "write", full)
    with pytest.raises(ConfigError):
        Slurm().submit(RUN, folder, NODES)
    assert fake.jobs == {}
