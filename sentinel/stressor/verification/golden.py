"""The key under which the checksum of a reference is recorded and compared between GPUs."""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch

from sentinel.host.stores.golden_store import GoldenKey
from sentinel.stressor.verification.matmul import Product

#: Incremented when the inputs, the multiplication or the checksum change.
_GENERATION = 1

#: Variables that make cuBLAS choose other kernels, whose results differ in the last bits.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)

#: Arguments of cublasGetProperty: major, minor and patch level (libraryPropertyType).
_PROPERTIES = (0, 1, 2)


def key_of(product: Product, seed: int) -> GoldenKey:
    """Return everything that determines the bits of a reference."""
    device = product.reference.device
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        name, sms = card.name, card.multi_processor_count
    else:
        name, sms = "Simulated GPU", 0
    return GoldenKey(
        gpu=name,
        sms=sms,
        torch=str(torch.__version__),
        blas=_blas(device.type),
        dtype=product.dtype.name,
        shape=f"{product.shape} v{_GENERATION}",
        seed=seed,
    )


@cache
def _blas(device: str) -> str:
    """Return the version and settings of cuBLAS, or the CPU capability that torch uses."""
    if device != "cuda" or torch.version.cuda is None:
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return " ".join([_cublas_version(torch.version.cuda), *settings])


def _cublas_version(cuda: str) -> str:
    """Return the version of the loaded cuBLAS, or that of CUDA if it cannot be read."""
    name = f"libcublas.so.{cuda.partition('.')[0]}"
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        parts = [ctypes.c_int() for _ in _PROPERTIES]
        failed = [
            library.cublasGetProperty(which, ctypes.byref(part))
            for which, part in zip(_PROPERTIES, parts, strict=True)
        ]
    except (OSError, AttributeError):
        return f"cuda {cuda}"
    if any(failed):
        return f"cuda {cuda}"
    return ".".join(str(part.value) for part in parts)
