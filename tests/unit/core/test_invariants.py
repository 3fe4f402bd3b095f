"""What must hold whatever happens: random histories, checked after every tick."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from sentinel.config.schedule import parse_duty, parse_hours
from sentinel.core.actions import Reply
from sentinel.core.decide import Decision
from sentinel.core.node.admin import admin_hold
from sentinel.core.stressor_state import Fatal, Running, Starting
from sentinel.protocol.commands import (
    Configure,
    Drain,
    GivenSetting,
    PauseGpus,
    Reserve,
    Resume,
    ResumeGpus,
    Unreserve,
)
from sentinel.protocol.stressor import MemoryContention
from sentinel.testing import GIB
from tests.harness.state_machine import GPUS, HISTORY_SETTINGS, MIB, PLAIN, Histories

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
    """The same where other people's processes are not listed, and ours as the driver likes."""

    hidden = "this is a container"

    @rule(index=GPUS, child_as=st.sampled_from([0, 2**22, None]))
    def our_child_is_listed_in_another_way(self, index: int, child_as: int | None) -> None:
        if self.world.at(index).child is None:
            self.world.at(index).child_pid_offset = child_as

    @rule(index=GPUS, computing=st.sampled_from([None, (), (7,), (7, 8)]))
    def somebody_computes(self, index: int, computing: tuple[int, ...] | None) -> None:
        self.world.at(index).computing = computing

    @rule(index=GPUS, memory=st.sampled_from([40 * MIB, 60 * GIB]))
    def somebody_comes_while_a_child_starts(self, index: int, memory: int) -> None:
        child = self.world.at(index).child
        if child is not None and child.stage == 2:
            child.outbox.append(MemoryContention(grown=memory))
            self.world.at(index).unlisted = memory


class LimitedHistories(Histories):
    """The same where rules over all GPUs hold as well."""

    config = LIMITED
    gpus = 3


SECONDS = st.sampled_from([None, 0.1, 5.0, 60.0])
CHOSEN = st.sampled_from([(), ("GPU-0",), ("GPU-1",), ("GPU-1", "GPU-0"), ("GPU-7",)])


class ServedHistories(Histories):
    """The same with clients, who ask for anything at any time, and a service that may die."""

    with_api = True

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def ask(self, order: Any, **arguments: Any) -> None:
        self.asked += self.world.service.alive
        self.world.service.post(order, **arguments)
        self.tick()

    def check(self, before: Any, decision: Decision) -> None:
        if any(isinstance(a, Reply) and a.answer.refused is None for a in decision.actions):
            # Somebody's wish may be a reason to try again what was given up.
            gpu_states = decision.state.gpu_states
            self.fatal = {u for u in self.fatal if isinstance(gpu_states[u].stressor, Fatal)}
            self.backoffs.clear()
        super().check(before, decision)

    @rule(order=st.sampled_from([Resume, Drain]))
    def somebody_wants_all_or_nothing(self, order: Any) -> None:
        self.ask(order)

    @rule(gpus=CHOSEN, seconds=SECONDS, release=st.booleans())
    def somebody_pauses(
        self, *, gpus: tuple[str, ...], seconds: float | None, release: bool
    ) -> None:
        self.ask(PauseGpus, gpus=gpus, seconds=seconds, release=release)

    @rule(gpus=CHOSEN)
    def somebody_resumes(self, gpus: tuple[str, ...]) -> None:
        self.ask(ResumeGpus, gpus=gpus)

    @rule(id_=st.sampled_from("ab"), gpus=CHOSEN, count=st.integers(-1, 3), seconds=SECONDS)
    def somebody_reserves(
        self, id_: str, gpus: tuple[str, ...], count: int, seconds: float | None
    ) -> None:
        self.ask(Reserve, id=id_, reason="", gpus=gpus, count=count, seconds=seconds)

    @rule(id_=st.sampled_from("ab"))
    def somebody_ends_a_reservation(self, id_: str) -> None:
        self.ask(Unreserve, id=id_)

    @rule(workload=st.sampled_from(["hold", "gemm"]), rearm=st.sampled_from(["2s", "no time"]))
    def somebody_changes_the_settings(self, workload: str, rearm: str) -> None:
        texts = {"workload": workload, "rearm": rearm, "grace": "1s"}
        given = tuple(GivenSetting(key=key, text=text, source="") for key, text in texts.items())
        self.ask(Configure, given=given)

    @precondition(lambda self: self.world.service.alive)
    @rule()
    def the_service_dies(self) -> None:
        self.asked -= len(self.world.service.commands)
        self.world.service.commands.clear()
        self.world.service.exits = True
        self.tick()

    @rule(with_api=st.booleans())
    def the_service_falls_silent_or_speaks_again(self, *, serves: bool) -> None:
        self.world.service.serving = serves

    @invariant()
    def nothing_of_ours_is_where_somebody_wants_us_to_keep_off(self) -> None:
        state = self.supervisor.state
        for gpu_state in state.gpu_states.values():
            if admin_hold(state, gpu_state, self.world.now) is not None:
                assert not isinstance(gpu_state.stressor, Starting | Running)

    @invariant()
    def no_gpu_is_promised_to_two(self) -> None:
        held = [uuid for one in self.supervisor.state.reservations.values() for uuid in one.gpus]
        assert len(held) == len(set(held))

    @invariant()
    def nothing_uses_the_driver_once_it_is_let_go_of(self) -> None:
        state = self.supervisor.state
        if state.released is not None and not self.world.probe.alive:
            stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
            assert not any(isinstance(s, Starting | Running) for s in stressors)

    @invariant()
    def each_order_is_answered_once(self) -> None:
        numbers = [answer.number for answer in self.world.service.replies]
        assert len(numbers) == len(set(numbers))
        waiting = len(self.world.service.commands)
        assert len(numbers) >= self.asked - waiting


TestHistories = Histories.TestCase
TestHistories.settings = HISTORY_SETTINGS
TestHiddenHistories = HiddenHistories.TestCase
TestHiddenHistories.settings = HISTORY_SETTINGS
TestLimitedHistories = LimitedHistories.TestCase
TestLimitedHistories.settings = HISTORY_SETTINGS
TestServedHistories = ServedHistories.TestCase
TestServedHistories.settings = HISTORY_SETTINGS
