"""The real binding over a pretended libnvidia-ml: structs, lists, errors and old drivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import COMPILER, FIRST, NO_COMPILER, SECOND, build
from test_probe import Supervisor

from sentinel.gpu.cuda_order import cuda_order_of_this_host
from sentinel.messages import ProbeSpec, Reading, Unavailable

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

#: Runs in a process that loads the library, and prints each result or error as JSON.
SCRIPT = """
import dataclasses, json, sys
from pathlib import Path
from sentinel.gpu.driver import DriverError
from sentinel.gpu.nvml import NvmlDriver

driver = NvmlDriver()
faults = Path(sys.argv[1])
said = []
for call, argument, planted in json.loads(sys.argv[2]):
    faults.write_text(planted)
    try:
        answer = getattr(driver, call)(*([] if argument is None else [argument]))
    except DriverError as error:
        cause = type(error.__cause__).__name__
        answer = dict(
            error=type(error).__name__, code=error.code, reason=error.reason, cause=cause
        )
    said.append(answer)
print(json.dumps(said, default=lambda o: vars(o) if dataclasses.is_dataclass(o) else str(o)))
"""

Argument = str | list[str] | None
Step = tuple[str, Argument, str]

#: A libcuda that numbers the two GPUs the other way round, and cannot start when told so.
CUDA = r"""
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("FAKE_CUDA_FAILS") ? 999 : 0; }
int cuDeviceGetCount(int *count) { *count = getenv("CUDA_VISIBLE_DEVICES") ? 0 : 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    memset(uuid, 0, 16); memset(uuid, device ? 0x11 : 0x22, 4); return 0; }
"""


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a driver that lacks the newer functions."""
    return build(tmp_path_factory.mktemp("old"), "-DOLD")


def answers(library: Path, faults: Path, *steps: Step) -> list[Any]:
    """Return what the driver answers to each ``(call, argument, faults planted before it)``."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(faults), json.dumps(steps)],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": str(faults),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, list)
    return answer


OPEN: tuple[Step, ...] = (("open", None, ""), ("gpus", [], ""))


def test_the_gpus_are_named_as_nvml_names_them(nvml_library: Path, tmp_path: Path) -> None:
    """Both GPUs come in NVML's order, even the one whose name cannot be decoded."""
    _, version, gpus = answers(
        nvml_library,
        tmp_path / "faults",
        ("open", None, ""),
        ("version", None, ""),
        ("gpus", [], ""),
    )
    assert version == "580.159"
    assert gpus == [
        {
            "uuid": FIRST,
            "index": 0,
            "name": "NVIDIA H200",
            "pci_bus_id": "00000000:0A:00.0",
            "memory_total": 16 * 2**30,
        },
        {
            "uuid": SECOND,
            "index": 1,
            "name": "unreadable name",
            "pci_bus_id": "00000000:0B:00.0",
            "memory_total": 16 * 2**30,
        },
    ]


def test_memory_leaves_out_what_the_driver_reserves(nvml_library: Path, tmp_path: Path) -> None:
    """Used memory is that of processes: the second struct tells the reserved apart."""
    *_, memory = answers(nvml_library, tmp_path / "faults", *OPEN, ("memory", FIRST, ""))
    assert memory == {"total": 16 * 2**30, "used": 2 * 2**30, "free": 13 * 2**30}


def test_processes_are_listed_once_with_their_kind(nvml_library: Path, tmp_path: Path) -> None:
    """Three lists become one: MPS before compute before graphics, unknown memory is None."""
    *_, busy, idle = answers(
        nvml_library,
        tmp_path / "faults",
        *OPEN,
        ("processes", FIRST, ""),
        ("processes", SECOND, ""),
    )
    assert [(p["pid"], p["kind"], p["memory"]) for p in busy] == [
        (100, "compute", 2 * 2**30),
        (200, "compute", None),
        (300, "mps", 2),
        (400, "compute", 3),
        (500, "graphics", 4),
    ]
    assert idle == []


