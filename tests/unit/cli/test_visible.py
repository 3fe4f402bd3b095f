"""Numbers in CUDA_VISIBLE_DEVICES are those of this process, and are compared by UUID."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sentinel.cli.daemon import visible
from sentinel.cli.daemon.visible import read_shown, restrict
from sentinel.client import Status
from sentinel.errors import ConfigError, NoSuchGpuError
from sentinel.host.simulation import Registry
from sentinel.protocol.gpu import Gpu

A, B, C = UUIDS = tuple(f"GPU-{letter * 8}" for letter in "abc")
#: A GPU of this host that the daemon does not manage.
OTHER = "GPU-dddddddd"


def _status() -> Status:
    gpus = tuple(
        Gpu(uuid=uuid, index=index, name="H200", pci_bus_id=f"0:{index}", memory_total=1)
        for index, uuid in enumerate(UUIDS)
    )
    daemon = SimpleNamespace(simulated=False)
    return cast("Status", SimpleNamespace(gpus=gpus, daemon=daemon))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...] | None]:
    """Return the list of what CUDA will answer this process, one answer for each query."""
    answers: list[tuple[str, ...] | None] = []
    monkeypatch.setattr(visible, "cuda_order_of_this_host", lambda: answers.pop(0))
    return answers


@pytest.mark.parametrize(
    ("seen", "value", "shown"),
    [
        ((C,), "0", {C}),  # the only card of a container
        ((C, A, B), "0,1", {C, A}),  # CUDA has the fastest first
        ((OTHER, A, B), "0,1,2", {A, B}),
        ((A, OTHER, C), f"{OTHER},{C[:7]}", {C}),
        (None, C[:7], {C}),  # its beginning is as good where CUDA does not answer
    ],
)
def test_visible_gpus_are_those_of_this_process_that_the_daemon_has(
    cuda: list[tuple[str, ...] | None], seen: tuple[str, ...] | None, value: str, shown: set[str]
) -> None:
    cuda.append(seen)
    count, left, _ = restrict(_status(), value, 1, ())
    assert (count, set(left)) == (1, shown)


@pytest.mark.parametrize("value", [f"{C},{A}", B])
def test_whole_uuids_need_no_answer_of_cuda(cuda: list[tuple[str, ...] | None], value: str) -> None:
    assert cuda == [], "a query would fail"
    assert set(restrict(_status(), value, 1, ())[1]) == set(value.split(","))


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "MIG-5a1d1b60"])
def test_values_that_show_no_gpu_need_no_answer_of_cuda(
    cuda: list[tuple[str, ...] | None], value: str
) -> None:
    assert cuda == [], "a query would fail"
    with pytest.raises(NoSuchGpuError, match="shows no GPU of this daemon"):
        restrict(_status(), value, 1, ())


def test_numbers_that_cuda_does_not_explain_are_refused(
    cuda: list[tuple[str, ...] | None],
) -> None:
    cuda.append(None)
    with pytest.raises(ConfigError, match="does not report which GPUs these numbers are"):
        restrict(_status(), "0", 1, ())


def test_cards_of_which_the_daemon_has_none_are_refused(
    cuda: list[tuple[str, ...] | None],
) -> None:
    cuda += [(OTHER,), (OTHER, A)]
    with pytest.raises(NoSuchGpuError, match="shows no GPU of this daemon"):
        restrict(_status(), "0", 1, ())
    with pytest.raises(NoSuchGpuError, match=r"GPU 0-1 requested, but .* shows GPU 0 of this"):
        restrict(_status(), "0,1", None, ("0", "1"))


@pytest.mark.parametrize("selectors", [(), ("0", "1")])
def test_more_gpus_than_there_are_is_not_the_fault_of_the_variable(
    selectors: tuple[str, ...],
) -> None:
    there = "2 named" if selectors else "the daemon has 3"
    with pytest.raises(NoSuchGpuError, match=f"^4 GPUs requested; {there}$"):
        restrict(_status(), f"{A},{B}", 4, selectors)


@pytest.mark.parametrize(
    "value",
    ["GPU-\x1b[2J\nx", f"{A},{'x' * 15_000}", ",".join([A, *["GPU-x"] * 3000]), "x" * 15_000],
)
def test_no_value_spoils_or_fills_the_terminal(value: str) -> None:
    with pytest.raises(NoSuchGpuError) as refused:
        restrict(_status(), value, 3, ())
    text = str(refused.value)
    assert text.replace("\n", "", 1).isprintable()
    assert len(text) < 700


def test_numbers_of_simulated_gpus_are_those_of_the_daemon_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible, "find_simulation", lambda: tmp_path)
    names = [gpu.uuid for gpu in Registry.create(tmp_path, 3).gpus()]
    shown, _ = read_shown("2,0", Registry(tmp_path).gpus(), simulated=True)
    assert shown == {names[0], names[2]}
