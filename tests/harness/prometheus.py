"""A real Prometheus with its promtool, and the rules and dashboards for it and for Grafana."""

from __future__ import annotations

import http.client
import json
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually
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
    done = run_program(str(PROMTOOL), *words, input=text)
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


_DEPLOY = ROOT / "deploy"
CONFIG = _DEPLOY / "prometheus" / "prometheus.yml"
#: Of one node, and of a fleet.
RULES = _DEPLOY / "prometheus" / "sentinel.rules.yml"
FLEET_RULES = _DEPLOY / "prometheus" / "sentinel-fleet.rules.yml"
DASHBOARD = _DEPLOY / "grafana" / "sentinel.json"
FLEET_DASHBOARD = _DEPLOY / "grafana" / "sentinel-fleet.json"

#: Labels that Prometheus, its configuration or dcgm-exporter give.
GIVEN_LABELS = {"le", "instance", "job", "cluster", "modelName"}
#: What Grafana's own variables stand for in a query.
_GRAFANA = {"__rate_interval": "1m", "__range": "6h"}


def expressions(path: Path) -> list[str]:
    """List all queries of rules or of a dashboard."""
    if path.suffix == ".json":
        return list(_queries(json.loads(path.read_text())))
    text = re.sub(r"#.*", "", path.read_text())
    pattern = r"^ +expr: (.+?)(?=^ +(?:for|labels|- record|- alert|- name):|^\s*$|\Z)"
    return re.findall(pattern, text, re.MULTILINE | re.DOTALL)


def _queries(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                if key in {"expr", "query", "definition"} and isinstance(item, str):
                    yield item
                else:
                    yield from _queries(item)
        case list():
            for item in value:
                yield from _queries(item)


def dashboard_queries(path: Path) -> list[str]:
    """List the PromQL of the panels and annotations, with values for the variables."""
    dashboard = json.loads(path.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries = [one["expr"] for one in (*targets, *dashboard["annotations"]["list"])]
    variables = _GRAFANA | {one["name"]: ".*" for one in dashboard["templating"]["list"]}
    return [re.sub(r"\$(\w+)", lambda found: variables[found[1]], query) for query in queries]


def selections(query: str) -> list[tuple[str, str]]:
    """List the metrics of this project that a query selects by labels, and the selectors."""
    return re.findall(r"\b(sentinel_\w+)\{([^}]*)\}", query)


def grouping_labels(query: str) -> set[str]:
    """Collect the labels by which a query groups or matches."""
    groups = re.findall(r"\b(?:by|on|without|ignoring|group_left) *\(([^)]*)\)", query)
    return {label for labels in groups for label in re.split(r"[\s,]+", labels) if label}


def check_values(query: Query, dashboard: Path, without: str) -> None:
    """Check that every query can be evaluated, and wait until each has a value.

    Args:
        query: Queries a Prometheus.
        dashboard: The file with the queries.
        without: A pattern of those that have no value within seconds of simulated GPUs.
    """
    queries = dashboard_queries(dashboard)
    expected = [one for one in queries if not re.search(without, one)]
    assert len(expected) > 20
    eventually(lambda: [one for one in expected if not query(one)] == [])
    for one in queries:
        query(one)  # raises if it cannot be evaluated


def words_of(options: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the word of each number in a value mapping; each must have a colour of its own."""
    assert len({option["color"] for option in options.values()}) == len(options)
    return {
        number: option["text"].lower().replace("n/a", "not_applicable")
        for number, option in options.items()
    }


def check_queries(queries: list[str], folder: Path) -> None:
    """Check that promtool accepts each of these queries."""
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = folder / "queries.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(file))


def rule_case(
    series: Mapping[str, str], expected: Mapping[str, Sequence[Mapping[str, Any]]], at: str
) -> dict[str, Any]:
    """Build a case for ``check_rules``.

    Args:
        series: The values of each series once a minute, in the notation of promtool.
        expected: The samples that each query finds.
        at: When the queries are evaluated.
    """
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": at, "exp_samples": samples}
            for query, samples in expected.items()
        ],
    }


def check_rules(rules: Path, cases: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Evaluate rules over the series of each case, and compare what its queries find."""
    body = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": cases}
    file = folder / "tests.yml"  # JSON is YAML
    file.write_text(json.dumps(body))
    promtool("test", "rules", str(file))
