"""The device files of GPUs, ``/dev/nvidiaN``: which GPU each one is, as the driver's files say."""

from __future__ import annotations

import re
from pathlib import Path

#: A folder per GPU, named by its PCI address, with a file of lines such as ``Device Minor: 3``.
DRIVER_FILES = Path("/proc/driver/nvidia/gpus")
#: The name of that file.
INFORMATION = "information"
_ADDRESS = re.compile(r"^Bus Location:\s*(\S+)", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)


def addresses_by_minor(folder: Path = DRIVER_FILES) -> dict[int, str]:
    """Read the PCI address of each GPU, by the minor number of its device file.

    Minor numbers are in the order in which the driver found the GPUs; NVML's indices are in the
    order of the PCI bus. The file has the UUID, too, but only once the GPU was used.

    Args:
        folder: The driver's files, or the folder of simulated GPUs. Without them, the result is
            empty.
    """
    found: dict[int, str] = {}
    for file in folder.glob(f"*/{INFORMATION}"):
        try:
            text = file.read_text()
        except OSError:
            continue  # the GPU has just been removed
        address, minor = _ADDRESS.search(text), _MINOR.search(text)
        if address is not None and minor is not None:
            found[int(minor[1])] = address[1]
    return found


def information(address: str, minor: int) -> str:
    """Write the lines that :func:`addresses_by_minor` reads, for a simulated GPU."""
    return f"Bus Location: \t {address}\nDevice Minor: \t {minor}\n"
