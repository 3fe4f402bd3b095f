"""The device order of CUDA, with a fake libcuda."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.host.device_order import cuda_order_of_this_host
from tests.harness.fake_nvml import FIRST, NEEDS_COMPILER, SECOND, build

pytestmark = NEEDS_COMPILER

#: A libcuda that numbers the two GPUs in reverse order, and can be made to fail.
CUDA = r"""
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("FAKE_CUDA_FAILS") ? 999 : 0; }
int cuDeviceGetCount(int *count) { *count = getenv("CUDA_VISIBLE_DEVICES") ? 0 : 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    memset(uuid, 0, 16); memset(uuid, device ? 0x11 : 0x22, 4); return 0; }
"""


def test_the_device_order_is_read_from_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_VISIBLE_DEVICES has no effect; there is no order if CUDA fails."""
    monkeypatch.setenv(
        "LD_LIBRARY_PATH", str(build(tmp_path, source_text=CUDA, name="libcuda.so.1"))
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert cuda_order_of_this_host() == (SECOND, FIRST)
    monkeypatch.setenv("FAKE_CUDA_FAILS", "1")
    assert cuda_order_of_this_host() is None
