"""What Prometheus needs for many GPUs: ``python -m benchmarks.scrape_tree --gpus 1000,10000``.

The page of metrics is that of a real daemon with eight simulated GPUs. One server serves it for
each node with names and UUIDs of its own, and with values that change. Leaves of a scrape tree
scrape the nodes and record the aggregates of deploy/prometheus; a Prometheus above them scrapes the
aggregates alone. See docs/internals/benchmarks.md.

Needs Debian's package prometheus.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "deploy" / "prometheus"
GPUS_OF_NODE = 8
#: Pages with different values, of which each scrape gets the next.
VARIANTS = 6
#: Scrapes of each node before the figures are read: the first ones fill the memory.
SCRAPES = 3
START_TIMEOUT_S = 120.0
#: A query over all series of a busy host takes its time.
TIMEOUT_S = 300.0


def page_of_a_daemon(folder: Path) -> str:
    """Read the metrics of a daemon with eight simulated GPUs at work."""
    port = free_port()
    environment = {**os.environ, "SENTINEL_SIM_DIR": str(folder), "NODE_NAME": "NODE"}
    words = ("run", "--simulate", str(GPUS_OF_NODE), "--workload", "hold", "--rearm", "300ms")
    command = [sys.executable, "-m", "sentinel", *words, "--metrics", str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as daemon:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    page = read(f"http://127.0.0.1:{port}/metrics").decode()
                    running = re.findall(
                        r"^sentinel_gpu_stressor_state\{.*running.*\} 1\.0", page, re.MULTILINE
                    )
                    if len(running) == GPUS_OF_NODE:
                        return page
                time.sleep(0.5)
            raise TimeoutError("no stressor on every GPU")
        finally:
            daemon.terminate()


def variants(page: str) -> list[bytes]:
    """Make pages of which each measured value and each counter differs by up to 5 %."""
    pages = []
    for _ in range(VARIANTS):

        def changed(found: re.Match[str]) -> str:
            value = float(found[2])
            if value in {0.0, 1.0}:  # a state
                return found[0]
            return f"{found[1]} {value * random.uniform(0.95, 1.05):.6g}"

        pages.append(re.sub(r"^(\w+\{.*\}) (\S+)$", changed, page, flags=re.MULTILINE).encode())
    return pages


class Nodes:
    """A server of the metrics of many nodes, at /<number>.

    Args:
        page: The page of one node.
    """

    def __init__(self, page: str) -> None:
        pages = variants(page)
        uuids = sorted({match.encode() for match in re.findall(r'UUID="(GPU-[^"]+)"', page)})
        bounds = [0]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                node = self.path.strip("/").encode()
                bounds[0] += 1
                body = pages[bounds[0] % VARIANTS].replace(
                    b'hostname="NODE"', b'hostname="n%b"' % node
                )
                for number, uuid in enumerate(uuids):
                    body = body.replace(uuid, b"GPU-%b-%d" % (node, number))
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1024

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self.server.server_port)


@contextlib.contextmanager
def prometheus(folder: Path, config: dict[str, Any]) -> Iterator[tuple[int, psutil.Process]]:
    """Run a Prometheus until the block ends; its port and its process."""
    folder.mkdir()
    for file in RULES.glob("*.rules.yml"):
        shutil.copy(file, folder)
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command) as process:
        try:
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()


def leaf(port: int, nodes: range, interval_s: int, cluster: int) -> dict[str, Any]:
    """Configure a leaf: these nodes, by a path each, and all rules."""
    relabel = [
        {"source_labels": ["__address__"], "target_label": "instance"},
        {
            "source_labels": ["__address__"],
            "target_label": "__metrics_path__",
            "replacement": "/$1",
        },
        {"target_label": "__address__", "replacement": f"127.0.0.1:{port}"},
    ]
    targets = {"targets": [str(node) for node in nodes], "labels": {"cluster": f"c{cluster}"}}
    scrape = {"job_name": "sentinel", "static_configs": [targets], "relabel_configs": relabel}
    return {
        "global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
        "rule_files": ["sentinel.rules.yml", "sentinel-fleet.rules.yml"],
        "scrape_configs": [scrape],
    }


def federation(ports: list[int], interval_s: int) -> dict[str, Any]:
    """Configure the Prometheus above the leaves."""
    scrape = {
        "job_name": "federate",
        "honor_labels": True,
        "metrics_path": "/federate",
        "params": {"match[]": ['{__name__=~"cluster[a-z_]*:sentinel_.*"}']},
        "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
    }
    return {"global": {"scrape_interval": f"{interval_s}s"}, "scrape_configs": [scrape]}


def ask(port: int, query: str) -> float:
    """Evaluate a query that has one value; not a number without one."""
    text = read(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}")
    found = json.loads(text)["data"]["result"]
    return float(found[0]["value"][1]) if found else float("nan")


def read(address: str) -> bytes:
    """Fetch an address of this host."""
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:  # noqa: S310 - http
        body: bytes = response.read()
        return body


def free_port() -> int:
    """Find a port of this host that is free at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def measure(nodes: Nodes, gpus: int, leaves: int, interval_s: int, folder: Path) -> dict[str, Any]:
    """Scrape so many GPUs by so many leaves; return the figures."""
    count = gpus // GPUS_OF_NODE
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(
                prometheus(
                    folder / f"leaf-{gpus}-{leaf_number}",
                    leaf(nodes.port, range(count)[leaf_number::leaves], interval_s, leaf_number),
                )
            )
            for leaf_number in range(leaves)
        ]
        ports = [port for port, _ in found]
        top_port, top = stack.enter_context(
            prometheus(folder / f"top-{gpus}", federation(ports, interval_s))
        )
        time.sleep(2 * interval_s)
        before = [process.cpu_times() for _, process in found]
        began = time.monotonic()
        time.sleep(SCRAPES * interval_s)
        passed = time.monotonic() - began
        cpu = [
            process.cpu_times().user + process.cpu_times().system - old.user - old.system
            for (_, process), old in zip(found, before, strict=True)
        ]
        first = ports[0]
        return {
            "gpus": gpus,
            "nodes": count,
            "leaves": leaves,
            "interval_s": interval_s,
            "answering": sum(ask(port, 'sum(up{job="sentinel"})') for port in ports),
            "series_per_leaf": head_series(first),
            "series_per_gpu": head_series(first) / (gpus / leaves),
            "leaf_rss_mib": max(process.memory_info().rss for _, process in found) / 2**20,
            "leaf_cores": max(cpu) / passed,
            "scrape_p50_s": ask(first, "quantile(0.5, scrape_duration_seconds)"),
            "scrape_p99_s": ask(first, "quantile(0.99, scrape_duration_seconds)"),
            "rules_s": sum_of_rules(first),
            "top_series": ask(top_port, 'count({__name__=~"cluster[a-z_]*:sentinel_.*"})'),
            "top_scrape_s": ask(top_port, "max(scrape_duration_seconds)"),
            "top_rss_mib": top.memory_info().rss / 2**20,
            "top_gpus": ask(top_port, "sum(cluster:sentinel_gpus:sum)"),
        }


