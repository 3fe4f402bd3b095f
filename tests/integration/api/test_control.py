"""Wrong results are acknowledged once they are on disk; a plan with a wrong workload is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.api.stores import StoreWriter
from sentinel.host import verified_store
from sentinel.host.timed_file import FAULTS, Clocks
from sentinel.host.verified_store import StoredWork
from sentinel.protocol.commands import AccessPolicy, AcknowledgeResults, Level, PauseGpus
from sentinel.protocol.gpu import HeldGpu
from sentinel.protocol.views import (
    FaultKind,
    GpuFault,
    KnownFaults,
    VerifiedCounts,
    VerifiedWork,
)
from tests.harness.api_harness import (
    UUIDS,
    ApiServer,
    Reply,
    ask,
    check_problem,
    over_tcp,
    used_gpu,
)
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S
from tests.harness.world.gpus import fake_gpu

#: A card that was at index 1 before, by another daemon.
OLD = StoredWork(
    index=1,
    name="H200",
    serial="1650099",
    since=100.0,
    total=VerifiedCounts(checks=9, errors=2),
)


HELD = HeldGpu(
    uuid="GPU-held", index=9, pci_bus_id="0000:0A:00.0", holder="pid 5 (x)", remedy="Kill it"
)


def test_a_gpu_that_is_held_elsewhere_is_named_with_its_holder(tmp_path: Path) -> None:
    with ApiServer(tmp_path, held_elsewhere=(HELD,)) as api:
        (held,) = ask(api, "GET", "/v1/status").body["daemon"]["held_elsewhere"]
        assert held == asdict(HELD)
        body = {"plan": "quick", "gpus": ["0", "9"]}
        reply = ask(api, "POST", "/v1/burnin", body)
        check_problem(reply, 404, "no_such_gpu")
        assert "GPU 9 (GPU-held) is not used" in reply.body["detail"]
        assert "by pid 5 (x)" in reply.body["detail"]


def find_errors(api: ApiServer, errors: int, findings: int = 0) -> None:
    """Have the supervisor report wrong results of the first GPU."""
    counts = VerifiedCounts(seconds=1.0, checks=100, errors=errors, findings=findings)
    with api.change_supervisor() as supervisor:
        supervisor.gpus[UUIDS[0]] = replace(
            used_gpu(0), verified=VerifiedWork(counts=counts), findings=findings
        )
    eventually(lambda: proof(api)["errors"] == errors)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    verified_store.save(tmp_path / verified_store.NAME, {"GPU-old": OLD}, {})
    with ApiServer(tmp_path) as api:
        find_errors(api, 3, findings=1)
        yield api


def acknowledge(api: ApiServer, *gpus: str, **body: Any) -> Reply:
    body = {"gpus": list(gpus), "reason": "replaced the riser", **body}
    return ask(api, "POST", "/v1/acknowledge", body)


def proof(api: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = ask(api, "GET", "/v1/gpus/0").body["verified"]
    return found


def on_disk(api: ApiServer, uuid: str) -> StoredWork:
    return verified_store.read(Path(api.spec.state) / verified_store.NAME)[uuid]


def test_wrong_results_are_acknowledged_on_disk_and_stay_in_the_status(api: ApiServer) -> None:
    check_problem(acknowledge(api, "0", outcome="repaired"), 422, "invalid")
    done = acknowledge(api, "0", outcome="confirmed")
    assert done.status == 200
    assert done.body["gpus"] == [UUIDS[0]]
    assert done.body["text"] == "acknowledged 4 wrong results of GPU 0"
    (stored,) = on_disk(api, UUIDS[0]).acknowledged
    assert (stored.errors, stored.findings, stored.reason) == (3, 1, "replaced the riser")
    (command,) = [one for one in api.commands if isinstance(one, AcknowledgeResults)]
    assert (command.gpu, command.errors, command.findings, command.counted) == (UUIDS[0], 3, 1, 1)
    shown = proof(api)
    assert (shown["errors"], shown["findings"]) == (3, 1), "nothing is erased"
    (one,) = shown["acknowledged"]
    assert (one["errors"], one["findings"], one["by"]) == (3, 1, stored.by)
    assert one["outcome"] == stored.outcome == command.outcome == "confirmed"

    again = acknowledge(api, "0")
    check_problem(again, 409, "conflict")
    find_errors(api, 5, findings=1)
    assert acknowledge(api, "0").body["text"] == "acknowledged 2 wrong results of GPU 0"


def test_who_acknowledged_faults_alone_is_on_disk_too(api: ApiServer) -> None:
    """Those of a GPU of the daemon, and of one that only an ended daemon had."""
    fault = GpuFault(kind=FaultKind.XID, text="XID 48", remedy="reset the GPU")
    gone = KnownFaults(gpu=fake_gpu(9), xids=(48,))
    with api.change_supervisor() as supervisor:
        supervisor.gpus[UUIDS[1]] = replace(used_gpu(1), faults=(fault,))
    api.set(known_faults=(gone,))
    eventually(lambda: ask(api, "GET", "/v1/gpus/1").body["faults"])
    done = acknowledge(api, "1", gone.gpu.uuid)
    assert done.body["text"] == "acknowledged faults of GPU 1; faults of GPU 9"
    for uuid in (UUIDS[1], gone.gpu.uuid):
        (stored,) = on_disk(api, uuid).acknowledged
        assert (stored.errors, stored.findings, stored.reason) == (0, 0, "replaced the riser")


def test_a_fault_that_comes_last_is_in_the_file_before_the_end(tmp_path: Path) -> None:
    """As the last views are read when the supervisor has ended."""
    known = KnownFaults(gpu=fake_gpu(9), xids=(48,))

    async def end() -> None:
        writer = StoreWriter(FAULTS, tmp_path, lambda *_: pytest.fail("not written"))
        await writer.finish(TIMEOUT_S)  # there is nothing to write
        writing = asyncio.create_task(writer.run())
        writer.update([known])
        await writer.finish(TIMEOUT_S)
        writing.cancel()

    asyncio.run(end())
    assert FAULTS.load(tmp_path / FAULTS.name, Clocks.read())[0] == (known,)


def test_a_range_of_gpus_is_its_gpus(api: ApiServer) -> None:
    """The Python client sends it as it is."""
    gpus = {"gpus": [f"0-{len(UUIDS) - 1}"]}
    assert ask(api, "POST", "/v1/pause", {**gpus, "wait_s": 0}).status != 404
    assert [one.gpus for one in api.commands if isinstance(one, PauseGpus)] == [tuple(UUIDS)]
    check_problem(ask(api, "POST", "/v1/resume", {"gpus": ["0-9"]}), 404, "no_such_gpu")
    check_problem(acknowledge(api, "1-0"), 404, "no_such_gpu")
    check_problem(ask(api, "GET", "/v1/gpus/0-1"), 422, "invalid")


@pytest.mark.parametrize("wait_s", [None, 2 * 86_400])
def test_a_pause_may_wait_for_days_or_without_a_limit(api: ApiServer, wait_s: int | None) -> None:
    assert ask(api, "POST", "/v1/pause", {"wait_s": wait_s}).status == 200


def test_a_pause_is_waited_for_until_it_ends(api: ApiServer) -> None:
    api.set(keeps_memory=True)
    late = ask(api, "POST", "/v1/pause", {"seconds": 0.3, "wait_s": None})
    check_problem(late, 504, "timeout", "Still held")


def test_a_wrong_field_of_a_body_that_may_be_omitted_is_answered_with_the_right_one(
    api: ApiServer,
) -> None:
    refused = ask(api, "POST", "/v1/pause", {"gpu": ["0"]})
    check_problem(refused, 422, "invalid", "gpu: there is no such field; did you mean gpus?")


def test_a_gpu_that_is_missing_is_named_by_its_serial_number_or_uuid(api: ApiServer) -> None:
    assert acknowledge(api, "1").status == 409, "the index is that of the present GPU"
    assert acknowledge(api, "1650099").body["gpus"] == ["GPU-old"]
    assert on_disk(api, "GPU-old").acknowledged[0].errors == 2
    assert acknowledge(api, "GPU-old").status == 409


@pytest.mark.parametrize(
    ("gpu", "body", "status"),
    [
        ("7", {}, 404),
        ("all", {}, 404),
        ("0", {"reason": ""}, 422),
        ("0", {"reason": "two\nlines"}, 422),
        ("0", {"reason": "x" * 201}, 422),
    ],
)
def test_an_unknown_gpu_or_a_reason_that_is_none_changes_nothing(
    api: ApiServer, gpu: str, body: dict[str, Any], status: int
) -> None:
    assert acknowledge(api, gpu, **body).status == status
    assert proof(api)["acknowledged"] == []


def test_a_disk_that_cannot_be_written_acknowledges_nothing(api: ApiServer) -> None:
    path = Path(api.spec.state) / verified_store.NAME

    def is_blocked() -> bool:  # by a folder, which is neither read nor replaced
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # just written again, by the server
            path.mkdir()
        return path.is_dir()

    eventually(is_blocked)
    refused = acknowledge(api, "0")
    check_problem(refused, 503, "unavailable", "Nothing was acknowledged")
    assert proof(api)["acknowledged"] == []


def test_operators_acknowledge_nothing(tmp_path: Path) -> None:
    with ApiServer(tmp_path, tcp=True, access=AccessPolicy(tcp=Level.OPERATE)) as api:
        body = {"gpus": ["0"], "reason": "why"}
        assert over_tcp(api, "POST", "/v1/acknowledge", body).status == 403


PLAN = """
spec = "sentinel-plan-v1"
name = "p"
[[phase]]
name = "warm"
workload = "{}"
seconds = "1m"
"""


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (
            PLAN.format("gemm:size=banana"),
            "phase 'warm': workload gemm: option size='banana' is not a whole",
        ),
        (PLAN.format("gem"), "phase 'warm': there is no workload 'gem'"),
        (f"cycles = {'1' * 5_000}", "the plan: it has an integer of more than 64 bits"),
        (f"spec = 0x{'f' * 5_000}", "the plan: it has an integer of more than 64 bits"),
        (f"{'.'.join('a' * 20_000)} = 1", "the plan: a key has more than 16 parts"),
    ],
)
def test_a_plan_that_is_wrong_is_refused(api: ApiServer, plan: str, why: str) -> None:
    check_problem(ask(api, "POST", "/v1/burnin", {"plan": plan}), 422, "invalid", why)
    assert api.commands == []
