"""The choice of GPUs that an inherited CUDA_VISIBLE_DEVICES leaves to a command.

A number means what CUDA would show this process, whose container or job may have other GPUs than
the daemon. So GPUs are compared with the daemon's by UUID.
"""

from __future__ import annotations

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
    if len(left) < wanted:
        visible = format_indices(gpu.index for gpu in managed if gpu.uuid in shown)
        indices = format_indices(gpu.index for gpu in selected)
        asked = f"GPU {indices}" if count is None else format_count(count, "GPU")
        seen = f"GPU {visible}" if visible else "no GPU"
        what = f"CUDA_VISIBLE_DEVICES={value} shows {seen} of this daemon"
        raise NoSuchGpuError(f"{asked} requested, but {what}", ignored or _REMEDY)
    return wanted, tuple(gpu.uuid for gpu in left), ignored


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
        what = f"CUDA_VISIBLE_DEVICES={value!r}: CUDA does not report which GPUs these numbers are"
        remedy = "Use UUIDs (`sentinel status --list` shows them), or unset CUDA_VISIBLE_DEVICES."
        raise ConfigError(what, remedy)
    known = tuple(gpu.uuid for gpu in managed) if order is None else order
    seen = tuple(
        Gpu(uuid=uuid, index=number, name="", pci_bus_id="", memory_total=0)
        for number, uuid in enumerate(known)
    )
    visible, ignored = read_visible(value, seen, order)
    return frozenset(gpu.uuid for gpu in visible), ignored


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
