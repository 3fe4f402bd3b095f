"""Reservations are granted on free GPUs, undone on failure, stored, and end with a process."""

from __future__ import annotations

import errno
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from sentinel.host.procfs import own_stat
from sentinel.host.timed_file import RESERVATIONS, Clocks
from sentinel.protocol.commands import Caller, CancelGrant, Command, Extend, Reserve
from sentinel.protocol.views import FaultKind, GpuFault, Reservation
from tests.harness.api_harness import (
    UUIDS,
    ApiServer,
    Reply,
    ask,
    check_problem,
    in_background,
    send,
)
from tests.harness.fake_nvml import NEEDS_COMPILER, shared_folder
from tests.harness.gpu_environment import ROOT
from tests.harness.narrowing import not_none
from tests.harness.preloaded import FailingDisk
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually, start_of
from tests.harness.timing import TIMEOUT_S

#: The path of a reservation of which a test does not need the answer.
PATH = "/v1/reservations/1a2b3c4d"


def reserve(api: ApiServer, **wish: Any) -> Reply:
    id_ = wish.pop("id", None) or uuid4()
    return ask(api, "PUT", f"/v1/reservations/{id_}", {"seconds": None, **wish})


def is_kept(api: ApiServer) -> bool:
    """Check whether the supervisor has ended the leases; the responses do not wait for it."""
    return all(one.lease is None for one in api.supervisor.reservations.values())


def on_disk(api: ApiServer) -> list[str]:
    file = Path(api.spec.state) / RESERVATIONS.name
    return [one.id for one in RESERVATIONS.load(file, Clocks.read())[0]]


def test_a_reservation_is_granted_shown_stored_and_ended(api: ApiServer) -> None:
    made = reserve(api, count=1, seconds=60, reason="demo")
    assert made.status == 200
    one = made.body
    assert one["gpus"] == [UUIDS[0]]
    assert one["reason"] == "demo"
    assert one["until"] > one["since"]
    assert api.supervisor.gpus[UUIDS[0]].stressor == "STOPPED"
    (record,), _ = RESERVATIONS.load(Path(api.spec.state) / RESERVATIONS.name, Clocks.read())
    (held,) = api.supervisor.reservations.values()
    assert (record.id, record.gpus, record.lease) == (one["id"], (UUIDS[0],), None)
    assert (record.since, record.until) == (held.since, held.until)
    assert ask(api, "GET", "/v1/reservations").body["reservations"] == [one]
    ended = ask(api, "DELETE", f"/v1/reservations/{one['id']}")
    assert (ended.status, ended.body["text"]) == (200, "ended")
    eventually(lambda: on_disk(api) == [])


def test_a_reservation_of_busy_gpus_is_retried_until_they_are_free(api: ApiServer) -> None:
    first = reserve(api, gpus=["0"], reason="first").body["id"]
    refused = reserve(api, count=2, wait_s=0)
    check_problem(refused, 409, "conflict", "reserved")
    with in_background(lambda: reserve(api, count=2, wait_s=TIMEOUT_S)) as replies:
        eventually(lambda: ask(api, "GET", "/v1/reservations").body["queue"])
        (waiting,) = ask(api, "GET", "/v1/status").body["queue"]
        assert (waiting["place"], waiting["count"], waiting["indices"]) == (1, 2, [])
        ask(api, "DELETE", f"/v1/reservations/{first}")
    assert replies[0].status == 200
    assert replies[0].body["gpus"] == list(UUIDS)
    assert replies[0].body["id"] == waiting["id"]
    assert ask(api, "GET", "/v1/reservations").body["queue"] == []
    assert sum(isinstance(order, Reserve) for order in api.commands) == 3


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({}, 422),
        ({"bound": False}, 422),
        ({"seconds": None}, 200),
        ({"seconds": 60}, 200),
        ({"bound": True}, 200),
    ],
)
def test_a_reservation_that_nothing_ends_is_refused(
    api: ApiServer, wish: dict[str, Any], code: int
) -> None:
    made = ask(api, "PUT", PATH, {"count": 1, **wish})
    assert made.status == code, made.body
    if code != 200:
        check_problem(made, 422, "invalid", "seconds, null (None) for no limit")
        assert not any(isinstance(command, Reserve) for command in api.commands)


