"""The dialogs of ``sentinel top``: a text to enter, and the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

#: The keys and what they do.
KEYS = (
    ("arrows, PgUp/Dn", "select a GPU"),
    ("p", "pause it; asks for how long"),
    ("r", "resume it"),
    ("v", "reserve it; asks for how long"),
    ("u", "end its reservation"),
    ("/", "filter by words: state, model, user, command"),
    ("Escape", "end the filter"),
    ("s", "sort by index, state, load, memory, heat, power"),
    ("Tab", "next panel; a wide screen shows all three"),
    ("f", "processes and events of this GPU, or of all"),
    ("?", "these keys"),
    ("q", "quit; nothing on the GPUs changes"),
)
NOTES = (
    "On a wide screen TEMP and POWER are against slowdown and power limit.",
    "CPU is of one core, RAM is resident, for processes of this host.",
    "Grey is stale: not read for five seconds, or no answer of the daemon.",
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
        keys = [f"{key:<18}{text}" for key, text in KEYS]
        return ["sentinel top", "", *keys, "", *NOTES, "", "Escape closes this."]

    def action_close(self) -> None:
        """Close the keys."""
        self.dismiss(None)
