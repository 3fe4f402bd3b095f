"""A real Prometheus and its promtool."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.harness.timing import TIMEOUT_S

PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs Debian's package prometheus")
needs_prometheus = pytest.mark.skipif(
    None in {PROMETHEUS, PROMTOOL}, reason="needs Debian's package prometheus"
)

#: The first and last port that a test may get: below those of outgoing connections.
_PORTS = (20_000, 32_000)
_given: set[int] = set()
#: Not seeded, so that the workers of one run do not draw the same ports.
_random = random.SystemRandom()

#: Runs a query; the samples' labels and values.
Query = Callable[[str], list[tuple[dict[str, str], float]]]


def promtool(*words: str, text: str | None = None) -> None:
    """Run promtool, which must succeed."""
    done = subprocess.run(
        [str(PROMTOOL), *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    """Find a port of this host that is free at the moment, another one at each call.

    It lies below the ports that the system gives to outgoing connections, so that only a program
    that asks for this very port can take it before the test does.
    """
    while True:
        port = _random.randint(*_PORTS)
        if port in _given:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port


@contextmanager
def running_prometheus(config: Path) -> Iterator[Query]:
    """Run a Prometheus with a configuration until the block ends; its data go beside the file."""
    port, folder = free_port(), config.parent
    command = [
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (folder / "prometheus.log").open("w") as log_file,
        subprocess.Popen(command, stdout=log_file, stderr=log_file) as prometheus,
    ):
        try:
            yield _make_query(port)
        finally:
            prometheus.terminate()
            prometheus.wait(TIMEOUT_S)


def _make_query(port: int) -> Query:
    """Return a function that queries a Prometheus; it finds nothing before it listens."""

    def query(text: str) -> list[tuple[dict[str, str], float]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"/api/v1/query?query={quote(text)}")
            response = connection.getresponse()
            body = response.read()
        except OSError:  # Prometheus does not listen yet
            return []
        finally:
            connection.close()
        assert response.status not in {400, 422}, (text, body)  # the query itself is wrong
        if response.status != http.client.OK:
            return []
        found = json.loads(body)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    return query
