"""The supervisor knows for how long it was stopped, whatever it was waiting for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Pause
from sentinel.core.state import State
from sentinel.protocol.commands import Caller
from sentinel.supervisor.loop import GATHER_S, MAX_IDLE_SLEEP_S, MAX_SLEEP_S
from tests.harness.world import FakeClock, World

STOP_S = 5.0


class StoppedOnce(FakeClock):
    """A clock of a process that sleeps through its waits, and is stopped during one of them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._passing = world
        self.stop_s = 0.0

    def wait(self, files: Sequence[int], timeout: float) -> bool:
        """Sleep for all of the timeout, and longer if the process is stopped at its beginning."""
        self._passing.pass_time(max(timeout, self.stop_s))
        self.stop_s = 0.0
        return False


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("sleeps", [0, 1, 2, 3])
def test_the_length_of_a_stop_is_right(held: bool, sleeps: int) -> None:  # noqa: FBT001 - a case
    world = World(config=Config(poll=2.0))
    clock = StoppedOnce(world)
    world.supervisor._clock = clock
    if held:
        world.run(lambda: world.events("stressor.ready"))
    else:
        world.state = _paused(world)
        world.run_for(1.0)
    assert not world.events("sentinel.stalled")
    for _ in range(sleeps):
        world.supervisor.turn()
    clock.stop_s = STOP_S
    world.run(lambda: world.events("sentinel.stalled"))
    (event,) = world.events("sentinel.stalled")
    known = STOP_S - (MAX_SLEEP_S if held else MAX_IDLE_SLEEP_S)
    assert known <= float(str(event.fields["s"])) <= STOP_S


@pytest.mark.parametrize("where", ["gathering", "deciding"])
def test_a_stop_outside_the_wait_counts_as_well(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(config=Config(poll=2.0))
    clock = StoppedOnce(world)
    world.supervisor._clock = clock
    world.state = _paused(world)
    world.run_for(1.0)

    def stop(*_: object) -> None:
        world.pass_time(STOP_S)
        monkeypatch.undo()

    def gather(files: Sequence[int], timeout: float) -> bool:
        if timeout == GATHER_S:
            stop()
        return StoppedOnce.wait(clock, files, timeout)

    if where == "gathering":
        monkeypatch.setattr(clock, "wait", gather)
    else:
        monkeypatch.setattr(world.supervisor, "_notify", stop)
    world.run(lambda: world.events("sentinel.stalled"))
    (event,) = world.events("sentinel.stalled")
    assert STOP_S - MAX_SLEEP_S <= float(str(event.fields["s"])) <= STOP_S + GATHER_S


def _paused(world: World) -> State:
    pause = Pause(since=0.0, by=Caller(via="unix"))
    gpu_states = world.state.gpu_states
    paused = {uuid: replace(gpu_state, pause=pause) for uuid, gpu_state in gpu_states.items()}
    return replace(world.state, gpu_states=paused)
