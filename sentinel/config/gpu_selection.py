"""Which GPUs are meant: by CUDA_VISIBLE_DEVICES as CUDA reads it, and by people on a command line.

Everything here is pure; what only CUDA knows is asked through a function that the caller passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sentinel.errors import ConfigError, NoSuchGpuError
from sentinel.protocol.gpu import Gpu

_GPU = "GPU-"

#: As strtol reads a number: blanks and a sign before it, anything after it.
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


# --- CUDA_VISIBLE_DEVICES --------------------------------------------------------------------


def visible_gpus(
    value: str | None, gpus: tuple[Gpu, ...], cuda_order: tuple[str, ...] | None
) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA would show under a value of CUDA_VISIBLE_DEVICES, in its order.

    The grammar is CUDA's: the first entry decides whether the list is of numbers or of UUIDs, the
    first entry that names no GPU ends it, and a GPU named twice before that hides them all. UUIDs
    may be cut short where that leaves them unique; their case counts. A MIG device is none of
    ours, so a list of them shows nothing.

    Args:
        value: The variable's value; ``None`` where it is not set, which shows all.
        gpus: All GPUs of this host.
        cuda_order: The UUIDs in the order in which CUDA numbers them, from :func:`in_cuda_order`;
            it may be ``None`` where :func:`needs_cuda_order` says so.

    Raises:
        ConfigError: The value has numbers and ``cuda_order`` is ``None``.
    """
    if value is None:
        return gpus
    if value.startswith(_GPU):
        candidates = (_by_uuid(entry, gpus) for entry in value.split(","))
    elif needs_cuda_order(value):
        if cuda_order is None:
            raise _unresolved()
        order = cuda_order
        candidates = (_by_number(entry, order) for entry in value.split(","))
    else:
        return ()
    shown: list[str] = []
    for uuid in candidates:
        if uuid is None:
            break
        if uuid in shown:
            return ()
        shown.append(uuid)
    known = {gpu.uuid: gpu for gpu in gpus}
    return tuple(known[uuid] for uuid in shown if uuid in known)


def needs_cuda_order(value: str | None) -> bool:
    """Return whether a value of CUDA_VISIBLE_DEVICES names GPUs by CUDA's numbers."""
    return value is not None and _number(value.partition(",")[0]) is not None


def pci_order(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the UUIDs in the order of the PCI bus."""
    return tuple(gpu.uuid for gpu in sorted(gpus, key=lambda gpu: _pci(gpu.pci_bus_id)))


def in_cuda_order(
    gpus: Sequence[Gpu],
    device_order: str | None,
    ask: Callable[[], tuple[str, ...] | None],
) -> tuple[str, ...]:
    """Return the UUIDs in the order in which CUDA numbers them.

    That is the order of the PCI bus where CUDA_DEVICE_ORDER says so and among equal GPUs; for
    others CUDA puts the fastest first, and only CUDA knows which that is.

    Args:
        gpus: All GPUs of this host.
        device_order: The value of CUDA_DEVICE_ORDER, ``None`` where it is not set.
        ask: Asks CUDA; called only where needed. ``None`` means that it did not answer.

    Raises:
        ConfigError: CUDA had to be asked and did not answer.
    """
    if device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1:
        return pci_order(gpus)
    order = ask()
    if order is None:
        raise _unresolved()
    return order


def _unresolved() -> ConfigError:
    return ConfigError(
        "CUDA_VISIBLE_DEVICES names GPUs by number, and which GPUs CUDA means cannot be found out",
        "Name them by UUID (`nvidia-smi -L` shows them), or set CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    )


def _number(entry: str) -> int | None:
    """Return the number that ``entry`` begins with, ``None`` for a negative one or none."""
    match = _NUMBER.match(entry)
    if match is None:
        return None
    digits = match[2].lstrip("0") or "0"
    if match[1] == "-" and digits != "0":
        return None
    # More digits than any count of GPUs: beyond every range, and cheap to turn into a number.
    return int(digits[:9])


def _by_number(entry: str, order: Sequence[str]) -> str | None:
    """Return the UUID that CUDA's number in ``entry`` means, if any."""
    number = _number(entry)
    return order[number] if number is not None and number < len(order) else None


def _by_uuid(entry: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the one UUID that begins with ``entry``, if there is just one."""
    matches = [gpu.uuid for gpu in gpus if gpu.uuid.startswith(entry)]
    return matches[0] if entry.startswith(_GPU) and len(matches) == 1 else None


# --- the command line ------------------------------------------------------------------------


def select_gpus(selectors: Sequence[str], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs that people named, in the order of ``gpus``.

    Args:
        selectors: Comma lists of ``all``, nvidia-smi's index, a UUID or its unique beginning, with
            or without ``GPU-``, and PCI addresses, with or without their domain. Case does not
            count, nor does a GPU that is named twice. A bare number is always an index. No
            selector at all means every GPU.
        gpus: All GPUs there are to choose from.

    Raises:
        NoSuchGpuError: A selector names no GPU, or several.
    """
    if not selectors:
        return gpus
    chosen: set[str] = set()
    for selector in (part.strip() for text in selectors for part in text.split(",")):
        matches = gpus if selector.lower() == "all" else matching(selector, gpus)
        if not matches:
            raise NoSuchGpuError(f"no GPU is called {selector!r}", _choices(gpus))
        if len(matches) > 1 and matches is not gpus:
            raise NoSuchGpuError(f"{selector!r} means more than one GPU", _choices(gpus))
        chosen.update(gpu.uuid for gpu in matches)
    return tuple(gpu for gpu in gpus if gpu.uuid in chosen)


def matching(selector: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return every GPU that one selector could mean: none, one, or all that begin like it."""
    if selector.isascii() and selector.isdigit():
        return tuple(gpu for gpu in gpus if str(gpu.index) == (selector.lstrip("0") or "0"))
    address = _PCI.fullmatch(selector)
    if address:
        wanted = _pci(selector)
        first = 0 if address[1] else 1  # without a domain, it may be any
        return tuple(gpu for gpu in gpus if _pci(gpu.pci_bus_id)[first:] == wanted[first:])
    start = selector.lower().removeprefix(_GPU.lower())
    return tuple(
        gpu
        for gpu in gpus
        if start and gpu.uuid.lower().removeprefix(_GPU.lower()).startswith(start)
    )


def _pci(address: str) -> tuple[int, ...]:
    """Return domain, bus, device and function; zeros where ``address`` is none."""
    match = _PCI.fullmatch(address)
    return tuple(int(part or "0", 16) for part in match.groups()) if match else (0, 0, 0, 0)


def _choices(gpus: Sequence[Gpu]) -> str:
    """Return a list of everything that could have been named."""
    if not gpus:
        return "There is no GPU to choose from."
    lines = [f"  {gpu.index}  {gpu.uuid}  {gpu.pci_bus_id}  {gpu.name}" for gpu in gpus]
    return "\n".join(["Choose by index, UUID or PCI address, or `all`:", *lines])
