"""The real binding over a pretended libnvidia-ml: structs, lists, errors and old drivers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import COMPILER, FIRST, NO_COMPILER, SECOND, build
from ground import ROOT
from test_probe import Supervisor, until

from sentinel.board import gpu_of
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


def answers(library: Path, faults: Path, *steps: Step, script: str = SCRIPT) -> list[Any]:
    """Return what the driver answers to each ``(call, argument, faults planted before it)``."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(faults), json.dumps(steps)],
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

#: The codes that say that there is no such thing on this GPU, or with this driver.
ABSENT = (3, 13, 25, 26)
#: The codes that no call of ours can give, or that mean nothing in particular.
UNNAMED = {2, 5, 8, 14, *range(19, 25), 27}
#: The codes that concern one GPU, and whether they are final: then no second try is made.
OF_ONE_GPU = {
    **dict.fromkeys((2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 17, 19, 20, 21, 23, 25, 26, 27, 29), False),
    **dict.fromkeys((11, 15, 16, 28), True),
    **dict.fromkeys((999, 4711), False),
}


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
        ("temperature", FIRST, "", 41),
        ("temperature", FIRST, "temperature 3", None),
        ("sm_clock", FIRST, "", 1980),
        ("sm_clock", FIRST, "clock 3", None),
        ("power", FIRST, "", 91.5),
        ("power", FIRST, "energy 3", 91.5),
        ("power", FIRST, "energy 3\npower 3", None),
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


def test_power_is_told_from_the_energy_as_soon_as_there_is_a_difference(
    nvml_library: Path, tmp_path: Path
) -> None:
    """The driver's counter grows by 600 W while it says 91.5 W of the moment."""
    repeated = SCRIPT.replace(
        "    said.append(answer)",
        "    while answer == 91.5: answer = driver.power(argument)\n    said.append(answer)",
    )
    steps: tuple[Step, ...] = (("open", None, ""), ("power", FIRST, ""))
    *_, power = answers(nvml_library, tmp_path / "faults", *steps, script=repeated)
    assert power == pytest.approx(600, rel=0.05)


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
def test_errors_say_what_is_broken(
    nvml_library: Path, tmp_path: Path, call: str, fault: str, error: str, code: str
) -> None:
    """NVML's codes become one of three errors, with its name, a reason and the cause kept."""
    argument: Argument = [] if call == "gpus" else FIRST
    *_, answer = answers(nvml_library, tmp_path / "faults", *OPEN, (call, argument, fault))
    assert (answer["error"], answer["code"]) == (error, code)
    assert answer["cause"].startswith("NVMLError")
    assert len(answer["reason"]) > len("an error")


def test_the_document_says_of_each_code_what_it_leads_to(
    nvml_library: Path, tmp_path: Path
) -> None:
    """Its names are the binding's, and the kinds are what a call for the memory gives."""
    text = (ROOT / "docs" / "nvml.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \|$", text, re.MULTILINE)
    assert {int(number) for number, _, _ in rows} >= {*range(1, 29), 999} - UNNAMED
    steps = [("memory", FIRST, f"memory {number}") for number, _, _ in rows]
    _, _, *said = answers(nvml_library, tmp_path / "faults", *OPEN, *steps)
    errors = {"strike": "ReadError", "absent": "ReadError", "lost": "GpuLostError"}
    for (number, name, kind), answer in zip(rows, said, strict=True):
        assert getattr(pynvml, f"NVML_ERROR_{name}") == int(number)
        assert answer["code"] == name.lower()
        assert answer["error"] == errors.get(kind, "DriverGoneError")
        assert (int(number) in ABSENT) == (kind == "absent")


@pytest.mark.parametrize("code", ABSENT)
def test_lists_that_a_gpu_does_not_have_are_empty(
    nvml_library: Path, tmp_path: Path, code: int
) -> None:
    """A GPU without graphics or MPS has nobody there, and its compute list still counts."""
    planted = f"graphics {code}\nmps {code}"
    *_, processes = answers(nvml_library, tmp_path / "faults", *OPEN, ("processes", FIRST, planted))
    assert [(p["pid"], p["kind"]) for p in processes] == [
        (100, "compute"),
        (200, "compute"),
        (300, "compute"),
        (400, "compute"),
    ]


