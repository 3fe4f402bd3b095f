"""The probe process, its replacements, and a spare one that is already running."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.observation import Call, ProbeFacts, SpareFacts
from sentinel.host.processes.child_setup import Inherited
from sentinel.probe import main as probe_main
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import (
    PROBE_MESSAGES,
    Activate,
    Inventory,
    ProbeFailed,
    ProbeMessage,
    ProbeSpec,
    Standby,
    Unavailable,
    Watch,
    XidReport,
    XidsWatched,
)
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, Stamps, gpu_of, places
from sentinel.supervisor.child_process import ChildHandle, ReplaceableProcess

#: Datagrams taken from the probe in one tick: a backlog of stale readings is drained at once.
_MAX_MESSAGES_PER_TICK = 4096
#: Keeps the probe small: it formats nothing for people, so it needs no table of the host's locales,
#: and one malloc arena serves its threads.
_ENVIRONMENT = {"LC_ALL": "C", "MALLOC_ARENA_MAX": "1"}


class _Shared:
    """The memory that one probe shares with the supervisor."""

    def __init__(self) -> None:
        self.calls = InflightCalls.create()
        try:
            self.stamps = Stamps.create(MAX_GPUS)
        except OSError:
            self.calls.close()
            raise
        self._open = True

    def inherited(self) -> tuple[Inherited, Inherited]:
        """Return what the probe inherits."""
        return Inherited(self.calls.fd), Inherited(self.stamps.fd)

    def close(self) -> None:
        """Release the memory, once."""
        if self._open:
            self._open = False
            self.calls.close()
            self.stamps.close()


def _handle() -> ChildHandle[ProbeMessage]:
    return ChildHandle(
        probe_main.run,
        PROBE_MESSAGES,
        max_messages=_MAX_MESSAGES_PER_TICK,
        environment=_ENVIRONMENT,
    )


class ProbeProcess(ReplaceableProcess[ProbeMessage]):
    """The process that reads the GPUs, its replacements and a spare one.

    Args:
        spec: The specification of each probe, but for the GPUs to skip.
    """

    def __init__(self, spec: ProbeSpec) -> None:
        super().__init__(_handle())
        self._spec = spec
        self._places: tuple[str, ...] = ()
        self._shared = _Shared()
        self._spare = _handle()
        self._spare_shared = _Shared()
        self._spare_ready = False

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Activate the spare probe, or spawn one with its own shared memory."""
        if self._spare_ready:
            self._spare_ready = False
            self._handle.adopt(self._spare, generation)
            self._shared, self._spare_shared = self._spare_shared, self._shared
            self._handle.send(Activate(skip=skip, known=self._places))
            return
        try:
            shared = _Shared()
        except OSError as error:
            self._handle.refuse(generation, error)
            return
        self._shared.close()
        self._shared = shared
        spec = replace(self._spec, skip=skip, known=self._places)
        self._handle.start(generation, spec, *self._shared.inherited())

    def start_spare(self) -> None:
        """Spawn a probe that opens the driver and waits."""
        try:
            shared = _Shared()
        except OSError:
            return  # tried again after the usual pause
        self._spare_shared.close()
        self._spare_shared = shared
        self._spare_ready = False
        spec = replace(self._spec, spare=True)
        self._spare.start(0, spec, *self._spare_shared.inherited())

    def kill_spare(self) -> None:
        """Kill the spare probe."""
        self._spare_ready = False
        self._spare.abandon()

    def gone(self) -> bool:
        """Check that no probe is left, not even one that was killed or a spare one."""
        gone = [handle.all_gone() for handle in (self._handle, self._spare)]
        return all(gone)

    def files(self) -> list[int]:
        """List the descriptors to wait for."""
        return [*self._handle.files(), *self._spare.files()]

    def watch(self, what: Watch) -> None:
        """Send the probe what to read."""
        self._handle.send(what)

    def read_at(self, uuid: str) -> float:
        """Return when the probe last read the memory of a GPU, or 0.0."""
        if uuid not in self._places[:MAX_GPUS]:
            return 0.0
        return self._shared.stamps.get(self._places.index(uuid))

    def collect(self) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Collect the new facts about the probe, and the newest reading of each GPU.

        Garbage is no reading: the GPU becomes UNKNOWN when its last reading is stale.
        """
        received = self._handle.collect()
        if received is None:
            return None, {}
        generation = self._handle.generation
        refused = received.spawn_error and f"it could not be spawned: {received.spawn_error}"
        facts = ProbeFacts(
            generation=generation, calls=self._calls(), exit=received.exit, failed=refused
        )
        readings: dict[str, Reading] = {}
        for message in received.messages:
            match message:
                case Reading() as reading:
                    readings[reading.uuid] = reading
                case Inventory() as inventory:
                    self._places = places([gpu.uuid for gpu in inventory.gpus], self._places)
                    facts = replace(facts, inventory=inventory)
                case Unavailable() as unavailable:
                    facts = replace(facts, unavailable=unavailable)
                case ProbeFailed(reason=reason):
                    facts = replace(facts, failed=reason)
                case XidReport() as report:
                    facts = replace(facts, xids=(*facts.xids, report))
                case XidsWatched() as watched:
                    facts = replace(facts, xids_watched=watched)
                case Standby():
                    pass  # of a spare probe that was activated before its message was read
        return facts, readings

    def collect_spare(self) -> SpareFacts | None:
        """Collect the new facts about the spare probe; None without one."""
        received = self._spare.collect()
        if received is None:
            return None
        self._spare_ready |= any(isinstance(message, Standby) for message in received.messages)
        self._spare_ready &= received.exit is None
        return SpareFacts(ready=self._spare_ready, exit=received.exit)

    def close(self) -> bool:
        """Kill the probes; return whether every one is gone."""
        closed = [handle.close() for handle in (self._spare, self._handle)]
        for shared in (self._shared, self._spare_shared):
            shared.close()
        return all(closed)

    def _calls(self) -> tuple[Call, ...]:
        """List the driver calls that the probe has announced and not finished."""
        calls = []
        for slot, name, since in self._shared.calls.outstanding():
            index = gpu_of(slot)
            if index is None:
                calls.append(Call(uuid=None, name=name, since=since))
            elif index < len(self._places):
                calls.append(Call(uuid=self._places[index], name=name, since=since))
        return tuple(calls)
