"""Select GPUs: by CUDA_VISIBLE_DEVICES, as CUDA reads it, and by selectors on a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from sentinel.errors import ConfigError, GpuHeldError, NoSuchGpuError
from sentinel.protocol.gpu import Gpu, HeldGpu
from sentinel.protocol.gpu_names import is_named, parse_address
from sentinel.units import split_selectors

G = TypeVar("G")

_GPU = "GPU-"
#: What is added to a GPU in a list of them, by whether it is present.
_STANDING = {True: "", False: "  missing", None: "  not read: no daemon runs"}

#: A number as strtol reads it: after blanks and a sign, and before anything.
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")


def gpus_of(shown: Iterable[object]) -> tuple[Gpu, ...]:
    """Build the GPUs of views or of a status, which have the fields of each."""
    names = [field.name for field in fields(Gpu)]
    return tuple(Gpu(**{name: getattr(gpu, name) for name in names}) for gpu in shown)


# --- CUDA_VISIBLE_DEVICES --------------------------------------------------------------------


def read_visible(
    value: str | None, gpus: tuple[Gpu, ...], cuda_order: tuple[str, ...] | None
) -> tuple[tuple[Gpu, ...], str | None]:
    """Return the GPUs that CUDA shows for a value of CUDA_VISIBLE_DEVICES, and what it ignores.

    The grammar is CUDA's: the first entry decides whether the list is of numbers or of UUIDs, the
    first entry that matches no GPU ends it, and a duplicate before that hides all GPUs. A unique
    prefix of a UUID is enough; case matters. MIG devices are not supported, so a list of them shows
    no GPU.

    Args:
        value: The value of the variable, or None if it is not set, which shows all GPUs.
        gpus: All GPUs of this host.
        cuda_order: The UUIDs in CUDA's order, from :func:`in_cuda_order`; None is enough unless
            :func:`needs_cuda_order`.

    Returns:
        The GPUs in the order of the value, and a sentence that names the first ignored entry and
        how to lift it, or None. An empty value has one as well.

    Raises:
        ConfigError: The value has numbers and ``cuda_order`` is None.
    """
    if value is None:
        return gpus, None
    order, by_number = cuda_order, needs_cuda_order(value)
    if by_number and order is None:
        raise _unresolved()
    if not value.strip():
        return (), "CUDA_VISIBLE_DEVICES is empty, so CUDA shows no GPU; unset it"
    shown: list[str] = []
    problem = None
    entries = value.split(",")
    for place, entry in enumerate(entries):
        uuid = _by_number(entry, order or ()) if by_number else _by_uuid(entry, gpus)
        if uuid is None:
            if any(rest.strip() for rest in entries[place:]):
                problem = _ignored(entry, entries[place + 1 :], by_number=by_number)
            break
        if uuid in shown:
            shown = []
            problem = f"it has {entry.strip()!r} twice, so CUDA shows no GPU; name each GPU once"
            break
        shown.append(uuid)
        if by_number and (junk := entry.strip()) and not junk.lstrip("+-").isdecimal():
            problem = problem or (
                f"CUDA reads {junk!r} as {_number(entry)}; write numbers with commas between"
            )
    known = {gpu.uuid: gpu for gpu in gpus}
    found = tuple(known[uuid] for uuid in shown if uuid in known)
    if problem is not None:
        problem = f"CUDA_VISIBLE_DEVICES={value}: {problem}, or unset it"
    return found, problem


def _ignored(entry: str, following: Sequence[str], *, by_number: bool) -> str:
    """Describe the first entry that matches no GPU."""
    name = entry.strip()
    if name.startswith("MIG-"):  # after others, CUDA ignores it as well
        return f"{name!r} is a MIG device, which sentinel does not use; name whole GPUs"
    if by_number and name.startswith("GPU-"):
        why = f"{name!r} is a UUID in a list of numbers"
    elif not by_number and name.isdecimal():
        why = f"{name!r} is a number in a list of UUIDs"
    else:
        why = f"{name!r} is no GPU of this host" if name else "an entry is empty"
    rest = " and all after it" if following else ""
    return f"{why}, so CUDA ignores it{rest}; correct it"


def needs_cuda_order(value: str | None) -> bool:
    """Check whether a value of CUDA_VISIBLE_DEVICES selects GPUs by number."""
    return value is not None and _number(value.partition(",")[0]) is not None


def pci_order(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the UUIDs in the order of the PCI bus."""

    def place(gpu: Gpu) -> tuple[int, ...]:
        address = parse_address(gpu.pci_bus_id)
        return (0, 0, 0, 0) if address is None else address.place

    return tuple(gpu.uuid for gpu in sorted(gpus, key=place))


