"""The screen of ``sentinel top``; requests run in threads, so that no key waits for the daemon."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static

from sentinel.cli import gpu_table
from sentinel.cli.gpu_options import only
from sentinel.cli.terminal import printable
from sentinel.client import Client, GpuStatus, Status
from sentinel.errors import SentinelError
from sentinel.units import format_brief, format_duration, parse_duration

#: The number of samples that are kept, and that fit into the table.
_MAX_SAMPLES = 60
_TABLE_SAMPLES = 10

#: A graph replaces the last hand-over, which is below the table.
_HEADER = (*gpu_table.HEADER[:-1], "HISTORY")


class _Samples:
    """The last samples of one GPU."""

    def __init__(self) -> None:
        self.load: deque[float | None] = deque(maxlen=_MAX_SAMPLES)
        self.power: deque[float | None] = deque(maxlen=_MAX_SAMPLES)
        self.memory: deque[float | None] = deque(maxlen=_MAX_SAMPLES)

    def add(self, gpu: GpuStatus | None) -> None:
        """Add a sample, or a gap."""
        if gpu is None:
            for samples in (self.load, self.power, self.memory):
                samples.append(None)
            return
        self.load.append(gpu.utilization)
        self.power.append(gpu.power_w)
        used = gpu.memory_used
        self.memory.append(None if used is None else used / gpu.memory_total)

    def max_power_w(self) -> float:
        """Return the maximum power draw."""
        return max((value for value in self.power if value is not None), default=1.0)

    def short_graph(self) -> str:
        """Return a small graph of the load, or of the power if the load is unknown."""
        known = any(value is not None for value in self.load)
        samples, maximum = (self.load, 1.0) if known else (self.power, self.max_power_w())
        return gpu_table.graph(list(samples)[-_TABLE_SAMPLES:], maximum)


class _DurationDialog(ModalScreen[float | None]):
    """Ask for the duration of a reservation."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss_none", "Cancel")]
    CSS = """
    _DurationDialog { align: center middle; }
    #ask { width: 50; height: auto; border: round $accent; padding: 0 1; }
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Label(f"Duration of the reservation of GPU {self._index}? Escape cancels.")
            yield Input("1h", id="duration")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept a valid duration."""
        try:
            self.dismiss(parse_duration(event.value))
        except ValueError as error:
            self.app.notify(str(error), severity="error", markup=False)

    def action_dismiss_none(self) -> None:
        """Cancel."""
        self.dismiss(None)


