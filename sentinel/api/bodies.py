"""The bodies of requests, and those of responses to requests that fail (RFC 9457).

The other responses are in ``sentinel.protocol.api_types``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPMethod, HTTPStatus
from typing import Annotated, Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from sentinel.config.invalid_fields import describe_fields
from sentinel.errors import AccessDeniedError, ConfigError, NoSuchGpuError, SentinelError
from sentinel.protocol.api_types import RepairOutcome
from sentinel.protocol.problem import Code, Problem
from sentinel.units import MAX_TIME_S

#: More than the memory of any GPU; larger sizes are mistakes.
_MAX_SIZE_BYTES = 2**50

#: The forms of texts, and what an error says of each: a pattern is not for people.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
_ID = r"^[0-9a-f][0-9a-f-]{7,35}$"
_LINE = r"^[^\x00-\x1f\x7f]*$"
FORMS = {
    _NAME: "1 to 64 letters, digits or ._:-; begin with a letter or digit",
    _ID: "8 to 36 hexadecimal digits in lower case, also with hyphens, such as a UUID",
    _LINE: "characters of one line, without control characters",
}

Selectors = Annotated[
    list[Annotated[str, Field(max_length=256)]],
    Field(
        min_length=1,
        max_length=128,
        description="GPUs by nvidia-smi's index or range of them such as 0-3, UUID or its unique"
        " prefix, or PCI address; `all` selects all of them.",
    ),
]
_Wait = Annotated[float, Field(ge=0, le=MAX_TIME_S, allow_inf_nan=False)]
WaitS = Annotated[_Wait | None, Field(description="Maximum wait in seconds; null is no limit.")]
Seconds = Annotated[
    float, Field(gt=0, le=MAX_TIME_S, allow_inf_nan=False, description="Duration in seconds.")
]
ReservationId = Annotated[
    str,
    Field(pattern=_ID, description="The client's id of the reservation, such as a UUID."),
]
AllocationId = Annotated[
    str,
    Field(pattern=_NAME, description="The allocation's id: letters, digits and `._:-`."),
]
Bound = Annotated[bool, Field(description="End it with the calling process; Unix socket only.")]
SettingText = Annotated[str, Field(max_length=4096)]

MEDIA_TYPE = "application/problem+json"
#: The schema of Problem in the OpenAPI document.
PROBLEM_REFERENCE = "#/components/schemas/Problem"

#: The header of a response before the end of the request, which ends the connection.
CLOSE = {"connection": "close"}
#: For paths with errors of another format: their beginning, and what encodes a detail as JSON.
Formats = Mapping[str, Callable[[str], bytes]]


class RequestModel(BaseModel):
    """Base of request bodies; rejects unknown fields, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)


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
            description="GPUs by index or range of them, UUID or its unique prefix, or serial"
            " number; also GPUs that are missing now.",
        ),
    ]
    reason: str = Field(
        min_length=1,
        max_length=200,
        pattern=_LINE,
        description="Why the results no longer count, such as what was repaired.",
    )
    outcome: Annotated[RepairOutcome, Field(strict=False)] | None = Field(
        default=None,
        description="What became of the GPUs. With `confirmed`, also of a GPU without wrong results"
        " that count: a fault that Sentinel has not found. It may come after an acknowledgement"
        " and replaces the earlier one.",
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
    bound: Bound = False
    done: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        max_length=128,
        description="What GPUs have done of the plan before, by UUID; the others begin it. Each has"
        " `phase`, the number of the first phase that is not over, from 0, and `work`, the fields"
        " of the event `burnin.phase_ended` about that phase.",
    )


class ReservationRequest(RequestModel):
    """Keep GPUs free for a user: the selected ones, or `count` of them or of all."""

    gpus: Selectors | None = None
    count: int | None = Field(default=None, ge=1, le=128)
    seconds: Seconds | None = Field(
        default=None,
        description="Required, unless it is `bound`; null, if it is given, means no limit.",
    )
    reason: str = Field(default="", max_length=200, pattern=_LINE)
    wait_s: WaitS = 30.0
    bound: Bound = False


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


