"""The last verdict of each GPU is found in the reports of the state folder."""

from __future__ import annotations

from datetime import timedelta
from os import utime
from pathlib import Path

import pytest

from sentinel.api.stores import BurninVerdicts
from sentinel.host.verified_store import MAX_RUNS
from tests.harness.burnin_report import ENDED, write_report


def verdicts(found: BurninVerdicts) -> dict[str, str]:
    """Look for reports; return the verdict of each GPU."""
    found.look()
    return {uuid: gpu.verdict for uuid, gpu in found.gpus.items()}


def test_the_newest_report_of_each_gpu_counts(tmp_path: Path) -> None:
    found = BurninVerdicts(tmp_path)
    assert verdicts(found) == {}
    first = write_report(tmp_path, {"GPU-0": "FAIL", "GPU-1": "WARN"}, "first")
    utime(first, (1.0, 1.0))
    assert verdicts(found) == {"GPU-0": "FAIL", "GPU-1": "WARN"}
    later = ENDED + timedelta(days=1)
    second = write_report(tmp_path, {"GPU-0": "PASS"}, "second", ended=later)
    assert verdicts(found) == {"GPU-0": "PASS", "GPU-1": "WARN"}
    assert (found.gpus["GPU-0"].run, found.gpus["GPU-0"].ended) == ("second", later)
    second.unlink()
    first.unlink()
    assert verdicts(found) == {}


@pytest.mark.parametrize("later", ["INCOMPLETE", "N/A"])
def test_a_run_that_proves_nothing_takes_no_fault_back(tmp_path: Path, later: str) -> None:
    found = BurninVerdicts(tmp_path)
    utime(write_report(tmp_path, {"GPU-0": "FAIL", "GPU-1": "PASS"}, "first"), (1.0, 1.0))
    utime(write_report(tmp_path, {"GPU-0": later, "GPU-1": later}, "second"), (2.0, 2.0))
    assert verdicts(found) == {"GPU-0": "FAIL", "GPU-1": later}
    write_report(tmp_path, {"GPU-0": "PASS"}, "third")
    assert verdicts(found) == {"GPU-0": "PASS", "GPU-1": later}


def test_a_fault_is_known_however_many_runs_prove_nothing_after_it(tmp_path: Path) -> None:
    found = BurninVerdicts(tmp_path)
    utime(write_report(tmp_path, {"GPU-0": "FAIL", "GPU-1": "FAIL"}, "first"), (1.0, 1.0))
    utime(write_report(tmp_path, {"GPU-1": "PASS"}, "second"), (2.0, 2.0))
    for number in range(MAX_RUNS + 1):
        screen = write_report(tmp_path, {"GPU-0": "N/A"}, f"screen-{number}")
        utime(screen, (3.0 + number, 3.0 + number))
    assert verdicts(found) == {"GPU-0": "FAIL", "GPU-1": "PASS"}


def test_an_invalid_report_is_none(tmp_path: Path) -> None:
    found = BurninVerdicts(tmp_path)
    good = write_report(tmp_path, {"GPU-0": "PASS"}, "good", ended=None)
    utime(good, (1.0, 1.0))
    for number, text in enumerate(("", "[]", "{}", '{"run": {"ended": 3}, "gpus": []}')):
        write_report(tmp_path, {}, f"bad-{number}").write_text(text)
    text = good.read_text().replace('"ended": null', '"ended": "soon"').replace("PASS", "FAIL")
    write_report(tmp_path, {}, "bad-date").write_text(text)
    assert verdicts(found) == {"GPU-0": "PASS"}
    assert found.gpus["GPU-0"].ended is None
