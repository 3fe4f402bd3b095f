"""The choice of GPUs that an inherited CUDA_VISIBLE_DEVICES leaves to a command.

A number means what CUDA would show this process, whose container or job may have other GPUs than
the daemon. So GPUs are compared with the daemon's by UUID.
"""

from __future__ import annotations

from collections.abc import Collection

from sentinel.cli.display.output import cut, printable
from sentinel.client import Status
from sentinel.config.gpu_selection import (
    gpus_of,
    needs_cuda_order,
    pci_order,
    read_visible,
    select_gpus,
)
from sentinel.errors import ConfigError, NoSuchGpuError
from sentinel.host.daemon_lookup import find_simulation
from sentinel.host.device_order import cuda_order_of_this_host
from sentinel.host.simulation import Registry
from sentinel.protocol.gpu import Gpu
from sentinel.units import format_count, format_indices

#: The longest value or entry that is shown, and the longest text about it.
_MAX_SHOWN, _MAX_TEXT = 100, 400
_REMEDY = "To choose among all GPUs of the daemon: unset CUDA_VISIBLE_DEVICES."


def restrict(
    status: Status, value: str, count: int | None, selectors: tuple[str, ...]
) -> tuple[int, tuple[str, ...], str | None]:
    """Restrict a choice of GPUs to those that a value of CUDA_VISIBLE_DEVICES shows.

    Args:
        status: The status of the daemon.
        value: The value.
        count: How many GPUs are requested; None for all selected ones.
        selectors: Selectors of GPUs; empty for all GPUs.

    Returns:
        How many GPUs to reserve, the UUIDs of those that may be reserved, and what CUDA ignores.

    Raises:
        ConfigError: The value has numbers, and CUDA does not report which GPUs they are.
        NoSuchGpuError: A selector matches no GPU or several, or too few GPUs are visible.
    """
    managed = gpus_of(status.gpus)
    selected = select_gpus(selectors, managed)
    shown, ignored = read_shown(value, managed, simulated=status.daemon.simulated)
    left = [gpu for gpu in selected if gpu.uuid in shown]
    wanted = len(selected) if count is None else count
    if wanted > len(selected):
        raise too_many(wanted, len(selected), named=bool(selectors))
    if len(left) < wanted:
        indices = format_indices(gpu.index for gpu in selected)
        asked = f"GPU {indices}" if count is None else format_count(count, "GPU")
        visible = [gpu.index for gpu in managed if gpu.uuid in shown]
        raise too_few(asked, value, visible, ignored)
    return wanted, tuple(gpu.uuid for gpu in left), ignored


def too_many(wanted: int, number: int, *, named: bool = False) -> NoSuchGpuError:
    """Build the error for more GPUs than there are, in the words of the daemon."""
    there = f"{number} named" if named else f"the daemon has {number}"
    return NoSuchGpuError(f"{format_count(wanted, 'GPU')} requested; {there}")


def too_few(
    asked: str, value: str, visible: Collection[int], ignored: str | None
) -> NoSuchGpuError:
    """Build the error for GPUs that a value of CUDA_VISIBLE_DEVICES hides.

    Args:
        asked: What is requested.
        value: The value.
        visible: The indices of the GPUs of the daemon that it shows.
        ignored: What CUDA ignores of it.
    """
    seen = f"GPU {format_indices(visible)}" if visible else "no GPU"
    what = f"CUDA_VISIBLE_DEVICES={_brief(value, value)} shows {seen} of this daemon"
    return NoSuchGpuError(f"{asked} requested, but {what}", ignored or _REMEDY)


def _brief(text: str, value: str) -> str:
    """Shorten a text with a value of the variable or entries of it, for people and terminals."""
    for part in (value, *value.split(",")):
        if len(part) > _MAX_SHOWN:
            text = text.replace(part, cut(part, _MAX_SHOWN))
    return cut(printable(text), _MAX_TEXT)


def read_shown(
    value: str, managed: tuple[Gpu, ...], *, simulated: bool
) -> tuple[frozenset[str], str | None]:
    """Return the UUIDs of all GPUs that CUDA would show this process, and what it ignores.

    Args:
        value: The value of CUDA_VISIBLE_DEVICES.
        managed: The GPUs of the daemon.
        simulated: Whether they are simulated.

    Raises:
        ConfigError: The value has numbers, and CUDA does not report which GPUs they are; or several
            daemons have simulated GPUs, and none is chosen.
    """
    order = _order(value, managed, simulated=simulated)
    if order is None and needs_cuda_order(value):
        shown = _brief(value, value)
        what = f"CUDA_VISIBLE_DEVICES={shown!r}: CUDA does not report which GPUs these numbers are"
        remedy = "Use UUIDs (`sentinel status --list` shows them), or unset CUDA_VISIBLE_DEVICES."
        raise ConfigError(what, remedy)
    known = tuple(gpu.uuid for gpu in managed) if order is None else order
    seen = tuple(
        Gpu(uuid=uuid, index=number, name="", pci_bus_id="", memory_total=0)
        for number, uuid in enumerate(known)
    )
    visible, ignored = read_visible(value, seen, order)
    brief = None if ignored is None else _brief(ignored, value)
    return frozenset(gpu.uuid for gpu in visible), brief


def _order(value: str, managed: tuple[Gpu, ...], *, simulated: bool) -> tuple[str, ...] | None:
    """List the UUIDs that this process can see, in CUDA's order.

    Returns:
        None if CUDA does not answer, or if that does not matter.
    """
    if simulated:
        return pci_order(Registry(find_simulation()).gpus()) or None
    if not needs_cuda_order(value) and not value.startswith("GPU-"):
        return None  # shows no GPU
    if {gpu.uuid for gpu in managed}.issuperset(value.split(",")):
        return None  # whole UUIDs, of which CUDA knows nothing more
    return cuda_order_of_this_host()
