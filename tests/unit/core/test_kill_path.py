"""The path from a newcomer's reading to the SIGKILL: short, one way, and before everything else."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sentinel
from sentinel.core.decide import decide
from sentinel.core.observation import Observation
from sentinel.protocol.commands import CommandReply, PauseGpus
from sentinel.protocol.gpu import GpuProcess, ProcessKind
from sentinel.protocol.views import GpuView
from tests.harness.core_scenarios import occupied, served
from tests.harness.world import GIB, World

ROOT = Path(sentinel.__file__).parent
#: The functions of the path itself, in the order in which a newcomer's reading passes them.
STAGES = (
    ("core/decide.py", "react"),
    ("core/gpu_step.py", "step_gpu"),
    ("core/attribution.py", "attribute"),
    ("core/occupancy.py", "occupancy"),
    ("core/newcomer.py", "newcomer"),
    ("core/lifecycle.py", "step"),
)
MAX_FILES = 18


class Trace:
    """The functions of Sentinel that one tick calls between its readings and its first kill."""

    def __init__(self, world: World) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self._world = world
        collect, kill = world.probe.collect, world.spawner.kill
        vars(world.probe)["collect"] = self._then(collect, after=self._begin)
        vars(world.spawner)["kill"] = self._then(kill, before=lambda: sys.setprofile(None))
        try:
            world.supervisor.tick()
        finally:
            sys.setprofile(None)
            del vars(world.probe)["collect"], vars(world.spawner)["kill"]

    @property
    def files(self) -> list[str]:
        """The files in the order of their first call, without the fakes."""
        return list(dict.fromkeys(file for file, _, _ in self.calls))

    def arguments(self, file: str, function: str) -> list[dict[str, Any]]:
        """Return the arguments of each call of a function."""
        return [values for where, name, values in self.calls if (where, name) == (file, function)]

    def _begin(self) -> None:
        self._note(sys._getframe(2), "call", None)  # the loop itself, which runs already
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT):
            return
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith("testing/"):
            self.calls.append((file, frame.f_code.co_name, dict(frame.f_locals)))

    @staticmethod
    def _then(
        call: Callable[..., Any],
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            before()
            result = call(*arguments)
            after()
            return result

        return wrapped


def crowded() -> World:
    """Return a world with an ignored process beside a stressor, and a newcomer not yet read."""
    world = occupied()
    light = GpuProcess(pid=7, kind=ProcessKind.GRAPHICS, memory=0, started=7)
    world.at(0).foreign.append(light)
    world.run_for(0.2)
    world.newcomer(0, memory=GIB)
    return world


def trace() -> Trace:
    world = crowded()
    found = Trace(world)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    return found


def test_the_path_passes_few_files() -> None:
    files = trace().files
    assert len(files) <= MAX_FILES, files


def test_the_path_passes_each_stage_once_and_in_order() -> None:
    calls = [(file, name) for file, name, _ in trace().calls]
    assert tuple(call for call in calls if call in STAGES) == STAGES


def test_a_reading_is_attributed_once() -> None:
    found = trace()
    assert len(found.arguments("core/attribution.py", "attribute")) == 1
    assert len(found.arguments("core/attribution.py", "ignored_processes")) == 1


def test_each_process_is_compared_with_the_child_once() -> None:
    compared = trace().arguments("core/observation.py", "is_own")
    pids = Counter(values["process"].pid for values in compared)
    assert len(pids) == 3, "the child, the ignored process and the newcomer"
    assert set(pids.values()) == {1}


def test_nothing_about_the_node_is_decided_before_the_kill() -> None:
    assert not [file for file in trace().files if file.startswith("core/node/")]


# --- kills come before views and replies -----------------------------------------------------


def settled() -> World:
    """Build a world with an API process and a stressor on each of two GPUs, for half a second."""
    world = served()
    world.run_for(0.5)
    return world


def record(world: World) -> list[str]:
    """Record the kills and the messages to the API process in their order."""
    order: list[str] = []
    kill, send = world.spawner.kill, world.api.send

    def kill_recorded(uuid: str, generation: int) -> None:
        order.append("kill")
        kill(uuid, generation)

    def send_recorded(message: object) -> None:
        order.append(type(message).__name__)
        send(message)

    vars(world.spawner)["kill"] = kill_recorded
    vars(world.api)["send"] = send_recorded
    return order


def test_a_kill_comes_before_the_view_and_the_view_before_the_reply() -> None:
    world = settled()
    order = record(world)
    world.newcomer(0)
    world.api.post(PauseGpus, gpus=("GPU-1",))
    world.supervisor.tick()
    assert order[0] == "kill"
    assert order.count("kill") == 1
    assert order[-1] == CommandReply.__name__
    assert GpuView.__name__ in order[1:-1]
    assert world.api.views["GPU-0"].stressor == "STOPPING"


def test_a_kill_does_not_wait_for_the_api_process() -> None:
    world = settled()
    killed_when_sent: list[bool] = []

    def broken(_: object) -> None:
        killed_when_sent.append(bool(world.spawner.killed))
        raise OSError

    vars(world.api)["send"] = broken
    world.newcomer(0)
    world.api.post(PauseGpus, gpus=("GPU-1",))
    with pytest.raises(OSError):  # noqa: PT011 - raised above
        world.supervisor.tick()
    assert killed_when_sent == [True]


def test_a_kill_does_not_wait_for_the_rest_of_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    world = settled()

    def broken(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("sentinel.supervisor.loop.conclude", broken)
    world.newcomer(0)
    world.newcomer(1)
    with pytest.raises(AssertionError):
        world.supervisor.tick()
    assert sorted(uuid for uuid, _ in world.spawner.killed) == ["GPU-0", "GPU-1"]


def test_the_two_parts_of_a_tick_are_one_decision() -> None:
    world = crowded()
    before = world.state
    decision = world.supervisor.tick()
    assert world.supervisor._readings["GPU-0"].processes is not None
    seen = Observation(now=world.now, local=world.wall, readings=dict(world.supervisor._readings))
    again = decide(before, seen)
    assert [type(action) for action in again.actions] == [type(one) for one in decision.actions]
    assert again.state.gpu_states["GPU-0"].stressor == decision.state.gpu_states["GPU-0"].stressor
