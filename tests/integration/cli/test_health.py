"""``sentinel health --npd``: the condition of the node by the last verdict of each GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli.daemon.health import command
from sentinel.host.daemon_lookup import find_shared, locate
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
    ("PASS", 0, "2 GPUs passed their last burn-in"),
    ("WARN", 0, "2 GPUs passed their last burn-in"),
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


def test_the_formats_exclude_each_other(runs: Path) -> None:
    done = CliRunner().invoke(command, ["--simulated", "--npd", "--json"])
    assert done.exit_code == 2
    assert "exclude each other" in done.output
