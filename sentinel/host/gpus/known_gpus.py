"""Select GPUs of which verified work is known, also those that are missing now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel.errors import NoSuchGpuError

_PREFIX = "gpu-"


@dataclass(frozen=True, kw_only=True)
class KnownGpu:
    """What identifies a GPU."""

    uuid: str
    #: The index that it has, or had last; None if that is not known.
    index: int | None
    #: The serial number of the board; None if it has none, or is not known.
    serial: str | None
    #: Whether a running daemon has it.
    present: bool


def select_known(selectors: Iterable[str], gpus: Sequence[KnownGpu]) -> tuple[str, ...]:
    """Return the UUIDs of the selected GPUs.

    Args:
        selectors: Comma lists of indices, UUIDs or their unique beginnings, with or without
            ``GPU-``, and serial numbers. An index is that of a present GPU, if one has it: those
            that were replaced keep the index that they had.
        gpus: The GPUs to choose from.

    Raises:
        NoSuchGpuError: A selector matches no GPU, or several.
    """
    chosen: dict[str, None] = {}
    for selector in (part.strip() for text in selectors for part in text.split(",")):
        matches = [gpu for gpu in gpus if _matches(selector, gpu)]
        found = [gpu for gpu in matches if gpu.present] or matches
        if len(found) != 1:
            what = f"{selector!r} matches several GPUs" if found else f"no GPU matches {selector!r}"
            error = NoSuchGpuError(what, _choices(gpus))
            error.allowed = tuple(gpu.uuid for gpu in gpus)
            raise error
        chosen[found[0].uuid] = None
    return tuple(chosen)


def _matches(selector: str, gpu: KnownGpu) -> bool:
    if selector.isascii() and selector.isdigit():
        return selector == gpu.serial or (selector.lstrip("0") or "0") == str(gpu.index)
    start = selector.lower().removeprefix(_PREFIX)
    return bool(start) and gpu.uuid.lower().removeprefix(_PREFIX).startswith(start)


def _choices(gpus: Sequence[KnownGpu]) -> str:
    """List the possible selectors, for an error message."""
    if not gpus:
        return "No verified work of any GPU is known."
    lines = [
        f"  {'?' if gpu.index is None else gpu.index}  {gpu.uuid}"
        f"{f'  serial {gpu.serial}' if gpu.serial else ''}{'' if gpu.present else '  missing'}"
        for gpu in gpus
    ]
    return "\n".join(["Choose by index, UUID or serial number:", *lines])
