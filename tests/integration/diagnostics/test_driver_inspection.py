"""The doctor inspects a fake driver that works, fails, hangs or crashes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.diagnostics.doctor_facts import DriverFacts, Unread
from sentinel.diagnostics.doctor_inspection import DriverInspection, inspect_driver
from sentinel.diagnostics.one_shot import Timeouts
from tests.harness.doctor_harness import doctor, rows
from tests.harness.fake_nvml import NEEDS_COMPILER, build, shared_folder
from tests.harness.parameters import mostly_long

pytestmark = NEEDS_COMPILER

UUIDS = ("GPU-0", "GPU-1", "GPU-2")


@pytest.fixture
def driver(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Load a fake driver with three GPUs; return a function that adds lines to its file."""
    library = build(shared_folder(tmp_path_factory), "-DCOUNTERS")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "driver"))

    def set_lines(*lines: str) -> None:
        nodes = (f"minor=@{uuid} {200 + index}" for index, uuid in enumerate(UUIDS))
        listed = (f"gpu {uuid}" for uuid in UUIDS)
        (tmp_path / "driver").write_text("\n".join([*listed, *nodes, *lines, ""]))

    return set_lines


@pytest.fixture
def asked(driver: Callable[..., None]) -> Any:
    """Return a function that inspects the fake driver with more lines in its file."""

    def ask(*lines: str, call: float = 30.0) -> DriverInspection:
        driver(*lines)
        return inspect_driver(Timeouts(opening=30.0, call=call))

    return ask


def test_a_working_driver_is_inspected_for_all_gpus(asked: Any) -> None:
    found = asked("uncorrected_ever=@GPU-2 5", "remapped_uncorrected=@GPU-2 2", "pid@GPU-2 77")
    assert found.driver == DriverFacts(version="580.159", cuda=(13000,))
    assert not found.stuck
    assert [(gpu.index, gpu.uuid, gpu.node) for gpu in found.gpus] == [
        (0, "GPU-0", "/dev/nvidia200"),
        (1, "GPU-1", "/dev/nvidia201"),
        (2, "GPU-2", "/dev/nvidia202"),
    ]
    first, _, gpu = found.gpus
    assert (gpu.persistence, gpu.compute_mode, gpu.display) == ((1,), (3,), (1,))
    assert (first.compute_mode, first.display, first.mig) == ((0,), (0,), (0, 0))
    assert (gpu.mig, gpu.ecc, gpu.retiring) == ((1, 0), (1, 1), (0,))
    assert (gpu.volatile, gpu.aggregate, gpu.remapped) == ((0,), (5,), (1, 2, 0, 0))
    assert (gpu.compute, gpu.mps, first.mps) == ((77,), (), (300,))
    assert (first.lost, first.name) == (None, "NVIDIA H200")


@pytest.mark.long
def test_memory_is_read_as_a_daemon_reads_it(asked: Any) -> None:
    first, second, third = asked("memory@GPU-1 3", "memory@GPU-2 999").gpus
    assert isinstance(first.memory, tuple)
    assert first.memory[0] > 0
    assert second.memory == Unread()
    assert third.memory.why
    hung, *others = asked("memory@GPU-0 hang", call=3.0).gpus
    assert "nvmlDeviceGetMemoryInfo" in (hung.lost or "")
    assert [gpu.lost for gpu in others] == [None, None]


@mostly_long(
    "line, why",
    [
        ("mps@GPU-1 999", "processes: NVML knows no better"),
        ("graphics@GPU-1 10", "processes: NVML reports: Timeout"),
        ("memory_v2@GPU-1 4", "memory: no permission"),
        ("total@GPU-1 0", "make no sense"),
        ("graphics@GPU-1 hang", "processes has not returned"),
    ],
    quick=2,
)
def test_what_a_daemon_cannot_read_is_known(asked: Any, line: str, why: str) -> None:
    first, second, third = asked(line).gpus
    assert (first.unread, third.unread) == (None, None)
    assert why in (second.unread or "")
    assert isinstance(second.compute, tuple)


def test_an_unsupported_call_has_no_value_and_a_failed_call_has_a_reason(asked: Any) -> None:
    unsupported = ("errors@GPU-0 3", "rows@GPU-0 13", "mps@GPU-0 3", "compute@GPU-0 3", "cuda 13")
    found = asked(*unsupported, "ecc@GPU-0 4", "uncorrected=@GPU-1 2", "uncorrected_ever=@GPU-1 7")
    first, second, _ = found.gpus
    assert found.driver.cuda == Unread()
    assert first.volatile == first.aggregate == first.remapped == Unread()
    assert "no permission" in first.ecc.why
    assert first.compute == Unread()
    assert first.mps == ()
    assert (second.volatile, second.aggregate) == ((2,), (7,))


