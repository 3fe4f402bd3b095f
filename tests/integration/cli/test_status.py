"""`sentinel status`: what it shows, in place or once, and what it costs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from sentinel.protocol.events import PERIODIC_EVENTS
from tests.harness.command_line import CommandLine
from tests.harness.parameters import mostly_long
from tests.harness.programs import run_program
from tests.harness.stub_daemon import DAEMON, GPU, STATUS, Reply, StubDaemon
from tests.harness.timing import TIMEOUT_S

#: What would cost more than all the rest of the command.
HEAVY = {
    *("asyncio", "rich", "pydantic", "fastapi", "structlog", "psutil", "textual", "torch"),
    *("http.client", "email", "ssl", "tempfile", "shutil", "difflib", "decimal", "subprocess"),
    *("sentinel.protocol.api_types", "sentinel.protocol.views", "sentinel.protocol.codec"),
    *("sentinel.protocol.stressor", "sentinel.protocol.gpu"),
    *("sentinel.config", "sentinel.core", "sentinel.client.client"),
}
#: Twice the modules of a bare interpreter with click would be a sign of a new import.
MAX_MODULES = 230


def busy(*processes: dict[str, object]) -> dict[str, object]:
    changed = {"stressor": "STOPPED", "occupancy": "BUSY", "pid": None}
    return {**GPU, **changed, "processes": list(processes)}


def test_the_first_line_names_the_host_and_the_model(stub: StubDaemon, cli: CommandLine) -> None:
    stub.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "host": "node7"}})
    assert cli("status").out.splitlines()[0] == "node7  1 x Simulated GPU, 16 GiB"


def test_processes_have_user_memory_and_command_line(stub: StubDaemon, cli: CommandLine) -> None:
    mine: dict[str, object] = {"pid": 7, "name": "python", "user": "ana", "memory": 3 * 2**30}
    mine["command"] = "/usr/bin/python train.py --steps 100000 --and --many --more --arguments"
    other = {"pid": 2**22 - 1, "name": "train", "user": None, "kind": "graphics"}
    stub.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [busy(mine, other)]})
    lines = cli("status").out.splitlines()
    start = next(n for n, line in enumerate(lines) if "COMMAND" in line)
    header, first, second = lines[start : start + 3]
    assert header.split() == ["GPU", "PID", "USER", "TYPE", "MEMORY", "COMMAND"]
    assert first.split()[:7] == ["0", "7", "ana", "compute", "3072MiB", "python", "train.py"]
    assert second.split() == ["0", str(2**22 - 1), "graphics", "train"]
    assert all(len(line) <= 80 for line in lines[: start + 3])


def test_the_short_list_has_one_line_per_gpu(stub: StubDaemon, cli: CommandLine) -> None:
    assert cli("status", "--list").out == f"GPU 0: Simulated GPU (UUID: {GPU['uuid']}) occupied\n"
    printed = cli.json("status", "--list", "--json")
    assert printed.keys() == {"schema_version", "running", "gpus"}
    assert printed["gpus"] == [GPU]


def test_the_last_lines_show_what_happened_and_not_what_is_repeated(
    stub: StubDaemon, tmp_path: Path, cli: CommandLine
) -> None:
    time = {"time": "2026-11-21T20:00:00+00:00", "at": 1.0}
    kept = [{**time, "event": "sentinel.stopped", "exit_code": n} for n in range(6)]
    checked = {**time, "event": "gpu.checked", "gpu": "x", "memory_used": 1, "memory_total": 2}
    log = tmp_path / "log"
    repeated = [{**time, "gpu": "x", "event": one} for one in sorted(PERIODIC_EVENTS)]
    log.write_text("\n".join(map(json.dumps, [*kept, *[*repeated, checked] * 1000])) + "\n")
    stub.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "log": str(log)}})
    shown = cli("status").out.splitlines()[-5:]
    assert [line.split()[-1] for line in shown] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    "broken",
    [{"memory_total": "much"}, {"power_w": "much"}, {"memory_total": None}, {"processes": 7}],
)
def test_an_invalid_response_is_an_error_and_not_a_traceback(
    stub: StubDaemon, cli: CommandLine, broken: dict[str, object]
) -> None:
    stub.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [{**GPU, **broken}]})
    output = cli("status", code=2)
    assert output.err.startswith("sentinel: invalid response from the daemon")
    assert "Traceback" not in output.err


def test_fields_that_an_older_daemon_does_not_send_are_empty(
    stub: StubDaemon, cli: CommandLine
) -> None:
    least = ("uuid", "index", "name", "memory_total", "occupancy", "stressor", "admin", "reason")
    older = {name: GPU[name] for name in least}
    stub.replies["GET /v1/status"] = Reply({"daemon": DAEMON, "gpus": [older]})
    assert "?/16G" in cli("status").out


@pytest.mark.parametrize("words", [["status"], ["status", "--list"], ["status", "--json"]])
def test_status_imports_little(stub: StubDaemon, tmp_path: Path, words: list[str]) -> None:
    event = {"time": "2026-11-21T20:00:00+00:00", "at": 1.0, "event": "gpu.idle", "gpu": "x"}
    log = tmp_path / "log"
    log.write_text(json.dumps(event) + "\n")
    stub.replies["GET /v1/status"] = Reply({**STATUS, "daemon": {**DAEMON, "log": str(log)}})
    program = (
        "import sys, json; from sentinel.cli.main import run_command_line;"
        f"code = run_command_line({words!r});"
        "print(json.dumps([code, *sys.modules]), file=sys.stderr)"
    )
    done = run_program(sys.executable, "-c", program, check=True)
    code, *modules = json.loads(done.stderr.splitlines()[-1])
    assert (code, HEAVY & set(modules)) == (0, set())
    assert len(modules) < MAX_MODULES


@mostly_long("every", [["10ms"], []])
def test_watch_redraws_in_place_and_ends_quietly(stub: StubDaemon, every: list[str]) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "sentinel", "status", "--watch", *every]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, env=environment, start_new_session=True
    ) as process:
        os.close(follower)
        text = read_until(leader, lambda text: text.count("\x1b[H") >= 3)
        stub.replies["GET /v1/status"] = Reply(b"")
        read_until(leader, lambda text: "closed the connection" in text)
        process.send_signal(signal.SIGINT)
        rest = read_until(leader, lambda text: text.endswith("\x1b[?1049l"))
        assert process.wait(TIMEOUT_S) == 130
    os.close(leader)
    assert text.startswith("\x1b[?1049h")
    assert "Traceback" not in rest
    assert not re.search(r"\x1b\[2J", text)  # it would flicker


@pytest.mark.parametrize("watched", [False, True])
def test_a_narrow_terminal_breaks_lines_between_words(
    stub: StubDaemon, tmp_path: Path, *, watched: bool
) -> None:
    reason = "its driver has not answered for a while, and it was asked for its gigabytes"
    event = {"time": "2026-11-21T20:00:00+00:00", "at": 1.0, "event": "gpu.unknown", "gpu": "x"}
    log = tmp_path / "log"
    log.write_text(json.dumps({**event, "index": 0, "reason": reason}) + "\n")
    unknown = {**GPU, "stressor": "STOPPED", "occupancy": "UNKNOWN", "reason": reason}
    daemon = {**DAEMON, "log": str(log)}
    stub.replies["GET /v1/status"] = Reply({**STATUS, "daemon": daemon, "gpus": [unknown]})
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (60, 60))
    command = [sys.executable, "-m", "sentinel", "status", *(["--watch", "1h"] if watched else [])]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        command, stdout=follower, env={**environment, "TERM": "xterm"}, start_new_session=True
    ) as process:
        os.close(follower)
        text = read_until(leader, lambda text: text.count("gigabytes") == 2)
        process.kill()
    os.close(leader)
    lines = [re.sub(r"\x1b\[[?\d;]*\w", "", line) for line in text.splitlines()]
    assert " ".join(map(str.strip, lines)).count(reason) == 2
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 60


def read_until(descriptor: int, enough: object) -> str:
    text = ""
    while not enough(text):  # type: ignore[operator]
        ready, _, _ = select.select([descriptor], [], [], TIMEOUT_S)
        assert ready, text
        text += os.read(descriptor, 65536).decode()
    return text


def test_a_command_line_has_its_program_without_the_folder(
    stub: StubDaemon, cli: CommandLine
) -> None:
    command = "/opt/venv/bin/python /srv/train.py"
    process = {"pid": 2**22 - 1, "name": "python", "user": "ana", "command": command}
    stub.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [busy(process)]})
    assert "  python /srv/train.py\n" in cli("status").out
