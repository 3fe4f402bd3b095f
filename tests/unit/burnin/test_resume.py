"""Going on with a run: what it leaves of the former part, and when it is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.check import Status
from sentinel.burnin.checks.thresholds import Thresholds, above
from sentinel.burnin.formats import write_reports
from sentinel.burnin.report import judge_run
from sentinel.burnin.run import earlier_work
from sentinel.burnin.run_folder import RunFolder, complete, reopen
from sentinel.burnin.verdict import Verdict
from sentinel.diagnostics.counters import CountersResult
from sentinel.errors import ConfigError
from sentinel.host.procfs import boot_id
from sentinel.protocol.codec import from_json
from sentinel.protocol.counters import Counters
from sentinel.protocol.version import __version__
from tests.harness.example_run import STARTED, ExampleRun

NOW = STARTED + timedelta(minutes=5)
CUT = ExampleRun(cut=frozenset({0, 1}))


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def counters_of(folder: RunFolder) -> tuple[Counters, ...]:
    found = json.loads(folder.counters.read_text())["before"]
    return tuple(from_json(Counters, one, "counters") for one in found)


def resumable(run: ExampleRun, path: Path) -> RunFolder:
    """Write the folder of a run of this version and boot."""
    folder = run.write(path)
    rewrite(folder.header, version=__version__, boot=boot_id())
    return folder


def refusal(folder: RunFolder, thresholds: Thresholds) -> str:
    with pytest.raises(ConfigError) as error:
        earlier_work(folder, NOW, counters_of(folder), thresholds)
    return error.value.what


def test_a_resumed_run_that_is_killed_has_no_counters_after_it(tmp_path: Path) -> None:
    """The last part of this run has done its phases, and was killed before its counters."""
    folder = ExampleRun().write(tmp_path)
    assert judge_run(folder, Thresholds()).verdict is Verdict.PASS
    reopen(folder, [])
    found = judge_run(folder, Thresholds())
    assert found.verdict is Verdict.INCOMPLETE
    (reason,) = found.gpus[0].reasons
    assert "counters after the run are not known" in reason


def test_the_log_of_a_killed_part_stays_unknown(tmp_path: Path) -> None:
    """The first part ends, the second one is killed, and the third one ends."""
    folder = ExampleRun().write(tmp_path)
    after = CountersResult(counters=counters_of(folder), driver_error=None, stuck=False)
    reopen(folder, [])
    complete(folder, after, None)
    assert json.loads(folder.counters.read_text())["kernel_log_error"] is None
    reopen(folder, [])
    reopen(folder, [])
    complete(folder, after, None)
    found = judge_run(folder, Thresholds()).gpus[0]
    (xid,) = (result for result in found.results if result.id == "xid")
    assert xid.status is Status.NOT_TESTED
    assert "cut off" in json.loads(folder.counters.read_text())["kernel_log_error"]


def test_a_fault_by_other_limits_stays_final(tmp_path: Path) -> None:
    """The report has failed the run by a file of thresholds, which is not given again."""
    folder = resumable(CUT, tmp_path)
    earlier_work(folder, NOW, counters_of(folder), Thresholds())
    strict = Thresholds(replaced={"load.power": {"fail": above(0)}})
    assert "GPU 0 has failed" in refusal(folder, strict)
    write_reports(folder, judge_run(folder, strict))
    assert "GPU 0 has failed" in refusal(folder, Thresholds())


def test_a_run_goes_on_by_the_limits_that_are_given(tmp_path: Path) -> None:
    """What fails by the default limits does not by those of the file, as in its report."""
    run = ExampleRun(cut=frozenset({0, 1}), moved={0: {"ecc_uncorrected_total": 1}})
    folder = resumable(run, tmp_path)
    assert "GPU 0 has failed" in refusal(folder, Thresholds())
    lenient = Thresholds(replaced={"ecc.uncorrected_new": {"fail": above(5)}})
    _, burnins = earlier_work(folder, NOW, counters_of(folder), lenient)
    assert [burnin.phase for burnin in burnins.values()] == [2, 2]
