"""What one order led to, and the words that all orders share. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.state import State
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Refusal


@dataclass
class CommandResult:
    """What one order led to; it was refused where ``refused`` is set, and then changed nothing."""

    state: State
    text: str
    gpus: tuple[str, ...] = ()
    refused: Refusal | None = None
    events: list[Event] = field(default_factory=list)
    config: Config | None = None
    stop: str | None = None


def wrong_gpus(state: State, gpus: tuple[str, ...]) -> CommandResult | None:
    """Return the refusal of an order that names a GPU which is not there, or ``None``."""
    strange = [uuid for uuid in gpus if uuid not in state.gpu_states]
    if not strange:
        return None
    known = ", ".join(
        f"{gpu_state.gpu.index} {uuid}" for uuid, gpu_state in state.gpu_states.items()
    )
    text = f"there is no GPU {strange[0]!r}; there are: {known}"
    return CommandResult(state, text, refused=Refusal.NO_SUCH_GPU)


def wrong_seconds(state: State, seconds: float | None) -> CommandResult | None:
    """Return the refusal of an order for what is no time, or ``None``."""
    if seconds is None or (math.isfinite(seconds) and seconds > 0):
        return None
    return CommandResult(state, f"{seconds!r} seconds are no time", refused=Refusal.INVALID)


def names_of(state: State, gpus: tuple[str, ...]) -> str:
    """Return the GPUs as people name them."""
    indices = ", ".join(str(state.gpu_states[uuid].gpu.index) for uuid in gpus)
    return f"GPU{'' if len(gpus) == 1 else 's'} {indices}"


def caller(by: Caller) -> dict[str, object]:
    """Return who asked, as a field of an event."""
    return {"via": by.via, "uid": by.uid, "pid": by.pid}
