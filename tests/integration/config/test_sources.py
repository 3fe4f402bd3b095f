"""A configuration file applies to a running sentinel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.harness.gpu_environment import SimulatedHost
from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually

GIB = 2**30
FILE = """
memory.target = "2GiB"
workload = "hold"
poll = "200ms"

[gpu.1]
memory.target = "3GiB"

[gpu.9]
workload = "gemm"
"""

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


def run_command(host: SimulatedHost, *arguments: str, **variables: str) -> tuple[int, str, str]:
    words = [sys.executable, "-m", "sentinel", *arguments]
    done = run_program(*words, env=host.environment(**variables))
    return done.returncode, done.stdout, done.stderr


def test_each_gpu_gets_its_own_settings_from_the_file(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    file = tmp_path / "site.toml"
    file.write_text(FILE)
    with simulated.sentinel(2, "--config", str(file)) as process:
        held = [process.wait_for("stressor.ready", gpu=gpu)["held"] for gpu in (0, 1)]
        assert held == [2 * GIB, 3 * GIB]
        assert process.wait_for("config.unused")["source"].startswith(f"{file}: gpu.9.")
        assert process.stop() == 0


def test_a_stressor_with_yield_how_ask_exits_for_a_newcomer(simulated: SimulatedHost) -> None:
    flags = ("--yield", "ask", "--poll", "200ms", "--workload", "hold", "--memory", "20%")
    with simulated.sentinel(1, *flags) as process:
        process.wait_for("stressor.ready")
        with simulated.job(share=0.5) as newcomer:
            assert newcomer.got_memory()
            assert process.wait_for("gpu.handed_over")["kill_s"] is None
        assert "stressor.failed" not in process.names()


def test_a_dry_run_beside_a_daemon_takes_no_lock_and_starts_no_stressor(
    simulated: SimulatedHost,
) -> None:
    with simulated.sentinel(2, "--poll", "200ms", "--dry-run", "--explain") as dry:
        assert dry.wait_for("gpu.verdict", gpu=1)["rule"] in {"unknown", "confirm", "idle"}
        with simulated.sentinel([1], "--poll", "200ms", "--workload", "hold") as real:
            real.wait_for("stressor.ready", gpu=1)
            (stressor,) = real.stressors()
            seen = [stressor.pid]
            eventually(
                lambda: any([p["pid"] for p in e.get("processes", ())] == seen for e in dry.events)
            )
        assert not dry.stressors()
        assert "stressor.starting" not in dry.names()
        assert dry.stop() == 0


def test_config_show_prints_an_equivalent_file(simulated: SimulatedHost, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(FILE)
    flags = ("--config", str(file), "--rearm", "7s")
    code, file_text, errors = run_command(simulated, "config", "show", "--offline", *flags)
    assert (code, errors) == (0, "")
    assert 'rearm = "7s"                      # --rearm' in file_text
    copy = tmp_path / "copy.toml"
    copy.write_text(file_text)
    assert run_command(simulated, "config", "check", str(copy))[0] == 0

    def values(*from_file: str) -> object:
        shown_settings = json.loads(
            run_command(simulated, "config", "show", "--offline", "--json", *from_file)[1]
        )
        rows = [
            *shown_settings["settings"],
            *(row for rows in shown_settings["gpu"].values() for row in rows),
        ]
        return [(row["key"], row["value"]) for row in rows]

    assert values("--config", str(copy)) == values(*flags)