@pytest.mark.parametrize(
    ("call", "uuid", "fault", "expected"),
    [
        ("exclusive", FIRST, "", False),
        ("exclusive", SECOND, "", True),
        ("exclusive", SECOND, "mode 3", False),
        ("mig", FIRST, "", False),
        ("mig", SECOND, "", True),
        ("mig", SECOND, "mig 3", False),
        ("display", FIRST, "", False),
        ("display", SECOND, "", True),
        ("display", SECOND, "display 3", False),
        ("utilization", FIRST, "", 0.43),
        ("utilization", FIRST, "utilization 3", None),
        ("node", FIRST, "", "/dev/nvidia7"),
        ("node", SECOND, "", "/dev/nvidia6"),
        ("node", FIRST, "minor 3", None),
    ],
)
def test_modes_load_and_nodes(
    nvml_library: Path, tmp_path: Path, call: str, uuid: str, fault: str, expected: object
) -> None:
    """What a GPU does not support is off; the node goes by minor number and not by index."""
    *_, answer = answers(nvml_library, tmp_path / "faults", *OPEN, (call, uuid, fault))
    assert answer == expected


@pytest.mark.parametrize(
    ("call", "fault", "error", "code"),
    [
        ("memory", "memory 15", "GpuLostError", "gpu_is_lost"),
        ("memory", "memory 16", "GpuLostError", "reset_required"),
        ("memory", "memory 11", "GpuLostError", "irq_issue"),
        ("memory", "memory 28", "GpuLostError", "gpu_not_found"),
        ("memory", "memory 4", "ReadError", "no_permission"),
        ("memory", "memory 3", "ReadError", "not_supported"),
        ("memory", "memory 999", "ReadError", "unknown"),
        ("memory", "memory 4711", "ReadError", "nvml_4711"),
        ("memory", "memory 1", "DriverGoneError", "uninitialized"),
        ("memory", "memory 9", "DriverGoneError", "driver_not_loaded"),
        ("memory", "memory 18", "DriverGoneError", "lib_rm_version_mismatch"),
        ("processes", "compute 15", "GpuLostError", "gpu_is_lost"),
        ("processes", "compute 3", "ReadError", "not_supported"),
        ("processes", "graphics 4", "ReadError", "no_permission"),
        ("processes", "mps 999", "ReadError", "unknown"),
        ("exclusive", "mode 4", "ReadError", "no_permission"),
        ("mig", "mig 15", "GpuLostError", "gpu_is_lost"),
        ("gpus", "count 999", "ReadError", "unknown"),
    ],
)
def test_errors_say_what_is_broken(
    nvml_library: Path, tmp_path: Path, call: str, fault: str, error: str, code: str
) -> None:
    """NVML's codes become one of three errors, with its name, a reason and the cause kept."""
    argument: Argument = [] if call == "gpus" else FIRST
    *_, answer = answers(nvml_library, tmp_path / "faults", *OPEN, (call, argument, fault))
    assert (answer["error"], answer["code"]) == (error, code)
    assert answer["cause"].startswith("NVMLError")
    assert len(answer["reason"]) > len("an error")


def test_lists_that_a_gpu_does_not_have_are_empty(nvml_library: Path, tmp_path: Path) -> None:
    """A GPU without graphics or MPS has nobody there, and its compute list still counts."""
    *_, processes = answers(
        nvml_library, tmp_path / "faults", *OPEN, ("processes", FIRST, "graphics 3\nmps 3")
    )
    assert [(p["pid"], p["kind"]) for p in processes] == [
        (100, "compute"),
        (200, "compute"),
        (300, "compute"),
        (400, "compute"),
    ]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("init 9", "driver_not_loaded"),
        ("init 18", "lib_rm_version_mismatch"),
        ("init 4", "no_permission"),
    ],
)
def test_a_driver_that_does_not_start_is_gone(
    nvml_library: Path, tmp_path: Path, fault: str, code: str
) -> None:
    """Whatever keeps NVML from starting concerns the driver as a whole."""
    (answer,) = answers(nvml_library, tmp_path / "faults", ("open", None, fault))
    assert answer["error"] == "DriverGoneError"
    assert answer["code"] == code