def test_a_number_of_selected_gpus_is_reserved(api: ApiServer) -> None:
    assert reserve(api, gpus=["1"], count=1).body["gpus"] == [UUIDS[1]]
    refused = reserve(api, gpus=["0-1"], count=2, wait_s=0)
    check_problem(refused, 409, "conflict", "reserved")
    assert reserve(api, gpus=["0-1"], count=1).body["gpus"] == [UUIDS[0]]
    check_problem(reserve(api, gpus=["0", "no-such"], count=1), 404, "no_such_gpu", "no-such")


def test_a_wait_may_have_no_limit(api: ApiServer) -> None:
    first = reserve(api, gpus=["0"]).body["id"]
    with waiting_client(api, gpus=["0"], wait_s=None, id="e" * 8) as replies:
        ask(api, "DELETE", f"/v1/reservations/{first}")
    assert replies[0].status == 200


LOST = GpuFault(kind=FaultKind.LOST, text="the driver has lost it", remedy="")


@pytest.mark.parametrize("wish", [{"gpus": ["1"]}, {"count": 2}, {"gpus": ["0-1"], "count": 2}])
def test_nothing_waits_for_a_gpu_that_is_lost(api: ApiServer, wish: dict[str, Any]) -> None:
    reserve(api, gpus=["0"])
    reserve(api, gpus=["1"])
    with waiting_client(api, **wish, wait_s=None, id="e" * 8) as replies:
        api.change_gpu(1, occupancy="UNKNOWN", faults=(LOST,))
    check_problem(replies[0], 409, "conflict", "GPU 1: the driver has lost it")
    assert not api.supervisor.queue
    check_problem(reserve(api, **wish, wait_s=None), 409, "conflict", "has lost it")
    late = reserve(api, gpus=["0-1"], count=1, wait_s=0.2)
    check_problem(late, 409, "conflict", "the GPUs are reserved")


