"""GPUs can be selected in every form that nvidia-smi shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.gpu_selection import select_gpus
from sentinel.errors import ConfigError, ExitCode, NoSuchGpuError
from sentinel.host.packages import TorchBuild
from sentinel.protocol.gpu import Gpu
from sentinel.supervisor import discovery


def gpu(index: int, start: str, pci: str) -> Gpu:
    """Build a GPU with a UUID that starts with ``start``."""
    return Gpu(
        uuid=f"GPU-{start}-1111-2222-3333-444444444444",
        index=index,
        name="NVIDIA H200",
        pci_bus_id=pci,
        memory_total=2**34,
    )


# Indexes with a gap, as with an excluded GPU; two GPUs with equal addresses in two domains.
A = gpu(0, "abcd0000", "00000000:01:00.0")
B = gpu(1, "abef0000", "00000000:C1:00.0")
C = gpu(3, "1a340000", "00000001:02:00.0")
D = gpu(12, "cafe0000", "00000002:02:00.0")
GPUS = (A, B, C, D)


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ([], GPUS),
        (["all"], GPUS),
        (["ALL"], GPUS),
        (["0,all"], GPUS),
        (["0"], (A,)),
        (["00"], (A,)),
        (["12"], (D,)),
        (["3,0"], (A, C)),
        (["3", "0"], (A, C)),
        (["0, 1"], (A, B)),
        (["0,0"], (A,)),
        (["0", A.uuid, "01:00.0"], (A,)),
        ([C.uuid], (C,)),
        ([C.uuid.lower()], (C,)),
        ([C.uuid.removeprefix("GPU-")], (C,)),
        (["GPU-abe"], (B,)),
        (["gpu-CAFE"], (D,)),
        (["abcd"], (A,)),
        (["1a"], (C,)),
        (["GPU-1"], (C,)),
        (["00000000:C1:00.0"], (B,)),
        (["0000:c1:00.0"], (B,)),
        (["0:c1:0.0"], (B,)),
        (["c1:00.0"], (B,)),
        (["1:00.0"], (A,)),
        (["1:02:00.0"], (C,)),
        (["0002:02:00.0", "0"], (A, D)),
    ],
    ids=str,
)
def test_a_selector_matches_its_gpus(selectors: list[str], expected: tuple[Gpu, ...]) -> None:
    """Each selector selects exactly these GPUs, in nvidia-smi's order."""
    assert select_gpus(selectors, GPUS) == expected


@pytest.mark.parametrize(
    "selector",
    [
        "2",
        "-1",
        "3-1",
        "GPU-ffff",
        "beef",
        "GPU-",
        "03:00.0",
        "c1:00.1",
        "1gpu",
        "0 1",
        "MIG-1",
    ],
)
def test_an_unknown_selector_is_an_error_with_the_list_of_gpus(selector: str) -> None:
    """The error has its own exit code."""
    with pytest.raises(NoSuchGpuError) as caught:
        select_gpus(["0", selector], GPUS)
    assert repr(selector) in caught.value.what
    for existing in GPUS:
        assert existing.uuid in caught.value.remedy
        assert existing.pci_bus_id in caught.value.remedy
    assert caught.value.exit_code == ExitCode.NO_SUCH_GPU


@pytest.mark.parametrize("selector", ["GPU-ab", "ab", "a", "02:00.0"])
def test_an_ambiguous_selector_is_refused(selector: str) -> None:
    with pytest.raises(NoSuchGpuError, match="matches several GPUs") as caught:
        select_gpus([selector], GPUS)
    assert repr(selector) in caught.value.what
    assert A.uuid in caught.value.remedy


def test_a_host_without_gpus_accepts_no_selector() -> None:
    """Even ``all`` is an error; an empty selection is not."""
    assert select_gpus([], ()) == ()
    with pytest.raises(NoSuchGpuError, match="no GPU"):
        select_gpus(["all"], ())


@given(chosen=st.lists(st.sampled_from(GPUS)), data=st.data())
def test_all_selectors_of_a_gpu_are_equivalent(chosen: list[Gpu], data: st.DataObject) -> None:
    """Index, UUID and address can be mixed, repeated and in any order."""
    names = [
        data.draw(st.sampled_from([str(each.index), each.uuid, each.uuid[:10], each.pci_bus_id]))
        for each in chosen
    ]
    expected = tuple(each for each in GPUS if each in chosen) if chosen else GPUS
    assert select_gpus(names, GPUS) == expected
    assert select_gpus([",".join(names)] if names else [], GPUS) == expected


WITHOUT_CUDA = TorchBuild(version="2.13.0+cpu", cuda=None, without=True)


@pytest.mark.parametrize(
    ("build", "driver", "found", "index"),
    [
        (None, "535.104.05", "torch is not installed", "cu126"),
        (WITHOUT_CUDA, "580.65.06", "torch was built without CUDA", "cu130"),
        (None, None, "torch is not installed", "get-started"),
    ],
)
def test_an_unusable_torch_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    build: TorchBuild | None,
    driver: str | None,
    found: str,
    index: str,
) -> None:
    monkeypatch.setattr(discovery, "torch_build", lambda: build)
    with pytest.raises(ConfigError, match=found) as caught:
        discovery.check_torch(driver)
    assert index in caught.value.remedy
    assert "sentinel run --monitor" in caught.value.remedy


def test_simulated_gpus_need_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "torch_build", lambda: WITHOUT_CUDA)
    discovery.check_torch(None)
