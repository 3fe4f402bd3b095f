"""List the NVIDIA GPUs on the PCI bus, to find those that NVML does not list."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from sentinel.protocol.counters import CountersSpec

_VENDOR = "0x10de"
#: VGA and 3D controllers.
_CLASSES = ("0x0300", "0x0302")


def addresses(spec: CountersSpec, listed: Collection[str | None]) -> tuple[str, ...]:
    """List the GPUs that NVML should list, by their addresses in NVML's form.

    A GPU that another driver uses, or that is hidden from this container or job, is left out.

    Args:
        spec: Where the kernel and the driver list the devices.
        listed: The addresses that NVML lists. Only other devices are opened, which may take long.
    """
    known = {address.upper() for address in listed if address is not None}
    return tuple(
        address
        for folder, address in _gpus(Path(spec.sysfs))
        if address in known or not _is_hidden(folder, spec)
    )


def _gpus(sysfs: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder of each GPU of NVIDIA's, and its address."""
    for folder in sorted(sysfs.glob("*")):
        if _text(folder / "vendor") != _VENDOR:
            continue
        if not _text(folder / "class").startswith(_CLASSES):
            continue
        domain, _, rest = folder.name.partition(":")
        yield folder, f"{domain:>08}:{rest}".upper()


def _is_hidden(folder: Path, spec: CountersSpec) -> bool:
    """Check whether a GPU is in use by another driver, or not accessible from here."""
    driver = folder / "driver"
    if not driver.exists():
        return False
    if driver.resolve().name != "nvidia":
        return True
    facts = _text(Path(spec.procfs) / folder.name / "information")
    minor = next((line.split()[-1] for line in facts.splitlines() if "Minor" in line), None)
    if minor is None:  # a container has entries for its own GPUs only
        return True
    try:
        os.close(_open(Path(spec.devices) / f"nvidia{minor}", os.O_RDWR | os.O_CLOEXEC))
    except (FileNotFoundError, PermissionError):
        return True
    except OSError:  # the driver does not get it to work
        return False
    return False


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags)


def _text(path: Path) -> str:
    """Read a small file; empty if that is not possible."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
