"""The probe process and its replacements."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.observation import Call, ProbeFacts
from sentinel.host.child_setup import Inherited
from sentinel.probe import main as probe_main
from sentinel.protocol.gpu import Reading
from sentinel.protocol.inflight_calls import MAX_GPUS, InflightCalls, gpu_of, places
from sentinel.protocol.probe import (
    PROBE_MESSAGES,
    Inventory,
    ProbeMessage,
    ProbeSpec,
    Unavailable,
    Watch,
)
from sentinel.protocol.shared_memory import Stamps
from sentinel.supervisor.child_process import ChildHandle, ReplaceableProcess

#: Datagrams taken from the probe in one tick: a backlog of stale readings is drained at once.
_MAX_MESSAGES_PER_TICK = 4096
#: Keeps the probe small: it formats nothing for people, so it needs no table of the host's locales,
#: and one malloc arena serves its threads.
_ENVIRONMENT = {"LC_ALL": "C", "MALLOC_ARENA_MAX": "1"}


class ProbeProcess(ReplaceableProcess[ProbeMessage]):
    """The process that reads the GPUs, and its replacements.

    Args:
        spec: The specification of each probe, but for the GPUs to skip.
    """

    def __init__(self, spec: ProbeSpec) -> None:
        super().__init__(
            ChildHandle(
                probe_main.run,
                PROBE_MESSAGES,
                max_messages=_MAX_MESSAGES_PER_TICK,
                environment=_ENVIRONMENT,
            )
        )
        self._spec = spec
        self._places: tuple[str, ...] = ()
        self._inflight_calls = InflightCalls.create()
        self._stamps = Stamps.create(MAX_GPUS)

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Spawn a probe with its own board of in-flight calls."""
        self._inflight_calls.close()
        self._inflight_calls = InflightCalls.create()
        self._stamps.close()
        self._stamps = Stamps.create(MAX_GPUS)
        spec = replace(self._spec, skip=skip, known=self._places)
        shared = (Inherited(self._inflight_calls.fd), Inherited(self._stamps.fd))
        self._handle.start(generation, spec, *shared)

    def gone(self) -> bool:
        """Check that no probe is left, not even one that was killed."""
        return self._handle.all_gone()

    def watch(self, what: Watch) -> None:
        """Send the probe what to read."""
        self._handle.send(what)

    def read_at(self, uuid: str) -> float:
        """Return when the probe last read the memory of a GPU, or 0.0."""
        if uuid not in self._places[:MAX_GPUS]:
            return 0.0
        return self._stamps.get(self._places.index(uuid))

    def collect(self) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Collect the new facts about the probe, and the newest reading of each GPU.

        Garbage is no reading: the GPU becomes UNKNOWN when its last reading is stale.
        """
        received = self._handle.collect()
        if received is None:
            return None, {}
        generation = self._handle.generation
        facts = ProbeFacts(generation=generation, calls=self._calls(), exit=received.exit)
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
        return facts, readings

    def close(self) -> bool:
        """Kill the probe; return whether every probe is gone."""
        return self._handle.close()

    def _calls(self) -> tuple[Call, ...]:
        """List the driver calls that the probe has announced and not finished."""
        calls = []
        for slot, name, since in self._inflight_calls.outstanding():
            index = gpu_of(slot)
            if index is None:
                calls.append(Call(uuid=None, name=name, since=since))
            elif index < len(self._places):
                calls.append(Call(uuid=self._places[index], name=name, since=since))
        return tuple(calls)
