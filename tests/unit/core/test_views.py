"""Views: the note of a workload, and their time: before the events of their tick."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sentinel.cli.display.log_lines import describe
from sentinel.config.model import Config
from sentinel.core.gpu_state import Running
from sentinel.core.state import State
from sentinel.core.step import Event
from sentinel.protocol import codec
from sentinel.protocol.commands import PauseGpus
from sentinel.protocol.stressor import Note
from sentinel.protocol.views import GpuView
from tests.harness.world import World


def _status_says(world: World, note: str) -> bool:
    return any(event.fields.get("note") == note for event in world.events("gpu.status"))


def test_a_note_stays_until_the_next_and_is_cut() -> None:
    world = World(config=Config(rearm=1.0, status_every=1.0))
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    child = world.child()
    for sent, shown in (("pass 1", "pass 1"), ("x" * 5000, "x" * 200)):
        child.outbox += (codec.decode(codec.encode(Note(text=sent)), (Note,)),)
        world.run(partial(_status_says, world, shown), within=3)
    before = len(world.events("gpu.status"))
    world.run(lambda: len(world.events("gpu.status")) > before + 2, within=9)
    status = world.events("gpu.status")[-1]
    assert status.fields["note"] == "x" * 200
    assert describe(status.name, status.fields)[1].endswith("; " + "x" * 200)


#: What the state must show once an event is published.
_SHOWN: dict[str, Callable[[GpuView, Event], bool]] = {
    "gpu.idle": lambda view, _: view.occupancy == "IDLE",
    "gpu.busy": lambda view, _: view.occupancy == "BUSY",
    "stressor.ready": lambda view, _: view.stressor == "RUNNING",
    "gpu.health_changed": lambda view, event: view.health == event.fields["health"],
    "gpu.yielding": lambda view, _: view.stressor == "STOPPING",
    "gpu.handed_over": lambda view, _: view.handover is not None and view.yields == 1,
}


def test_the_state_of_an_event_is_published_before_the_event() -> None:
    world = World(config=Config(rearm=1.0), with_api=True)
    checked: list[str] = []
    publish = vars(world.supervisor)["_publish"]

    def check(state: State, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.name in _SHOWN:
                assert _SHOWN[event.name](world.api.views["GPU-0"], event), event
                checked.append(event.name)
            if event.name == "gpu.paused":
                assert world.api.host is not None
                assert world.api.host.phase == "paused"
                checked.append(event.name)
        publish(state, events)

    vars(world.supervisor)["_publish"] = check
    world.run(lambda: "stressor.ready" in checked)
    for degrees in (70, 80, 88, 50):
        changes = checked.count("gpu.health_changed")
        world.at(0).temperature = degrees
        world.run(lambda: checked.count("gpu.health_changed") > changes, within=200)  # noqa: B023
    world.newcomer()
    world.run(lambda: "gpu.handed_over" in checked)
    world.api.post(PauseGpus)
    world.run(lambda: "gpu.paused" in checked)
    assert {*_SHOWN, "gpu.paused"} == set(checked)
