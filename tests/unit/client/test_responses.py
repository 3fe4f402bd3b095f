"""A response is read exactly, viewed, or refused with the reason."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from sentinel.client.http_response import (
    CutShortError,
    InvalidResponseError,
    Response,
    request_bytes,
)
from sentinel.client.requester import JsonView
from sentinel.client.transport import Address, refusal
from sentinel.errors import AccessDeniedError, ConflictError, ServiceError

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKS = (
    OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nab\nc\r\n3;x=1\r\nd\ne\r\n0\r\nT: 1\r\n\r\nrest"
)


def response(data: bytes) -> Response:
    return Response(io.BufferedReader(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabcdef", b"abc"),
        (OK + b"content-length:0\r\n\r\nabc", b""),
        (OK + b"\r\nabc", b"abc"),
        (b"HTTP/1.0 200 OK\n\nabc", b"abc"),
        (CHUNKS, b"ab\ncd\ne"),
    ],
)
def test_the_body_ends_where_the_response_says(data: bytes, body: bytes) -> None:
    one = response(data)
    assert (one.status, one.read(1000)) == (200, body)


@pytest.mark.parametrize(
    "data", [OK + b"Content-Length: 9\r\n\r\nabcdefghi", OK + b"\r\nabcdefghi"]
)
def test_no_more_is_read_than_allowed(data: bytes) -> None:
    assert response(data).read(4) == b"abcd"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (CHUNKS, [b"ab", b"cd", b"e"]),
        (OK + b"\r\na\nb\n\nc", [b"a", b"b", b"", b"c"]),
        (OK + b"Content-Length: 4\r\n\r\na\nbcde", [b"a", b"bc"]),
        (OK + b"\r\n" + b"x" * 25 + b"\ny\n", [b"x" * 10, b"x" * 10, b"xxxxx", b"y"]),
    ],
)
def test_lines_do_not_depend_on_chunks(data: bytes, lines: list[bytes]) -> None:
    waits: list[int] = []
    found = list(response(data).lines(10, lambda: waits.append(1)))
    assert found == lines
    assert waits


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1",
        OK,
        OK + b"Content-Le",
        OK + b"Content-Length: 5\r\n\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_an_early_end_is_not_a_response(data: bytes) -> None:
    with pytest.raises(CutShortError):
        response(data).read(1000)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"SSH",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200" + b"x" * 70_000,
        OK + b"no colon\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"a: b\r\n" * 200,
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidResponseError):
        response(data).read(1000)


def test_a_request_has_its_length_and_no_second_line_in_a_header() -> None:
    sent = request_bytes("POST", "/v1/x", "localhost", {"A": "b"}, b"{}")
    assert sent == b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"
    with pytest.raises(ValueError, match="control character"):
        request_bytes("GET", "/v1/x\r\nB: c", "localhost", {}, None)


def test_objects_lists_and_times_are_attributes_and_missing_fields_are_none() -> None:
    view = JsonView(
        {
            "gpus": [{"index": 1, "handover": {"exit": 0.2}}],
            "daemon": {"since": "2026-11-21T20:00:00+00:00"},
            "indices": [0, 1],
        }
    )
    assert view.gpus[0].handover.exit == 0.2
    assert view.daemon.since == datetime(2026, 11, 21, 20, tzinfo=UTC)
    assert view.indices == (0, 1)
    assert view.burnin is None
    with pytest.raises(AttributeError):
        view.gpus[0].index.real_name  # noqa: B018 - a number has no fields


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
