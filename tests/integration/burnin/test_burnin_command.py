"""``sentinel burnin`` on simulated GPUs: verdicts, reports, interruptions, XIDs and resumption."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.burnin.checks.thresholds_file import SPEC
from sentinel.errors import ExitCode
from sentinel.host import verified_store
from sentinel.host.simulation import Registry
from tests.harness.burnin_run import CHECKED, FAULTLESS, BurninRun, check_passed, plan_of, stray_on
from tests.harness.daemon_harness import Daemon
from tests.harness.fake_nvml import NEEDS_COMPILER, shared_folder
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.preloaded import FailingDisk
from tests.harness.programs import output_of, run_program
from tests.harness.report_formats import (
    SCHEMA,
    closed,
    junit_suites,
    ocp_messages,
    schema_problems,
)
from tests.harness.sentinel_process import eventually
from tests.harness.sysfs import write_port
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

PLAN = plan_of(
    "short",
    ("first", CHECKED, "seconds = 2"),
    ("steady", f"{CHECKED}:rest=0.01", "seconds = 4", "steady = true", "warm_up = 1"),
    ("faulty", "bad_workloads:refuses_its_gpu", "seconds = 1", "mandatory = false"),
)


def xid_check(gpu: dict[str, Any]) -> dict[str, Any]:
    """Find the result of the check of XIDs."""
    (found,) = [one for one in gpu["checks"] if one["id"] == "xid"]
    return dict(found)


def _check_counted(run: BurninRun) -> None:
    """Check that the host counts what a private daemon has verified, in all parts of the run."""
    counted = verified_store.read(run.host.folder / verified_store.NAME)
    for gpu in run.report()["gpus"]:
        total = counted[gpu["uuid"]].total
        checks = sum(phase["checks"] for phase in gpu["coverage"])
        assert checks <= total.checks < 2 * checks, "warm-ups count, and nothing twice"
        assert bool(total.errors) is (gpu["verdict"] == "FAIL")


def test_heat_that_releases_a_gpu_fails_it_although_it_cools_down_and_ends_its_plan(
    simulated: SimulatedHost,
) -> None:
    """No sample has the temperature: it ends the stressor at once."""
    settings = ("--rearm", "200ms", "--critical-pause", "1s")
    plan = plan_of("hot", ("long", CHECKED, "seconds = 10"))
    run = BurninRun(simulated, plan, settings=settings)
    with run.started() as process:
        samples = run.folder / "samples.jsonl"
        eventually(lambda: samples.exists() and '"work"' in samples.read_text())
        registry = Registry(simulated.folder)
        (gpu,) = registry.gpus()
        registry.warm(gpu.uuid, 88)
        eventually(lambda: run.events("stressor.stopped"))
        registry.warm(gpu.uuid, None)
        output = output_of(process, ExitCode.FAIL)
    assert "it reached 88 C; the GPU declares 87 C" in output
    (found,) = run.report()["gpus"]
    assert found["coverage"][0]["complete"]
    (interruption,) = found["interruptions"]
    assert interruption["cause"] == "its health is critical because of its temperature"


def test_a_whole_plan_ends_with_a_pass_and_a_report(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, PLAN, gpus=2)
    output = run.run()
    report = run.report()
    check_passed(report)
    assert report["run"]["mode"] in {"contiguous", "accumulated"}
    assert report["run"]["plan"]["name"] == "short"
    assert len(report["gpus"]) == 2
    for gpu in report["gpus"]:
        first, steady, faulty = gpu["coverage"]
        assert first["complete"]
        assert first["done_s"] >= 2
        assert first["checks"] > 0
        assert steady["complete"]
        assert "this GPU cannot run it" in faulty["not_tested"]
        assert gpu["detection_power"]["error_rate_below"] < 1
        assert gpu["serial"]
        xid = xid_check(gpu)
        assert (xid["status"], xid["value"]) == ("pass", "none")
        assert xid["evidence"].startswith("NVML's events were the source")
    assert f"{report['verdict']}  " in output
    _check_counted(run)
    assert simulated.empty(0)
    assert simulated.empty(1)


def test_wrong_results_fail_in_each_format_and_are_final(simulated: SimulatedHost) -> None:
    plan = plan_of(
        "short",
        ("impossible", "bad_workloads:refuses_its_gpu", "seconds = 1"),
        ("right", CHECKED, "seconds = 2"),
        ("wrong", "bad_workloads:faulty", "seconds = 2"),
        ("last", CHECKED, "seconds = 2"),
    )
    run = BurninRun(simulated, plan)
    output = run.run("--fail-fast", "--expect-gpus", "2", code=ExitCode.FAIL)

    def printed(form: str) -> str:
        words = (sys.executable, "-m", "sentinel", "report", form, run.folder)
        done = run_program(*words, env=simulated.environment(), cwd=ROOT)
        assert done.returncode == ExitCode.FAIL
        return done.stdout

    report = json.loads(printed("--json"))
    assert report["verdict"] == "FAIL"
    assert schema_problems(closed(SCHEMA), report) == []
    (gpu,) = report["gpus"]
    failed = [one["id"] for one in gpu["checks"] if one["status"] == "fail"]
    assert "results.wrong" in failed
    assert gpu["findings"] or gpu["detection_power"]["errors"]
    assert not gpu["coverage"][3]["done_s"], "--fail-fast ends the plan"
    gpu_suite, _ = junit_suites(report)
    assert gpu_suite.get("errors") == "2", "the phase that cannot run, and the run, by --fail-fast"
    assert int(gpu_suite.get("failures", "")) >= 1
    end = ocp_messages(report)[-1]["testRunArtifact"]["testRunEnd"]
    assert end == {"status": "COMPLETE", "result": "FAIL"}
    page = printed("--html")
    assert '<div class="drawing"' in page
    assert "results.wrong" in page
    output = run.run(code=ExitCode.USAGE, resume=True)
    assert "GPU 0 has failed, which is final" in output
    _check_counted(run)


@pytest.mark.parametrize("selected", [(), ("--gpus", "all")])
def test_a_gpu_that_is_held_elsewhere_is_named_and_there_is_no_pass(
    simulated: SimulatedHost, selected: tuple[str, ...]
) -> None:
    run = BurninRun(simulated, plan_of("short", ("first", CHECKED, "seconds = 1")), 2)
    with stray_on(simulated, 1) as pid:
        done = run_program(*run.command(*selected), env=simulated.environment(), cwd=ROOT)
    assert done.returncode == ExitCode.INCOMPLETE, done
    holder = f"pid {pid} (sleep 1000), which a workload of an ended sentinel left behind"
    warning = f"GPU 1 is not tested, so this run cannot pass: held by {holder}"
    assert f"sentinel: warning: {warning}\n" in done.stderr
    report = run.report()
    assert [gpu["index"] for gpu in report["gpus"]] == [0]
    why = f"node.tested: GPU 1 has no verdict: it is held by {holder}"
    meaning = f"no fault was found, and not everything was done: node: {why}"
    assert (report["verdict"], report["meaning"].partition(";")[0]) == ("INCOMPLETE", meaning)
    assert f"INCOMPLETE  {report['node']['hostname']}  short: {meaning}" in done.stdout


def test_a_selected_gpu_that_is_held_elsewhere_refuses_the_run(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, plan_of("short", ("first", CHECKED, "seconds = 1")), 2)
    with stray_on(simulated, 1) as pid:
        command = run.command("--gpus", "0,1")
        refused = run_program(*command, env=simulated.environment(), cwd=ROOT)
        assert refused.returncode == ExitCode.HELD, refused
        assert f"by pid {pid} (sleep 1000)" in refused.stderr
        assert f"End it: kill {pid}" in refused.stderr
        assert not run.folder.exists()
        run.run("--gpus", "0")
    (tested,) = [one for one in run.report()["checks"] if one["id"] == "node.tested"]
    assert tested["status"] == "n/a", "the user has left it out"


@pytest.mark.parametrize(
    ("flags", "code"), [(("--gpus", "7"), ExitCode.NO_SUCH_GPU), (("--util", "10%"), 2)]
)
def test_a_run_that_does_not_start_leaves_nothing(
    simulated: SimulatedHost, flags: tuple[str, ...], code: int
) -> None:
    run = BurninRun(simulated, PLAN)
    run.run(*flags, code=code)
    assert not run.folder.exists()


def test_the_verdict_does_not_depend_on_the_terminal(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, PLAN)
    with run.started() as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(3 * TIMEOUT_S) == ExitCode.OK
    check_passed(run.report())


def test_a_foreign_process_interrupts_and_the_plan_goes_on_after_it(
    simulated: SimulatedHost,
) -> None:
    run = BurninRun(simulated, PLAN.replace("seconds = 4\nsteady", "seconds = 6\nsteady"), gpus=2)
    with run.started() as process:
        eventually(lambda: any(event["index"] == 0 for event in run.events("burnin.warm")))
        with simulated.job(0, stay=0.5) as job:
            assert job.got_memory()
            eventually(lambda: run.events("gpu.yielding"))
            simulated.registry.throw_xids(simulated.uuid(0), 43, 43, 43)
            job.wait_for_exit()
        output_of(process, ExitCode.OK)
    report = run.report()
    check_passed(report)
    assert report["run"]["mode"] == "accumulated"
    gpu, other = report["gpus"]
    # XID 43 after an own kill fails nothing.
    xids = [(event["own"], event["repeats"]) for event in run.events("gpu.xid")]
    assert xids == [(True, 0), (True, 2)]
    xid = xid_check(gpu)
    assert (xid["status"], xid["value"]) == ("pass", "43 (3 times)")
    assert "after Sentinel ended its stressor" in xid["evidence"]
    assert gpu["interruptions"]
    assert not other["interruptions"]
    assert any("a foreign process" in one["cause"] for one in gpu["interruptions"])
    steady = gpu["coverage"][1]
    assert steady["done_s"] >= 6, "one stretch"
    assert steady["interruptions"] >= 1


def test_an_xid_during_a_run_fails_it(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, PLAN)
    with run.started() as process:
        eventually(lambda: run.events("stressor.ready"))
        simulated.registry.throw_xids(simulated.uuid(0), 48)  # test_both_ways.py throws 79
        output = output_of(process, ExitCode.FAIL)
    assert "XID         48" in output
    (event,) = run.events("gpu.xid")
    assert (event["xid"], event["own"], event["gpu"]) == (48, False, simulated.uuid(0))
    (gpu,) = run.report()["gpus"]
    check = xid_check(gpu)
    assert (check["status"], check["value"]) == ("fail", "48")


def recorder_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Find the process that records the run of a command."""
    children = psutil.Process(process.pid).children()
    return next(child for child in children if child.cmdline()[-1] == "record")


