"""``sentinel burnin`` beside a daemon, which does the work, and in a terminal of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.formats import write_reports
from sentinel.burnin.report import judge_run
from sentinel.burnin.request import RunRequest, encode
from sentinel.burnin.run_folder import read_object
from sentinel.errors import ExitCode
from sentinel.host import verified_store
from sentinel.host.last_verdicts import RUNS
from sentinel.host.lookups import USER_NAMES
from sentinel.host.verified_store import StoredWork
from sentinel.protocol.views import VerifiedCounts
from tests.harness.burnin_run import CHECKED, BurninRun, check_passed, plan_of, stray_on
from tests.harness.daemon_harness import Daemon
from tests.harness.example_run import ExampleRun
from tests.harness.programs import output_of
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

PLAN = plan_of(
    "short",
    ("first", CHECKED, "seconds = 2"),
    ("second", f"{CHECKED}:rest=0.01", "seconds = 3"),
)


class Burnin(BurninRun):
    """A burn-in by a running daemon.

    Args:
        daemon: The daemon.
        plan: The text of the plan.
    """

    def __init__(self, daemon: Daemon, plan: str = PLAN) -> None:
        super().__init__(daemon.host, plan, gpus=2, settings=())
        #: The words of the command.
        self.words = tuple(self.command()[3:])

    def count(self, name: str) -> int:
        """Count the recorded events of a name."""
        return len(self.events(name))

    def report(self) -> dict[str, Any]:
        """Wait for the report, and read it."""
        eventually((self.folder / "report.json").exists)
        return super().report()


def long(plan: str) -> str:
    """Make the last phase of a plan so long that it does not end."""
    return plan.replace("seconds = 3", "seconds = 3000")


def test_a_burnin_in_a_terminal_is_named_until_it_ends(daemon: Daemon) -> None:
    alone = Burnin(daemon, long(PLAN))
    run = alone.folder
    with daemon.start_command(*alone.words) as burnin:
        eventually(lambda: (run / "run.json").exists() and daemon.pids_on_gpus())
        status = daemon.run("burnin", "status")
        assert f", recorded in {run}" in status
        assert f"sentinel burnin attach {run}" in status
        shown = json.loads(daemon.run("burnin", "status", "--json"))
        ((private, folder),) = [(one["pid"], one["run"]) for one in shown["without_daemon"]]
        assert folder == str(run)
        assert burnin.pid in [parent.pid for parent in psutil.Process(private).parents()]
        daemons = json.loads(daemon.run("status", "--daemons", "--json"))["daemons"]
        assert not any(one["pid"] for one in daemons), "a private daemon is not the user's"
        for refused in (("status",), ("status", "--list")):
            answer = daemon.run_unchecked(*refused)
            assert answer.code == ExitCode.NOT_RUNNING
            assert f"recorded in {run}" in answer.err
        with daemon.start_command(*alone.words[:-1], f"{run}2") as rival:
            _, said = rival.communicate(timeout=TIMEOUT_S)
            assert rival.returncode == ExitCode.HELD, said
            assert f"a burn-in in a terminal that is recorded in {run}" in said
        assert "To end it: sentinel burnin cancel" in status
        named = daemon.run_unchecked("burnin", "cancel", "--socket", f"{run}/none")
        assert named.code == ExitCode.NOT_RUNNING, "another daemon is meant"
        assert burnin.poll() is None
        daemon.run("burnin", "cancel")
        burnin.communicate(timeout=TIMEOUT_S)
        assert burnin.returncode == ExitCode.NOT_RUNNING, "its report is incomplete"
        again = daemon.run_unchecked("burnin", "cancel")
        assert again.err == "sentinel: no burn-in runs; one that has just begun may not be listed\n"
    assert json.loads((run / "report.json").read_text())["verdict"] == "INCOMPLETE"
    for command in ("status", "cancel"):
        answer = daemon.run_unchecked("burnin", command)
        assert answer.code == ExitCode.NOT_RUNNING
        assert "no burn-in runs" in answer.err


def test_the_plan_of_a_daemon_is_shown_as_a_burnin(daemon: Daemon) -> None:
    plan = Burnin(daemon, PLAN.replace("seconds = 2", "seconds = 600")).plan
    quick = ("--rearm", "300ms", "--poll", "100ms")
    daemon.run("start", "--simulate", "2", *quick, "--plan", str(plan))
    eventually(lambda: daemon.gpu().burnin is not None)
    shown = daemon.run("burnin", "status")
    assert "short, again and again" in shown
    assert shown.count("1 of 2 first") == 2
    assert "no burn-in runs" not in shown


def test_the_daemon_runs_a_plan_and_occupies_its_gpus_again(daemon: Daemon) -> None:
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    burnin = Burnin(daemon)
    with daemon.start_command(*burnin.words, "--gpus", "1") as process:
        eventually(lambda: burnin.count("burnin.run_started") == 1)
        # It is attached until the report is there.
        followed = daemon.run_unchecked("burnin", "attach", str(burnin.folder))
        assert followed.code == ExitCode.OK, followed
        output = output_of(process, ExitCode.OK)
    assert "the daemon runs it" in output
    assert "2 of 2: second" in output
    report = burnin.report()
    check_passed(report)
    (gpu,) = report["gpus"]
    assert gpu["index"] == 1
    assert [one["complete"] for one in gpu["coverage"]] == [True, True]
    assert gpu["measurements"], "the samples have readings and work of every phase"
    daemon.wait_until_occupied(0, 1)
    assert daemon.gpu(1).workload == "hold"
    assert daemon.client.status().daemon.burnin is None
    (proved,) = [one for one in health(daemon) if one["index"] == 1]
    assert proved["burnin"]["verdict"] == gpu["verdict"], "wherever its report is"
    printed = json.loads(daemon.run("report", "--simulated", "--json"))
    assert printed["run"]["id"] == burnin.folder.name, "the newest run"
    assert proved["verified"]["checks"] >= sum(one["checks"] for one in gpu["coverage"])
    assert proved["verified"]["seconds"] >= 5
    daemon.run("stop")
    assert [one for one in health(daemon) if one["index"] == 1] == [proved]


@pytest.mark.parametrize(("value", "status"), [("1", "n/a"), ("1-2", "warn")])
def test_the_gpus_that_a_daemon_does_not_see_are_none_of_its_runs(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, value: str, status: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    daemon.start(2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    daemon.wait_until_occupied(1)
    shown = f"CUDA_VISIBLE_DEVICES={value}"
    assert f"{shown}{': CUDA reads' if status == 'warn' else ''}" in daemon.run("status")
    burnin = Burnin(daemon)
    done = daemon.run_unchecked(*burnin.words)
    report = burnin.report()
    check_passed(report)
    assert [gpu["index"] for gpu in report["gpus"]] == [1]
    (tested,) = [one for one in report["checks"] if one["id"] == "node.tested"]
    assert tested["status"] == status
    if status == "warn":
        text = f"{shown}: CUDA reads '1-2' as 1; write numbers with commas between, or unset it"
        assert f"sentinel: warning: {text}\n" in done.err
        assert tested["evidence"] == f"GPU 0 not tested: {text}"


def test_a_gpu_that_was_held_at_the_start_of_the_daemon_is_named(daemon: Daemon) -> None:
    with stray_on(daemon.host, 1) as pid:
        daemon.start(2)
    refused = daemon.run_unchecked(*Burnin(daemon).words, "--gpus", "0,1")
    assert refused.code == ExitCode.HELD, refused
    assert f"it was held at the start by pid {pid} (sleep 1000)" in refused.err
    burnin = Burnin(daemon)
    done = daemon.run_unchecked(*burnin.words)
    assert done.code == ExitCode.INCOMPLETE, done
    assert f"GPU 1 is not tested, so this run cannot pass: held by pid {pid} (sleep" in done.err
    assert (
        f"node.tested: GPU 1 has no verdict: it is held by pid {pid} " in burnin.report()["meaning"]
    )


def health(daemon: Daemon) -> list[dict[str, Any]]:
    """Read what each GPU has proved."""
    shown = daemon.run_unchecked("health", "--simulated", "--json")
    assert shown.code == ExitCode.INCOMPLETE, "GPU 0 is untested: its workload checks nothing"
    found: list[dict[str, Any]] = json.loads(shown.out)["gpus"]
    return found


def test_a_failed_card_is_shown_with_its_verdict(daemon: Daemon) -> None:
    daemon.start(2)
    burnin = Burnin(daemon, PLAN.replace(f'"{CHECKED}"', '"bad_workloads:faulty"', 1))
    words = [word for word in burnin.words if word not in {"--report", str(burnin.folder)}]
    output = daemon.run_unchecked(*words, "--gpus", "0", "--fail-fast")
    assert output.code == ExitCode.FAIL, output
    shown = daemon.run_unchecked("health", "--simulated")
    assert shown.code == ExitCode.FAIL
    first, second = shown.out.split("\n  1 ")
    assert "FAIL short" in first
    assert "FAIL" not in second
    eventually(lambda: wrong(daemon)[0] > 0)
    assert wrong(daemon)[1] == 0
    checked = daemon.run_unchecked("check", "--simulate", "2", "--nagios")
    assert checked.code == 2, checked
    assert "daemon.findings" in checked.out
    daemon.run("stop")
    alone = daemon.run_unchecked("check", "--simulate", "2")
    assert alone.code == 1, "what it found wrong counts after its end"


def wrong(daemon: Daemon) -> list[int]:
    """Read how much each GPU has got wrong."""
    proofs = [gpu.verified for gpu in daemon.client.status().gpus]
    return [0 if proof is None else proof.errors + proof.findings for proof in proofs]


def test_a_run_survives_its_terminal_and_is_attached_and_cancelled(daemon: Daemon) -> None:
    daemon.start(2)
    burnin = Burnin(daemon, long(PLAN))
    with daemon.start_command(*burnin.words) as process:
        eventually(lambda: burnin.count("burnin.phase_ended") == 2)
        process.send_signal(signal.SIGHUP)
        assert process.wait(TIMEOUT_S) == -signal.SIGHUP
    eventually(lambda: "2 of 2 second" in daemon.run("burnin", "status"))
    again = daemon.run_unchecked(*burnin.words[:-1], str(daemon.host.folder / "other"))
    assert again.code == ExitCode.HELD
    assert "the burn-in short runs" in again.err
    assert not Path(daemon.host.folder, "other").exists()
    former = ExampleRun().write(daemon.places.state / RUNS / "former")
    later = {**read_object(former.header), "started": "2099-12-31T08:00:00+00:00"}
    former.write(former.header, later)
    write_reports(former, judge_run(former, Thresholds()))
    last = daemon.run_unchecked("burnin", "attach", "--simulated")
    assert last.code == ExitCode.USAGE, "the verdict of a former run is not that of this one"
    assert "is recorded in another folder" in last.err
    with daemon.start_command("burnin", "attach", str(burnin.folder)) as attached:
        other = daemon.run_unchecked("burnin", "cancel", "--simulated", former.path.name)
        assert other.code == ExitCode.USAGE, "not the run of the daemon"
        assert "ends the burn-in short" in daemon.run("burnin", "cancel", str(burnin.folder))
        output = output_of(attached, ExitCode.INCOMPLETE)
    assert f"cancelled by {USER_NAMES.get(os.getuid())}" in output
    assert burnin.report()["verdict"] == "INCOMPLETE"
    assert "no burn-in runs" in daemon.run("burnin", "status")
    assert daemon.run_unchecked("burnin", "cancel").code == ExitCode.USAGE


@pytest.mark.parametrize("how", ["ctrl-c", "shutdown", "kill"])
def test_an_end_before_time_has_a_report_of_what_was_done(daemon: Daemon, how: str) -> None:
    pid = daemon.start(2)
    burnin = Burnin(daemon, long(PLAN))
    with daemon.start_command(*burnin.words) as process:
        eventually(lambda: burnin.count("burnin.phase_ended") == 2)
        match how:
            case "ctrl-c":
                process.send_signal(signal.SIGINT)
            case "shutdown":
                daemon.run("stop")
            case "kill":
                os.kill(pid, signal.SIGKILL)
        _, said = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == ExitCode.INCOMPLETE, said
    cancelled = "cancelling; Ctrl+C again ends this command without its report" in said
    assert cancelled is (how == "ctrl-c")
    report = burnin.report()
    assert report["verdict"] == "INCOMPLETE"
    for gpu in report["gpus"]:
        assert gpu["coverage"][0]["complete"]
        assert not gpu["coverage"][1]["complete"]


@pytest.mark.parametrize("how", ["to its end", "ctrl-c", "shutdown"])
def test_a_wrong_result_while_the_last_stressor_stops_counts_for_the_run(
    daemon: Daemon, how: str
) -> None:
    daemon.start(2)
    plan = PLAN.replace(f"{CHECKED}:rest=0.01", "bad_workloads:wrong_at_its_end")
    burnin = Burnin(daemon, plan if how == "to its end" else long(plan))
    with daemon.start_command(*burnin.words, "--gpus", "0") as process:
        eventually(lambda: burnin.count("stressor.ready") == 2)
        if how == "ctrl-c":
            process.send_signal(signal.SIGINT)
        elif how == "shutdown":
            daemon.run("stop")
        output, errors = process.communicate(timeout=2 * TIMEOUT_S)
    assert process.returncode == ExitCode.FAIL, output + errors
    assert burnin.count("stressor.mismatch") == burnin.count("stressor.finding") == 1
    assert burnin.report()["verdict"] == "FAIL"


def done_s(daemon: Daemon, index: int) -> float:
    """Read the seconds of the current phase that a GPU has done."""
    burnin = daemon.gpu(index).burnin
    return burnin.done_s if burnin is not None else 0.0


def test_the_daemon_goes_on_with_a_run_that_was_cut(daemon: Daemon) -> None:
    daemon.start(2)
    burnin = Burnin(daemon, PLAN.replace("seconds = 3", "seconds = 15"))
    with daemon.start_command(*burnin.words) as process:
        eventually(lambda: burnin.count("burnin.phase_ended") == 2)
        eventually(lambda: all(done_s(daemon, index) > 2 for index in (0, 1)))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=2 * TIMEOUT_S)
        assert process.returncode == ExitCode.INCOMPLETE
    cut = burnin.report()
    resume = ("burnin", "--simulate", "2", "--resume", str(burnin.folder))
    again = daemon.run_unchecked(*resume)
    assert again.code == ExitCode.OK, again
    assert "phase_started" not in again.out.split("second")[0], "only new events are printed"
    report = burnin.report()
    check_passed(report)
    assert len(report["run"]["resumed"]) == 1
    for before, after in zip(cut["gpus"], report["gpus"], strict=True):
        first, second = zip(before["coverage"], after["coverage"], strict=True)
        assert first[0]["done_s"] == first[1]["done_s"], "the first phase was not repeated"
        assert second[0]["done_s"] > 2
        assert second[1]["done_s"] < 17, "the earlier seconds count"
    for words, why in (
        (resume, "the run is complete"),
        ((*resume, "--gpus", "0"), "omit --gpus"),
    ):
        refused = daemon.run_unchecked(*words)
        assert refused.code == ExitCode.USAGE
        assert why in refused.err
    assert len(burnin.report()["run"]["resumed"]) == 1


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--memory", "50%"), ExitCode.USAGE, "--memory: a daemon runs"),
        (("--gpus", "7"), ExitCode.NO_SUCH_GPU, "no GPU matches '7'"),
        (
            ("--simulate", "3"),
            ExitCode.USAGE,
            "--simulate: a daemon runs, and has 2 simulated",
        ),
    ],
)
def test_what_a_daemon_cannot_do_is_refused_and_leaves_nothing(
    daemon: Daemon, words: tuple[str, ...], code: ExitCode, why: str
) -> None:
    daemon.start(2)
    burnin = Burnin(daemon)
    output = daemon.run_unchecked(*burnin.words, *words)
    assert output.code == code, output
    assert why in output.err
    assert not burnin.folder.exists()


def test_a_run_goes_on_when_the_api_process_is_replaced(daemon: Daemon) -> None:
    daemon.start(2)
    burnin = Burnin(daemon, PLAN.replace("seconds = 3", "seconds = 8"))
    with daemon.start_command(*burnin.words) as process:
        eventually(lambda: burnin.count("burnin.phase_ended") == 2)
        daemon.child("api").kill()
        _, errors = process.communicate(timeout=3 * TIMEOUT_S)
        assert process.returncode in {ExitCode.OK, ExitCode.INCOMPLETE}, errors
    report = burnin.report()
    for gpu in report["gpus"]:
        assert [one["complete"] for one in gpu["coverage"]] == [True, True]
    assert daemon.client.status().daemon.burnin is None


@pytest.mark.parametrize("how", ["full disk", "kill"])
def test_a_run_whose_record_fails_is_cancelled(daemon: Daemon, how: str) -> None:
    daemon.start(2)
    burnin = Burnin(daemon, long(PLAN))
    with daemon.start_command(*burnin.words) as process:
        eventually(lambda: burnin.count("burnin.phase_started") == 2)
        (recorder,) = psutil.Process(process.pid).children()
        if how == "kill":
            recorder.kill()
        else:
            recorder.rlimit(psutil.RLIMIT_FSIZE, (1, 1))
        _, errors = process.communicate(timeout=3 * TIMEOUT_S)
    assert process.returncode == ExitCode.USAGE, errors
    eventually(lambda: daemon.client.status().daemon.burnin is None)


def test_a_run_ends_with_the_process_that_records_it(daemon: Daemon) -> None:
    daemon.start(2)
    burnin = Burnin(daemon, long(PLAN))
    with daemon.start_command(*burnin.words) as process:
        eventually(lambda: burnin.count("burnin.phase_started") == 2)
        (recorder,) = psutil.Process(process.pid).children()
        process.kill()
        process.wait(TIMEOUT_S)
        assert daemon.client.status().daemon.burnin is not None
        recorder.kill()
    eventually(lambda: daemon.client.status().daemon.burnin is None)


def test_a_wrong_card_is_shown_while_a_daemon_has_others(daemon: Daemon) -> None:
    counts = VerifiedCounts(seconds=10.0, checks=5, errors=2)
    work = StoredWork(index=7, name="removed", since=1e9, last=1.7e9, total=counts)
    daemon.places.state.mkdir(parents=True, exist_ok=True)
    verified_store.save(daemon.places.state / verified_store.NAME, {"GPU-removed": work}, {})
    daemon.start(1)
    shown = daemon.run_unchecked("health", "--simulated", "--json")
    found = {one["index"]: one["verified"]["errors"] for one in json.loads(shown.out)["gpus"]}
    assert found == {0: 0, 7: 2}
    assert shown.code == ExitCode.FAIL


def test_a_run_without_an_event_has_a_verdict_without_a_date(daemon: Daemon) -> None:
    run = {"id": "cut", "ended": None, "plan": {"name": "short"}}
    gpu = {"uuid": "GPU-0", "verdict": "INCOMPLETE", "index": 0, "model": "H200"}
    folder = daemon.places.state / RUNS / "cut"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({"gpus": [gpu], "run": run}))
    assert daemon.run("health", "--simulated").splitlines()[1].endswith("INCOMPLETE short")


def test_a_command_that_ends_while_the_run_starts_leaves_no_run(daemon: Daemon) -> None:
    daemon.start(2)
    burnin = Burnin(daemon, long(PLAN))
    request = RunRequest(
        folder=str(burnin.folder),
        plan=burnin.plan.read_text(),
        state=str(daemon.places.state),
        simulated=str(daemon.host.folder),
        socket=daemon.client.address.socket,
    )
    reader, writer = os.pipe()
    os.close(reader)  # as after Ctrl+C
    with subprocess.Popen(
        [sys.executable, "-m", "sentinel", "burnin", "record"],
        stdin=subprocess.PIPE,
        stdout=writer,
        stderr=subprocess.DEVNULL,
    ) as recorder:
        os.close(writer)
        recorder.communicate(encode(request), TIMEOUT_S)
    assert recorder.returncode != ExitCode.OK
    log = daemon.host.folder / "sentinel.log"
    eventually(lambda: "burnin.run_started" in log.read_text())
    eventually(lambda: daemon.client.status().daemon.burnin is None)
