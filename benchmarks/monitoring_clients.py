"""Monitoring: open web pages that receive everything, and a Prometheus that scrapes each second.

They use the Unix socket like the web page and Prometheus use their addresses; see README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from benchmarks.client_process import run_clients

_PAGE = b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
_SCRAPE = (
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Accept: application/openmetrics-text; version=1.0.0\r\nAccept-Encoding: gzip\r\n\r\n"
)
#: The scrape interval, far shorter than usual.
_SCRAPE_INTERVAL_S = 1.0


class MonitoringClients:
    """Clients, and what they received.

    Args:
        path: The socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.seen = {"page_bytes": 0, "pages_opened": 0, "scrapes": 0, "scrape_bytes": 0}

    async def page(self) -> None:
        """Keep a page open; reconnect when the daemon is gone."""
        while True:
            reader, writer = await asyncio.open_unix_connection(self._path)
            writer.write(_PAGE)
            self.seen["pages_opened"] += 1
            while data := await reader.read(2**16):
                self.seen["page_bytes"] += len(data)
            writer.close()
            await asyncio.sleep(0.5)

    async def scraper(self) -> None:
        """Scrape each second."""
        while True:
            began = time.monotonic()
            reader, writer = await asyncio.open_unix_connection(self._path)
            writer.write(_SCRAPE)
            body = await reader.read()
            writer.close()
            if not body.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"no metrics: {body[:200]!r}")
            self.seen["scrapes"] += 1
            self.seen["scrape_bytes"] += len(body)
            await asyncio.sleep(max(0.0, began + _SCRAPE_INTERVAL_S - time.monotonic()))


async def _run(path: str, pages: int, scrapers: int) -> None:
    clients = MonitoringClients(path)
    jobs = [clients.page() for _ in range(pages)] + [clients.scraper() for _ in range(scrapers)]
    await run_clients(jobs, lambda: {"seen": clients.seen})


def main() -> None:
    """Run until the benchmark ends this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.monitoring_clients", description=__doc__
    )
    parser.add_argument("socket")
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--scrapers", type=int, default=1)
    given = parser.parse_args()
    asyncio.run(_run(given.socket, given.pages, given.scrapers))


if __name__ == "__main__":
    main()
