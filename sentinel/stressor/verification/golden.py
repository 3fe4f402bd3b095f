"""Whether a reference is what good GPUs of its kind compute: its key among the golden checksums."""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch

from sentinel.host.golden_store import GoldenKey
from sentinel.stressor.verification.matmul import Product

#: Counts on when inputs are drawn, products are multiplied or checksums are taken in another way.
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

#: What cublasGetProperty is asked for: major, minor and patch level (libraryPropertyType).
_PROPERTIES = (0, 1, 2)


def key_of(product: Product, seed: int) -> GoldenKey:
    """Return all that the bits of a reference follow from."""
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
    """Return the version of cuBLAS and what it is told; of the CPU's, what it is optimised for."""
    if device != "cuda" or torch.version.cuda is None:
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    told = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return " ".join([_cublas_version(torch.version.cuda), *told])


def _cublas_version(cuda: str) -> str:
    """Return the version of the cuBLAS that torch has loaded, or else CUDA's."""
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
