"""XIDs: each is an event of its GPU, and the cleanup after an own kill is marked."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.cli.display.log_lines import describe
from sentinel.core.child_facts import KILL_WINDOW_S, is_of_own_end
from sentinel.core.gpu_state import OwnEnd, Stopped
from sentinel.protocol.probe import XidReport
from tests.harness.core_scenarios import occupied
from tests.harness.world import World


def throw(world: World, number: int, *, gpu: int = 0, repeats: int = 0) -> None:
    """Have NVML deliver an XID a moment after the last tick."""
    at = world.now + 0.001
    report = XidReport(uuid=f"GPU-{gpu}", number=number, at=at, last_at=at, repeats=repeats)
    world.probe.xids.append(report)


def reported(world: World, gpu: int = 0) -> dict[str, Any]:
    """Run until one more XID is reported; return the fields of the event."""
    before = len(world.events("gpu.xid"))
    world.run(lambda: len(world.events("gpu.xid")) > before)
    event = world.events("gpu.xid")[-1]
    assert event.gpu == f"GPU-{gpu}"
    return dict(event.fields)


@pytest.mark.parametrize("number", [43, 45, 79])
def test_an_xid_without_an_own_kill_is_an_event_of_its_gpu(number: int) -> None:
    world = occupied(gpus=2)
    throw(world, number)
    at = world.now + 0.001
    fields = reported(world)
    times = {"reported_at": at, "last_at": at}
    assert fields == {"xid": number, "repeats": 0, "own": False} | times
    assert describe("gpu.xid", fields) == ("XID", str(number))


def test_an_xid_of_an_unknown_gpu_is_ignored() -> None:
    world = occupied()
    throw(world, 79, gpu=9)
    throw(world, 48)
    assert reported(world)["xid"] == 48
    assert len(world.events("gpu.xid")) == 1


def test_43_after_a_yield_is_marked_as_own_and_48_is_not() -> None:
    world = occupied(gpus=2)
    process = world.newcomer()
    world.run(lambda: bool(world.events("gpu.yielding")))
    throw(world, 43)
    assert reported(world)["own"] is True
    throw(world, 48)
    assert reported(world)["own"] is False
    throw(world, 43, gpu=1)
    assert reported(world, gpu=1)["own"] is False, "that stressor was not ended"
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopped))
    throw(world, 45, repeats=3)
    word, text = describe("gpu.xid", reported(world))
    assert f"{word} {text}" == "XID 45 3 more times: the cleanup after a stressor that was ended"
    world.run_for(KILL_WINDOW_S)
    assert process in world.at(0).foreign
    throw(world, 45)
    assert reported(world)["own"] is False


def test_43_after_a_crash_of_the_stressor_is_not_own() -> None:
    world = occupied()
    child = world.child()
    child.code, child.dies_at = -11, world.now
    world.run(lambda: bool(world.events("stressor.failed")))
    throw(world, 43)
    assert reported(world)["own"] is False


@pytest.mark.parametrize(
    ("number", "at", "pid", "expected"),
    [
        (43, 100.0, None, True),
        (45, 110.0, 7, True),
        (45, 110.1, 7, False),
        (43, 99.9, 7, False),
        (43, 101.0, 8, False),
        (31, 101.0, 7, False),
    ],
)
def test_an_own_end_is_recognised_by_number_time_and_process(
    number: int,
    at: float,
    pid: int | None,
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert is_of_own_end(number, at, pid, [OwnEnd(pid=7, at=100.0)]) is expected
    assert not is_of_own_end(number, at, pid, [])
