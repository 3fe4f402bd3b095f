"""The separate address for scrapes: only the metrics, without a token."""

from __future__ import annotations

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sentinel.api.http.errors import CLOSE, ProblemError, problem, too_many_connections
from sentinel.api.metrics.exposition import MetricsPage
from sentinel.protocol.problem import Code

#: The path of the metrics, here and in the API.
PATH = "/metrics"


class ScrapeApp:
    """An ASGI application that serves the metrics.

    Args:
        page: The metrics.
    """

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        await self._respond(scope)(scope, receive, send)

    def _respond(self, scope: Scope) -> Response:
        if scope["state"]["crowded"]:
            return too_many_connections()
        if scope["path"] != PATH:
            return problem(Code.NOT_FOUND, f"This address serves only {PATH}.", headers=CLOSE)
        if scope["method"] not in {"GET", "HEAD"}:
            why = f"{PATH} supports GET and HEAD, not {scope['method']}."
            allow = {"allow": "GET, HEAD"}
            return problem(
                Code.INVALID, why, status=HTTPStatus.METHOD_NOT_ALLOWED, headers=allow | CLOSE
            )
        try:
            return self._page.respond(Headers(scope=scope))
        except ProblemError as error:
            return problem(error.code, error.detail, headers=CLOSE)
