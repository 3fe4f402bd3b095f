"""Random histories of a world; the invariants are checked after every tick."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sentinel.config.model import Config
from sentinel.core.attribution import SLACK_BYTES
from sentinel.core.decide import decide
from sentinel.core.gpu_state import Backoff, Busy, Fatal, Idle, Running, Starting, Stopping, Unknown
from sentinel.core.node.status import explanations
from sentinel.core.observation import Call, Observation
from sentinel.core.state import State
from sentinel.core.step import Kill, Start, Step
from sentinel.protocol.gpu import GpuProcess, Memory
from sentinel.protocol.rules import IDLE, RUNNING
from sentinel.protocol.stressor import Failed, FailureKind, Progress, Ready
from tests.harness.document_programs import documented_rules
from tests.harness.world import GIB, TEARDOWN_TIME, FakeGpu, World

MIB = 2**20
GPUS = st.integers(0, 1)
TOTAL = 140 * GIB
#: Fields of readings that make no sense: times are relative to that of the reading.
SENSELESS: tuple[dict[str, Any], ...] = (
    {"memory": Memory(total=TOTAL, used=2 * TOTAL, free=0)},
    {"memory": Memory(total=TOTAL, used=2**64 - 1, free=2**64 - 1)},
    {"memory": Memory(total=TOTAL, used=-TOTAL, free=TOTAL)},
    {"memory": Memory(total=TOTAL, used=0, free=-1)},
    {"memory": Memory(total=0, used=0, free=0)},
    {"processes": tuple(GpuProcess(pid=pid) for pid in range(10_000, 11_000))},
    {"processes": (GpuProcess(pid=-1, memory=-TOTAL, started=-1),)},
    {"processes": (), "omitted_processes": 2**31},
    {"at": 3600.0},
    {"processes_at": 3600.0},
    {"at": -3600.0},
    {"processes_at": -3600.0},
)
#: The rules by which a GPU may be occupied or not.
RULES = documented_rules().keys()
PLAIN = Config(rearm=2.0, start_timeout=10.0, hang_after=5.0, grace=1.0)

#: The common profile checks half of its number of histories: each ends with a whole shutdown.
_PARTS = 2 if settings.get_current_profile_name() == "common" else 1
_HISTORIES = settings().max_examples // _PARTS
#: Shrinking a history takes minutes; a failed history is printed step by step without it.
HISTORY_SETTINGS = settings(max_examples=_HISTORIES, phases=[Phase.explicit, Phase.generate])


class Histories(RuleBasedStateMachine):
    """Two GPUs, a supervisor, and all kinds of changes in any order.

    The fake spawner itself refuses a second child on a GPU and a signal to a child that is gone.
    The rules below check everything else.
    """

    config = PLAIN
    gpus = 2
    hidden: str | None = None
    with_api = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            gpus=self.gpus, tick=0.1, hidden=self.hidden, config=self.config, with_api=self.with_api
        )
        self.not_idle_at = dict.fromkeys(self.world.gpus, self.world.now)
        self.started_at: list[float] = []
        self.fatal: set[str] = set()
        self.backoffs: dict[str, float] = {}
        self.foreign_at: dict[str, float] = {}
        self.startable: set[str] = set()

    # --- time

    def tick(self) -> None:
        before, config = self.world.state, self.world.state.config
        decision = self.world.supervisor.turn()
        self.check(before.gpu_states, decision)
        self.check_explanations(decision, changed=decision.state.config is not config)

    @rule(ticks=st.integers(1, 60))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    @rule(periods=st.integers(1, 2))
    def everything_works_for_a_while(self, periods: int) -> None:
        for _ in range(periods):
            for fake in self.world.gpus.values():
                repair(fake)
            end = self.world.now + 6
            while self.world.now < end:
                self.tick()

    @rule(seconds=st.floats(1.5, 20))
    def the_supervisor_stalls(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self.tick()

    @rule(minutes=st.sampled_from([-60, -1, 1, 60]))
    def the_wall_clock_is_set(self, minutes: int) -> None:
        self.world.wall += timedelta(minutes=minutes)
        self.tick()

    # --- foreign processes

    @rule(index=GPUS, memory=st.sampled_from([0, 13 * MIB, GIB, 100 * GIB]))
    def a_newcomer_starts(self, index: int, memory: int) -> None:
        self.world.newcomer(index, memory=memory)
        self.tick()

    @rule(index=GPUS)
    def all_foreign_processes_exit(self, index: int) -> None:
        self.world.at(index).foreign.clear()
        self.world.at(index).unlisted = 0

    @rule(
        index=GPUS, memory=st.sampled_from([SLACK_BYTES // 2, SLACK_BYTES + 1, 20 * MIB, 50 * GIB])
    )
    def unlisted_memory_grows(self, index: int, memory: int) -> None:
        self.world.at(index).unlisted = memory
        self.tick()

    # --- the driver

    @rule(index=GPUS, fault=st.sampled_from([None, "Unknown Error", "GPU is lost"]))
    def a_gpu_fails_or_recovers(self, index: int, fault: str | None) -> None:
        self.world.at(index).fault = fault

    @rule(index=GPUS, senseless=st.sampled_from([{}, *SENSELESS]))
    def a_gpu_reports_senseless_figures_or_recovers(
        self, index: int, senseless: dict[str, Any]
    ) -> None:
        self.world.at(index).senseless = senseless

    @rule(index=GPUS, silent=st.booleans())
    def a_gpu_becomes_silent_or_recovers(self, *, index: int, silent: bool) -> None:
        self.world.at(index).silent = silent

    @precondition(lambda self: self.world.probe.alive)
    @rule(code=st.integers(0, 1))
    def the_probe_exits(self, code: int) -> None:
        self.world.probe.exits_with = code

    @precondition(lambda self: self.world.probe.alive)
    @rule(index=GPUS)
    def a_call_crashes_the_probe(self, index: int) -> None:
        uuid = self.world.at(index).gpu.uuid
        self.world.probe.exits_with = -11
        self.world.probe.hung = Call(uuid=uuid, name="memory", since=self.world.now)

    @precondition(lambda self: self.world.probe.alive)
    @rule(index=GPUS)
    def a_call_hangs(self, index: int) -> None:
        uuid = self.world.at(index).gpu.uuid
        self.world.probe.hung = Call(uuid=uuid, name="memory", since=self.world.now)

    # --- children

    @rule(index=GPUS, kind=st.sampled_from(list(FailureKind)))
    def a_child_fails(self, index: int, kind: FailureKind) -> None:
        child = self.world.at(index).child
        if child is not None and child.dies_at is None:
            child.outbox.append(Failed(kind=kind, reason="a test"))
            child.dies_at, child.code = self.world.now, 82

    @rule(index=GPUS, code=st.sampled_from([-11, -9, -14, 0, 1, 80, 81]))
    def a_child_exits(self, index: int, code: int) -> None:
        child = self.world.at(index).child
        if child is not None and child.dies_at is None:
            child.dies_at, child.code = self.world.now, code

    @rule(index=GPUS)
    def a_child_becomes_unresponsive(self, index: int) -> None:
        child = self.world.at(index).child
        if child is not None:
            child.unresponsive = True

    @rule(index=GPUS, ready=st.booleans())
    def a_child_sends_an_unexpected_message(self, *, index: int, ready: bool) -> None:
        child = self.world.at(index).child
        if child is not None:
            unexpected = Ready(held=1, asked=1, chunks=1, refused=False)
            progress = Progress(seconds=0, iterations=0, flops=0, bytes=0, checks=0, errors=0)
            child.outbox.append(unexpected if ready else progress)

    @rule(index=GPUS, seconds=st.sampled_from([TEARDOWN_TIME, 3.0, 30.0]))
    def a_dying_child_exits_late(self, index: int, seconds: float) -> None:
        child = self.world.at(index).child
        if child is not None and child.dies_at is not None:
            child.dies_at = self.world.now + seconds

    # --- invariants

    def check(self, before: Any, decision: Step[State]) -> None:
        readings = self.world.supervisor._readings
        starts = [action for action in decision.actions if isinstance(action, Start)]
        assert len(starts) <= 1
        ranks = [isinstance(action, Kill) for action in decision.actions]
        assert ranks == sorted(ranks, reverse=True), "kills come first"
        for start in starts:
            if start.clearing:
                assert readings[start.uuid].processes == (), "a process is listed"
                age = self.world.now - readings[start.uuid].at
                assert age <= 1.5 * self.config.poll, "on an outdated reading"
                continue
            assert isinstance(decision.state.gpu_states[start.uuid].occupancy, Idle)
            reading = readings[start.uuid]
            assert reading.fault is None
            seen = {process.pid for process in reading.processes or ()}
            assert not seen & {p.pid for p in self.world.gpus[start.uuid].foreign}
            unlisted = 32 * MIB if self.hidden else GIB
            attribution = decision.state.gpu_states[start.uuid].attribution
            assert attribution.unattributed <= unlisted, "too much unattributed memory"
            assert self.world.now - reading.at <= 1.5 * self.config.poll, "on an outdated reading"
            assert start.uuid not in self.fatal
            assert self.world.now >= self.backoffs.get(start.uuid, 0.0)
            alone = self.world.now - self.foreign_at.get(start.uuid, 0.0)
            assert alone >= self.config.rearm / 2, "started within the re-arm time"
            idle = self.world.now - self.not_idle_at[start.uuid]
            assert idle >= self.config.idle_wait, "started within idle.wait"
            self.check_limits(decision)
        only = self.config.hours
        if any(hours.contains(self.world.wall) for hours in self.config.quiet) or (
            only and not any(hours.contains(self.world.wall) for hours in only)
        ):
            stressors = [gpu_state.stressor for gpu_state in decision.state.gpu_states.values()]
            assert not any(isinstance(s, Starting | Running) for s in stressors), "quiet hours"
        for uuid, gpu_state in decision.state.gpu_states.items():
            self.check_gpu(uuid, before[uuid], gpu_state, decision)

    def check_gpu(self, uuid: str, before: Any, gpu_state: Any, decision: Step[State]) -> None:
        kills = [a for a in decision.actions if isinstance(a, Kill) and a.uuid == uuid]
        is_active = isinstance(gpu_state.stressor, Starting | Running)
        fake, reading = self.world.gpus[uuid], self.world.supervisor._readings.get(uuid)
        if reading is not None and reading is fake.senseless_reading:
            assert not is_active, "holds a GPU whose reading makes no sense"
        leaks = gpu_state.leaks
        if isinstance(gpu_state.occupancy, Busy | Unknown) and not leaks:
            assert not is_active, "holds a busy or unknown GPU"
            if isinstance(before.stressor, Starting | Running) and self.is_stopping(gpu_state):
                assert kills, "the child must be killed in the same tick"
        if (
            is_active
            and isinstance(gpu_state.stressor, Running)
            and gpu_state.stressor.expected is not None
        ):
            reading = self.world.supervisor._readings[uuid]
            assert reading.memory is not None
            assert reading.memory.used <= gpu_state.stressor.expected + SLACK_BYTES, (
                "unexplained memory"
            )
        if isinstance(gpu_state.occupancy, Busy) and not leaks:
            self.foreign_at[uuid] = self.world.now
        if not isinstance(gpu_state.occupancy, Idle):
            self.not_idle_at[uuid] = self.world.now
        if isinstance(gpu_state.stressor, Fatal):
            self.fatal.add(uuid)
        assert (uuid in self.fatal) == isinstance(gpu_state.stressor, Fatal), "FATAL stays so"
        if isinstance(gpu_state.stressor, Backoff):
            self.backoffs[uuid] = gpu_state.stressor.until

    def check_explanations(self, decision: Step[State], *, changed: bool) -> None:
        """Check that each GPU says by which rule it is not occupied, and that the rule is so."""
        seen = Observation(
            now=self.world.now,
            local=self.world.wall,
            readings=dict(self.world.supervisor._readings),
        )
        found = explanations(self.world.state, seen)
        for uuid, one in found.items():
            stressor = self.world.state.gpu_states[uuid].stressor
            assert one.rule in RULES
            assert one.reason
            assert (one.rule == RUNNING) == isinstance(stressor, Running)
            assert one.until is None or self.world.now < one.until < float("inf")
        idle = {uuid for uuid, one in found.items() if one.rule == IDLE}
        if idle & self.startable and not changed:
            starts = [action for action in decision.actions if isinstance(action, Start)]
            assert starts, "a GPU that no rule forbids was left alone"
        self.startable = idle

    def check_limits(self, decision: Step[State]) -> None:
        """Check the rules over all GPUs right after a start."""
        gpu_states = decision.state.gpu_states.values()
        held = [s for s in gpu_states if isinstance(s.stressor, Starting | Running | Stopping)]
        assert self.config.max_gpus is None or len(held) <= self.config.max_gpus
        free = [s for s in gpu_states if isinstance(s.occupancy, Idle) and s not in held]
        leaving = [s for s in held if isinstance(s.stressor, Stopping)]
        assert len(free) + len(leaving) >= self.config.leave_idle
        if self.config.starts_per_second is not None:
            gap = self.world.now - self.started_at[-1] if self.started_at else float("inf")
            assert gap >= 1 / self.config.starts_per_second - 1e-6
        self.started_at.append(self.world.now)

    @staticmethod
    def is_stopping(gpu_state: Any) -> bool:
        """Check whether a child is stopping that has neither exited nor failed."""
        return (
            isinstance(gpu_state.stressor, Stopping)
            and gpu_state.stressor.exit is None
            and gpu_state.stressor.failed is None
        )

    @invariant()
    def the_state_knows_every_child(self) -> None:
        for uuid, fake in self.world.gpus.items():
            gpu_state = self.world.state.gpu_states[uuid]
            if fake.child is not None:
                assert isinstance(gpu_state.stressor, Starting | Running | Stopping)
                assert gpu_state.generation == fake.child.generation

    @invariant()
    def decisions_are_deterministic(self) -> None:
        seen = Observation(now=self.world.now, readings=dict(self.world.supervisor._readings))
        assert decide(self.world.state, seen) == decide(self.world.state, seen)

    def teardown(self) -> None:
        """Check that a shutdown ends after any history."""
        for fake in self.world.gpus.values():
            repair(fake)
        self.world.tick = 0.2  # nothing is checked in between
        self.world.run_for(40)
        self.world.interrupts.pending = ("SIGTERM", False)
        self.world.run(lambda: self.world.state.finished, within=20)
        assert all(fake.child is None for fake in self.world.gpus.values())


def repair(fake: FakeGpu) -> None:
    fake.fault, fake.silent, fake.unlisted, fake.computing = None, False, 0, None
    fake.senseless = {}
    fake.foreign.clear()
    if fake.child is not None and fake.child.dies_at is not None:
        fake.child.dies_at = 0.0
