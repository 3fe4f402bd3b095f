"""Find the NUMA nodes of the host near to a GPU and far from it, and take memory on one of them.

The kernel places memory by the policy of the thread that takes it, which a system call sets.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from sentinel.protocol.gpu_names import parse_address

SYSFS = Path("/sys")

#: The numbers of set_mempolicy and get_mempolicy, by machine.
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
#: MPOL_PREFERRED, since MPOL_BIND has the kernel kill this process where that node is full; and
#: MPOL_F_NODE with MPOL_F_ADDR: the node of the page at an address.
_PREFERRED, _NODE_OF_ADDRESS = 1, 3
#: The bits of a mask of nodes, as in the kernel's largest configuration; it subtracts one.
_NODES = 1024
_Mask = ctypes.c_ulong * (_NODES // (8 * ctypes.sizeof(ctypes.c_ulong)))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A NUMA node, and the socket of its CPUs; None if the host does not say it."""

    node: int
    socket: int | None

    def __str__(self) -> str:
        socket = "" if self.socket is None else f" (CPU socket {self.socket})"
        return f"NUMA node {self.node}{socket}"


def places_of(pci_bus_id: str, sysfs: Path = SYSFS) -> tuple[Place | None, Place | None, str]:
    """Find the node of a GPU and the one that is farthest from it.

    Returns:
        Both, each maybe None, and why there is no first one, else empty.
    """
    nodes = sysfs / "devices/system/node"
    try:
        device = sysfs / "bus/pci/devices" / str(parse_address(pci_bus_id))
        local = int((device / "numa_node").read_text())
        if local < 0:
            return None, None, f"the host names no NUMA node of this GPU (numa_node {local})"
        # The memory of some GPUs is a node as well, without CPUs.
        hosts = _listed(nodes / "has_cpu") & _listed(nodes / "has_memory")
        distances = [int(text) for text in (nodes / f"node{local}/distance").read_text().split()]
        by_node = dict(zip(sorted(_listed(nodes / "online")), distances, strict=False))
    except (OSError, ValueError) as error:
        return None, None, f"the NUMA node of this GPU cannot be read: {error}"
    others = sorted(hosts - {local}, key=lambda node: (-by_node.get(node, 0), node))
    remote = _place(others[0], sysfs) if others else None
    return _place(local, sysfs), remote, ""


def _place(node: int, sysfs: Path) -> Place:
    system = sysfs / "devices/system"
    socket = None
    with contextlib.suppress(OSError, ValueError):
        cpu = min(_listed(system / f"node/node{node}/cpulist"))
        socket = int((system / f"cpu/cpu{cpu}/topology/physical_package_id").read_text())
    return Place(node=node, socket=socket)


def _listed(file: Path) -> set[int]:
    """Read a list of the kernel's, such as ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, file.read_text().strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def take_on(node: int, take: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
    """Take memory on a node.

    Returns:
        The memory, and why it is elsewhere or None. Where the kernel refuses a policy, it is taken
        without one.
    """
    mask = _Mask()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask[node // bits] = 1 << node % bits
    try:
        former = _policy()
        _set_policy(_PREFERRED, mask)
    except OSError as error:
        return take(), os.strerror(error.errno or errno.ENOSYS)
    try:
        memory = take()
        found = _node_of(memory.data_ptr())
    except (OSError, RuntimeError):
        memory, found = None, None
    finally:
        with contextlib.suppress(OSError):
            _set_policy(*former)
    if memory is None:
        return take(), f"no memory could be taken on NUMA node {node}"
    if found not in {None, node}:
        return memory, f"the kernel took it from NUMA node {found}"
    return memory, None


def _policy() -> tuple[int, ctypes.Array[ctypes.c_ulong]]:
    mode, mask = ctypes.c_int(), _Mask()
    _call(1, ctypes.byref(mode), mask, ctypes.c_ulong(_NODES + 1), None, ctypes.c_ulong(0))
    return mode.value, mask


def _set_policy(mode: int, mask: ctypes.Array[ctypes.c_ulong]) -> None:
    _call(0, ctypes.c_int(mode), mask, ctypes.c_ulong(_NODES + 1))


def _node_of(address: int) -> int | None:
    """Find the node of a page; None where the kernel does not say it, as of a driver's mapping."""
    node = ctypes.c_int()
    where, flags = ctypes.c_void_p(address), ctypes.c_ulong(_NODE_OF_ADDRESS)
    try:
        _call(1, ctypes.byref(node), None, ctypes.c_ulong(0), where, flags)
    except OSError:
        return None
    return node.value


def _call(which: int, *arguments: object) -> None:
    """Make one of the system calls.

    Raises:
        OSError: It failed, or this machine's number is not known.
    """
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(ctypes.c_long(_CALLS[platform.machine()][which]), *arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
