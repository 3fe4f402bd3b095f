"""The stressors, at most one on each GPU, with their leases, and the standby stressor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sentinel.config.options import BUILT_IN
from sentinel.core import newcomer
from sentinel.core.gpu_state import Running
from sentinel.core.observation import ChildFacts, OwnChild, ProcessFacts, WatchTimes
from sentinel.core.state import State
from sentinel.core.step import Start
from sentinel.errors import WireError
from sentinel.host.process_setup import Inherited, available_bytes
from sentinel.host.procfs import read_stat
from sentinel.host.unprivileged import environment_of
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.shared_memory import FORKED, STRESSOR_STAMPS, WATCHED, Stamps
from sentinel.protocol.stressor import (
    STRESSOR_MESSAGES,
    Activate,
    ChildMessage,
    Failed,
    FailureKind,
    Lease,
    MemoryLimit,
    Prepared,
    StandbySpec,
    StressorCommand,
    StressorSpec,
)
from sentinel.stressor import main as stressor_process
from sentinel.supervisor.child_process import ChildHandle, Received, ReplaceableProcess
from sentinel.supervisor.ports import Spawner

#: Below so much available memory a standby stressor is given up, and it is not started below twice
#: as much, in bytes. It takes 350 MB on an H200 host, and a stressor 600 to 900 MB.
MIN_AVAILABLE_BYTES = 2**30
#: The interval of the looks at the available memory, in seconds.
LOOK_EVERY_S = 5.0
_MAX_MESSAGES = 16

#: The duration of a long lease and the interval of its renewals, in seconds.
LONG_LEASE_S = 3.0
RENEW_EVERY_S = 0.5
#: The interval of the renewals of short leases, in seconds. Their duration is the time in which a
#: newcomer has not asked for much memory yet.
RENEW_SHORT_EVERY_S = 0.025

#: Datagrams taken from one stressor in one tick. A stressor sends a handful in its life, that of a
#: self-test three dozen, and one a second besides. More at once is a flood: others must not wait.
MAX_MESSAGES_PER_TICK = 64

_ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Killing a client of MPS may harm the other clients (NVIDIA's guide to MPS, on the end of
    # clients). Without a daemon in this directory, a program runs without MPS
    # (nvidia-cuda-mps-control(1)).
    "CUDA_MPS_PIPE_DIRECTORY": "/proc/self/no-mps",
}


class StandbyStressor(ReplaceableProcess[ChildMessage]):
    """At most one process that has loaded torch and waits for a GPU.

    Args:
        environment: The changes to the variables of every stressor.
        spec: The user that it becomes, and the files that it may use.
    """

    def __init__(self, environment: Mapping[str, str | None], spec: StandbySpec) -> None:
        super().__init__(
            ChildHandle(
                stressor_process.run_standby,
                STRESSOR_MESSAGES,
                max_messages=_MAX_MESSAGES,
                # Should a library start CUDA all the same, it shall find no GPU.
                environment={**environment, "CUDA_VISIBLE_DEVICES": ""},
            )
        )
        self._spec = spec
        self._ready = False
        self._looked_at = float("-inf")
        self._available: int | None = None

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:  # noqa: ARG002
        """Spawn a standby stressor."""
        self._ready = False
        self._handle.start(generation, self._spec)

    def activate(
        self,
        handle: ChildHandle[ChildMessage],
        generation: int,
        spec: StressorSpec,
        fds: Sequence[int],
    ) -> bool:
        """Make it the child of ``handle``; return False if none is ready.

        Args:
            handle: A handle without a child.
            generation: The number of the new child.
            spec: What it is to run.
            fds: The descriptor of its stamps, then those of the GPU's locks.
        """
        child = self._handle.child
        if not self._ready or child is None or child.ended():
            return False
        self._ready = False
        stat = read_stat(child.pid)
        if stat is not None and stat.stopped:  # it would keep its GPU waiting for --start-timeout
            self._handle.abandon()
            return False
        try:
            sent = self._handle.send(Activate(spec=spec), fds)
        except (WireError, OSError):  # options that no message has room for, or no descriptor left
            sent = False
        if not sent:
            self._handle.abandon()
            return False
        handle.adopt(self._handle, generation)
        return True

    def collect(self) -> ProcessFacts | None:
        """Collect the new facts about it; None without one."""
        received = self._handle.collect()
        if received is None:
            return None
        failed, works = received.refused, False
        for message in received.messages:
            match message:
                case Prepared():
                    works = True
                case Failed(reason=reason):
                    failed = reason
        self._ready = (self._ready or works) and received.exit is None
        return ProcessFacts(
            generation=self._handle.generation, works=works, failed=failed, exit=received.exit
        )

    def memory_left(self) -> bool:
        """Check that the host has memory for it."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at, self._available = now, available_bytes()
        least = MIN_AVAILABLE_BYTES if self._handle.child else 2 * MIN_AVAILABLE_BYTES
        return self._available is None or self._available >= least


