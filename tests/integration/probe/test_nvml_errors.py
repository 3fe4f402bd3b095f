"""The real binding over a fake libnvidia-ml: errors, invalid answers and missing GPUs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pynvml
import pytest

from tests.harness.fake_nvml import (
    ABSENT,
    FIRST,
    NEEDS_COMPILER,
    SECOND,
    Argument,
    Ask,
    answers,
)
from tests.harness.gpu_environment import ROOT
from tests.harness.parameters import mostly_long
from tests.harness.programs import run_program

pytestmark = NEEDS_COMPILER

#: The codes that no used call returns, or that have no specific meaning.
UNUSED_CODES = {2, 5, 8, 14, *range(19, 25), 27}


@pytest.mark.parametrize(
    ("call", "fault", "error", "code"),
    [
        ("memory", "memory 15", "GpuLostError", "gpu_is_lost"),
        ("memory", "memory 16", "GpuLostError", "reset_required"),
        ("memory", "memory 11", "GpuLostError", "irq_issue"),
        ("memory", "memory 28", "GpuLostError", "gpu_not_found"),
        ("memory", "memory 4", "ReadError", "no_permission"),
        ("memory", "memory 3", "ReadError", "not_supported"),
        ("memory", "memory 13", "ReadError", "function_not_found"),
        ("memory", "memory 25", "ReadError", "argument_version_mismatch"),
        ("memory", "memory 26", "ReadError", "deprecated"),
        ("memory", "memory 2", "ReadError", "invalid_argument"),
        ("memory", "memory 6", "ReadError", "not_found"),
        ("memory", "memory 10", "ReadError", "timeout"),
        ("memory", "memory 17", "ReadError", "operating_system"),
        ("memory", "memory 999", "ReadError", "unknown"),
        ("memory", "memory 4711", "ReadError", "nvml_4711"),
        ("memory", "memory 1", "DriverGoneError", "uninitialized"),
        ("memory", "memory 9", "DriverGoneError", "driver_not_loaded"),
        ("memory", "memory 12", "DriverGoneError", "library_not_found"),
        ("memory", "memory 18", "DriverGoneError", "lib_rm_version_mismatch"),
        ("processes", "compute 15", "GpuLostError", "gpu_is_lost"),
        ("processes", "compute 3", "ReadError", "not_supported"),
        ("processes", "compute 13", "ReadError", "function_not_found"),
        ("processes", "compute 25", "ReadError", "argument_version_mismatch"),
        ("processes", "compute 26", "ReadError", "deprecated"),
        ("processes", "compute 7", "ReadError", "insufficient_size"),
        ("processes", "graphics 4", "ReadError", "no_permission"),
        ("processes", "mps 999", "ReadError", "unknown"),
        ("exclusive", "mode 4", "ReadError", "no_permission"),
        ("mig", "mig 15", "GpuLostError", "gpu_is_lost"),
        ("gpus", "count 999", "ReadError", "unknown"),
    ],
)
def test_errors_name_what_is_broken(call: str, fault: str, error: str, code: str, ask: Ask) -> None:
    """NVML's codes become one of three errors, with the name, a reason and the cause."""
    argument: Argument = [] if call == "gpus" else FIRST
    (answer,) = ask((call, argument, fault))
    assert (answer["error"], answer["code"]) == (error, code)
    assert answer["cause"].startswith("NVMLError")
    assert len(answer["reason"]) > len("an error")


def test_the_document_describes_the_effect_of_each_code(ask: Ask) -> None:
    """The names are those of the binding; the kinds are those of a memory call."""
    text = (ROOT / "docs" / "internals/reliability.md").read_text()
    kinds = re.findall(r"^\| (\w+) \| (\d+ [A-Z].*?) \|", text, re.MULTILINE)
    rows = [(*code.split(), kind) for kind, codes in kinds for code in codes.split(", ")]
    assert {int(number) for number, _, _ in rows} >= {*range(1, 29), 999} - UNUSED_CODES
    steps = [("memory", FIRST, f"memory {number}") for number, _, _ in rows]
    results = ask(*steps)
    errors = {"strike": "ReadError", "absent": "ReadError", "lost": "GpuLostError"}
    for (number, name, kind), answer in zip(rows, results, strict=True):
        assert getattr(pynvml, f"NVML_ERROR_{name}") == int(number)
        assert answer["code"] == name.lower()
        assert answer["error"] == errors.get(kind, "DriverGoneError")
        assert (int(number) in ABSENT) == (kind == "absent")


