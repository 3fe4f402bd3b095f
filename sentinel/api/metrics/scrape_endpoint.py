"""Answers scrapes at an address of their own: without a token, and nothing but the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from sentinel.api.http.errors import ProblemError, problem
from sentinel.api.metrics.exposition import MetricsPage
from sentinel.protocol.api_types import Code

#: Where the page is, here and in the API.
PATH = "/metrics"
#: Who comes when so many are there is told so; who comes when there are twice as many is let go.
#: Nobody needs a token here, so this must not use up what the API's clients need.
MOST_SCRAPERS = 32

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_CLOSE = {"connection": "close"}


class ScrapeApp:
    """An application with one page.

    Args:
        page: That page.
    """

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: _Message) -> Response:
        if scope["state"]["crowded"]:
            why = "There are too many connections; try it again in a moment."
            return problem(Code.UNAVAILABLE, why, headers=_CLOSE)
        if scope["path"] != PATH:
            return problem(Code.NOT_FOUND, f"Here is {PATH} and nothing else.", headers=_CLOSE)
        if scope["method"] not in {"GET", "HEAD"}:
            why = f"{scope['method']} is not for {PATH}; GET and HEAD are."
            allow = {"allow": "GET, HEAD"}
            return problem(
                Code.INVALID, why, status=HTTPStatus.METHOD_NOT_ALLOWED, headers=allow | _CLOSE
            )
        try:
            return self._page.respond(Headers(scope=scope))
        except ProblemError as error:
            return problem(error.code, error.detail, headers=_CLOSE)
