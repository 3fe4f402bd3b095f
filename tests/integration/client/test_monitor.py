"""The monitor, with a real API process and with a private sentinel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sentinel
from sentinel.client import GpuStatus, event_stream
from sentinel.client.event_stream import EventInfo, names_of
from sentinel.client.hold import private_sentinel
from sentinel.config.sources import from_flags
from sentinel.errors import ConfigError, ConflictError, NoSuchGpuError, NotRunningError
from sentinel.host.procfs import read_stat
from sentinel.protocol.commands import Allocate, Caller, CancelGrant, Configure
from sentinel.protocol.views import GpuHealth
from tests.harness.api_harness import UUIDS, ApiServer, UnixConnection
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually, start_of
from tests.harness.timing import TEST_TIMEOUT_S, TIMEOUT_S


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    given = from_flags({"memory.target": "50%"})
    with ApiServer(tmp_path_factory.mktemp("shared_api"), given=given) as api:
        yield api


@pytest.fixture
def api(shared_api: ApiServer) -> ApiServer:
    shared_api.reset()
    return shared_api


@pytest.fixture
def monitor(api: ApiServer) -> Iterator[sentinel.Monitor]:
    with sentinel.Monitor(api.path) as monitor:
        yield monitor


def publish_health(api: ApiServer, before: str, now: str, index: int = 0) -> None:
    """Publish a change of a GPU's health."""
    api.publish(
        "gpu.health_changed",
        gpu=UUIDS[index],
        before=before,
        health=now,
        temperature_c=80,
        memory_foreign_share=0.1,
    )


