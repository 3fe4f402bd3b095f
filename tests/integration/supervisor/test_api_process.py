"""The API process: messages that find the channel full are sent later, and a start that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.api import supervisor_link as channels
from sentinel.api.bodies import ProblemError
from sentinel.api.supervisor_link import SupervisorLink
from sentinel.core.node.serving_processes import LOST_AFTER_S
from sentinel.errors import ExitCode
from sentinel.protocol import codec
from sentinel.protocol.codec import MAX_MESSAGE_BYTES, MessageStream
from sentinel.protocol.commands import (
    ApiHeartbeat,
    ApiSpec,
    Caller,
    CommandReply,
    Configure,
    PauseGpus,
    Refusal,
    ServiceWarning,
)
from sentinel.protocol.views import HostView, LogRecord, Phase
from sentinel.supervisor import api_process
from sentinel.supervisor.api_process import ApiChild
from tests.harness.daemon_harness import isolated_daemon
from tests.harness.given_settings import given
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.narrowing import not_none
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

SPEC = ApiSpec(socket="/nowhere", state="/nowhere", log=None, began=0.0, version="1")
HOST = HostView(
    at=1.0, pid=1, phase=Phase.WAITING, driver="1", simulated=True, workload="hold", gpus=()
)
WISH = Configure(
    number=3,
    by=Caller(via="unix"),
    given=(*given({"util.target": "50%"}), *given({"throttle.temp_critical_from": "80C"}, "1")),
)
LONG = "x" * 4000
#: The number of lines that fit into the channel.
_MAY_WAIT = 50


class Deaf(ApiChild):
    """A fake child without a process that does not read its channel."""

    def __init__(self, made: list[Deaf]) -> None:
        self.theirs, self.channel = pair()
        self.pidfd = -1
        made.append(self)

    def kill(self) -> None:
        """Do nothing: there is no process."""

    def ended(self) -> bool:
        return False

    def receive(self, most: int) -> list[bytes]:
        return []


def pair() -> tuple[MessageStream, socket.socket]:
    theirs, ours = socket.socketpair()
    return MessageStream(theirs), ours


def heard(end: MessageStream, kinds: tuple[type[Any], ...]) -> list[Any]:
    return [codec.decode(data, kinds) for data in end.receive()]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Deaf]]:
    """Replace API processes by children that do not read; provide those that were started."""
    made: list[Deaf] = []
    monkeypatch.setattr(api_process, "ApiChild", lambda *_: Deaf(made))
    yield made
    for child in made:
        child.theirs.channel.close()
        child.channel.close()


@pytest.fixture
def deaf(made: list[Deaf]) -> tuple[api_process.ApiProcess, list[Deaf]]:
    service = api_process.ApiProcess(SPEC, listening=0)
    service.start(1)
    service.send(HOST)
    heard(made[0].theirs, (HostView,))
    return service, made


def test_a_reply_that_finds_the_channel_full_is_sent_later_and_after_the_views(
    deaf: tuple[api_process.ApiProcess, list[Deaf]],
) -> None:
    service, (child,) = deaf
    while child.send(LogRecord(number=1, event={"text": LONG})):
        pass
    service.send(HOST)
    service.send(CommandReply(number=1))
    service.send(HostView(**{**vars(HOST), "at": 2.0}))
    service.send(CommandReply(number=2))
    service.publish({"event": "sent after pending messages"})
    kinds = (LogRecord, CommandReply, HostView)
    assert not [one for one in heard(child.theirs, kinds) if not isinstance(one, LogRecord)]
    service.collect()
    begun, *late = heard(child.theirs, kinds)
    assert isinstance(begun, LogRecord)  # its beginning was sent before
    assert [type(one) for one in late] == [HostView, CommandReply, CommandReply, LogRecord]
    assert late[0].at == 2.0  # of two views only the newer is sent
    assert [one.number for one in late[1:3]] == [1, 2]


class ReadWhenFull:
    """A channel whose reader makes room as soon as it was found full."""

    def __init__(self, channel: socket.socket, read: Callable[[], object]) -> None:
        self._channel, self._read = channel, read

    def send(self, data: memoryview) -> int:
        """Send what there is room for."""
        try:
            return self._channel.send(data)
        except BlockingIOError:
            self._read()
            raise


def test_no_event_passes_a_view_that_found_the_channel_full_for_a_moment(
    deaf: tuple[api_process.ApiProcess, list[Deaf]],
) -> None:
    service, (child,) = deaf
    got: list[Any] = []
    kinds = (HostView, LogRecord)
    service.send(replace(HOST, driver="x" * 300_000))
    full = ReadWhenFull(child.channel, lambda: got.extend(heard(child.theirs, kinds)))
    child._stream.channel = full  # type: ignore[assignment]
    service.send(replace(HOST, at=2.0))
    service.publish({"event": "of the state at 2.0"})
    for _ in range(20):
        service.collect()
        got += heard(child.theirs, kinds)
    assert [type(one) for one in got] == [HostView, HostView, LogRecord]


def test_log_records_during_a_reply_are_not_lost(
    deaf: tuple[api_process.ApiProcess, list[Deaf]],
) -> None:
    """The event log is written by another thread, at any time."""
    service, (child,) = deaf
    numbers: list[int] = []
    done = threading.Event()

    def write() -> None:
        for number in range(2000):
            service.publish({"event": f"{number}"})
            while number - len(numbers) > _MAY_WAIT:
                time.sleep(0)  # until the test has received
        done.set()

    def listen() -> None:
        numbers.extend(
            one.number
            for one in heard(child.theirs, (LogRecord, CommandReply))
            if isinstance(one, LogRecord)
        )

    writer = threading.Thread(target=write)
    writer.start()
    number = 0
    while not done.is_set():
        number += 1
        service.send(CommandReply(number=number))
        service.collect()
        listen()
    writer.join()
    for _ in range(100):
        service.collect()
        listen()
    assert numbers == list(range(1, 2001))


def test_log_records_before_the_start_reach_the_api_process_after_its_first_views(
    made: list[Deaf],
) -> None:
    service = api_process.ApiProcess(SPEC, listening=0)
    service.publish({"event": "sentinel.started"})
    service.start(1)
    service.collect()
    (child,) = made
    assert heard(child.theirs, (LogRecord,)) == []
    service.send(HOST)
    service.collect()
    view, record = heard(child.theirs, (HostView, LogRecord))
    assert (view, record.event) == (HOST, {"event": "sentinel.started"})


def test_pending_messages_are_not_sent_to_a_replacement(
    deaf: tuple[api_process.ApiProcess, list[Deaf]],
) -> None:
    service, made = deaf
    while made[0].send(LogRecord(number=1, event={"text": LONG})):
        pass
    service.send(CommandReply(number=7))
    service.kill(1)
    service.start(2)
    service.collect()
    assert heard(made[1].theirs, (CommandReply,)) == []


def test_a_view_larger_than_the_channel_arrives_and_the_supervisor_wakes_for_its_rest(
    deaf: tuple[api_process.ApiProcess, list[Deaf]],
) -> None:
    service, (child,) = deaf
    view = replace(HOST, ending="x" * 3_000_000)
    service.send(view)
    service.send(CommandReply(number=1))
    service.publish({"event": "after both"})
    found: list[Any] = []
    while len(found) < 3:
        found += heard(child.theirs, (HostView, CommandReply, LogRecord))
        if len(found) < 3:
            room = child.files()[-1]
            assert select.select([room], [], [], TIMEOUT_S)[0] == [room]
            service.collect()
    assert found[0] == view
    assert [type(one) for one in found[1:]] == [CommandReply, LogRecord]
    assert select.select([child.files()[-1]], [], [], 0)[0] == []


def test_a_process_that_does_not_read_is_replaced_before_its_messages_pile_up(
    deaf: tuple[api_process.ApiProcess, list[Deaf]],
) -> None:
    service, (child,) = deaf
    child.send(LogRecord(number=1, event={"text": "x" * 1_000_000}))
    for number in range(2000):
        service.send(CommandReply(number=number))
    facts = not_none(service.collect())
    assert "does not read" in str(facts.garbage)


def test_a_view_above_the_limit_is_a_warning_and_not_silence(
    deaf: tuple[api_process.ApiProcess, list[Deaf]],
) -> None:
    service, _ = deaf
    warnings: list[ServiceWarning] = []
    for _ in range(2):
        service.send(replace(HOST, ending="x" * MAX_MESSAGE_BYTES))
        facts = not_none(service.collect())
        warnings += facts.warnings
    (warning,) = warnings
    assert "HostView of" in warning.text


@pytest.mark.parametrize("refused", [None, Refusal.INVALID])
def test_a_replacement_gets_the_settings_that_were_accepted_last(
    made: list[Deaf], monkeypatch: pytest.MonkeyPatch, refused: Refusal | None
) -> None:
    specs: list[ApiSpec] = []

    class Asks(Deaf):
        """A child with one request."""

        def receive(self, most: int) -> list[bytes]:
            return [codec.encode(WISH)]

    def spawn(_: object, spec: ApiSpec, *__: object) -> Deaf:
        specs.append(spec)
        return Asks(made)

    monkeypatch.setattr(api_process, "ApiChild", spawn)
    began = replace(SPEC, given=given({"poll": "1s"}))
    service = api_process.ApiProcess(began, listening=0)
    service.start(1)
    service.collect()
    service.send(CommandReply(number=WISH.number, refused=refused))
    service.kill(1)
    service.start(2)
    assert specs[0] == began
    wanted = replace(began, given=WISH.given)
    assert specs[1] == (wanted if refused is None else began)


@contextlib.asynccontextmanager
async def linked() -> AsyncIterator[tuple[SupervisorLink, MessageStream]]:
    """Provide the link of an API process and the supervisor's end of it, within a time limit."""
    ours, other = pair()
    async with asyncio.timeout(TIMEOUT_S):
        yield SupervisorLink(ours, lambda _: None, lambda _: None), MessageStream(other)
    other.close()
    await asyncio.sleep(0.01)
    ours.channel.close()


