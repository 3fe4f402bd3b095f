"""``sentinel workloads selftest`` reports the results of its trials, and can fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sentinel.cli.main import run_command_line
from sentinel.config.build import build_config
from sentinel.core.step import Event
from sentinel.diagnostics import selftest
from sentinel.diagnostics.selftest import CLEAN, Trials, run_selftest
from sentinel.errors import ExitCode, IncompleteError, SelftestError, SentinelError
from sentinel.host.gpu_locks import GpuLocks
from sentinel.host.simulation import Registry
from sentinel.protocol.stressor import SelftestResult
from sentinel.stressor.matmul import DTYPES
from sentinel.supervisor.discovery import Options
from sentinel.supervisor.stressor_pool import MAX_MESSAGES_PER_TICK
from tests.harness.gpu_environment import GpuHost, SimulatedHost
from tests.harness.sentinel_process import eventually, gone
from tests.harness.timing import TIMEOUT_S

#: The held memory.
TWO_GIB = 2 * 2**30

#: More results than a test computes.
ENDLESS = "100000000"


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Registry.create(tmp_path, 1)


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    code = run_command_line(["workloads", "selftest", "--simulate", "1", *flags])
    out, err = capsys.readouterr()
    return code, out, err


@contextmanager
def begun(host: GpuHost, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run a selftest of the first GPU in its own process; check that all its processes end."""
    simulated = isinstance(host, SimulatedHost)
    where = ("--simulate", "1") if simulated else ("--gpus", str(host.index(0)))
    process = subprocess.Popen(
        [sys.executable, "-m", "sentinel", "workloads", "selftest", *where, *flags],
        env=host.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        family = []
        try:
            yield process
        finally:
            if process.poll() is None:
                family = children(process)
                process.kill()
            process.wait(TIMEOUT_S)
            eventually(lambda: all(map(gone, family)))


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """List all descendants of a selftest: probe, stressor and resource tracker."""
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.long
def test_exactly_the_flipped_bits_are_found(
    capsys: pytest.CaptureFixture[str], registry: Registry
) -> None:
    chosen = [word for name in DTYPES for word in ("--dtype", name)]
    code, out, _ = run(capsys, "--flips", "3", "--rounds", "10", *chosen, "--json")
    report = json.loads(out)
    assert (code, report["well"], report["simulated"]) == (0, True, True)
    assert report["incomplete"] is None
    places = ["result", "memory", "input", "reference", "clean"]
    trials = [(trial["dtype"], trial["place"]) for trial in report["trials"]]
    assert trials == [(name, place) for name in DTYPES for place in places]
    for trial in report["trials"]:
        if trial["place"] == "clean":
            assert trial["tried"] >= 10
            assert trial["found"] == 0
        else:
            assert trial["tried"] == trial["found"] == 3
    assert registry.memory(report["gpu"]).used == 0


@pytest.mark.long
def test_a_check_that_misses_flipped_bits_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_WORKLOAD", "bad_workloads:discards_its_checks")
    code, out, _ = run(capsys, "--flips", "2", "--rounds", "10", "--dtype", "fp32")
    assert code == 1
    results, memory, inputs, *_, summary = out.splitlines()
    assert " ".join(results.split()) == "FAILED fp32 result 0 of 2 flipped bits found"
    assert memory.startswith("FAILED")
    assert inputs.startswith("ok"), "those have checksums of their own"
    assert "4 of 8 flipped bits found, 0 false alarms" in summary


@pytest.mark.long
def test_a_gpu_in_use_is_not_occupied(
    capsys: pytest.CaptureFixture[str], registry: Registry
) -> None:
    newcomer = registry.attach(registry.gpus()[0].uuid)
    assert newcomer.allocate(2**30)
    try:
        code, out, err = run(capsys, "--json")
    finally:
        newcomer.close()
    report = json.loads(out)
    assert (report["well"], report["trials"]) == (False, [])
    assert report["incomplete"] in err
    assert code == 3
    assert "GPU 0 is not idle: used by foreign processes: " in err
    assert f"(pid {os.getpid()})" in err
    assert "Nothing was started" in err


@pytest.mark.long
def test_a_newcomer_gets_the_gpu_and_the_selftest_names_it(host: GpuHost) -> None:
    with begun(host, "--dtype", "fp32", "--flips", "2", "--rounds", ENDLESS) as process:
        assert process.stdout is not None
        lines = [" ".join(process.stdout.readline().split()) for _ in range(4)]
        assert lines[-1] == "ok fp32 reference 2 of 2 flipped bits found"
        family = children(process)
        assert len(family) >= 2
        with host.job(stay=TIMEOUT_S) as newcomer:
            assert newcomer.got_memory()
            out, err = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 3, err
            eventually(lambda: all(map(gone, family)))
    assert out == ""
    assert "the selftest is incomplete: " in err
    assert "; before that, 8 of 8 flipped bits found, 0 false alarms in 0 results" in err
    if isinstance(host, SimulatedHost):  # a real driver may not list every process
        assert re.search(rf"the GPU was needed by \S+ \(pid {newcomer.pid}\);", err)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_selftest_and_completed_trials_are_reported(
    simulated: SimulatedHost, number: signal.Signals
) -> None:
    with begun(simulated, "--rounds", ENDLESS, "--json") as process:
        eventually(lambda: simulated.held() > TWO_GIB)
        family = children(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 3, err
        eventually(lambda: all(map(gone, family)))
    report = json.loads(out)
    assert report["well"] is False
    assert f"it was ended by {number.name}; " in report["incomplete"]
    assert report["incomplete"] in err
    assert all(trial["well"] for trial in report["trials"])
    assert simulated.empty()


@pytest.mark.long
def test_a_terminal_without_a_reader_does_not_delay_a_newcomer(registry: Registry) -> None:
    uuid = registry.gpus()[0].uuid
    newcomer = registry.attach(uuid)

    def tell(_: SelftestResult) -> None:
        newcomer.allocate(2**26)
        eventually(
            lambda: registry.memory(uuid).used < TWO_GIB
        )  # the reporting thread blocks until then

    try:
        options = Options(config=build_config(()), simulate=1)
        outcome = run_selftest(options, Trials(flips=1, rounds=int(ENDLESS)), tell)
    finally:
        newcomer.close()
    assert isinstance(outcome.error, IncompleteError)
    assert "the GPU was needed by" in outcome.error.what


@pytest.mark.long
def test_only_the_first_gpu_is_held(
    capsys: pytest.CaptureFixture[str], registry: Registry, tmp_path: Path
) -> None:
    _, second = Registry.create(tmp_path, 2).gpus()
    locks = GpuLocks([second], (tmp_path / "own",), (tmp_path / "locks",))
    try:
        quick = ("--flips", "1", "--rounds", "1", "--dtype", "int8")
        assert run(capsys, "--simulate", "2", *quick)[0] == 0
    finally:
        locks.release()


@pytest.mark.parametrize(
    ("found", "error", "code"),
    [
        (3, None, ExitCode.OK),
        (2, None, ExitCode.FAIL),
        (3, IncompleteError("a newcomer came"), ExitCode.NOT_RUNNING),
        (2, IncompleteError("a newcomer came"), ExitCode.FAIL),
        (3, SelftestError("it crashed"), ExitCode.FAIL),
    ],
)
def test_a_missed_bit_counts_even_before_a_newcomer(
    found: int, error: SentinelError | None, code: ExitCode
) -> None:
    proofs = [
        SelftestResult(dtype="fp32", place="result", tried=3, found=found),
        SelftestResult(dtype="fp32", place=CLEAN, tried=9, found=0),
    ]
    assert selftest._code(proofs, error) is code


def test_all_messages_of_a_selftest_stay_below_the_flood_limit() -> None:
    places, besides = 5, 5  # CreatingContext, Ready, Proved, and a Progress each second
    assert places * len(DTYPES) + besides < MAX_MESSAGES_PER_TICK


def test_a_stressor_that_cannot_be_killed_is_not_waited_for() -> None:
    listener = selftest._Listener("work", lambda _: None)
    assert listener.take_signals((None, False)) == (None, False)
    fields = {"pid": 1, "since_s": 10.0}
    listener.take_event(Event(name="stressor.unkillable", at=1.0, gpu="GPU-1", fields=fields))
    why, _ = listener.take_signals((None, False))
    assert why is not None


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_fault_that_was_not_injected_ends_the_selftest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_WORKLOAD", "bad_workloads:finds_a_fault_in_a_selftest")
    code, _, err = run(capsys)
    assert code == 1
    assert "a result of bf16 was wrong at (5, 9) although no bit was flipped in it" in err


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_failed_stressor_ends_the_selftest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_WORKLOAD", "bad_workloads:fails_in_a_selftest")
    code, out, err = run(capsys, "--json")
    assert (code, out) == (1, "")
    assert (
        "the stressor failed: workload bad_workloads:fails_in_a_selftest raised ValueError: boom"
        in err
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--flips", "0"), "--flips: 0 is out of range"),
        (("--rounds", "-1"), "--rounds: -1 is out of range"),
        (("--dtype", "fp32,size=64"), "--dtype: 'fp32,size=64' is not a number format"),
        pytest.param(
            ("--dtype", "fp9"),
            "there is no dtype 'fp9'. There are bf16, fp16,",
            marks=pytest.mark.long,
        ),
        (("--gpus", "7"), "7"),
    ],
)
def test_an_impossible_request_is_reported(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, str], words: str
) -> None:
    code, out, err = run(capsys, *flags)
    assert code in {2, 4}
    assert out == ""
    assert words in err
