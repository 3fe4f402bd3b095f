"""Allocations are granted when memory is free, undone on failure, and end with their process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sentinel.api.bodies import ProblemError
from sentinel.api.routes.reservations import resolve_holder
from sentinel.host.lookups import look_up
from sentinel.host.procfs import own_stat
from sentinel.protocol.commands import Allocate, Caller, CancelGrant, Extend
from sentinel.protocol.gpu import GpuProcess
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Allocation
from tests.harness.api_harness import (
    UUIDS,
    ApiServer,
    Reply,
    ask,
    check_problem,
    in_background,
    over_tcp,
    send,
)
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually, start_of
from tests.harness.timing import TIMEOUT_S

GIB = 2**30
#: More than the stressor leaves free on a GPU, and less than all of its memory.
MOST = 100 * GIB


def allocate(api: ApiServer, name: str = "llm", size: int = MOST, **wish: Any) -> Reply:
    body = {"size": size, "pid": os.getpid(), **wish}
    return ask(api, "PUT", f"/v1/allocations/{name}", body)


def held(api: ApiServer, index: int = 0, **changes: Any) -> None:
    """Show a stressor that holds nearly all memory of a GPU, with further changes."""
    api.change_gpu(index, **{"held": 130 * GIB, "memory_used": 130 * GIB, **changes})


def test_memory_is_allocated_once_it_is_free_shown_and_deallocated(api: ApiServer) -> None:
    held(api)
    made = allocate(api)
    assert made.status == 200, made
    one = made.body
    assert allocate(api, wait_s=None).body == one, "the same request has the same answer"
    assert (one["id"], one["gpu"], one["index"], one["size"]) == ("llm", UUIDS[0], 0, MOST)
    assert one["holder"]["pid"] == os.getpid()
    assert api.supervisor.gpus[UUIDS[0]].stressor == "STOPPED"
    assert api.supervisor.allocations["llm"].lease is None
    shown = ask(api, "GET", "/v1/allocations").body
    assert shown["allocations"] == [one] == ask(api, "GET", "/v1/status").body["allocations"]
    first, second = shown["gpus"]
    assert (first["total"], first["limit"], first["allocated"]) == (140 * GIB, 139 * GIB, MOST)
    assert (first["available"], first["count"]) == (39 * GIB, 1)
    assert (second["available"], second["count"]) == (139 * GIB, 0)
    only = ask(api, "GET", "/v1/allocations?gpu=1").body
    assert (only["allocations"], [gpu["index"] for gpu in only["gpus"]]) == ([], [1])
    ended = ask(api, "DELETE", "/v1/allocations/llm")
    assert (ended.status, ended.body["gpus"]) == (200, [UUIDS[0]])
    assert ask(api, "DELETE", "/v1/allocations/llm").body["code"] == "not_found"


def test_the_stressor_continues_if_enough_memory_is_free(api: ApiServer) -> None:
    assert allocate(api, size=GIB).status == 200
    assert api.supervisor.gpus[UUIDS[0]].stressor == "RUNNING"


def test_an_unavailable_amount_is_refused_without_side_effects(api: ApiServer) -> None:
    assert allocate(api).status == 200
    for name, size in (("llm", GIB), ("other", 40 * GIB)):
        refused = allocate(api, name, size)
        check_problem(refused, 409, "conflict", "can be allocated")
    assert not [order for order in api.commands if isinstance(order, CancelGrant)]
    assert set(api.supervisor.allocations) == {"llm"}


@pytest.mark.parametrize(
    ("so", "why"),
    [
        ({}, "GPU 0 (idle, stopping) has 90.0 GiB too little"),
        ({"memory_used": None}, "GPU 0 cannot be read"),
        ({"read": 1.0, "memory_used": 0}, "GPU 0 was not read since"),
        ({"ended": 1e12, "memory_used": 0}, "GPU 0 was not read since its stressor ended"),
        ({"stressor": "STARTING", "memory_used": 0}, "a stressor on GPU 0 started"),
    ],
)
def test_memory_is_not_allocated_before_a_reading_shows_it_free(
    api: ApiServer, so: dict[str, Any], why: str
) -> None:
    held(api, **so)
    with api.change_supervisor() as supervisor:
        supervisor.keeps_memory = True
        supervisor.stops_reading = "read" in so
        if "ended" in so:  # the readings are not renewed
            supervisor.gpus[UUIDS[0]] = replace(supervisor.gpus[UUIDS[0]], read=1e11)

    def is_explained() -> bool:  # a later view may be needed for that
        late = allocate(api, wait_s=0.3)
        check_problem(late, 504, "timeout")
        api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
        return why in late.body["detail"]

    eventually(is_explained)
    assert not api.supervisor.allocations


def test_outstanding_allocations_are_not_free_memory(api: ApiServer) -> None:
    held(api, memory_used=0, held=0)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert allocate(api, "theirs", 60 * GIB, pid=other.pid).status == 200
            api.change_gpu(memory_used=40 * GIB)  # of a process without an allocation
            late = allocate(api, "ours", 60 * GIB, wait_s=0.1)
            assert late.status == 504
            assert "20.0 GiB too little" in late.body["detail"]
            guest = GpuProcess(pid=other.pid, memory=30 * GIB)
            api.change_gpu(allocated_processes=(guest,))  # a part of it is that of the allocation
            assert allocate(api, "ours", 60 * GIB, wait_s=TIMEOUT_S).status == 200
        finally:
            other.kill()


def test_memory_of_a_holders_children_counts_towards_its_allocation(api: ApiServer) -> None:
    held(api, memory_used=0, held=0)
    assert allocate(api, size=80 * GIB).status == 200
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            guest = GpuProcess(pid=child.pid, memory=80 * GIB)
            held(api, memory_used=80 * GIB, held=0, allocated_processes=(guest,))
            assert allocate(api, "more", 50 * GIB).status == 200
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"id": "a b"}, 'id: "a b" is not allowed'),
        ({"id": "a%2Fb"}, 'id: "a/b" is not allowed; use 1 to 64 letters'),
        ({"size": 0}, "size: 0 is not above 0"),
        ({"size": "40GiB"}, 'size: "40GiB" is not a whole number'),
        ({"gpu": "all"}, "'all' selects 2 GPUs; name one"),
        ({"pid": 2**31 - 1}, "process 2147483647 is not visible"),
        ({"gpus": ["0"]}, "gpus: there is no such field; did you mean gpu?"),
    ],
)
def test_an_invalid_request_is_refused_with_its_field(
    api: ApiServer, wish: dict[str, Any], expected: str
) -> None:
    body = {"size": GIB, "wait_s": 0, **wish}
    reply = ask(api, "PUT", f"/v1/allocations/{body.pop('id', 'llm')}".replace(" ", "%20"), body)
    check_problem(reply, 422, "invalid", expected)
    assert api.commands == []


def test_an_unknown_gpu_is_named_in_the_error(api: ApiServer) -> None:
    assert allocate(api, gpu="7").body["code"] == "no_such_gpu"
    assert ask(api, "GET", "/v1/allocations?gpu=7").body["code"] == "no_such_gpu"


def test_an_allocation_over_tcp_is_bound_to_no_process(api: ApiServer) -> None:
    body = {"size": GIB}

    def put(id_: str, body: object) -> Reply:
        return over_tcp(api, "PUT", f"/v1/allocations/{id_}", body)

    assert put("far", body).status == 200
    order = next(order for order in api.commands if isinstance(order, Allocate))
    assert (order.by.via, order.by.pid, order.by.started) == ("tcp", None, None)
    refused = put("other", {**body, "pid": os.getpid()})
    assert "cannot name one: leave pid out" in refused.body["detail"]


def test_an_allocation_ends_with_its_process(api: ApiServer) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert allocate(api, size=GIB, pid=process.pid).status == 200
        process.kill()
    api.wait_for(lambda: not api.supervisor.allocations)
    order = api.commands[-1]
    assert isinstance(order, CancelGrant)
    assert (order.id, order.by.via) == ("llm", "sentinel")


def test_an_allocation_for_the_caller_ends_with_the_caller(api: ApiServer) -> None:
    program = (
        "import sys; from sentinel.client import connect;"
        "got = connect(sys.argv[1]).allocate('own', '1GiB');"
        "print(got.holder.pid, flush=True); input()"
    )
    with piped_program(sys.executable, "-c", program, api.path) as client:
        assert client.stdout is not None
        assert int(client.stdout.readline()) == client.pid
        assert set(api.supervisor.allocations) == {"own"}
        client.communicate("\n")
    api.wait_for(lambda: not api.supervisor.allocations)


def test_a_reused_name_is_watched_again(api: ApiServer) -> None:
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        assert allocate(api, size=GIB, pid=first.pid).status == 200
        # The response does not wait for the end of the lease, which is a command, too.
        api.wait_for(lambda: api.supervisor.allocations["llm"].lease is None)
        stat = api.supervisor.allocations["llm"]
        with (
            api.change_supervisor() as supervisor
        ):  # ended and allocated again before the next views
            later = Caller(
                via="unix", uid=os.getuid(), pid=second.pid, started=start_of(second.pid)
            )
            supervisor.allocations["llm"] = replace(stat, by=later)
        ask(api, "GET", "/v1/status")
        first.kill()
        first.wait()
        before = len(api.commands)
        ask(api, "GET", "/v1/status")
        assert api.commands[before:] == []
        second.kill()
    api.wait_for(lambda: not api.supervisor.allocations)


def leave(api: ApiServer, deaf: tuple[Any, ...]) -> None:
    """Request memory, and disconnect while a command of these types has no reply."""
    api.set(ignores=lambda command: isinstance(command, deaf))
    client = send(api, "PUT", "/v1/allocations/llm", {"size": GIB, "pid": os.getpid()})
    api.wait_for(lambda: bool(api.commands) and isinstance(api.commands[-1], deaf))
    client.close()


def test_a_client_that_disconnects_before_the_reply_gets_no_allocation(api: ApiServer) -> None:
    leave(api, (Extend,))
    api.wait_for(lambda: isinstance(api.commands[-1], CancelGrant))
    assert not api.supervisor.allocations


def test_another_allocation_of_the_same_name_is_not_undone(api: ApiServer) -> None:
    assert allocate(api, size=GIB).status == 200
    leave(api, (Allocate,))
    seen = len(api.commands)
    ask(api, "GET", "/v1/status")
    assert api.commands[seen:] == []
    assert set(api.supervisor.allocations) == {"llm"}


def test_an_allocation_that_ended_meanwhile_is_reported_as_ended(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    held(api)
    with in_background(lambda: allocate(api, wait_s=TIMEOUT_S)) as replies:
        api.wait_for(lambda: bool(api.supervisor.allocations))
        assert ask(api, "DELETE", "/v1/allocations/llm").status == 200
        held(api, memory_used=0)
    check_problem(replies[0], 409, "conflict", "was ended before it was complete")


def test_only_the_user_of_a_process_and_root_may_name_it() -> None:
    pid, uid = os.getpid(), os.getuid()
    for by in (uid, 0):
        found = resolve_holder(Caller(via="unix", uid=by, pid=1, started=1), pid)
        assert found == Caller(via="unix", uid=uid, pid=pid, started=own_stat().started)
    with pytest.raises(ProblemError) as refused:
        resolve_holder(Caller(via="unix", uid=uid + 1, pid=1, started=1), pid)
    assert refused.value.code is Code.FORBIDDEN
    assert f"process {pid} belongs to {look_up(uid) or f'user {uid}'}" in refused.value.detail


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Provide a function that changes what the second of two reads of a process finds."""
    first = replace(own_stat(), started=1)

    def read(**changes: Any) -> None:
        lines = iter([first, replace(first, **changes)])
        monkeypatch.setattr("sentinel.api.routes.reservations.read_stat", lambda _: next(lines))

    return read


