"""A driver for AMD GPUs that reads the files of the kernel's amdgpu and amdkfd.

A driver for sentinel, and a model for others. Files cannot hang as a library can, and need none. It
has been tested on copies of such files, and not on an AMD GPU.

The files, below ``/sys/class``: ``drm/card*/device`` has the memory, the utilization and the
sensors of a GPU; ``kfd/kfd/topology/nodes`` the number that the kernel gives it; ``kfd/kfd/proc``
one folder for each process that computes, by its PID, with its memory on each GPU of such a number.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from sentinel.drivers import (
    BasicDriver,
    DriverGoneError,
    Gpu,
    GpuLostError,
    GpuProcess,
    Memory,
    ReadError,
    Telemetry,
)


class AmdDriver(BasicDriver):
    """Reads the AMD GPUs of this host.

    Args:
        sysfs: The folder of the kernel's classes; another one is for tests.
    """

    def __init__(self, sysfs: str = "/sys/class") -> None:
        self._sysfs = Path(sysfs)
        #: By UUID: the folder of the device, and the number that the kernel gives the GPU.
        self._found: dict[str, tuple[Path, str]] = {}

    def open(self) -> None:
        """Check that the kernel knows GPUs that compute."""
        if not (self._sysfs / "kfd/kfd").is_dir():
            raise DriverGoneError("no_kfd", "the kernel's driver amdgpu is not loaded")

    def version(self) -> str:
        """Read the version of the module, which one that came with the kernel lacks."""
        file = self._sysfs.parent / "module/amdgpu/version"
        return file.read_text().strip() if file.exists() else "of the kernel"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """List the GPUs in the order of the PCI bus."""
        del skip  # no file hangs
        numbers = dict(self._numbers())
        listed = []
        for device in self._sysfs.glob("drm/card*/device"):
            address = _address_of(device)
            if address in numbers and (device / "unique_id").exists():
                listed.append((address, device))
        gpus = []
        for index, (address, device) in enumerate(sorted(listed)):
            # As torch writes it, with which a stressor compares it.
            uuid = f"GPU-{_text(device / 'unique_id')}"
            self._found[uuid] = device, numbers[address]
            name = device / "product_name"
            gpus.append(
                Gpu(
                    uuid=uuid,
                    index=index,
                    name=(_text(name) if name.exists() else "") or "AMD GPU",
                    pci_bus_id=address,
                    memory_total=_number(device / "mem_info_vram_total"),
                )
            )
        return tuple(gpus)

    def memory(self, uuid: str) -> Memory:
        """Read the memory of one GPU."""
        device, _ = self._place(uuid)
        total = _number(device / "mem_info_vram_total")
        used = _number(device / "mem_info_vram_used")
        return Memory(total=total, used=used, free=total - used)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List the processes that compute on one GPU; the kernel names host PIDs."""
        _, number = self._place(uuid)
        found = []
        try:
            folders = list((self._sysfs / "kfd/kfd/proc").iterdir())
        except OSError as error:
            raise ReadError("no_processes", f"the processes cannot be read: {error}") from error
        for folder in folders:
            try:
                used = int((folder / f"vram_{number}").read_text())
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENODEV}:
                    continue  # the process has just ended
                # Any other is no evidence of that: the process may still be there.
                raise ReadError("no_process", f"a process cannot be read: {error}") from error
            # Each process that computes has a file for every GPU: 0 if it is not on this one.
            if used:
                found.append(GpuProcess(pid=int(folder.name), memory=used))
        return tuple(sorted(found, key=lambda process: process.pid))

    def utilization(self, uuid: str) -> float | None:
        """Read the utilization, which the kernel has in percent."""
        device, _ = self._place(uuid)
        return _number(device / "gpu_busy_percent") / 100

    def temperature(self, uuid: str) -> int | None:
        """Read the temperature, which the kernel has in thousandths of a degree."""
        found = self._sensor(uuid, "temp1_input")
        return None if found is None else found // 1000

    def power(self, uuid: str) -> float | None:
        """Read the power, which the kernel has in millionths of a watt."""
        found = self._sensor(uuid, "power1_average")
        return None if found is None else found / 1e6

    def sm_clock(self, uuid: str) -> int | None:
        """Read the clock of the cores, which the kernel has in Hz."""
        found = self._sensor(uuid, "freq1_input")
        return None if found is None else found // 1_000_000

    def telemetry(self, uuid: str) -> Telemetry:
        """Read what the page and the history show."""
        return Telemetry(
            at=time.monotonic(),
            utilization=self.utilization(uuid),
            temperature_c=self.temperature(uuid),
            power_w=self.power(uuid),
            sm_clock_mhz=self.sm_clock(uuid),
        )

    def _place(self, uuid: str) -> tuple[Path, str]:
        """Find the device of a GPU."""
        device, number = self._found.get(uuid, (None, ""))
        if device is None or not device.is_dir():
            raise GpuLostError("gone", "the GPU is not in the kernel's list any more")
        return device, number

    def _sensor(self, uuid: str, name: str) -> int | None:
        """Read a sensor; None if the GPU has no such one."""
        device, _ = self._place(uuid)
        file = next(device.glob(f"hwmon/hwmon*/{name}"), None)
        return None if file is None else _number(file)

    def _numbers(self) -> Iterator[tuple[str, str]]:
        """Yield the PCI address of each GPU that computes, and its number."""
        for node in self._sysfs.glob("kfd/kfd/topology/nodes/*"):
            number = _text(node / "gpu_id")
            if number != "0":  # that is a CPU
                lines = (line.split() for line in _text(node / "properties").splitlines())
                facts = {words[0]: int(words[1]) for words in lines if len(words) == 2}  # noqa: PLR2004
                place = facts["location_id"]
                bus, slot, function = place >> 8, place >> 3 & 31, place & 7
                yield f"{facts.get('domain', 0):04x}:{bus:02x}:{slot:02x}.{function}", number


def _address_of(device: Path) -> str:
    """Read the PCI address of a device, to which its folder is a link."""
    return device.resolve().name


def _text(file: Path) -> str:
    """Read one file of the kernel.

    Raises:
        ReadError: It cannot be read.
    """
    try:
        return file.read_text().strip()
    except OSError as error:
        raise ReadError("unreadable", f"{file} cannot be read: {error.strerror}") from error


def _number(file: Path) -> int:
    """Read one number.

    Raises:
        ReadError: It cannot be read, or is none.
    """
    text = _text(file)
    try:
        return int(text)
    except ValueError as error:
        raise ReadError("no_number", f"{file} has {text[:40]!r}, which is no number") from error
