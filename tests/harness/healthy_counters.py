"""Counters of a healthy GPU, fixed and random, for tests of the checks."""

from __future__ import annotations

import random
from dataclasses import replace

from sentinel.protocol.counters import Counters, NvLink

#: An H200 under load, on a host with NVSwitches.
HEALTHY = Counters(
    uuid="GPU-11111111-0000-0000-0000-000000000000",
    index=0,
    name="NVIDIA H200",
    at=1000.0,
    driver="580.159",
    serial="1650000000001",
    pci_bus_id="00000000:0A:00.0",
    vbios="96.00.9F.00.02",
    inforom="G520.0280.00.05",
    persistence=True,
    mig=False,
    ecc=True,
    ecc_pending=True,
    inforom_valid=True,
    ecc_corrected_total=0,
    ecc_uncorrected_total=0,
    ecc_corrected_lifetime_total=0,
    ecc_uncorrected_lifetime_total=0,
    sram_corrected_lifetime_total=0,
    sram_uncorrected_lifetime_total=0,
    sram_threshold_exceeded=False,
    remapped_corrected_total=0,
    remapped_uncorrected_total=0,
    remap_pending=False,
    remap_failed=False,
    remap_banks_low=0,
    remap_banks_none=0,
    retired_corrected_total=0,
    retired_uncorrected_total=0,
    retirement_pending=False,
    channel_repair_pending=False,
    tpc_repair_pending=False,
    memory_unrepairable=False,
    recovery_action="none",
    power_throttled_s=100.0,
    thermal_throttled_s=0.0,
    software_thermal_throttled_s=0.0,
    hardware_thermal_throttled_s=0.0,
    power_brake_throttled_s=0.0,
    reasons=("sw_power_cap",),
    sm_clock_mhz=1600,
    sm_clock_maximum_mhz=1980,
    memory_clock_mhz=3201,
    memory_clock_maximum_mhz=3201,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    energy_j=1e6,
    temperature_c=60,
    memory_temperature_c=70,
    slowdown_c=89,
    maximum_c=87,
    shutdown_c=95,
    memory_maximum_c=95,
    temperature_margin_c=27,
    slowdown_margin_c=-2,
    pcie_generation=5,
    pcie_generation_maximum=5,
    pcie_generation_own_maximum=5,
    pcie_width=16,
    pcie_width_maximum=16,
    pcie_replays_total=3,
    nvlinks=tuple(
        NvLink(
            link=link,
            active=True,
            speed_mbps=26562,
            replays_total=0,
            recoveries_total=0,
            crc_errors_total=0,
            effective_ber=1.5e-254,
        )
        for link in range(18)
    ),
    fabric_state="completed",
    fabric_health="healthy",
)


def random_healthy(dice: random.Random, index: int = 0) -> Counters:
    """Vary the counters of a healthy GPU as a fleet does: models, ages, loads, missing values."""
    links = dice.choice(((), HEALTHY.nvlinks or ()))
    idle = dice.random() < 0.5
    old = replace(
        HEALTHY,
        index=index,
        uuid=f"GPU-{index}",
        name=dice.choice(("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090")),
        at=dice.uniform(0, 1e7),
        persistence=dice.random() < 0.5,
        ecc_corrected_total=dice.randrange(1000),
        ecc_corrected_lifetime_total=dice.randrange(10**6),
        ecc_uncorrected_lifetime_total=dice.choice((0, 0, 0, 2)),
        remapped_corrected_total=dice.randrange(4),
        remapped_uncorrected_total=dice.choice((0, 0, 0, 3)),
        retired_corrected_total=dice.randrange(10),
        power_throttled_s=dice.uniform(0, 1e6),
        software_thermal_throttled_s=dice.uniform(0, 1e3),
        reasons=("gpu_idle",) if idle else dice.choice(((), ("sw_power_cap",))),
        power_limit_w=dice.choice((500.0, 700.0)),
        temperature_c=dice.randrange(25, 84),
        memory_temperature_c=dice.randrange(25, 89),
        temperature_margin_c=dice.randrange(4, 60),
        pcie_generation=1 if idle else 5,
        pcie_replays_total=dice.randrange(10**6),
        nvlinks=links or None,
        fabric_state="completed" if links else "not_supported",
        fabric_health="healthy" if links else "not_supported",
    )
    if old.name == "NVIDIA GeForce RTX 4090":
        old = replace(old, ecc=False, ecc_pending=False, serial=None, nvlinks=None)
    if dice.random() < 0.2:  # an old driver counts all heat together
        old = replace(
            old,
            software_thermal_throttled_s=None,
            hardware_thermal_throttled_s=None,
            power_brake_throttled_s=None,
            temperature_margin_c=None,
            slowdown_margin_c=None,
        )
    return old


def later(dice: random.Random, before: Counters, seconds: float) -> Counters:
    """Let a healthy GPU run for a time."""
    heat = before.software_thermal_throttled_s
    return replace(
        before,
        at=before.at + seconds,
        energy_j=(before.energy_j or 0.0) + seconds * 600,
        ecc_corrected_total=(before.ecc_corrected_total or 0) + dice.randrange(10),
        power_throttled_s=(before.power_throttled_s or 0.0) + seconds,
        software_thermal_throttled_s=None if heat is None else heat + seconds * 0.004,
        pcie_replays_total=(before.pcie_replays_total or 0)
        + int(seconds / 60 * 16 * 1.92 * 0.1 * dice.uniform(0, 0.4)),
    )
