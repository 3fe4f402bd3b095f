"""The file of verified work, which the daemons of a host share, and the GPUs that it knows."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.config.gpu_selection import KnownGpu, select_known
from sentinel.errors import NoSuchGpuError
from sentinel.host import verified_store
from sentinel.host.verified_store import NAME, StoredWork, known_gpus, save
from sentinel.protocol.api_types import GpuStatus, RepairOutcome
from sentinel.protocol.codec import from_json
from sentinel.protocol.views import VerifiedCounts
from tests.harness.example_run import RUNS, report_of
from tests.harness.stub_daemon import GPU


def work(checks: int, **facts: float) -> StoredWork:
    """Build the work of a GPU with this number of checks."""
    stored = StoredWork(index=0, name="H200", since=100.0, total=VerifiedCounts(checks=checks))
    return replace(stored, **facts)  # type: ignore[arg-type]


def test_two_daemons_keep_the_work_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / NAME
    verified_store.save(path, {"A": work(1)}, {})
    verified_store.save(path, {"B": work(2)}, {})
    verified_store.save(path, {"A": work(3)}, {"A": work(1)})
    assert {uuid: one.total.checks for uuid, one in verified_store.read(path).items()} == {
        "A": 3,
        "B": 2,
    }


def test_the_work_of_two_daemons_on_one_gpu_is_added(tmp_path: Path) -> None:
    path = tmp_path / NAME
    verified_store.save(path, {"A": work(10)}, {})
    verified_store.save(path, {"A": work(15, since=50.0)}, {"A": work(10)})
    merged = verified_store.save(path, {"A": work(12, last=9.0)}, {"A": work(10)})
    assert merged["A"].total.checks == 17
    assert merged["A"].since == 50.0
    # A daemon that only watches the GPU changes nothing.
    idle = work(10, daemon=7.0)
    assert verified_store.save(path, {"A": idle}, {"A": work(10)})["A"] == merged["A"]


def test_the_work_of_a_private_daemon_is_added_to_what_a_daemon_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / NAME
    proof = verified_store.proof_of(work(7, last=200.0))
    gpu = from_json(GpuStatus, {**GPU, "uuid": "A"}, "GPU")
    gpus = [replace(gpu, verified=proof), replace(gpu, uuid="B", verified=None)]
    verified_store.add_work(path, gpus)
    assert verified_store.read(path)["A"].total.checks == 7
    running = work(3, last=300.0, daemon=5.0)
    verified_store.save(path, {"A": running}, {})
    before = verified_store.read(path)["A"]
    verified_store.add_work(path, gpus)
    (after,) = verified_store.read(path).values()
    assert (after.total.checks, after.daemon) == (before.total.checks + 7, 5.0)
    path.write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        verified_store.add_work(path, gpus)
    assert path.read_text() == "{", "it is not replaced"


def test_a_lock_that_is_kept_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_store, "_LOCK_TIMEOUT_S", 0.0)
    with (tmp_path / f"{NAME}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process keeps it locked"):
            verified_store.save(tmp_path / NAME, {"A": work(1)}, {})
    assert not (tmp_path / NAME).exists()


def faulty(errors: int, findings: int = 0) -> StoredWork:
    counts = VerifiedCounts(checks=9, errors=errors, findings=findings)
    return StoredWork(index=0, name="H200", since=100.0, total=counts)


def wrong(path: Path, uuid: str = "A") -> int:
    return verified_store.proof_of(verified_store.read(path)[uuid]).wrong


def test_acknowledged_results_stay_counted_and_later_ones_count_again(tmp_path: Path) -> None:
    path = tmp_path / NAME
    verified_store.save(path, {"A": faulty(2, findings=1), "B": faulty(5)}, {})
    done = verified_store.acknowledge(path, ["A", "unknown"], "root", "replaced the riser")
    assert list(done) == ["A"]
    assert (done["A"].errors, done["A"].findings, done["A"].by) == (2, 1, "root")
    assert (wrong(path), wrong(path, "B")) == (0, 5)
    assert verified_store.read(path)["A"].total == faulty(2, findings=1).total
    assert not verified_store.acknowledge(path, ["A"], "root", "again"), "nothing is left"

    # A daemon that has counted on, and does not know of it.
    verified_store.save(path, {"A": faulty(6, findings=1)}, {"A": faulty(2, findings=1)})
    assert wrong(path) == 4
    verified_store.acknowledge(path, ["A"], "root", "and the card, too")
    stored = verified_store.read(path)["A"].acknowledged
    assert [(one.errors, one.findings, one.reason) for one in stored] == [
        (2, 1, "replaced the riser"),
        (4, 0, "and the card, too"),
    ]
    assert wrong(path) == 0


def test_confirmed_faults_are_counted_also_those_that_were_not_found(tmp_path: Path) -> None:
    path = tmp_path / NAME
    assert verified_store.confirmed_faulty(tmp_path) == {"known": 0, "found_first": 0}
    gpus = {"A": faulty(2), "B": faulty(0), "C": faulty(1), "D": faulty(1), "E": faulty(0)}
    verified_store.save(path, gpus, {})
    confirmed, other = RepairOutcome.CONFIRMED, RepairOutcome.NOT_FOUND
    done = [
        verified_store.acknowledge(path, [uuid], "root", "why", outcome)
        # The vendor's word on A comes later, B shows nothing here, that on C is withdrawn.
        for uuid, outcome in [
            *(("A", None), ("A", confirmed), ("B", confirmed), ("C", confirmed)),
            *(("D", RepairOutcome.REPLACED), ("E", other), ("E", None)),
        ]
    ]
    assert [bool(one) for one in done] == [True, True, True, True, True, False, False]
    assert verified_store.confirmed_faulty(tmp_path) == {"known": 3, "found_first": 2}
    find = {"C": faulty(2)}
    verified_store.save(path, find, {"C": faulty(1)})
    verified_store.acknowledge(path, ["C"], "root", "their second test passed", other)
    assert verified_store.confirmed_faulty(tmp_path) == {"known": 2, "found_first": 1}
    (first, later) = verified_store.read(path)["A"].acknowledged
    assert (first.outcome, later.outcome, later.errors) == (None, confirmed, 0)
    assert verified_store.acknowledge(path, ["B"], "root", "it was another GPU", other)
    assert verified_store.confirmed_faulty(tmp_path) == {"known": 1, "found_first": 1}


def test_nothing_is_acknowledged_that_is_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / NAME
    verified_store.save(path, {"A": faulty(2)}, {})
    before = path.read_text()
    monkeypatch.setattr(verified_store, "_MAX_BYTES", len(before) + 10)
    with pytest.raises(OSError, match="it would have more than"):
        verified_store.acknowledge(path, ["A"], "root", "replaced")
    assert path.read_text() == before

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.undo()
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        verified_store.acknowledge(path, ["A"], "root", "replaced")
    assert path.read_text() == before


OLD = KnownGpu(uuid="GPU-aaaa1111", index=1, serial="1650001", present=False)
NEW = KnownGpu(uuid="GPU-aaaa2222", index=1, serial="1650002", present=True)
LOST = KnownGpu(uuid="GPU-bbbb3333", index=150, serial=None, present=False)
GPUS = (OLD, NEW, LOST)


@pytest.mark.parametrize(
    ("selectors", "found"),
    [
        (["1"], [NEW]),
        (["01"], [NEW]),
        (["150"], [LOST]),
        (["1650001"], [OLD]),
        (["GPU-aaaa1111"], [OLD]),
        (["gpu-BBBB"], [LOST]),
        (["bbbb,1650001", "150"], [LOST, OLD]),
        (["150-150,1-1"], [LOST, NEW]),
    ],
)
def test_an_index_means_a_present_gpu_and_the_rest_any(
    selectors: list[str], found: list[KnownGpu]
) -> None:
    assert select_known(selectors, GPUS) == tuple(gpu.uuid for gpu in found)


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("7", "no GPU matches '7'"),
        ("", "no GPU is named; write a list"),
        ("1-2", "no GPU matches '2'"),
        ("2-1", "the range '2-1' ends before it begins"),
        ("all", "no GPU matches 'all'"),
        ("GPU-", "no GPU matches 'GPU-'"),
        ("GPU-cccc", "no GPU matches"),
    ],
)
def test_an_unknown_gpu_is_an_error_with_the_known_ones(selector: str, why: str) -> None:
    with pytest.raises(NoSuchGpuError, match=why) as error:
        select_known([selector], GPUS)
    assert "GPU-bbbb3333" in error.value.remedy
    assert "missing" in error.value.remedy


def test_an_index_that_two_missing_gpus_had_is_ambiguous() -> None:
    gone = KnownGpu(uuid="GPU-aaaa2222", index=1, serial="1650002", present=False)
    with pytest.raises(NoSuchGpuError, match="matches several GPUs"):
        select_known(["1"], (OLD, gone))


def test_without_any_gpu_that_is_said() -> None:
    with pytest.raises(NoSuchGpuError, match="No verified work"):
        select_known(["0"], ())


def test_the_gpus_of_earlier_runs_and_of_verified_work_are_known(tmp_path: Path) -> None:
    report = report_of(RUNS["PASS"], tmp_path / "runs" / "1")
    (tmp_path / "runs" / "1" / "report.json").write_text(json.dumps(report))
    save(tmp_path / NAME, {"GPU-old": work(1)}, {})
    first = report["gpus"][0]
    found = known_gpus(tmp_path)
    assert found[first["uuid"]] == (
        f"GPU 0 {first['uuid']}, serial {first['serial']}, PCI {first['pci_bus_id']}"
    )
    assert found["GPU-old"].startswith("GPU 0 GPU-old")
    (tmp_path / NAME).write_text("{")
    assert first["uuid"] in known_gpus(tmp_path)
    assert known_gpus(tmp_path / "nowhere") == {}
