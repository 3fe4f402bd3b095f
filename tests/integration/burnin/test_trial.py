"""``workloads try`` and ``workloads selftest``: one workload on one GPU, judged by its record."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.burnin.trial import HostMeter, TrialRequest, run_trial
from sentinel.cli.main import run_command_line
from sentinel.cli.tools import trial
from sentinel.cli.tools.trial import CLEAN, selftest_code
from sentinel.client.hold import temporary_folder
from sentinel.errors import ExitCode, IncompleteError, SelftestError, SentinelError
from sentinel.host.gpu_locks import GpuLocks
from sentinel.host.simulation import Registry
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import SelftestResult
from sentinel.stressor.matmul import DTYPES
from sentinel.supervisor.stressor_pool import MAX_MESSAGES_PER_TICK
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import TESTS, GpuHost, SimulatedHost
from tests.harness.narrowing import not_none
from tests.harness.programs import started_program
from tests.harness.sentinel_process import eventually, gone
from tests.harness.timing import TIMEOUT_S

#: The memory that a selftest holds.
TWO_GIB = 2 * 2**30

#: A selftest with more results than a test computes.
ENDLESS = ("--rounds", "100000000", "--flips", "2", "--dtype", "fp32")


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """List all descendants of a trial: its daemon, the probe and the stressor."""
    return psutil.Process(process.pid).children(recursive=True)


@contextlib.contextmanager
def begun(host: GpuHost, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command for the first GPU in its own process; check that all its processes end."""
    simulated = isinstance(host, SimulatedHost)
    where = ("--simulate", "1") if simulated else ("--gpus", str(host.index(0)))
    words = (sys.executable, "-m", "sentinel", "workloads", *arguments, *where)
    with started_program(*words, env=host.environment(), stderr=subprocess.PIPE) as process:
        family = []
        try:
            yield process
        finally:
            if process.poll() is None:
                family = children(process)
                process.kill()
            process.wait(TIMEOUT_S)
            eventually(lambda: all(map(gone, family)))


def test_the_folder_of_a_trial_that_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sentinel.burnin.trial.record_run", lambda *_, **__: os._exit(1))
    gpu = Gpu(uuid="GPU-0", index=0, name="", pci_bus_id="", memory_total=0)
    child = os.fork()
    if not child:
        run_trial(TrialRequest(workload="hold", seconds=1.0, gpu=gpu, simulate=1))
    os.waitpid(child, 0)
    assert list(tmp_path.iterdir())
    with temporary_folder() as (folder, _):
        assert list(tmp_path.iterdir()) == [folder]


# --- try -------------------------------------------------------------------------------------


