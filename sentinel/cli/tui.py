"""The screen of ``sentinel top``. The daemon is asked by threads, so that no key waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static

from sentinel.cli import gpu_table
from sentinel.cli.output import printable
from sentinel.client import Client, GpuStatus, Status
from sentinel.errors import SentinelError
from sentinel.units import format_brief, format_duration, parse_duration

#: How much of the past is kept, in looks, and how much of it the table has room for.
_KEPT = 60
_SHORT = 10

#: The table without the last hand-over, which stands below, and with a graph in its place.
_HEADER = (*gpu_table.HEADER[:-1], "SO FAR")
_BARS = " ▁▂▃▄▅▆▇█"


def graph(values: Sequence[float | None], most: float) -> str:
    """Return a bar for each value, as high as its share of ``most``; a dot for what is unknown."""
    steps = len(_BARS) - 1
    return "".join(
        "·" if value is None else _BARS[max(0, min(steps, round(steps * value / (most or 1.0))))]
        for value in values
    )


class _Past:
    """What one GPU did at the last looks."""

    def __init__(self) -> None:
        self.load: deque[float | None] = deque(maxlen=_KEPT)
        self.power: deque[float | None] = deque(maxlen=_KEPT)
        self.memory: deque[float | None] = deque(maxlen=_KEPT)

    def note(self, gpu: GpuStatus) -> None:
        """Add what it does now."""
        self.load.append(gpu.utilization)
        self.power.append(gpu.power_w)
        used = gpu.memory_used
        self.memory.append(None if used is None else used / gpu.memory_total)

    def watts(self) -> float:
        """Return the most power that it drew."""
        return max((value for value in self.power if value is not None), default=1.0)

    def shortly(self) -> str:
        """Return a small graph of its load, or of its power where nobody asks for the load."""
        known = any(value is not None for value in self.load)
        past, most = (self.load, 1.0) if known else (self.power, self.watts())
        return graph(list(past)[-_SHORT:], most)


class _AskHowLong(ModalScreen[float | None]):
    """Asks for how long a GPU is to be reserved."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss_none", "Cancel")]
    CSS = """
    _AskHowLong { align: center middle; }
    #ask { width: 50; height: auto; border: round $accent; padding: 0 1; }
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Label(f"Reserve GPU {self._index} for how long? Escape cancels.")
            yield Input("1h", id="how-long")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the answer, if it is a duration."""
        try:
            self.dismiss(parse_duration(event.value))
        except ValueError as error:
            self.app.notify(str(error), severity="error", markup=False)

    def action_dismiss_none(self) -> None:
        """Reserve nothing."""
        self.dismiss(None)