class Leases:
    """The leases of all stressors.

    Args:
        spawner: The stressors.

    Attributes:
        due: When the next long leases must be renewed.
    """

    def __init__(self, spawner: Spawner) -> None:
        self.due = 0.0
        self._spawner = spawner
        self._short: set[str] = set()
        #: Those whose stressors were last told that the probe reads, too.
        self._shared: set[str] = set()

    @property
    def any_short(self) -> bool:
        """Whether there is a stressor with a short lease."""
        return bool(self._short)

    def renew(self, state: State, now: float, times: Mapping[str, WatchTimes]) -> bool:
        """Renew the leases that are due; return False if a held GPU is not watched.

        Args:
            state: The state after the last tick.
            now: The time.
            times: When the memory of each held GPU was last read.
        """
        long_is_due = now >= self.due
        if long_is_due:
            self.due = now + RENEW_EVERY_S
        watched = True
        for uuid, gpu_state in state.gpu_states.items():
            if gpu_state.child is None:
                self._short.discard(uuid)
                self._shared.discard(uuid)
                continue
            own, seen = state.config.of(uuid), times.get(uuid)
            shared = state.probe.works and isinstance(gpu_state.stressor, Running)
            shared = shared and seen is not None and newcomer.alternates(seen, now, own)
            # A stressor whose probe is gone must not wait for its next turn.
            alone = uuid in self._shared and not shared
            if seen is not None and not newcomer.watches_itself(seen, now):
                self._short.add(uuid)
                if newcomer.unwatched_for(gpu_state, seen, now, own) is None:
                    self._spawner.renew_lease(uuid, newcomer.blind_limit(gpu_state, own))
                else:
                    watched = False
            elif long_is_due or alone or uuid in self._short:
                self._short.discard(uuid)
                (self._shared.add if shared else self._shared.discard)(uuid)
                self._spawner.renew_lease(uuid, LONG_LEASE_S, shared=shared)
        return watched


@dataclass(kw_only=True)
class _Stressor:
    """One stressor child, with the facts that :meth:`StressorPool.collect` has not returned yet."""

    handle: ChildHandle[ChildMessage]
    identity: OwnChild | None
    #: See :data:`~sentinel.protocol.shared_memory.STRESSOR_STAMPS`.
    stamps: Stamps | None
    #: A message that found its channel full.
    unsent: MemoryLimit | None = None
    killed_at: float | None = None

    def has_forked_many(self) -> bool:
        """Check whether the child has forked more than a few processes."""
        return self.stamps is not None and self.stamps.get(FORKED) > 0

    def send_limit(self) -> None:
        """Send the limit of the memory that has not been sent yet."""
        if self.unsent is not None and self.handle.send(self.unsent):
            self.unsent = None


