"""The supervisor's whole state, replaced by every tick.

Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sentinel.config.model import Config
from sentinel.core.burnin.progress import BurninRun
from sentinel.core.gpu_state import GpuState, Pause
from sentinel.core.observation import Observation
from sentinel.core.step import Action, Event, Step
from sentinel.protocol.commands import GrantKind
from sentinel.protocol.probe import Watch
from sentinel.protocol.views import Allocation, Grant, KnownFaults, Reservation, Session

GpuRule = Callable[[GpuState, Observation, Config], Step[GpuState]]


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process beside the stressors, and its replacements."""

    #: The number of the one that runs, or of the next.
    generation: int = 1
    running: bool = False
    #: When it was started; for a probe that works, when it sent its inventory.
    since: float = 0.0
    #: The one that runs has reported that it works.
    works: bool = False
    #: When one last reported that; None if none ever has.
    worked_at: float | None = None
    #: The error that ends the one that runs.
    failed: str | None = None
    #: When the next one may be started.
    due: float = 0.0
    #: How many have failed one after another.
    failures: int = 0
    #: Why the last one ended, until one works.
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Probe(Process):
    """The process that reads the GPUs."""

    #: When it last had no GPU to read.
    unused_at: float = -math.inf
    #: What it was last told to read.
    watch: Watch | None = None
    #: Earlier probes have ended, too; one in a driver call may end late.
    gone: bool = False


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A GPU on which a driver call hung or crashed the probe; not read before ``until``."""

    until: float
    #: How often that happened.
    strikes: int
    call: str
    crashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Shutdown:
    """A shutdown in progress."""

    reason: str
    #: When to kill the children that still run.
    kill_at: float
    #: When to end without them.
    give_up_at: float
    #: No client could ever reach the daemon.
    unreachable: bool = False


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the command that starts a supervisor orders beside its settings; fixed while it runs."""

    #: Start with all GPUs paused: occupy nothing until an operator resumes them.
    paused: bool = False
    #: Occupy a GPU only for a burn-in that a client asks for; ``run_for`` counts from its start.
    burnin_only: bool = False
    #: Begin the plan of the settings again whenever a GPU has done it.
    repeat: bool = False
    #: Publish an event whenever another rule decides about a GPU.
    explain: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that the supervisor knows."""

    gpu_states: Mapping[str, GpuState]
    #: The configuration in effect.
    config: Config
    orders: Orders = field(default_factory=Orders)
    #: The configuration is new, and no GPU has been judged by it.
    unjudged: bool = False
    started: float
    probe: Probe
    #: From when ``run_for`` counts.
    counted_from: float = 0.0
    #: Becomes the next probe.
    spare_probe: Process = field(default_factory=Process)
    #: Becomes the next stressor.
    standby: Process = field(default_factory=Process)
    suspects: Mapping[str, Suspect] = field(default_factory=dict)
    #: When the supervisor last ran again after a stall.
    stalled_at: float | None = None
    last_start: float | None = None
    #: The rule last reported for each GPU, with ``--explain``.
    explained: Mapping[str, str] = field(default_factory=dict)
    #: When the last logged check of each GPU was, at the debug level.
    logged_checks: Mapping[str, float] = field(default_factory=dict)
    next_status: float = 0.0
    #: None without an API process.
    api: Process | None = None
    #: Nothing is occupied unless the API serves clients: a daemon has no other control.
    api_required: bool = False
    #: The settings were changed at run time.
    reconfigured: bool = False
    #: The API process must still reload the settings.
    reload_requested: bool = False
    #: Set while no process of Sentinel may use the driver.
    driver_released: Pause | None = None
    #: What earlier daemons of this boot knew of GPUs that this one does not have.
    faults_elsewhere: tuple[KnownFaults, ...] = ()
    #: By id, in the order in which they came; those without GPUs wait in the queue.
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    #: The sessions by name; no two have a GPU in common.
    sessions: Mapping[str, Session] = field(default_factory=dict)
    #: The burn-in that a client has asked for, or None.
    burnin_run: BurninRun | None = None
    #: The number of the last group of GPUs that did a phase together.
    last_group: int = 0
    shutdown: Shutdown | None = None
    #: The daemon starts again after the shutdown.
    restart: bool = False
    finished: bool = False

    @property
    def allocations(self) -> Mapping[str, Allocation]:
        """The allocations of all GPUs, by id."""
        return {
            id_: allocation
            for gpu_state in self.gpu_states.values()
            for id_, allocation in gpu_state.allocations.items()
        }

    def grants(self, kind: GrantKind) -> Mapping[str, Grant]:
        """Return the grants of one kind by their ids, also requests that wait."""
        return self.reservations if kind is GrantKind.RESERVATION else self.allocations

    @property
    def served(self) -> bool:
        """Whether an API process has served clients."""
        return self.api is not None and self.api.worked_at is not None

    def why_unusable(self, uuid: str, now: float) -> str | None:
        """Explain why the readings of a GPU must not be used, or return None."""
        if self.driver_released is not None and not self.probe.running:
            return "the driver is released (pause --release)"
        suspect = self.suspects.get(uuid)
        if suspect is None or now >= suspect.until:
            return None
        what = "crashed" if suspect.crashed else "hung"
        return f"the driver {what} in {suspect.call}; left out for a while"

    def with_gpu_states(self, gpu_states: Mapping[str, GpuState]) -> State:
        """Replace the states of all GPUs; most ticks change none, and a copy is expensive."""
        if all(gpu_state is self.gpu_states[uuid] for uuid, gpu_state in gpu_states.items()):
            return self
        return replace(self, gpu_states=gpu_states)

    def change_gpus(
        self, change: Callable[[GpuState], GpuState], uuids: Iterable[str] | None = None
    ) -> State:
        """Change the states of some GPUs, or of all."""
        chosen = self.gpu_states.keys() if uuids is None else set(uuids)
        return self.with_gpu_states(
            {
                uuid: change(gpu_state) if uuid in chosen else gpu_state
                for uuid, gpu_state in self.gpu_states.items()
            }
        )

    def with_gpu(self, gpu_state: GpuState) -> State:
        """Replace the state of one GPU."""
        return replace(self, gpu_states={**self.gpu_states, gpu_state.gpu.uuid: gpu_state})

    def with_config(self, config: Config) -> State:
        """Replace the configuration; nothing is started before every GPU is judged by it."""
        return replace(self, config=config, unjudged=True)


#: A rule about the whole node, and one about a single GPU with the configuration of that GPU.
Rule = Callable[[State, Observation], Step[State]]


def each_gpu(state: State, seen: Observation, *rules: GpuRule) -> Step[State]:
    """Apply rules to every GPU, one after another."""
    gpu_states, due = {}, math.inf
    actions: list[Action] = []
    events: list[Event] = []
    for uuid, gpu_state in state.gpu_states.items():
        config, stepped = state.config.of(uuid), gpu_state
        for rule in rules:
            stepped, acted, happened, later = rule(stepped, seen, config)
            actions += acted
            events += happened
            due = min(due, later)
        gpu_states[uuid] = stepped
    return Step(state.with_gpu_states(gpu_states), tuple(actions), tuple(events), due)


def on_each_gpu(*rules: GpuRule) -> Rule:
    """Make a rule about the whole node of rules about one GPU."""
    return lambda state, seen: each_gpu(state, seen, *rules)


@dataclass(frozen=True, kw_only=True)
class KeptFree:
    """Why an operator or a user keeps a GPU free of stressors."""

    #: The administrative state, as in :class:`sentinel.protocol.views.GpuView`.
    admin: str
    #: The rule of the :class:`sentinel.core.ruling.Ruling` that forbids a stressor.
    rule: str
    reason: str
    since: float | None = None
    until: float | None = None
    reservation: str | None = None


def kept_free(state: State, gpu_state: GpuState) -> KeptFree | None:
    """Return why an operator or a user keeps a GPU free, or None."""
    if state.driver_released is not None:
        reason = "the driver is released (pause --release)"
        return KeptFree(
            admin="RELEASED",
            rule="released",
            reason=reason,
            since=state.driver_released.since,
            until=state.driver_released.until,
        )
    reserved = reservation_of(state, gpu_state.gpu.uuid)
    if reserved is not None:
        why = f"{reserved.reason} ({reserved.id})" if reserved.reason else reserved.id
        return KeptFree(
            admin="RESERVED",
            rule="reserved",
            reason=f"reserved: {why}",
            since=reserved.since,
            until=reserved.until,
            reservation=reserved.id,
        )
    if gpu_state.pause is not None:
        return KeptFree(
            admin="PAUSED",
            rule="paused",
            reason="paused until sentinel resume" if gpu_state.pause.until is None else "paused",
            since=gpu_state.pause.since,
            until=gpu_state.pause.until,
        )
    return None


def reservation_of(state: State, uuid: str) -> Reservation | None:
    """Return the reservation that includes this GPU, or None."""
    for reservation in state.reservations.values():
        if uuid in reservation.gpus:
            return reservation
    return None
