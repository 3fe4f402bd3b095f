"""CUDA_VISIBLE_DEVICES is read as CUDA reads it, and selectors have ranges."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.gpu_selection import (
    in_cuda_order,
    needs_cuda_order,
    pci_order,
    present,
    read_visible,
    select_gpus,
)
from sentinel.errors import ConfigError, GpuHeldError, NoSuchGpuError
from sentinel.protocol.gpu import Gpu, HeldGpu


def gpu(index: int, start: str, name: str = "NVIDIA H200", pci: str | None = None) -> Gpu:
    """Build a GPU with a UUID that starts with ``start``."""
    return Gpu(
        uuid=f"GPU-{start.ljust(8, '0')}-1111-2222-3333-444444444444",
        index=index,
        name=name,
        pci_bus_id=pci or f"00000000:{index + 1:02X}:00.0",
        memory_total=2**34,
    )


# The first two UUIDs share a prefix; CUDA numbers the GPUs in reverse order.
GPUS = (gpu(0, "abcd"), gpu(1, "abef"), gpu(2, "1234"), gpu(3, "cafe"))
A, B, C, D = GPUS
CUDA = (D.uuid, C.uuid, B.uuid, A.uuid)

CASES: dict[str, tuple[str | None, tuple[Gpu, ...]]] = {
    "not set shows all": (None, GPUS),
    "empty shows none": ("", ()),
    "blank shows none": (" ", ()),
    "a word shows none": ("NoDevFiles", ()),
    "all is no word of CUDA's": ("all", ()),
    "a comma alone shows none": (",", ()),
    "one number": ("0", (D,)),
    "the last number": ("3", (A,)),
    "numbers are CUDA's, in the order of the list": ("2,0", (B, D)),
    "all numbers": ("0,1,2,3", (D, C, B, A)),
    "a blank before a number": ("0, 1", (D, C)),
    "a tab before a number": ("\t1,\t0", (C, D)),
    "a blank after a number": ("0 ,1 ", (D, C)),
    "a plus sign": ("+1", (C,)),
    "leading zeros": ("01,002", (C, B)),
    "minus zero is zero": ("-0", (D,)),
    "junk after a number": ("1gpu2,2ampere", (C, B)),
    "a fraction is cut": ("1.9", (C,)),
    "hexadecimal is zero and junk": ("0x1", (D,)),
    "a semicolon is junk": ("0;1", (D,)),
    "minus one ends the list": ("0,2,-1,1", (D, B)),
    "minus one alone shows none": ("-1", ()),
    "a negative number ends the list": ("0,-2,1", (D,)),
    "a number out of range ends the list": ("0,4,1", (D,)),
    "a huge number ends the list": ("0,99999999999999999999999999,1", (D,)),
    "an empty entry ends the list": ("0,,1", (D,)),
    "a comma at the end changes nothing": ("0,1,", (D, C)),
    "a comma in front shows none": (",0", ()),
    "a word ends the list": ("0,gpu1,1", (D,)),
    "a sign without a number ends the list": ("0,-,1", (D,)),
    "a blank inside the sign's number ends the list": ("0,- 1,1", (D,)),
    "a digit of another script ends the list": ("0,\u0661,1", (D,)),
    "a number twice hides all": ("0,0", ()),
    "a number twice, apart, hides all": ("0,1,0", ()),
    "a number twice in two spellings hides all": ("1,01", ()),
    "a number again after the end changes nothing": ("0,-1,0", (D,)),
    "a number again after one out of range changes nothing": ("0,9,0", (D,)),
    "a UUID": (A.uuid, (A,)),
    "UUIDs in the order of the list": (f"{C.uuid},{A.uuid}", (C, A)),
    "a UUID cut short": ("GPU-1234", (C,)),
    "one digit that is unique": ("GPU-c", (D,)),
    "an ambiguous beginning shows none": ("GPU-ab", ()),
    "an ambiguous beginning ends the list": ("GPU-12,GPU-a,GPU-c", (C,)),
    "an unknown UUID ends the list": (f"{A.uuid},GPU-ffff,{B.uuid}", (A,)),
    "the prefix alone is ambiguous": ("GPU-", ()),
    "the case of a prefix counts": ("gpu-1234", ()),
    "the case of a UUID counts": ("GPU-CAFE", ()),
    "a UUID without its prefix shows none": ("cafe", ()),
    "a UUID and more shows none": (f"{A.uuid}0", ()),
    "a blank before a UUID ends the list": ("GPU-12, GPU-c", (C,)),
    "a blank after a UUID ends the list": ("GPU-12,GPU-c ", (C,)),
    "a UUID twice hides all": ("GPU-12,GPU-12", ()),
    "a UUID twice in two spellings hides all": ("GPU-12,GPU-c,GPU-1234", ()),
    "a UUID again after the end changes nothing": ("GPU-12,x,GPU-12", (C,)),
    "a number after a UUID ends the list": ("GPU-12,0", (C,)),
    "a UUID after a number ends the list": (f"0,{A.uuid}", (D,)),
    "a MIG device is none of ours": ("MIG-8a0d53a1-6d1e-5c5c-b3c4-3d2f0c1e2b3a", ()),
    "a MIG device of the older form": (f"MIG-{A.uuid}/1/0", ()),
    "a MIG device after a UUID ends the list": (f"GPU-12,MIG-{A.uuid}/1/0,GPU-c", (C,)),
    "a MIG device after a number ends the list": (f"1,MIG-{A.uuid}/1/0,0", (C,)),
}


@pytest.mark.parametrize(("value", "expected"), CASES.values(), ids=CASES)
def test_a_value_of_cuda_visible_devices_shows_these_gpus(
    value: str | None, expected: tuple[Gpu, ...]
) -> None:
    """Each value selects exactly these GPUs, in this order."""
    assert read_visible(value, GPUS, CUDA)[0] == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, None),
        ("", "CUDA_VISIBLE_DEVICES is empty, so CUDA shows no GPU; unset it"),
        ("0,2", None),
        ("0, 1,", None),
        ("+1", None),
        (A.uuid, None),
        ("0,9,1", "'9' is no GPU of this host, so CUDA ignores it and all after it; correct it"),
        ("0,9", "'9' is no GPU of this host, so CUDA ignores it; correct it"),
        ("0,,1", "an entry is empty, so CUDA ignores it and all after it; correct it"),
        ("0-2", "CUDA reads '0-2' as 0; write numbers with commas between"),
        ("0;1", "CUDA reads '0;1' as 0; write numbers with commas between"),
        ("0-2,9", "'9' is no GPU of this host, so CUDA ignores it; correct it"),
        ("1,1", "it has '1' twice, so CUDA shows no GPU; name each GPU once"),
        *(
            (value, "'MIG-1' is a MIG device, which sentinel does not use; name whole GPUs, or")
            for value in ("MIG-1", "MIG-1,MIG-2", "GPU-12,MIG-1")
        ),
        (f"0,{B.uuid}", f"'{B.uuid}' is a UUID in a list of numbers, so CUDA ignores it"),
        (f"{B.uuid},0", "'0' is a number in a list of UUIDs, so CUDA ignores it"),
        ("all", "'all' is no GPU of this host, so CUDA ignores it; correct it"),
        ("GPU-ffff", "'GPU-ffff' is no GPU of this host, so CUDA ignores it; correct it"),
    ],
)
def test_what_cuda_ignores_of_a_value_is_said_in_one_line(
    value: str | None, problem: str | None
) -> None:
    _, found = read_visible(value, GPUS, CUDA)
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(f"CUDA_VISIBLE_DEVICES={value}: {problem}" if value else problem)
        assert found.endswith("unset it")


def test_any_unique_prefix_selects_a_gpu() -> None:
    """Any unique prefix of a UUID is enough, however short."""
    assert read_visible("GPU-", (A,), None)[0] == (A,)


def test_a_gpu_unknown_to_nvml_is_ignored() -> None:
    """The list stays valid, so later entries count."""
    assert read_visible("0,1", (A, B), ("GPU-only-cuda-knows-it", B.uuid))[0] == (B,)


@pytest.mark.parametrize("value", ["0", "1gpu", " 2", "0,GPU-12", "+3"])
def test_numbers_require_cudas_order(value: str) -> None:
    """Without CUDA's order, a number is an error with a remedy."""
    assert needs_cuda_order(value)
    with pytest.raises(ConfigError, match="UUID"):
        read_visible(value, GPUS, None)[0]


