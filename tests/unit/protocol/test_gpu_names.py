"""An address is taken in every form that a program prints, wherever a GPU is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.node_report import judge_node
from sentinel.config.gpu_selection import KnownGpu, pci_order, present, select_gpus, select_known
from sentinel.errors import NoSuchGpuError
from sentinel.fleet.job_gpus import gpus_of_job, names_of_job
from sentinel.protocol.api_types import GpuStatus
from sentinel.protocol.codec import from_json
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.gpu_names import device_of, is_same_device, parse_address
from tests.harness.stub_daemon import GPU

#: The GPU 3b:00.0 as each program prints it.
FORMS = (
    "00000000:3B:00.0",  # nvidia-smi, NVML, DCGM, slurmd with AutoDetect=nvml
    "00000000:3b:00.0",
    "0000:3b:00.0",  # the kernel, lspci -D, the driver's folder in /proc
    "0000:3B:00.0",
    "3b:00.0",  # lspci
    "3B:00.0",
    "0000:3b:00",  # the kernel's log
    "3b:00",  # an old driver
    "PCI:0000:3b:00",  # NVRM: Xid (PCI:0000:3b:00): 79
    "pci:0000:3B:00.0",
    "0:3b:0.0",
)
#: Another device, or no address. ``3b:0`` is a MIG device of a GPU elsewhere, ``0000:3b`` a bus.
_OTHER = ("0001:3b:00.0", "0000:3c:00", "3b:00.1", "3b:01.0", "3b:00.8", "3b:0", "0000:3b", "PCI:")
OTHERS = (*_OTHER, "3b:00.", "10de:2330", "100:00.0", "000000000:3b:00.0", "3b:00.0x", "3g:00.0")


AT_3B, AT_1 = (
    from_json(GpuStatus, {**GPU, "uuid": f"GPU-{bus}", "pci_bus_id": f"00000000:{bus}:00.0"})
    for bus in ("3B", "01")
)
STATUS = (AT_1, AT_3B)
GPUS = tuple(
    Gpu(uuid=gpu.uuid, index=index, name="H200", pci_bus_id=gpu.pci_bus_id, memory_total=1)
    for index, gpu in enumerate(STATUS)
)
KNOWN = tuple(
    KnownGpu(uuid=gpu.uuid, index=None, serial=None, pci_bus_id=gpu.pci_bus_id, present=True)
    for gpu in STATUS
)

#: Who looks up a GPU by its name: each returns the UUIDs that it finds.
LOOKUPS: dict[str, Callable[[str], Iterable[str]]] = {
    "--gpus, REST": lambda name: [gpu.uuid for gpu in select_gpus([name], GPUS)],
    "[gpu.NAME] of the settings": lambda name: [gpu.uuid for gpu in present(name, GPUS)],
    "--acknowledge": lambda name: select_known([name], KNOWN),
    "Slurm's prolog": lambda name: [
        gpu.uuid for gpu in gpus_of_job(names_of_job({"SLURM_JOB_GPUS": name}), (), {}, STATUS)
    ],
    "the driver's files": lambda name: [
        gpu.uuid for gpu in gpus_of_job(["0"], [7], {7: name}, STATUS)
    ],
}


def found(lookup: str, name: str) -> list[str]:
    try:
        return [*LOOKUPS[lookup](name)]
    except NoSuchGpuError:
        return []


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("form", FORMS)
def test_a_gpu_is_named_by_its_address_in_every_form(lookup: str, form: str) -> None:
    assert found(lookup, form) == [AT_3B.uuid]


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("other", OTHERS)
def test_another_address_names_no_gpu(lookup: str, other: str) -> None:
    assert found(lookup, other) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_fault_and_a_missing_gpu_are_found_by_an_address_in_every_form(form: str) -> None:
    assert is_same_device(form, "00000000:3B:00.0")
    assert device_of(form) == (0, 0x3B, 0)
    gpu = Counters(uuid="GPU-1", index=0, name="H200", at=0.0, pci_bus_id=form)
    (row,) = (
        one
        for one in judge_node((gpu,), Thresholds(), pci_devices=("00000000:3B:00.0",)).node
        if one.id == "node.inventory"
    )
    assert row.value == 0


def test_one_that_names_no_domain_or_function_names_several_gpus() -> None:
    gpus = tuple(replace(GPUS[0], uuid=f"GPU-{n}", pci_bus_id=f"000{n}:01:00.0") for n in "12")
    with pytest.raises(NoSuchGpuError, match="several"):
        select_gpus(["01:00.0"], gpus)
    assert select_gpus(["0002:01:00"], gpus) == gpus[1:]


def test_an_address_that_cannot_be_read_is_that_of_no_gpu() -> None:
    gpus = tuple(replace(gpu, pci_bus_id="unreadable bus") for gpu in STATUS)
    assert gpus_of_job(["0"], [7], {7: "?"}, gpus) == ()
    assert pci_order([replace(GPUS[0], pci_bus_id="?"), GPUS[1]]) == (AT_1.uuid, AT_3B.uuid)


PARTS = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7)
)


@given(PARTS)
def test_an_address_is_the_same_in_all_forms(parts: tuple[int, ...]) -> None:
    kernel, nvml = (
        "{:04x}:{:02x}:{:02x}.{}".format(*parts),
        "{:08X}:{:02X}:{:02X}.{}".format(*parts),
    )
    assert parse_address(kernel) == parse_address(nvml) == parts
    assert str(parse_address(nvml)) == kernel