def deadline_of(wait_s: float | None) -> float:
    """Return the time of the monotonic clock at which a wait from now on ends; None never ends."""
    return time.monotonic() + (math.inf if wait_s is None else wait_s)


class ProblemError(Exception):
    """Ends a request with a problem.

    Args:
        code: The reason, for programs.
        detail: The reason as whole sentences, for people.
    """

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def problem_body(code: Code, detail: str, status: HTTPStatus | None = None) -> bytes:
    """Encode a problem as JSON."""
    status = status or code.status
    body = Problem(title=status.phrase, status=status.value, detail=detail, code=code)
    return json.dumps(dataclasses.asdict(body), ensure_ascii=False, separators=(",", ":")).encode()


def problem(
    code: Code,
    detail: str,
    *,
    status: HTTPStatus | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Build a response with a problem; a 503 closes its connection, which others may need."""
    status = status or code.status
    closes = CLOSE if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    return Response(
        problem_body(code, detail, status),
        status_code=status.value,
        headers={**closes, **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def install(app: FastAPI, other_formats: Formats) -> None:
    """Convert every exception of a route into a problem.

    Args:
        app: The application.
        other_formats: The formats of errors that are no problems.
    """
    app.state.error_formats = other_formats
    for kind in (ProblemError, SentinelError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _respond)


async def _respond(request: Request, error: Exception) -> Response:
    code, detail = explain(error, fields_of(request))
    status, headers = code.status, None
    if isinstance(error, HTTPException):
        status, headers = HTTPStatus(error.status_code), error.headers
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"Allow": _allowed(request)}
        if status == HTTPStatus.BAD_REQUEST:  # FastAPI's status for malformed JSON
            status = HTTPStatus.UNPROCESSABLE_ENTITY
    formats: Formats = request.app.state.error_formats
    return in_format(
        problem(code, detail, status=status, headers=headers), request.url.path, formats
    )


def in_format(response: Response, path: str, formats: Formats) -> Response:
    """Write a problem in the format of the routes that its path belongs to."""
    encode = next((formats[start] for start in formats if path.startswith(start)), None)
    if encode is None:
        return response
    headers = dict(response.headers)
    del headers["content-length"], headers["content-type"]
    body = encode(json.loads(bytes(response.body))["detail"])
    return Response(body, response.status_code, headers, media_type="application/json")


def fields_of(request: Request) -> Iterable[str]:
    """List the fields that the body of a request may have."""
    body = getattr(request.scope.get("route"), "body_field", None)
    kind = None if body is None else body.field_info.annotation
    # That of a body which may be omitted is a union with None.
    return [name for one in (kind, *get_args(kind)) for name in getattr(one, "model_fields", ())]


def _allowed(request: Request) -> str:
    """List the methods of a path: each has a route, and Starlette names those of one route."""
    scopes = {method.value: {**request.scope, "method": method.value} for method in HTTPMethod}
    return ", ".join(
        method
        for method, scope in scopes.items()
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    )


def explain(error: Exception, fields: Iterable[str] = ()) -> tuple[Code, str]:
    """Describe an exception by its code, for programs, and its detail, for people.

    Args:
        error: The exception.
        fields: The names of the fields that the body of the request may have.
    """
    match error:
        case ProblemError(code=code, detail=detail):
            return code, detail
        case AccessDeniedError():
            return Code.FORBIDDEN, str(error)
        case NoSuchGpuError():
            return Code.NO_SUCH_GPU, str(error)
        case ConfigError():
            return Code.INVALID, str(error)
        case RequestValidationError():
            return Code.INVALID, describe_fields(error.errors(), fields, FORMS)
        case HTTPException(status_code=HTTPStatus.NOT_FOUND, detail=detail):
            return Code.NOT_FOUND, f"{detail}."
        case HTTPException(detail=detail):
            return Code.INVALID, f"{detail}."
        case _:
            return Code.INTERNAL, "The API process failed; its standard error has the reason."
