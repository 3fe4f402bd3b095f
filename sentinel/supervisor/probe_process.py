"""The probe process, its replacements, and a spare one that is already running."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.observation import Call, ProbeFacts, ProcessFacts
from sentinel.host.process_setup import Inherited
from sentinel.probe import main as probe_main
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import (
    PROBE_MESSAGES,
    Activate,
    Inventory,
    Listed,
    ProbeFailed,
    ProbeMessage,
    ProbeSpec,
    Standby,
    Unavailable,
    XidReport,
    XidsWatched,
)
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, Stamps, gpu_of, slot_order
from sentinel.supervisor.child_process import ChildHandle, ReplaceableProcess

#: Datagrams taken from the probe in one tick: a backlog of stale readings is drained at once.
_MAX_MESSAGES_PER_TICK = 4096
#: Keeps the probe small: it formats nothing for people, so it needs no table of the host's locales,
#: and one malloc arena serves its threads.
_ENVIRONMENT = {"LC_ALL": "C", "MALLOC_ARENA_MAX": "1"}

#: The fields of ProbeFacts that are a message as it is.
_FIELDS = {Listed: "listed", Unavailable: "unavailable", XidsWatched: "xids_watched"}


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


class SpareProbe(ReplaceableProcess[ProbeMessage]):
    """A probe that has opened the driver and waits to become the next one.

    Args:
        spec: The specification of each probe.
    """

    def __init__(self, spec: ProbeSpec) -> None:
        super().__init__(_handle())
        self._spec = replace(spec, spare=True)
        self._shared = _Shared()
        self._ready = False

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:  # noqa: ARG002
        """Spawn a probe that opens the driver and waits."""
        try:
            shared = _Shared()
        except OSError as error:
            self._handle.refuse(generation, error)
            return
        self._shared.close()
        self._shared = shared
        self._ready = False
        self._handle.start(generation, self._spec, *self._shared.inherited())

    def replace(
        self, handle: ChildHandle[ProbeMessage], shared: _Shared, generation: int
    ) -> _Shared | None:
        """Become the child of ``handle``; return its shared memory, or None if it is not ready.

        Args:
            handle: A handle without a child.
            shared: The memory that this one gets instead.
            generation: The number of the new probe.
        """
        if not self._ready or self._handle.child is None:  # one that was killed is ready no more
            return None
        self._ready = False
        handle.adopt(self._handle, generation)
        own, self._shared = self._shared, shared
        return own

    def collect(self) -> ProcessFacts | None:
        """Collect the new facts about it; None without one."""
        received = self._handle.collect()
        if received is None:
            return None
        works = any(isinstance(message, Standby) for message in received.messages)
        self._ready = (self._ready or works) and received.exit is None
        return ProcessFacts(
            generation=self._handle.generation,
            works=works,
            exit=received.exit,
            failed=received.refused,
        )

    def gone(self) -> bool:
        """Check that none is left, not even one that was killed."""
        return self._handle.all_gone()

    def close(self) -> bool:
        """Kill it; return whether it is gone."""
        closed = super().close()
        self._shared.close()
        return closed


class ProbeProcess(ReplaceableProcess[ProbeMessage]):
    """The process that reads the GPUs, and its replacements.

    Args:
        spec: The specification of each probe, but for the GPUs to skip.

    Attributes:
        spare: The process that becomes the next one.
    """

    def __init__(self, spec: ProbeSpec) -> None:
        super().__init__(_handle())
        self._spec = spec
        self._slot_order: tuple[str, ...] = ()
        self._shared = _Shared()
        self.spare = SpareProbe(spec)

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:
        """Activate the spare probe, or spawn one with its own shared memory."""
        shared = self.spare.replace(self._handle, self._shared, generation)
        if shared is not None:
            self._shared = shared
            self._handle.send(Activate(skip=excluded, known=self._slot_order))
            return
        try:
            shared = _Shared()
        except OSError as error:
            self._handle.refuse(generation, error)
            return
        self._shared.close()
        self._shared = shared
        spec = replace(self._spec, skip=excluded, known=self._slot_order)
        self._handle.start(generation, spec, *self._shared.inherited())

    def gone(self) -> bool:
        """Check that no probe is left, not even one that was killed or a spare one."""
        gone = [self._handle.all_gone(), self.spare.gone()]
        return all(gone)

    def read_at(self, uuid: str) -> float:
        """Return when the probe last read the memory of a GPU, or 0.0."""
        if uuid not in self._slot_order[:MAX_GPUS]:
            return 0.0
        return self._shared.stamps.get(self._slot_order.index(uuid))

    def collect(self) -> ProbeFacts | None:
        """Collect the new facts about the probe, with the newest reading of each GPU.

        Garbage is no reading: the GPU becomes UNKNOWN when its last reading is stale.
        """
        received = self._handle.collect()
        if received is None:
            return None
        readings: dict[str, Reading] = {}
        facts = ProbeFacts(
            generation=self._handle.generation,
            readings=readings,
            calls=self._calls(),
            exit=received.exit,
            failed=received.refused,
        )
        for message in received.messages:
            match message:
                case Reading() as reading:
                    readings[reading.uuid] = reading
                case Inventory() as inventory:
                    self._slot_order = slot_order(
                        [gpu.uuid for gpu in inventory.gpus], self._slot_order
                    )
                    facts = replace(facts, inventory=inventory)
                case Listed() | Unavailable() | XidsWatched():
                    facts = replace(facts, **{_FIELDS[type(message)]: message})  # type: ignore[arg-type]
                case ProbeFailed(reason=reason):
                    facts = replace(facts, failed=reason)
                case XidReport() as report:
                    facts = replace(facts, xids=(*facts.xids, report))
                case Standby():
                    pass  # of a spare probe that was activated before its message was read
        return facts

    def close(self) -> bool:
        """Kill the probes; return whether every one is gone."""
        closed = [self.spare.close(), super().close()]
        self._shared.close()
        return all(closed)

    def _calls(self) -> tuple[Call, ...]:
        """List the driver calls that the probe has announced and not finished."""
        calls = []
        for slot, name, since in self._shared.calls.outstanding():
            index = gpu_of(slot)
            if index is None:
                calls.append(Call(uuid=None, name=name, since=since))
            elif index < len(self._slot_order):
                calls.append(Call(uuid=self._slot_order[index], name=name, since=since))
        return tuple(calls)
