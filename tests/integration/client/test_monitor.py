"""One object watches the GPUs: through a real service here, and by a sentinel of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sentinel
from sentinel.client import GpuStatus
from sentinel.client.callbacks import names_of
from sentinel.client.types import EventInfo
from sentinel.errors import ConfigError, ConflictError, NoSuchGpuError, NotRunningError
from sentinel.host.procfs import read_stat
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Allocate, Configure, Deallocate, GivenSetting
from sentinel.protocol.views import GpuHealth
from tests.harness.api_harness import UUIDS, ApiServer
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    given = (GivenSetting(key="memory.target", text="50%", source="--memory"),)
    with ApiServer(tmp_path_factory.mktemp("service"), given=given) as front:
        yield front


@pytest.fixture
def front(service: ApiServer) -> ApiServer:
    service.reset()
    return service


@pytest.fixture
def monitor(front: ApiServer) -> Iterator[sentinel.Monitor]:
    with sentinel.Monitor(front.path) as monitor:
        yield monitor


def so(front: ApiServer, index: int = 0, **changes: Any) -> None:
    with front.change_supervisor() as supervisor:
        supervisor.gpus[UUIDS[index]] = replace(supervisor.gpus[UUIDS[index]], **changes)


def started(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.started


def health(front: ApiServer, before: str, now: str, index: int = 0) -> None:
    front.publish(
        "gpu.health_changed",
        gpu=UUIDS[index],
        before=before,
        health=now,
        temperature_c=80,
        memory_foreign_share=0.1,
    )


# --- which callbacks an event is for ---------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "names"),
    [
        ("optimal", "normal", []),
        ("normal", "throttled", ["throttle"]),
        ("critical", "throttled", ["throttle"]),
        ("throttled", "critical", ["critical"]),
        ("throttled", "normal", ["resume"]),
        ("critical", "optimal", ["resume"]),
        ("normal", "optimal", []),
        (None, "optimal", []),
    ],
)
def test_a_change_of_condition_is_for_those_whom_it_concerns(
    before: str | None, now: str, names: list[str]
) -> None:
    event = EventInfo(id=1, name="gpu.health_changed", fields={"before": before, "health": now})
    assert list(names_of(event)) == ["gpu.health_changed", "state_change", *names]


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("gpu.overheat", "overheat"),
        ("gpu.yielding", "yield"),
        ("gpu.handed_over", "handed_over"),
        ("gpu.busy", "busy"),
        ("gpu.idle", "idle"),
    ],
)
def test_other_events_have_one_name_more_than_their_own(event: str, name: str) -> None:
    assert list(names_of(EventInfo(id=1, name=event, fields={}))) == [event, name]


@pytest.mark.parametrize("name", ["", "throtle", "yields"])
def test_a_name_that_is_none_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"The names are: state_change, throttle, resume, critical"
    ):
        sentinel.Monitor().on(name, lambda *_: None)


# --- through a daemon ------------------------------------------------------------------------


def test_callbacks_get_the_gpu_and_the_event_and_none_can_harm_the_others(
    front: ApiServer, monitor: sentinel.Monitor, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, GpuStatus, EventInfo]] = []
    done = threading.Event()

    @monitor.on("throttle")
    def broken(gpu: GpuStatus, event: EventInfo) -> None:
        raise KeyError(gpu.index)

    @monitor.on("throttle")
    def leaves(gpu: GpuStatus, event: EventInfo) -> None:
        sys.exit(1)

    def keep(name: str) -> Callable[[GpuStatus, EventInfo], None]:
        return lambda gpu, event: heard.append((name, gpu, event))

    for name in ("state_change", "throttle", "resume", "gpu.paused"):
        monitor.on(name, keep(name))
    ignored = monitor.on("critical", keep("critical"))
    monitor.off("critical", ignored)
    monitor.on("idle", lambda *_: done.set())
    health(front, "optimal", "normal")  # there is no listener yet
    monitor.start()
    monitor.start()  # it runs: nothing happens
    so(front, health=GpuHealth.THROTTLED, multiplier=0.5, temperature_c=80)
    health(front, "normal", "throttled")
    health(front, "throttled", "critical", 1)
    health(front, "critical", "normal", 1)
    front.publish("gpu.paused", gpu=UUIDS[1], for_s=None)
    front.publish("service.ready")
    front.publish("gpu.idle", gpu=UUIDS[1])
    assert done.wait(TIMEOUT_S)
    assert [(name, gpu.index, event.name) for name, gpu, event in heard] == [
        ("state_change", 0, "gpu.health_changed"),
        ("throttle", 0, "gpu.health_changed"),
        ("state_change", 1, "gpu.health_changed"),
        ("state_change", 1, "gpu.health_changed"),
        ("resume", 1, "gpu.health_changed"),
        ("gpu.paused", 1, "gpu.paused"),
    ]
    _, gpu, event = heard[1]
    assert (gpu.health, gpu.multiplier, gpu.temperature_c) == ("throttled", 0.5, 80)
    assert event.fields["before"] == "normal"
    assert monitor.errors == 2
    assert "KeyError" in caplog.text


def test_the_thread_ends_at_once_though_nothing_happens(
    front: ApiServer, monitor: sentinel.Monitor
) -> None:
    monitor.start()
    assert monitor.running
    (thread,) = [one for one in threading.enumerate() if one.name == "sentinel-monitor"]
    began = time.monotonic()
    monitor.stop()
    assert not thread.is_alive()
    assert not sentinel.Monitor(front.path).running
    assert time.monotonic() - began < 14  # a comment comes each 15 s


def test_a_callback_may_stop_it(front: ApiServer, monitor: sentinel.Monitor) -> None:
    calls = []

    def once(gpu: GpuStatus, event: EventInfo) -> None:
        calls.append(event.id)
        monitor.stop()

    monitor.on("idle", once)
    monitor.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "sentinel-monitor"]
    first = front.publish("gpu.idle", gpu=UUIDS[0])
    front.publish("gpu.idle", gpu=UUIDS[0])
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert calls == [first]


def test_it_goes_on_when_the_service_is_another_one(
    front: ApiServer, monitor: sentinel.Monitor
) -> None:
    heard = threading.Event()
    monitor.on("idle", lambda *_: heard.set())
    monitor.start()
    front.kill()
    front.start()
    front.wait_for(lambda: front.heartbeats > 0)

    def again() -> bool:
        front.publish("gpu.idle", gpu=UUIDS[0])
        return heard.wait(0.1)

    eventually(again)
    assert monitor.running


def test_what_is_asked_for_is_that_of_the_gpu(front: ApiServer, monitor: sentinel.Monitor) -> None:
    assert monitor.is_available()
    assert monitor.reason == ""
    so(front, 1, health=GpuHealth.THROTTLED, multiplier=0.5)
    eventually(lambda: monitor.status(1).health == "throttled")
    assert [gpu.index for gpu in monitor.status_all()] == [0, 1]
    assert (monitor.should_throttle(1), monitor.speed_multiplier(1)) == (True, 0.5)
    assert (monitor.should_throttle(0), monitor.speed_multiplier()) == (False, 1.0)
    with pytest.raises(NoSuchGpuError):
        monitor.should_throttle(7)


def test_single_settings_are_changed_and_the_others_kept(
    front: ApiServer, monitor: sentinel.Monitor
) -> None:
    assert monitor.update_config({"throttle.temp_throttle": 80}).text
    order = front.commands[-1]
    assert isinstance(order, Configure)
    given = {value.key: value.text for value in order.given}
    assert given == {"memory.target": "50%", "throttle.temp_throttle": "80"}
    with pytest.raises(ConfigError, match="there is no setting 'temp_throttle'"):
        monitor.update_config({"temp_throttle": 80})
    monitor.update_config({"throttle.temp_throttle": None})


def test_memory_is_had_while_a_block_lasts(front: ApiServer, monitor: sentinel.Monitor) -> None:
    before = monitor.available()
    with monitor.allocation("llm", "2GiB") as got:
        assert (got.size, got.holder.pid) == (2 * 2**30, os.getpid())
        assert monitor.available() == before - got.size == monitor.budget().available
        with pytest.raises(ConflictError, match="can be allocated"):
            monitor.allocate("llm", "1GiB")
        assert [one.id for one in monitor.client.allocations()] == ["llm"]
    assert [type(order) for order in front.commands if type(order) in {Allocate, Deallocate}] == [
        Allocate,
        Allocate,
        Deallocate,
    ]
    with monitor.allocation("llm", 2**20):
        monitor.deallocate("llm")  # by hand, which is no error at the end
        other = Caller(via="unix", uid=0, pid=1, started=started(1))
        with front.change_supervisor() as supervisor:  # and the name may be another one's by then
            supervisor.allocate(Allocate(number=0, by=other, id="llm", gpu=UUIDS[0], size=1))
            supervisor.allocations["llm"] = replace(supervisor.allocations["llm"], confirmed=True)
    assert [one.holder.pid for one in monitor.client.allocations()] == [1]
    with pytest.raises(ConfigError, match="size: 'much' is not a size"):
        monitor.allocate("llm", "much")


def test_events_are_followed_in_a_loop_and_in_an_event_loop(
    front: ApiServer, monitor: sentinel.Monitor
) -> None:
    first = front.publish("gpu.idle", gpu=UUIDS[0])
    front.publish("gpu.busy", gpu=UUIDS[0])
    with monitor.events(since=first - 1) as events:
        assert [next(events).name, next(events).name] == ["gpu.idle", "gpu.busy"]

    async def follow() -> list[str]:
        names = []
        other = asyncio.create_task(asyncio.sleep(0))  # the loop goes on meanwhile
        async for event in monitor.events(since=first - 1):
            names.append(event.name)
            if len(names) == 2:
                break
        await other
        return names

    assert asyncio.run(follow()) == ["gpu.idle", "gpu.busy"]


def test_one_who_waits_for_an_event_in_an_event_loop_can_be_cancelled(
    front: ApiServer, monitor: sentinel.Monitor
) -> None:
    async def wait() -> None:
        async for _ in monitor.events():
            raise AssertionError("nothing happens")

    async def cancel() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    began = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - began < 14  # no thread is left that waits for a comment


def test_a_daemon_that_was_named_is_not_replaced(tmp_path: Path) -> None:
    monitor = sentinel.Monitor(tmp_path / "none")
    assert not monitor.is_available()
    assert "no sentinel daemon runs at" in monitor.reason
    with pytest.raises(NotRunningError):
        monitor.start()
    with pytest.raises(ConfigError, match="embedded"):
        sentinel.Monitor(tmp_path / "none", embedded=True)


# --- a sentinel of its own -------------------------------------------------------------------


@pytest.fixture
def host(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> SimulatedHost:
    for name, value in simulated.environment().items():
        monkeypatch.setenv(name, value)
    return simulated


@pytest.mark.long
def test_without_a_daemon_it_has_a_sentinel_that_holds_nothing_and_ends_with_it(
    host: SimulatedHost,
) -> None:
    with sentinel.Monitor(simulate=2) as monitor, sentinel.Monitor(simulate=2) as other:
        assert monitor.is_available(), monitor.reason
        assert other.is_available()  # two of them disturb neither the GPU nor each other
        daemon = monitor.client.status().daemon
        assert (daemon.phase, daemon.simulated) == ("drained", True)
        assert other.client.status().daemon.pid != daemon.pid
        busy = threading.Event()
        monitor.on("busy", lambda *_: busy.set())
        monitor.start()
        with host.job(1, stay=30) as job:
            assert job.got_memory()
            assert busy.wait(TIMEOUT_S)
            # The name of a process may be known a moment later than its presence.
            eventually(lambda: [one.pid for one in monitor.status(1).processes] == [job.pid])
        with pytest.raises(ConflictError, match="only watches"):
            monitor.client.start()
        assert monitor.update_config({"throttle.temp_throttle": "80"}).text
        assert host.empty(0)
    stat = read_stat(daemon.pid)
    assert stat is None or not stat.alive


def test_a_host_without_a_driver_is_one_where_it_is_not_available(
    host: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver")
    monkeypatch.delenv("SENTINEL_SIM_DIR")
    with sentinel.Monitor(embedded=True) as monitor:
        assert monitor.is_available() is False
        assert "no GPU can be read" in monitor.reason
        began = time.monotonic()
        assert monitor.is_available() is False  # and is not tried again and again
        assert time.monotonic() - began < 0.1
