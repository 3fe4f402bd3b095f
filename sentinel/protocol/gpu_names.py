"""Names of GPUs: addresses on the PCI bus in every form that is printed, and who else names one."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, Protocol

#: An address within a text, for a pattern: it has no groups.
ADDRESS = (
    r"(?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?!:?[0-9A-Fa-f])"
    r"(?:\.[0-7](?![0-9A-Fa-f]))?"
)
#: One digit of bus or device needs a function behind: ``1:0`` is a MIG device of GPU 1 elsewhere.
_PARTS = re.compile(
    r"\s*(?:pci:)?(?:([0-9a-f]{1,8}):)?"
    r"(?=..:..(?:\.|\s*$)|[^.]*\.)([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?\s*",
    re.IGNORECASE,
)
_UUID = "gpu-"


class PciAddress(NamedTuple):
    """An address on the PCI bus; None for a part that its form leaves out."""

    domain: int | None
    bus: int
    device: int
    function: int | None

    @property
    def place(self) -> tuple[int, int, int, int]:
        """The four parts, with 0 for what is left out."""
        return self.domain or 0, self.bus, self.device, self.function or 0

    def __str__(self) -> str:
        """Write it as the kernel names the device's folder."""
        return "{:04x}:{:02x}:{:02x}.{}".format(*self.place)


@lru_cache(maxsize=1024)
def parse_address(text: str) -> PciAddress | None:
    """Parse an address as the kernel, its log, lspci, nvidia-smi or Slurm print it.

    ``00000000:3B:00.0``, ``0000:3b:00.0``, ``3b:00.0``, ``0000:3b:00``, ``PCI:0000:3b:00``.

    Returns:
        None if the text is no address.
    """
    match = _PARTS.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return PciAddress(
        domain=None if domain is None else int(domain, 16),
        bus=int(bus, 16),
        device=int(device, 16),
        function=None if function is None else int(function),
    )


def device_of(address: str) -> tuple[int, int, int] | None:
    """Parse an address in any form into domain, bus and device; None if it is no address."""
    parsed = parse_address(address)
    return None if parsed is None else parsed.place[:3]


def is_same_device(first: str, second: str | None) -> bool:
    """Compare two addresses in any form; the function does not matter."""
    device = device_of(first)
    return device is not None and second is not None and device == device_of(second)


class NamedGpu(Protocol):
    """What names a GPU."""

    @property
    def uuid(self) -> str:
        """Its UUID."""

    @property
    def index(self) -> int | None:
        """Its index of nvidia-smi, or None if it is not known."""

    @property
    def pci_bus_id(self) -> str:
        """Its address, or empty if it is not known."""


def is_named(gpu: NamedGpu, selector: str) -> bool:
    """Check whether a selector names a GPU; the beginning of a UUID may name several.

    Args:
        gpu: The GPU.
        selector: An index, which a bare number always is; a UUID or its beginning, with or without
            ``GPU-``; or an address, which names any GPU that has the parts that it gives.
    """
    if selector.isascii() and selector.isdigit():
        return str(gpu.index) == (selector.lstrip("0") or "0")
    wanted = parse_address(selector)
    if wanted is not None:
        own = parse_address(gpu.pci_bus_id)
        return own is not None and all(
            part in {None, mine} for part, mine in zip(wanted, own.place, strict=True)
        )
    start = selector.lower().removeprefix(_UUID)
    return bool(start) and gpu.uuid.lower().removeprefix(_UUID).startswith(start)