class Live(App[None]):
    """Every GPU, again and again.

    Args:
        client: Asks the daemon.
        first: What it said already.
        every: Seconds from one look to the next.
    """

    TITLE = "sentinel"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #facts { height: auto; color: $text-muted; }
    #gpus { height: 1fr; }
    #chosen { height: auto; border-top: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause"),
        Binding("r", "resume", "Resume"),
        Binding("v", "reserve", "Reserve"),
        Binding("u", "unreserve", "Give back"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, client: Client, first: Status, *, every: float) -> None:
        super().__init__()
        self._client = client
        self._status = first
        self._every = every
        self._past: dict[str, _Past] = {}
        self._ended = threading.Event()
        self._asked_again = threading.Event()

    def compose(self) -> ComposeResult:
        """Make the parts of the screen, from above."""
        yield Static(id="facts", markup=False)
        yield DataTable[Text](id="gpus", cell_padding=0, cursor_type="row")
        yield Static(id="chosen", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Show what is known and begin to ask."""
        table = self._table()
        for number, name in enumerate(_HEADER):
            table.add_column(self._cell(number, name), key=name)
        self.show(self._status)
        threading.Thread(target=self._look, name="look", daemon=True).start()

    def on_unmount(self) -> None:
        """Stop asking."""
        self._ended.set()
        self._asked_again.set()

    # --- showing -----------------------------------------------------------------------------

    def show(self, status: Status) -> None:
        """Show what the daemon said."""
        self._status = status
        now = datetime.now().astimezone()
        facts = [printable(line) for line in gpu_table.facts(status, now)]
        self.query_one("#facts", Static).update("\n".join(facts[:2]))
        for gpu in status.gpus:
            self._past.setdefault(gpu.uuid, _Past()).note(gpu)
        self._fill()
        self._show_chosen()

    def fail(self, error: SentinelError) -> None:
        """Show that the daemon is not there, and leave the rest as it was."""
        text = Text(printable(error.what), style="bold red")
        self.query_one("#facts", Static).update(text)

    def _fill(self) -> None:
        table = self._table()
        uuids = [gpu.uuid for gpu in self._status.gpus]
        if [str(row.value) for row in table.rows] != uuids:
            table.clear()
            for uuid in uuids:
                table.add_row(*("" for _ in _HEADER), key=uuid)  # type: ignore[arg-type]
        for gpu in self._status.gpus:
            cells = gpu_table.row(gpu, self._status.reservations)[:-1]
            for number, cell in enumerate((*cells, self._past[gpu.uuid].shortly())):
                style = gpu_table.STYLES.get(cell, "")
                table.update_cell(
                    gpu.uuid, _HEADER[number], self._cell(number, cell, style), update_width=True
                )

    def _cell(self, number: int, text: str, style: str = "") -> Text:
        """Return a cell, a space from the one before; the flexible one is cut."""
        plain = printable(text)
        if number == gpu_table.FLEXIBLE:
            room = max(8, self.size.width - 66)
            plain = plain if len(plain) <= room else f"{plain[: room - 1]}…"
        right = "right" if number in gpu_table.RIGHT else "left"
        return Text(f"{' ' if number else ''}{plain}", style=style, justify=right)  # type: ignore[arg-type]

    def _show_chosen(self) -> None:
        """Show more of the GPU that the cursor is on."""
        gpu = self._chosen()
        lines = []
        if gpu is not None:
            past = self._past[gpu.uuid]
            lines = [
                f"GPU {gpu.index}  {gpu.name}  {gpu.uuid}",
                f"{gpu.reason}{f'; {gpu.note}' if gpu.note else ''}",
                f"load   {graph(past.load, 1.0)}",
                f"memory {graph(past.memory, 1.0)}",
                f"power  {graph(past.power, past.watts())} of {past.watts():.0f}W",
            ]
            if gpu.handover is not None:
                took, ago = gpu.handover.exit, gpu.handover.ago_s
                lines.append(f"handed over {format_brief(ago)} ago within {format_brief(took)}")
        notes = [
            line for line in gpu_table.notes(self._status) if "reserved" in line or "find" in line
        ]
        text = "\n".join(printable(line) for line in [*lines, *notes])
        self.query_one("#chosen", Static).update(text)

    def on_data_table_row_highlighted(self) -> None:
        """Follow the cursor."""
        self._show_chosen()

    def _table(self) -> DataTable[Text]:
        return self.query_one("#gpus", DataTable)

    def _chosen(self) -> GpuStatus | None:
        row = self._table().cursor_row
        return self._status.gpus[row] if 0 <= row < len(self._status.gpus) else None

    # --- keys --------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Let go of the chosen GPU."""
        self._order(lambda uuid: self._client.pause([uuid], wait=0).text)

    def action_resume(self) -> None:
        """End its pause."""
        self._order(lambda uuid: self._client.resume([uuid]).text)

    def action_reserve(self) -> None:
        """Ask for how long, and have it kept free."""
        gpu = self._chosen()
        if gpu is None:
            return
        uuid = gpu.uuid

        def reserve(seconds: float | None) -> None:
            if seconds is not None:
                self._in_thread(lambda: self._reserve(uuid, seconds))

        self.push_screen(_AskHowLong(gpu.index), reserve)

    def action_unreserve(self) -> None:
        """Give back the reservation of the chosen GPU."""
        gpu = self._chosen()
        id_ = None if gpu is None else gpu.reservation
        if id_ is None:
            self.notify("this GPU is not reserved", severity="warning")
            return
        self._in_thread(lambda: self._client.unreserve(id_).text)

    def _reserve(self, uuid: str, seconds: float) -> str:
        got = self._client.reserve([uuid], reason="sentinel top", seconds=seconds)
        return f"reserved as {got.id} for {format_duration(seconds)}"

    def _order(self, order: Callable[[str], str]) -> None:
        """Carry out an order for the chosen GPU."""
        gpu = self._chosen()
        if gpu is not None:
            uuid = gpu.uuid
            self._in_thread(lambda: order(uuid))

    # --- threads -----------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask the daemon again and again, and at once after an order."""
        while not self._ended.is_set():
            try:
                status = self._client.status()
            except SentinelError as error:
                self._post(self.fail, error)
            else:
                self._post(self.show, status)
            self._asked_again.wait(self._every)
            self._asked_again.clear()

    def _in_thread(self, order: Callable[[], str]) -> None:
        """Give an order, and say what came of it."""

        def give() -> None:
            try:
                text = order() or "done"
            except SentinelError as error:
                self._post(self._tell, str(error), "error")
            else:
                self._post(self._tell, text, "information")
            self._asked_again.set()

        threading.Thread(target=give, name="order", daemon=True).start()

    def _tell(self, text: str, severity: str) -> None:
        self.notify(text, severity=severity, markup=False)  # type: ignore[arg-type]

    def _post(self, show: Callable[..., None], *what: object) -> None:
        """Have something shown by the thread that shows; it may have ended meanwhile."""
        with contextlib.suppress(RuntimeError):
            self.call_from_thread(show, *what)
