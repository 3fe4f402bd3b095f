"""The real binding over a fake libnvidia-ml: its readings, telemetry, and what old drivers lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest

from sentinel.probe.nvml_telemetry import TelemetryReader
from tests.harness.fake_nvml import (
    ABSENT,
    FIRST,
    NEEDS_COMPILER,
    OPEN,
    QUERIES,
    SECOND,
    Ask,
    Step,
    answers,
    build,
    shared_folder,
)

pytestmark = NEEDS_COMPILER


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a driver that lacks the newer functions; return its folder."""
    return build(shared_folder(tmp_path_factory), "-DOLD")


def test_gpus_have_the_names_of_nvml(ask: Ask) -> None:
    """The GPUs are in NVML's order, including one with an undecodable name."""
    version, gpus = ask(("version", None, ""), ("gpus", [], ""))
    assert version == "580.159"
    assert gpus == [
        {
            "uuid": FIRST,
            "index": 0,
            "name": "NVIDIA H200",
            "pci_bus_id": "00000000:0A:00.0",
            "memory_total": 16 * 2**30,
            "serial": "1650000000000",
            "renumbered": None,
        },
        {
            "uuid": SECOND,
            "index": 1,
            "name": "unreadable name",
            "pci_bus_id": "00000000:0B:00.0",
            "memory_total": 16 * 2**30,
            "serial": "1650000000001",
            "renumbered": None,
        },
    ]


def test_used_memory_excludes_the_drivers_reserve(ask: Ask) -> None:
    """The second memory struct separates the reserve from the memory of processes."""
    (memory,) = ask(("memory", FIRST, ""))
    assert memory == {"total": 16 * 2**30, "used": 2 * 2**30, "free": 13 * 2**30}


def test_processes_are_listed_once_with_their_kind(ask: Ask) -> None:
    """Three lists are merged: MPS, compute, then graphics; unknown memory is None."""
    busy, idle = ask(("processes", FIRST, ""), ("processes", SECOND, ""))
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
        ("power", FIRST, f"field@{FIRST} 185:612500", 612.5),
        ("power", FIRST, "energy 3", 91.5),
        ("power", FIRST, "energy 3\npower 3", None),
        ("node", FIRST, "", "/dev/nvidia7"),
        ("node", SECOND, "", "/dev/nvidia6"),
        ("node", FIRST, "minor 3", None),
    ],
)
def test_modes_utilization_and_device_nodes_are_read(
    call: str, uuid: str, fault: str, expected: object, ask: Ask
) -> None:
    """Unsupported modes are off; the node is found by minor number and not by index."""
    (answer,) = ask((call, uuid, fault))
    assert answer == expected


def test_power_is_derived_from_the_energy_after_the_first_difference(
    nvml_library: Path, tmp_path: Path
) -> None:
    """The energy counter grows by 600 W while the instant power is 91.5 W."""
    # A process that has to wait between the clock and the counter derives another figure.
    repeated = QUERIES.replace(
        "    results.append(answer)",
        "    while answer is not None and abs(answer - 600) > 30: answer = driver.power(argument)\n"
        "    results.append(answer)",
    )
    steps: tuple[Step, ...] = (("open", None, ""), ("power", FIRST, ""))
    *_, power = answers(nvml_library, tmp_path / "faults", *steps, script=repeated)
    assert power == pytest.approx(600, rel=0.05)


def test_processes_that_used_a_gpu_since_the_last_call_are_listed(ask: Ask) -> None:
    """Samples before the first call and idle contexts do not count."""
    sample = f"sample@{FIRST}"
    first = f"{sample} 7:100:50\n"
    more = f"{first}{sample} 8:200:50\n{sample} 9:201:0\n{sample} 8:202:1\n{sample} 5:203:99\n"
    found = ask(
        ("computing", FIRST, first),
        ("computing", FIRST, first),
        ("computing", FIRST, more),
        ("computing", FIRST, more),
        ("computing", SECOND, more),
        ("computing", SECOND, more),
    )
    assert found == [None, [], [5, 8], [], None, []]


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_a_driver_without_process_utilization_is_no_fault(code: int, ask: Ask) -> None:
    step = ("computing", FIRST, f"samples {code}\n")
    found = ask(step, step)
    assert found == [None, None]


@pytest.mark.parametrize("code", ABSENT)
def test_unsupported_lists_are_empty(code: int, ask: Ask) -> None:
    """Unsupported graphics and MPS lists are empty; the compute list is still read."""
    injected = f"graphics {code}\nmps {code}"
    (processes,) = ask(("processes", FIRST, injected))
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
def test_an_unsupported_function_is_called_once(
    call: str, function: str, without: object, code: int, ask: Ask
) -> None:
    """The result is remembered for this GPU alone, until an error."""
    injected = f"{function}@{SECOND} {code}"
    first, again, other, _, later = ask(
        (call, SECOND, injected),
        (call, SECOND, ""),
        (call, FIRST, injected),
        ("memory", SECOND, "memory 999"),
        (call, SECOND, ""),
    )
    assert first == without
    assert later == {"display": True, "mig": True, "exclusive": True}.get(call, later)
    assert later != without
    assert again == (later if call == "node" else without), "a node is read once anyway"
    supported = {"utilization": 0.43, "temperature": 41, "sm_clock": 1980, "node": "/dev/nvidia7"}
    assert other == supported.get(call, False)


