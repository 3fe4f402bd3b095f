"""A number of SLURM_JOB_GPUS is a place in the node's list, and its device file names the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sentinel.fleet.slurm.gres import expand, gpus_of_job, numbers_of_job, parse_gres
from sentinel.protocol.api_types import GpuStatus

#: As slurmd 22.05.8 printed it; the last line but one is of a GPU without a device file.
PRINTED = """\
slurmd: Gres Name=gpu Type=a100 Count=1 Index=7 ID=7696487 File=/dev/nvidia7 (null)
slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=/dev/nvidia[4-5] Cores=0-15
slurmd: Gres Name=gpu Type=1g Count=1 Index=0 ID=7 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21 x
slurmd: Gres Name=shard Type=(null) Count=8 Index=0 ID=8 File=/dev/nvidia0
slurmd: Gres Name=gpu Type=(null) Count=2 ID=7696487 Links=(null) File=(null) Flags=HAS_TYPE
slurmd: Gres Name=gpu Type=(null) Count=1 Index=1 ID=7696487 File=/tmp/dev/nvidia1 (null)
"""


def test_the_places_are_in_the_order_of_slurmd() -> None:
    assert list(parse_gres(PRINTED)) == [7, 4, 5, 0, None, None, 1]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("/dev/nvidia0", ["/dev/nvidia0"]),
        ("/dev/nvidia[0-2,5]", ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia5"]),
        ("/dev/nvidia[08-10]", ["/dev/nvidia08", "/dev/nvidia09", "/dev/nvidia10"]),
        ("/dev/a[1],/dev/b", ["/dev/a1", "/dev/b"]),
        ("", []),
        ("/dev/nvidia[x-2]", []),
    ],
)
def test_a_list_of_slurm_is_expanded(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


def gpu(index: int) -> GpuStatus:
    """Build the status of a GPU; the bus number is higher by one."""
    return GpuStatus(
        uuid=f"GPU-{index}",
        index=index,
        name="GPU",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        memory_total=1,
        occupancy="IDLE",
        stressor="RUNNING",
        admin="ENABLED",
        rule="running",
        reason="",
    )


#: The driver has found the GPUs in another order than that of the bus.
ADDRESSES = {0: "0000:03:00.0", 1: "0000:01:00.0", 2: "0000:02:00.0", 9: "0000:99:00.0"}


@pytest.mark.parametrize(
    ("numbers", "gres", "addresses", "found"),
    [
        # The first place is /dev/nvidia2, which is the second GPU on the bus.
        ([0], [2, 1, 0], ADDRESSES, [1]),
        ([0, 2], [2, 1, 0], ADDRESSES, [1, 2]),
        # The list lacks /dev/nvidia0.
        ([0], [1, 2], ADDRESSES, [0]),
        # A GPU that the daemon does not have.
        ([0, 1], [9, 1], ADDRESSES, [0]),
        # Instances of one GPU.
        ([0, 1, 2], [1, 1, 2], ADDRESSES, [0, 1]),
        # Without the list or the driver's files, a number is NVML's index.
        ([2, 0], [], ADDRESSES, [2, 0]),
        ([2, 0], [2, 1, 0], {}, [2, 0]),
        ([1], [2, None], ADDRESSES, [1]),
        ([7], [2, 1, 0], ADDRESSES, []),
    ],
)
def test_the_gpus_of_a_job(
    numbers: Sequence[int],
    gres: Sequence[int | None],
    addresses: Mapping[int, str],
    found: list[int],
) -> None:
    gpus = gpus_of_job(numbers, gres, addresses, [gpu(index) for index in range(3)])
    assert [one.index for one in gpus] == found


@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        ({"SLURM_JOB_GPUS": "0,2", "CUDA_VISIBLE_DEVICES": "5"}, (0, 2)),
        ({"CUDA_VISIBLE_DEVICES": "5"}, (5,)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"SLURM_JOB_GPUS": ""}, ()),
        ({}, ()),
    ],
)
def test_the_numbers_of_a_job(environment: Mapping[str, str], numbers: tuple[int, ...]) -> None:
    assert numbers_of_job(environment) == numbers
