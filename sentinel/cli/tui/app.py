"""The screen of ``sentinel top``: the GPUs, and below them processes, details and events."""

from __future__ import annotations

from collections import defaultdict, deque
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import DataTable, Footer, Static

from sentinel.cli.display import gpu_table
from sentinel.cli.display.output import cut, printable
from sentinel.cli.tui.actions import KEYS, Ask, GpuActions, Help
from sentinel.cli.tui.content import (
    PANELS,
    SORTS,
    WIDE,
    Column,
    cells,
    columns_at,
    detail_lines,
    fit,
    history_width,
    process_lines,
    share_rows,
    shown_gpus,
    shown_panels,
    table_cell,
)
from sentinel.cli.tui.feed import Feed, Look, SampleHistory, ShownEvent
from sentinel.client import Client, GpuStatus, Status
from sentinel.errors import SentinelError
from sentinel.units import format_count

_MAX_EVENTS = 300
_HANDOVERS = 3
#: The rows of the facts above the GPUs and of the keys below all.
_FACTS, _FOOTER = 2, 1


class Live(GpuActions):
    """Every GPU, live.

    Args:
        client: The client of the daemon.
        first: The first status.
        every: The seconds between two requests.
        gpus: The selectors of the GPUs to show; the default is all.
        sort: By what the GPUs are sorted; see SORTS.
        words: The words of the filter.
    """

    TITLE = "sentinel"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #facts { height: auto; color: $text-muted; }
    #gpus { height: auto; max-height: 50%; scrollbar-size-vertical: 1; }
    #below { height: 1fr; }
    #details, #right { width: 1fr; }
    #right { height: 1fr; }
    .panel { border-top: solid $primary; height: 1fr; border-title-color: $text-accent;
             scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    #processes-text, #events-text { text-wrap: nowrap; text-overflow: ellipsis; }
    #below { layout: vertical; }
    #below.wide { layout: horizontal; }
    .wide #details { border-right: solid $primary; }
    .stale { opacity: 45%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, action, word, show=bool(word), priority=key == "tab")
        for key, action, word, _ in KEYS
    ]

    def __init__(
        self,
        client: Client,
        first: Status,
        *,
        every: float,
        gpus: tuple[str, ...] = (),
        sort: str = "index",
        words: str = "",
    ) -> None:
        super().__init__(client)
        self._feed = Feed(
            client,
            gpus,
            every,
            on_look=lambda look: self.post(self.show, look),
            on_error=lambda error: self.post(self.fail, error),
            on_events=lambda events: self.post(self.add_events, events),
        )
        self._look = self._feed.look(first)
        self._samples: dict[str, SampleHistory] = defaultdict(SampleHistory)
        self._events: deque[ShownEvent] = deque(maxlen=_MAX_EVENTS)
        self._sort, self._words = sort, words
        self._error: str | None = None
        self._panel = PANELS[0]
        #: How many lines each panel has.
        self._lines = dict.fromkeys(PANELS, 1)
        self._only_selected = False
        self._columns: tuple[Column, ...] = ()

    def compose(self) -> ComposeResult:
        """Create the widgets, from top to bottom."""
        yield Static(id="facts", markup=False)
        yield DataTable[Text](id="gpus", cell_padding=0, cursor_type="row")
        with Horizontal(id="below"):
            with VerticalScroll(id="details", classes="panel", can_focus=False):
                yield Static(id="details-text", markup=False)
            with Vertical(id="right"):
                with VerticalScroll(id="processes", classes="panel", can_focus=False):
                    yield Static(id="processes-text", markup=False)
                with VerticalScroll(id="events", classes="panel", can_focus=False):
                    yield Static(id="events-text", markup=False)
        yield Footer(compact=True)

    def refresh_soon(self) -> None:
        """Request the status at once."""
        self._feed.refresh()

    def on_mount(self) -> None:
        """Show the first status and start the requests."""
        for name in PANELS:
            self.query_one(f"#{name}").border_title = name
        self.show(self._look)
        self._feed.start()

    def on_unmount(self) -> None:
        """Stop the requests."""
        self._feed.stop()

    # --- showing -----------------------------------------------------------------------------

    def show(self, look: Look) -> None:
        """Show what a request found."""
        self._look, self._error = look, None
        for gpu in look.status.gpus:
            self._samples[gpu.uuid].add(gpu)
        self._show_all()

    def fail(self, error: SentinelError) -> None:
        """Show an error, and the last values greyed."""
        self._error = error.what
        self._show_all()

    def add_events(self, events: list[ShownEvent]) -> None:
        """Add events, oldest first."""
        self._events.extend(events)
        self._show_events()
        self._show_details()
        self._share_rows()

    def on_resize(self, event: Resize) -> None:
        """Show more or fewer columns and panels."""
        del event
        self._show_all()

    def _show_all(self) -> None:
        if not self.query("#facts"):  # before the first screen
            return
        self._show_facts()
        self._show_gpus()
        self._show_details()
        self._show_processes()
        self._show_events()
        self._share_rows()

    def _arrange(self) -> None:
        """Show the panels that there is room for; grey what is stale."""
        wide = self.size.width >= WIDE
        shown = shown_panels(self.size.width, self._rows_below(), self._panel, self._lines)
        for name in PANELS:
            self.query_one(f"#{name}").display = name in shown
        self.query_one("#right").display = shown != ("details",)
        self.query_one("#below").set_class(wide, "wide")
        stale = self._error is not None or gpu_table.is_stale(self._status)
        for name in ("#gpus", "#details", "#processes"):
            self.query_one(name).set_class(stale, "stale")

    def _rows_below(self) -> int:
        """Compute the rows below the GPUs, of which the table has at most half of the screen."""
        height = self.size.height
        return height - _FACTS - _FOOTER - min(len(self._gpus()) + 1, (height - _FOOTER) // 2)

    def _share_rows(self) -> None:
        """Give each panel the rows that it needs, and the rest to the lowest one."""
        self._arrange()
        wide = self.size.width >= WIDE
        shown = [name for name in PANELS if self.query_one(f"#{name}").display]
        details = self.query_one("#details")
        rows = self._rows_below()
        right = [name for name in ("processes", "events") if name in shown]
        column = right if wide or "details" not in shown else ["details", *right]
        heights = share_rows([self._lines[name] + 1 for name in column], rows)
        for name, height in zip(column, heights, strict=True):
            self.query_one(f"#{name}").styles.height = height
        self.query_one("#right").styles.height = sum(
            height for name, height in zip(column, heights, strict=True) if name in right
        )
        if wide:
            details.styles.height = rows

    def _show_facts(self) -> None:
        """Show the host and the daemon, or what is wrong with them."""
        facts = list(gpu_table.facts(self._status, datetime.now().astimezone()))
        width = self.size.width
        first = gpu_table.title(self._status)
        second = []
        if self._words:
            second.append(f"filter: {self._words} ({format_count(len(self._gpus()), 'GPU')})")
        if self._sort != SORTS[0]:
            second.append(f"sort: {self._sort}")
        second += [facts[0].replace("  ", " ", 1), facts[1]]
        text = Text(f"{cut(printable(first), width)}\n")
        wrong = self._error or next((fact for fact in facts if fact.startswith("STALE")), None)
        if wrong is None:
            text.append(cut(printable(" | ".join(second)), width))
        else:
            text.append(printable(wrong), style="bold red")
        self.query_one("#facts", Static).update(text)

    def _show_gpus(self) -> None:
        """Fill the table; the cursor stays on its GPU."""
        table, width = self._table(), self.size.width
        columns = columns_at(width)
        gpus = self._gpus()
        room = history_width(width)
        rows = [
            cells(
                gpu,
                columns,
                self._status.reservations,
                self._samples[gpu.uuid].short_graph(room),
                with_limits=width >= WIDE,
            )
            for gpu in gpus
        ]
        rows = fit(rows, columns, width - 2)
        uuids = [gpu.uuid for gpu in gpus]
        if columns != self._columns or [str(row.value) for row in table.rows] != uuids:
            self._rebuild(columns, uuids)
        for gpu, row in zip(gpus, rows, strict=True):
            old = gpu.read_s is not None and gpu.read_s > gpu_table.STALE_AFTER_S
            for number, (column, cell) in enumerate(zip(columns, row, strict=True)):
                style = "dim" if old else gpu_table.GPUS.styles.get(cell, "")
                made = table_cell(cell, column, style=style, first=number == 0)
                table.update_cell(gpu.uuid, column.name, made, update_width=True)

    def _rebuild(self, columns: tuple[Column, ...], uuids: list[str]) -> None:
        """Create the columns and rows again, and move the cursor to its GPU."""
        table = self._table()
        selected = self.selected()
        table.clear(columns=True)
        self._columns = columns
        for number, column in enumerate(columns):
            table.add_column(table_cell(column.name, column, first=number == 0), key=column.name)
        for uuid in uuids:
            table.add_row(*(Text() for _ in columns), key=uuid)
        if selected is not None and selected.uuid in uuids:
            table.move_cursor(row=uuids.index(selected.uuid))

    def _show_details(self) -> None:
        gpu = self.selected()
        lines: list[str] = []
        width = self._panel_width("details")
        if gpu is not None:
            lines = detail_lines(gpu, self._samples[gpu.uuid], width)
        text = Text("\n".join(lines))
        handed = [event.line for event in self._events if event.is_handover][-_HANDOVERS:]
        if handed:
            text.append("\n\nlast hand-overs\n", style="bold")
            text.append_text(Text.from_ansi("\n".join(handed)))
        if notes := [printable(note) for note in gpu_table.grants(self._status)]:
            text.append("\n\n" + "\n".join(notes))
        if self.size.width >= WIDE and gpu is not None:
            text.append(self._others(gpu, width, self._rows_below() - text.plain.count("\n") - 2))
        self._lines["details"] = text.plain.count("\n") + 1
        self.query_one("#details-text", Static).update(text)

    def _others(self, shown: GpuStatus, width: int, rows: int) -> str:
        """Describe the other GPUs, in as many rows as are left."""
        lines = [
            line
            for gpu in self._gpus()
            if gpu.uuid != shown.uuid
            for line in ("", *detail_lines(gpu, self._samples[gpu.uuid], width))
        ]
        return "".join(f"\n{line}" for line in lines[: max(0, rows)])

    def _show_processes(self) -> None:
        panel = self.query_one("#processes")
        width = self._panel_width("processes")
        shown = {gpu.uuid: gpu.index for gpu in self._gpus()}
        selected = self.selected()
        wanted = set(shown.values())
        if self._only_selected and selected is not None:
            wanted = {selected.index}
        jobs = [job for job in self._look.jobs if job.index in wanted]
        lines = process_lines(jobs, self._look.usage, width)
        which = f" of GPU {selected.index}" if self._only_selected and selected else ""
        panel.border_title = f"processes{which}"
        self._lines["processes"] = len(lines)
        self.query_one("#processes-text", Static).update(Text("\n".join(lines), no_wrap=True))

    def _show_events(self) -> None:
        selected = self.selected()
        events = [
            event.line
            for event in self._events
            if not self._only_selected or selected is None or event.gpu in {None, selected.uuid}
        ]
        panel = self.query_one("#events", VerticalScroll)
        which = f" of GPU {selected.index}" if self._only_selected and selected else ""
        panel.border_title = f"events{which}, newest first"
        text = Text.from_ansi("\n".join(reversed(events))) if events else Text("no events yet")
        self._lines["events"] = len(events)
        self.query_one("#events-text", Static).update(text)

    def on_data_table_row_highlighted(self) -> None:
        """Follow the cursor."""
        self._show_details()
        if self._only_selected:
            self._show_processes()
            self._show_events()

    def _panel_width(self, name: str) -> int:
        """Return the columns of a panel's text; before the first layout, those of the screen."""
        return max(20, self.query_one(f"#{name}-text").size.width or self.size.width - 2)

    @property
    def _status(self) -> Status:
        return self._look.status

    def _gpus(self) -> list[GpuStatus]:
        """Return the GPUs that match the filter, sorted."""
        return shown_gpus(self._status.gpus, self._look.jobs, self._words, self._sort)

    def _table(self) -> DataTable[Text]:
        return self.query_one("#gpus", DataTable)

    def selected(self) -> GpuStatus | None:
        """Return the GPU under the cursor."""
        table = self._table()
        keys = [str(row.value) for row in table.rows]
        if not 0 <= table.cursor_row < len(keys):
            return None
        uuid = keys[table.cursor_row]
        return next((gpu for gpu in self._status.gpus if gpu.uuid == uuid), None)

    # --- keys --------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._show_all()

    def action_filter(self) -> None:
        """Ask for the words of the filter."""

        def apply(words: str | None) -> None:
            if words is not None:
                self._words = words.strip()
                self._show_all()

        question = "Show only GPUs with these words; empty shows all. Escape cancels."
        self.push_screen(Ask(question, self._words, str), apply)

    def action_clear(self) -> None:
        """End the filter."""
        self._words, self._only_selected = "", False
        self._show_all()

    def action_panel(self) -> None:
        """Show the next panel; in a dialog, do nothing."""
        if len(self.screen_stack) > 1:
            return
        self._panel = PANELS[(PANELS.index(self._panel) + 1) % len(PANELS)]
        self._show_all()

    def action_focus_gpu(self) -> None:
        """Show the processes and events of the selected GPU, or of all."""
        self._only_selected = not self._only_selected
        self._show_all()
