"""Views: the note of a workload."""

from __future__ import annotations

from functools import partial

from sentinel.cli.event_format import describe
from sentinel.config.model import Config
from sentinel.core.stressor_state import Running
from sentinel.protocol import codec
from sentinel.protocol.stressor import Note
from sentinel.testing import World


def _status_says(world: World, note: str) -> bool:
    return any(event.fields.get("note") == note for event in world.events("gpu.status"))


def test_a_note_stays_until_the_next_and_is_cut() -> None:
    world = World()
    supervisor = world.supervisor(Config(rearm=1.0, status_every=1.0))
    world.run(
        supervisor, lambda: isinstance(supervisor.state.gpu_states["GPU-0"].stressor, Running)
    )
    child = world.at(0).child
    assert child is not None
    for sent, shown in (("pass 1", "pass 1"), ("x" * 5000, "x" * 200)):
        child.outbox += (codec.decode(codec.encode(Note(text=sent)), (Note,)),)
        world.run(supervisor, partial(_status_says, world, shown), within=3)
    before = len(world.events("gpu.status"))
    world.run(supervisor, lambda: len(world.events("gpu.status")) > before + 2, within=9)
    status = world.events("gpu.status")[-1]
    assert status.fields["note"] == "x" * 200
    assert describe(status.name, status.fields)[1].endswith("; " + "x" * 200)
