"""``$SENTINEL_SIM_DIR`` selects simulated GPUs for every command, as ``--simulate`` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.host.simulation import Registry
from tests.harness.command_line import CommandLine
from tests.harness.parameters import mostly_long


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the variable, which does not exist yet."""
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "gpus"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SENTINEL_GOLDENS", raising=False)
    return tmp_path / "gpus"


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Provide the command line, with what its child processes print."""
    return CommandLine(capfd)


@pytest.mark.long
def test_commands_use_the_gpus_of_the_variable(folder: Path, cli: CommandLine) -> None:
    uuids = [gpu.uuid for gpu in Registry.create(folder, 3).gpus()]
    for words in (["check"], ["run", "--list"]):
        assert [gpu["uuid"] for gpu in cli.json(*words, "--json")["gpus"]] == uuids
    doctor = cli("doctor", "--json", code=None)
    assert doctor.code in {0, 1}
    assert any("simulated" in line["found"] for line in json.loads(doctor.out)["lines"])


def test_a_gpu_that_the_environment_hides_is_refused_with_the_reason(
    folder: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not folder.exists()
    for value, why in [
        ("0,1", "CUDA_VISIBLE_DEVICES=0,1 hides it"),
        ("0-2", "CUDA_VISIBLE_DEVICES=0-2: CUDA reads '0-2' as 0; write numbers with commas"),
    ]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        refused = cli("run", "--simulate", "3", "--gpus", "2", "--list", code=4)
        assert refused.err.startswith(f"sentinel: --gpus: no GPU matches '2': {why}")
        assert refused.err.count("CUDA_VISIBLE_DEVICES") == 1
    refused = cli("run", "--simulate", "3", "--gpus", "7", "--list", code=4)
    assert "CUDA_VISIBLE_DEVICES" not in refused.err


def test_the_golden_checksums_are_those_of_the_variable(folder: Path, cli: CommandLine) -> None:
    assert Path(cli.json("workloads", "goldens", "list", "--json")["file"]).parent == folder


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check", 2),
        ("doctor", 2),
        ("run --list", 2),
        ("start", 2),
        ("workloads selftest", 2),
        ("workloads try gemm", 2),
        ("burnin --level screen", 2),
    ],
)
def test_no_command_takes_real_gpus_for_simulated_ones_that_are_missing(
    folder: Path, cli: CommandLine, command: str, code: int
) -> None:
    error = cli(*command.split(), code=code).err
    assert f"SENTINEL_SIM_DIR={folder} has no simulated GPUs" in error
    assert "--simulate N" in error
    assert not folder.exists()


@mostly_long(
    "command, chosen",
    [
        ("check --strict", "--simulate 1"),
        ("burnin --strict --show-plan", "--simulate 1"),
        ("fleet burnin --strict --engine clush --nodelist a --report x", ""),
        ("health --strict", "--simulated"),
        ("health --require pass", "--simulated"),
    ],
    quick=2,
)
def test_nothing_is_accepted_where_only_the_variable_chose_simulated_gpus(
    folder: Path, cli: CommandLine, command: str, chosen: str
) -> None:
    """It may be left from a trial: a script that accepts nodes would accept any."""
    Registry.create(folder, 1)
    refusal = "SENTINEL_SIM_DIR is set: these are simulated GPUs, accepted only with --simulate"
    assert refusal in cli(*command.split(), code=2).err
    if chosen:
        assert "are simulated" not in cli(*command.split(), *chosen.split(), code=None).err


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "figures", "code", "words"),
    [
        ("error", {}, 2, "a simulated error"),
        ("lost", {}, 2, "fell off the bus"),
        ("hang", {}, 2, "memory has not returned"),
        (None, {"mig": True}, 1, "this GPU is not occupied: sentinel does not support MIG"),
        (None, {}, 0, "sentinel would use all of them"),
    ],
)
def test_the_doctor_reads_simulated_gpus_as_a_daemon_does(
    folder: Path,
    cli: CommandLine,
    fault: str | None,
    figures: dict[str, bool],
    code: int,
    words: str,
) -> None:
    registry = Registry.create(folder, 2)
    registry.inject(registry.gpus()[1].uuid, fault)
    registry.inject_figures(registry.gpus()[1].uuid, figures)
    shown = " ".join(cli("doctor", "--simulate", "2", code=code).out.split())
    assert words in shown
    assert ("GPU 1 is never occupied" in shown) == (code > 0)


@pytest.mark.parametrize(
    ("command", "chosen"),
    [
        ("check --npd", "--simulate 1"),
        ("health", "--simulated"),
        ("burnin --show-plan", "--simulate 1"),
    ],
)
def test_a_verdict_says_where_only_the_variable_chose_simulated_gpus(
    folder: Path, cli: CommandLine, command: str, chosen: str
) -> None:
    Registry.create(folder, 1)
    warning = "sentinel: warning: SENTINEL_SIM_DIR is set: these are simulated GPUs\n"
    assert cli(*command.split(), code=None).err == warning
    assert not cli(*command.split(), *chosen.split(), code=None).err