@pytest.mark.parametrize("code", ABSENT)
@pytest.mark.parametrize(
    ("call", "function", "without"),
    [
        ("exclusive", "mode", False),
        ("mig", "mig", False),
        ("display", "display", False),
        ("utilization", "utilization", None),
        ("temperature", "temperature", None),
        ("sm_clock", "clock", None),
        ("node", "minor", None),
    ],
)
def test_what_a_gpu_does_not_have_is_asked_for_once(
    nvml_library: Path, tmp_path: Path, call: str, function: str, without: object, code: int
) -> None:
    """It is as if it were off, for this GPU alone, and until an error makes it look anew."""
    planted = f"{function}@{SECOND} {code}"
    *_, first, again, other, _, anew = answers(
        nvml_library,
        tmp_path / "faults",
        *OPEN,
        (call, SECOND, planted),
        (call, SECOND, ""),
        (call, FIRST, planted),
        ("memory", SECOND, "memory 999"),
        (call, SECOND, ""),
    )
    assert first == without
    assert anew == {"display": True, "mig": True, "exclusive": True}.get(call, anew)
    assert anew != without
    assert again == (anew if call == "node" else without), "a node is asked for once anyway"
    told = {"utilization": 0.43, "temperature": 41, "sm_clock": 1980, "node": "/dev/nvidia7"}
    assert other == told.get(call, False)


@pytest.mark.parametrize("code", ABSENT)
def test_the_older_of_two_functions_is_asked_where_the_newer_is_of_no_use(
    nvml_library: Path, tmp_path: Path, code: int
) -> None:
    """That one GPU does not have the newer is not held against the other."""
    planted = f"memory_v2@{FIRST} {code}\ncompute_v3@{FIRST} {code}"
    *_, memory, other, processes = answers(
        nvml_library,
        tmp_path / "faults",
        *OPEN,
        ("memory", FIRST, planted),
        ("memory", SECOND, planted),
        ("processes", FIRST, planted),
    )
    assert (memory["used"], other["used"]) == (3 * 2**30, 2 * 2**30)
    assert [p["pid"] for p in processes] == [100, 200, 300, 400, 500]


@pytest.mark.parametrize(
    ("call", "planted"),
    [
        ("temperature", "temperature 999"),
        ("power", "energy 999"),
        ("sm_clock", "clock 999"),
    ],
)
def test_a_sick_sensor_is_no_reason_to_look_for_its_gpu_anew(
    nvml_library: Path, tmp_path: Path, call: str, planted: str
) -> None:
    """The search touches the other GPUs, one of which may hang."""
    searched = "byuuid 999"
    _, _, before, sick, after = answers(
        nvml_library,
        tmp_path / "faults",
        *OPEN,
        ("memory", FIRST, ""),
        (call, FIRST, f"{planted}\n{searched}"),
        ("memory", FIRST, searched),
    )
    assert sick["error"] == "ReadError"
    assert after == before


def test_a_gpu_that_the_search_by_uuid_misses_is_found_by_asking_all(
    nvml_library: Path, tmp_path: Path
) -> None:
    """Only one that nobody lists is gone; the first error makes the handle be looked up anew."""
    listed = f"gpu {SECOND}\ngpu {FIRST}\nbyuuid 6"
    _, _, error, found, _, gone = answers(
        nvml_library,
        tmp_path / "faults",
        *OPEN,
        ("memory", FIRST, "memory 6"),
        ("memory", FIRST, listed),
        ("memory", FIRST, f"gpu {SECOND}"),
        ("memory", FIRST, f"gpu {SECOND}"),
    )
    assert (error["error"], error["code"]) == ("ReadError", "not_found")
    assert found["used"] == 2 * 2**30
    assert (gone["error"], gone["code"]) == ("GpuLostError", "not_found")