def head_series(port: int) -> int:
    """Read how many series a Prometheus has in memory."""
    status = json.loads(read(f"http://127.0.0.1:{port}/api/v1/status/tsdb"))
    return int(status["data"]["headStats"]["numSeries"])


def sum_of_rules(port: int) -> float:
    """Sum the times of the last evaluation of all groups of rules, in seconds."""
    groups = json.loads(read(f"http://127.0.0.1:{port}/api/v1/rules"))["data"]["groups"]
    return float(sum(group["evaluationTime"] for group in groups))


def main() -> None:
    """Measure each size and print a JSON object a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--gpus", default="1000,10000", help="numbers of GPUs, one after the other")
    parser.add_argument("--leaves", type=int, default=2, help="leaves of the scrape tree")
    parser.add_argument("--interval", type=int, default=30, help="seconds between scrapes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scrape-tree-") as name:
        folder = Path(name)
        simulated = folder / "simulated"
        simulated.mkdir(mode=0o700)
        page = page_of_a_daemon(simulated)
        nodes = Nodes(page)
        lines = sum(not line.startswith("#") for line in page.splitlines())
        print(json.dumps({"samples_per_node": lines, "page_bytes": len(page)}), flush=True)
        for gpus in map(int, given.gpus.split(",")):
            found = measure(nodes, gpus, given.leaves, given.interval, folder)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
