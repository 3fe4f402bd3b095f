"""GPUs on the PCI bus are found, but for those that NVML cannot list from here."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.probe import one_shot
from sentinel.protocol.counters import CountersSpec


class Bus:
    """A PCI bus, and the GPUs and device nodes of a driver, as folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = CountersSpec(
            sysfs=str(folder / "sys"), procfs=str(folder / "proc"), devices=str(folder / "dev")
        )
        for name in ("sys", "proc", "dev", "drivers/nvidia", "drivers/vfio-pci"):
            (folder / name).mkdir(parents=True)

    def plug(
        self,
        address: str,
        *,
        vendor: str = "0x10de",
        kind: str = "0x030200",
        driver: str | None = "nvidia",
        minor: int | None = 0,
        node: bool = True,
    ) -> None:
        device = self.folder / "sys" / address
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        if driver is not None:
            (device / "driver").symlink_to(self.folder / "drivers" / driver)
        if minor is not None:
            (self.folder / "proc" / address).mkdir()
            facts = f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
            (self.folder / "proc" / address / "information").write_text(facts)
            if node:
                (self.folder / "dev" / f"nvidia{minor}").touch()

    def found(self, *listed: str | None) -> tuple[str, ...]:
        return one_shot.pci_addresses(self.spec, listed)


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    return Bus(tmp_path)


def test_gpus_are_found_in_the_form_of_nvml(bus: Bus) -> None:
    bus.plug("0000:0a:00.0")
    bus.plug("0001:3b:00.0", kind="0x030000", minor=1)
    assert bus.found() == ("00000000:0A:00.0", "00000001:3B:00.0")


def test_other_devices_are_no_gpus(bus: Bus) -> None:
    bus.plug("0000:0a:00.1", kind="0x040300")  # the audio function of a GPU
    bus.plug("0000:0b:00.0", kind="0x068000")  # an NVSwitch
    bus.plug("0000:0c:00.0", vendor="0x1002")
    assert bus.found() == ()


def test_a_gpu_of_another_driver_is_not_expected_and_one_without_a_driver_is(bus: Bus) -> None:
    bus.plug("0000:0a:00.0", driver="vfio-pci")
    bus.plug("0000:0b:00.0", driver=None, minor=None)
    assert bus.found() == ("00000000:0B:00.0",)


def test_a_gpu_that_is_hidden_from_this_container_is_not_expected(bus: Bus) -> None:
    bus.plug("0000:0a:00.0", minor=None)
    bus.plug("0000:0b:00.0", minor=1, node=False)
    bus.plug("0000:0c:00.0", minor=2)
    assert bus.found() == ("00000000:0C:00.0",)


def test_a_gpu_whose_node_is_forbidden_is_not_expected_and_one_that_fails_to_open_is(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"nvidia0": PermissionError(1, "no"), "nvidia1": OSError(5, "I/O error")}

    def refuse(path: Path, flags: int) -> int:
        raise errors[path.name]

    bus.plug("0000:0a:00.0", minor=0)
    bus.plug("0000:0b:00.0", minor=1)
    monkeypatch.setattr(one_shot, "_open", refuse)
    assert bus.found() == ("00000000:0B:00.0",)


def test_a_gpu_that_nvml_lists_is_not_opened(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def note(path: Path, flags: int) -> int:
        opened.append(path)
        raise FileNotFoundError

    bus.plug("0000:0a:00.0")
    monkeypatch.setattr(one_shot, "_open", note)
    assert bus.found("00000000:0a:00.0", None) == ("00000000:0A:00.0",)
    assert opened == []


def test_a_host_without_a_bus_has_none(tmp_path: Path) -> None:
    spec = CountersSpec(sysfs=str(tmp_path / "none"))
    assert one_shot.pci_addresses(spec, ()) == ()
