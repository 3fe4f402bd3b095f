"""The bodies of requests to the API; the responses are in ``sentinel.protocol.api_types``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

#: Upper bounds of waits and of lifetimes, in seconds: a day and a year.
_DAY_S = 86_400
_YEAR_S = 366 * _DAY_S
#: More than the memory of any GPU; larger sizes are mistakes.
_MAX_SIZE_BYTES = 2**50

#: The forms of texts, and what an error says of each: a pattern is not for people.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
_ID = r"^[0-9a-f][0-9a-f-]{7,35}$"
_LINE = r"^[^\x00-\x1f\x7f]*$"
FORMS = {
    _NAME: "1 to 64 letters, digits and ._:-, of which the first is a letter or a digit",
    _ID: "8 to 36 hexadecimal digits in lower case, also with hyphens, such as a UUID",
    _LINE: "characters of one line, without control characters",
}

Selectors = Annotated[
    list[Annotated[str, Field(max_length=256)]],
    Field(
        min_length=1,
        max_length=128,
        description="GPUs by nvidia-smi's index, UUID or its unique beginning, or PCI address;"
        " `all` selects all of them.",
    ),
]
WaitS = Annotated[
    float, Field(ge=0, le=_DAY_S, allow_inf_nan=False, description="Maximum wait in seconds.")
]
Seconds = Annotated[
    float, Field(gt=0, le=_YEAR_S, allow_inf_nan=False, description="Duration in seconds.")
]
ReservationId = Annotated[
    str,
    Field(pattern=_ID, description="The client's id of the reservation, such as a UUID."),
]
AllocationId = Annotated[
    str,
    Field(pattern=_NAME, description="The allocation's id: letters, digits and `._:-`."),
]
SettingText = Annotated[str, Field(max_length=4096)]


class RequestModel(BaseModel):
    """Base of request bodies; rejects unknown fields, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EmptyRequest(RequestModel):
    """A body without fields."""


class StopRequest(RequestModel):
    """Drain all GPUs."""

    wait_s: WaitS = 30.0


class PauseRequest(RequestModel):
    """Pause GPUs, until they are resumed or for a duration."""

    gpus: Selectors | None = None
    seconds: Seconds | None = None
    release: bool = Field(
        default=False, description="Release the driver as well; this pauses all GPUs."
    )
    wait_s: WaitS = 30.0


class ResumeRequest(RequestModel):
    """End a pause."""

    gpus: Selectors | None = None


class AcknowledgeRequest(RequestModel):
    """Acknowledge the wrong results of GPUs."""

    gpus: Annotated[
        list[Annotated[str, Field(max_length=256)]],
        Field(
            min_length=1,
            max_length=128,
            description="GPUs by index, UUID or its unique beginning, or serial number; also"
            " GPUs that are missing now.",
        ),
    ]
    reason: str = Field(
        min_length=1,
        max_length=200,
        pattern=_LINE,
        description="Why the results no longer count, such as what was repaired.",
    )


class RestartRequest(RequestModel):
    """Apply new settings, and occupy GPUs with them."""

    settings: dict[str, SettingText | None] | None = Field(
        default=None,
        max_length=256,
        description="Flags by the key of their setting; null removes a flag, and others stay.",
    )


class SettingsChange(RequestModel):
    """Change single settings, and keep all others."""

    settings: dict[str, SettingText | None] = Field(
        min_length=1,
        max_length=256,
        description="Flags by the key of their setting; null removes a flag.",
    )
    gpus: Selectors | None = Field(
        default=None,
        description="Change the settings of these GPUs only; by default those of the daemon.",
    )
    save: bool = Field(
        default=False, description="Keep the change over a restart of the daemon, in its own file."
    )


class SessionRequest(RequestModel):
    """Lay settings over the daemon's for some GPUs, until the session ends."""

    name: Annotated[
        str,
        Field(
            pattern=_NAME,
            description="The session's name: letters, digits and `._:-`.",
        ),
    ]
    gpus: Selectors
    settings: dict[str, SettingText] = Field(
        default_factory=dict,
        max_length=256,
        description="Settings by key; those that a single GPU may have.",
    )
    seconds: Seconds | None = None


class BurninRequest(RequestModel):
    """Take GPUs, by default all, through the plan of a burn-in."""

    plan: str = Field(
        min_length=1, max_length=60_000, description="The plan as TOML, as --plan reads it."
    )
    gpus: Selectors | None = None
    fail_fast: bool = Field(
        default=False, description="A GPU on which an error was found does no more of the plan."
    )
    bound: bool = Field(
        default=False, description="End it with the calling process; Unix socket only."
    )
    done: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        max_length=128,
        description="What GPUs have done of the plan before, by UUID; the others begin it. Each has"
        " `phase`, the number of the first phase that is not over, from 0, and `work`, the fields"
        " of the event `burnin.phase_ended` about that phase.",
    )


class ReservationRequest(RequestModel):
    """Keep GPUs free for a user: the selected ones, or any `count`."""

    gpus: Selectors | None = None
    count: int | None = Field(default=None, ge=1, le=128)
    seconds: Seconds | None = None
    reason: str = Field(default="", max_length=200, pattern=_LINE)
    wait_s: WaitS = 30.0
    bound: bool = Field(
        default=False, description="End it with the calling process; Unix socket only."
    )


class AllocationRequest(RequestModel):
    """Grant a part of a GPU's memory to the calling process and its children."""

    gpu: Annotated[str, Field(max_length=256)] = "0"
    size: int = Field(gt=0, le=_MAX_SIZE_BYTES, description="Bytes.")
    pid: int | None = Field(
        default=None,
        gt=0,
        le=2**31 - 1,
        description="Another process of the same user instead of the caller; Unix socket only.",
    )
    wait_s: WaitS = 30.0
