"""Print what ``--list`` and ``--once`` find, as text or as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sentinel.cli.display.log_lines import processes
from sentinel.cli.display.output import print_json
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.rules import with_time
from sentinel.units import format_size

if TYPE_CHECKING:
    from sentinel.diagnostics.survey import Survey


def print_gpus(gpus: Sequence[Gpu], *, text: bool) -> None:
    """Print the GPUs."""
    if not text:
        print_json({"gpus": gpus})
        return
    for gpu in gpus:
        size = format_size(gpu.memory_total)
        click.echo(f"{gpu.index:>3}  {gpu.uuid}  {gpu.pci_bus_id}  {size:>9}  {gpu.name}")


def print_survey(survey: Sequence[Survey], *, text: bool, explain: bool) -> None:
    """Print the use of each GPU, and whether a stressor would start on it."""
    if not text:
        print_json({"gpus": survey})
        return
    for row in survey:
        would = "would be occupied" if row.verdict.allowed else "would be left alone"
        click.echo(f"GPU {row.gpu.index}  {row.gpu.name}  {row.gpu.uuid}")
        why = with_time(row.verdict.reason, row.verdict.left_s)
        click.echo(f"  {row.occupancy.lower()}: {would} ({why})")
        if explain:
            click.echo(f"  decided by the rule `{row.verdict.rule}`")
        if row.reading is None or row.reading.memory is None:
            continue
        memory = row.reading.memory
        click.echo(f"  {format_size(memory.used)} of {format_size(memory.total)} in use")
        notes = {**row.pending_ignores, **row.ignored_processes} if explain else {}
        for pid, socket in row.daemon_stressors.items():
            notes[pid] = f"stressor of the daemon at {socket}"
        for process in row.reading.processes or ():
            held = format_size(process.memory) if process.memory is not None else "memory unknown"
            note = f" - {notes[process.pid]}" if process.pid in notes else ""
            shown = processes([asdict(process)])
            click.echo(f"    {process.kind.value}: {shown}, {held}{note}")
