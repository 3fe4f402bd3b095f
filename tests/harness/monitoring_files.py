"""The rules and dashboards for Prometheus and Grafana: their queries, and tests of their rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.gpu_environment import ROOT
from tests.harness.prometheus_server import promtool

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
