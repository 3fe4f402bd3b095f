"""The client commands: their requests, output and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.command_line import CommandLine
from tests.harness.parameters import mostly_long
from tests.harness.programs import piped_program, run_program
from tests.harness.sentinel_process import eventually
from tests.harness.stub_daemon import (
    DAEMON,
    GPU,
    RESERVATION,
    STATUS,
    Reply,
    StubDaemon,
    problem,
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


# --- status ----------------------------------------------------------------------------------


def test_status_shows_gpus_daemon_and_the_end_of_the_log(
    stub: StubDaemon, tmp_path: Path, cli: CommandLine
) -> None:
    log = tmp_path / "sentinel.log"
    log.write_text("".join(json.dumps(BUSY | {"reason": f"reason {n}"}) + "\n" for n in range(9)))
    stub.replies["GET /v1/status"] = Reply(
        {**STATUS, "daemon": {**DAEMON, "log": str(log)}, "reservations": [RESERVATION]}
    )
    _, header, gpu, *below = cli("status").out.splitlines()
    assert header.split()[:3] == ["GPU", "STATE", "SINCE"]
    assert gpu.split() == [
        *("0", "occupied", "13m", "sentinel", "gemm", "14/16G", "100%", "64C", "698W"),
        *("656TF/s", "196ms,", "3m", "ago"),
    ]
    text = "\n".join(below)
    assert "reserved as 1a2b3c4d by ana for demo" in text
    assert "pid 4242" in text
    assert f"log {log}" in text
    assert ["reason 4" in below[-5], "reason 8" in below[-1], "reason 3" in text] == [1, 1, 0]
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in (header, gpu))


def test_status_has_exit_code_3_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "none"))
    output = cli("status", code=3)
    assert output.out == ""
    assert output.err.startswith("sentinel: no sentinel daemon runs at")
    output = cli("status", "--json", code=3)
    printed = json.loads(output.out)
    assert (printed["running"], printed["code"], printed["exit_code"]) == (False, "not_running", 3)
    assert output.err == ""


def test_status_as_json_is_the_response_of_the_daemon(stub: StubDaemon, cli: CommandLine) -> None:
    stub.replies["GET /v1/status"] = Reply({**STATUS, "new": 1})
    printed = cli.json("status", "--json")
    assert printed == {"schema_version": 1, "running": True, **STATUS, "new": 1}


OTHER = {**GPU, "uuid": "GPU-b", "index": 1, "pci_bus_id": "00000000:02:00.0"}


@pytest.mark.parametrize("typed", [["1"], ["--gpus", "GPU-b"], ["02:00.0", "--gpus", "1"]])
def test_status_of_selected_gpus_has_them_alone(
    stub: StubDaemon, cli: CommandLine, typed: list[str]
) -> None:
    both = {**STATUS, "gpus": [GPU, OTHER], "reservations": [RESERVATION]}
    stub.replies["GET /v1/status"] = Reply(both)
    printed = cli.json("status", "--json", *typed)
    assert [gpu["index"] for gpu in printed["gpus"]] == [1]
    assert printed["reservations"] == []
    table = cli("status", *typed).out
    assert [line.split()[0] for line in table.splitlines()[1:3]] == ["GPU", "1"]
    assert "demo" not in table


def test_status_of_a_gpu_that_is_missing_lists_the_choices(
    stub: StubDaemon, cli: CommandLine
) -> None:
    stub.replies["GET /v1/status"] = Reply(STATUS)
    output = cli("status", "7", code=4)
    assert output.out == ""
    assert "no GPU matches '7'" in output.err
    assert UUID in output.err


def test_the_events_of_several_gpus_are_one_list_in_the_order_of_time(
    stub: StubDaemon, cli: CommandLine
) -> None:
    def event(gpu: str, minute: int) -> dict[str, object]:
        at = f"2026-11-21T20:{minute:02}:00+00:00"
        return {"at": at, "name": "gpu.idle", "gpu": gpu, "index": 0, "fields": {}}

    path = "GET /v1/history/events?gpu={}&since=1d&limit=1000"
    stub.replies[path.format("0")] = Reply({"events": [event("GPU-a", 1), event("GPU-a", 5)]})
    stub.replies[path.format("GPU-b")] = Reply({"events": [event("GPU-b", 3)]})
    for selector, index in (("0", 0), ("GPU-b", 1), ("1", 1)):
        stub.replies[f"GET /v1/gpus/{selector}"] = Reply(OTHER if index else GPU)
    # One GPU by two names is listed once.
    events = cli.json("history", "0", "--gpus", "GPU-b,1", "--events", "--json")["events"]
    assert [one["gpu"] for one in events] == ["GPU-a", "GPU-b", "GPU-a"]


# --- orders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "request_", "body"),
    [
        (["stop", "--wait", "0"], "POST /v1/stop", {}),
        (["reload"], "POST /v1/reload", {}),
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
        (["reserve", "--cancel", "1a2b3c4d"], "DELETE /v1/reservations/1a2b3c4d", None),
    ],
)
def test_a_command_is_sent_and_its_response_printed(
    stub: StubDaemon,
    cli: CommandLine,
    typed: list[str],
    request_: str,
    body: object,
) -> None:
    stub.replies[request_] = Reply({"text": "so be it", "gpus": [UUID]})
    assert cli(*typed).out == "so be it\n"
    assert stub.commands == [(request_, body)]
    printed = cli.json(*typed, "--json")
    assert (printed["schema_version"], printed["gpus"]) == (1, [UUID])


@pytest.mark.parametrize(
    ("code", "exit_code"), [("no_such_gpu", 4), ("conflict", 1), ("timeout", 1), ("invalid", 2)]
)
def test_a_rejection_is_printed_to_standard_error(
    stub: StubDaemon, cli: CommandLine, code: str, exit_code: int
) -> None:
    stub.replies["POST /v1/pause"] = problem(code, "not so")
    output = cli("pause", "7", code=exit_code)
    assert (output.out, output.err) == ("", "sentinel: not so\n")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["pause", "--for", "soon"], "--for: 'soon' is not a duration; write one such as"),
        (["reserve", "0", "--for", "0s"], "--for: '0s' is out of range; write a duration above 0"),
        (["pause", "0,,1"], "'0,,1' has an empty name in it"),
        (["pause", "0", "--for", "10"], "--for: '10' has no unit; write 10s, 10m, 10h or 10d"),
        *(
            (command.split(), "--for: '400d' is above 366d")
            for command in (
                "pause 0 --for 400d",
                "reserve 0 --for 400d",
                "session start --gpus 0 --for 400d",
            )
        ),
        (["stop", "--wait", "5"], "--wait: '5' has no unit; write 5s, 5m, 5h or 5d"),
        (["stop", "--wait", "x"], "--wait: 'x' is not a duration"),
        (["reserve", "--count", "1"], "give the duration of the reservation"),
        (["reserve", "--for", "1h"], "give the number of GPUs, or their names\nSuch as --count 2,"),
        (["exec", "--", "true"], "give the number of GPUs, or their names"),
        (["allocate", "llm"], "give an id and a size"),
        *(
            (["allocate", "llm", "--", size], f"size: {size!r} is not a size")
            for size in ("much", "0", "-1GiB")
        ),
        (
            ["set", "--memory", "50%"],
            "`sentinel set` has no option --memory; to change it: sentinel set memory=VALUE",
        ),
        (
            ["restart", "--memory", "50%"],
            "`sentinel restart` has no option --memory; to change it: sentinel set memory=VALUE",
        ),
        (["status", "--connect", "x"], "'x' is not an address"),
        (
            ["status", "--connect", "x:1", "--socket", "y"],
            "--connect cannot be combined with --socket",
        ),
        (["status", "--token", "x"], "--token is only for --connect"),
        (["reserve", "--gpu", "0"], "`sentinel reserve` has no option --gpu; did you mean --gpus"),
        (["allocate", "a", "1GiB", "--gpus", "0,1"], "--gpus: `sentinel allocate` takes one GPU"),
        (
            ["workloads", "selftest", "--gpus", "0", "--gpus", "1"],
            "--gpus: `sentinel workloads selftest` takes one GPU",
        ),
        (["workloads", "try", "gemm", "--gpus", "all"], "--gpus: `sentinel workloads try` takes"),
        (["set", "--unset", "utl"], "--unset: there is no setting 'utl'"),
        (["set", "--unset", "tcp"], "--unset: api.tcp takes effect only at a start"),
        (["set", "--unset", "util", "util=9%"], "util.target is given twice"),
        (["reserve", "--count", "0"], "--count: '0' is not a whole number from 1 to 128"),
    ],
)
def test_a_usage_error_sends_no_request(
    stub: StubDaemon, cli: CommandLine, typed: list[str], expected: str
) -> None:
    output = cli(*typed, code=2)
    assert output.out == ""
    assert output.err.startswith(f"sentinel: {expected}")
    assert stub.requests == []


# --- reservations ----------------------------------------------------------------------------


def test_reserve_prints_uuids_on_standard_output_and_nothing_else(
    stub: StubDaemon, cli: CommandLine
) -> None:
    two = {**RESERVATION, "gpus": [UUID, "GPU-2"], "indices": [0, 1]}
    stub.replies["PUT /v1/reservations/*"] = Reply(two)
    typed = ["reserve", "--count", "2", "--for", "2h", "--reason", "demo", "--wait", "5s"]
    output = cli(*typed)
    assert output.out == f"{UUID}\nGPU-2\n"
    assert "GPU 0, 1 reserved as 1a2b3c4d, until" in output.err
    asked = {"count": 2, "reason": "demo", "seconds": 7200, "wait_s": 5, "bound": False}
    assert stub.commands == [("PUT /v1/reservations/*", asked)]
    printed = cli.json(*typed, "--json")
    assert printed["reservation"] == two
    assert printed["schema_version"] == 1


def test_cancel_all_ends_what_this_user_has_and_waits_for(
    stub: StubDaemon, cli: CommandLine
) -> None:
    mine = {**RESERVATION, "id": "00000001", "holder": {"uid": os.getuid()}}
    waiting = {**mine, "id": "00000002", "place": 1}
    theirs = {**RESERVATION, "holder": {"uid": os.getuid() + 1}}
    listed = {"reservations": [mine, theirs], "queue": [{**theirs, "place": 2}, waiting]}
    stub.replies["GET /v1/reservations"] = Reply(listed)
    # The request first, or it would get the GPUs that a reservation leaves.
    ended = [f"DELETE /v1/reservations/{id_}" for id_ in ("00000002", "00000001")]
    stub.replies |= {request: Reply({"text": "given back"}) for request in ended}
    assert cli("reserve", "--cancel", "all").out == "given back\ngiven back\n"
    assert [request for request, _ in stub.requests if request.startswith("DELETE")] == ended


def test_reservations_are_listed(stub: StubDaemon, cli: CommandLine) -> None:
    root = {
        **RESERVATION,
        "bound": True,
        "holder": {"uid": 0, "user": "root", "pid": 77, "name": "train"},
    }
    unknown_user = {
        **RESERVATION,
        "holder": {"uid": 4_000_000, "user": None, "pid": 77, "name": None},
    }
    stub.replies["GET /v1/reservations"] = Reply({"reservations": [root, unknown_user]})
    header, one, other = cli("reserve", "--list").out.splitlines()
    assert header.split() == ["ID", "GPU", "UNTIL", "BY", "REASON"]
    assert one.split()[0] == "1a2b3c4d"
    assert one.split()[-4:] == ["root", "(train", "77)", "demo"]
    assert other.split()[-3:] == ["uid", "4000000", "demo"]
    assert cli.json("reserve", "--list", "--json")["reservations"] == [root, unknown_user]


# --- exec ------------------------------------------------------------------------------------


def run_exec(
    stub: StubDaemon,
    *typed: str,
    reply: Reply = Reply(RESERVATION),  # noqa: B008 - is not changed
) -> subprocess.Popen[str]:
    stub.replies["PUT /v1/reservations/*"] = reply
    stub.replies["DELETE /v1/reservations/1a2b3c4d"] = Reply({"text": "given back"})
    return piped_program(sys.executable, "-m", "sentinel", "exec", *typed, stderr=subprocess.PIPE)


def test_exec_becomes_the_command_and_sets_its_visible_gpus(stub: StubDaemon) -> None:
    program = '\necho $$ "$CUDA_VISIBLE_DEVICES" "$1"; grep SigIgn /proc/self/status; exit 7'
    with run_exec(stub, "--count", "1", "--", "sh", "-c", program, "sh", "--help") as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    line, ignored = out.splitlines()
    assert line == f"{process.pid} {UUID} --help"
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert (process.returncode, err) == (7, "")
    ((_, asked),) = stub.commands
    assert (asked["count"], asked["bound"], asked["wait_s"]) == (1, True, None)
    assert asked["reason"].startswith("sh -c echo")


def test_a_signal_to_exec_is_a_signal_to_the_command(stub: StubDaemon) -> None:
    with run_exec(stub, "--gpus", "0", "--", "sh", "-c", "echo on; exec sleep 60") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.terminate()
        assert process.wait(TIMEOUT_S) == -signal.SIGTERM


def test_a_missing_command_reserves_nothing(stub: StubDaemon) -> None:
    with run_exec(stub, "--count", "1", "--", "no-such-command") as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (127, "sentinel: there is no command no-such-command\n")
    assert stub.requests == []


@mostly_long(
    "content, mode, code, asked",
    [("#!/nowhere/sh\n", 0o755, 127, 2), ("", 0o755, 126, 2), ("", 0o644, 126, 0)],
)
def test_a_command_that_cannot_be_executed_ends_the_reservation(
    stub: StubDaemon, tmp_path: Path, content: str, mode: int, code: int, asked: int
) -> None:
    file = tmp_path / "command"
    file.write_text(content)
    file.chmod(mode)
    with run_exec(stub, "--count", "1", "--", str(file)) as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code
    assert f"{file} cannot be executed" in err
    requests = [request for request, _ in stub.commands]
    assert requests == ["PUT /v1/reservations/*", "DELETE /v1/reservations/1a2b3c4d"][:asked]


def test_exec_without_available_gpus_runs_nothing(stub: StubDaemon, tmp_path: Path) -> None:
    typed = ("--count", "1", "--", "touch", str(tmp_path / "ran"))
    refusal = problem("conflict", "ana holds all", 409)
    with run_exec(stub, *typed, reply=refusal) as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (1, "sentinel: ana holds all\n")
    assert not (tmp_path / "ran").exists()


# --- logs ------------------------------------------------------------------------------------


def test_logs_shows_the_end_of_the_log_that_the_daemon_names(
    stub: StubDaemon, tmp_path: Path, cli: CommandLine
) -> None:
    log = tmp_path / "log"
    lines = [json.dumps(BUSY), "no JSON \x1b[31m"]
    log.write_text("\n".join([*lines, json.dumps(BUSY), ""]))
    stub.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "log": str(log)}})
    busy, other, _ = cli("logs").out.splitlines()
    assert busy.endswith("GPU 0     busy        used by foreign processes: py?[2Jthon (pid 7)")
    assert other == "no JSON ?[31m"
    assert cli("logs", "--json", "-n", "1").out == f"{json.dumps(BUSY)}\n"
    hidden = json.dumps({**BUSY, "event": "gpu.identity", "complete": True})
    with log.open("a") as file:
        file.write(f"{hidden}\n" * 5)
    assert cli("logs", "-n", "1").out == f"{busy}\n"
    assert cli("logs", "--json", "-n", "2").out == f"{hidden}\n" * 2


def test_logs_needs_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "none"))
    monkeypatch.setenv("LOGS_DIRECTORY", str(tmp_path))
    assert "sentinel.log is missing" in cli("logs", code=3).err
    (tmp_path / "sentinel.log").write_text("left behind\n")
    assert cli("logs").out == "left behind\n"


def test_logs_of_a_daemon_in_the_foreground_names_their_location(
    stub: StubDaemon, cli: CommandLine
) -> None:
    assert "its standard output has all" in cli("logs", code=2).err


def test_logs_follows_until_it_is_ended(stub: StubDaemon, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('first\n{"event": "burnin.measured"}\n')
    stub.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "log": str(log)}})
    with piped_program(sys.executable, "-m", "sentinel", "logs", "-f", "-n", "1") as process:
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
def test_the_completion_of_each_shell_is_printed(shell: str, cli: CommandLine) -> None:
    assert "_SENTINEL_COMPLETE" in cli("completion", shell).out


@mostly_long(
    "words, word, expected, other",
    [
        ("sentinel res", 1, {"restart", "reserve", "resume"}, {"run"}),
        ("sentinel ", 1, {"status", "run", "exec"}, set()),
        ("sentinel --work", 1, {"--workload"}, {"--memory"}),
        ("sentinel pause --rel", 2, {"--release"}, {"--for"}),
        ("sentinel config s", 2, {"show"}, {"check"}),
    ],
    quick=2,
)
def test_the_completion_lists_commands_and_options(
    words: str, word: int, expected: set[str], other: set[str]
) -> None:
    variables = {"_SENTINEL_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environment = {**os.environ, **variables, "COMP_CWORD": str(word)}
    done = run_program(sys.executable, "-m", "sentinel", env=environment, check=True)
    offered = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert expected <= offered
    assert not other & offered


def test_watch_continues_after_errors_of_the_daemon(stub: StubDaemon) -> None:
    command = [sys.executable, "-m", "sentinel", "status", "--watch", "50ms"]
    stub.replies["GET /v1/status"] = Reply(b"")
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        try:
            eventually(lambda: len(stub.requests) > 2)
            stub.replies["GET /v1/status"] = Reply(STATUS)
            asked = len(stub.requests)
            eventually(lambda: len(stub.requests) > asked + 2)
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
    stub: StubDaemon, cli: CommandLine
) -> None:
    stub.replies["PUT /v1/allocations/llm"] = Reply(ALLOCATION)
    output = cli("allocate", "llm", "4GiB", "--wait", "5s")
    assert output.out == f"{UUID}\n"
    assert "GPU 0: 4.0 GiB allocated as llm, until process 77 ends" in output.err
    asked = {"gpu": "0", "size": 4 * 2**30, "wait_s": 5, "pid": os.getppid()}
    assert stub.requests == [("PUT /v1/allocations/llm", asked)]
    assert (
        cli.json("allocate", "llm", "4GiB", "--gpus", "1", "--pid", "77", "--json")["allocation"]
        == ALLOCATION
    )
    assert stub.requests[-1][1] == {**asked, "gpu": "1", "pid": 77, "wait_s": 30}
    stub.replies["DELETE /v1/allocations/llm"] = Reply({"text": "over", "gpus": [UUID]})
    assert cli("allocate", "--cancel", "llm").out == "over\n"


def test_memory_that_is_allocated_is_shown_below_the_table(
    stub: StubDaemon, cli: CommandLine
) -> None:
    far = {**ALLOCATION, "id": "far", "holder": {"uid": None, "pid": None, "name": None}}
    stub.replies["GET /v1/status"] = Reply({**STATUS, "allocations": [ALLOCATION, far]})
    shown = cli("status").out
    assert "GPU 0: 4.0 GiB allocated as llm for bash 77\n" in shown
    assert "GPU 0: 4.0 GiB allocated as far\n" in shown
