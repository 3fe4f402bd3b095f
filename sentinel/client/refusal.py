"""The error for a request that the daemon refused, from the problem in its response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sentinel.errors import (
    AccessDeniedError,
    ConfigError,
    ConflictError,
    NoSuchGpuError,
    SentinelError,
    ServiceError,
    TimedOutError,
)

if TYPE_CHECKING:  # it imports this module
    from sentinel.client.transport import Address


def refusal(address: Address, status: int, body: Any) -> SentinelError:
    """Build the error for a failed request.

    Args:
        address: The address of the daemon.
        status: The HTTP status.
        body: The parsed body, which should be a problem (RFC 9457).
    """
    if not isinstance(body, dict) or not isinstance(body.get("title"), str):
        return ServiceError(f"the daemon at {address} answers with HTTP status {status}")
    code = str(body.get("code"))
    error = _error_type(code)(str(body.get("detail") or body["title"]))
    # The detail is for clients that write HTTP themselves.
    if code == "unauthorized" and address.host:
        what = "needs its token" if address.token is None else "does not accept this token"
        error = AccessDeniedError(
            f"the daemon at {address} {what}",
            "Give a copy of its file `token`, or `token-read`: --token FILE, or"
            " SENTINEL_TOKEN_FILE.",
        )
    error.code = code
    return error


def _error_type(code: str) -> type[SentinelError]:
    """Return the error for the code of a problem; all others are a ServiceError."""
    from sentinel.protocol.problem import Code  # slow to import

    errors: dict[str, type[SentinelError]] = {
        Code.NO_SUCH_GPU: NoSuchGpuError,
        Code.UNAUTHORIZED: AccessDeniedError,
        Code.FORBIDDEN: AccessDeniedError,
        Code.INVALID: ConfigError,
        Code.CONFLICT: ConflictError,
        Code.TIMEOUT: TimedOutError,
    }
    return errors.get(code, ServiceError)
