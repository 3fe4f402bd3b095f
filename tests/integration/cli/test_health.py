"""``sentinel health --npd``: the condition of the node by the last verdict of each GPU."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli.daemon.health import command
from sentinel.host.daemons.daemon_lookup import find_shared, locate
from sentinel.host.stores.verified_store import StoredWork, save
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.judged_run import RUNS, report_of
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


CASES = [
    ("PASS", 0, "2 GPUs passed the last burn-in"),
    ("WARN", 0, "2 GPUs passed the last burn-in"),
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
