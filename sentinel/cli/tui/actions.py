"""The keys of ``sentinel top`` that change a GPU; each request runs in a thread."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable

from textual.app import App
from textual.message import Message

from sentinel.cli.tui.dialogs import Ask
from sentinel.client import Client, GpuStatus
from sentinel.errors import SentinelError
from sentinel.units import format_duration, parse_duration


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
                seconds = parse_duration(text) if text.strip() else None
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
                seconds = parse_duration(text)
                self._in_thread(lambda: self._reserve(uuid, seconds))

        question = f"Reserve GPU {gpu.index} for how long? Escape cancels."
        self.push_screen(Ask(question, "1h", parse_duration), reserve)

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
        message.act()


def _check_duration_or_empty(text: str) -> None:
    """Check a duration that may be missing.

    Raises:
        ValueError: It is neither empty nor a duration.
    """
    if text.strip():
        parse_duration(text)