def try_on(host: GpuHost, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a trial on the first GPU; return its exit code and figures."""
    with begun(host, "try", "--json", *arguments) as process:
        out, err = process.communicate(timeout=3 * TIMEOUT_S)
    assert out, err
    figures: dict[str, Any] = json.loads(out)
    return process.returncode, figures


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_good_workload_passes_with_its_measurements(host: GpuHost) -> None:
    # The note comes with the first progress, which is late on a busy host.
    code, figures = try_on(host, "bad_workloads:WellBehaved:rest=0.01", "--for", "5s")
    assert (code, figures["result"], figures["problems"]) == (0, "well", []), figures
    assert figures["incomplete"] is None
    assert figures["index"] == host.index(0)
    assert figures["held"] > host.total() // 2
    assert figures["start_s"] > 0
    assert figures["ran_s"] >= 2
    assert figures["iterations_per_s"] > 0
    assert figures["grown"] == 0
    assert figures["note"] == "resting 0.01 s at a time"
    assert figures["longest_quantum_s"] is not None
    assert 0 <= figures["host_cores"] < 2
    assert figures["host_memory"] > 2**23
    assert figures["killed"] is False
    assert host.empty()


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_too_long_quantum_and_an_ignored_stop_are_reported(host: GpuHost) -> None:
    code, figures = try_on(host, "bad_workloads:queues_long_quanta", "--for", "6s")
    assert code == 1
    assert figures["result"] == "misbehaved"
    kinds = [problem["kind"] for problem in figures["problems"]]
    assert kinds == ["long_quantum", "slow_stop"]
    assert all(problem["do"] for problem in figures["problems"])
    assert figures["longest_quantum_s"] >= 0.2
    assert figures["killed"] is True
    assert figures["checks"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_memory_growth_after_ready_is_reported(simulated: SimulatedHost) -> None:
    code, figures = try_on(simulated, "bad_workloads:grows:after=40", "--for", "30s")
    assert code == 1
    (problem,) = figures["problems"]
    assert problem["kind"] == "memory_growth"
    assert "grew by 64 MiB after it was ready" in problem["what"]
    assert "before the second call of ctx.pace()" in problem["do"]
    assert figures["grown"] == 64 * 2**20


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_the_settings_of_the_host_do_not_apply_to_a_trial(
    simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_WORKLOAD", "nothing-of-this-name")
    code, figures = try_on(simulated, "bad_workloads:refuses_its_gpu", "--for", "2s")
    assert (code, figures["result"]) == (2, "unusable")
    assert [problem["kind"] for problem in figures["problems"]] == ["unusable"]


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_workload_that_reports_only_bytes_has_a_rate(simulated: SimulatedHost) -> None:
    with begun(simulated, "try", "bad_workloads:counts_bytes", "--for", "5s") as process:
        out, err = process.communicate(timeout=3 * TIMEOUT_S)
    assert re.search(r"\n    work +[\d.]+ kB/s for \d.*; rates of a simulated GPU", out), out + err


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_who_reads_a_pipe_is_told_why_a_workload_is_not_ready(simulated: SimulatedHost) -> None:
    with begun(simulated, "try", "bad_workloads:never_paces") as process:
        assert process.stderr is not None
        late, told = process.stderr.readline(), process.stderr.readline()
    assert "still starting after 10" in late
    assert "preparing, and doing the first work" in late
    assert "it has not called ctx.pace() twice" in told


@pytest.mark.long
def test_a_trial_on_a_gpu_in_use_is_incomplete(simulated: SimulatedHost) -> None:
    with simulated.job(share=0.5, stay=60.0) as job:
        assert job.got_memory()
        code, figures = try_on(simulated, "hold", "--for", "2s")
    assert code == 3
    assert figures["result"] == "incomplete"
    assert f"(pid {job.pid})" in figures["incomplete"]
    assert figures["gpu"] is None


def test_the_use_of_the_host_is_measured_until_the_process_ends() -> None:
    meter = HostMeter()
    hold = f"b = b'1' * {50 * 2**20}; print(1, flush=True)\nwhile True: pass"
    with started_program(sys.executable, "-c", hold) as process:
        not_none(process.stdout).readline()
        pid = process.pid
        assert meter.result() is None
        meter.sample(pid, 100.0)
        assert meter.result() is None, "one sample has no duration"
        begun = sum(psutil.Process(pid).cpu_times()[:2])
        eventually(lambda: sum(psutil.Process(pid).cpu_times()[:2]) >= begun + 0.3)
        meter.sample(pid, 101.0)
    use = not_none(meter.result())
    assert use.cores > 0.29  # sums of hundredths may round down
    assert use.memory >= 50 * 2**20
    meter.sample(pid, 102.0)
    assert meter.result() == use, "it keeps its last sample"


# --- selftest --------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    paths = (os.environ.get("PYTHONPATH", ""), str(TESTS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    return Registry.create(tmp_path, 1)


def selftest(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    code = run_command_line(["workloads", "selftest", "--simulate", "1", *flags])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("registry")
def test_a_gpu_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = selftest(capsys, "--gpus", "1")
    assert (code, err.splitlines()[0]) == (4, "sentinel: no GPU matches '1'")


@pytest.mark.long
def test_exactly_the_injected_faults_are_found(
    capsys: pytest.CaptureFixture[str], registry: Registry
) -> None:
    chosen = [word for name in DTYPES for word in ("--dtype", name)]
    code, out, _ = selftest(capsys, "--flips", "3", "--rounds", "10", *chosen, "--json")
    report = json.loads(out)
    assert (code, report["well"], report["simulated"]) == (0, True, True)
    assert report["incomplete"] is None
    places = ["result", "memory", "input", "reference", "clean"]
    trials = [(trial["dtype"], trial["place"]) for trial in report["trials"]]
    before_ready = [(name, "comparison") for name in DTYPES]
    assert trials == before_ready + [(name, place) for name in DTYPES for place in places]
    for found in report["trials"]:
        tried, kinds = found["tried"], found["tried_by_kind"]
        assert sum(kinds.values()) == (0 if found["place"] == "clean" else tried)
        assert sum(found["found_by_kind"].values()) == (0 if not kinds else found["found"])
        if found["place"] == "clean":
            assert (tried, found["found"]) == (10, 0)
        elif found["place"] == "comparison":
            assert found["found"] == tried - found["rounded"]
            assert {"partial sum", "every 32nd element"} <= kinds.keys()
        else:
            assert tried == found["found"] == 3
    assert registry.memory(report["gpu"]).used == 0


@pytest.mark.long
def test_the_faults_of_units_are_found(
    capsys: pytest.CaptureFixture[str], registry: Registry
) -> None:
    chosen = ("--dtype", "sin", "--dtype", "atomics", "--dtype", "gather")
    code, out, _ = selftest(capsys, "--flips", "3", "--rounds", "10", *chosen, "--json")
    report = json.loads(out)
    assert (code, report["well"]) == (0, True)
    places = ["result", "memory", "input", "reference", "clean"]
    trials = [(trial["dtype"], trial["place"]) for trial in report["trials"]]
    computed = [(name, place) for name in ("sin", "atomics") for place in places]
    before_ready = [(name, "comparison") for name in ("sin", "atomics")]
    assert trials == [*before_ready, *computed, ("gather", "memory"), ("gather", "clean")]
    code, _, err = selftest(capsys, "--dtype", "fp4")
    assert code == 2
    assert "selftest: fp4: not by this torch on this card" in err
    assert registry.memory(report["gpu"]).used == 0


@pytest.mark.long
def test_a_check_that_misses_faults_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    monkeypatch.setattr(trial, "_SELFTEST", "bad_workloads:discards_its_checks")
    code, out, _ = selftest(capsys, "--flips", "2", "--rounds", "10", "--dtype", "fp32")
    assert code == 1
    comparison, results, memory, inputs, *_, summary = out.splitlines()
    assert comparison.split()[:3] == ["ok", "fp32", "comparison"]
    assert " ".join(results.split()) == "FAILED fp32 result 0 of 2 faults found"
    assert memory.startswith("FAILED")
    assert inputs.startswith("ok"), "those have checksums of their own"
    proof = not_none(re.search(r"(\d+) of (\d+) faults found, 0 false alarms", summary))
    assert int(proof[2]) - int(proof[1]) == 4


@pytest.mark.long
def test_a_gpu_in_use_is_not_occupied(
    capsys: pytest.CaptureFixture[str], registry: Registry
) -> None:
    newcomer = registry.attach(registry.gpus()[0].uuid)
    assert newcomer.allocate(2**30)
    try:
        code, out, err = selftest(capsys, "--json")
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
    with begun(host, "selftest", *ENDLESS) as process:
        lines = [" ".join(not_none(process.stdout).readline().split()) for _ in range(5)]
        assert lines[-1] == "ok fp32 reference 2 of 2 faults found"
        family = children(process)
        assert len(family) >= 2
        with host.job(stay=TIMEOUT_S) as newcomer:
            assert newcomer.got_memory()
            out, err = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 3, err
            eventually(lambda: all(map(gone, family)))
    assert out == ""
    assert "the self-test is incomplete: " in err
    assert re.search(r"; before that, (\d+) of \1 faults found, 0 false alarms in 0 results", err)
    if isinstance(host, SimulatedHost):  # a real driver may not list every process
        assert re.search(rf"the GPU was needed by \S+ \(pid {newcomer.pid}\);", err)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_selftest_and_completed_trials_are_reported(
    simulated: SimulatedHost, number: signal.Signals
) -> None:
    with begun(simulated, "selftest", "--rounds", "100000000", "--json") as process:
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
    assert all(found["well"] for found in report["trials"])
    assert simulated.empty()


@pytest.mark.long
def test_a_terminal_without_a_reader_does_not_delay_a_newcomer(simulated: SimulatedHost) -> None:
    with begun(simulated, "selftest", *ENDLESS) as process:
        eventually(lambda: simulated.held() > TWO_GIB)
        process.send_signal(signal.SIGSTOP)  # it neither reads events nor writes results
        with simulated.job(stay=TIMEOUT_S) as newcomer:
            assert newcomer.got_memory()
            process.send_signal(signal.SIGCONT)
            _, err = process.communicate(timeout=TIMEOUT_S)
    assert "the GPU was needed by" in err


@pytest.mark.long
def test_only_the_first_gpu_is_held(
    capsys: pytest.CaptureFixture[str], registry: Registry, tmp_path: Path
) -> None:
    _, second = Registry.create(tmp_path, 2).gpus()
    locks = GpuLocks([second], (tmp_path / "own",), (tmp_path / "locks",))
    try:
        quick = ("--flips", "1", "--rounds", "1", "--dtype", "int8")
        assert selftest(capsys, "--simulate", "2", *quick)[0] == 0
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
    assert selftest_code(proofs, error) is code


def test_all_messages_of_a_selftest_stay_below_the_flood_limit() -> None:
    # Two checksums of each format; CreatingContext, Preparing, Ready, and a Progress each second.
    places, besides = 6 + 2, 5
    assert places * len(DTYPES) + besides < MAX_MESSAGES_PER_TICK


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (
            "bad_workloads:finds_a_fault_in_a_selftest",
            "a result of bf16 was wrong at (5, 9) although no fault was injected in it",
        ),
        (
            "bad_workloads:fails_in_a_selftest",
            "workload bad_workloads:fails_in_a_selftest raised ValueError: boom",
        ),
    ],
)
def test_a_fault_that_was_not_injected_and_a_failure_end_the_selftest(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    registry: Registry,
    workload: str,
    words: str,
) -> None:
    monkeypatch.setattr(trial, "_SELFTEST", workload)
    code, out, err = selftest(capsys, "--json")
    assert (code, out) == (1, "")
    assert words in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--flips", "x"), "--flips: 'x' is not a whole number from 1 to 100000\n"),
        (("--flips", "0"), "--flips: '0' is not a whole number from 1 to 100000\n"),
        (("--rounds", "-1"), "--rounds: '-1' is not a whole number from 1 to"),
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
    capsys: pytest.CaptureFixture[str], registry: Registry, flags: tuple[str, str], words: str
) -> None:
    code, out, err = selftest(capsys, *flags)
    assert code in {2, 4}
    assert out == ""
    assert words in err


# --- beside a daemon -------------------------------------------------------------------------


@pytest.mark.long
def test_a_trial_borrows_a_gpu_from_the_daemon_and_returns_it(daemon: Daemon) -> None:
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    out = daemon.run("workloads", "try", "hold", "--simulate", "2", "--for", "1s", "--json")
    found = json.loads(out)
    assert found["result"] == "well"
    log = [json.loads(line) for line in daemon.places.log.read_text().splitlines()]
    (lent,) = [event for event in log if event["event"] == "gpu.reserved"]
    assert lent["gpu"] == found["gpu"]
    assert lent["reason"] == "trial of hold"
    assert lent["bound"]
    assert daemon.client.reservations() == ()
    daemon.wait_until_occupied(0, 1)
    # Any idle GPU serves a trial, and a selftest of the first one is refused.
    daemon.client.reserve([0], reason="maintenance", seconds=None)
    refused = daemon.run_unchecked("workloads", "selftest", "--simulate", "2", "--wait", "0")
    assert refused.code == 3
    assert "GPU 0 is reserved by root: maintenance" in refused.err
    assert "--wait" in refused.err
    out = daemon.run("workloads", "try", "hold", "--simulate", "2", "--for", "1s", "--json")
    assert json.loads(out)["index"] == 1


@pytest.mark.long
def test_a_selftest_holds_its_gpu_until_it_is_killed(daemon: Daemon) -> None:
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    with daemon.start_command("workloads", "selftest", "--simulate", "2", *ENDLESS) as process:
        try:
            eventually(lambda: len(daemon.client.reservations()) == 1)
            (held,) = daemon.client.reservations()
            assert held.holder.pid == process.pid
            assert held.indices == (0,)
            uuid = daemon.host.uuid(0)

            def is_used() -> bool:
                used = {one.pid for one in daemon.host.registry.processes(uuid)}
                return bool(used) and used <= {child.pid for child in children(process)}

            eventually(is_used)
            assert daemon.gpu(0).admin == "RESERVED"
            assert daemon.gpu(1).occupied
        finally:
            family = children(process)
            process.kill()
            eventually(lambda: all(map(gone, family)))
    eventually(lambda: daemon.client.reservations() == ())
    daemon.wait_until_occupied(0)
