"""The kernels in PTX: what they take of a GPU, and each way in which a driver refuses them."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.stressor import cuda_driver, kernels
from sentinel.stressor.cuda_driver import driver_version
from sentinel.stressor.kernels import Kernel, sfu_ptx, shared_ptx
from sentinel.stressor.loader import is_out_of_memory
from tests.harness.programs import run_program

#: The shared memory of a block of an H100, in bytes.
H100_BYTES = 227 * 1024
TEXTS = {2: b"out of memory", 218: b"a PTX JIT compilation failed"}
PTXAS = shutil.which("ptxas")


class FakeDriver:
    """The calls of libcuda that precede a launch, on an H100 or where a kernel cannot be loaded."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.limits: list[tuple[int, int]] = []
        self._calls: dict[str, Callable[..., int]] = {
            "cuModuleLoadDataEx": self._load,
            "cuModuleGetFunction": lambda *_: 0,
            "cuCtxGetDevice": lambda *_: 0,
            "cuDeviceGetAttribute": lambda to, name, _: store(to, {97: H100_BYTES}[name]),
            "cuFuncSetAttribute": self._limit,
            "cuGetErrorString": lambda status, to: store(to, TEXTS.get(status)),
            "cuDriverGetVersion": lambda to: store(to, 13000),
        }

    def __getattr__(self, call: str) -> Callable[..., int]:
        return self._calls[call]

    def _load(self, _: Any, ptx: bytes, count: int, names: Any, values: Any) -> int:
        assert (ptx[:12], count, list(names)) == (b".version 7.0", 2, [5, 6])
        if self.status:
            log = b"ptxas fatal :\n unresolved 'x'"
            assert values[1] > len(log)
            ctypes.memmove(values[0], log, len(log))
        return self.status

    def _limit(self, _: Any, name: int, value: int) -> int:
        self.limits.append((name, value))
        return 0


def store(to: Any, value: object) -> int:
    """Store a value where a call is to, as ctypes.byref passes it."""
    to._obj.value = value
    return 0


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeDriver], FakeDriver]:
    def replace(driver: FakeDriver) -> FakeDriver:
        for module in (kernels, cuda_driver):
            monkeypatch.setattr(module, "load_driver", lambda: driver)
        return driver

    return replace


def test_a_block_takes_all_the_shared_memory_that_it_can_have(
    load: Callable[[FakeDriver], FakeDriver],
) -> None:
    driver = load(FakeDriver())
    assert Kernel("shared", shared_ptx(), fills_shared=True).words == H100_BYTES // 4
    assert driver.limits == [(8, H100_BYTES)]
    assert Kernel("sfu", sfu_ptx()).words == 0
    assert driver.limits == [(8, H100_BYTES)]
    assert driver_version() == "driver 13000"


@pytest.mark.parametrize("status", [218, 222])
def test_a_kernel_that_cannot_be_compiled_is_refused_with_the_log_of_the_driver(
    load: Callable[[FakeDriver], FakeDriver], status: int
) -> None:
    load(FakeDriver(status))
    with pytest.raises(NotImplementedError) as caught:
        Kernel("sfu", sfu_ptx())
    text = TEXTS.get(status, b"error 222").decode()
    assert str(caught.value).endswith(f"kernel of sfu: {text}: ptxas fatal : unresolved 'x'")


def test_a_driver_that_cannot_be_loaded_is_a_refusal_that_names_the_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(kernels, "load_driver", fail)
    with pytest.raises(NotImplementedError, match=r"of shared: libcuda\.so\.1: cannot open"):
        Kernel("shared", shared_ptx())


@pytest.mark.parametrize("status", [2, 719])
def test_an_error_of_the_gpu_is_raised_as_one_of_torch(
    load: Callable[[FakeDriver], FakeDriver], status: int
) -> None:
    load(FakeDriver(status))
    with pytest.raises(RuntimeError, match=r"CUDA error: .* \(cuModuleLoadDataEx\)") as caught:
        Kernel("sfu", sfu_ptx())
    assert is_out_of_memory(caught.value) == (status == 2)


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas of CUDA 12.9 or later")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_kernels_compile(tmp_path: Path, architecture: str) -> None:
    file = tmp_path / "kernels.ptx"
    for text in (sfu_ptx(), shared_ptx()):
        file.write_text(text)
        done = run_program(str(PTXAS), f"-arch={architecture}", file, "-o", tmp_path / "cubin")
        assert (done.returncode, done.stderr) == (0, "")
