"""Read what the kernel says of the host around the GPUs: ports, and errors of the memory.

Files of sysfs, without root and without a load. A broken adapter makes the read of its counters
wait for its firmware, so that a thread reads and its caller waits for a limited time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from sentinel.protocol.counters import HostCounters, Port
from sentinel.protocol.gpu_names import parse_address

#: How long all reads may take, in seconds.
TIMEOUT_S = 5.0
#: The folder of the kernel's files; simulated GPUs have one of their own, which a test may fill.
SYSFS = Path("/sys")
_SIMULATED = "sys"

#: The vendor of a PCI device.
_NVIDIA = "0x10de"

_ERRORS = ("symbol_error", "link_downed", "link_error_recovery")
_MEMORY = ("ce_count", "ue_count")


def read_host(simulation: Path | None, timeout_s: float = TIMEOUT_S) -> HostCounters:
    """Read the ports and the memory errors of the host.

    Args:
        simulation: The folder of simulated GPUs, or None for the real host.
        timeout_s: How long that may take.
    """
    root = SYSFS if simulation is None else simulation / _SIMULATED
    found: list[HostCounters] = []

    def read() -> None:
        try:
            found.append(HostCounters(ports=tuple(_ports(root)), memory=dict(_memory(root))))
        except OSError as error:
            found.append(HostCounters(error=str(error)))

    thread = threading.Thread(target=read, name="sysfs", daemon=True)
    thread.start()
    thread.join(timeout_s)
    late = f"{root}/class/infiniband was not read within {timeout_s:g} s"
    return found[0] if found else HostCounters(error=late)


def read_pci_paths(simulation: Path | None) -> dict[str, list[str]]:
    """Read the ports above each device of NVIDIA, by its address; the host bridge's comes first.

    Args:
        simulation: The folder of simulated GPUs, or None for the real host.
    """
    root = SYSFS if simulation is None else simulation / _SIMULATED
    found = {}
    for path in sorted((root / "bus/pci/devices").glob("*")):
        if _text(path / "vendor") == _NVIDIA:
            *ports, _ = [part for part in path.resolve().parts if parse_address(part)]
            found[path.name] = ports
    return found


def _ports(root: Path) -> Iterator[Port]:
    for path in sorted((root / "class/infiniband").glob("*/ports/*")):
        counts = {name: _number(path / "counters" / name) for name in _ERRORS}
        yield Port(
            name=f"{path.parent.parent.name}/{path.name}",
            # The file has the number of the state, too.
            state=(_text(path / "state") or "").rpartition(": ")[2] or None,
            rate=_text(path / "rate"),
            layer=_text(path / "link_layer"),
            errors={name: count for name, count in counts.items() if count is not None},
        )


def _memory(root: Path) -> Iterator[tuple[str, int]]:
    for path in sorted((root / "devices/system/edac/mc").glob("mc*")):
        for name in _MEMORY:
            count = _number(path / name)
            if count is not None:
                yield f"{path.name} {name}", count


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()[:100]
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path) or ""
    return int(text) if text.isascii() and text.isdigit() else None
