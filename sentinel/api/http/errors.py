"""Errors in the one shape that clients get: problem details, as RFC 9457 has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sentinel.errors import ConfigError, NoSuchGpuError, SentinelError

MEDIA_TYPE = "application/problem+json"

#: How many wrong fields of one request are named; the rest adds nothing.
_MOST_NAMED = 5


class Code(StrEnum):
    """What went wrong, for programs; each has one status."""

    NO_SUCH_GPU = "no_such_gpu"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    CONFLICT = "conflict"
    ENDING = "ending"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    TOO_LARGE = "too_large"
    INTERNAL = "internal"

    @property
    def status(self) -> HTTPStatus:
        """The status of a response with this code, where nothing more exact is known."""
        return _STATUS[self]


_STATUS = {
    Code.NO_SUCH_GPU: HTTPStatus.NOT_FOUND,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.CONFLICT: HTTPStatus.CONFLICT,
    Code.ENDING: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    Code.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Code.TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class ProblemError(Exception):
    """What a client is told instead of what it asked for.

    Args:
        code: What went wrong, for programs.
        detail: What went wrong, for people, in whole sentences.
    """

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def problem_body(code: Code, detail: str, status: HTTPStatus | None = None) -> bytes:
    """Return problem details as JSON."""
    status = status or code.status
    body = {
        "schema_version": 1,
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "code": code.value,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def problem(
    code: Code,
    detail: str,
    *,
    status: HTTPStatus | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response with problem details."""
    return Response(
        problem_body(code, detail, status),
        status_code=(status or code.status).value,
        headers=dict(headers or {}),
        media_type=MEDIA_TYPE,
    )


def install(app: FastAPI) -> None:
    """Let every error that a route raises become problem details."""
    app.add_exception_handler(ProblemError, _answer)
    app.add_exception_handler(SentinelError, _answer)
    app.add_exception_handler(RequestValidationError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(Exception, _answer)


async def _answer(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        if status == HTTPStatus.BAD_REQUEST:  # what FastAPI says of JSON that it cannot take in
            status = HTTPStatus.UNPROCESSABLE_ENTITY
        return problem(*explain(error), status=status, headers=error.headers)
    return problem(*explain(error))


def explain(error: Exception) -> tuple[Code, str]:
    """Return what went wrong, for programs and for people."""
    match error:
        case ProblemError(code=code, detail=detail):
            return code, detail
        case NoSuchGpuError():
            return Code.NO_SUCH_GPU, str(error)
        case ConfigError():
            return Code.INVALID, str(error)
        case RequestValidationError():
            return Code.INVALID, _wrong_fields(error.errors())
        case HTTPException(status_code=HTTPStatus.NOT_FOUND, detail=detail):
            return Code.NOT_FOUND, f"{detail}."
        case HTTPException(detail=detail):
            return Code.INVALID, f"{detail}."
        case _:
            return Code.INTERNAL, "The service failed; its standard error says why."


def _wrong_fields(errors: Any) -> str:
    """Return which fields of a request are wrong, and how."""
    named = [
        f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"
        for error in errors[:_MOST_NAMED]
    ]
    return "; ".join(named) + "."