@pytest.mark.parametrize(
    ("call", "injected", "code"),
    [
        ("memory", f"used@{FIRST} {2**35}", "nonsense"),
        ("memory", f"used@{FIRST} {2**64 - 1}", "nonsense"),
        ("memory", f"total@{FIRST} 0", "nonsense"),
        ("memory", f"total@{FIRST} {2**30}", "nonsense"),
        ("processes", "overflow 1", "garbage"),
    ],
)
def test_an_inconsistent_answer_is_an_error(call: str, injected: str, code: str, ask: Ask) -> None:
    """No decision uses such a value, and the probe continues."""
    answer, after = ask((call, FIRST, injected), (call, FIRST, ""))
    assert (answer["error"], answer["code"]) == ("ReadError", code)
    assert "error" not in after


def test_impossible_pids_are_listed_like_all_others(ask: Ask) -> None:
    """Each is listed once with unknown memory, and so counts as a process."""
    pids = ("0", "4294967295", "0", "4294967295", "4194305")
    injected = "\n".join(f"pid@{SECOND} {pid}" for pid in pids)
    (processes,) = ask(("processes", SECOND, injected))
    assert [(p["pid"], p["kind"], p["memory"]) for p in processes] == [
        (0, "compute", None),
        (4194305, "compute", None),
        (4294967295, "compute", None),
    ]


@pytest.mark.parametrize("injected", ["version 999", "version 3", "undecodable 1"])
def test_an_unreadable_version_does_not_stop_reads(injected: str, ask: Ask) -> None:
    """The version is for display only."""
    version, gpus = ask(("version", None, injected), ("gpus", [], injected))
    assert version == "unknown"
    assert len(gpus) == 2


def test_a_gpu_without_name_and_bus_id_is_listed(ask: Ask) -> None:
    """A GPU is known by its UUID; a GPU without a UUID is omitted."""
    gpus, without = ask(("gpus", [], "name 999\nbus 3"), ("gpus", [], f"uuid@{FIRST} 999"))
    assert [(gpu["name"], gpu["pci_bus_id"]) for gpu in gpus] == [
        ("unreadable name", "unreadable bus")
    ] * 2
    assert [gpu["uuid"] for gpu in without] == [SECOND]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("init 9", "driver_not_loaded"),
        ("init 18", "lib_rm_version_mismatch"),
        ("init 4", "no_permission"),
    ],
)
def test_a_driver_that_fails_to_start_is_a_driver_error(
    nvml_library: Path, tmp_path: Path, fault: str, code: str
) -> None:
    """Any error at the start of NVML concerns the whole driver."""
    (answer,) = answers(nvml_library, tmp_path / "faults", ("open", None, fault))
    assert answer["error"] == "DriverGoneError"
    assert answer["code"] == code


def test_without_the_library_there_is_no_driver(tmp_path: Path) -> None:
    """The reason is a missing NVIDIA driver."""
    (answer,) = answers(tmp_path, tmp_path / "faults", ("open", None, ""))
    if "error" not in (answer or {}):
        pytest.skip("this host has a real libnvidia-ml")
    assert answer["error"] == "DriverGoneError"
    assert "no NVIDIA driver" in answer["reason"]


@mostly_long("version, code", [("535.54.03", 5), ("535.104.05", 0)])
def test_a_driver_with_wrong_pids_in_the_binding_is_refused(
    nvml_library: Path, tmp_path: Path, version: str, code: int
) -> None:
    faults = tmp_path / "faults"
    faults.write_text(f"driver {version}\n")
    words = [sys.executable, "-m", "sentinel", "--list"]
    done = run_program(
        *words,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(nvml_library),
            "FAKE_NVML": str(faults),
            "SENTINEL_CONFIG": os.devnull,
        },
    )
    assert done.returncode == code, done.stderr
    assert ("wrong PIDs" in done.stderr) is (code != 0)


