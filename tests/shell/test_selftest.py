"""``sentinel selftest``: it says what its checks find, and can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel import selftest
from sentinel.cli.main import run_command_line
from sentinel.simulation import Registry
from sentinel.stressor.products import DTYPES


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Registry.create(tmp_path, 1)


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    code = run_command_line(["selftest", "--simulate", "1", *flags])
    out, err = capsys.readouterr()
    return code, out, err


def test_every_flipped_bit_is_found_and_nothing_else(
    capsys: pytest.CaptureFixture[str], registry: Registry
) -> None:
    code, out, _ = run(capsys, "--flips", "3", "--rounds", "200", "--json")
    said = json.loads(out)
    assert (code, said["well"], said["simulated"]) == (0, True, True)
    places = ["result", "memory", "input", "reference", "clean"]
    trials = [(trial["dtype"], trial["place"]) for trial in said["trials"]]
    assert trials == [(name, place) for name in DTYPES for place in places]
    for trial in said["trials"]:
        if trial["place"] == "clean":
            assert trial["tried"] >= 200
            assert trial["found"] == 0
        else:
            assert trial["tried"] == trial["found"] == 3
    assert registry.memory(said["gpu"]).used == 0


def test_a_check_that_finds_nothing_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_WORKLOAD", "misbehaving:blind")
    code, out, _ = run(capsys, "--flips", "2", "--rounds", "10", "--dtype", "fp32")
    assert code == 1
    results, memory, inputs, *_, summary = out.splitlines()
    assert " ".join(results.split()) == "FAILED fp32 result 0 of 2 flipped bits found"
    assert memory.startswith("FAILED")
    assert inputs.startswith("ok"), "those have checksums of their own"
    assert "4 of 8 flipped bits found, 0 false alarms" in summary


def test_a_gpu_that_somebody_uses_is_left_alone(
    capsys: pytest.CaptureFixture[str], registry: Registry
) -> None:
    somebody = registry.attach(registry.gpus()[0].uuid)
    assert somebody.allocate(2**30)
    try:
        code, _, err = run(capsys)
    finally:
        somebody.close()
    assert code == 4
    assert "GPU 0 is not idle" in err


def test_a_gpu_that_is_wrong_of_its_own_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_WORKLOAD", "misbehaving:errs")
    code, _, err = run(capsys)
    assert code == 1
    assert "a result of bf16 was wrong at (5, 9), and nothing had been flipped in it" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--flips", "0"), "--flips: 0 is out of range"),
        (("--rounds", "-1"), "--rounds: -1 is out of range"),
        (("--dtype", "fp9"), "there is no dtype 'fp9'. There are bf16, fp16,"),
        (("--gpu", "7"), "7"),
    ],
)
def test_what_cannot_be_is_named(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, str], words: str
) -> None:
    code, out, err = run(capsys, *flags)
    assert code in {2, 4}
    assert out == ""
    assert words in err
