"""``sentinel health --npd``: the condition of the node by the last verdict of each GPU."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pwd
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.burnin.run_folder import RunFolder
from sentinel.cli.daemon.health import command
from sentinel.cli.main import run_command_line
from sentinel.host.daemon_lookup import find_shared, locate
from sentinel.host.timed_file import FAULTS, Clocks
from sentinel.host.verified_store import StoredWork, confirmed_faulty, load, read, save
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.views import KnownFaults, VerifiedCounts
from tests.harness.burnin_report import write_report
from tests.harness.command_line import CommandOutput
from tests.harness.daemon_harness import isolated_daemon
from tests.harness.example_run import RUNS, report_of
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.parameters import mostly_long
from tests.harness.sentinel_process import eventually
from tests.harness.stub_daemon import stub_daemon


@pytest.fixture
def runs(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the folder of the runs in the state directory of simulated GPUs."""
    for name, value in simulated.environment().items():
        monkeypatch.setenv(name, value)
    folder = find_shared(simulated.folder) / "runs"
    folder.mkdir(parents=True)
    return folder


def npd(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, ["--simulated", "--npd", *words], standalone_mode=False)
    assert done.exception is None, done.exception
    assert isinstance(done.return_value, int)
    (line,) = done.output.splitlines()
    assert len(line) <= 80
    return done.return_value, line


def write(runs: Path, verdict: str) -> None:
    report = report_of(RUNS[verdict], runs / "run")
    (runs / "run" / "report.json").write_text(json.dumps(report))


def test_an_expected_gpu_of_which_nothing_is_known_has_not_passed(
    runs: Path, simulated: SimulatedHost
) -> None:
    simulated.registry.create(simulated.folder, 2)
    write_report(runs.parent, {simulated.uuid(0): "PASS"}, name="run")
    assert npd()[0] == 0
    code, line = npd("--expect-gpus", "2")
    assert code == 2
    assert line == f"GPU 1 {simulated.uuid(1)[:12]}: not burned in"
    done = invoke("--expect-gpus", "2")
    assert done.code == 3
    assert "untested" in done.out


@mostly_long("verdict, code", [("FAIL", 1), ("PASS", 2)])
def test_a_fault_counts_beside_an_expectation_of_what_cannot_be_read(
    runs: Path, simulated: SimulatedHost, verdict: str, code: int
) -> None:
    simulated.registry.create(simulated.folder, 2)
    file = simulated.folder / "node.toml"
    file.write_text("[all]\nnvlinks = 18")
    write(runs, verdict)
    assert npd("--expect", str(file))[0] == code


CASES = [
    ("PASS", 0, "2 simulated GPUs passed the last burn-in"),
    ("WARN", 0, "2 simulated GPUs passed the last burn-in"),
    ("FAIL", 1, "GPU 1 "),
    ("INCOMPLETE", 2, "INCOMPLETE"),
    ("N/A", 2, "and 1 more"),
]


@pytest.mark.parametrize(("verdict", "code", "text"), CASES)
def test_the_condition_follows_the_last_verdict(
    runs: Path, verdict: str, code: int, text: str
) -> None:
    write(runs, verdict)
    found, line = npd()
    assert found == code
    assert text in line


@mostly_long("age_s, code", [(0, 1), (3600, 0)], ids=["last", "passed since"])
def test_a_fault_counts_although_its_record_was_cut_off(runs: Path, age_s: int, code: int) -> None:
    write(runs, "PASS")
    report_of(RUNS["FAIL"], runs / "cut")
    events = runs / "cut" / "events.jsonl"
    assert not (runs / "cut" / "report.json").exists()
    ended = events.stat().st_mtime - age_s
    os.utime(events, (ended, ended))
    for _ in range(2):
        assert npd()[0] == code
    assert json.loads((runs / "cut" / "report.json").read_text())["verdict"] == "FAIL"


def test_a_run_that_is_recorded_has_no_verdict_yet(runs: Path) -> None:
    write(runs, "PASS")
    report_of(RUNS["FAIL"], runs / "other")
    with RunFolder(path=runs / "other").locked():
        assert npd()[0] == 0
    (runs / "other" / "events.jsonl").write_text("{\n")
    done = CliRunner().invoke(command, ["--simulated", "--npd"], standalone_mode=False)
    assert done.return_value == 2, "it may have failed"
    assert f"{runs / 'other'} was cut off, and cannot be judged" in done.stderr
    assert not (runs / "other" / "report.json").exists()