@pytest.mark.parametrize(
    "value", [None, "", "-1", "GPU-12", "GPU-12,0", "MIG-x", "NoDevFiles", ","]
)
def test_values_without_numbers_do_not_require_it(value: str | None) -> None:
    """The result is the same with and without CUDA's order."""
    assert not needs_cuda_order(value)
    assert read_visible(value, GPUS, None)[0] == read_visible(value, GPUS, CUDA)[0]


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        (["0-2"], (A, B, C)),
        (["2-3", "0"], (A, C, D)),
        (["1,2-2, GPU-12"], (B, C)),
        (["all,0-1"], GPUS),
    ],
)
def test_a_range_selects_each_of_its_gpus(selectors: list[str], expected: tuple[Gpu, ...]) -> None:
    assert select_gpus(selectors, GPUS) == expected


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("0-4", "no GPU matches '4'"),
        ("2-1", "the range '2-1' ends before it begins"),
        ("GPU-ab", "'GPU-ab' matches several GPUs"),
    ],
)
def test_a_gpu_of_a_range_that_is_missing_is_named(selector: str, why: str) -> None:
    with pytest.raises(NoSuchGpuError, match=why):
        select_gpus([selector], GPUS)


@pytest.mark.parametrize("selector", ["7", "6-7", "GPU-dead", "00000000:08:00.0"])
def test_a_gpu_that_is_held_elsewhere_is_not_said_to_be_missing(selector: str) -> None:
    there, away = gpu(6, "beef"), gpu(7, "dead")
    held = HeldGpu(
        uuid=away.uuid,
        index=7,
        pci_bus_id=away.pci_bus_id,
        holder="pid 5 (stray)",
        remedy="End it: kill 5",
    )
    with pytest.raises(GpuHeldError, match=r"GPU 7 \(GPU-dead.*by pid 5 \(stray\)") as error:
        select_gpus([selector], (there,), [held])
    assert error.value.remedy.startswith("End it: kill 5.")
    assert select_gpus(["all", "6"], (there,), [held]) == (there,)
    with pytest.raises(NoSuchGpuError, match="no GPU matches '8'"):
        select_gpus(["8"], (there,), [held])


