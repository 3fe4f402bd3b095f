"""GPUs are selected by what is on their label, also those that are missing."""

from __future__ import annotations

import pytest

from sentinel.errors import NoSuchGpuError
from sentinel.host.gpus.known_gpus import KnownGpu, select_known

OLD = KnownGpu(uuid="GPU-aaaa1111", index=1, serial="1650001", present=False)
NEW = KnownGpu(uuid="GPU-aaaa2222", index=1, serial="1650002", present=True)
LOST = KnownGpu(uuid="GPU-bbbb3333", index=150, serial=None, present=False)
GPUS = (OLD, NEW, LOST)


@pytest.mark.parametrize(
    ("selectors", "found"),
    [
        (["1"], [NEW]),
        (["01"], [NEW]),
        (["150"], [LOST]),
        (["1650001"], [OLD]),
        (["GPU-aaaa1111"], [OLD]),
        (["gpu-BBBB"], [LOST]),
        (["bbbb,1650001", "150"], [LOST, OLD]),
    ],
)
def test_an_index_means_a_present_gpu_and_the_rest_any(
    selectors: list[str], found: list[KnownGpu]
) -> None:
    assert select_known(selectors, GPUS) == tuple(gpu.uuid for gpu in found)


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("7", "no GPU matches '7'"),
        ("", "no GPU matches ''"),
        ("all", "no GPU matches 'all'"),
        ("GPU-", "no GPU matches 'GPU-'"),
        ("GPU-cccc", "no GPU matches"),
    ],
)
def test_an_unknown_gpu_is_an_error_with_the_known_ones(selector: str, why: str) -> None:
    with pytest.raises(NoSuchGpuError, match=why) as error:
        select_known([selector], GPUS)
    assert "GPU-bbbb3333" in error.value.remedy
    assert "missing" in error.value.remedy


def test_an_index_that_two_missing_gpus_had_is_ambiguous() -> None:
    gone = KnownGpu(uuid="GPU-aaaa2222", index=1, serial="1650002", present=False)
    with pytest.raises(NoSuchGpuError, match="matches several GPUs"):
        select_known(["1"], (OLD, gone))


def test_without_any_gpu_that_is_said() -> None:
    with pytest.raises(NoSuchGpuError, match="No verified work"):
        select_known(["0"], ())