def test_a_pass_that_proves_nothing_says_why(runs: Path) -> None:
    write(runs, "PASS")
    assert "proves nothing" not in invoke().out
    report_of(RUNS["FAIL"], runs / "later")
    (runs / "later" / "report.json").write_text("{")
    done = invoke()
    assert "proves nothing: the report of" in done.out
    assert "may be a FAIL" in done.out


@mostly_long("gone", ["run.json", "counters.json", "events.jsonl", "samples.jsonl"])
def test_after_a_run_that_cannot_be_judged_no_earlier_one_is_a_proof(runs: Path, gone: str) -> None:
    """Two files of it are gone: its report is the other one."""
    write(runs, "PASS")
    report_of(RUNS["FAIL"], runs / "cut")
    (runs / "cut" / gone).unlink()
    assert invoke("--npd").code != 0
    if gone != "counters.json":
        (gpu, _) = json.loads(invoke("--json").out.partition("\n")[2])["gpus"]
        assert "cut was cut off, and cannot be judged" in gpu["burnin"]["no_proof"]
        for file in (runs / "cut").iterdir():
            os.utime(file, (1, 1))
        assert invoke("--npd").code == 0, "the PASS is later"


def test_a_run_that_was_killed_before_it_began_proves_nothing(runs: Path) -> None:
    write(runs, "PASS")
    report_of(RUNS["FAIL"], runs / "cut")
    for name in ("events.jsonl", "samples.jsonl", "counters.json"):
        (runs / "cut" / name).unlink()
    assert npd()[0] == 0


def test_wrong_results_are_not_forgotten_with_their_file(runs: Path) -> None:
    write(runs, "PASS")
    store(runs, GPU_a=3)
    assert invoke().code == 1
    (runs.parent / "verified.json").unlink()
    done = invoke()
    assert (done.code, "what its daemons have found is not known" in done.out) == (2, True)
    assert npd()[0] == 2
    (runs.parent / "verified.json.lock").unlink()
    assert invoke().code == 0


def test_wrong_results_are_not_forgotten_when_a_daemon_sets_their_file_aside(runs: Path) -> None:
    write(runs, "PASS")
    store(runs, GPU_a=3)
    path = runs.parent / "verified.json"
    path.write_text(path.read_text()[:-9])
    assert load(path)[1] is not None
    store(runs, GPU_a=0)
    kept = path.with_name("verified.json.bad")
    done = invoke()
    assert (done.code, f"{kept} is damaged: what it had is not known" in done.out) == (3, True)
    cards = json.loads(invoke("--json").out)["gpus"]
    assert all(card["unknown"].startswith(f"{kept} is damaged") for card in cards)
    assert npd()[0] == 2
    assert invoke("--require", "PASS").code == 3
    kept.rename(path.with_name("removed"))
    assert invoke().code == 0
    path.with_name("removed").rename(kept)
    store(runs, GPU_a=1)
    assert invoke().code == 1, "a known fault is not hidden"


def test_nothing_is_known_without_a_burn_in(runs: Path) -> None:
    assert npd() == (2, "no burn-in is known")


def test_a_file_that_cannot_be_read_is_unknown_and_no_fault(runs: Path) -> None:
    (runs.parent / "verified.json").write_text("{")
    code, line = npd()
    assert code == 2
    assert line[:60] == str(runs.parent / "verified.json")[:60]  # the line may be cut


def test_a_card_that_was_replaced_no_longer_counts(runs: Path, simulated: SimulatedHost) -> None:
    write(runs, "FAIL")
    assert npd()[0] == 1
    socket = Path(locate(simulated=simulated.folder).socket)
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with stub_daemon(socket):  # its only GPU is another card
        assert npd() == (2, "GPU 0 GPU-952937bc: not burned in")


@pytest.mark.parametrize("known_by", ["burn-in", "daemon"])
def test_without_a_daemon_a_card_in_whose_place_another_is_has_no_known_fault(
    runs: Path, known_by: str
) -> None:
    write(runs, "FAIL")
    report = json.loads((runs / "run" / "report.json").read_text())
    (bad,) = (gpu for gpu in report["gpus"] if gpu["verdict"] == "FAIL")
    ended = datetime.fromisoformat(report["run"]["ended"]) + timedelta(hours=1)
    if known_by == "burn-in":
        report["run"]["ended"] = ended.isoformat()
        report["gpus"] = [{**bad, "uuid": "GPU-new", "verdict": "PASS"}]
        (runs / "later").mkdir()
        (runs / "later" / "report.json").write_text(json.dumps(report))
    else:
        at = ended.timestamp()
        new = StoredWork(index=bad["index"], name="new", since=at, daemon=at)
        save(runs.parent / "verified.json", {"GPU-new": new}, {})
    code, line = npd()
    assert code == 2, "neither a fault nor proved good"
    assert bad["uuid"][:12] in line or "GPU-new" in line


