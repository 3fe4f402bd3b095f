"""Write all metrics in one of Prometheus's text formats."""

from __future__ import annotations

import gzip
import time
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sentinel.api.http.errors import CLOSE, ProblemError, problem, too_many_connections
from sentinel.api.metrics.collector import DaemonCollector
from sentinel.api.metrics.counters import Counters
from sentinel.api.state.snapshots import Views
from sentinel.protocol.commands import ApiSpec
from sentinel.protocol.problem import Code

#: The supported formats, as in an Accept header: the classic one, and OpenMetrics.
_TEXT = "text/plain;version=0.0.4"
_OPENMETRICS = "application/openmetrics-text;version=1.0.0"
#: The time for which a written page is served again: the supervisor does not publish changes more
#: often. With eight GPUs a page takes 20 ms to write, and frequent scrapes must not use all of the
#: processor time.
_CACHE_S = 0.25
#: gzip's level: the lines of a page are similar, and it shrinks to a twentieth even at level 1.
_GZIP_LEVEL = 1


@dataclass(frozen=True)
class _Page:
    """A written page."""

    #: When it was written, of the monotonic clock.
    at: float
    content_type: str
    body: bytes

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.body, _GZIP_LEVEL)


class MetricsPage:
    """The page at ``/metrics``, written at a scrape.

    Args:
        spec: The specification of this process.
        views: The supervisor's state.
        counters: The counters of this process.
    """

    def __init__(self, spec: ApiSpec, views: Views, counters: Counters) -> None:
        # Not the library's default registry, which has metrics of this process.
        self._registry = CollectorRegistry()
        self._registry.register(DaemonCollector(spec, views, counters))
        self._cache: dict[str, _Page] = {}

    def respond(self, headers: Headers) -> Response:
        """Respond to a scrape in the format and encoding of its headers.

        Raises:
            ProblemError: The supervisor has not sent its state yet.
        """
        page = self._write(_format(headers.get("accept", "")))
        # Not as media_type, to which Starlette adds a charset.
        sent = {"content-type": page.content_type, "vary": "Accept, Accept-Encoding"}
        if gzip_accepted(headers.get("accept-encoding", "")):
            return Response(page.compressed, headers={**sent, "content-encoding": "gzip"})
        return Response(page.body, headers=sent)

    def _write(self, format_: str) -> _Page:
        now, cached = time.monotonic(), self._cache.get(format_)
        if cached is not None and now - cached.at < _CACHE_S:
            return cached
        encode, content_type = choose_encoder(format_)
        self._cache[format_] = _Page(now, content_type, encode(self._registry))
        return self._cache[format_]


def _format(accept: str) -> str:
    """Choose the format for an Accept header; the library itself has more versions."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        return _TEXT
    return _OPENMETRICS if content_type.startswith("application/openmetrics-text") else _TEXT


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