def test_without_the_library_there_is_no_driver(tmp_path: Path) -> None:
    """A host without libnvidia-ml has no NVIDIA driver, and the reason says so."""
    (answer,) = answers(tmp_path, tmp_path / "faults", ("open", None, ""))
    if "error" not in (answer or {}):
        pytest.skip("this host has a real libnvidia-ml")
    assert answer["error"] == "DriverGoneError"
    assert "no NVIDIA driver" in answer["reason"]


def test_a_lost_gpu_does_not_hide_the_others(nvml_library: Path, tmp_path: Path) -> None:
    """One that cannot be reached is left out; one whose memory cannot be read is not."""
    _, without_first, without_memory = answers(
        nvml_library,
        tmp_path / "faults",
        ("open", None, ""),
        ("gpus", [], "handle0 15"),
        ("gpus", [], "memory 999"),
    )
    assert [(gpu["uuid"], gpu["index"]) for gpu in without_first] == [(SECOND, 1)]
    assert [gpu["memory_total"] for gpu in without_memory] == [0, 0]


def test_a_gpu_to_be_skipped_is_only_asked_who_it_is(nvml_library: Path, tmp_path: Path) -> None:
    """Its memory is not read for the inventory, as that may be the very call that hangs."""
    *_, gpus = answers(nvml_library, tmp_path / "faults", *OPEN, ("gpus", [FIRST], ""))
    assert [gpu["memory_total"] for gpu in gpus] == [0, 16 * 2**30]


def test_a_handle_is_looked_up_anew_after_an_error(nvml_library: Path, tmp_path: Path) -> None:
    """A GPU that was reset answers again, by its UUID, while its old handle stays dead."""
    *_, first, second = answers(
        nvml_library,
        tmp_path / "faults",
        *OPEN,
        ("memory", FIRST, "stale 2"),
        ("memory", FIRST, "stale 2"),
    )
    assert first["error"] == "ReadError"
    assert second["used"] == 2 * 2**30


def test_an_old_driver_is_asked_in_its_own_way(old_library: Path, tmp_path: Path) -> None:
    """Without the newer functions memory, processes and modes still come from the older ones."""
    *_, gpus, memory, again, processes, mig = answers(
        old_library,
        tmp_path / "faults",
        *OPEN,
        ("memory", FIRST, ""),
        ("memory", FIRST, ""),
        ("processes", FIRST, ""),
        ("mig", FIRST, ""),
    )
    assert len(gpus) == 2
    assert memory == again == {"total": 16 * 2**30, "used": 3 * 2**30, "free": 13 * 2**30}
    assert [p["pid"] for p in processes] == [100, 200, 300, 400]
    assert mig is False


def test_a_driver_that_goes_away_ends_the_probe(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe says what happened and ends with an error, as only a new process can load it."""
    faults = tmp_path / "faults"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("FAKE_NVML", str(faults))
    supervisor = Supervisor(ProbeSpec(poll=0.05, watch_interval=0.025))
    try:
        assert [gpu.uuid for gpu in supervisor.inventory().gpus] == [FIRST, SECOND]
        whole = supervisor.reading(lambda r: r.uuid == SECOND and r.fault is None)
        assert (whole.exclusive, whole.mig, whole.processes) == (True, True, ())
        faults.write_text("memory 15")
        assert supervisor.reading(lambda r: r.fault is not None).lost
        faults.write_text("memory 9")
        while isinstance(message := supervisor.next(), Reading):
            pass
        assert isinstance(message, Unavailable)
        assert message.code == "driver_not_loaded"
        supervisor.process.join(30)
        assert supervisor.process.exitcode == 1
    finally:
        supervisor.close()


def test_cuda_says_how_it_numbers_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All GPUs come in its own order, whatever is visible; a CUDA that fails says nothing."""
    monkeypatch.setenv(
        "LD_LIBRARY_PATH", str(build(tmp_path, source_text=CUDA, name="libcuda.so.1"))
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert cuda_order_of_this_host() == (SECOND, FIRST)
    monkeypatch.setenv("FAKE_CUDA_FAILS", "1")
    assert cuda_order_of_this_host() is None