def test_the_formats_exclude_each_other(runs: Path) -> None:
    done = CliRunner().invoke(command, ["--simulated", "--npd", "--json"])
    assert done.exit_code == 2
    assert "exclude each other" in done.output


# --- untested GPUs, and what a script requires -----------------------------------------------


@mostly_long(
    "verdicts, words, code",
    [
        ((), "", 3),
        (("PASS", "PASS"), "", 0),
        (("INCOMPLETE",), "", 0),
        (("FAIL",), "", 1),
        (("PASS", "PASS"), "--require pass", 0),
        (("PASS", "WARN"), "--require warn", 0),
        (("PASS", "WARN"), "--require pass", 3),
        (("PASS", "N/A"), "--require warn", 3),
        (("PASS", "INCOMPLETE"), "--require pass", 3),
        (("PASS", "FAIL"), "--require warn", 1),
        (("PASS",), "--require pass", 3),
        ((), "--require pass", 3),
        (("PASS",), "--require pass --gpus 0", 0),
        (("PASS",), "--require pass --gpus 1", 3),
        (("PASS", "FAIL"), "--require pass --gpus 0", 0),
        (("FAIL", "PASS"), "--require pass --gpus 0 --gpus 1", 1),
        (("PASS", "PASS"), "--strict", 0),
        (("PASS", "WARN"), "--strict", 1),
        (("PASS", "N/A"), "--strict", 3),
        (("PASS", "INCOMPLETE"), "--strict", 3),
        (("FAIL", "INCOMPLETE"), "--strict", 1),
        (("PASS", "N/A"), "", 0),
        (("PASS",), "--gpus 9", 4),
        (("PASS",), "--gpus 1-0", 2),
        (("PASS",), "--require pass --npd", 2),
    ],
    quick=5,
)
def test_a_script_can_require_that_every_gpu_of_the_host_has_passed(
    runs: Path, simulated: SimulatedHost, verdicts: tuple[str, ...], words: str, code: int
) -> None:
    """No daemon runs; the host has two GPUs, also where nothing is known of one."""
    simulated.registry.create(simulated.folder, 2)
    for index, verdict in enumerate(verdicts):
        write_report(runs.parent, {simulated.uuid(index): verdict}, name=f"run-{index}")
    done = invoke(*words.split())
    assert done.code == code, done.out
    if not verdicts:
        assert "untested" in done.out
    if code == 3 and "--require" in words:
        assert "not burned in" in done.out or verdicts[-1] in done.out


@mostly_long(
    "words, code, why",
    [
        ("--require pass --level screen", 0, ""),
        ("--require pass --level standard", 0, ""),
        ("--require pass --level long", 3, "not burned in with the work of level long"),
        ("--require pass --level soak", 3, "--require pass --level soak: GPU 0"),
        ("--require pass --max-age 4d", 0, ""),
        ("--require warn --level standard --max-age 2d", 3, "PASS standard: it ended 3 d"),
        ("--level long", 2, "need --require"),
        ("--max-age 4d --npd", 2, "need --require"),
        ("--require pass --level quick", 2, "not one of screen, standard, long, soak"),
        ("--require pass --max-age soon", 2, "soon"),
    ],
    quick=4,
)
def test_a_script_can_require_a_level_and_a_recent_run(
    runs: Path, simulated: SimulatedHost, words: str, code: int, why: str
) -> None:
    write_report(runs.parent, {simulated.uuid(0): "PASS"})
    done = invoke("--gpus", "0", *words.split())
    assert (done.code, why in done.out) == (code, True), done.out


def test_a_longer_run_still_counts_after_a_shorter_one(
    runs: Path, simulated: SimulatedHost
) -> None:
    os.utime(write_report(runs.parent, {simulated.uuid(0): "PASS"}, "long", level="long"), (1, 1))
    write_report(runs.parent, {simulated.uuid(0): "PASS"}, "standard")
    long = ("--gpus", "0", "--require", "pass", "--level", "long")
    assert invoke(*long).code == 0
    write_report(runs.parent, {simulated.uuid(0): "FAIL"}, "screen", level="screen")
    assert invoke(*long).code == 1, "whatever its level, a FAIL is one"


