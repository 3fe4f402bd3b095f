"""Aggregates, alerts and the dashboard of a fleet, with a real Prometheus and 16 daemons."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from sentinel.api.metric_table import METRICS
from sentinel.api.metrics_page import VERDICTS
from sentinel.host.daemon_lookup import find_shared
from tests.harness.burnin_report import write_report
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.prometheus import (
    FLEET_DASHBOARD,
    FLEET_RULES,
    GIVEN_LABELS,
    RULES,
    check_rules,
    check_values,
    dashboard_queries,
    expressions,
    free_port,
    grouping_labels,
    needs_prometheus,
    needs_promtool,
    rule_case,
    running_prometheus,
    selections,
)
from tests.harness.sentinel_process import SentinelProcess, eventually


def records() -> dict[str, str]:
    """Read the recording rules: the expression of each name."""
    text = re.sub(r"^ *#.*\n", "", FLEET_RULES.read_text(), flags=re.MULTILINE)
    found = re.findall(r"- record: (\S+)\n +expr: (.+)\n", text)
    assert len(found) == text.count("- record:")
    return dict(found)


# --- names and labels ------------------------------------------------------------------------


@pytest.mark.parametrize("path", [FLEET_RULES, FLEET_DASHBOARD], ids=lambda path: path.name)
def test_every_query_uses_existing_metrics_and_labels(path: Path) -> None:
    queries = expressions(path)
    assert len(queries) > 20
    metrics = {metric.name: set(metric.labels) for metric in METRICS}
    buckets = {f"{name}_bucket" for name in metrics}
    aggregates = records()
    for query in queries:
        for name in re.findall(r"\b(?:\w+:)?sentinel_\w+(?::\w+)?", query):
            assert name in metrics.keys() | buckets | aggregates.keys(), query
        for name, chosen in selections(query):
            labels = set(re.findall(r"(\w+)[=!]", chosen))
            assert labels <= metrics[name.removesuffix("_bucket")] | GIVEN_LABELS, query
        assert grouping_labels(query) <= set().union(*metrics.values()) | GIVEN_LABELS, query


def test_the_name_of_an_aggregate_has_its_labels_and_its_metric() -> None:
    short = {"model_name": "model"}
    for name, expression in records().items():
        level, metric, _ = name.split(":")
        (labels,) = re.findall(r"^\w+ by \(([^)]*)\)", expression)
        kept = [short.get(label, label) for label in re.split(r", ", labels)]
        assert level.split("_") == kept, name
        assert "gpu" not in kept, "a GPU is not for federation"
        measured = re.findall(r"\bsentinel_\w+", expression)[0]
        if metric != "sentinel_gpu_not_burned_in":
            assert measured.startswith(metric), name


def test_every_aggregate_is_shown() -> None:
    shown = " ".join(dashboard_queries(FLEET_DASHBOARD))
    hidden = {name for name in records() if name not in shown}
    assert hidden == {"cluster_state:sentinel_gpu_admin_state:sum"}


# --- rules -----------------------------------------------------------------------------------


def gpu(number: int, cluster: str, **labels: str) -> str:
    """Write the labels of a GPU; there is one GPU on each node."""
    found = {"cluster": cluster, "hostname": f"n{number}", "gpu": "0", "UUID": f"GPU-{number}"}
    found |= {"model_name": "NVIDIA H200", "instance": f"n{number}:8766"} | labels
    return ",".join(f'{name}="{value}"' for name, value in found.items())


def verdicts(number: int, cluster: str, verdict: str) -> dict[str, str]:
    """Build the series of the verdict of one GPU, as a daemon has them: 1 for one and 0 else."""
    return {
        f"sentinel_gpu_burnin_verdict{{{gpu(number, cluster, verdict=one)}}}": (
            f"{int(one == verdict)}x90"
        )
        for one in VERDICTS.values()
    }


#: Forty nodes of the cluster a, of which three have a GPU that failed, and one of the cluster b.
FLEET = {
    name: value
    for number in range(40)
    for name, value in {
        **verdicts(number, "a", "fail" if number in {3, 4, 5} else "pass"),
        f'sentinel_gpus{{cluster="a",instance="n{number}:8766"}}': "1x90",
        f'up{{cluster="a",job="sentinel",instance="n{number}:8766"}}': (
            "1x30 0x60" if number < 3 else "1x90"
        ),
        f"sentinel_gpu_power_watts{{{gpu(number, 'a')}}}": "700x90",
        f"sentinel_gpu_yields_total{{{gpu(number, 'a')}}}": "0+60x90",
        f"sentinel_gpu_temperature_celsius{{{gpu(number, 'a')}}}": f"{50 + number / 2}x90",
    }.items()
} | {
    **verdicts(40, "b", "fail"),
    f"sentinel_gpu_yields_total{{{gpu(40, 'b')}}}": "0x90",
    f"sentinel_gpu_yields_total{{{gpu(41, 'b')}}}": "0x90",
    'up{cluster="b",job="sentinel",instance="n40:8766"}': "0x90",
    **{
        f"sentinel_gpu_handover_kill_seconds_bucket{{{gpu(40, 'b', le=bound)}}}": value
        for bound, value in (("0.06", "0x90"), ("0.1", "0+1x90"), ("+Inf", "0+1x90"))
    },
}


MODEL = 'model_name="NVIDIA H200"'
#: The aggregates and alerts of FLEET: the values of each query, by their labels.
VALUES: dict[str, dict[str, float]] = {
    'cluster_model_verdict:sentinel_gpu_burnin_verdict:sum{verdict=~"fail|pass"}': {
        f'cluster="a",{MODEL},verdict="fail"': 3,
        f'cluster="a",{MODEL},verdict="pass"': 37,
        f'cluster="b",{MODEL},verdict="fail"': 1,
        f'cluster="b",{MODEL},verdict="pass"': 0,
    },
    "cluster_model:sentinel_gpu_not_burned_in:count": {f'cluster="b",{MODEL}': 1},
    "cluster:sentinel_gpus:sum": {'cluster="a"': 40},
    "cluster:sentinel_gpu_power_watts:sum": {'cluster="a"': 28_000},
    "cluster:sentinel_gpu_yields:rate5m": {'cluster="a"': 40, 'cluster="b"': 0},
    "cluster_model:sentinel_gpu_temperature_celsius:max": {f'cluster="a",{MODEL}': 69.5},
    'sum by (__name__, alertname, cluster) (ALERTS{alertstate="firing"})': {
        'alertname="SentinelFleetFailures",cluster="a"': 1,
        'alertname="SentinelFleetHandoverSlow",cluster="b"': 1,
        'alertname="SentinelManyDown",cluster="a"': 1,
    },
}


@needs_promtool
def test_aggregates_and_alerts_have_the_right_values(tmp_path: Path) -> None:
    expected = {}
    for query, values in VALUES.items():
        name = "ALERTS" if "ALERTS" in query else query.partition("{")[0]
        expected[query] = [
            {"labels": f"{name}{{{labels}}}", "value": value} for labels, value in values.items()
        ]
    check_rules(FLEET_RULES, [rule_case(FLEET, expected, at="80m")], tmp_path)


# --- a real Prometheus -----------------------------------------------------------------------

#: Two clusters of eight nodes with two GPUs each.
NODES = 16
CLUSTERS = ("east", "west")
GPUS = 2


class Node:
    """One daemon with two simulated GPUs.

    Args:
        number: The node's number.
        folder: Its folder.
    """

    def __init__(self, number: int, folder: Path) -> None:
        folder.mkdir()
        self.name = f"node-{number:02}"
        self.cluster = CLUSTERS[number % 2]
        self.port = free_port()
        self.host = SimulatedHost(folder)
        self.host.registry.create(folder, GPUS)
        self.verdict = {0: "FAIL", 1: "PASS", 2: "INCOMPLETE"}.get(number // 2, "")
        if self.verdict:
            uuids = [self.host.uuid(index) for index in range(GPUS)]
            write_report(find_shared(folder), dict.fromkeys(uuids, self.verdict))

    def start(self, stack: ExitStack) -> SentinelProcess:
        """Start the daemon; it ends with the stack."""
        quick = ("--rearm", "300ms", "--workload", "hold", "--metrics", str(self.port))
        environment = {"NODE_NAME": self.name, "SENTINEL_STANDBY": "off"}
        daemon = self.host.sentinel(GPUS, *quick, api=True, environment=environment)
        return stack.enter_context(daemon)


@pytest.mark.long
@needs_prometheus
@pytest.mark.usefixtures("fake_torch")
def test_a_real_prometheus_aggregates_sixteen_daemons(tmp_path: Path) -> None:
    nodes = [Node(number, tmp_path / f"n{number}") for number in range(NODES)]
    config = [
        {
            "targets": [f"127.0.0.1:{node.port}" for node in nodes if node.cluster == cluster],
            "labels": {"cluster": cluster},
        }
        for cluster in CLUSTERS
    ]
    for file in (FLEET_RULES, RULES):
        shutil.copy(file, tmp_path)
    configuration = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [FLEET_RULES.name, RULES.name],
        "scrape_configs": [{"job_name": "sentinel", "static_configs": config}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML
    with ExitStack() as stack:
        daemons = []
        for node in nodes:  # one after the other: together, their start outlasts a limit
            daemons.append(node.start(stack))
            daemons[-1].wait_for("stressor.ready", count=GPUS)
        query = stack.enter_context(running_prometheus(tmp_path / "prometheus.yml"))

        def values(text: str, *labels: str) -> dict[tuple[str, ...], float]:
            found = query(text)
            return {tuple(one[label] for label in labels): value for one, value in found}

        half = NODES / 2
        both = {(cluster,): 1.0 for cluster in CLUSTERS}

        def times(factor: float) -> dict[tuple[str, ...], float]:
            return {key: factor * value for key, value in both.items()}

        eventually(lambda: values("cluster:sentinel_up:sum", "cluster") == times(half))
        gpus = times(half * GPUS)
        eventually(lambda: values("cluster:sentinel_gpus:sum", "cluster") == gpus)
        at_work = 'cluster_state:sentinel_gpu_stressor_state:sum{state="running"}'
        eventually(lambda: values(at_work, "cluster") == gpus)
        verdict = "cluster_model_verdict:sentinel_gpu_burnin_verdict:sum"
        eventually(
            lambda: (
                values(f"{verdict} > 0", "cluster", "verdict")
                == {
                    (cluster, one): float(GPUS)
                    for cluster in CLUSTERS
                    for one in ("fail", "pass", "incomplete")
                }
            )
        )
        missing = "cluster_model:sentinel_gpu_not_burned_in:count"
        eventually(lambda: values(missing, "cluster") == times((half - 3) * GPUS))
        # Each node has the name that Kubernetes gave it, and every label of dcgm-exporter.
        labels = [one for one, _ in query('sentinel_gpu_state{state="idle"}')]
        assert {one["hostname"] for one in labels} == {node.name for node in nodes}
        assert all(one.keys() >= {"gpu", "UUID", "pci_bus_id", "model_name"} for one in labels)
        fired = 'ALERTS{alertstate="firing"}'
        eventually(lambda: len(query(fired)) == 2 * GPUS)
        assert {one["alertname"] for one, _ in query(fired)} == {"SentinelBurninFailed"}
        check_values(query, FLEET_DASHBOARD, NO_VALUE)
        with nodes[5].host.job(stay=600.0) as job:
            assert job.got_memory()
            daemons[5].wait_for("gpu.handed_over")
            busy = 'cluster_state:sentinel_gpu_state:sum{state="busy"}'
            eventually(lambda: values(busy, "cluster") == {("east",): 0.0, ("west",): 1.0})
            eventually(lambda: sum(values(at_work, "cluster").values()) == NODES * GPUS - 1)
        daemons[4].process.kill()
        eventually(
            lambda: values("cluster:sentinel_up:sum", "cluster")[("east",)] == half - 1,
        )
        assert values('up{job="sentinel"} == 0', "instance").keys() == {
            (f"127.0.0.1:{nodes[4].port}",)
        }


#: Queries of what simulated GPUs or a few seconds do not have: other programs, faults, an hour.
NO_VALUE = r"DCGM_|== 0|offset|\[1h\]|rate1h|flops_per_second|serial|temperature|findings_total:sum"
