"""``sentinel free`` prints the GPUs that a job would get now, and only these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness.command_line import CommandLine
from tests.harness.daemon_harness import QUICK, Daemon
from tests.harness.sentinel_process import eventually
from tests.harness.stub_daemon import DAEMON, GPU, RESERVATION, Reply, StubDaemon, problem
from tests.harness.timing import TIMEOUT_S

UUIDS = [f"GPU-{index}52937bc-67d8-5168-8d5a-083882c8d660" for index in range(4)]
EMPTY = {"stressor": "STOPPED"}
BUSY = {"stressor": "STOPPED", "occupancy": "BUSY", "reason": "used by root 77 python"}


def reply(*gpus: Mapping[str, Any], **more: Any) -> Reply:
    listed = [
        {**GPU, "uuid": UUIDS[index], "index": index, **own} for index, own in enumerate(gpus)
    ]
    return Reply({"daemon": DAEMON, "gpus": listed, "reservations": [], **more})


@pytest.fixture
def shows(stub: StubDaemon, monkeypatch: pytest.MonkeyPatch) -> StubDaemon:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return stub


@pytest.mark.parametrize(
    ("gpus", "more", "expected"),
    [
        ([{}, EMPTY, {}, EMPTY], {}, [1, 3, 0, 2]),
        ([EMPTY, BUSY, {"occupancy": "UNKNOWN"}, {}], {}, [0, 3]),
        ([{**EMPTY, "reservation": "1a2b", "admin": "RESERVED"}, {}], {}, [1]),
        ([{**EMPTY, "admin": "PAUSED"}, {}], {}, [0, 1]),
        ([{**EMPTY, "findings": 2}, EMPTY, {}], {}, [1, 0, 2]),
        ([{**EMPTY, "findings": 2, "findings_acknowledged": 2}, EMPTY], {}, [0, 1]),
        ([{}, {}], {"allocations": [{"gpu": UUIDS[0]}]}, [1]),
        ([{}, {}], {"queue": [{**RESERVATION, "indices": [1]}]}, [0]),
        ([{}, {}], {"queue": [{**RESERVATION, "indices": []}]}, []),
        ([{}, {}], {"daemon": {**DAEMON, "age_s": 9.0}}, []),
    ],
)
def test_empty_ones_come_first_and_what_no_job_would_get_is_left_out(
    shows: StubDaemon, gpus: Any, more: Any, expected: list[int], cli: CommandLine
) -> None:
    shows.replies["GET /v1/status"] = reply(*gpus, **more)
    printed = cli("free", code=0 if expected else 1)
    line = ",".join(UUIDS[index] for index in expected)
    assert printed.out == (f"{line}\n" if line else "")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(UUIDS[2], [2]), (f"{UUIDS[0]},{UUIDS[1]}", [1, 0]), ("", []), ("MIG-1", [])],
)
def test_it_chooses_among_the_visible_gpus(
    shows: StubDaemon,
    value: str,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    shows.replies["GET /v1/status"] = reply({}, EMPTY, EMPTY, BUSY)
    printed = cli.json("free", "--json", code=0 if expected else 1)
    assert printed["gpus"] == [UUIDS[index] for index in expected]
    why = {
        "MIG-1": "which sentinel does not use; name whole GPUs",
        "": "CUDA_VISIBLE_DEVICES is empty, so CUDA shows no GPU; unset it",
    }
    assert why.get(value, "") in "".join(printed["notes"])
    assert ("unset it" in "".join(printed["notes"])) == (value in why)


def test_with_too_few_nothing_is_printed_and_the_reasons_follow(
    shows: StubDaemon, cli: CommandLine
) -> None:
    shows.replies["GET /v1/status"] = reply({}, BUSY)
    assert cli("free", "--count", "1").out == f"{UUIDS[0]}\n"
    printed = cli("free", "--count", "2", code=1)
    assert printed.out == ""
    assert printed.err == ("sentinel: 2 GPUs requested, 1 is free\nGPU 1: used by root 77 python\n")


@pytest.mark.parametrize(
    ("value", "count", "why"),
    [
        (None, 5, "5 GPUs requested; the daemon has 4"),
        (UUIDS[2], 5, "5 GPUs requested; the daemon has 4"),
        (UUIDS[2], 3, f"3 GPUs requested, but CUDA_VISIBLE_DEVICES={UUIDS[2]} shows GPU 2 of this"),
        ("", 1, "1 GPU requested, but CUDA_VISIBLE_DEVICES= shows no GPU of this daemon"),
    ],
)
def test_more_gpus_than_there_are_is_the_error_of_exec(
    shows: StubDaemon,
    value: str | None,
    count: int,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    shows.replies["GET /v1/status"] = reply({}, EMPTY, EMPTY, BUSY)
    shows.replies["PUT /v1/reservations/*"] = problem("no_such_gpu", why, 404)
    for command in (["free"], ["exec"], ["reserve", "--for", "1h"]):
        words = [*command, "--count", str(count), *(["--", "true"] if command == ["exec"] else ())]
        refused = cli(*words, code=4)
        assert (refused.out, refused.err.startswith(f"sentinel: {why}")) == ("", True), refused


def test_its_help_names_no_gpus_that_it_does_not_take(cli: CommandLine) -> None:
    assert "named" not in cli("free", "--help").out


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_job_gets_what_it_prints(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    daemon.start(2, *QUICK)
    eventually(lambda: all(daemon.gpu(index).occupied for index in range(2)))
    first, second = daemon.run("free").strip().split(",")
    daemon.run("pause", "1", "--wait", f"{TIMEOUT_S:.0f}s")
    assert daemon.run("free").strip() == f"{second},{first}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,9")
    narrow = daemon.run_unchecked("free")
    assert (narrow.code, narrow.out.strip()) == (0, second)
    assert "'9' is no GPU of this host, so CUDA ignores it" in narrow.err
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with daemon.host.job(0, stay=3600):  # until the end of the block
        eventually(lambda: daemon.gpu(0).occupancy == "BUSY")
        assert daemon.run("free", "--count", "1").strip() == second
        assert daemon.run_unchecked("free", "--count", "2").code == 1
    daemon.run("stop")
    assert daemon.run_unchecked("free").code == 3
