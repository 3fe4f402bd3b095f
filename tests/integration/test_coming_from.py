"""Every row of docs/guides/installation.md has an example that works, and has its effect."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

import sentinel
from sentinel.config.model import SETTINGS
from sentinel.host.registry import running
from sentinel.host.simulation import Membership
from tests.harness.api_harness import UnixConnection
from tests.harness.daemon_harness import Daemon, isolated_daemon, settings_file
from tests.harness.given_settings import shown
from tests.harness.gpu_environment import ROOT, SimulatedHost, replace_torch
from tests.harness.openapi_document import openapi_document
from tests.harness.programs import piped_program, run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

DOCUMENT = ROOT / "docs" / "guides/installation.md"

#: The daemon's settings; `sentinel set` removes none of them.
FILE = """
gpus = ["0", "1"]
rearm = "300ms"
workload = "hold"
[throttle]
cooldown = "100ms"
critical_pause = "100ms"
"""
#: Words of commands that need their own process: they run for a while or read their input.
_APART = {"--for", "mcp"}


@dataclass(frozen=True)
class Row:
    """One row of a table: the system, its operation, ours, and an example."""

    system: str
    there: str
    here: str
    example: str


def rows() -> list[Row]:
    found, system, header = [], "", False
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("#"):
            system = line.lstrip("# ")
        elif line == "| There | Here | Example |":
            header = True
        elif not line.startswith("|"):
            header = False
        elif header and not line.startswith("|---"):
            there, here, example = (cell.strip() for cell in line.strip("|").split(" | "))
            found.append(Row(system, there, here, example))
    return found


ROWS = rows()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    host = SimulatedHost(tmp_path_factory.mktemp("host"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        replace_torch(host.folder, monkeypatch)
        with isolated_daemon(host, monkeypatch) as one:
            settings_file(host.folder).write_text(FILE)
            monkeypatch.chdir(host.folder)
            monkeypatch.setenv("PWD", str(host.folder))
            one.run("start", "--simulate", "3")
            yield one


@pytest.fixture(scope="module")
def monitor(daemon: Daemon) -> Iterator[sentinel.Monitor]:
    with sentinel.Monitor() as monitor:
        yield monitor


def settings(daemon: Daemon) -> dict[str, str]:
    """Read the texts of the settings in force, by key."""
    return {key: text for key, (text, _) in shown(ask(daemon, "GET", "/v1/settings")).items()}


def is_log_here(daemon: Daemon) -> bool:
    """Check that the running daemon writes a log in the present folder."""
    return '"event": "sentinel.started"' in Path("sentinel.log").read_text()


def answer_to(daemon: Daemon, path: str) -> Any:
    return ask(daemon, "GET", f"/api/gpu{path}")["data"]


def newest_reading(daemon: Daemon) -> datetime:
    (newest,) = answer_to(daemon, "/metrics/history?gpu_id=0&limit=1")["metrics"]
    return datetime.fromisoformat(newest["timestamp"])


def is_recorded(daemon: Daemon) -> bool:
    """Check that the newest reading of the history is of the last seconds."""
    return datetime.now(UTC) - newest_reading(daemon) < timedelta(seconds=3)


@contextmanager
def foreign_process(daemon: Daemon, gpu: int) -> Iterator[Membership]:
    """Take memory of a GPU in this process, which is foreign to the daemon."""
    membership = daemon.host.registry.attach(daemon.host.uuid(gpu))
    try:
        assert membership.allocate(2**30)
        yield membership
    finally:
        membership.close()


@contextmanager
def foreign_on_a_held_gpu(daemon: Daemon) -> Iterator[None]:
    eventually(lambda: daemon.gpu(0).occupied)
    with foreign_process(daemon, 0):
        yield


#: What is so after an example, besides what :func:`check_effect` checks of each.
EFFECTS: dict[str, Callable[[Daemon], bool]] = {
    "sentinel start --simulate 3": lambda one: one.client.status().daemon.phase != "paused",
    "POST /v1/resume {}": lambda one: one.client.status().daemon.phase != "paused",
    "sentinel start --simulate 3 --paused": lambda one: (
        one.client.status().daemon.phase == "paused" and one.pids_on_gpus() == []
    ),
    "sentinel stop": lambda one: running(one.places) is None,
    "SENTINEL_LOG_FILE=$PWD/sentinel.log sentinel start --simulate 3": is_log_here,
    "sentinel pause": lambda one: (
        one.client.status().daemon.phase == "paused" and one.pids_on_gpus() == []
    ),
    "POST /api/gpu/monitoring/stop": lambda one: not is_recorded(one),
    "POST /api/gpu/monitoring/start": is_recorded,
    "sentinel pause 0": lambda one: one.gpu(0).admin == "PAUSED" and one.gpu(0).pid is None,
    "sentinel session start train --gpus 1 --memory 2GiB": lambda one: (
        (one.gpu(1).session, one.gpu(1).held, one.gpu(0).session) == ("train", 2**31, None)
    ),
    'POST /v1/sessions {"name": "other", "gpus": ["0"], "settings": {"memory.target":'
    ' "1536MiB"}}': lambda one: (
        [(gpu.session, gpu.held) for gpu in one.client.status().gpus]
        == [("other", 3 * 2**29), ("train", 2**31)]
    ),
    "sentinel session stop train other": lambda one: (
        [(gpu.session, gpu.held) for gpu in one.client.status().gpus] == [(None, 2**30)] * 2
    ),
    "sentinel resume 0": lambda one: one.gpu(0).admin == "ENABLED",
    'PATCH /v1/settings {"settings": {"util.target": "70%"}}': lambda one: (
        settings(one)["util.target"] == "70%"
    ),
    'monitor.allocate("llm_model", "2GiB", gpu=0)': lambda one: (
        [(own.id, own.size) for own in one.client.allocations()] == [("llm_model", 2 * 2**30)]
    ),
    'monitor.cancel_allocation("llm_model")': lambda one: one.client.allocations() == (),
    'POST /api/gpu/memory/allocate {"allocation_id": "llm_model", "required_mb": 2048,'
    ' "gpu_id": 0}': lambda one: (
        [(own.id, own.size) for own in one.client.allocations()] == [("llm_model", 2 * 2**30)]
    ),
    'POST /api/gpu/memory/deallocate {"allocation_id": "llm_model"}': lambda one: (
        one.client.allocations() == ()
    ),
    'monitor.update_config({"throttle.temp_critical_from": 80, "budget.limit": "7GiB"})': (
        lambda one: (
            settings(one)["throttle.temp_critical_from"] == "80"
            and settings(one)["budget.limit"] == "7GiB"
        )
    ),
    "GET /api/gpu/status?gpu_id=0": lambda one: (
        answer_to(one, "/status").keys() >= {"state_color", "temp_trend", "throttling"}
    ),
}


#: What commands print: the whole text matches.
OUTPUTS = {
    "sentinel run --simulate 3 --once": r"(?s)GPU 0 .*\nGPU 1 .*",
    "sentinel run --simulate 3 --gpus 0,2 --once": r"(?s)GPU 0 .*",
    "sentinel run --simulate 3 --gpus 0,2 --util 50% --memory 2GiB --once": r"(?s)GPU 0 .*",
    "sentinel run --simulate 3 --list": r"(  \d  GPU-[^\n]*\n?){2}",
    "sentinel run --simulate 3 --gpus 0,1 --list": r"  0  GPU-[^\n]*\n  1  GPU-[^\n]*",
    "CUDA_VISIBLE_DEVICES=1 sentinel run --simulate 3 --gpus all --list": r"  1  GPU-[^\n]*",
    "sentinel run --simulate 3 --once --explain": r"(?s)(GPU \d.*decided by the rule.*){2}",
    "SENTINEL_MEMORY=1GiB sentinel config show --offline": (
        r'(?s).*target = "1GiB" +# SENTINEL_MEMORY\n.*'
    ),
    "SENTINEL_TCP=8765 sentinel config show --offline": (
        r'(?s).*\ntcp = "8765" +# SENTINEL_TCP\n.*'
    ),
    "sentinel logs -n 5": r"([^\n]+\n?){5}",
    "sentinel session list": (
        r"(?s)NAME +GPU .*\ntrain +1 .*memory\.target=2GiB\nother +0 .*memory\.target=1536MiB"
    ),
    "sentinel status": r"(?s).*2 x Simulated GPU.*",
    "sentinel status --json": r'(?s)\{.*"gpus".*\}',
    "sentinel --help": r"(?s).*Usage: sentinel.*",
    "sentinel logs -n 10": r"([^\n]+\n?){10}",
    "sentinel run --simulate 3 --gpus 0,1 --once": r"(?s)GPU 0 .*\nGPU 1 (?!.*\nGPU ).*",
    "sentinel --simulate 3 --gpus 2 --no-api --for 1s": (
        r"(?s).*started +\S+ GPU 2 .*its time is over.*exit code 0"
    ),
    "SENTINEL_POLL=500ms SENTINEL_WATCH_INTERVAL=20ms sentinel config show --offline": (
        r'(?s).*\npoll = "500ms" +# SENTINEL_POLL\n.*= "20ms" +# SENTINEL_WATCH_INTERVAL\n.*'
    ),
    "SENTINEL_DRIVER=amdgpu sentinel config show --offline": (
        r'(?s).*\ndriver = "amdgpu" +# SENTINEL_DRIVER\n.*'
    ),
    "sentinel mcp": r'(?s).*"name":"(status|sentinel)".*',
}
#: What is so before an example, until it is done.
BEFORE: dict[str, Callable[[Daemon], AbstractContextManager[Any]]] = {
    "print(client.gpu(0).occupancy, client.gpu(0).processes)": foreign_on_a_held_gpu,
    "print(client.gpu(0).handover)": foreign_on_a_held_gpu,
}
#: What code prints, at last: the whole text matches.
PRINTS = {
    "print(client.gpu(0).stressor, client.gpu(0).pid)": r"RUNNING \d+",
    "print(client.gpu(0).occupancy, client.gpu(0).processes)": (
        rf"BUSY \(Process\(pid={os.getpid()}, .*\),\)"
    ),
    "print(client.gpu(0).handover)": r"Handover\(evidence=.*, kill=0\.\d+.*\)",
    "print(client.status().daemon.pid)": r"\d+",
    "print(client.status().daemon.phase)": r"waiting|occupying",
    "print(monitor.status_all())": r"\(GpuStatus\(.*index=0.*GpuStatus\(.*index=1.*\)",
    "print(monitor.status(0).temperature_c)": r"\d+",
    "print(monitor.budget(0).allocated)": r"0",
    "print(monitor.available(0))": r"[1-9]\d{9,}",
    'with monitor.allocation("llm_inference", "2GiB") as got: print(got.size)': str(2**31),
    "print(monitor.history(0, minutes=5))": r"(?s).*temperature_c=\d+.*",
    "print(monitor.trend(0, minutes=5))": (
        r"\w+\(.*samples=\d\d.*trend=.*(rising|falling|stable|varying).*\)"
    ),
    "print(monitor.should_throttle(0))": r"False",
    "print(monitor.speed_multiplier(0))": r"1\.0|0\.8",
    "print(monitor.status(0).health, monitor.trend(0).trend)": (
        r"(optimal|normal) (rising|falling|stable|varying)"
    ),
}
#: What requests return.
ANSWERS: dict[str, Callable[[Any], bool]] = {
    "GET /v1/health": lambda body: body["age_s"] < TIMEOUT_S,
    "GET /v1/status": lambda body: [gpu["index"] for gpu in body["gpus"]] == [0, 1],
    "GET /api/gpu/status/all": lambda body: len(body["data"]["gpus"]) == 2,
    "GET /api/gpu/metrics?gpu_id=0": lambda body: body["data"]["temperature_celsius"] > 0,
    "GET /api/gpu/metrics/history?gpu_id=0&limit=10": lambda body: (
        0 < body["data"]["count"] == len(body["data"]["metrics"]) <= 10
    ),
    "GET /api/gpu/temperature/trend?gpu_id=0&duration=5": lambda body: (
        body["data"]["trend"] in {"rising", "falling", "stable", "varying"}
    ),
    "GET /api/gpu/memory/available?gpu_id=0": lambda body: body["data"]["available_mb"] > 0,
    "GET /api/gpu/throttle/status": lambda body: body["data"]["is_throttled"] is False,
    "GET /api/gpu/config": lambda body: body["data"]["temp_optimal"] == 65,
}
#: Examples that raise an error if they have not had their effect, or have a test of their own.
_CHECKED_THEMSELVES = (
    "with sentinel.hold(",
    "assert monitor.",
    "monitor.on(",
    "monitor.start()",
    "monitor.stop()",
    "sentinel set ",
    "PUT /api/gpu/config ",
    "sentinel run --simulate 3 --gpus 2 --no-api --poll 30s",
)
#: What an agent sends first.
_OF_AGENT = (
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "clientInfo": {"name": "a test", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
)
#: The temperatures of GPU 0 that lead to each callback, and the health that each gives.
HEAT = {
    "state_change": (("optimal", 40), ("throttled", 80)),
    "throttle": (("optimal", 40), ("throttled", 80)),
    "resume": (("throttled", 80), ("optimal", 40)),
    "critical": (("optimal", 40), ("critical", 88)),
    "overheat": (("optimal", 40), ("critical", 95), ("optimal", 40)),
}


def is_healthy(daemon: Daemon, health: str) -> bool:
    return daemon.gpu(0).health == health


def check_effect(daemon: Daemon, example: str) -> None:
    """Check that settings are in force, and the effect of the table."""
    if example.startswith("sentinel set "):
        keys = {setting.flag: setting.key for setting in SETTINGS}
        for word in shlex.split(example)[2:]:
            name, _, text = word.partition("=")
            assert settings(daemon)[keys[f"--{name}"]] == text
    if example.startswith("PUT /api/gpu/config "):
        wanted = json.loads(example.split(" ", 2)[2])
        assert {key: answer_to(daemon, "/config")[key] for key in wanted} == wanted
    if example in EFFECTS:
        eventually(lambda: EFFECTS[example](daemon))


def test_every_effect_belongs_to_an_example_and_every_example_has_one() -> None:
    checked = {*EFFECTS, *OUTPUTS, *PRINTS, *ANSWERS}
    examples = {row.example.strip("`") for row in ROWS}
    assert {*checked, *BEFORE} <= examples
    assert {one for one in examples - checked if not one.startswith(_CHECKED_THEMSELVES)} == set()


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row.example)[:60])
def test_every_example_of_the_document_works(
    daemon: Daemon, monitor: sentinel.Monitor, row: Row, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.fullmatch(r"`[^`]+`", row.example), f"{row.there}: an example is one piece of code"
    example = row.example.strip("`")
    if re.match(r"(GET|POST|PUT|PATCH|DELETE) /", example):
        request(daemon, example)
    elif re.match(r"([A-Z_]+=\S+ )*sentinel( |$)", example):
        printed = command(daemon, example)
        assert re.fullmatch(OUTPUTS.get(example, "(?s).*"), printed.rstrip()), printed
    elif registered := re.match(r'monitor\.on\("(\w+)"', example):
        with sentinel.Monitor() as own:
            exec(example, {"monitor": own})  # noqa: S102
            own.start()
            for health, degrees in HEAT[registered[1]]:
                daemon.host.registry.warm(daemon.host.uuid(0), degrees)
                eventually(partial(is_healthy, daemon, health))
            eventually(lambda: capsys.readouterr().out.strip() != "")
            assert own.errors == 0
    else:
        names = {"sentinel": sentinel, "client": daemon.client, "monitor": monitor}
        with BEFORE.get(example, nullcontext)(daemon):
            exec(example, names)  # noqa: S102
            if example in PRINTS:
                eventually(lambda: prints(example, names, capsys))
        if example in {"monitor.start()", "monitor.stop()"}:
            assert monitor.running is (example == "monitor.start()")
    check_effect(daemon, example)


def prints(example: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> bool:
    """Check what an example prints now."""
    capsys.readouterr()
    exec(example, names)  # noqa: S102
    return re.fullmatch(PRINTS[example], capsys.readouterr().out.strip()) is not None


def request(daemon: Daemon, example: str) -> None:
    method, path, *rest = example.split(" ", 2)
    answer = ask(daemon, method, path, rest[0] if rest else None)
    assert answer.get("success", True) is True
    if example in ANSWERS:
        assert ANSWERS[example](answer), answer


def ask(daemon: Daemon, method: str, path: str, body: str | None = None) -> Any:
    """Send a request that must succeed; return the answer."""
    connection = UnixConnection(str(daemon.places.socket), TIMEOUT_S)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response: HTTPResponse = connection.getresponse()
        answer: Any = json.loads(response.read())
    finally:
        connection.close()
    assert response.status < 400, answer
    return answer


def command(daemon: Daemon, example: str) -> str:
    """Run a command that must succeed; return its standard output."""
    words = shlex.split(os.path.expandvars(example))
    with pytest.MonkeyPatch.context() as monkeypatch:
        while words[0] != "sentinel":
            name, _, value = words.pop(0).partition("=")
            monkeypatch.setenv(name, value)
        if not _APART & set(words):
            # The stand-in of torch cannot run it: the setting counts here, not the stressor.
            words += ["--wait", "0"] if "workload=elementwise" in words else []
            return daemon.run(*words[1:])
        command = [sys.executable, "-m", *words]
        done = run_program(
            *command,
            input="".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in _OF_AGENT),
        )
        assert done.returncode == 0, done
        return done.stdout


def checks_of_a_busy_gpu(daemon: Daemon, words: list[str]) -> int:
    """Run a Sentinel whose GPU is used by a foreign process; count how often it is read."""
    debug = ("--json", "--dry-run", "--log-level", "debug")
    with foreign_process(daemon, 2), daemon.start_command(*words, *debug) as run:
        assert run.stdout is not None
        return [json.loads(line)["event"] for line in run.stdout].count("gpu.checked")


@pytest.mark.long
def test_a_gpu_that_others_use_is_read_as_rarely_as_the_poll_says(daemon: Daemon) -> None:
    (example,) = (row.example.strip("`") for row in ROWS if "--refresh_minutes" in row.there)
    words = shlex.split(example)[1:]
    assert words.count("30s") == 1
    quick, slow = ([poll if word == "30s" else word for word in words] for poll in ("100ms", "10m"))
    # Two at the slow poll: the first ones, before the GPU was known to be used.
    assert checks_of_a_busy_gpu(daemon, slow) <= 2 < checks_of_a_busy_gpu(daemon, quick)


@pytest.mark.long
def test_an_allocation_by_curl_lasts_as_long_as_the_process_that_it_names(daemon: Daemon) -> None:
    daemon.run("start", "--simulate", "3")
    curl = (
        f"curl -sS --unix-socket {shlex.quote(str(daemon.places.socket))}"
        " -H 'content-type: application/json' http://localhost/api/gpu/memory"
    )
    body = '{"allocation_id": "by_curl", "required_mb": 2048, "gpu_id": 0, "pid": '
    script = (
        f"{curl}/allocate -d '{body}'$$'}}'; echo; read -r line;"
        f' {curl}/deallocate -d \'{{"allocation_id": "by_curl"}}\''
    )
    with piped_program("sh", "-c", script) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        assert json.loads(shell.stdout.readline())["success"] is True
        assert [allocation.id for allocation in daemon.client.allocations()] == ["by_curl"]
        shell.stdin.write("\n")
        shell.stdin.flush()
        assert json.loads(shell.stdout.read())["success"] is True
    assert daemon.client.allocations() == ()


# --- completeness ----------------------------------------------------------------------------


#: Every command, flag, call and key of the documents of each system, without the routes.
NAMES = {
    "KeepGPU": """
        GlobalGPUController CudaGPUController keep() release() vram_to_keep --interval
        relu_iterations --busy-threshold --util-threshold --gpu-ids --vram get_platform()
        serve start status stop list-gpus service-stop --job-id --all start_keep list_gpus
        stop_keep --host --port runtime_failed
        /health /api/gpus /api/sessions /api/sessions/{job_id} /rpc keep-gpu-mcp-server
        CONSOLE_LOG_LEVEL FILE_LOG_LEVEL KEEP_GPU_PLATFORM --threshold --no-auto-start --force
    """,
    "GPU Sentinel": """
        gpu_sentinel.py SIGTERM CUDA_VISIBLE_DEVICES alloc_bytes_target chunk_size
        poll_interval_s stress_gpu() nvidia-smi
    """,
    "GPU Occupy": """
        on off status --help --gpus --memory --mem_threshold --wait_minutes --refresh_minutes
        --compute_min --sleep_min --no_compute occupy.log occupy.pid
    """,
    "doma": """
        launch start restart stop shutdown status --log-path --wait-minutes --mem-threshold
        --hold-mem --hold-util --operator-gb --util-eps --max-sleep-time --min-sleep-time
        --inspect-interval --util-samples-num -d -m
    """,
    "GPU Management System": """
        get_gpu_manager is_available get_gpu_status allocate_memory get_available_memory
        deallocate_memory start_monitoring stop_monitoring get_temperature_trend
        should_throttle_processing get_processing_speed_multiplier 'state_change' 'throttle'
        'resume' 'critical' 'overheat' update_config get_gpu_dashboard_data allocation_stats
        temp_optimal temp_normal temp_throttle temp_critical memory_optimal memory_normal
        memory_critical memory_limit_mb memory_reserve_mb monitor_interval history_size
        throttle_cooldown_seconds critical_pause_seconds
    """,
}


@pytest.mark.parametrize("system", NAMES)
def test_every_name_of_each_system_has_a_row(system: str) -> None:
    text = "\n".join(row.there for row in ROWS if row.system == system)
    missing = [
        name for name in NAMES[system].split() if not re.search(rf"(?<!\w){re.escape(name)}", text)
    ]
    assert missing == []


def test_every_route_of_the_gpu_management_system_has_a_row() -> None:
    paths = openapi_document()["paths"]
    served = {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/api/gpu/")
    }
    mapped = {row.there.strip("`") for row in ROWS if row.there.startswith(("`GET", "`P"))}
    mapped = {route for route in mapped if "/api/gpu/" in route}
    assert served == mapped