def test_a_gpu_that_is_lost_before_it_is_free_is_not_reserved(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    with in_background(lambda: reserve(api, gpus=["1"], wait_s=None)) as replies:
        api.wait_for(lambda: bool(api.supervisor.reservations))
        api.change_gpu(1, occupancy="UNKNOWN", faults=(LOST,))
    check_problem(replies[0], 409, "conflict", "GPU 1: the driver has lost it")
    api.wait_for(lambda: not api.supervisor.reservations)


def test_a_reservation_that_ends_before_its_gpus_are_free_is_not_waited_for(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    with in_background(lambda: reserve(api, gpus=["1"], wait_s=None)) as replies:
        api.wait_for(lambda: bool(api.supervisor.reservations))
        assert ask(api, "GET", "/v1/reservations").body["reservations"]  # after the reply to it
        with api.change_supervisor() as supervisor:
            supervisor.reservations.clear()
    check_problem(replies[0], 409, "conflict", "ended, as after its time")


@contextmanager
def waiting_client(api: ApiServer, **wish: Any) -> Iterator[list[Reply]]:
    """Send a request that waits in the queue; join its client at the end."""
    replies: list[Reply] = []

    def send() -> None:
        with suppress(ConnectionError, http.client.HTTPException):
            replies.append(reserve(api, **wish))

    client = threading.Thread(target=send)
    client.start()
    try:
        eventually(lambda: wish["id"] in api.supervisor.queue)
        yield replies
    finally:
        client.join()


def test_a_request_that_waits_too_long_leaves_the_queue(api: ApiServer) -> None:
    reserve(api, gpus=["0"])
    late = reserve(api, gpus=["0"], wait_s=0.2)
    check_problem(late, 409, "conflict")
    assert late.body["detail"] == "the GPUs are reserved; place 1"
    assert not api.supervisor.queue


@pytest.mark.parametrize("has_reply", [True, False])
def test_a_client_that_disconnects_leaves_the_queue(api: ApiServer, *, has_reply: bool) -> None:
    reserve(api, gpus=["0"])
    reply = threading.Event()
    if not has_reply:
        api.supervisor.replies_after = reply
    connection = send(
        api, "PUT", f"/v1/reservations/{'a' * 8}", {"gpus": ["0"], "seconds": None, "wait_s": 60}
    )
    eventually(lambda: "a" * 8 in api.supervisor.queue)
    connection.close()
    if not has_reply:
        time.sleep(0.3)  # the end of the connection overtakes the reply
        reply.set()
    eventually(lambda: not api.supervisor.queue)


def test_a_killed_client_leaves_the_queue_though_its_child_has_the_connection(
    api: ApiServer,
) -> None:
    reserve(api, gpus=["0"])
    command = [sys.executable, "-c", WAITS_AND_FORKS, api.path, str(ROOT)]
    with piped_program(*command) as client:
        child = psutil.Process(int(not_none(client.stdout).readline()))
        try:
            eventually(lambda: api.supervisor.queue)
            client.kill()
            eventually(lambda: not api.supervisor.queue)
            assert child.is_running()
        finally:
            child.kill()


def test_the_end_of_a_lost_connection_leaves_the_request_to_the_next_one(api: ApiServer) -> None:
    """Over a broken network, a client connects again before the daemon learns of it."""
    first, wish = reserve(api, gpus=["0"]).body["id"], {"count": 2, "seconds": None, "wait_s": 60}
    connection, id_ = send(api, "PUT", PATH, wish), PATH.rpartition("/")[2]
    api.wait_for(lambda: id_ in api.supervisor.queue)
    assert ask(api, "GET", "/v1/health").status == 200  # the first one has its reply
    reply = api.supervisor.replies_after = threading.Event()
    with in_background(lambda: reserve(api, id=id_, **wish)) as replies:
        eventually(lambda: sum(isinstance(one, Reserve) for one in api.commands) == 3)
        connection.close()
        time.sleep(0.3)  # the end of the connection overtakes the reply to the next one
        reply.set()
        late = reserve(api, id=id_, count=2, wait_s=0.2)
        check_problem(late, 409, "conflict", "another connection still waits")
        ask(api, "DELETE", f"/v1/reservations/{first}")
    assert replies[0].status == 200
    assert replies[0].body["gpus"] == list(UUIDS)


def test_a_request_that_is_ended_by_its_user_is_answered(api: ApiServer) -> None:
    reserve(api, gpus=["0"])
    with waiting_client(api, gpus=["0"], wait_s=60, id="b" * 8) as replies:
        assert ask(api, "DELETE", f"/v1/reservations/{'b' * 8}").status == 200
    check_problem(replies[0], 409, "conflict")
    assert replies[0].body["detail"] == "The request was ended while it waited."


def test_a_request_continues_at_its_place_in_the_next_api_process(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        first = reserve(api, gpus=["0"]).body["id"]
        with waiting_client(api, gpus=["0"], wait_s=60, id="c" * 8) as lost:
            api.kill()
        assert lost == []
        api.start()
        eventually(lambda: ask(api, "GET", "/v1/health").status == 200)
        wish = {"gpus": ["0"], "wait_s": 60, "id": "c" * 8}
        with in_background(lambda: reserve(api, **wish)) as replies:
            eventually(lambda: sum(isinstance(command, Reserve) for command in api.commands) == 3)
            ask(api, "DELETE", f"/v1/reservations/{first}")
        assert replies[0].body["id"] == "c" * 8


def test_a_request_whose_response_was_lost_has_what_it_has_reserved(tmp_path: Path) -> None:
    wish: dict[str, Any] = {"count": 1, "wait_s": 60, "id": "d" * 8, "reason": "training"}
    with ApiServer(tmp_path) as api:
        first = reserve(api, **wish)
        api.wait_for(lambda: is_kept(api))
        api.kill()  # as it could after the confirmation and before the response
        api.start()
        eventually(lambda: ask(api, "GET", "/v1/health").status == 200)
        api.commands.clear()
        again = reserve(api, **wish)
        assert (again.status, again.body) == (200, first.body)
        assert not any(isinstance(command, Extend | CancelGrant) for command in api.commands)
        for other in ({"count": 2}, {"reason": "another"}):
            assert reserve(api, **{**wish, **other}).status == 409, other
        assert not any(isinstance(command, CancelGrant) for command in api.commands), (
            "it is another's"
        )


def test_gpus_that_cannot_be_freed_in_time_are_not_reserved(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    late = reserve(api, gpus=["1"], wait_s=0.1)
    check_problem(late, 504, "timeout", "GPU 1")
    api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
    assert not api.supervisor.reservations


@pytest.mark.parametrize(
    ("left", "why"),
    [
        ({"occupancy": "BUSY"}, "busy"),
        ({"occupancy": "UNKNOWN"}, "unknown"),
        ({"leaked": True}, "memory leaked"),
        ({"ended": 2.0, "read": 1.0}, "not read since"),
        ({"ended": 2.0, "read": None}, "not read since"),
        ({"stressor": "STOPPING"}, "stopping"),
    ],
)
def test_gpus_are_not_reserved_before_a_reading_shows_them_free(
    api: ApiServer, left: dict[str, Any], why: str
) -> None:
    with api.change_supervisor() as supervisor:
        view = replace(supervisor.gpus[UUIDS[1]], stressor="STOPPED", held=None)
        supervisor.gpus[UUIDS[1]] = replace(view, **left)
        supervisor.keeps_memory = True
    late = reserve(api, gpus=["1"], wait_s=0.1)
    check_problem(late, 504, "timeout", "GPU 1", why)
    api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
    with api.change_supervisor() as supervisor:
        supervisor.gpus[UUIDS[1]] = replace(view, ended=1.0, read=2.0)
    assert reserve(api, gpus=["1"]).status == 200


@pytest.mark.parametrize("stressor", ["BACKOFF", "FATAL"])
def test_a_gpu_with_a_failed_stressor_can_be_reserved(api: ApiServer, stressor: str) -> None:
    api.change_gpu(1, stressor=stressor, ended=1.0, read=2.0)
    assert reserve(api, gpus=["1"], wait_s=0.1).status == 200


def test_a_client_that_disconnects_while_waiting_gets_no_reservation(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    client = send(api, "PUT", PATH, {"count": 1, "seconds": None})
    api.wait_for(lambda: bool(api.supervisor.reservations))
    client.close()
    api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
    assert not api.supervisor.reservations


def test_an_api_process_that_is_killed_before_the_answer_leaves_nothing_to_restore(
    tmp_path: Path,
) -> None:
    """A reservation that is restored without a lease would last although no client knows it."""
    with ApiServer(tmp_path) as api:
        api.set(ignores=lambda command: isinstance(command, Extend))
        lost = send(api, "PUT", PATH, {"count": 1, "seconds": None})
        api.wait_for(lambda: bool(api.commands) and isinstance(api.commands[-1], Extend))
        api.kill()
        lost.close()
        assert on_disk(api) == []
        (reserved,) = api.supervisor.reservations.values()
        assert reserved.lease is not None
        api.supervisor.ignores = lambda _: False
        api.start()
        again = reserve(api, count=1, id=reserved.id)
        assert (again.status, on_disk(api)) == (200, [reserved.id])


def test_a_client_is_answered_once_its_reservation_is_stored(api: ApiServer) -> None:
    """Then neither the death of the API process nor that of the supervisor ends it."""

    def ends_a_lease(command: Command) -> bool:
        return isinstance(command, Extend) and command.kept

    api.set(ignores=ends_a_lease)
    made = reserve(api, count=1)
    assert made.status == 200
    assert on_disk(api) == [made.body["id"]]
    api.wait_for(lambda: any(map(ends_a_lease, api.commands)))
    api.set(phase=api.supervisor.phase)  # views in which it has its lease
    assert reserve(api, gpus=["1"]).status == 200
    assert on_disk(api)[0] == made.body["id"]


def test_a_client_that_disconnects_before_its_answer_gets_no_reservation(api: ApiServer) -> None:
    api.set(ignores=lambda command: isinstance(command, Extend))
    client = send(api, "PUT", PATH, {"count": 1, "seconds": None})
    api.wait_for(lambda: bool(api.commands) and isinstance(api.commands[-1], Extend))
    client.close()
    api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
    assert not api.supervisor.reservations
    assert on_disk(api) == []


@pytest.mark.long  # two renewals take 20 s
def test_a_lease_is_renewed_while_its_client_waits(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        reserve(api, gpus=["0"])
        api.wait_for(lambda: is_kept(api))
        api.commands.clear()
        with waiting_client(api, gpus=["0"], wait_s=60, id="f" * 8):
            api.wait_for(lambda: sum(isinstance(command, Extend) for command in api.commands) >= 2)
            assert not any(command.kept for command in api.commands if isinstance(command, Extend))
            ask(api, "DELETE", f"/v1/reservations/{'f' * 8}")


@pytest.mark.long
def test_a_client_that_disconnects_during_the_write_gets_no_reservation(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        api.set(keeps_memory=True)
        client = send(api, "PUT", PATH, {"count": 1, "seconds": None})
        api.wait_for(lambda: bool(api.supervisor.reservations))
        (tmp_path / f"{RESERVATIONS.name}.new").mkdir()  # the write fails and is retried
        with api.change_supervisor() as supervisor:
            supervisor.keeps_memory = False
            supervisor.free_memory()
        api.wait_for(lambda: any("cannot be written" in warning.text for warning in api.warnings))
        client.close()
        api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
        assert not api.supervisor.reservations


def test_a_reservation_that_ends_before_its_confirmation_is_an_error(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    with in_background(lambda: reserve(api, gpus=["0"])) as replies:
        api.wait_for(lambda: bool(api.supervisor.reservations))
        with api.change_supervisor() as supervisor:
            supervisor.reservations.clear()
            supervisor.free_memory()
    check_problem(replies[0], 409, "conflict")


ASKS = """
import json, sys
sys.path.insert(0, sys.argv[2])
from tests.harness.gpu_environment import ROOT
from tests.harness.api_harness import UnixConnection
connection = UnixConnection(sys.argv[1])
body = json.dumps({"count": 1, "bound": True})
connection.request("PUT", "/v1/reservations/0a0b0c0d", body, {"content-type": "application/json"})
print(connection.getresponse().read().decode(), flush=True)
sys.stdin.read()
"""


#: A client that waits, and whose child has its connection, too.
WAITS_AND_FORKS = """
import json, os, sys, time
sys.path.insert(0, sys.argv[2])
from tests.harness.api_harness import UnixConnection
connection = UnixConnection(sys.argv[1])
body = json.dumps({"gpus": ["0"], "seconds": None, "wait_s": None})
connection.request("PUT", "/v1/reservations/0a0b0c0d", body, {"content-type": "application/json"})
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def test_a_bound_reservation_ends_with_its_process(api: ApiServer) -> None:
    command = [sys.executable, "-c", ASKS, api.path, str(ROOT)]
    with piped_program(*command) as holder:
        made = json.loads(not_none(holder.stdout).readline())
        assert made["bound"]
        assert made["holder"]["pid"] == holder.pid
        time.sleep(0.5)  # views arrive meanwhile
        assert made["id"] in api.supervisor.reservations
        holder.kill()
        api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
        assert not api.supervisor.reservations
    assert api.commands[-1].by.via == "sentinel"


@pytest.mark.long
def test_a_replaced_api_process_watches_stored_bound_reservations(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api, subprocess.Popen(["sleep", "600"]) as holder:
        api.kill()
        stat = own_stat()
        gone = Caller(via="unix", uid=0, pid=stat.pid, started=stat.started - 1)
        is_alive = Caller(via="unix", uid=0, pid=holder.pid, started=start_of(holder.pid))
        unbound = Caller(via="unix", uid=0)  # from before a reboot
        for name, by in (("gone", gone), ("lives", is_alive), ("booted", unbound)):
            api.supervisor.reservations[name] = Reservation(
                id=name, gpus=(name,), count=1, reason="", by=by, since=0.0, bound=True
            )
        api.commands.clear()
        api.start()
        api.wait_for(lambda: len(api.supervisor.reservations) == 1)
        # The report is repeated until it takes effect, so several are possible on a busy host.
        assert {order.id for order in api.commands if isinstance(order, CancelGrant)} == {
            "gone",
            "booted",
        }
        assert list(api.supervisor.reservations) == ["lives"]
        eventually(lambda: on_disk(api) == ["lives"])
        holder.kill()
        api.wait_for(lambda: not api.supervisor.reservations)


def test_the_end_of_a_holder_is_reported_until_it_takes_effect(api: ApiServer) -> None:
    with subprocess.Popen(["true"]) as holder:
        by = Caller(via="unix", uid=0, pid=holder.pid, started=start_of(holder.pid))
    with api.change_supervisor() as supervisor:
        supervisor.sends_no_replies = True
        supervisor.reservations["x"] = Reservation(
            id="x", gpus=("x",), count=1, reason="", by=by, since=0.0, bound=True
        )
    api.wait_for(lambda: len(api.commands) >= 2)
    api.set(sends_no_replies=False)
    api.wait_for(lambda: not api.supervisor.reservations)


def test_an_unwritable_file_is_reported_once_and_nothing_is_reserved(tmp_path: Path) -> None:
    (tmp_path / f"{RESERVATIONS.name}.new").mkdir()
    with ApiServer(tmp_path) as api:
        for _ in range(2):
            refused = reserve(api, count=1, reason="demo")
            check_problem(
                refused, 503, "unavailable", f"Nothing is reserved: {tmp_path / RESERVATIONS.name}"
            )
            api.wait_for(lambda: not api.supervisor.reservations)
        assert [warning.about for warning in api.warnings] == ["reservations"]
        (tmp_path / f"{RESERVATIONS.name}.new").rmdir()
        assert reserve(api, count=1, reason="demo").status == 200
        assert on_disk(api) == list(api.supervisor.reservations)


#: What fails, and the reason that a client is told.
DISK_FAULTS = {
    f"write {RESERVATIONS.name}.new {errno.ENOSPC}": "No space left on device",
    f"write {RESERVATIONS.name}.new {errno.EIO}": "Input/output error",
    f"fsync {RESERVATIONS.name}.new {errno.EIO}": "Input/output error",
    f"rename {RESERVATIONS.name} {errno.EACCES}": "Permission denied",
    f"fsync state {errno.EIO}": "Input/output error",
    f"fsync {RESERVATIONS.name}.new slow": "not written within 5 s",
}


@NEEDS_COMPILER
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            marks=[] if f"fsync {RESERVATIONS.name}.new {errno.EIO}" == fault else pytest.mark.long,
        )
        for fault in DISK_FAULTS
    ],
)
def test_what_is_acknowledged_is_on_disk(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, fault: str
) -> None:
    """A daemon that is killed restores exactly what its clients were told."""
    disk = FailingDisk(tmp_path, shared_folder(tmp_path_factory))
    (tmp_path / "state").mkdir()
    with ApiServer(tmp_path / "state", environment=disk.environment, spawned=True) as api:
        kept = reserve(api, gpus=["0"]).body["id"]
        disk.set(fault)
        refused = reserve(api, gpus=["1"])
        check_problem(refused, 503, "unavailable")
        assert DISK_FAULTS[fault] in refused.body["detail"]
        assert api.supervisor.gpus[UUIDS[1]].stressor == "RUNNING", "no stressor was stopped for it"
        api.wait_for(lambda: list(api.supervisor.reservations) == [kept])

        over = ask(api, "DELETE", f"/v1/reservations/{kept}")
        check_problem(over, 503, "unavailable", "another daemon would restore it")

        disk.set()
        eventually(lambda: reserve(api, gpus=["1"]).status == 200)  # a slow write goes on
        assert on_disk(api) == list(api.supervisor.reservations)
