"""The condition of a node: what is written of it, and the plugin that reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.kubernetes_cluster import DEPLOY, check_words
from tests.harness.programs import run_program, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

PLUGIN = DEPLOY / "node-problem-detector" / "gpu-burnin.sh"
WRITER = DEPLOY / "components" / "node-condition" / "write-condition.sh"


def plugin(file: Path) -> tuple[int, str]:
    done = run_program("sh", PLUGIN, file)
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert len(line) <= 80
    return done.returncode, line


@pytest.mark.parametrize(
    ("written", "code", "line"),
    [
        ("0 8 GPUs passed the last burn-in\n", 0, "8 GPUs passed the last burn-in"),
        ("1 GPU 1 GPU-952937bc: FAIL standard\n", 1, "GPU 1 GPU-952937bc: FAIL standard"),
        ("2 no burn-in is known\n", 2, "no burn-in is known"),
        ("127 sentinel health failed\n", 2, "sentinel health failed"),
        ("1\n", 2, ""),
        ("0\n", 2, ""),
        ("", 2, ""),
        (f"1 {'x' * 300}\n", 1, "x" * 80),
    ],
)
def test_the_plugin_answers_what_was_written(
    tmp_path: Path, written: str, code: int, line: str
) -> None:
    (tmp_path / "npd").write_text(written)
    assert plugin(tmp_path / "npd") == (code, line)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_plugin_does_not_know_what_it_cannot_read(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    done = run_program(shell, PLUGIN, tmp_path)
    assert (done.returncode, done.stderr) == (2, "")


def test_the_plugin_does_not_know_without_an_answer(tmp_path: Path) -> None:
    assert plugin(tmp_path / "npd")[0] == 2


@pytest.mark.parametrize("written", [1, 2**32])
def test_an_old_answer_and_one_of_the_future_say_nothing(tmp_path: Path, written: int) -> None:
    (tmp_path / "npd").write_text("0 good\n")
    os.utime(tmp_path / "npd", (written, written))
    code, line = plugin(tmp_path / "npd")
    assert code == 2
    assert line.endswith("s old")


@pytest.mark.parametrize(
    ("answer", "code", "known", "line"),
    [
        *(('echo "$@"', code, code, "health --npd") for code in (0, 1, 2)),
        # Python that cannot start has no line, and the code of a faulty GPU.
        *(("", code, 2, "sentinel health failed") for code in (0, 1)),
    ],
)
def test_the_writer_writes_again_and_again_and_ends_at_once(
    tmp_path: Path, answer: str, code: int, known: int, line: str
) -> None:
    file, calls = tmp_path / "npd", tmp_path / "calls"
    write_script(tmp_path / "sentinel", f"echo x >> {calls}\n{answer}\nexit {code}")
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CONDITION_FILE": str(file),
        "CONDITION_INTERVAL": "0.1",
    }
    with subprocess.Popen(["sh", str(WRITER)], env=environment) as process:
        eventually(lambda: calls.exists() and len(calls.read_text()) > 4)
        assert plugin(file) == (known, line)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_the_monitors_are_for_the_same_condition_and_name_commands_that_exist() -> None:
    found = [
        json.loads((PLUGIN.parent / f"sentinel-monitor{name}.json").read_text())
        for name in ("", "-host")
    ]
    for one in found:
        (condition,), (rule,) = one["conditions"], one["rules"]
        assert condition["type"] == rule["condition"] == "GpuBurnInFailed"
        assert one["pluginConfig"]["max_output_length"] == 80
    inside, host = (one["rules"][0] for one in found)
    assert [Path(word).name for word in inside["args"]] == [PLUGIN.name]
    (line,) = re.findall(r"/usr/bin/(sentinel [^;)]*?) 2>", host["args"][1])
    check_words(line.split())


@pytest.mark.parametrize(
    ("answer", "code", "known"),
    [("echo good", 0, 0), ("echo bad", 1, 1), ("echo what", 2, 2), ("", 1, 2), ("", 127, 2)],
)
def test_on_the_host_no_answer_is_no_fault(
    tmp_path: Path, answer: str, code: int, known: int
) -> None:
    command = write_script(tmp_path / "sentinel", f"{answer}\nexit {code}")
    (rule,) = json.loads((PLUGIN.parent / "sentinel-monitor-host.json").read_text())["rules"]
    words = [word.replace("/usr/bin/sentinel", str(command)) for word in rule["args"]]
    done = run_program(rule["path"], *words)
    assert (done.returncode, done.stderr) == (known, "")
