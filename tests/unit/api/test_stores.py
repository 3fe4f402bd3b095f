"""What each GPU has proved is added up over daemons, and never twice; its last verdict is found."""

from __future__ import annotations

import asyncio
import errno
from datetime import timedelta
from os import utime
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.api import stores
from sentinel.api.bodies import ProblemError
from sentinel.api.stores import BurninVerdicts, VerifiedTotal
from sentinel.host import verified_store
from sentinel.host.last_verdicts import MAX_RUNS
from sentinel.host.verified_store import StoredWork
from sentinel.protocol.views import GpuView, VerifiedCounts, VerifiedWork
from tests.harness.burnin_report import ENDED, write_report
from tests.harness.gpu_views import gpu_view
from tests.harness.sentinel_process import eventually

UUID = "GPU-0"


def view(seconds: float, checks: int, errors: int = 0) -> GpuView:
    """Build the view of a GPU that has verified so much since the start of its daemon."""
    counts = VerifiedCounts(seconds=seconds, checks=checks, errors=errors)
    work = VerifiedWork(counts=counts, at=99.0 if checks else None, workload="gemm")
    return gpu_view(verified=work)


def total(path: Path, began: float, warnings: list[str] | None = None) -> VerifiedTotal:
    return VerifiedTotal(path, began, (warnings if warnings is not None else []).append)


def test_a_new_daemon_adds_and_a_new_api_process_does_not_count_twice(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    first = total(path, began=1.0)
    first.update(view(10.0, 100))
    first.update(view(20.0, 200, errors=1))
    assert first.gpus[UUID].total == VerifiedCounts(seconds=20.0, checks=200, errors=1)
    asyncio.run(first.store())
    replaced = total(path, began=1.0)
    replaced.update(view(25.0, 250, errors=1))
    assert replaced.gpus[UUID].total == VerifiedCounts(seconds=25.0, checks=250, errors=1)
    asyncio.run(replaced.store())
    another = total(path, began=2.0)
    another.update(view(0.0, 0))
    another.update(view(5.0, 50))
    work = another.gpus[UUID]
    assert work.total == VerifiedCounts(seconds=30.0, checks=300, errors=1)
    assert work.since == first.gpus[UUID].since
    assert work.workload == "gemm"


def test_a_gpu_that_has_proved_nothing_has_no_last_time(tmp_path: Path) -> None:
    one = total(tmp_path / "verified.json", began=1.0)
    one.update(view(0.0, 0))
    proof = verified_store.proof_of(one.gpus[UUID])
    assert (proof.last, proof.workload, proof.checks) == (None, None, 0)


#: A time that no calendar has.
FAR = '{"schema_version": 1, "gpus": {"GPU-0": {"index": 0, "name": "H200", "since": 1e300}}}'


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 2, "gpus": {}}', "[" * 10**5, FAR])
def test_an_invalid_file_is_set_aside_and_reported_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "verified.json"
    path.write_text(text)
    warnings: list[str] = []
    one = total(path, 1.0, warnings)
    one.update(view(1.0, 10))
    one.update(view(2.0, 20))
    asyncio.run(one.store())
    (warning,) = warnings
    assert "was renamed to" in warning
    assert verified_store.read(path)[UUID].total.checks == 20
    kept = path.with_name("verified.json.bad")
    assert kept.read_text() == text
    assert one.forgotten is not None
    assert str(kept) in one.forgotten
    kept.unlink()
    asyncio.run(one.store())
    assert one.forgotten is None