def test_a_lost_gpu_does_not_hide_the_others(ask: Ask) -> None:
    """An unreachable GPU is omitted; a GPU with unreadable memory is not."""
    without_first, without_memory = ask(("gpus", [], "handle0 15"), ("gpus", [], "memory 999"))
    assert [(gpu["uuid"], gpu["index"]) for gpu in without_first] == [(SECOND, 1)]
    assert [gpu["memory_total"] for gpu in without_memory] == [0, 0]


def test_only_the_uuid_of_a_skipped_gpu_is_read(ask: Ask) -> None:
    """Any other call for the inventory may hang."""
    injected = "".join(f"{call}@{FIRST} hang\n" for call in ("name", "bus", "memory"))
    (gpus,) = ask(("gpus", [FIRST], injected))
    assert [gpu["memory_total"] for gpu in gpus] == [0, 16 * 2**30]


@pytest.mark.long
def test_a_gpu_that_does_not_identify_itself_after_a_hang_is_left_out(ask: Ask) -> None:
    """Otherwise no other GPU could be read; an error of the driver is reported."""
    gpus, without_any, gone = ask(
        ("gpus", [FIRST], f"handle@{FIRST} hang"),
        ("gpus", [FIRST], f"handle@{FIRST} 15\nuuid@{SECOND} hang"),
        ("gpus", [FIRST], f"handle@{SECOND} 9"),
    )
    assert [(gpu["uuid"], gpu["index"]) for gpu in gpus] == [(SECOND, 1)]
    assert without_any == []
    assert gone["error"] == "DriverGoneError"


def test_a_handle_is_looked_up_again_after_an_error(ask: Ask) -> None:
    """After a reset, the UUID gives a new handle, while the old one stays invalid."""
    first, second = ask(("memory", FIRST, "stale 2"), ("memory", FIRST, "stale 2"))
    assert first["error"] == "ReadError"
    assert second["used"] == 2 * 2**30


def test_a_gpu_that_the_lookup_by_uuid_misses_is_found_by_index(ask: Ask) -> None:
    """Only an unlisted GPU is lost; the first error triggers a new lookup."""
    listed = f"gpu {SECOND}\ngpu {FIRST}\nbyuuid 6"
    error, found, _, gone = ask(
        ("memory", FIRST, "memory 6"),
        ("memory", FIRST, listed),
        ("memory", FIRST, f"gpu {SECOND}"),
        ("memory", FIRST, f"gpu {SECOND}"),
    )
    assert (error["error"], error["code"]) == ("ReadError", "not_found")
    assert found["used"] == 2 * 2**30
    assert (gone["error"], gone["code"]) == ("GpuLostError", "not_found")


@pytest.mark.parametrize(
    ("call", "injected"),
    [
        ("temperature", "temperature 999"),
        ("power", "energy 999"),
        ("sm_clock", "clock 999"),
    ],
)
def test_a_failing_sensor_does_not_trigger_a_lookup(call: str, injected: str, ask: Ask) -> None:
    """The lookup calls the other GPUs, which may hang."""
    lookup_fault = "byuuid 999"
    before, failed, after = ask(
        ("memory", FIRST, ""),
        (call, FIRST, f"{injected}\n{lookup_fault}"),
        ("memory", FIRST, lookup_fault),
    )
    assert failed["error"] == "ReadError"
    assert after == before


def test_a_list_of_a_million_processes_is_counted_and_not_read(ask: Ask) -> None:
    many = f"many@{SECOND} 1000000"
    endless, long, other = ask(
        ("processes", SECOND, many),
        ("processes", SECOND, f"many@{SECOND} 1000"),
        ("processes", FIRST, many),
    )
    assert endless["error"] == "TooManyProcessesError"
    assert endless["reason"] == "1000000 processes are on the GPU"
    assert len(long) == 1000
    assert [process["pid"] for process in other] == [100, 200, 300, 400, 500]
