"""Kernels in PTX for what operations of torch hardly reach: special functions, shared memory.

The driver compiles them for its GPU, so they need no compiler and no package. They run in the
context and the stream of torch, allocate nothing, and take no index from their input.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from sentinel.stressor.cuda_driver import check, describe, do, load_driver
from sentinel.stressor.matmul import Product

#: Numbers of cuda.h: the maximum of a device and of a function, and the options for a log.
_SHARED_BYTES_OPTIN, _DYNAMIC_SHARED_BYTES = 97, 8
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_LOG_BYTES = 8192
#: Results that mean that the driver cannot compile: invalid image, no binary for this GPU, invalid
#: PTX, no compiler, unsupported version of PTX, compilation disabled.
_NOT_COMPILED = (200, 209, 218, 221, 222, 223)

#: The threads of a block.
_THREADS = 1024

#: Drivers from 450 on (CUDA 11.0) compile this version, for this and every later architecture.
_HEADER = """\
.version 7.0
.target sm_50
.address_size 64
"""

#: All operations of the special function units in fp32, and those that take an absolute value.
SPECIAL_FUNCTIONS = ("ex2", "lg2", "sin", "cos", "rsqrt", "rcp", "sqrt")
OF_ABSOLUTE_VALUE = ("lg2", "rsqrt", "sqrt")

_SFU = """\
.visible .entry sfu(.param .u64 to, .param .u64 from, .param .u32 count)
{{
    .reg .pred %p;
    .reg .f32 %x, %abs, %y;
    .reg .b32 %i, %n, %block, %result, %bits;
    .reg .b64 %to, %from;
    mov.u32 %block, %ctaid.x;
    mov.u32 %n, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %n, %i;
    ld.param.u32 %n, [count];
    setp.ge.u32 %p, %i, %n;
    @%p ret;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    mad.wide.u32 %to, %i, 4, %to;
    mad.wide.u32 %from, %i, 4, %from;
    ld.global.f32 %x, [%from];
    abs.f32 %abs, %x;
    mov.b32 %result, 0;
{operations}
    st.global.b32 [%to], %result;
    ret;
}}
"""

#: In each round a block exchanges all pairs of words a and b with a + b = 2 * first - 1, modulo the
#: words of its memory. ``first`` grows by an odd step: other threads, and other banks, are paired.
#: Words beyond the last number are filled with that.
ROUNDS, STEP = 8, 4099

_SHARED = f"""\
.extern .shared .align 4 .b8 memory[];
.visible .entry shared(.param .u64 to, .param .u64 from, .param .u32 count, .param .u32 words)
{{
    .reg .pred %p;
    .reg .b32 %thread, %size, %count, %last, %words, %base, %half, %first, %round;
    .reg .b32 %i, %j, %a, %b, %x, %y, %memory;
    .reg .b64 %to, %from, %at;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u32 %count, [count];
    sub.u32 %last, %count, 1;
    ld.param.u32 %words, [words];
    mov.u32 %memory, memory;
    mov.u32 %thread, %tid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %base, %ctaid.x;
    mul.lo.u32 %base, %base, %words;
    shr.u32 %half, %words, 1;
    mov.u32 %first, 0;
    mov.u32 %round, 0;
    mov.u32 %j, %thread;
LOAD:
    add.u32 %i, %base, %j;
    min.u32 %i, %i, %last;
    mad.wide.u32 %at, %i, 4, %from;
    ld.global.b32 %x, [%at];
    mad.lo.u32 %a, %j, 4, %memory;
    st.shared.b32 [%a], %x;
    add.u32 %j, %j, %size;
    setp.lt.u32 %p, %j, %words;
    @%p bra LOAD;
ROUND:
    bar.sync 0;
    add.u32 %first, %first, {STEP};
    setp.ge.u32 %p, %first, %words;
    @%p sub.u32 %first, %first, %words;
    mov.u32 %j, %thread;
PAIR:
    add.u32 %a, %first, %j;
    setp.ge.u32 %p, %a, %words;
    @%p sub.u32 %a, %a, %words;
    sub.s32 %b, %first, %j;
    sub.s32 %b, %b, 1;
    setp.lt.s32 %p, %b, 0;
    @%p add.s32 %b, %b, %words;
    mad.lo.u32 %a, %a, 4, %memory;
    mad.lo.u32 %b, %b, 4, %memory;
    ld.shared.b32 %x, [%a];
    ld.shared.b32 %y, [%b];
    st.shared.b32 [%a], %y;
    st.shared.b32 [%b], %x;
    add.u32 %j, %j, %size;
    setp.lt.u32 %p, %j, %half;
    @%p bra PAIR;
    add.u32 %round, %round, 1;
    setp.lt.u32 %p, %round, {ROUNDS};
    @%p bra ROUND;
    bar.sync 0;
    mov.u32 %j, %thread;
STORE:
    add.u32 %i, %base, %j;
    setp.ge.u32 %p, %i, %count;
    @%p ret;
    mad.lo.u32 %a, %j, 4, %memory;
    ld.shared.b32 %x, [%a];
    mad.wide.u32 %at, %i, 4, %to;
    st.global.b32 [%at], %x;
    add.u32 %j, %j, %size;
    setp.lt.u32 %p, %j, %words;
    @%p bra STORE;
    ret;
}}
"""


def sfu_ptx(operations: tuple[str, ...] = SPECIAL_FUNCTIONS) -> str:
    """Build the kernel whose results are the bits of all operations on a number, by xor."""
    lines = (
        f"    {name}.approx.ftz.f32 %y, {'%abs' if name in OF_ABSOLUTE_VALUE else '%x'};\n"
        "    mov.b32 %bits, %y;\n"
        "    xor.b32 %result, %result, %bits;"
        for name in operations
    )
    return _HEADER + _SFU.format(operations="\n".join(lines))


def shared_ptx() -> str:
    """Build the kernel whose blocks fill their shared memory, exchange its words and store them."""
    return _HEADER + _SHARED


def words_of(nbytes: int) -> int:
    """Return how many words of a shared memory are exchanged: an even number."""
    return nbytes // 8 * 2


class Kernel:
    """A kernel that the driver compiled for the GPU of the current context.

    Args:
        unit: The name of the unit and of the kernel.
        ptx: The text.
        fills_shared: Whether each block takes all the shared memory that one can have.

    Attributes:
        words: The words of shared memory of each block.

    Raises:
        NotImplementedError: The driver cannot be loaded, or cannot compile the kernel.
    """

    def __init__(self, unit: str, ptx: str, *, fills_shared: bool = False) -> None:
        self.words = 0
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._compile(unit, ptx)
        do("cuModuleGetFunction", ctypes.byref(self._function), self._module, unit.encode())
        if fills_shared:
            device, most = ctypes.c_int(), ctypes.c_int()
            do("cuCtxGetDevice", ctypes.byref(device))
            do("cuDeviceGetAttribute", ctypes.byref(most), _SHARED_BYTES_OPTIN, device)
            self.words = words_of(most.value)
            do("cuFuncSetAttribute", self._function, _DYNAMIC_SHARED_BYTES, 4 * self.words)

    def _compile(self, unit: str, ptx: str) -> None:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        module = ctypes.byref(self._module)
        try:
            status = load_driver().cuModuleLoadDataEx(module, ptx.encode(), 2, options, values)
        except OSError as error:
            why = str(error)
        else:
            if status not in _NOT_COMPILED:
                check("cuModuleLoadDataEx", status)
                return
            why = f"{describe(status)}: {log.value.decode(errors='replace')}"
        message = f"the driver cannot compile the kernel of {unit}: {' '.join(why.split())}"
        raise NotImplementedError(message)

    def run(self, numbers: Tensor, out: Tensor) -> None:
        """Queue the kernel in the current stream: 32-bit numbers to as many results."""
        arguments = (
            ctypes.c_uint64(out.data_ptr()),
            ctypes.c_uint64(numbers.data_ptr()),
            ctypes.c_uint32(out.numel()),
            ctypes.c_uint32(self.words),  # not read where the kernel has three parameters
        )
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        blocks = -(-out.numel() // (self.words or _THREADS))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid = (blocks, 1, 1, _THREADS, 1, 1, 4 * self.words)
        do("cuLaunchKernel", self._function, *grid, stream, places, None)


# --- operations -------------------------------------------------------------------------------


def compute_special_functions(product: Product, out: Tensor) -> None:
    """Compute all special functions of each number of the left input."""
    _require_gpu(out)
    _sfu().run(product.left, out)


def exchange_in_shared(product: Product, out: Tensor) -> None:
    """Exchange the numbers of the left input in shared memory."""
    _require_gpu(out)
    _shared().run(product.left, out)


def _require_gpu(out: Tensor) -> None:
    if not out.is_cuda:
        message = "PTX runs on a real GPU alone"
        raise NotImplementedError(message)


@cache
def _sfu() -> Kernel:
    return Kernel("sfu", sfu_ptx())


@cache
def _shared() -> Kernel:
    return Kernel("shared", shared_ptx(), fills_shared=True)
