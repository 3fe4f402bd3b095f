"""The API's response to a request that failed, and its codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from sentinel.protocol.api_types import ResponseModel


class Code(StrEnum):
    """Why a request failed, for programs."""

    NO_SUCH_GPU = "no_such_gpu"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    CONFLICT = "conflict"
    ENDING = "ending"
    STARTING = "starting"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    TOO_LARGE = "too_large"
    INTERNAL = "internal"

    @property
    def status(self) -> HTTPStatus:
        """The status of a response with this code, unless the caller knows a more exact one."""
        return _STATUS[self]


_STATUS = {
    Code.NO_SUCH_GPU: HTTPStatus.NOT_FOUND,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.CONFLICT: HTTPStatus.CONFLICT,
    Code.ENDING: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.STARTING: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    Code.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Code.TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}


@dataclass(frozen=True, kw_only=True)
class Problem(ResponseModel):
    """Why a request failed (RFC 9457); `code` is for programs."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: Code
