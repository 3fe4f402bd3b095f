"""The separate address for scrapes: only the metrics, without a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from sentinel.api.http.errors import ProblemError, problem
from sentinel.api.metrics.exposition import MetricsPage
from sentinel.protocol.api_types import Code

#: The path of the metrics, here and in the API.
PATH = "/metrics"
#: Connections. Beyond this, requests get an error; beyond twice this, connections are closed.
#: Scrapes need no token, so they must not use up the connections of the API's clients.
MAX_SCRAPERS = 32

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_CLOSE = {"connection": "close"}


class ScrapeApp:
    """An ASGI application that serves the metrics.

    Args:
        page: The metrics.
    """

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Respond to one request."""
        await self._respond(scope)(scope, receive, send)

    def _respond(self, scope: _Message) -> Response:
        if scope["state"]["crowded"]:
            why = "There are too many connections; try again in a moment."
            return problem(Code.UNAVAILABLE, why, headers=_CLOSE)
        if scope["path"] != PATH:
            return problem(Code.NOT_FOUND, f"This address serves only {PATH}.", headers=_CLOSE)
        if scope["method"] not in {"GET", "HEAD"}:
            why = f"{PATH} supports GET and HEAD, not {scope['method']}."
            allow = {"allow": "GET, HEAD"}
            return problem(
                Code.INVALID, why, status=HTTPStatus.METHOD_NOT_ALLOWED, headers=allow | _CLOSE
            )
        try:
            return self._page.respond(Headers(scope=scope))
        except ProblemError as error:
            return problem(error.code, error.detail, headers=_CLOSE)