def test_settings_of_a_range_are_for_its_gpus_that_are_present() -> None:
    assert present("2-9,0", GPUS) == (A, C, D)
    assert present("7,8", GPUS) == ()
    for wrong in ("GPU-ab", "2-1"):
        with pytest.raises(ValueError, match=wrong):
            present(wrong, GPUS)


# --- the order -------------------------------------------------------------------------------


def refuse() -> tuple[str, ...] | None:
    """Fail, as CUDA must not be queried."""
    message = "CUDA was asked"
    raise AssertionError(message)


MIXED = (gpu(0, "aa", "T400"), gpu(1, "bb", "NVIDIA H200"))


def test_gpus_of_one_model_are_in_pci_order() -> None:
    """CUDA is not queried; bus addresses are compared as numbers, domain first."""
    gpus = (
        gpu(0, "a", pci="00010000:01:00.0"),
        gpu(1, "b", pci="00000000:C1:00.0"),
        gpu(2, "c", pci="00000000:0A:00.0"),
    )
    expected = (gpus[2].uuid, gpus[1].uuid, gpus[0].uuid)
    assert pci_order(gpus) == expected
    assert in_cuda_order(gpus, None, refuse) == expected


def test_mixed_gpus_are_in_pci_order_if_the_variable_requests_it() -> None:
    """CUDA_DEVICE_ORDER=PCI_BUS_ID needs no query of CUDA."""
    assert in_cuda_order(MIXED, "PCI_BUS_ID", refuse) == pci_order(MIXED)


@pytest.mark.parametrize("device_order", [None, "FASTEST_FIRST", "pci_bus_id", ""])
def test_mixed_gpus_are_in_cudas_own_order(device_order: str | None) -> None:
    """By default the fastest GPU is first, and only CUDA knows this order."""
    answer = (MIXED[1].uuid, MIXED[0].uuid)
    assert in_cuda_order(MIXED, device_order, lambda: answer) == answer


def test_without_an_answer_of_cuda_mixed_gpus_are_an_error() -> None:
    """The error requests UUIDs."""
    with pytest.raises(ConfigError, match="UUID"):
        in_cuda_order(MIXED, None, lambda: None)


# --- properties ------------------------------------------------------------------------------

entries = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from(
        [*(g.uuid for g in GPUS), "GPU-12", "GPU-ab", "GPU-c", "GPU-", "MIG-1", "", "x"]
    ),
    st.text(" \t0123+-xGPU", max_size=6),
)
lists = st.lists(entries, max_size=6).map(",".join)


@given(value=lists | st.text(max_size=20), order=st.permutations(CUDA))
def test_the_result_has_known_gpus_without_duplicates(value: str, order: list[str]) -> None:
    """Every selected GPU exists, and none is selected twice."""
    selected = read_visible(value, GPUS, tuple(order))[0]
    assert set(selected) <= set(GPUS)
    assert len(set(selected)) == len(selected)


@given(
    head=lists,
    invalid=st.sampled_from(["-1", "99", "x", "", "GPU-ffff", "GPU-ab", "MIG-1"]),
    tail=lists,
)
def test_entries_after_an_invalid_one_are_ignored(head: str, invalid: str, tail: str) -> None:
    """The first entry without a GPU ends the list."""
    value = f"{head},{invalid}"
    assert read_visible(f"{value},{tail}", GPUS, CUDA)[0] == read_visible(value, GPUS, CUDA)[0]


@given(chosen=st.lists(st.sampled_from(range(4)), unique=True, min_size=1))
def test_numbers_and_uuids_mean_the_same(chosen: list[int]) -> None:
    """A list of numbers is equivalent to the list of their UUIDs."""
    numbers = ",".join(map(str, chosen))
    uuids = ",".join(CUDA[number] for number in chosen)
    assert read_visible(numbers, GPUS, CUDA)[0] == read_visible(uuids, GPUS, None)[0]


def test_every_pair_of_different_numbers_shows_both() -> None:
    """Only equal numbers hide each other."""
    for first, second in itertools.permutations(range(4), 2):
        assert len(read_visible(f"{first},{second}", GPUS, CUDA)[0]) == 2