@pytest.mark.parametrize(
    ("call", "planted", "code"),
    [
        ("memory", f"used@{FIRST} {2**35}", "nonsense"),
        ("memory", f"used@{FIRST} {2**64 - 1}", "nonsense"),
        ("memory", f"total@{FIRST} 0", "nonsense"),
        ("memory", f"total@{FIRST} {2**30}", "nonsense"),
        ("processes", "overflow 1", "garbage"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(
    nvml_library: Path, tmp_path: Path, call: str, planted: str, code: str
) -> None:
    """Never a figure to decide on, and never the end of the probe."""
    *_, answer, after = answers(
        nvml_library, tmp_path / "faults", *OPEN, (call, FIRST, planted), (call, FIRST, "")
    )
    assert (answer["error"], answer["code"]) == ("ReadError", code)
    assert "error" not in after


def test_pids_that_nobody_can_have_are_listed_like_all_others(
    nvml_library: Path, tmp_path: Path
) -> None:
    """Each once, of unknown size: who reads the list must take them for somebody."""
    pids = ("0", "4294967295", "0", "4294967295", "4194305")
    planted = "\n".join(f"pid@{SECOND} {pid}" for pid in pids)
    *_, processes = answers(
        nvml_library, tmp_path / "faults", *OPEN, ("processes", SECOND, planted)
    )
    assert [(p["pid"], p["kind"], p["memory"]) for p in processes] == [
        (0, "compute", None),
        (4194305, "compute", None),
        (4294967295, "compute", None),
    ]


@pytest.mark.parametrize("planted", ["version 999", "version 3", "says garbage"])
def test_a_version_that_cannot_be_read_keeps_nobody_from_reading_gpus(
    nvml_library: Path, tmp_path: Path, planted: str
) -> None:
    """Only people want to know it."""
    _, version, gpus = answers(
        nvml_library,
        tmp_path / "faults",
        ("open", None, ""),
        ("version", None, planted),
        ("gpus", [], planted),
    )
    assert version == "unknown"
    assert len(gpus) == 2


def test_a_gpu_without_a_name_and_a_place_is_still_there(
    nvml_library: Path, tmp_path: Path
) -> None:
    """It is known by its UUID; one that does not tell that is left out."""
    _, gpus, without = answers(
        nvml_library,
        tmp_path / "faults",
        ("open", None, ""),
        ("gpus", [], "name 999\nbus 3"),
        ("gpus", [], f"uuid@{FIRST} 999"),
    )
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
    """Nothing else is read for the inventory, as that may be the very call that hangs."""
    planted = "".join(f"{call}@{FIRST} hang\n" for call in ("name", "bus", "memory"))
    *_, gpus = answers(nvml_library, tmp_path / "faults", *OPEN, ("gpus", [FIRST], planted))
    assert [gpu["memory_total"] for gpu in gpus] == [0, 16 * 2**30]


def test_where_a_call_hung_a_gpu_that_does_not_say_who_it_is_is_left_out(
    nvml_library: Path, tmp_path: Path
) -> None:
    """Or it would keep all others from being read; an error of the driver itself is told."""
    *_, gpus, none, gone = answers(
        nvml_library,
        tmp_path / "faults",
        *OPEN,
        ("gpus", [FIRST], f"handle@{FIRST} hang"),
        ("gpus", [FIRST], f"handle@{FIRST} 15\nuuid@{SECOND} hang"),
        ("gpus", [FIRST], f"handle@{SECOND} 9"),
    )
    assert [(gpu["uuid"], gpu["index"]) for gpu in gpus] == [(SECOND, 1)]
    assert none == []
    assert gone["error"] == "DriverGoneError"


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


def test_who_used_a_gpu_since_the_last_look_is_told(nvml_library: Path, tmp_path: Path) -> None:
    """What was before the first look, and who had a context and did nothing, is nobody's use."""
    here = f"sample@{FIRST}"
    first = f"{here} 7:100:50\n"
    more = f"{first}{here} 8:200:50\n{here} 9:201:0\n{here} 8:202:1\n{here} 5:203:99\n"
    found = answers(
        nvml_library,
        tmp_path / "faults",
        ("open", None, ""),
        ("computing", FIRST, first),
        ("computing", FIRST, first),
        ("computing", FIRST, more),
        ("computing", FIRST, more),
        ("computing", SECOND, more),
        ("computing", SECOND, more),
    )
    assert found[1:] == [None, [], [5, 8], [], None, []]


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_a_driver_that_does_not_tell_who_computes_is_no_fault(
    nvml_library: Path, tmp_path: Path, code: int
) -> None:
    asked = ("computing", FIRST, f"samples {code}\n")
    found = answers(nvml_library, tmp_path / "faults", ("open", None, ""), asked, asked)
    assert found[1:] == [None, None]


@pytest.mark.parametrize(("version", "code"), [("535.54.03", 5), ("535.104.05", 0)])
def test_a_driver_from_which_the_binding_reads_wrong_pids_is_refused(
    nvml_library: Path, tmp_path: Path, version: str, code: int
) -> None:
    faults = tmp_path / "faults"
    faults.write_text(f"driver {version}\n")
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "--list"],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(nvml_library),
            "FAKE_NVML": str(faults),
            "SENTINEL_CONFIG": os.devnull,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("wrong PIDs" in done.stderr) is (code != 0)


@pytest.fixture
def probe(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Supervisor, Path]]:
    """Return a probe process that read both GPUs, and the driver's file."""
    faults = tmp_path / "faults"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("FAKE_NVML", str(faults))
    supervisor = Supervisor(ProbeSpec(poll=0.05, watch_interval=0.025))
    try:
        assert [gpu.uuid for gpu in supervisor.inventory().gpus] == [FIRST, SECOND]
        whole = supervisor.reading(lambda r: r.uuid == SECOND and r.fault is None)
        assert (whole.exclusive, whole.mig, whole.processes) == (True, True, ())
        yield supervisor, faults
    finally:
        supervisor.close()


def plant(faults: Path, text: str) -> float:
    """Replace the driver's file at once; return when it was done."""
    draft = faults.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(faults)
    return time.monotonic()


@pytest.mark.parametrize("function", ["memory", "compute"])
def test_no_error_of_one_gpu_keeps_the_other_from_being_read(
    probe: tuple[Supervisor, Path], function: str
) -> None:
    """Each is a fault that names it, ends with its cause, and is of that GPU alone."""
    supervisor, faults = probe
    names = {number: name for name, number in vars(pynvml).items() if "_ERROR_" in name}
    for code, final in OF_ONE_GPU.items():
        planted = plant(faults, f"{function}@{FIRST} {code}")
        fault = supervisor.reading(lambda r, at=planted: r.uuid == FIRST and r.at > at)  # type: ignore[misc]
        name = names.get(code, f"nvml_{code}").removeprefix("NVML_ERROR_").lower()
        assert fault.fault is not None, code
        assert f"({name})" in fault.fault
        assert fault.lost is final, code
        assert (fault.memory, fault.processes) == (None, None)
        for _ in range(2):
            assert supervisor.reading(lambda r: r.uuid == SECOND).fault is None
        mended = plant(faults, "")
        supervisor.reading(
            lambda r, at=mended: r.uuid == FIRST and r.at > at and r.fault is None  # type: ignore[misc]
        )


def test_a_list_that_grew_while_it_was_copied_is_copied_again(
    probe: tuple[Supervisor, Path],
) -> None:
    """Twice is no fault: the next reading has all of them."""
    supervisor, faults = probe
    planted = plant(faults, f"grow 2\npid@{FIRST} 600")
    reading = supervisor.reading(lambda r: r.uuid == FIRST and r.at > planted)
    assert reading.fault is None
    assert reading.processes is not None
    assert [process.pid for process in reading.processes][-1] == 600


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1, "uninitialized"),
        (9, "driver_not_loaded"),
        (12, "library_not_found"),
        (18, "lib_rm_version_mismatch"),
    ],
)
def test_a_driver_that_goes_away_ends_the_probe(
    probe: tuple[Supervisor, Path], number: int, code: str
) -> None:
    """The probe says what happened and ends with an error, as only a new process can load it."""
    supervisor, faults = probe
    plant(faults, f"memory {number}")
    while isinstance(message := supervisor.next(), Reading):
        pass
    assert isinstance(message, Unavailable)
    assert message.code == code
    supervisor.process.join(30)
    assert supervisor.process.exitcode == 1


def test_a_gpu_that_was_missing_at_the_start_is_read_once_it_is_there(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no part of the inventory, but it was known, so it is looked for at every poll."""
    faults = tmp_path / "faults"
    plant(faults, f"gpu {SECOND}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("FAKE_NVML", str(faults))
    spec = ProbeSpec(poll=0.05, watch_interval=0.025, known=(FIRST, SECOND))
    supervisor = Supervisor(spec)
    try:
        assert [gpu.uuid for gpu in supervisor.inventory().gpus] == [SECOND]
        missing = supervisor.reading(lambda r: r.uuid == FIRST)
        assert missing.lost
        assert missing.fault is not None
        assert "not_found" in missing.fault
        assert supervisor.reading(lambda r: r.uuid == SECOND).fault is None
        both = f"gpu {SECOND}\ngpu {FIRST}"
        plant(faults, both)
        supervisor.reading(lambda r: r.uuid == FIRST and r.fault is None)
        plant(faults, f"{both}\nmemory@{FIRST} hang")
        until(
            lambda: any(
                gpu_of(slot) == 1
                for slot, _, since in supervisor.board.outstanding()
                if time.monotonic() - since > 0.2
            )
        )
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
