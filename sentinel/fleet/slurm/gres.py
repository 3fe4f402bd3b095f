"""Which GPUs a job of Slurm has: its numbers are places in the node's list of GRES, not NVML's.

``SLURM_JOB_GPUS`` counts the GPUs of the node's list, as ``gres.conf`` or AutoDetect has them
(``common_gres_set_env`` in Slurm's gres_common.c, since 20.11): it is neither the number of the
device file nor NVML's index as soon as that list has another order, or lacks a GPU. slurmd itself
prints the list with ``slurmd -G``, whatever it comes from. The device file of a place leads to the
PCI address, and that to the GPU.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from sentinel.config.gpu_selection import pci_address
from sentinel.fleet.engine import EngineError
from sentinel.protocol.api_types import GpuStatus

#: With AutoDetect, slurmd asks the driver, which takes seconds without persistence mode.
_TIMEOUT_S = 15.0
#: A line of `slurmd -G`. Shards and MPS have lines of their own for the same device files.
_LINE = re.compile(r"\bGres Name=gpu .*?\bCount=(\d+) .*?\bFile=(\S+)")
_DEVICE = re.compile(r"/nvidia(\d+)$")


def read_gres() -> tuple[int | None, ...]:
    """Query the node's list of GPUs; see :func:`parse_gres`.

    Raises:
        EngineError: slurmd is missing, failed, or did not answer in time.
    """
    try:
        done = subprocess.run(
            ("slurmd", "-G"),  # noqa: S607 - where it is differs, so the site sets PATH
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # where the list is, as a part of the log
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise EngineError(f"slurmd cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"slurmd -G did not end in {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
        raise EngineError(f"slurmd -G failed: {lines[-1]}")
    return tuple(parse_gres(done.stdout))


def parse_gres(text: str) -> Iterator[int | None]:
    """Parse what ``slurmd -G`` prints: the minor number of each place's device file, or None.

    A place with several files (MultipleFiles) is a MIG instance: the first is its GPU's.
    """
    for count, listed in _LINE.findall(text):
        files = list(expand(listed))
        places = int(count)
        first_files = files if len(files) == places else files[:1] * places
        for file in first_files or [""] * places:
            device = _DEVICE.search(file)
            yield int(device[1]) if device is not None else None


def expand(text: str) -> Iterator[str]:
    """Expand a list of Slurm, such as ``/dev/nvidia[0-2,5],/dev/nvidia7``."""
    for part in re.findall(r"[^,\[\]]*(?:\[[^\]]*\])?", text):
        if not part:
            continue
        start, _, numbers = part.rstrip("]").partition("[")
        if not numbers:
            yield start
            continue
        for one in numbers.split(","):
            first, _, last = one.partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()):
                continue
            yield from (
                f"{start}{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)
            )


def gpus_of_job(
    numbers: Sequence[int],
    gres: Sequence[int | None],
    addresses: Mapping[int, str],
    gpus: Sequence[GpuStatus],
) -> tuple[GpuStatus, ...]:
    """Find the GPUs of a job among those of the daemon; it may not have all of them.

    A place without a known device file is taken for NVML's index: both count in the order of the
    PCI bus where the list is complete, as AutoDetect=nvml makes it.

    Args:
        numbers: ``SLURM_JOB_GPUS``.
        gres: From :func:`read_gres`; empty if it is not known.
        addresses: The PCI address by the minor number of the device file.
        gpus: The GPUs of the daemon.
    """
    by_address = {pci_address(gpu.pci_bus_id): gpu for gpu in gpus}
    by_index = {gpu.index: gpu for gpu in gpus}
    found: dict[str, GpuStatus] = {}
    for number in numbers:
        minor = gres[number] if number < len(gres) else None
        address = None if minor is None else addresses.get(minor)
        gpu = by_index.get(number) if address is None else by_address.get(pci_address(address))
        if gpu is not None:
            found[gpu.uuid] = gpu
    return tuple(found.values())


def numbers_of_job(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Read the numbers of a job's GPUs from the variables of a prolog; empty without any."""
    text = environment.get("SLURM_JOB_GPUS") or environment.get("CUDA_VISIBLE_DEVICES") or ""
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
