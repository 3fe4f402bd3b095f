"""The client commands: their requests, output and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentinel.cli.main import run_command_line
from tests.harness.stub_daemon import (
    DAEMON,
    GPU,
    RESERVATION,
    STATUS,
    Reply,
    StubDaemon,
    problem,
    stub_daemon,
)
from tests.harness.timing import TIMEOUT_S

UUID = str(GPU["uuid"])
BUSY = {
    "time": "2026-11-21T20:00:00.000+00:00",
    "at": 1.0,
    "event": "gpu.busy",
    "gpu": UUID,
    "index": 0,
    "reason": "used by foreign processes",
    "processes": [{"pid": 7, "name": "py\x1b[2Jthon", "user": None}],
}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDaemon]:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("COLUMNS", "80")
    with stub_daemon(tmp_path / "s") as daemon:
        yield daemon


# --- status ----------------------------------------------------------------------------------


def test_status_shows_gpus_daemon_and_the_end_of_the_log(
    daemon: StubDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "sentinel.log"
    log.write_text("".join(json.dumps(BUSY | {"reason": f"reason {n}"}) + "\n" for n in range(9)))
    daemon.replies["GET /v1/status"] = Reply(
        {**STATUS, "daemon": {**DAEMON, "log": str(log)}, "reservations": [RESERVATION]}
    )
    assert run_command_line(["status"]) == 0
    _, header, gpu, *below = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["GPU", "STATE", "SINCE"]
    assert gpu.split() == [
        *("0", "occupied", "13m", "sentinel", "gemm", "14/16G", "100%", "64C", "698W"),
        *("656TF/s", "196ms,", "3m", "ago"),
    ]
    text = "\n".join(below)
    assert "reserved as 1a2b3c4d for demo" in text
    assert "pid 4242" in text
    assert f"log {log}" in text
    assert ["reason 4" in below[-5], "reason 8" in below[-1], "reason 3" in text] == [1, 1, 0]
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in (header, gpu))


def test_status_has_exit_code_3_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "none"))
    assert run_command_line(["status"]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("sentinel: no sentinel daemon runs at")
    assert run_command_line(["status", "--json"]) == 3
    output = capsys.readouterr()
    printed = json.loads(output.out)
    assert (printed["running"], printed["code"], printed["exit_code"]) == (False, "not_running", 3)
    assert output.err == ""


def test_status_as_json_is_the_response_of_the_daemon(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "new": 1})
    assert run_command_line(["status", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"schema_version": 1, "running": True, **STATUS, "new": 1}


OTHER = {**GPU, "uuid": "GPU-b", "index": 1, "pci_bus_id": "00000000:02:00.0"}


@pytest.mark.parametrize("typed", [["1"], ["--gpus", "GPU-b"], ["02:00.0", "--gpus", "1"]])
def test_status_of_selected_gpus_has_them_alone(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str], typed: list[str]
) -> None:
    both = {**STATUS, "gpus": [GPU, OTHER], "reservations": [RESERVATION]}
    daemon.replies["GET /v1/status"] = Reply(both)
    assert run_command_line(["status", "--json", *typed]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [gpu["index"] for gpu in printed["gpus"]] == [1]
    assert printed["reservations"] == []
    assert run_command_line(["status", *typed]) == 0
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[1:3]] == ["GPU", "1"]
    assert "demo" not in table


def test_status_of_a_gpu_that_is_missing_lists_the_choices(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.replies["GET /v1/status"] = Reply(STATUS)
    assert run_command_line(["status", "7"]) == 4
    output = capsys.readouterr()
    assert output.out == ""
    assert "no GPU matches '7'" in output.err
    assert UUID in output.err


def test_the_events_of_several_gpus_are_one_list_in_the_order_of_time(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    def event(gpu: str, minute: int) -> dict[str, object]:
        at = f"2026-11-21T20:{minute:02}:00+00:00"
        return {"at": at, "name": "gpu.idle", "gpu": gpu, "index": 0, "fields": {}}

    path = "GET /v1/history/events?gpu={}&since=1d&limit=1000"
    daemon.replies[path.format("0")] = Reply({"events": [event("GPU-a", 1), event("GPU-a", 5)]})
    daemon.replies[path.format("GPU-b")] = Reply({"events": [event("GPU-b", 3)]})
    assert run_command_line(["history", "0", "--gpus", "GPU-b", "--events", "--json"]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    assert [one["gpu"] for one in events] == ["GPU-a", "GPU-b", "GPU-a"]


# --- orders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "request_", "body"),
    [
        (["stop", "--wait", "0"], "POST /v1/stop", {"wait_s": 0}),
        (["reload"], "POST /v1/reload", {}),
        (["restart"], "POST /v1/restart", {}),
        (
            ["restart", "--util", "50%", "--gpus", "0", "--gpus", "1"],
            "POST /v1/restart",
            {"settings": {"gpus": "0,1", "util.target": "50%"}},
        ),
        (
            ["restart", "--unset", "util,--memory", "--unset", "power", "--chunk", "1GiB"],
            "POST /v1/restart",
            {
                "settings": {
                    "util.target": None,
                    "memory.target": None,
                    "power": None,
                    "memory.chunk": "1GiB",
                }
            },
        ),
        (["shutdown", "--wait", "0"], "POST /v1/shutdown", {}),
        (["pause"], "POST /v1/pause", {"wait_s": 30}),
        (
            ["pause", "0,GPU-ab", "01:00.0", "0", "--for", "30m", "--wait", "5s"],
            "POST /v1/pause",
            {"gpus": ["0", "GPU-ab", "01:00.0"], "seconds": 1800, "wait_s": 5},
        ),
        (["pause", "--release"], "POST /v1/pause", {"release": True, "wait_s": 30}),
        (["resume", "1"], "POST /v1/resume", {"gpus": ["1"]}),
        (
            ["resume", "1", "--gpus", "2,1", "--gpus", "3"],
            "POST /v1/resume",
            {"gpus": ["1", "2", "3"]},
        ),
        (["pause", "--gpus", "1", "--wait", "0"], "POST /v1/pause", {"gpus": ["1"], "wait_s": 0}),
        (["unreserve", "1a2b3c4d"], "DELETE /v1/reservations/1a2b3c4d", None),
    ],
)
def test_a_command_is_sent_and_its_response_printed(
    daemon: StubDaemon,
    capsys: pytest.CaptureFixture[str],
    typed: list[str],
    request_: str,
    body: object,
) -> None:
    daemon.replies[request_] = Reply({"text": "so be it", "gpus": [UUID]})
    assert run_command_line(typed) == 0
    assert capsys.readouterr().out == "so be it\n"
    assert daemon.commands == [(request_, body)]
    assert run_command_line([*typed, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema_version"], printed["gpus"]) == (1, [UUID])


@pytest.mark.parametrize(
    ("code", "exit_code"), [("no_such_gpu", 4), ("conflict", 1), ("timeout", 1), ("invalid", 2)]
)
def test_a_rejection_is_printed_to_standard_error(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str], code: str, exit_code: int
) -> None:
    daemon.replies["POST /v1/pause"] = problem(code, "not so")
    assert run_command_line(["pause", "7"]) == exit_code
    assert capsys.readouterr() == ("", "sentinel: not so\n")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["pause", "--for", "soon"], "--for: 'soon' is not a duration; write one such as"),
        (["pause", "0,,1"], "'0,,1' has an empty name in it"),
        (["stop", "--wait", "x"], "--wait: 'x' is not a duration"),
        (["reserve", "--count", "1"], "--for is missing"),
        (["reserve", "--for", "1h"], "give the number of GPUs, or their names\nEither --count 2,"),
        (
            ["reserve", "--count", "1", "--gpus", "0", "--for", "1h"],
            "give the number of GPUs, or their names",
        ),
        (["exec", "--", "true"], "give the number of GPUs, or their names"),
        (["unreserve"], "give the reservations to end"),
        (["unreserve", "1", "--all-mine"], "give the reservations to end"),
        (["status", "--connect", "x"], "'x' is not an address"),
        (
            ["status", "--connect", "x:1", "--socket", "y"],
            "--connect cannot be combined with --socket",
        ),
        (["status", "--token", "x"], "--token is only for --connect"),
        (["reserve", "--gpu", "0"], "`sentinel reserve` has no option --gpu; did you mean --gpus"),
        (["allocate", "a", "1GiB", "--gpus", "0,1"], "--gpus: `sentinel allocate` takes one GPU"),
        (["selftest", "--gpus", "0", "--gpus", "1"], "--gpus: `sentinel selftest` takes one GPU"),
        (["workloads", "try", "gemm", "--gpus", "all"], "--gpus: `sentinel workloads try` takes"),
        (["restart", "--unset", "utl"], "--unset: there is no setting 'utl'"),
        (["restart", "--unset", "tcp"], "--unset: api.tcp is fixed while sentinel runs"),
        (["restart", "--unset", "util", "--util", "9%"], "--util is given and removed by --unset"),
        (["reserve", "--count", "0"], "--count: 0 is not in the range"),
    ],
)
def test_a_usage_error_sends_no_request(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str], typed: list[str], expected: str
) -> None:
    assert run_command_line(typed) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"sentinel: {expected}")
    assert daemon.requests == []


# --- reservations ----------------------------------------------------------------------------


def test_reserve_prints_uuids_on_standard_output_and_nothing_else(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {**RESERVATION, "gpus": [UUID, "GPU-2"], "indices": [0, 1]}
    daemon.replies["PUT /v1/reservations/*"] = Reply(two)
    typed = ["reserve", "--count", "2", "--for", "2h", "--reason", "demo", "--wait", "5s"]
    assert run_command_line(typed) == 0
    output = capsys.readouterr()
    assert output.out == f"{UUID}\nGPU-2\n"
    assert "GPU 0, 1 reserved as 1a2b3c4d, until" in output.err
    asked = {"count": 2, "reason": "demo", "seconds": 7200, "wait_s": 5, "bound": False}
    assert daemon.commands == [("PUT /v1/reservations/*", asked)]
    assert run_command_line([*typed, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["reservation"] == two
    assert printed["schema_version"] == 1


def test_unreserve_all_mine_keeps_reservations_of_other_users(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = {**RESERVATION, "id": "00000001", "holder": {"uid": os.getuid()}}
    theirs = {**RESERVATION, "holder": {"uid": os.getuid() + 1}}
    daemon.replies["GET /v1/reservations"] = Reply({"reservations": [mine, theirs]})
    daemon.replies["DELETE /v1/reservations/00000001"] = Reply({"text": "given back"})
    assert run_command_line(["unreserve", "--all-mine"]) == 0
    assert capsys.readouterr().out == "given back\n"
    assert [request for request, _ in daemon.requests if request.startswith("DELETE")] == [
        "DELETE /v1/reservations/00000001"
    ]


def test_reservations_are_listed(daemon: StubDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    root = {
        **RESERVATION,
        "bound": True,
        "holder": {"uid": 0, "user": "root", "pid": 77, "name": "train"},
    }
    unknown_user = {
        **RESERVATION,
        "holder": {"uid": 4_000_000, "user": None, "pid": 77, "name": None},
    }
    daemon.replies["GET /v1/reservations"] = Reply({"reservations": [root, unknown_user]})
    assert run_command_line(["reservations"]) == 0
    header, one, other = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "GPU", "UNTIL", "BY", "REASON"]
    assert one.split()[0] == "1a2b3c4d"
    assert one.split()[-4:] == ["root", "(train", "77)", "demo"]
    assert other.split()[-3:] == ["uid", "4000000", "demo"]
    assert run_command_line(["reservations", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reservations"] == [root, unknown_user]


# --- exec ------------------------------------------------------------------------------------


def run_exec(daemon: StubDaemon, *typed: str) -> subprocess.Popen[str]:
    daemon.replies["PUT /v1/reservations/*"] = Reply(RESERVATION)
    daemon.replies["DELETE /v1/reservations/1a2b3c4d"] = Reply({"text": "given back"})
    return subprocess.Popen(
        [sys.executable, "-m", "sentinel", "exec", *typed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_exec_becomes_the_command_and_sets_its_visible_gpus(daemon: StubDaemon) -> None:
    program = '\necho $$ "$CUDA_VISIBLE_DEVICES" "$1"; grep SigIgn /proc/self/status; exit 7'
    with run_exec(daemon, "--count", "1", "--", "sh", "-c", program, "sh", "--help") as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    line, ignored = out.splitlines()
    assert line == f"{process.pid} {UUID} --help"
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert (process.returncode, err) == (7, "")
    ((_, asked),) = daemon.commands
    assert (asked["count"], asked["bound"]) == (1, True)
    assert asked["reason"].startswith("sh -c echo")


def test_a_signal_to_exec_is_a_signal_to_the_command(daemon: StubDaemon) -> None:
    with run_exec(daemon, "--gpus", "0", "--", "sh", "-c", "echo on; exec sleep 60") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.terminate()
        assert process.wait(TIMEOUT_S) == -signal.SIGTERM


def test_a_missing_command_reserves_nothing(daemon: StubDaemon) -> None:
    with run_exec(daemon, "--count", "1", "--", "no-such-command") as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (127, "sentinel: there is no command no-such-command\n")
    assert daemon.requests == []


@pytest.mark.parametrize(
    ("content", "mode", "code", "asked"),
    [("#!/nowhere/sh\n", 0o755, 127, 2), ("", 0o755, 126, 2), ("", 0o644, 126, 0)],
)
def test_a_command_that_cannot_be_executed_ends_the_reservation(
    daemon: StubDaemon, tmp_path: Path, content: str, mode: int, code: int, asked: int
) -> None:
    file = tmp_path / "command"
    file.write_text(content)
    file.chmod(mode)
    with run_exec(daemon, "--count", "1", "--", str(file)) as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code
    assert f"{file} cannot be executed" in err
    requests = [request for request, _ in daemon.commands]
    assert requests == ["PUT /v1/reservations/*", "DELETE /v1/reservations/1a2b3c4d"][:asked]


def test_exec_without_available_gpus_runs_nothing(daemon: StubDaemon, tmp_path: Path) -> None:
    with run_exec(daemon, "--count", "1", "--", "touch", str(tmp_path / "ran")) as process:
        daemon.replies["PUT /v1/reservations/*"] = problem("conflict", "ana holds all", 409)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (1, "sentinel: ana holds all\n")
    assert not (tmp_path / "ran").exists()


# --- logs ------------------------------------------------------------------------------------


def test_logs_shows_the_end_of_the_log_that_the_daemon_names(
    daemon: StubDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    lines = [json.dumps(BUSY), "no JSON \x1b[31m"]
    log.write_text("\n".join([*lines, json.dumps(BUSY), ""]))
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "log": str(log)}})
    assert run_command_line(["logs"]) == 0
    busy, other, _ = capsys.readouterr().out.splitlines()
    assert busy.endswith("GPU 0     busy        used by foreign processes: py?[2Jthon (pid 7)")
    assert other == "no JSON ?[31m"
    assert run_command_line(["logs", "--json", "-n", "1"]) == 0
    assert capsys.readouterr().out == f"{json.dumps(BUSY)}\n"


def test_logs_needs_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "none"))
    monkeypatch.setenv("LOGS_DIRECTORY", str(tmp_path))
    assert run_command_line(["logs"]) == 3
    assert "sentinel.log is missing" in capsys.readouterr().err
    (tmp_path / "sentinel.log").write_text("left behind\n")
    assert run_command_line(["logs"]) == 0
    assert capsys.readouterr().out == "left behind\n"


def test_logs_of_a_daemon_in_the_foreground_names_their_location(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["logs"]) == 2
    assert "its standard output has all" in capsys.readouterr().err


def test_logs_follows_until_it_is_ended(daemon: StubDaemon, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "log": str(log)}})
    command = [sys.executable, "-m", "sentinel", "logs", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "first\n"
            log.rename(tmp_path / "log.1")
            log.write_text("second\n")
            assert process.stdout.readline() == "second\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
        finally:
            process.kill()


# --- the shell's completion ------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_each_shell_is_printed(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["completion", shell]) == 0
    assert "_SENTINEL_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "word", "expected", "other"),
    [
        ("sentinel res", 1, {"restart", "reserve", "reservations", "resume"}, {"run"}),
        ("sentinel ", 1, {"status", "run", "exec"}, set()),
        ("sentinel --work", 1, {"--workload"}, {"--memory"}),
        ("sentinel pause --rel", 2, {"--release"}, {"--for"}),
        ("sentinel config s", 2, {"show"}, {"check"}),
    ],
)
def test_the_completion_lists_commands_and_options(
    words: str, word: int, expected: set[str], other: set[str]
) -> None:
    variables = {"_SENTINEL_COMPLETE": "bash_complete", "COMP_WORDS": words}
    printed = subprocess.run(
        [sys.executable, "-m", "sentinel"],
        env={**os.environ, **variables, "COMP_CWORD": str(word)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    offered = {line.partition(",")[2] for line in printed.splitlines()}
    assert expected <= offered
    assert not other & offered


def within(seconds: float, true: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_watch_continues_after_errors_of_the_daemon(daemon: StubDaemon) -> None:
    command = [sys.executable, "-m", "sentinel", "status", "--watch", "50ms"]
    daemon.replies["GET /v1/status"] = Reply(b"")
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        try:
            within(30, lambda: len(daemon.requests) > 2)
            daemon.replies["GET /v1/status"] = Reply(STATUS)
            asked = len(daemon.requests)
            within(30, lambda: len(daemon.requests) > asked + 2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "closed the connection" in err
    assert out.count("occupied  ") >= 2


# --- memory ----------------------------------------------------------------------------------

ALLOCATION = {
    "schema_version": 1,
    "id": "llm",
    "gpu": UUID,
    "index": 0,
    "size": 4 * 2**30,
    "since": "2026-11-21T20:00:00Z",
    "holder": {"uid": 1000, "user": "ana", "pid": 77, "name": "bash"},
}


def test_memory_is_allocated_for_the_process_that_runs_the_command_or_for_another(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.replies["PUT /v1/allocations/llm"] = Reply(ALLOCATION)
    assert run_command_line(["allocate", "llm", "4GiB", "--wait", "5s"]) == 0
    output = capsys.readouterr()
    assert output.out == f"{UUID}\n"
    assert "GPU 0: 4.0 GiB allocated as llm, until process 77 ends" in output.err
    asked = {"gpu": "0", "size": 4 * 2**30, "wait_s": 5, "pid": os.getppid()}
    assert daemon.requests == [("PUT /v1/allocations/llm", asked)]
    assert (
        run_command_line(["allocate", "llm", "4GiB", "--gpus", "1", "--pid", "77", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["allocation"] == ALLOCATION
    assert daemon.requests[-1][1] == {**asked, "gpu": "1", "pid": 77, "wait_s": 30}
    daemon.replies["DELETE /v1/allocations/llm"] = Reply({"text": "over", "gpus": [UUID]})
    assert run_command_line(["deallocate", "llm"]) == 0
    assert capsys.readouterr().out == "over\n"


def test_memory_that_is_allocated_is_shown_below_the_table(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    far = {**ALLOCATION, "id": "far", "holder": {"uid": None, "pid": None, "name": None}}
    daemon.replies["GET /v1/status"] = Reply({**STATUS, "allocations": [ALLOCATION, far]})
    assert run_command_line(["status"]) == 0
    shown = capsys.readouterr().out
    assert "GPU 0: 4.0 GiB allocated as llm for bash 77\n" in shown
    assert "GPU 0: 4.0 GiB allocated as far\n" in shown


@pytest.mark.parametrize("size", ["much", "0", "-1GiB"])
def test_a_malformed_size_is_an_error_with_its_text(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str], size: str
) -> None:
    assert run_command_line(["allocate", "llm", "--", size]) == 2
    assert "size: " in capsys.readouterr().err
    assert daemon.requests == []