def test_the_end_of_the_command_ends_its_daemon_with_a_report(simulated: SimulatedHost) -> None:
    run = BurninRun(
        simulated,
        PLAN.replace("seconds = 2\n", "seconds = 600\n").replace(
            "seconds = 4\n", "seconds = 600\n"
        ),
    )
    with run.started() as process:
        eventually(lambda: run.events("stressor.ready"))
        recorder = recorder_of(process)
        processes = [recorder, *recorder.children(recursive=True)]
        assert len(processes) > 3, "the private daemon has children"
        process.kill()
        process.wait(TIMEOUT_S)
        eventually(lambda: not any(one.is_running() for one in processes))
    report = run.report()
    assert report["verdict"] == "INCOMPLETE"
    assert report["run"]["cut_short"] == f"its command, process {process.pid}, died"
    assert report["run"]["resume"]
    assert simulated.empty(0)


@pytest.mark.parametrize(
    ("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGHUP, False)]
)
def test_a_signal_ends_a_run_with_a_report(
    simulated: SimulatedHost,
    number: signal.Signals,
    to_all: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Slurm sends a signal to all processes of a step."""
    run = BurninRun(simulated, PLAN.replace("seconds = 4\nsteady", "seconds = 600\nsteady"))
    with run.started() as process:
        eventually(lambda: run.events("burnin.warm"))
        command = psutil.Process(process.pid)
        for one in (command, *(command.children(recursive=True) if to_all else ())):
            with contextlib.suppress(psutil.NoSuchProcess):  # the command may have ended it
                one.send_signal(number)
        output_of(process, ExitCode.INCOMPLETE)
    report = run.report()
    assert report["verdict"] == "INCOMPLETE"
    assert report["gpus"][0]["coverage"][1]["ended"] is not None, "what was done is recorded"


def test_after_a_reboot_a_run_is_not_resumed_and_what_was_done_proves_nothing(
    simulated: SimulatedHost,
) -> None:
    run = BurninRun(simulated, PLAN.replace("seconds = 4\nsteady", "seconds = 600\nsteady"))
    with run.started() as process:
        eventually(lambda: run.events("burnin.warm"))
        process.send_signal(signal.SIGTERM)
        output = output_of(process, ExitCode.INCOMPLETE)
    assert "go on with: " in output
    header = run.folder / "run.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"boot": "an earlier one"}))
    recorded = (run.folder / "events.jsonl").read_text()
    refused = run.run(code=ExitCode.USAGE, resume=True)
    assert "the host was started again since" in refused
    assert "Start a new run" in refused
    assert (run.folder / "events.jsonl").read_text() == recorded, "nothing was begun"
    words = [sys.executable, "-m", "sentinel", "report", "--json", str(run.folder)]
    judged = run_program(*words, env=simulated.environment(), cwd=ROOT)
    assert judged.returncode == ExitCode.INCOMPLETE
    assert json.loads(judged.stdout)["run"]["resume"] is None


OPTIONAL = plan_of(
    "optional",
    ("first", CHECKED, "seconds = 1"),
    ("extra", f"{CHECKED}:rest=0.01", "seconds = 6", "mandatory = false"),
)


@pytest.mark.parametrize("where", ["alone", "beside a daemon with more GPUs"])
def test_a_run_that_is_cut_short_says_so_first_and_the_line_it_prints_goes_on(
    daemon: Daemon, where: str
) -> None:
    """Also in a phase that is not mandatory; a FAIL or a PASS is of a run to its end."""
    settings = ["--memory", "10%"]
    single = daemon.host.folder / "single.toml"
    if where == "alone":
        single.write_text("[gpu.0]\nmemory.target = '5%'\n")
        settings += ["--config", str(single)]
    run = BurninRun(daemon.host, OPTIONAL, gpus=2, name="a run", settings=tuple(settings))
    limits = daemon.host.folder / "limits.toml"
    limits.write_text(f"spec = '{SPEC}'\nversion = '4.6.0'\n[xids]\n63 = 'fail'\n")
    with run.started("--gpus", "0", "--thresholds", str(limits)) as process:
        eventually(lambda: len(run.events("stressor.ready")) == 2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=2 * TIMEOUT_S)
    assert process.returncode == ExitCode.INCOMPLETE, output
    report = run.report()
    assert not schema_problems(closed(SCHEMA), report)
    cut = f"cut short: {report['run']['cut_short']}"
    assert "INT" in cut or "cancelled" in cut
    page, text = ((run.folder / name).read_text() for name in ("report.html", "report.txt"))
    assert cut in text.splitlines()[0]
    assert cut in output
    assert cut.capitalize() in page
    assert report["meaning"].startswith(cut)
    first = junit_suites(report)[0].findall("testcase")[0]
    assert first.get("name") == "run"
    assert first.find("error") is not None
    (line,) = [one for one in output.splitlines() if one.startswith("go on with: ")]
    if where != "alone":
        daemon.start(4, "--memory", "10%")
    single.unlink(missing_ok=True)
    again = daemon.run_unchecked(*shlex.split(line)[4:])
    assert again.code == ExitCode.OK, again
    report = run.report()
    check_passed(report)
    assert report["run"]["cut_short"] is report["run"]["resume"] is None
    assert report["thresholds_overridden"], "by the limits that it was begun with"
    assert report["run"]["mode"] == "accumulated"
    (gpu,) = report["gpus"]
    assert [one["cause"] for one in gpu["interruptions"]] == [f"the run was {cut}"]
    (resumed,) = report["run"]["resumed"]
    assert "memory.target" not in {one["key"] for one in resumed["settings"]}
    held = [one["held"] for one in run.events("stressor.ready")]
    assert len(set(held[-2:])) == 1, "it holds as much as before"
    if where == "alone":
        _check_counted(run)


#: The user of a run, and who resumes it: how, and the reason of the refusal.
STRANGER = 65534
#: A user may read all files here, as root's Python in root's home, and write none of another user.
AS_STRANGER = (
    *("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
RESUMED = {
    "by root, alone": (STRANGER, (), f"belongs to uid {STRANGER}"),
    "by root, with a daemon": (STRANGER, (), f"belongs to uid {STRANGER}"),
    "by root, below another user's": (0, (), f"belongs to uid {STRANGER}"),
    "by a user": (0, AS_STRANGER, "report cannot be written"),
    "by another user": (STRANGER + 1, AS_STRANGER, f"belongs to uid {STRANGER + 1}"),
}


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("how", RESUMED)
def test_the_run_of_another_user_is_not_resumed_and_not_changed(daemon: Daemon, how: str) -> None:
    owner, within, why = RESUMED[how]
    with tempfile.TemporaryDirectory(dir="/tmp") as text:  # which all users can enter
        Path(text).chmod(0o755)
        run = BurninRun(daemon.host, OPTIONAL, name=f"{text}/report", settings=())
        if "below" in how:
            os.chown(text, STRANGER, STRANGER)
        with run.started() as process:
            eventually(lambda: len(run.events("stressor.ready")) == 2)
            process.send_signal(signal.SIGINT)
            said = output_of(process, ExitCode.INCOMPLETE)
        assert ("warning: this run cannot be resumed" in said) == ("below" in how)
        for path in (run.folder, *run.folder.rglob("*")):
            os.chown(path, owner, owner)
            path.chmod(0o755)
        if "daemon" in how:
            daemon.start(1)

        def state() -> list[tuple[Path, int, int, bytes]]:
            paths = [run.folder, *sorted(run.folder.rglob("*"))]
            found = [(path, path.stat(), path.is_file()) for path in paths]
            return [
                (path, there.st_uid, there.st_mtime_ns, path.read_bytes() if is_file else b"")
                for path, there, is_file in found
            ]

        before = state()
        command = [*within, *run.command(resume=True)]
        environment = daemon.host.environment(HOME=text)
        if within:  # GPUs that the user can use
            os.chown(text, STRANGER, STRANGER)
            environment["SENTINEL_SIM_DIR"] = f"{text}/gpus"
        done = run_program(*command, env=environment, cwd=ROOT)
        assert done.returncode == ExitCode.USAGE, done
        assert why in done.stderr
        assert "Traceback" not in done.stderr
        assert state() == before
    if "daemon" in how:
        daemon.wait_until_occupied(0)


def test_a_killed_run_is_resumed_on_its_own_gpus(simulated: SimulatedHost) -> None:
    run = BurninRun(
        simulated,
        PLAN.replace(
            'seconds = 2\n[[phase]]\nname = "steady', 'seconds = 5\n[[phase]]\nname = "steady'
        ),
        gpus=2,
    )
    with run.started("--gpus", "0") as process:
        eventually(lambda: run.events("stressor.ready"))
        recorder = recorder_of(process)
        private = max(recorder.children(), key=lambda child: len(child.children()))
        recorder.kill()
        assert process.wait(TIMEOUT_S) == ExitCode.USAGE, "nothing is judged without a record"
        eventually(lambda: not private.is_running())
    for name in ("events.jsonl", "samples.jsonl"):
        with (run.folder / name).open("a") as file:
            file.write('{"event": "torn')
    # Only a kernel's log has the XIDs of a part that was killed; simulated GPUs have none.
    run.run(resume=True, code=ExitCode.INCOMPLETE)
    report = run.report()
    (gpu,) = report["gpus"]
    assert gpu["index"] == 0
    assert any("XIDs not judged" in reason for reason in gpu["reasons"])
    assert {one["phase"] for one in gpu["measurements"]} >= {"first", "steady"}
    assert xid_check(gpu)["status"] == "not tested"


@NEEDS_COMPILER
@pytest.mark.parametrize("file", ["events.jsonl", "counters.json", "report.json"])
def test_a_disk_that_fills_up_during_a_run_is_the_reason_of_its_end(
    simulated: SimulatedHost,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
) -> None:
    """Once there is room again, what was recorded is gone on with or judged."""
    disk = FailingDisk(tmp_path, shared_folder(tmp_path_factory))
    for name, text in disk.environment.items():
        monkeypatch.setenv(name, text)
    run = BurninRun(simulated, plan_of("short", ("first", CHECKED, "seconds = 3")))
    with run.started() as process:
        eventually(lambda: run.events("stressor.ready"))
        disk.set(f"write {run.folder}/{file} {errno.ENOSPC}")
        output = output_of(process, ExitCode.USAGE)
    assert f"{file} cannot be written: No space left on device" in output
    assert "Traceback" not in output
    assert simulated.empty()
    assert not (run.folder / "report.json").exists()
    disk.set()
    if file == "events.jsonl":  # as of a run that was cancelled then
        run.run(resume=True, code=ExitCode.INCOMPLETE)
        (gpu,) = run.report()["gpus"]
        (only,) = gpu["incomplete"]  # simulated GPUs have no kernel's log of the part before
        assert only.startswith("XIDs not judged")
        return
    words = [sys.executable, "-m", "sentinel", "report", "--json", str(run.folder)]
    done = run_program(*words, env=simulated.environment())
    if file == "counters.json":  # those at the end of the run are unknown
        assert done.returncode == ExitCode.INCOMPLETE
    else:
        check_passed(json.loads(done.stdout))


def test_a_gpu_in_mig_mode_is_said_to_be_not_tested(simulated: SimulatedHost) -> None:
    registry = Registry.create(simulated.registry.folder, 2)
    registry.inject_figures(registry.gpus()[1].uuid, {"mig": True})
    run = BurninRun(simulated, plan_of("short", ("first", CHECKED, "seconds = 2")), gpus=2)
    output = run.run(code=ExitCode.INCOMPLETE)
    whole, divided = run.report()["gpus"]
    assert whole["verdict"] in FAULTLESS
    assert divided["verdict"] == "INCOMPLETE"
    assert divided["reasons"][0].endswith(": it is not tested: MIG is enabled")
    (one,) = (one for one in divided["checks"] if one["id"] == "gpu.whole")
    assert one["status"] == "not tested"
    assert "MIG is enabled" in one["evidence"]
    assert "MIG is enabled" in output


def test_a_port_that_counts_errors_during_the_run_is_named(simulated: SimulatedHost) -> None:
    sysfs = simulated.registry.folder / "sys"
    write_port(sysfs, "mlx5_0", symbol_error="7", link_downed="0")
    # So long that a busy host counts the errors before its end.
    run = BurninRun(simulated, plan_of("short", ("first", CHECKED, "seconds = 10")))
    with run.started() as process:
        eventually(lambda: run.events("stressor.ready"))
        write_port(sysfs, "mlx5_0", symbol_error="19", link_downed="1")
        output_of(process, ExitCode.OK)
    report = run.report()
    assert report["verdict"] == "WARN"
    (one,) = (one for one in report["checks"] if one["id"] == "node.infiniband")
    assert one["evidence"] == "1 of 1 are active; mlx5_0/1: symbol_error +12, link_downed +1"


def test_what_was_counted_before_a_reset_is_judged_after_a_resumption(
    simulated: SimulatedHost,
) -> None:
    """The counters begin again, and pass their first values: no difference shows the reset."""
    registry, uuid = simulated.registry, simulated.uuid(0)
    plan = plan_of(
        "reset",
        ("first", CHECKED, "seconds = 1"),
        ("second", f"{CHECKED}:rest=0.01", "seconds = 4"),
    )
    run = BurninRun(simulated, plan)
    registry.inject_figures(uuid, {"pcie_replays_total": 1, "energy_j": 1.0})
    with run.started() as process:
        eventually(lambda: run.events("stressor.ready"))
        registry.inject_figures(uuid, {"pcie_replays_total": 101, "energy_j": 5000.0})
        process.send_signal(signal.SIGINT)
        output_of(process, ExitCode.INCOMPLETE)
    registry.inject_figures(uuid, {"pcie_replays_total": 2, "energy_j": 2.0})
    run.run(resume=True, code=ExitCode.INCOMPLETE)  # a GPU that was reset is not one proven card
    (gpu,) = run.report()["gpus"]
    assert "gpu.reset" in " ".join(gpu["incomplete"])
    (found,) = (one for one in gpu["checks"] if one["id"] == "pcie.replays")
    assert (found["status"], found["value"]) == ("warn", 100)
    assert "from 1 to 101, from 2 to 2" in found["evidence"]
