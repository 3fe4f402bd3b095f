"""Reject the parts of a request that its route does not declare.

An ignored part would mean the default, and the default of many routes is all GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args, get_origin

from fastapi import Request

from sentinel.api.access import READING
from sentinel.api.bodies import ProblemError, fields_of
from sentinel.config.invalid_fields import shorten
from sentinel.protocol.codec import repeated_key
from sentinel.protocol.problem import Code

#: The bodies that are as good as none, without white space.
_EMPTY = {b"", b"{}", b"null"}


async def check_declared(request: Request) -> None:
    """Check the query and the body of a request, before the parameters of its route are read.

    Foreign clients may add a query of their own, such as one against caches, where nothing can be
    changed by it: to the page, the metrics, the health, and what the GPU Management System reads.

    Raises:
        ProblemError: A part is not declared, or is given twice.
    """
    route = request.scope["route"]
    queries = {field.alias: field.field_info.annotation for field in route.dependant.query_params}
    path = request.url.path
    is_native = path.startswith("/v1/") and path != "/v1/health"
    strict = is_native or request.method not in READING
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if strict and name not in queries:
            _reject(f"{shorten(name)}: there is no such query", queries, fields_of(request))
        if times > 1 and name in queries and not _is_list(queries[name]):
            _reject(f"{name} is given {times} times", queries, fields_of(request))
    body = await request.body()
    if route.body_field is None and b"".join(body.split()) not in _EMPTY:
        shown = shorten(body.decode(errors="replace"))
        _reject(f"This request takes no body: {shown}", queries, ())
    twice = repeated_key(body)
    if twice is not None:
        _reject(f"{shorten(twice)} is twice in the body", queries, fields_of(request))


def _reject(what: str, queries: Iterable[str], fields: Iterable[str]) -> None:
    parts = {"query": queries, "body": fields}
    allowed = [
        f"Allowed in the {part}: {', '.join(names)}." for part, names in parts.items() if names
    ]
    listed = " ".join(allowed) or "Nothing is allowed in the query or the body."
    raise ProblemError(Code.INVALID, f"{what}. {listed}")


def _is_list(annotation: object) -> bool:
    """Check whether a query may be repeated."""
    return list in {get_origin(kind) for kind in (annotation, *get_args(annotation))}