@mostly_long(
    "fault, call_s, how",
    [
        ("hang", 3.0, "did not return within 3 s"),  # others may take a second on a busy host
        ("crash", 30.0, "did not return: its process was ended by SIGABRT"),
    ],
)
def test_a_call_that_does_not_return_costs_only_the_results_of_its_gpu(
    asked: Any, fault: str, call_s: float, how: str
) -> None:
    found = asked(f"ecc@GPU-1 {fault}", "pid@GPU-0 77", "pid@GPU-2 77", call=call_s)
    first, second, third = found.gpus
    assert (second.uuid, second.lost) == ("GPU-1", f"nvmlDeviceGetEccMode {how}")
    for gpu in (first, third):
        assert (gpu.lost, gpu.remapped, 77 in gpu.compute) == (None, (1, 0, 0, 0), True)
    assert found.driver == DriverFacts(version="580.159", cuda=(13000,))
    assert not found.stuck


@pytest.mark.long
def test_two_gpus_that_hang_are_both_named(asked: Any) -> None:
    first, second, third = asked("uuid@GPU-0 hang", "minor@GPU-2 crash", call=3.0).gpus
    assert first.lost.startswith("nvmlDeviceGetUUID ")
    assert first.uuid is None
    assert second.lost is None
    assert third.lost.startswith("nvmlDeviceGetMinorNumber ")


@mostly_long("fault", ["handle@GPU-1 15", "mig@GPU-1 15"])
def test_no_more_calls_are_made_for_a_lost_gpu(asked: Any, fault: str) -> None:
    first, second, third = asked(fault).gpus
    assert "fell off the bus" in second.lost
    assert second.ecc == second.compute == Unread()
    assert first.ecc == third.ecc == (1, 1)


@mostly_long(
    "fault, word",
    [
        ("init 18", "of different versions"),
        ("init 9", "modprobe nvidia"),
        ("count 999", "unknown error"),
    ],
)
def test_a_driver_that_fails_as_a_whole_has_a_reason(asked: Any, fault: str, word: str) -> None:
    found = asked(fault)
    assert word in found.driver.missing
    assert found.gpus == ()


@mostly_long(
    "content, why", [("", "file too short"), ("not a library\n" * 99, "invalid ELF header")]
)
def test_a_library_that_is_empty_or_damaged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, why: str
) -> None:
    """As left behind on a node by a container toolkit; it is not a host without a driver."""
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text(content)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = inspect_driver(Timeouts(opening=30.0, call=30.0)).driver.missing
    assert found is not None
    assert found.startswith(f"NVML cannot be loaded: {library}: {why}; ")


@pytest.mark.long
def test_a_driver_that_hangs_at_its_start_is_named_and_its_process_ended(
    driver: Callable[..., None],
) -> None:
    driver("init hang")
    before = psutil.Process().children()
    found = inspect_driver(Timeouts(opening=5.0, call=1.0))
    assert found.driver.missing == "nvmlInit did not return within 5 s"
    # multiprocessing keeps its resource tracker.
    left = [child for child in psutil.Process().children() if child not in before]
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.long
def test_the_command_examines_the_gpus_that_are_visible(driver: Callable[..., None]) -> None:
    driver("remap_pending=@GPU-2 1")
    code, output, errors = doctor("--json", CUDA_VISIBLE_DEVICES="2,0")
    assert (code, errors) == (2, "")
    found = rows(output)
    assert found["driver"]["level"] == "ok"
    assert found["GPUs"]["found"] == "2 of 3, and GPU 1-2 is never occupied"
    assert found["repairs of memory"] == {
        "check": "repairs of memory",
        "gpu": "GPU-2",
        "level": "problem",
        "found": "a remap of a row is pending",
        "means": "memory known to be bad stays in use until the GPU is reset",
        "do": "Free the GPU and run `nvidia-smi --gpu-reset`, or reboot.",
    }
    assert found["device node"]["found"] == "/dev/nvidia202 cannot be watched: " + os.strerror(2)
    code, output, _ = doctor(CUDA_VISIBLE_DEVICES="2,0")
    assert code == 2
    assert "problem  repairs of memory GPU 2: a remap of a row is pending" in output
    assert "\x1b" not in output
