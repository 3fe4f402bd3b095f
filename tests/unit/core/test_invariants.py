"""Invariants: they hold after every tick of random histories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from sentinel.config.schedule import parse_duty, parse_hours
from sentinel.core.gpu_state import Fatal, Running, Starting
from sentinel.core.state import State, kept_free
from sentinel.core.step import SendTo, Step
from sentinel.protocol.commands import (
    CancelGrant,
    CommandReply,
    Configure,
    GrantKind,
    PauseGpus,
    Reserve,
    ResumeGpus,
)
from sentinel.protocol.stressor import MemoryContention
from tests.harness.given_settings import given
from tests.harness.state_machine import (
    GPUS,
    HISTORY_SETTINGS,
    MIB,
    PLAIN,
    SENSELESS,
    Histories,
)
from tests.harness.world import GIB, World

LIMITED = replace(
    PLAIN,
    idle_wait=5.0,
    max_gpus=2,
    leave_idle=1,
    starts_per_second=0.5,
    util=0.5,
    power=300.0,
    duty=parse_duty("5s/3s"),
    quiet=parse_hours("12:01-12:02, Wed 13:00-24:00"),
)


class HiddenHistories(Histories):
    """Histories with incomplete lists, and children listed in any way."""

    hidden = "this is a container"

    @rule(index=GPUS, offset=st.sampled_from([0, 2**22, None]))
    def the_child_is_listed_in_another_way(self, index: int, offset: int | None) -> None:
        if self.world.at(index).child is None:
            self.world.at(index).child_pid_offset = offset

    @rule(index=GPUS, computing=st.sampled_from([None, (), (7,), (7, 8)]))
    def a_process_computes(self, index: int, computing: tuple[int, ...] | None) -> None:
        self.world.at(index).computing = computing

    @rule(index=GPUS, memory=st.sampled_from([40 * MIB, 60 * GIB]))
    def a_newcomer_takes_memory_while_a_child_starts(self, index: int, memory: int) -> None:
        child = self.world.at(index).child
        if child is not None and child.stage == 2:
            child.outbox.append(MemoryContention(grown=memory))
            self.world.at(index).unlisted = memory


class LimitedHistories(Histories):
    """Histories with rules over all GPUs."""

    config = LIMITED
    gpus = 3


SECONDS = st.sampled_from([None, 0.1, 5.0, 60.0])
CHOSEN = st.sampled_from([(), ("GPU-0",), ("GPU-1",), ("GPU-1", "GPU-0"), ("GPU-7",)])


class ServedHistories(Histories):
    """Histories with any commands at any time, and an API process that may exit."""

    with_api = True

    def __init__(self) -> None:
        super().__init__()
        self.posted = 0

    def post(self, command: Any, **arguments: Any) -> None:
        self.posted += self.world.api.alive
        self.world.api.post(command, **arguments)
        self.tick()

    def check(self, before: Any, decision: Step[State]) -> None:
        if any(
            isinstance(a, SendTo)
            and isinstance(a.message, CommandReply)
            and a.message.refused is None
            for a in decision.actions
        ):
            # A command may reset failures.
            gpu_states = decision.state.gpu_states
            self.fatal = {u for u in self.fatal if isinstance(gpu_states[u].stressor, Fatal)}
            self.backoffs.clear()
        super().check(before, decision)

    @rule(gpus=CHOSEN, seconds=SECONDS, release=st.booleans())
    def a_client_pauses(
        self, *, gpus: tuple[str, ...], seconds: float | None, release: bool
    ) -> None:
        self.post(PauseGpus, gpus=gpus, seconds=seconds, release=release)

    @rule(gpus=CHOSEN)
    def a_client_resumes(self, gpus: tuple[str, ...]) -> None:
        self.post(ResumeGpus, gpus=gpus)

    @rule(id_=st.sampled_from("ab"), gpus=CHOSEN, count=st.integers(-1, 3), seconds=SECONDS)
    def a_client_reserves(
        self, id_: str, gpus: tuple[str, ...], count: int, seconds: float | None
    ) -> None:
        self.post(Reserve, id=id_, reason="", gpus=gpus, count=count, seconds=seconds)

    @rule(id_=st.sampled_from("ab"))
    def a_client_ends_a_reservation(self, id_: str) -> None:
        self.post(CancelGrant, kind=GrantKind.RESERVATION, id=id_)

    @rule(workload=st.sampled_from(["hold", "gemm"]), rearm=st.sampled_from(["2s", "no time"]))
    def a_client_changes_the_settings(self, workload: str, rearm: str) -> None:
        texts = {"workload": workload, "rearm": rearm, "grace": "1s"}
        self.post(Configure, given=given(texts))

    @precondition(lambda self: self.world.api.alive)
    @rule()
    def the_api_process_exits(self) -> None:
        self.posted -= len(self.world.api.commands)
        self.world.api.commands.clear()
        self.world.api.exits = True
        self.tick()

    @rule(serves=st.booleans())
    def the_api_process_becomes_silent_or_recovers(self, *, serves: bool) -> None:
        self.world.api.serving = serves

    @invariant()
    def no_stressor_lives_on_a_gpu_that_is_kept_free(self) -> None:
        state = self.world.state
        for gpu_state in state.gpu_states.values():
            if kept_free(state, gpu_state) is not None:
                assert not isinstance(gpu_state.stressor, Starting | Running)

    @invariant()
    def no_gpu_is_in_two_reservations(self) -> None:
        held = [
            uuid
            for reservation in self.world.state.reservations.values()
            for uuid in reservation.gpus
        ]
        assert len(held) == len(set(held))

    @invariant()
    def nothing_uses_a_released_driver(self) -> None:
        state = self.world.state
        if state.driver_released is not None and not self.world.probe.alive:
            stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
            assert not any(isinstance(s, Starting | Running) for s in stressors)

    @invariant()
    def each_command_is_answered_once(self) -> None:
        numbers = [answer.number for answer in self.world.api.replies]
        assert len(numbers) == len(set(numbers))
        waiting = len(self.world.api.commands)
        assert len(numbers) >= self.posted - waiting


TestHistories = Histories.TestCase
TestHistories.settings = HISTORY_SETTINGS
TestHiddenHistories = HiddenHistories.TestCase
TestHiddenHistories.settings = HISTORY_SETTINGS
TestLimitedHistories = LimitedHistories.TestCase
TestLimitedHistories.settings = HISTORY_SETTINGS
TestServedHistories = ServedHistories.TestCase
TestServedHistories.settings = HISTORY_SETTINGS


@pytest.mark.parametrize("senseless", SENSELESS, ids=str)
def test_a_senseless_reading_starts_no_stressor_and_stops_one(senseless: dict[str, Any]) -> None:
    world = World(config=PLAIN)
    world.at(0).senseless = senseless
    world.run_for(20)
    assert not world.spawner.started
    world.at(0).senseless = {}
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    world.at(0).senseless = senseless
    world.run_for(0.1)
    assert world.spawner.killed


@pytest.mark.parametrize("utilization", [float("nan"), -1.0, 2.0])
def test_a_senseless_utilization_starts_no_stressor(utilization: float) -> None:
    world = World(config=replace(PLAIN, idle_utilization=0.05))
    world.at(0).utilization = utilization
    world.run_for(20)
    assert not world.spawner.started