def in_cuda_order(
    gpus: Sequence[Gpu],
    device_order: str | None,
    query_cuda: Callable[[], tuple[str, ...] | None],
) -> tuple[str, ...]:
    """Return the UUIDs in CUDA's order.

    It is the order of the PCI bus if CUDA_DEVICE_ORDER=PCI_BUS_ID or if all GPUs are of one model.
    Otherwise CUDA puts the fastest first, and only CUDA knows which GPU that is.

    Args:
        gpus: All GPUs of this host.
        device_order: The value of CUDA_DEVICE_ORDER, or None if it is not set.
        query_cuda: Queries CUDA, only if necessary; returns None if CUDA does not answer.

    Raises:
        ConfigError: CUDA does not answer.
    """
    if device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1:
        return pci_order(gpus)
    order = query_cuda()
    if order is None:
        raise _unresolved()
    return order


def _unresolved() -> ConfigError:
    return ConfigError(
        "CUDA_VISIBLE_DEVICES has numbers, and CUDA does not report which GPUs they are",
        "Use UUIDs (`nvidia-smi -L` shows them), or set CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    )


def _number(entry: str) -> int | None:
    """Return the number at the start of ``entry``, or None if it is negative or missing."""
    match = _NUMBER.match(entry)
    if match is None:
        return None
    digits = match[2].lstrip("0") or "0"
    if match[1] == "-" and digits != "0":
        return None
    # Nine digits exceed any number of GPUs, and bound the cost of the conversion.
    return int(digits[:9])


def _by_number(entry: str, order: Sequence[str]) -> str | None:
    """Return the UUID for CUDA's number in ``entry``, or None."""
    number = _number(entry)
    return order[number] if number is not None and number < len(order) else None


def _by_uuid(entry: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the only UUID that begins with ``entry``, or None."""
    matches = [gpu.uuid for gpu in gpus if gpu.uuid.startswith(entry)]
    return matches[0] if entry.startswith(_GPU) and len(matches) == 1 else None


# --- the command line ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KnownGpu:
    """What identifies a GPU that may be missing."""

    uuid: str
    #: The index that it has, or had last; None if that is not known.
    index: int | None
    #: The serial number of the board; None if it has none, or is not known.
    serial: str | None
    #: The PCI address that it has, or had last; empty if that is not known.
    pci_bus_id: str = ""
    #: Whether a running daemon has it; None if none runs, so that nothing is read.
    present: bool | None


def select_gpus(
    selectors: Sequence[str], gpus: tuple[Gpu, ...], held: Sequence[HeldGpu] = ()
) -> tuple[Gpu, ...]:
    """Return the selected GPUs, in the order of ``gpus``.

    Args:
        selectors: Comma lists of ``all``, nvidia-smi indices and ranges of them, UUIDs or their
            unique prefixes, with or without ``GPU-``, and PCI addresses in any form. Case and
            duplicates do not matter. A bare number is always an index. An empty sequence selects
            every GPU.
        gpus: The GPUs to choose from.
        held: Those that are held elsewhere, which only a selector of their own matches.

    Raises:
        NoSuchGpuError: A selector is malformed, or matches no GPU, or several.
        GpuHeldError: A selector matches only one that is held elsewhere.
    """
    if not selectors:
        return gpus

    def match(selector: str) -> Sequence[Gpu]:
        matches = gpus if selector.lower() == "all" else _matching(selector, gpus)
        if not matches:
            _refuse_held(selector, held)
        return matches

    def refuse(what: str) -> NoSuchGpuError:
        return _no_such_gpu(what, _choices(gpus), ("all", *(gpu.uuid for gpu in gpus)))

    chosen: set[str] = set()
    for selector, matches in _select(selectors, match, refuse):
        if selector.isdigit() and (now := matches[0].renumbered):
            what = f"GPU {selector} was {matches[0].uuid} when the daemon started; {now}"
            raise refuse(what)
        chosen.update(gpu.uuid for gpu in matches)
    return tuple(gpu for gpu in gpus if gpu.uuid in chosen)


def _refuse_held(selector: str, held: Iterable[HeldGpu]) -> None:
    """Raise GpuHeldError if a selector matches a GPU that is held elsewhere."""
    for gpu in held:
        if is_named(gpu, selector):
            what = f"GPU {gpu.index} ({gpu.uuid}) is not used, since it was held at the start"
            remedy = f"{gpu.remedy}. Then start again; of a daemon: sentinel restart"
            raise GpuHeldError(f"{what} by {gpu.holder}", remedy)


def select_known(selectors: Iterable[str], gpus: Sequence[KnownGpu]) -> tuple[str, ...]:
    """Return the UUIDs of the selected GPUs, which may be missing.

    Args:
        selectors: As for :func:`select_gpus`, without ``all``, and serial numbers. An index or
            address is that of a present GPU, if one has it: those that were replaced keep what they
            had.
        gpus: The GPUs to choose from.

    Raises:
        NoSuchGpuError: A selector matches no GPU, or several.
    """

    def match(selector: str) -> Sequence[KnownGpu]:
        matches = [gpu for gpu in gpus if selector == gpu.serial or is_named(gpu, selector)]
        return [gpu for gpu in matches if gpu.present] or matches

    def refuse(what: str) -> NoSuchGpuError:
        return _no_such_gpu(what, _known_choices(gpus), tuple(gpu.uuid for gpu in gpus))

    found = [matches for _, matches in _select(selectors, match, refuse)]
    return tuple(dict.fromkeys(gpu.uuid for matches in found for gpu in matches))


def _select(
    selectors: Iterable[str],
    match: Callable[[str], Sequence[G]],
    refuse: Callable[[str], NoSuchGpuError],
) -> Iterator[tuple[str, Sequence[G]]]:
    """Yield each selector with the GPU that it matches; ``all`` may match several."""
    try:
        single = split_selectors(selectors)
    except ValueError as error:
        raise refuse(str(error)) from error
    for selector in single:
        matches = match(selector)
        if not matches:
            raise refuse(f"no GPU matches {selector!r}")
        if len(matches) > 1 and selector.lower() != "all":
            raise refuse(f"{selector!r} matches several GPUs")
        yield selector, matches


def _no_such_gpu(what: str, choices: str, allowed: tuple[str, ...]) -> NoSuchGpuError:
    error = NoSuchGpuError(what, choices)
    error.allowed = allowed
    return error


def present(selectors: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return those GPUs of a comma list that are there.

    Raises:
        ValueError: A selector is malformed, or matches several GPUs.
    """
    chosen: set[str] = set()
    for selector in split_selectors([selectors]):
        matches = _matching(selector, gpus)
        if len(matches) > 1:
            raise ValueError(f"{selector!r} matches several GPUs")
        chosen.update(gpu.uuid for gpu in matches)
    return tuple(gpu for gpu in gpus if gpu.uuid in chosen)


def _matching(selector: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return every GPU that one selector matches; a prefix may match several.

    A number that nvidia-smi has given to another GPU is that one's.
    """
    matches = tuple(gpu for gpu in gpus if is_named(gpu, selector))
    if len(matches) > 1 and selector.isdigit():
        matches = tuple(gpu for gpu in matches if not gpu.renumbered) or matches
    return matches


def _choices(gpus: Sequence[Gpu]) -> str:
    """List the possible selectors, for an error message."""
    if not gpus:
        return "There is no GPU to choose from."
    lines = [
        f"  {gpu.index}  {gpu.uuid}  {gpu.pci_bus_id}  {gpu.name}"
        f"{f'  ({gpu.renumbered})' if gpu.renumbered else ''}"
        for gpu in gpus
    ]
    return "\n".join(["Choose by index, UUID or PCI address, or `all`:", *lines])


def _known_choices(gpus: Sequence[KnownGpu]) -> str:
    """List the possible selectors of GPUs that may be missing, for an error message."""
    if not gpus:
        return "No verified work of any GPU is known."
    lines = [
        f"  {'?' if gpu.index is None else gpu.index}  {gpu.uuid}"
        f"{f'  serial {gpu.serial}' if gpu.serial else ''}{_STANDING[gpu.present]}"
        for gpu in gpus
    ]
    return "\n".join(["Choose by index, UUID, PCI address or serial number:", *lines])
