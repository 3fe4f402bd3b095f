"""Every row of docs/coming-from.md has an example that works on simulated GPUs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import pytest

import sentinel
from tests.harness.api_harness import UnixConnection
from tests.harness.daemon_harness import Daemon, isolated_daemon, settings_file
from tests.harness.gpu_environment import ROOT, SimulatedHost, replace_torch
from tests.harness.openapi_document import openapi_document
from tests.harness.timing import TIMEOUT_S

DOCUMENT = ROOT / "docs" / "coming-from.md"

#: The daemon's settings; `sentinel restart` removes none of them.
FILE = 'gpus = ["0", "1"]\nrearm = "300ms"\nworkload = "hold"\n'
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
        if line.startswith("## "):
            system = line.removeprefix("## ")
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
        command(daemon, example)
    else:
        exec(example, {"sentinel": sentinel, "client": daemon.client, "monitor": monitor})  # noqa: S102


def request(daemon: Daemon, example: str) -> None:
    method, path, *rest = example.split(" ", 2)
    body = rest[0] if rest else None
    connection = UnixConnection(str(daemon.places.socket), TIMEOUT_S)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response: HTTPResponse = connection.getresponse()
        answer: Any = json.loads(response.read())
    finally:
        connection.close()
    assert response.status < 400, answer
    assert answer.get("success", True) is True


def command(daemon: Daemon, example: str) -> None:
    words = shlex.split(os.path.expandvars(example))
    with pytest.MonkeyPatch.context() as monkeypatch:
        while words[0] != "sentinel":
            name, _, value = words.pop(0).partition("=")
            monkeypatch.setenv(name, value)
        if not _APART & set(words):
            daemon.run(*words[1:])
            return
        done = subprocess.run(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done


# --- completeness ----------------------------------------------------------------------------


#: Every command, flag, call and key of the documents of each system, without the routes.
NAMES = {
    "KeepGPU": """
        GlobalGPUController CudaGPUController keep() release() vram_to_keep interval
        matmul_iterations busy_threshold parse_size setup_logger get_platform()
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
        --inspect-interval --util-samples-num
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
    assert served == mapped
