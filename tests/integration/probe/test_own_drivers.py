"""A real probe with the driver of a package: a good one, and many that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sentinel.protocol.codec import encode
from sentinel.protocol.gpu import Memory, Reading
from sentinel.protocol.probe import DriverSpec, ProbeSpec, Unavailable, Watch
from tests.harness.narrowing import not_none
from tests.harness.own_drivers import GIB, UUIDS
from tests.harness.parameters import mostly_long
from tests.harness.probe_harness import ProbeHarness
from tests.harness.sentinel_process import eventually

Start = Callable[..., ProbeHarness]

ORIGIN = "own_package 0.1.0"
SPEC = ProbeSpec(poll=0.05, watch_interval=0.025, utilization=True)


def first_two_short(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Leave all rows but two to the long tests; each starts a process."""
    return [pytest.param(*row, marks=[pytest.mark.long] * (n > 1)) for n, row in enumerate(rows)]


@pytest.fixture
def start(start_probe: Start) -> Start:
    """Return a function that starts a probe with a driver of ``own_drivers``."""

    def start_one(attribute: str, **options: str) -> ProbeHarness:
        place = f"tests.harness.own_drivers:{attribute}"
        driver = DriverSpec(name="own", target=place, origin=ORIGIN, options=options)
        return start_probe(replace(SPEC, driver=driver))

    return start_one


def of(uuid: str) -> Callable[[Reading], bool]:
    return lambda reading: reading.uuid == uuid


def test_a_good_driver_is_read_like_nvml(start: Start) -> None:
    probe = start("Good")
    inventory = probe.inventory()
    assert inventory.driver == "own 1.2"
    assert [gpu.uuid for gpu in inventory.gpus] == list(UUIDS)
    idle = probe.reading(of(UUIDS[0]))
    assert (idle.memory, idle.processes) == (Memory(total=GIB, used=0, free=GIB), ())
    assert (idle.utilization, idle.temperature, idle.exclusive) == (None, None, False)
    busy = probe.reading(of(UUIDS[1]))
    (process,) = not_none(busy.processes)
    assert (process.memory, process.name is not None) == (GIB // 2, True)


@mostly_long("call, what", [("memory", "none"), ("processes", "pids")])
def test_a_wrong_result_makes_its_gpu_unknown_and_no_other(
    call: str, what: str, start: Start
) -> None:
    probe = start("Returns", call=call, what=what)
    probe.inventory()
    faulty = probe.reading(of(UUIDS[0]))
    assert f"driver own: {call}() returned" in not_none(faulty.fault)
    assert (faulty.memory, faulty.processes) == (None, None)
    assert probe.reading(of(UUIDS[1])).fault is None


def test_telemetry_that_cannot_be_sent_costs_only_itself(start: Start) -> None:
    probe = start("Returns", call="telemetry", what="telemetry")
    gpus = probe.inventory().gpus
    probe.channel.send(encode(Watch(gpus=tuple(gpu.uuid for gpu in gpus), held=(), telemetry=True)))
    assert probe.reading(lambda reading: reading.telemetry is not None).uuid == UUIDS[1]
    assert probe.reading(of(UUIDS[0])).fault is None


@pytest.mark.long
@pytest.mark.parametrize("call", ["node", "xids"])
def test_what_shows_newcomers_sooner_may_be_missing(call: str, start: Start) -> None:
    probe = start("Raises", call=call)
    gpus = probe.inventory().gpus
    probe.watch(gpus)
    assert probe.reading(of(UUIDS[0])).fault is None


def test_a_call_that_hangs_is_announced(start: Start) -> None:
    probe = start("Hangs")
    probe.inventory()
    eventually(lambda: "memory" in {call for _, call in probe.announced()})


UNUSABLE: list[tuple[str, dict[str, str], str, str]] = [
    ("Absent", {}, "driver_unusable", "cannot be loaded: AttributeError"),
    ("NOT_CALLABLE", {}, "driver_unusable", "is a int, which cannot be called"),
    ("refuses", {"library": "x"}, "driver_unusable", "OSError: no such library: {'library': 'x'}"),
    ("Good", {"folder": "x"}, "driver_unusable", "TypeError"),
    ("Incomplete", {}, "driver_unusable", "has no version, gpus, memory, processes, exclusive"),
    ("Raises", {"call": "open"}, "driver_raised", "driver own: open() raised KeyError"),
    ("Raises", {"call": "version"}, "driver_raised", "driver own: version() raised KeyError"),
    ("Raises", {"call": "gpus"}, "driver_raised", "driver own: gpus() raised KeyError"),
    ("TwoOfOneName", {}, "driver_wrong", "each uuid once"),
    ("PathAsName", {}, "driver_wrong", "UUIDs of 4 to 80 letters, digits"),
]


@mostly_long("attribute, options, code, reason", first_two_short(UNUSABLE))
def test_an_unusable_driver_names_itself_and_its_fault(
    attribute: str, options: dict[str, Any], code: str, reason: str, start: Start
) -> None:
    probe = start(attribute, **options)
    message = probe.next_message()
    assert isinstance(message, Unavailable)
    assert message.code == code
    assert reason in message.reason
    assert probe.wait_for_end() == 0


def test_a_driver_that_cannot_be_imported_is_unavailable(start_probe: Start) -> None:
    driver = DriverSpec(name="own", target="no_such_module:Driver", origin=ORIGIN)
    message = start_probe(replace(SPEC, driver=driver)).next_message()
    assert isinstance(message, Unavailable)
    expected = "driver own of own_package 0.1.0 cannot be loaded: ModuleNotFoundError"
    assert message.reason.startswith(expected)
