"""Decode the texts that NVML returns."""

from __future__ import annotations


def as_text(value: str | bytes) -> str:
    """Decode ``value``; older bindings return bytes, and broken boards arbitrary ones."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