@pytest.mark.parametrize("code", ABSENT)
def test_the_older_function_is_called_if_the_newer_one_fails(code: int, ask: Ask) -> None:
    """A missing newer function on one GPU does not affect the other."""
    injected = f"memory_v2@{FIRST} {code}\ncompute_v3@{FIRST} {code}"
    memory, other, processes = ask(
        ("memory", FIRST, injected), ("memory", SECOND, injected), ("processes", FIRST, injected)
    )
    assert (memory["used"], other["used"]) == (3 * 2**30, 2 * 2**30)
    assert [p["pid"] for p in processes] == [100, 200, 300, 400, 500]


def test_an_old_driver_is_called_through_its_own_functions(
    old_library: Path, tmp_path: Path
) -> None:
    """Memory, processes and modes are read by the older functions."""
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


#: Fields by NVML's numbers: HBM temperature, throttled by power and by heat in ns, energy in mJ,
#: ECC errors, rows remapped, pending and failed, PCIe replays, and KiB over all NVLinks.
FIELDS = "\n".join(
    f"field@{FIRST} {number}:{value}"
    for number, value in (
        (82, 55),
        (74, 2_500_000_000),
        (75, 1_000_000_000),
        (83, 7_000_000),
        (3, 4),
        (4, 0),
        (142, 1),
        (143, 0),
        (144, 1),
        (145, 0),
        (94, 9),
        (138, 10),
        (139, 20),
    )
)


def read_telemetry(ask: Ask, uuid: str, injected: str) -> dict[str, Any]:
    (answer,) = ask(("telemetry", uuid, injected))
    assert isinstance(answer, dict)
    return answer


def test_all_telemetry_is_converted_to_sentinels_units(ask: Ask) -> None:
    answer = read_telemetry(ask, FIRST, FIELDS)
    assert answer.pop("at") > 0
    assert answer == {
        "memory_reserved": 2**30,
        "utilization": 0.43,
        "memory_utilization": 0.07,
        "temperature_c": 41,
        "memory_temperature_c": 55,
        "temperature_margin_c": None,
        "slowdown_c": 89,
        "maximum_c": 87,
        "shutdown_c": 95,
        "memory_maximum_c": None,
        "power_w": None,
        "power_limit_w": 700.0,
        "energy_j": 7000.0,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "reasons": ["sw_power_cap", "0x1000"],
        "power_throttled_s": 2.5,
        "thermal_throttled_s": 1.0,
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_replays_total": 9,
        "nvlink_tx_bytes_total": 10240,
        "nvlink_rx_bytes_total": 20480,
        "ecc_corrected_total": 4,
        "ecc_uncorrected_total": 0,
        "remapped_corrected_total": 1,
        "remapped_uncorrected_total": 0,
        "remap_pending": True,
        "remap_failed": False,
        "recovery_action": None,
        "fan_share": None,
        "performance_state": 0,
    }


def test_the_time_slowed_by_heat_is_that_of_the_driver_and_of_the_hardware(ask: Ask) -> None:
    """Field 75 counts the hardware alone: 0.16 s of an H100 that the driver slowed for 139 s."""
    heat = (75, 160_000_512), (269, 139_116_368_416), (270, 160_000_512)
    injected = "\n".join(f"field@{FIRST} {number}:{value}" for number, value in heat)
    found = read_telemetry(ask, FIRST, injected)["thermal_throttled_s"]
    assert found == pytest.approx(139.276368928)


def test_the_margin_is_that_of_the_highest_temperature_since_the_last_slow_read() -> None:
    """The smallest margin is judged, and a GPU is hottest for a moment."""
    degrees, asked = [40], []

    def query(function: str, *_: object) -> int | None:
        if function == "nvmlDeviceGetMarginTemperature":
            asked.append(degrees[0])
            return 87 - degrees[0]
        return degrees[0] if function == "nvmlDeviceGetTemperature" else None

    reader = TelemetryReader(query)
    for heat, margin in ((40, 47), (60, 27), (84, 3), (70, 3), (84, 3)):
        degrees[0] = heat
        assert reader.read(pynvml, "GPU-0").temperature_margin_c == margin
    assert asked == [40, 60, 84]


def test_unsupported_telemetry_is_none_and_never_zero(ask: Ask) -> None:
    """The second GPU has a fan, none of the fields, and no known performance state."""
    answer = read_telemetry(ask, SECOND, "")
    assert answer["fan_share"] == 0.4
    for name in ("memory_temperature_c", "energy_j", "ecc_corrected_total", "performance_state"):
        assert answer[name] is None


@pytest.mark.parametrize("code", [3, 999])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("fields", "energy_j"),
        ("reasons", "reasons"),
        ("limit", "power_limit_w"),
        ("threshold", "slowdown_c"),
        ("utilization", "utilization"),
        ("temperature", "temperature_c"),
    ],
)
def test_a_failing_field_does_not_affect_the_others(
    ask: Ask, function: str, name: str, code: int
) -> None:
    answer = read_telemetry(ask, FIRST, f"{FIELDS}\n{function} {code}")
    assert answer[name] is None
    assert answer["sm_clock_mhz"] == 1980


def test_a_lost_gpu_is_an_error_not_empty_telemetry(ask: Ask) -> None:
    answer = read_telemetry(ask, FIRST, "limit 15")
    assert answer["error"] == "GpuLostError"
