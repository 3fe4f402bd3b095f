"""The ports and the memory errors of a host, read from files as the kernel has them."""

from __future__ import annotations

import os
from pathlib import Path

from sentinel.diagnostics.host_counters import read_host, read_pci_paths
from sentinel.protocol.counters import HostCounters, Port
from tests.harness.sysfs import write_controller, write_port


def test_ports_and_memory_errors_are_read_as_far_as_they_can_be(tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    write_port(sysfs, "mlx5_0", symbol_error="4", link_downed="0")
    port = write_port(sysfs, "mlx5_1", state="1: DOWN", symbol_error="no number")
    (port / "rate").unlink()
    write_controller(sysfs, ce_count="2", ue_count="0")
    assert read_host(tmp_path) == HostCounters(
        ports=(
            Port(
                name="mlx5_0/1",
                state="ACTIVE",
                rate="400 Gb/sec (4X NDR)",
                layer="InfiniBand",
                errors={"symbol_error": 4, "link_downed": 0},
            ),
            Port(name="mlx5_1/1", state="DOWN", layer="InfiniBand"),
        ),
        memory={"mc0 ce_count": 2, "mc0 ue_count": 0},
    )


def test_a_host_without_such_hardware_has_none(tmp_path: Path) -> None:
    assert read_host(tmp_path) == HostCounters()


def test_the_ports_above_each_device_of_nvidia_are_those_of_its_path(tmp_path: Path) -> None:
    assert read_pci_paths(tmp_path) == {}
    listed = tmp_path / "sys/bus/pci/devices"
    listed.mkdir(parents=True)
    bridge = "0000:00:01.0/0000:0a:00.0"
    for where, vendor in (
        (f"pci0000:00/{bridge}/0000:3b:00.0", "0x10de"),
        (f"pci0000:00/{bridge}", "0x1000"),
        ("pci0000:80/0000:81:00.0", "0x144d"),
        ("pci0000:c0/0000:c1:00.0", "0x10de"),
    ):
        device = tmp_path / "sys/devices" / where
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (listed / device.name).symlink_to(device)
    assert read_pci_paths(tmp_path) == {
        "0000:3b:00.0": ["0000:00:01.0", "0000:0a:00.0"],
        "0000:c1:00.0": [],
    }


def test_a_file_that_never_answers_delays_for_a_limited_time(tmp_path: Path) -> None:
    port = write_port(tmp_path / "sys", "mlx5_0")
    (port / "state").unlink()
    os.mkfifo(port / "state")  # its reader waits for a writer
    try:
        assert "was not read within 0.1 s" in (read_host(tmp_path, timeout_s=0.1).error or "")
    finally:
        os.close(os.open(port / "state", os.O_RDWR))
