"""Files of the kernel that tests pretend."""

from __future__ import annotations

from pathlib import Path


def write_port(sysfs: Path, adapter: str, state: str = "4: ACTIVE", **counters: str) -> Path:
    """Write an InfiniBand port; return its folder."""
    port = sysfs / "class/infiniband" / adapter / "ports/1"
    (port / "counters").mkdir(parents=True, exist_ok=True)
    facts = {"state": state, "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    for name, text in facts.items():
        (port / name).write_text(f"{text}\n")
    for name, text in counters.items():
        (port / "counters" / name).write_text(f"{text}\n")
    return port


def write_controller(sysfs: Path, **counters: str) -> None:
    """Write the counters of a memory controller."""
    folder = sysfs / "devices/system/edac/mc/mc0"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in counters.items():
        (folder / name).write_text(f"{text}\n")
