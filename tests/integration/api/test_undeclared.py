"""What a request has and its route does not declare is refused, on every route of the app."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fastapi.routing import APIRoute

from sentinel.api.app import make_app
from tests.harness.api_harness import ApiServer, UnixConnection


def routes_of(router: Any) -> Iterator[APIRoute]:
    """Walk over all routes of an app; newer versions of FastAPI keep routers in it as they are."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif (included := getattr(route, "original_router", None)) is not None:
            yield from routes_of(included)


ROUTES = {
    f"{method} {route.path}": route
    for route in routes_of(make_app())
    for method in sorted(route.methods or ())
    if not route.path.startswith("/page/")
}
READING = ("GET", "HEAD")


def is_strict(name: str) -> bool:
    """Check for a route that refuses an unknown query: no foreign client merely reads there."""
    return not name.startswith(READING) or ("/v1/" in name and name != "GET /v1/health")


def ask(api: ApiServer, name: str, query: str, body: bytes | None = None) -> tuple[int, str]:
    """Send a request; return its status and, for a refusal, the reason."""
    method, path = name.split()
    address = re.sub(r"\{[\w:]+\}", "1a2b3c4d", path) + query
    headers = {} if body is None else {"content-type": "application/json"}
    with closing(UnixConnection(api.path)) as connection:
        connection.request(method, address, body, headers)
        response = connection.getresponse()
        if response.status != 422 or method == "HEAD":
            return response.status, ""  # perhaps a stream, which has no end
        answer = json.loads(response.read())
    return response.status, answer.get("error") or answer["detail"]


def test_the_walk_finds_the_routes() -> None:
    assert {"POST /v1/pause", "PUT /api/gpu/config", "GET /metrics", "HEAD /"} <= set(ROUTES)


@pytest.mark.parametrize("name", [name for name in ROUTES if is_strict(name)])
def test_an_unknown_query_is_refused_and_the_known_ones_are_listed(
    api: ApiServer, name: str
) -> None:
    known = [field.alias for field in ROUTES[name].dependant.query_params]
    status, why = ask(api, name, "?gpus=0", b"{}" if ROUTES[name].body_field else None)
    assert (status, why.partition(".")[0]) == (422, "gpus: there is no such query")
    assert all(one in why for one in known)
    assert not api.commands


@pytest.mark.parametrize("name", [name for name in ROUTES if not is_strict(name)])
def test_a_foreign_client_may_add_a_query_where_it_only_reads(api: ApiServer, name: str) -> None:
    assert ask(api, name, "?_=1764489600")[0] != 422


@pytest.mark.parametrize(
    ("name", "query"),
    [
        (name, field.alias)
        for name, route in ROUTES.items()
        for field in route.dependant.query_params
    ],
)
def test_a_repeated_query_is_refused_unless_it_is_a_list(
    api: ApiServer, name: str, query: str
) -> None:
    value = "handover" if query == "kind" else "1"
    status, why = ask(api, name, f"?{query}={value}&{query}={value}")
    if query == "kind":
        assert "times" not in why
    else:
        assert (status, why.partition(".")[0]) == (422, f"{query} is given 2 times")
    assert not api.commands


@pytest.mark.parametrize("name", [name for name in ROUTES if not name.startswith("HEAD")])
@pytest.mark.parametrize(
    "body",
    [
        b'{"gpus": [], "gpus": null}',
        b'{"gpus": ["0"], "g\\u0070us": null}',
        b'{"a": [{"gpus": 1, "gpus": 2}]}',
    ],
)
def test_a_body_with_a_key_twice_is_refused(api: ApiServer, name: str, body: bytes) -> None:
    status, why = ask(api, name, "", body)
    assert status == 422
    assert why.startswith(
        "gpus is twice in the body" if ROUTES[name].body_field else "This request takes no body: {"
    )
    assert not api.commands


@pytest.mark.parametrize("name", [name for name in ROUTES if not ROUTES[name].body_field])
def test_a_route_without_a_body_refuses_all_but_an_empty_one(api: ApiServer, name: str) -> None:
    for body in (b'{"gpus": [0]}', b"[]", b"0", b"{", b"\xff" * 1000):
        assert ask(api, name, "", body)[0] == 422
    assert not api.commands
    for body in (b"", b"{}", b"{ }\n", b"null"):
        query = "?gpu=0" if name == "GET /v1/history/readings" else ""
        assert ask(api, name, query, body)[0] != 422


@pytest.mark.parametrize(
    ("name", "query", "body", "why"),
    [
        (
            "POST /v1/pause",
            "?gpus=0",
            None,
            "gpus: there is no such query. Allowed in the body: gpus, seconds, release, wait_s.",
        ),
        (
            "DELETE /v1/burnin",
            "?name=x",
            None,
            "name: there is no such query. Allowed in the query: id, reason.",
        ),
        (
            "PUT /v1/allocations/1a2b3c4d",
            "",
            b'{"size": 1, "size": 2}',
            "size is twice in the body. Allowed in the body: gpu, size, pid, wait_s.",
        ),
        (
            "POST /api/gpu/monitoring/stop",
            "",
            b"[0]",
            "This request takes no body: [0]. Nothing is allowed in the query or the body.",
        ),
    ],
)
def test_the_reason_names_what_is_allowed(
    api: ApiServer, name: str, query: str, body: bytes | None, why: str
) -> None:
    assert ask(api, name, query, body) == (422, why)


def test_a_body_without_its_type_is_told_which_header_it_needs(api: ApiServer) -> None:
    with closing(UnixConnection(api.path)) as connection:
        connection.request("POST", "/v1/pause", b'{"gpus": ["0"]}')
        response = connection.getresponse()
        why = json.loads(response.read())["detail"]
    assert response.status == 422
    assert why.endswith("Content-Type: application/json.")
    assert not api.commands