class StressorPool:
    """The stressor children, at most one on each GPU.

    Args:
        spec: Builds the specification of the child on a GPU.
        locks: Lists the file descriptors of the GPU's locks, which the child shares.
        standby: The specification of the standby stressor.

    Attributes:
        standby: The process that becomes the next stressor.
    """

    def __init__(
        self,
        spec: Callable[[Gpu], StressorSpec],
        locks: Callable[[Gpu], Sequence[int]],
        standby: StandbySpec,
    ) -> None:
        self._spec = spec
        self._locks = locks
        self._environment: Mapping[str, str | None] = _ENVIRONMENT
        if standby.account is not None:
            self._environment = {**environment_of(standby.account, os.environ), **_ENVIRONMENT}
        self.standby = StandbyStressor(self._environment, standby)
        self._stressors: dict[str, _Stressor] = {}

    def start(self, gpu: Gpu, order: Start) -> None:
        """Start a stressor on ``gpu``, from the standby one if that is wanted and ready.

        :meth:`collect` reports a failed spawn as an exit.
        """
        spec = self._spec(gpu)
        reserve = spec.reserve + order.committed
        spec = replace(
            spec,
            clearing=order.clearing,
            reserve=reserve,
            exact_start=order.exact,
            group=order.group,
        )
        generation = order.generation
        handle = ChildHandle(
            stressor_process.run,
            STRESSOR_MESSAGES,
            max_messages=MAX_MESSAGES_PER_TICK,
            environment={**self._environment, "CUDA_VISIBLE_DEVICES": gpu.uuid},
        )
        stamps: Stamps | None = None
        try:
            stamps = Stamps.create(STRESSOR_STAMPS)
        except OSError as error:
            handle.refuse(generation, error)
        else:
            # Another user could keep root's locks, or release them.
            locks = self._locks(gpu) if spec.account is None else ()
            fds = (stamps.fd, *locks)
            if not (order.standby and self.standby.activate(handle, generation, spec, fds)):
                inherited = tuple(Inherited(fd) for fd in locks)
                handle.start(generation, spec, Inherited(stamps.fd), inherited)
            handle.send(Lease(seconds=spec.lease))
        if handle.child is not None:
            handle.child.runs_own_code = spec.workload not in BUILT_IN
        identity = handle.child.identity if handle.child is not None else None
        self._stressors[gpu.uuid] = _Stressor(handle=handle, identity=identity, stamps=stamps)

    def kill(self, uuid: str, generation: int) -> None:
        """Send SIGKILL to the child and its process group, and record the time.

        The many processes that it may have forked would delay its exit.
        """
        stressor = self._find(uuid, generation)
        if stressor is not None:
            if stressor.has_forked_many():
                stressor.handle.kill_alone()
            else:
                stressor.handle.kill()
            stressor.killed_at = time.monotonic()

    def send(self, uuid: str, generation: int, message: StressorCommand) -> None:
        """Send a message to the child; a limit of memory is sent again until it has arrived."""
        stressor = self._find(uuid, generation)
        if stressor is None:
            return
        if isinstance(message, MemoryLimit):
            stressor.unsent = message
            stressor.send_limit()
        else:
            stressor.handle.send(message)

    def watched_at(self, uuid: str) -> float:
        """Return when the child last saw the memory of its GPU within its limit, or 0.0."""
        stressor = self._stressors.get(uuid)
        return 0.0 if stressor is None or stressor.stamps is None else stressor.stamps.get(WATCHED)

    def renew_lease(self, uuid: str, seconds: float, *, shared: bool = False) -> None:
        """Let the child on a GPU live for so long from now on."""
        stressor = self._stressors.get(uuid)
        if stressor is not None:
            stressor.handle.send(Lease(seconds=seconds, shared=shared))
            stressor.send_limit()

    def files(self) -> list[int]:
        """List the descriptors to wait for."""
        return [file for stressor in self._stressors.values() for file in stressor.handle.files()]

    def collect(self) -> dict[str, ChildFacts]:
        """Collect the new facts about each child, and reap those that exited."""
        found = {}
        for uuid, stressor in list(self._stressors.items()):
            received = stressor.handle.collect()
            if received is None:
                continue
            generation = stressor.handle.generation
            facts = ChildFacts(
                generation=generation,
                child=stressor.identity,
                messages=(*received.messages, *_spawn_failure(received)),
                killed_at=stressor.killed_at,
                exit=received.exit,
                garbage=_garbage(received),
            )
            stressor.identity = stressor.killed_at = None
            if facts != ChildFacts(generation=generation):
                found[uuid] = facts
            if received.exit is not None:
                if stressor.stamps is not None:
                    stressor.stamps.close()
                del self._stressors[uuid]
        return found

    def kill_all(self) -> None:
        """Kill every child at once, when the loop has ended and decides nothing any more."""
        for stressor in self._stressors.values():
            stressor.handle.kill()
        self.standby.abandon()

    def _find(self, uuid: str, generation: int) -> _Stressor | None:
        stressor = self._stressors.get(uuid)
        return stressor if stressor and stressor.handle.generation == generation else None


def _spawn_failure(received: Received[ChildMessage]) -> list[ChildMessage]:
    if received.refused is None:
        return []
    return [Failed(kind=FailureKind.SPAWN, reason=received.refused)]


def _garbage(received: Received[ChildMessage]) -> str | None:
    """Describe a violation of the protocol by a living child, or return None."""
    if received.exit is not None:
        return None
    if len(received.messages) == MAX_MESSAGES_PER_TICK:
        return f"it sent {MAX_MESSAGES_PER_TICK} messages at once"
    return received.violation
