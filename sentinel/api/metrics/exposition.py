"""Writes the page that a Prometheus scrapes, in the format that it asks for."""

from __future__ import annotations

import gzip
import time
from dataclasses import dataclass
from functools import cached_property

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from starlette.datastructures import Headers
from starlette.responses import Response

from sentinel.api.metrics.collector import DaemonCollector
from sentinel.api.metrics.counters import Counting
from sentinel.api.state.snapshots import Views
from sentinel.protocol.commands import ServiceSpec

#: The formats that there are, as an Accept header asks for them: everybody's, and OpenMetrics.
_TEXT = "text/plain;version=0.0.4"
_OPENMETRICS = "application/openmetrics-text;version=1.0.0"
#: What was written is good for so many seconds: the supervisor shows no more often what changed.
#: With eight GPUs a page takes 20 ms to write, and who asks all the time must not take all of ours.
_GOOD_FOR = 0.25
#: How hard it is compressed: pages are much the same lines, and become 20 times smaller by this.
_LEVEL = 1


@dataclass(frozen=True)
class _Written:
    """A page as it was at the time ``at``, of the monotonic clock."""

    at: float
    content_type: str
    body: bytes

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.body, _LEVEL)


class MetricsPage:
    """The page at ``/metrics``, made of what there is at the time of a scrape.

    Args:
        spec: What the service was told.
        views: What the supervisor showed last.
        counting: What was counted.
    """

    def __init__(self, spec: ServiceSpec, views: Views, counting: Counting) -> None:
        # One of our own: that of the library has what it finds out about this process.
        self._registry = CollectorRegistry()
        self._registry.register(DaemonCollector(spec, views, counting))
        self._kept: dict[str, _Written] = {}

    def respond(self, headers: Headers) -> Response:
        """Return the page, as the Accept and Accept-Encoding of a request want it.

        Raises:
            ProblemError: The supervisor showed nothing yet.
        """
        page = self._page(_format(headers.get("accept", "")))
        # Not as media_type, to which more is added.
        told = {"content-type": page.content_type, "vary": "Accept, Accept-Encoding"}
        if gzip_accepted(headers.get("accept-encoding", "")):
            return Response(page.compressed, headers={**told, "content-encoding": "gzip"})
        return Response(page.body, headers=told)

    def _page(self, wanted: str) -> _Written:
        now, kept = time.monotonic(), self._kept.get(wanted)
        if kept is not None and now - kept.at < _GOOD_FOR:
            return kept
        encode, content_type = choose_encoder(wanted)
        self._kept[wanted] = _Written(now, content_type, encode(self._registry))
        return self._kept[wanted]


def _format(accept: str) -> str:
    """Return which of the formats an Accept header asks for; the library names many versions."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        return _TEXT
    return _OPENMETRICS if content_type.startswith("application/openmetrics-text") else _TEXT