def test_a_disk_without_room_is_reported_once_until_it_has_room(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "verified.json"
    warnings: list[str] = []
    one = total(path, 1.0, warnings)
    one.update(view(1.0, 10))
    asyncio.run(one.store())
    asyncio.run(one.store())
    assert len(warnings) == 1
    path.parent.mkdir()
    asyncio.run(one.store())
    assert isinstance(verified_store.read(path)[UUID], StoredWork)


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    one = total(path, 1.0)
    one.update(view(1.0, 10))
    asyncio.run(one.store())
    path.unlink()
    asyncio.run(one.store())
    assert not path.exists()


def wrong(one: VerifiedTotal) -> int:
    return verified_store.proof_of(one.gpus[UUID]).wrong


def test_a_crash_takes_back_nothing_of_what_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    first = total(path, began=1.0)
    first.update(view(20.0, 200))
    assert first.stored == {UUID: VerifiedCounts()}
    asyncio.run(first.store())
    first.update(view(30.0, 300))
    shown = dict(first.stored)
    assert shown == {UUID: VerifiedCounts(seconds=20.0, checks=200)}
    after_crash = total(path, began=2.0)
    after_crash.update(view(0.0, 0))
    assert after_crash.stored == shown
    after_crash.update(view(5.0, 50))
    asyncio.run(after_crash.store())
    assert after_crash.stored == {UUID: VerifiedCounts(seconds=25.0, checks=250)}


#: What a supervisor counts: seconds, checked results, errors.
COUNTED = st.tuples(st.floats(0, 1e6, allow_subnormal=False), st.integers(0, 10), st.integers(0, 3))
STEPS = st.sampled_from(
    [
        *("view", "old view", "store", "new API process", "new daemon"),
        *("another process", "older copy", "unreadable once"),
    ]
)


@given(steps=st.lists(st.tuples(STEPS, COUNTED), max_size=40))
def test_a_counter_never_falls(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, tuple[float, int, int]]]
) -> None:
    path = tmp_path_factory.mktemp("state") / "verified.json"
    began, one = 1.0, total(path, 1.0)
    now = before = (0.0, 0, 0)
    one.update(view(*now))
    asyncio.run(one.store())
    copy = path.read_text()
    shown = VerifiedCounts()
    for step, counted in steps:
        before, last = now, before
        match step:
            case "view":
                now = (now[0] + counted[0], now[1] + counted[1], now[2] + counted[2])
            case "old view":
                one.update(view(*last))
                asyncio.run(one.store())
            case "store":
                asyncio.run(one.store())
            case "older copy" if UUID in one.stored:  # this process knows that it is older
                now = (now[0] + 1.0, now[1], now[2])
                one.update(view(*now))
                path.write_text(copy)
                asyncio.run(one.store())
            case "new daemon":
                began, now, before = began + 1, (0.0, 0, 0), (0.0, 0, 0)
                one = total(path, began)
            case "new API process":
                one = total(path, began)
            case "another process":
                other = total(path, 0.5)
                other.update(view(*counted))
                asyncio.run(other.store())
            case "unreadable once":
                one = total(path, began)
                with patch.object(verified_store, "read", side_effect=OSError(errno.EIO, "")):
                    one.update(view(*now))
        one.update(view(*now))
        stored = one.stored.get(UUID, shown)  # without a series, there is nothing to fall
        assert verified_store.highest(stored, shown) == stored, step
        shown = stored


def test_a_wrong_result_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_WRITE_EVERY_S", 1e6)
    path = tmp_path / "verified.json"
    one = total(path, 1.0)

    async def written() -> None:
        task = asyncio.create_task(one.run())
        one.update(view(1.0, 10, errors=1))
        await asyncio.to_thread(eventually, path.exists)
        task.cancel()

    asyncio.run(written())
    assert verified_store.proof_of(verified_store.read(path)[UUID]).wrong == 1


def test_an_acknowledgement_covers_what_was_counted_by_then_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    one = total(path, 1.0)
    one.update(view(1.0, 10, errors=3))  # not in the file yet
    (done,) = asyncio.run(one.acknowledge([UUID], "root", "replaced the riser"))
    assert (done.uuid, done.errors, done.findings) == (UUID, 3, 0)
    assert wrong(one) == 0
    assert verified_store.proof_of(verified_store.read(path)[UUID]).wrong == 0
    one.update(view(2.0, 20, errors=4))
    assert wrong(one) == 1, "a later wrong result counts at once"
    asyncio.run(one.store())
    again = total(path, 2.0)
    again.update(view(0.0, 0))
    assert wrong(again) == 1
    (kept,) = again.gpus[UUID].acknowledged
    assert (kept.by, kept.reason, kept.errors) == ("root", "replaced the riser", 3)
    assert asyncio.run(again.acknowledge(["GPU-other"], "root", "why")) == ()


def test_an_acknowledgement_of_another_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    one = total(path, 1.0)
    one.update(view(1.0, 10, errors=3))
    asyncio.run(one.store())
    two = total(path, 2.0)  # a daemon with a socket of its own
    two.update(view(1.0, 10, errors=2))
    asyncio.run(two.acknowledge([UUID], "root", "replaced"))
    one.update(view(1.0, 12, errors=4))
    asyncio.run(one.store())
    assert wrong(one) == 1
    verified_store.acknowledge(path, [UUID], "root", "and again")
    asyncio.run(one.store())
    assert wrong(one) == 0
    assert one.gpus[UUID].total.errors == 6


def test_what_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    one = total(tmp_path / "missing" / "verified.json", 1.0)
    one.update(view(1.0, 10, errors=3))
    with pytest.raises(ProblemError, match="Nothing was acknowledged"):
        asyncio.run(one.acknowledge([UUID], "root", "replaced"))
    assert wrong(one) == 3


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


@pytest.mark.long
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