class Live(App[None]):
    """Every GPU, live.

    Args:
        client: The client of the daemon.
        first: The first status.
        every: The seconds between two requests.
        gpus: The selectors of the GPUs to show; the default is all.
    """

    TITLE = "sentinel"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #facts { height: auto; color: $text-muted; }
    #gpus { height: 1fr; }
    #selected { height: auto; border-top: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause"),
        Binding("r", "resume", "Resume"),
        Binding("v", "reserve", "Reserve"),
        Binding("u", "unreserve", "Unreserve"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(
        self, client: Client, first: Status, *, every: float, gpus: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._client = client
        self._status = first
        self._every = every
        self._gpus = gpus
        self._samples: dict[str, _Samples] = {}
        self._stopped = threading.Event()
        self._refresh = threading.Event()

    def compose(self) -> ComposeResult:
        """Create the widgets, from top to bottom."""
        yield Static(id="facts", markup=False)
        yield DataTable[Text](id="gpus", cell_padding=0, cursor_type="row")
        yield Static(id="selected", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Show the first status and start to poll."""
        table = self._table()
        for number, name in enumerate(_HEADER):
            table.add_column(self._cell(number, name), key=name)
        self.show(self._status)
        threading.Thread(target=self._poll, name="poll", daemon=True).start()

    def on_unmount(self) -> None:
        """Stop polling."""
        self._stopped.set()
        self._refresh.set()

    # --- showing -----------------------------------------------------------------------------

    def show(self, status: Status) -> None:
        """Show a status."""
        self._status = status
        now = datetime.now().astimezone()
        facts = [printable(line) for line in gpu_table.facts(status, now)]
        self.query_one("#facts", Static).update("\n".join(facts[:2]))
        stale = gpu_table.is_stale(status)
        for gpu in status.gpus:
            self._samples.setdefault(gpu.uuid, _Samples()).add(None if stale else gpu)
        self._fill()
        self._show_selected()

    def fail(self, error: SentinelError) -> None:
        """Show an error, and leave the rest unchanged."""
        text = Text(printable(error.what), style="bold red")
        self.query_one("#facts", Static).update(text)

    def _fill(self) -> None:
        table = self._table()
        uuids = [gpu.uuid for gpu in self._status.gpus]
        if [str(row.value) for row in table.rows] != uuids:
            table.clear()
            for uuid in uuids:
                table.add_row(*("" for _ in _HEADER), key=uuid)  # type: ignore[arg-type]
        stale = gpu_table.is_stale(self._status)
        for gpu in self._status.gpus:
            cells = gpu_table.row(gpu, self._status.reservations, stale=stale)[:-1]
            for number, cell in enumerate((*cells, self._samples[gpu.uuid].short_graph())):
                style = gpu_table.STYLES.get(cell, "")
                table.update_cell(
                    gpu.uuid, _HEADER[number], self._cell(number, cell, style), update_width=True
                )

    def _cell(self, number: int, text: str, style: str = "") -> Text:
        """Return a cell with a space before it; truncate the flexible one."""
        plain = printable(text)
        if number == gpu_table.FLEXIBLE:
            room = max(8, self.size.width - 66)
            plain = plain if len(plain) <= room else f"{plain[: room - 1]}…"
        right = "right" if number in gpu_table.RIGHT else "left"
        return Text(f"{' ' if number else ''}{plain}", style=style, justify=right)  # type: ignore[arg-type]

    def _show_selected(self) -> None:
        """Show the details of the selected GPU."""
        gpu = self._selected()
        lines = []
        if gpu is not None and gpu_table.is_stale(self._status):
            lines = [f"GPU {gpu.index}  {gpu.name}  {gpu.uuid}", "the supervisor does not answer"]
        elif gpu is not None:
            samples = self._samples[gpu.uuid]
            most = samples.max_power_w()
            lines = [
                f"GPU {gpu.index}  {gpu.name}  {gpu.uuid}",
                f"{gpu.reason}{f'; {gpu.note}' if gpu.note else ''}",
                f"health {gpu_table.health(gpu)}",
                f"load   {gpu_table.graph(samples.load, 1.0)}",
                f"memory {gpu_table.graph(samples.memory, 1.0)}",
                f"power  {gpu_table.graph(samples.power, most)} of {most:.0f}W",
            ]
            if gpu.handover is not None:
                took, ago = gpu.handover.exit, gpu.handover.ago_s
                lines.append(f"handed over {format_brief(ago)} ago in {format_brief(took)}")
        notes = [
            line for line in gpu_table.notes(self._status) if "reserved" in line or "find" in line
        ]
        text = "\n".join(printable(line) for line in [*lines, *notes])
        self.query_one("#selected", Static).update(text)

    def on_data_table_row_highlighted(self) -> None:
        """Follow the cursor."""
        self._show_selected()

    def _table(self) -> DataTable[Text]:
        return self.query_one("#gpus", DataTable)

    def _selected(self) -> GpuStatus | None:
        row = self._table().cursor_row
        return self._status.gpus[row] if 0 <= row < len(self._status.gpus) else None

    # --- keys --------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pause the selected GPU."""
        self._send(lambda uuid: self._client.pause([uuid], wait=0).text)

    def action_resume(self) -> None:
        """Resume the selected GPU."""
        self._send(lambda uuid: self._client.resume([uuid]).text)

    def action_reserve(self) -> None:
        """Reserve the selected GPU for a duration."""
        gpu = self._selected()
        if gpu is None:
            return
        uuid = gpu.uuid

        def reserve(seconds: float | None) -> None:
            if seconds is not None:
                self._in_thread(lambda: self._reserve(uuid, seconds))

        self.push_screen(_DurationDialog(gpu.index), reserve)

    def action_unreserve(self) -> None:
        """End the reservation of the selected GPU."""
        gpu = self._selected()
        id_ = None if gpu is None else gpu.reservation
        if id_ is None:
            self.notify("this GPU is not reserved", severity="warning")
            return
        self._in_thread(lambda: self._client.unreserve(id_).text)

    def _reserve(self, uuid: str, seconds: float) -> str:
        got = self._client.reserve([uuid], reason="sentinel top", seconds=seconds)
        return f"reserved as {got.id} for {format_duration(seconds)}"

    def _send(self, command: Callable[[str], str]) -> None:
        """Send a command for the selected GPU."""
        gpu = self._selected()
        if gpu is not None:
            uuid = gpu.uuid
            self._in_thread(lambda: command(uuid))

    # --- threads -----------------------------------------------------------------------------

    def _poll(self) -> None:
        """Request the status periodically, and at once after a command."""
        while not self._stopped.is_set():
            try:
                status = only(self._client.status(), self._gpus)
            except SentinelError as error:
                self._post(self.fail, error)
            else:
                self._post(self.show, status)
            self._refresh.wait(self._every)
            self._refresh.clear()

    def _in_thread(self, command: Callable[[], str]) -> None:
        """Send a command in a thread, and show its outcome."""

        def send() -> None:
            try:
                text = command() or "done"
            except SentinelError as error:
                self._post(self._notify_outcome, str(error), "error")
            else:
                self._post(self._notify_outcome, text, "information")
            self._refresh.set()

        threading.Thread(target=send, name="command", daemon=True).start()

    def _notify_outcome(self, text: str, severity: str) -> None:
        self.notify(text, severity=severity, markup=False)  # type: ignore[arg-type]

    def _post(self, show: Callable[..., None], *values: object) -> None:
        """Call ``show`` in the main thread, unless it has ended."""
        with contextlib.suppress(RuntimeError):
            self.call_from_thread(show, *values)
