"""Whatever the driver of a package returns or raises is a value of its type, or a short error."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from sentinel.probe.driver import (
    Driver,
    DriverError,
    DriverGoneError,
    GpuLostError,
    ReadError,
    TooManyProcessesError,
)
from sentinel.probe.package_driver import CheckedDriver, load_driver
from sentinel.protocol.codec import encode
from sentinel.protocol.gpu import Gpu, Memory, Reading, Telemetry
from sentinel.protocol.probe import DriverSpec, Inventory
from sentinel.protocol.shared_memory import MAX_GPUS
from tests.harness.own_drivers import ERRORS, GIB, RESULTS, UUIDS, XIDS, Good, Xids

CALLS = [call for call in vars(Driver) if not call.startswith("_")]
#: The calls of a GPU; the others are of the driver.
OF_A_GPU = [call for call in CALLS if call not in {"open", "version", "gpus", "xids"}]
#: What some calls may return although it looks odd.
ALLOWED = {
    **dict.fromkeys(itertools.product(("utilization", "temperature", "power"), ("none",))),
    ("temperature", "percent"): 37,
    ("power", "percent"): 37.0,
    ("power", "kelvin"): 310.0,
    ("sm_clock", "none"): None,
    ("sm_clock", "percent"): 37,
    ("sm_clock", "kelvin"): 310,
    ("computing", "none"): None,
    ("computing", "pids"): (1, 2),
    ("node", "word"): "yes",
}

#: By the call and the wrong result: a part of the reason.
REASONS = {
    ("memory", "none"): "returned None; allowed is a Memory: it is a NoneType",
    ("memory", "dict"): "allowed is a Memory: it is a dict",
    ("memory", "more than all"): "used and free from 0 to total",
    ("memory", "negative"): "used and free from 0 to total",
    ("memory", "text"): "allowed is a Memory: used: expected a whole number",
    ("memory", "no memory"): "used and free from 0 to total",
    ("processes", "none"): "GpuProcess, ...]: the value: expected a list",
    ("processes", "pids"): "GpuProcess, ...]: [0]: expected an object",
    ("processes", "pid 0"): "a PID from 1 to 4194304",
    ("processes", "twice"): "each PID once",
    ("processes", "endless"): "GpuProcess, ...]: vars() argument",
    ("exclusive", "word"): "returned 'yes'; allowed is a bool: it is a str",
    ("utilization", "percent"): "returned 37; allowed is a share from 0 to 1, or None",
    ("utilization", "nan"): "float | None: the value: expected a finite number",
}


def checked(call: str, does: Any) -> CheckedDriver:
    """Build a driver of which one call does something else."""
    driver = Good()

    def instead(*_: object) -> Any:
        if isinstance(does, BaseException):
            raise does
        return does

    setattr(driver, call, instead)
    return CheckedDriver("own", driver)


def make(driver: CheckedDriver, call: str) -> Any:
    """Make a call with its arguments."""
    arguments: dict[str, tuple[Any, ...]] = {"version": (), "open": (), "gpus": ((),), "xids": ()}
    return getattr(driver, call)(*arguments.get(call, (UUIDS[0],)))


def assert_short(error: DriverError) -> None:
    """Check that an error can be sent, logged, stored and printed."""
    assert str(error).isprintable()
    assert len(str(error)) < 1200
    encode(Reading(uuid=UUIDS[0], at=0.0, fault=str(error)))


@pytest.mark.parametrize("call", OF_A_GPU)
def test_a_wrong_result_is_an_error_of_one_gpu_that_names_the_call(call: str) -> None:
    for what, result in RESULTS.items():
        driver = checked(call, result)
        if call == "node" or (call, what) in ALLOWED:
            assert make(driver, call) == ALLOWED.get((call, what)), what
            continue
        began = time.process_time()
        with pytest.raises(ReadError, match=rf"driver own: {call}\(\) returned ") as caught:
            pytest.fail(f"{what} is taken: {make(driver, call)!r}")
        assert time.process_time() - began < 1, f"a hang is an error of the whole probe: {what}"
        assert REASONS.get((call, what), "") in str(caught.value), what
        assert_short(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_any_error_is_an_error_of_a_driver(call: str) -> None:
    for what, error in ERRORS.items():
        driver = checked(call, error)
        if call == "node":
            assert make(driver, call) is None, what
            continue
        with pytest.raises(DriverError) as caught:
            pytest.fail(f"{what} is taken: {make(driver, call)!r}")
        assert type(caught.value) in {DriverGoneError, GpuLostError, ReadError}, what
        assert_short(caught.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GpuLostError("gone", "it left\nthe bus"), GpuLostError("gone", "it left the bus")),
        (DriverGoneError("gone", "no module"), DriverGoneError("gone", "no module")),
        (TooManyProcessesError(500), TooManyProcessesError(500)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_a_driver_may_raise_is_passed_on(
    error: DriverError, expected: DriverError
) -> None:
    with pytest.raises(type(expected)) as caught:
        make(checked("processes", error), "processes")
    assert str(caught.value) == str(expected)


GPU = Gpu(uuid=UUIDS[0], index=0, name="Own", pci_bus_id="0:0", memory_total=GIB)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "x" * 1000},
        {"name": "\x1b[2J"},
        {"pci_bus_id": "\ud800"},
        {"serial": "a\nb"},
        {"index": -1},
        {"index": 10**400},
        {"memory_total": 2**60},
        {"memory_total": -1},
        {"uuid": "../../etc"},
    ],
    ids=str,
)
def test_a_gpu_that_cannot_be_shown_is_refused(changes: dict[str, Any]) -> None:
    gpus = (Gpu(**{**vars(GPU), **changes}),)
    with pytest.raises(DriverGoneError, match=r"driver own: gpus\(\) returned") as caught:
        make(checked("gpus", gpus), "gpus")
    assert_short(caught.value)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        *(("gpus", what) for what in ("none", "pids", "unprintable", "nested", "digits", "many")),
        *(("version", what) for what in ("none", "percent", "terminal", "million")),
    ],
)
def test_no_list_of_gpus_and_no_version_that_can_be_shown_is_refused(call: str, what: str) -> None:
    with pytest.raises(DriverGoneError, match=rf"driver own: {call}\(\) returned"):
        make(checked(call, RESULTS[what]), call)


def test_the_longest_inventory_fits_into_a_message() -> None:
    longest = {"name": "\N{SNOWMAN}" * 16, "pci_bus_id": "x" * 100, "serial": "x" * 100}
    gpus = tuple(
        Gpu(uuid=f"{index:080}", index=index, memory_total=2**50, **longest)
        for index in range(MAX_GPUS)
    )
    driver = checked("gpus", gpus)
    encode(Inventory(gpus=make(driver, "gpus"), driver=make(driver, "version")))


def test_telemetry_has_the_time_of_its_call() -> None:
    driver = checked("telemetry", Telemetry(at=1e300, utilization=0.5, reasons=("gpu_idle",)))
    found = make(driver, "telemetry")
    assert abs(found.at - time.monotonic()) < 60
    assert (found.utilization, found.reasons) == (0.5, ("gpu_idle",))


def test_memory_up_to_a_pebibyte_is_possible() -> None:
    for total, plausible in ((2**50, True), (2**50 + 1, False)):
        assert Memory(total=total, used=0, free=total).plausible == plausible


@pytest.mark.parametrize("what", [*XIDS, "number", "exits"])
def test_xids_are_of_gpus_that_were_added(what: str) -> None:
    source = CheckedDriver("own", Xids(what)).xids()
    assert source.add(UUIDS[0])
    assert not source.add(UUIDS[1])
    began = time.monotonic()
    if what in {"at once", "of another"}:
        assert source.wait(2.0) is None
        assert time.monotonic() - began > 0.02, "else it would keep a core busy"
    else:
        with pytest.raises(ReadError, match=r"driver own: wait\(\)") as caught:
            source.wait(2.0)
        assert_short(caught.value)
    with pytest.raises(ReadError, match=r"driver own: close\(\) raised KeyError"):
        source.close()


def test_a_driver_that_exits_while_it_is_created_is_named() -> None:
    spec = DriverSpec(name="own", target="sys:exit", origin="own_package 0.1.0")
    with pytest.raises(DriverGoneError, match="driver own of own_package 0"):
        load_driver(spec)