def test_a_fail_that_a_short_run_has_not_taken_back_says_so(runs: Path) -> None:
    write(runs, "FAIL")
    os.utime(runs / "run" / "report.json", (1, 1))
    later = report_of(replace(RUNS["PASS"], seconds=120.0, name="later"), runs / "later")
    (runs / "later" / "report.json").write_text(json.dumps(later))
    assert npd()[0] == 1
    done = invoke()
    assert done.code == 1
    assert "the FAIL of example stands: later (N/A) takes nothing back: 48 s of work" in done.out
    (_, faulty) = json.loads(invoke("--json").out)["gpus"]
    assert faulty["burnin"]["not_taken_back"] in done.out


@mostly_long("fault, words", [("error", "a simulated error"), ("lost", "fell off the bus")])
def test_a_gpu_that_cannot_be_read_now_meets_no_requirement(
    runs: Path, simulated: SimulatedHost, fault: str, words: str
) -> None:
    write_report(runs.parent, {simulated.uuid(0): "PASS"})
    simulated.registry.inject(simulated.uuid(0), fault)
    done = invoke("--require", "pass", "--gpus", "0")
    assert (done.code, words in done.out) == (3, True), done.out


def test_a_gpu_that_its_daemon_cannot_read_is_not_called_good(
    runs: Path, simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolated_daemon(simulated, monkeypatch) as daemon:
        daemon.start(2, "--paused")
        write_report(daemon.places.state, {simulated.uuid(gpu): "PASS" for gpu in (0, 1)})
        daemon.wait_until_read()
        assert daemon.run_unchecked("health").code == 0
        simulated.registry.inject(simulated.uuid(1), "error")
        eventually(lambda: daemon.gpu(1).occupancy == "UNKNOWN")
        found = daemon.run_unchecked("health")
        assert (found.code, "GPU 1: unknown: " in found.out) == (3, True), found.out
        npd = daemon.run_unchecked("health", "--npd")
        assert (npd.code, npd.out.startswith("GPU 1 ")) == (2, True), npd.out
        checked = daemon.run("slurm", "healthcheck")
        assert re.search(r"GPU 1: unknown: .*; no fault on 1 GPU", checked)
        daemon.run("pause", "--release")
        eventually(lambda: daemon.gpu(1).admin == "RELEASED")
        assert daemon.run_unchecked("health").code == 0, "nothing is read by order"


# --- acknowledged results --------------------------------------------------------------------


def invoke(*words: str) -> CommandOutput:
    """Run the command; its output has the errors, too."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run_command_line(["health", "--simulated", *words])
    return CommandOutput(code, out.getvalue(), "")


def store(runs: Path, **gpus: int) -> None:
    """Store the wrong results of GPUs by UUID, each with the index of its place."""
    work = {
        uuid.replace("_", "-"): StoredWork(
            index=index, name="H200", since=100.0, last=200.0, total=VerifiedCounts(errors=errors)
        )
        for index, (uuid, errors) in enumerate(gpus.items())
    }
    save(runs.parent / "verified.json", work, {})


def test_without_a_daemon_the_file_has_who_acknowledged_what_when_and_why(runs: Path) -> None:
    store(runs, GPU_a=3, GPU_b=1)
    assert invoke().code == 1
    done = invoke("--acknowledge", "0", "--acknowledge", "GPU-b", "--reason", "replaced the riser")
    assert done.code == 0
    assert "3 wrong results of GPU-a; 1 wrong result of GPU-b" in done.out
    shown = invoke()
    assert shown.code == 0
    user = pwd.getpwuid(os.getuid()).pw_name
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    line = f"GPU 0: 3 wrong results acknowledged {when} by {user}: replaced the riser"
    assert re.search(line, shown.out)
    (first, _) = json.loads(invoke("--json").out)["gpus"]
    assert first["verified"]["errors"] == 3, "nothing is erased"
    assert first["verified"]["acknowledged"][0]["reason"] == "replaced the riser"
    unknown = invoke("--acknowledge", "9", "--reason", "typed wrong")
    assert "1  GPU-b  not read: no daemon runs" in unknown.out
    assert "missing" not in unknown.out
    again = invoke("--acknowledge", "0", "--reason", "again")
    assert again.code == 1
    assert "no wrong results or XIDs count against GPU-a" in again.out


def test_the_xids_that_the_last_daemon_knew_are_acknowledged_without_one(runs: Path) -> None:
    gpus = [
        Gpu(uuid=f"GPU-{name}", index=index, name="H200", pci_bus_id="", memory_total=2**34)
        for index, name in enumerate("ab")
    ]
    known = [KnownFaults(gpu=gpu, xids=(48,), lost=gpu.index > 0) for gpu in gpus]
    FAULTS.write(runs.parent / FAULTS.name, known, Clocks.read())
    assert "GPU 0: XID 48" in invoke().out
    done = invoke("--acknowledge", "0-1", "--reason", "reset by hand")
    assert (done.code, "faults of GPU-a; faults of GPU-b" in done.out) == (0, True)
    shown = invoke()
    assert (shown.code, "XID" in shown.out, "lists it no more" in shown.out) == (1, False, True)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert re.search(rf"GPU 0: faults acknowledged [-0-9: ]+ by {user}: reset by hand", shown.out)
    again = invoke("--acknowledge", "1", "--reason", "again")
    assert (again.code, "no wrong results or XIDs count" in again.out) == (1, True)


def test_the_outcome_is_shown_and_a_confirmed_fault_needs_no_wrong_result(runs: Path) -> None:
    store(runs, GPU_a=3, GPU_b=0)
    done = invoke("--acknowledge", "0", "--reason", "RMA 4711", "--outcome", "not-found")
    assert (done.code, "3 wrong results of GPU-a" in done.out) == (0, True)
    later = ("--acknowledge", "0-1", "--reason", "RMA 4712", "--outcome")
    unknown = ("--acknowledge", "1", *later[2:])
    assert invoke(*unknown, "replaced").code == 1, "nothing counts against it"
    done = invoke(*later, "confirmed")
    assert (done.code, "faults of GPU-b" in done.out) == (0, True)
    assert invoke(*unknown, "not-found").code == 0, "a confirmation may be withdrawn"
    assert confirmed_faulty(runs.parent) == {"known": 1, "found_first": 1}
    assert invoke(*unknown, "confirmed").code == 0
    shown = invoke().out
    assert re.search(r"GPU 0: 3 wrong results acknowledged .*, not-found: RMA 4711", shown)
    assert re.search(r"GPU 1: faults acknowledged .*, confirmed: RMA 4712", shown)
    (first, _) = json.loads(invoke("--json").out)["gpus"]
    outcomes = [one["outcome"] for one in first["verified"]["acknowledged"]]
    assert outcomes == ["not-found", "confirmed"]
    assert confirmed_faulty(runs.parent) == {"known": 2, "found_first": 1}


def test_beyond_a_hundred_gpus_each_can_be_named(runs: Path) -> None:
    store(runs, **{f"GPU_{number:04}": 1 for number in range(130)})
    assert invoke("--acknowledge", "129", "--reason", "replaced").code == 0
    suspect = [one for one in json.loads(invoke("--json").out)["gpus"] if one["verified"]]
    assert [one["index"] for one in suspect if one["verified"]["acknowledged"]] == [129]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--acknowledge", "0"], 2, "need each other"),
        (["--reason", "why"], 2, "need each other"),
        (["--acknowledge", "0", "--reason", "why", "--npd"], 2, "exclude --npd"),
        (["--outcome", "confirmed"], 2, "--outcome needs both"),
        (["--acknowledge", "0", "--reason", "why", "--outcome", "lost"], 2, "not one of confirmed"),
        (["--acknowledge", "0", "--reason", " " * 201], 2, "1 to 200 characters"),
        (["--acknowledge", "0", "--reason", ""], 2, "1 to 200 characters"),
        (["--acknowledge", "0", "--reason", "two\nlines"], 2, "1 to 200 characters"),
        (["--acknowledge", "9", "--reason", "why"], 4, "no GPU matches '9'"),
    ],
)
def test_wrong_usage_acknowledges_nothing(
    runs: Path, words: list[str], code: int, why: str
) -> None:
    store(runs, GPU_a=3)
    done = invoke(*words)
    assert (done.code, why in done.out) == (code, True), done.out
    assert not read(runs.parent / "verified.json")["GPU-a"].acknowledged


def test_a_file_of_another_user_is_left_as_it_is(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(runs, GPU_a=3)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    done = invoke("--acknowledge", "0", "--reason", "why")
    assert done.code != 0
    assert "belongs to another user" in done.out


@pytest.mark.long
def test_with_a_daemon_it_is_acknowledged_there(
    runs: Path, simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolated_daemon(simulated, monkeypatch) as daemon:
        daemon.start(1, "--workload", "bad_workloads:faulty")
        client = daemon.client

        def standing() -> int:
            proof = client.gpu(0).verified
            return 0 if proof is None else proof.wrong

        eventually(lambda: standing() > 0)
        daemon.run("pause", "0")
        found = client.gpu(0).verified
        assert found is not None
        done = daemon.run("health", "--acknowledge", "0", "--reason", "replaced the riser")
        assert f"acknowledged {found.wrong} wrong result" in done
        assert standing() == 0
        daemon.run("resume", "0")
        eventually(lambda: standing() > 0)
