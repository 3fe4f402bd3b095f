"""The keys of ``sentinel top`` that change a GPU, and its dialogs. Requests run in threads."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from sentinel.client import Client, GpuStatus
from sentinel.errors import SentinelError
from sentinel.units import format_duration, parse_lifetime

#: The keys: their actions, their words in the footer if they are there, and what they do.
KEYS = (
    ("p", "pause", "Pause", "pause it; asks for how long"),
    ("r", "resume", "Resume", "resume it"),
    ("v", "reserve", "Reserve", "reserve it; asks for how long"),
    ("e", "end_reservation", "", "end its reservation"),
    ("slash", "filter", "Filter", "filter by words: state, model, user, command"),
    ("escape", "clear", "", "end the filter"),
    ("s", "sort", "", "sort by index, state, load, memory, heat, power"),
    ("tab", "panel", "Panel", "next panel; a wide screen shows all three"),
    ("f", "focus_gpu", "", "processes and events of this GPU, or of all"),
    ("question_mark", "help", "Help", "these keys"),
    ("q", "quit", "Quit", "quit; nothing on the GPUs changes"),
)
#: How the help names keys that textual calls otherwise.
_NAMES = {"slash": "/", "escape": "Escape", "tab": "Tab", "question_mark": "?"}
NOTES = (
    "A wide screen has the limits of TEMP and POWER beside them.",
    "CPU is a share of one core, RAM resident memory, if this host has it.",
    "Grey is stale: not read, or no answer, for five seconds.",
    "Empty is unknown. ! marks a GPU with wrong results.",
)


class Ask(ModalScreen[str | None]):
    """Ask for a text; Escape gives None.

    Args:
        question: The question.
        proposed: The text that is there at first.
        check: Raises ValueError for a text that is not allowed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]
    CSS = """
    Ask { align: center middle; }
    #ask { width: 66; max-width: 96%; height: auto; border: round $accent; padding: 0 1; }
    #ask Label { width: 1fr; }
    """

    def __init__(self, question: str, proposed: str, check: Callable[[str], object]) -> None:
        super().__init__()
        self._question = question
        self._proposed = proposed
        self._check = check

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(id="ask"):
            yield Label(self._question, markup=False)
            yield Input(self._proposed, id="answer")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept a text that is allowed."""
        try:
            self._check(event.value)
        except ValueError as error:
            self.app.notify(str(error), severity="error", markup=False)
        else:
            self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Give no text."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """The keys; any of Escape, q and ? closes them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "close", "Close")
    ]
    CSS = """
    Help { align: center middle; }
    #help { width: 100; max-width: 96%; height: auto; max-height: 96%; border: round $accent;
            padding: 0 1; }
    #help Static { width: 1fr; }
    """

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with VerticalScroll(id="help"):
            yield Static("\n".join(self._lines()), markup=False)

    def _lines(self) -> list[str]:
        keys = [f"{_NAMES.get(key, key):<18}{text}" for key, _, _, text in KEYS]
        first = f"{'arrows, PgUp/Dn':<18}select a GPU"
        return ["sentinel top", "", first, *keys, "", *NOTES, "", "Escape closes this."]

    def action_close(self) -> None:
        """Close the keys."""
        self.dismiss(None)


class GpuActions(App[None]):
    """An app with a selected GPU, and the actions on it.

    Args:
        client: The client of the daemon.
    """

    class Call(Message):
        """Another thread asks for a call in the main thread.

        Args:
            act: What to call.
        """

        def __init__(self, act: Callable[[], None]) -> None:
            super().__init__()
            self.act = act

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    @abstractmethod
    def selected(self) -> GpuStatus | None:
        """Return the GPU under the cursor."""

    @abstractmethod
    def refresh_soon(self) -> None:
        """Request the status at once."""

    def action_pause(self) -> None:
        """Pause the selected GPU for a duration."""
        gpu = self.selected()
        if gpu is None:
            return
        uuid = gpu.uuid

        def pause(text: str | None) -> None:
            if text is not None:
                seconds = parse_lifetime(text) if text.strip() else None
                self._in_thread(lambda: self._client.pause([uuid], seconds=seconds, wait=0).text)

        question = (
            f"Pause GPU {gpu.index} for how long, such as 30m? Empty: until r. Escape cancels."
        )
        self.push_screen(Ask(question, "", _check_duration_or_empty), pause)

    def action_resume(self) -> None:
        """Resume the selected GPU."""
        gpu = self.selected()
        if gpu is not None:
            uuid = gpu.uuid
            self._in_thread(lambda: self._client.resume([uuid]).text)

    def action_reserve(self) -> None:
        """Reserve the selected GPU for a duration."""
        gpu = self.selected()
        if gpu is None:
            return
        uuid = gpu.uuid

        def reserve(text: str | None) -> None:
            if text is not None:
                seconds = parse_lifetime(text)
                self._in_thread(lambda: self._reserve(uuid, seconds))

        question = f"Reserve GPU {gpu.index} for how long? Escape cancels."
        self.push_screen(Ask(question, "1h", parse_lifetime), reserve)

    def action_end_reservation(self) -> None:
        """End the reservation of the selected GPU."""
        gpu = self.selected()
        id_ = None if gpu is None else gpu.reservation
        if id_ is None:
            self.notify("this GPU is not reserved", severity="warning")
            return
        self._in_thread(lambda: self._client.cancel_reservation(id_).text)

    def _reserve(self, uuid: str, seconds: float) -> str:
        got = self._client.reserve([uuid], reason="sentinel top", seconds=seconds)
        return f"reserved as {got.id} for {format_duration(seconds)}"

    # --- threads -----------------------------------------------------------------------------

    def _in_thread(self, command: Callable[[], str]) -> None:
        """Send a command in a thread, and show its outcome."""

        def send() -> None:
            try:
                text = command() or "done"
            except SentinelError as error:
                self.post(self._notify_outcome, str(error), "error")
            else:
                self.post(self._notify_outcome, text, "information")
            self.refresh_soon()

        threading.Thread(target=send, name="command", daemon=True).start()

    def _notify_outcome(self, text: str, severity: str) -> None:
        self.notify(text, severity=severity, markup=False)  # type: ignore[arg-type]

    def post(self, show: Callable[..., None], *values: object) -> None:
        """Call ``show`` in the main thread, unless it has ended; any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self.post_message(self.Call(lambda: show(*values)))

    def on_gpu_actions_call(self, message: GpuActions.Call) -> None:
        """Do what another thread asked for."""
        with contextlib.suppress(NoMatches):  # at the end, the screen is gone before the messages
            message.act()


def _check_duration_or_empty(text: str) -> None:
    """Check a duration that may be missing.

    Raises:
        ValueError: It is neither empty nor a duration.
    """
    if text.strip():
        parse_lifetime(text)
