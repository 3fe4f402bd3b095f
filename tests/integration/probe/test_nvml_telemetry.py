"""The telemetry of the real binding over a fake driver, also with unsupported fields."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.fake_nvml import FIRST, SECOND
from tests.harness.nvml_query import Ask

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
        "fan_share": None,
        "performance_state": 0,
    }


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
