"""A program that holds 88 % of a GPU and repeats one kind of call, as starts consist of them.

It prints ``ready`` once torch is loaded, reads the name of the call, and prints ``holding``.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.die_with_parent import end_with_parent
from benchmarks.measured_line import write_line

_SHARE, _CHUNK_BYTES = 0.88, 512 * 2**20
#: Calls before the program holds still: the first ones allocate.
_FIRST = 3
_PAUSE_S = 0.01
HOST_GIB = (1, 2, 4)

#: A kernel with a number of its own, so that the driver has not compiled it before.
_KERNEL = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k{number}(.param .u64 p)
{{
    .reg .b64 %a; .reg .b32 %x, %y; .reg .pred %q;
    ld.param.u64 %a, [p];
    mov.u32 %x, {number};
    mov.u32 %y, 0;
L:  mad.lo.u32 %x, %x, %x, 12345;
    add.u32 %y, %y, 1;
    setp.lt.u32 %q, %y, 1000;
    @%q bra L;
    st.global.u32 [%a], %x;
    ret;
}}
"""


class Calls:
    """The kinds of call, each of which returns after one of them."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._cuda: Any = torch.cuda
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._matrix = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)
        self._product = torch.empty_like(self._matrix)
        self._small = torch.zeros(16, device="cuda:0")
        self._numbers = itertools.count()
        self._kept: list[Any] = []

    def idle(self) -> None:
        """Sleep."""
        time.sleep(_PAUSE_S)

    def item(self) -> None:
        """Copy one value to the host."""
        self._small.sum().item()

    def blocking_event(self) -> None:
        """Wait asleep for the device."""
        event = self._cuda.Event(blocking=True)
        event.record()
        event.synchronize()

    def products(self) -> None:
        """Queue ten products, and wait asleep."""
        for _ in range(10):
            self._torch.mm(self._matrix, self._matrix, out=self._product)
        self.blocking_event()

    def spinning_wait(self) -> None:
        """Queue a product, and wait in a loop."""
        self._torch.mm(self._matrix, self._matrix, out=self._product)
        self._cuda.synchronize()

    def long_kernel(self) -> None:
        """Run a kernel of 0.1 s."""
        self._cuda._sleep(200_000_000)  # noqa: SLF001 - public nowhere
        self.blocking_event()

    def load_module(self) -> ctypes.c_void_p:
        """Compile and load a module, which stays."""
        module = ctypes.c_void_p()
        text = _KERNEL.format(number=next(self._numbers)).encode()
        self._driver.cuModuleLoadData(ctypes.byref(module), text)
        return module

    def load_and_unload_module(self) -> None:
        """Compile, load and unload a module."""
        self._driver.cuModuleUnload(self.load_module())

    def pin(self, size: int) -> None:
        """Pin and release host memory of this size in bytes."""
        self._torch.zeros(size, dtype=self._torch.uint8, pin_memory=True)
        self._torch._C._host_emptyCache()  # noqa: SLF001 - public nowhere

    def hold_host_memory(self, size: int) -> None:
        """Sleep beside touched host memory of this size in bytes."""
        if not self._kept:
            self._kept.append(self._torch.ones(size, dtype=self._torch.uint8))
        self.idle()

    def allocate(self) -> None:
        """Allocate and free 32 MiB of the GPU."""
        self._torch.empty(2**25, dtype=self._torch.uint8, device="cuda:0")
        self._cuda.empty_cache()

    def mem_get_info(self) -> None:
        """Read the free memory."""
        self._cuda.mem_get_info(0)


def _host(gib: int) -> Callable[[Calls], object]:
    return lambda calls: calls.hold_host_memory(gib * 2**30)


#: The kinds of call by name.
CALLS: Mapping[str, Callable[[Calls], object]] = {
    "idle": Calls.idle,
    "item": Calls.item,
    "blocking-event": Calls.blocking_event,
    "products": Calls.products,
    "spinning-wait": Calls.spinning_wait,
    "long-kernel": Calls.long_kernel,
    "load-module": Calls.load_module,
    "load-and-unload-module": Calls.load_and_unload_module,
    "pin-64-mib": lambda calls: calls.pin(64 * 2**20),
    "pin-4-kib": lambda calls: calls.pin(4096),
    **{f"host-memory-{gib}-gib": _host(gib) for gib in HOST_GIB},
    "allocate": Calls.allocate,
    "mem-get-info": Calls.mem_get_info,
}


def main() -> None:
    """Hold the GPU and repeat the call until killed."""
    end_with_parent(signal.SIGKILL)
    import torch

    os.setpgid(0, 0)
    write_line(ready=True)
    name = sys.stdin.readline().strip()
    if not name:
        return
    calls, call = Calls(), CALLS[name]
    count = int(torch.cuda.mem_get_info(0)[0] * _SHARE) // _CHUNK_BYTES
    chunks = [torch.empty(_CHUNK_BYTES, dtype=torch.uint8, device="cuda:0") for _ in range(count)]
    for _ in range(_FIRST):
        call(calls)
    write_line(holding=len(chunks))
    while True:
        call(calls)


if __name__ == "__main__":
    main()