def test_a_named_process_may_change_its_state_and_its_name(reads: Callable[..., None]) -> None:
    reads(state="D", name="python3")
    by = Caller(via="unix", uid=os.getuid(), pid=1, started=1)
    assert resolve_holder(by, os.getpid()).started == 1


@pytest.mark.parametrize("changes", [{"started": 2}, {"state": "Z"}])
def test_a_named_process_must_not_end(reads: Callable[..., None], changes: dict[str, Any]) -> None:
    reads(**changes)
    by = Caller(via="unix", uid=os.getuid(), pid=1, started=1)
    with pytest.raises(ProblemError, match="is not visible here"):
        resolve_holder(by, os.getpid())


@pytest.mark.long
def test_the_view_of_30_gpus_with_128_allocations_each_arrives(api: ApiServer) -> None:
    """As datagrams, it was never sent."""
    caller = Caller(via="unix", uid=2**31, user="x" * 32, pid=2**22)
    with api.change_supervisor() as supervisor:
        for number in range(30 * 128):
            id_ = f"{number:064}"
            supervisor.allocations[id_] = Allocation(
                id=id_, gpu=UUIDS[0], size=1, by=caller, since=1.0
            )
    eventually(lambda: len(ask(api, "GET", "/v1/status").body["allocations"]) >= 30 * 128)
    assert ask(api, "POST", "/v1/pause", {"gpus": ["1"], "wait_s": 0}).status == 200
