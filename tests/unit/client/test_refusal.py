"""A refused request is an error with a cause that a client can act on."""

from __future__ import annotations

from sentinel.client.transport import Address, refusal
from sentinel.errors import AccessDeniedError, ConflictError, ServiceError

PROBLEM = {"title": "Unauthorized", "detail": "Send the token", "code": "unauthorized"}


def test_a_missing_token_and_a_wrong_one_are_told_apart() -> None:
    missing = refusal(Address(host="node7", port=8765), 401, PROBLEM)
    wrong = refusal(Address(host="node7", port=8765, token="x"), 401, PROBLEM)  # noqa: S106 - none
    assert "node7:8765 needs its token" in missing.what
    assert "node7:8765 does not accept this token" in wrong.what
    for error in (missing, wrong):
        assert isinstance(error, AccessDeniedError)
        assert error.code == "unauthorized"
        assert "--token FILE" in error.remedy


def test_other_problems_keep_their_detail_and_their_code() -> None:
    problem = {"title": "Conflict", "detail": "it is reserved", "code": "conflict"}
    error = refusal(Address(socket="/s"), 409, problem)
    assert isinstance(error, ConflictError)
    assert (error.what, error.code) == ("it is reserved", "conflict")


def test_a_body_that_is_no_problem_is_an_error_with_the_status() -> None:
    error = refusal(Address(socket="/s"), 502, "<html>")
    assert isinstance(error, ServiceError)
    assert "502" in error.what
