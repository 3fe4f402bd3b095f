"""Error responses: problem details in the format of RFC 9457."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from http import HTTPMethod, HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from sentinel.api.requests import FORMS
from sentinel.errors import ConfigError, NoSuchGpuError, SentinelError
from sentinel.protocol.problem import Code, Problem

MEDIA_TYPE = "application/problem+json"
#: The schema of Problem in the OpenAPI document.
PROBLEM_REFERENCE = "#/components/schemas/Problem"

#: The header of a response before the end of the request, which ends the connection.
CLOSE = {"connection": "close"}
#: Invalid fields that one error lists.
_MAX_LISTED = 5
#: The most characters of a wrong text that are repeated.
_MAX_INPUT_LENGTH = 80


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
    """Build a response with a problem."""
    return Response(
        problem_body(code, detail, status),
        status_code=(status or code.status).value,
        headers=dict(headers or {}),
        media_type=MEDIA_TYPE,
    )


def too_many_connections() -> Response:
    """Build the response to a connection beyond the limit."""
    why = "There are too many connections; try again in a moment."
    return problem(Code.UNAVAILABLE, why, headers=CLOSE)


def install(app: FastAPI, other_formats: Mapping[str, Callable[[str], bytes]]) -> None:
    """Convert every exception of a route into a problem.

    Args:
        app: The application.
        other_formats: For paths with errors of another format: the beginning of the paths, and the
            function that encodes a detail as JSON.
    """
    app.state.error_formats = other_formats
    for kind in (ProblemError, SentinelError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _respond)


async def _respond(request: Request, error: Exception) -> Response:
    code, detail = explain(error)
    status, headers = code.status, None
    if isinstance(error, HTTPException):
        status, headers = HTTPStatus(error.status_code), error.headers
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"Allow": _allowed(request)}
        if status == HTTPStatus.BAD_REQUEST:  # FastAPI's status for malformed JSON
            status = HTTPStatus.UNPROCESSABLE_ENTITY
    formats: Mapping[str, Callable[[str], bytes]] = request.app.state.error_formats
    for beginning, encode in formats.items():
        if request.url.path.startswith(beginning):
            return Response(
                encode(detail),
                status_code=status.value,
                headers=dict(headers or {}),
                media_type="application/json",
            )
    return problem(code, detail, status=status, headers=headers)


def _allowed(request: Request) -> str:
    """List the methods of a path: each has a route, and Starlette names those of one route."""
    scopes = {method.value: {**request.scope, "method": method.value} for method in HTTPMethod}
    return ", ".join(
        method
        for method, scope in scopes.items()
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    )


def explain(error: Exception) -> tuple[Code, str]:
    """Describe an exception by its code, for programs, and its detail, for people."""
    match error:
        case ProblemError(code=code, detail=detail):
            return code, detail
        case NoSuchGpuError():
            return Code.NO_SUCH_GPU, str(error)
        case ConfigError():
            return Code.INVALID, str(error)
        case RequestValidationError():
            return Code.INVALID, _describe_fields(error.errors())
        case HTTPException(status_code=HTTPStatus.NOT_FOUND, detail=detail):
            return Code.NOT_FOUND, f"{detail}."
        case HTTPException(detail=detail):
            return Code.INVALID, f"{detail}."
        case _:
            return Code.INTERNAL, "The API process failed; its standard error has the reason."


def _describe_fields(errors: Any) -> str:
    """Describe the invalid fields of a request."""
    parts = [
        f"{'.'.join(str(part) for part in error['loc'])}: {_describe_field(error)}"
        for error in errors[:_MAX_LISTED]
    ]
    return "; ".join(parts) + "."


def _describe_field(error: Mapping[str, Any]) -> str:
    """Describe what is wrong with one field; the form of a text in words, not by its pattern."""
    allowed = FORMS.get(error.get("ctx", {}).get("pattern"))
    if allowed is None:
        return str(error["msg"])
    return f"{error['input'][:_MAX_INPUT_LENGTH]!r} is not allowed; allowed are {allowed}"