def test_a_reply_after_the_timeout_is_still_delivered_to_its_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> list[CommandReply]:
        found: asyncio.Queue[CommandReply] = asyncio.Queue()
        by = Caller(via="sentinel")
        async with linked() as (channel, theirs):
            with pytest.raises(ProblemError, match="did not answer"):
                await channel.request(PauseGpus, found.put_nowait, by=by)
            theirs.send(CommandReply(number=1, text="late"))
            return [await found.get()]

    monkeypatch.setattr(channels, "REPLY_TIMEOUT_S", 0.01)
    assert [answer.text for answer in asyncio.run(scene())] == ["late"]


def test_a_posted_command_is_sent_once_the_channel_has_room() -> None:
    async def scene() -> list[PauseGpus]:
        found: list[PauseGpus] = []
        async with linked() as (channel, theirs):
            while channel.send(ApiHeartbeat()):
                pass
            channel.post(PauseGpus, by=Caller(via="sentinel"), gpus=("a",))
            channel.post(PauseGpus, by=Caller(via="sentinel"), gpus=("b",))
            while len(found) < 2:
                messages = heard(theirs, (ApiHeartbeat, PauseGpus))
                found += [m for m in messages if isinstance(m, PauseGpus)]
                await asyncio.sleep(0)
        return found

    assert [order.gpus for order in asyncio.run(scene())] == [("a",), ("b",)]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide an environment in which the web server cannot be imported."""
    package = tmp_path / "broken"
    package.mkdir()
    (package / "uvicorn.py").write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\")")
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.long
@pytest.mark.usefixtures("broken", "fake_torch")
def test_gpus_are_occupied_in_a_terminal_although_the_api_cannot_start(
    simulated: SimulatedHost,
) -> None:
    with simulated.sentinel(1, "--workload", "hold", api=True) as sentinel:
        sentinel.wait_for("stressor.ready")
        failed = sentinel.wait_for("service.failed", count=2)
        assert failed["reason"] == "ModuleNotFoundError: No module named 'uvicorn'"
        assert sentinel.stop() == 0


@pytest.mark.long
@pytest.mark.usefixtures("broken")
def test_a_daemon_whose_api_cannot_start_ends_with_the_reason(
    simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolated_daemon(simulated, monkeypatch) as daemon:
        done = daemon.run_unchecked("start", "--simulate", "1")
        assert done.code == ExitCode.USAGE
        assert "the API cannot start: ModuleNotFoundError: No module named 'uvicorn'" in done.err


#: What each next API process does at its start.
BROKEN_STARTS = {
    "crashes": "raise ModuleNotFoundError('uvicorn')",
    "stops": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("start", BROKEN_STARTS.values(), ids=BROKEN_STARTS)
def test_without_an_api_a_newcomer_gets_its_memory_and_gpus_are_released_after_30_s(
    simulated: SimulatedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with isolated_daemon(simulated, monkeypatch) as daemon:
        log = daemon.places.log

        def events(name: str) -> list[dict[str, Any]]:
            lines = [line for line in log.read_text().splitlines(keepends=True) if line[-1] == "\n"]
            return [event for line in lines if (event := json.loads(line))["event"] == name]

        daemon.start(2)
        daemon.wait_until_occupied(0, 1)
        (package / "uvicorn.py").write_text(start)
        daemon.kill_api()
        eventually(lambda: events("service.failed"))
        with simulated.job(0, stay=0.1) as newcomer:
            assert newcomer.got_memory()
        assert not events("gpu.released")
        assert daemon.pids_on_gpus(), "GPU 1 is held"
        eventually(lambda: len(events("gpu.released")) == 2)
        eventually(lambda: simulated.empty(0) and simulated.empty(1))
        reasons = {event["reason"] for event in events("gpu.released")}
        assert all("the API has not answered for 30 s" in reason for reason in reasons)
        after = events("gpu.released")[0]["at"] - events("service.failed")[0]["at"]
        assert after >= LOST_AFTER_S - 2
        with simulated.job(1, stay=0.1) as newcomer:
            assert newcomer.got_memory()

        (package / "uvicorn.py").unlink()
        ready = len(events("service.ready"))
        for process in daemon.processes():
            if process.status() == psutil.STATUS_STOPPED:
                process.kill()
        eventually(lambda: len(events("service.ready")) > ready)
        daemon.wait_until_occupied(0, 1)