# --- the names of events ---------------------------------------------------------------------


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
def test_a_change_of_health_has_the_names_of_its_direction(
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
def test_other_events_have_a_short_name_as_well(event: str, name: str) -> None:
    assert list(names_of(EventInfo(id=1, name=event, fields={}))) == [event, name]


@pytest.mark.parametrize("name", ["", "throtle", "yields", "gpu.pausd", "lost"])
def test_an_unknown_name_is_an_error_with_the_known_names(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"The names are: state_change, throttle, resume, critical"
    ):
        sentinel.Monitor().on(name, lambda *_: None)


@pytest.mark.parametrize("name", ["sentinel.configured", "service.ready", "burnin.run_ended"])
def test_an_event_about_the_host_is_refused_since_a_callback_gets_a_gpu(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is an event of the host.*\n.*events\\(\\)"):
        sentinel.Monitor().on(name, lambda *_: None)


def takes_one(metrics: Any) -> None:
    """Stand for a callback of the GPU Management System."""


@pytest.mark.parametrize("callback", [takes_one, lambda: None, lambda gpu, event, more: None])
def test_a_callback_with_other_arguments_is_refused_when_it_is_added(callback: Any) -> None:
    monitor = sentinel.Monitor()
    with pytest.raises(ConfigError, match=r"is called with \(gpu, event\), and this one takes \("):
        monitor.on("throttle", callback)
    others: tuple[Any, ...] = (lambda *_: None, lambda gpu, event, more=1: None, print, dict)
    for fine in others:
        monitor.on("throttle", fine)


# --- through a daemon ------------------------------------------------------------------------


@pytest.mark.long
def test_callbacks_receive_the_gpu_and_the_event_although_others_fail(
    api: ApiServer, monitor: sentinel.Monitor, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[tuple[str, GpuStatus, EventInfo]] = []
    done = threading.Event()

    @monitor.on("throttle")
    def broken(gpu: GpuStatus, event: EventInfo) -> None:
        raise KeyError(gpu.index)

    @monitor.on("throttle")
    def exits(gpu: GpuStatus, event: EventInfo) -> None:
        sys.exit(1)

    def keep(name: str) -> Callable[[GpuStatus, EventInfo], None]:
        return lambda gpu, event: calls.append((name, gpu, event))

    for name in ("state_change", "throttle", "resume", "gpu.paused"):
        monitor.on(name, keep(name))
    ignored = monitor.on("critical", keep("critical"))
    monitor.off("critical", ignored)
    monitor.on("idle", lambda *_: done.set())
    publish_health(api, "optimal", "normal")  # before start()
    monitor.start()
    monitor.start()  # has no effect
    api.change_gpu(health=GpuHealth.THROTTLED, multiplier=0.5, temperature_c=80)
    publish_health(api, "normal", "throttled")
    publish_health(api, "throttled", "critical", 1)
    publish_health(api, "critical", "normal", 1)
    api.publish("gpu.paused", gpu=UUIDS[1], for_s=None)
    api.publish("service.ready")
    api.publish("gpu.idle", gpu=UUIDS[1])
    assert done.wait(TIMEOUT_S)
    assert [(name, gpu.index, event.name) for name, gpu, event in calls] == [
        ("state_change", 0, "gpu.health_changed"),
        ("throttle", 0, "gpu.health_changed"),
        ("state_change", 1, "gpu.health_changed"),
        ("state_change", 1, "gpu.health_changed"),
        ("resume", 1, "gpu.health_changed"),
        ("gpu.paused", 1, "gpu.paused"),
    ]
    _, gpu, event = calls[1]
    assert (gpu.health, gpu.multiplier, gpu.temperature_c) == ("throttled", 0.5, 80)
    assert event.fields["before"] == "normal"
    assert monitor.errors == 2
    assert "KeyError" in caplog.text


@contextlib.contextmanager
def silent(api: ApiServer) -> Iterator[None]:
    """Stop the API process, so that its streams send no comments."""
    os.kill(api.child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(api.child.pid, signal.SIGCONT)


@pytest.fixture
def endless_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait for a silent stream longer than any test."""
    monkeypatch.setattr(event_stream, "MAX_SILENCE_S", 10 * TEST_TIMEOUT_S)


@pytest.mark.usefixtures("endless_streams")
def test_the_thread_ends_although_its_stream_is_silent(
    api: ApiServer, monitor: sentinel.Monitor
) -> None:
    monitor.start()
    assert monitor.running
    (thread,) = [one for one in threading.enumerate() if one.name == "sentinel-monitor"]
    with silent(api):
        monitor.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert not monitor.running


def test_a_callback_can_stop_the_monitor(api: ApiServer, monitor: sentinel.Monitor) -> None:
    calls = []

    def once(gpu: GpuStatus, event: EventInfo) -> None:
        calls.append(event.id)
        monitor.stop()

    monitor.on("idle", once)
    monitor.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "sentinel-monitor"]
    first = api.publish("gpu.idle", gpu=UUIDS[0])
    api.publish("gpu.idle", gpu=UUIDS[0])
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert calls == [first]


@pytest.mark.long
def test_the_monitor_continues_with_the_next_api_process(
    api: ApiServer, monitor: sentinel.Monitor
) -> None:
    called = threading.Event()
    monitor.on("idle", lambda *_: called.set())
    monitor.start()
    api.kill()
    api.start()
    api.wait_for(lambda: api.heartbeats > 0)

    def event_arrives() -> bool:
        api.publish("gpu.idle", gpu=UUIDS[0])
        return called.wait(0.1)

    eventually(event_arrives)
    assert monitor.running


def test_the_state_is_that_of_the_selected_gpu(api: ApiServer, monitor: sentinel.Monitor) -> None:
    assert monitor.is_available()
    assert monitor.reason == ""
    api.change_gpu(0, health=GpuHealth.OPTIMAL)
    api.change_gpu(1, health=GpuHealth.THROTTLED, multiplier=0.5)
    eventually(lambda: monitor.status(1).health == "throttled")
    assert [gpu.index for gpu in monitor.status_all()] == [0, 1]
    assert (monitor.should_throttle(1), monitor.speed_multiplier(1)) == (True, 0.5)
    assert (monitor.should_throttle(0), monitor.speed_multiplier()) == (False, 1.0)
    with pytest.raises(NoSuchGpuError):
        monitor.should_throttle(7)


@pytest.mark.parametrize(
    ("health", "multiplier", "expected"),
    [
        (GpuHealth.OPTIMAL, 1.0, False),
        (GpuHealth.NORMAL, 0.8, False),
        (GpuHealth.THROTTLED, 0.5, True),
        (GpuHealth.CRITICAL, 0.0, True),
        (None, 0.0, True),
    ],
)
def test_the_library_and_the_compatible_route_agree_on_throttling(
    api: ApiServer,
    monitor: sentinel.Monitor,
    health: GpuHealth | None,
    multiplier: float,
    *,
    expected: bool,
) -> None:
    api.change_gpu(health=health, multiplier=multiplier)
    eventually(lambda: monitor.status().health == health)
    connection = UnixConnection(api.path)
    connection.request("GET", "/api/gpu/throttle/status?gpu_id=0")
    answer = json.loads(connection.getresponse().read())["data"]
    connection.close()
    assert (monitor.should_throttle(), monitor.speed_multiplier()) == (expected, multiplier)
    assert (answer["should_throttle"], answer["speed_multiplier"]) == (expected, multiplier)


def test_an_update_changes_single_settings_and_keeps_the_others(
    api: ApiServer, monitor: sentinel.Monitor
) -> None:
    assert monitor.update_config({"throttle.temp_critical_from": 80}).text
    order = api.commands[-1]
    assert isinstance(order, Configure)
    given = {value.key: value.text for value in order.given}
    assert given == {"memory.target": "50%", "throttle.temp_critical_from": "80"}
    with pytest.raises(ConfigError, match="there is no setting 'temp_throttle'"):
        monitor.update_config({"temp_throttle": 80})
    monitor.update_config({"throttle.temp_critical_from": None})


def test_memory_is_allocated_for_the_duration_of_a_block(
    api: ApiServer, monitor: sentinel.Monitor
) -> None:
    before = monitor.available()
    with monitor.allocation("llm", "2GiB") as got:
        assert (got.size, got.holder.pid) == (2 * 2**30, os.getpid())
        assert monitor.available() == before - got.size == monitor.budget().available
        with pytest.raises(ConflictError, match="can be allocated"):
            monitor.allocate("llm", "1GiB")
        assert [allocation.id for allocation in monitor.client.allocations()] == ["llm"]
    orders: list[type] = [type(o) for o in api.commands if isinstance(o, Allocate | CancelGrant)]
    assert [one.__name__ for one in orders] == ["Allocate", "Allocate", "CancelGrant"]
    with monitor.allocation("llm", f"{2**20}B"):
        monitor.cancel_allocation("llm")  # the end of the block is no error then
        other = Caller(via="unix", uid=0, pid=1, started=start_of(1))
        with api.change_supervisor() as supervisor:  # and the name may have another owner
            supervisor.allocate(Allocate(number=0, by=other, id="llm", gpu=UUIDS[0], size=1))
    assert [allocation.holder.pid for allocation in monitor.client.allocations()] == [1]
    with pytest.raises(ConfigError, match="size: 'much' is not a size"):
        monitor.allocate("llm", "much")


@pytest.mark.parametrize("size", [2048, 2048.0])
def test_a_size_without_a_unit_is_refused_with_both_readings(
    api: ApiServer, monitor: sentinel.Monitor, size: Any
) -> None:
    """The GPU Management System counts in MB."""
    with pytest.raises(ConfigError, match=f"size: {size} has no unit\nWrite '{size}MiB'.*B' for"):
        monitor.allocate("llm_model", size)
    assert api.commands == []


def test_events_are_iterated_with_for_and_with_async_for(
    api: ApiServer, monitor: sentinel.Monitor
) -> None:
    first = api.publish("gpu.idle", gpu=UUIDS[0])
    api.publish("gpu.busy", gpu=UUIDS[0])
    with monitor.events(since=first - 1) as events:
        assert [next(events).name, next(events).name] == ["gpu.idle", "gpu.busy"]

    async def follow() -> list[str]:
        names = []
        other = asyncio.create_task(asyncio.sleep(0))  # the event loop is not blocked
        async for event in monitor.events(since=first - 1):
            names.append(event.name)
            if len(names) == 2:
                break
        await other
        return names

    assert asyncio.run(follow()) == ["gpu.idle", "gpu.busy"]


@pytest.mark.usefixtures("endless_streams")
def test_a_cancelled_wait_for_an_event_leaves_no_thread(
    api: ApiServer, monitor: sentinel.Monitor
) -> None:
    first = api.publish("gpu.idle", gpu=UUIDS[0])

    async def wait(waiting: asyncio.Event) -> None:
        async for _ in monitor.events(since=first - 1):
            waiting.set()

    async def cancel() -> None:
        waiting = asyncio.Event()
        task = asyncio.create_task(wait(waiting))
        await waiting.wait()
        with silent(api):
            await asyncio.sleep(0.2)  # the thread waits for the second event by then
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.get_running_loop().shutdown_default_executor()  # waits for its threads
        ended.set()

    ended = threading.Event()
    threading.Thread(target=lambda: asyncio.run(cancel()), daemon=True).start()
    assert ended.wait(TIMEOUT_S)


def test_no_private_sentinel_replaces_a_selected_daemon(tmp_path: Path) -> None:
    monitor = sentinel.Monitor(tmp_path / "none")
    assert not monitor.is_available()
    assert "no sentinel daemon runs at" in monitor.reason
    with pytest.raises(NotRunningError):
        monitor.start()
    with pytest.raises(ConfigError, match="embedded"):
        sentinel.Monitor(tmp_path / "none", embedded=True)


# --- a private sentinel ----------------------------------------------------------------------


@pytest.fixture
def host(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> SimulatedHost:
    for name, value in simulated.environment().items():
        monkeypatch.setenv(name, value)
    return simulated


@pytest.mark.long
def test_a_private_sentinel_occupies_nothing_and_ends_with_the_monitor(host: SimulatedHost) -> None:
    with sentinel.Monitor(simulate=2) as monitor, sentinel.Monitor(simulate=2) as other:
        assert monitor.is_available(), monitor.reason
        assert other.is_available()  # two private sentinels do not disturb each other
        daemon = monitor.client.status().daemon
        assert (daemon.phase, daemon.simulated) == ("paused", True)
        assert other.client.status().daemon.pid != daemon.pid
        busy = threading.Event()
        monitor.on("busy", lambda *_: busy.set())
        monitor.start()
        with host.job(1, stay=30) as job:
            assert job.got_memory()
            assert busy.wait(TIMEOUT_S)
            # The name of a process may be known a moment later than its presence.
            eventually(
                lambda: [process.pid for process in monitor.status(1).processes] == [job.pid]
            )
        with pytest.raises(ConflictError, match="only watches"):
            monitor.client.resume()
        assert monitor.update_config({"throttle.temp_critical_from": "80"}).text
        assert host.empty(0)
    stat = read_stat(daemon.pid)
    assert stat is None or not stat.alive


def test_without_a_driver_the_monitor_is_not_available(
    host: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver")
    monkeypatch.delenv("SENTINEL_SIM_DIR")
    starts = []

    def start(flags: Sequence[str]) -> contextlib.AbstractContextManager[sentinel.Hold]:
        starts.append(flags)
        return private_sentinel(flags)

    monkeypatch.setattr("sentinel.client.monitor.Hold", start)
    monkeypatch.setattr("sentinel.client.monitor._RETRY_S", 10 * TEST_TIMEOUT_S)
    with sentinel.Monitor(embedded=True) as monitor:
        assert monitor.is_available() is False
        assert "no GPU can be read" in monitor.reason
        assert monitor.is_available() is False
        assert "no GPU can be read" in monitor.reason
    assert len(starts) == 1
