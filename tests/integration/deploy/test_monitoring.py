"""The files for Prometheus and Grafana and the document use existing metrics and work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sentinel.api.counters import BEGUN_XIDS
from sentinel.api.metric_table import GPU_LABELS, METRICS
from sentinel.api.metrics_page import ADMIN, OCCUPANCY, STRESSOR, VERDICTS
from sentinel.protocol.views import GpuHealth
from tests.harness.api_harness import ApiServer
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.metrics_harness import (
    api_with_events,
    get_metrics,
    matching_samples,
    scrape,
    send_all_views,
)
from tests.harness.prometheus import (
    CONFIG,
    DASHBOARD,
    FLEET_DASHBOARD,
    FLEET_RULES,
    GIVEN_LABELS,
    RULES,
    check_queries,
    check_rules,
    check_values,
    dashboard_queries,
    expressions,
    free_port,
    grouping_labels,
    needs_prometheus,
    needs_promtool,
    promtool,
    rule_case,
    running_prometheus,
    selections,
    words_of,
)
from tests.harness.sentinel_process import eventually

DOCUMENT = ROOT / "docs" / "reference/metrics.md"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_with_events(tmp_path_factory.mktemp("service")) as api:
        yield api


@pytest.fixture
def api(service: ApiServer) -> ApiServer:
    send_all_views(service)
    return service


# --- documents, rules and dashboard ----------------------------------------------------------


def test_the_exposition_has_every_defined_metric(api: ApiServer) -> None:
    exported = {family.name for family in parse_text(get_metrics(api)[2].decode())}
    assert exported == {metric.name.removesuffix("_total") for metric in METRICS}


def test_the_document_lists_exactly_the_defined_metrics() -> None:
    row = r"^\| `(sentinel_\w+)(?:\{([\w, ]+)\})?` \| \S"
    rows = re.findall(row, DOCUMENT.read_text(), re.MULTILINE)
    documented = {
        name: (_kind_by_name(name), tuple(re.findall(r"\w+", labels))) for name, labels in rows
    }
    assert len(rows) == len(documented), "a metric has two rows"
    expected = {}
    for metric in METRICS:
        own = tuple(label for label in metric.labels if label not in GPU_LABELS)
        expected[metric.name] = (str(metric.kind), own)
    assert documented == expected


@pytest.mark.parametrize("path", [RULES, DASHBOARD, DOCUMENT], ids=lambda path: path.name)
def test_every_query_uses_existing_metrics_labels_and_values(api: ApiServer, path: Path) -> None:
    page = scrape(api)
    queries = expressions(path) if path != DOCUMENT else _examples()
    assert len([query for query in queries if "sentinel_" in query]) >= 5
    known_labels = {label for metric in METRICS for label in metric.labels}
    for query in queries:
        named = set(re.findall(r"\bsentinel_\w+", query))
        assert named <= page.keys(), query
        for name, chosen in selections(query):
            expected = dict(re.findall(r'(\w+)="(\w+)"', chosen))
            assert matching_samples(page, name, **expected), query
        assert grouping_labels(query) <= known_labels | GIVEN_LABELS, query


def _kind_by_name(name: str) -> str:
    """Return the type of a metric by the rule of the document."""
    if name in {"sentinel_build_info", "sentinel_driver_info"}:
        return "info"
    if name.endswith("_total"):
        return "counter"
    return "histogram" if "_handover_" in name else "gauge"


def _examples() -> list[str]:
    blocks = re.findall(r"^```promql\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return [query for block in blocks for query in block.split("\n\n")]


@pytest.mark.parametrize("path", [DASHBOARD, FLEET_DASHBOARD], ids=lambda path: path.name)
def test_every_panel_queries_the_chosen_prometheus_and_overlaps_no_other(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 10
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    occupied_cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & occupied_cells, panel["title"]
        occupied_cells |= cells
    for panel in panels:
        chosen = {"type": "prometheus", "uid": "${datasource}"}
        assert panel["datasource"] == chosen
        for target in panel["targets"]:
            assert target["datasource"] == chosen
            assert target["expr"]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used - {"__rate_interval", "__range", "__all"} == variables


def test_every_query_of_a_gpu_is_limited_to_the_chosen_nodes_and_gpus() -> None:
    chosen = 'hostname=~"$node",instance=~"$instance",gpu=~"$gpu"'
    for query in expressions(DASHBOARD):
        if "label_values" in query:
            continue
        for metric, labels in selections(query):
            if metric.startswith("sentinel_gpu_"):
                assert labels.startswith(chosen), query
            else:
                assert labels.startswith('instance=~"$instance"'), query


#: The values of each state that a dashboard shows, in the order of their numbers.
BY_SEVERITY = {
    "sentinel_gpu_burnin_verdict": ("not_applicable", "pass", "warn", "incomplete", "fail")
}
STATES = {
    "sentinel_gpu_state": OCCUPANCY,
    "sentinel_gpu_stressor_state": STRESSOR,
    "sentinel_gpu_admin_state": ADMIN,
    "sentinel_gpu_health_state": tuple(GpuHealth),
    "sentinel_gpu_burnin_verdict": tuple(VERDICTS.values()),
}


@pytest.mark.parametrize(
    ("path", "states", "count"),
    [(DASHBOARD, STATES, 2 * len(STATES)), (FLEET_DASHBOARD, BY_SEVERITY, 1)],
    ids=["node", "fleet"],
)
def test_each_state_has_a_word_and_a_colour(
    path: Path, states: dict[str, tuple[str, ...]], count: int
) -> None:
    dashboard = json.loads(path.read_text())
    shown: list[tuple[str, list[Any]]] = []
    for panel in dashboard["panels"]:
        if panel["type"] == "state-timeline":
            (target,) = panel["targets"]
            shown.append((target["expr"], panel["fieldConfig"]["defaults"]["mappings"]))
        if panel["type"] == "table":
            columns = _mappings_of_columns(panel)
            shown += [(one["expr"], columns.get(one["refId"], [])) for one in panel["targets"]]
    coded = [(query, mappings) for query, mappings in shown if mappings]
    assert len(coded) == count
    for query, (mapping,) in coded:
        options = mapping["options"]
        parts = re.findall(r"(\d+) \* (\w+)\{[^}]*?(?:state|verdict)=\"(\w+)\"\}", query)
        (metric,) = {name for _, name, _ in parts}
        assert mapping["type"] == "value"
        assert tuple(value for _, _, value in parts) == states[metric]
        assert list(options) == [number for number, _, _ in parts]
        assert tuple(words_of(options).values()) == states[metric]


def _mappings_of_columns(panel: dict[str, Any]) -> dict[str, list[Any]]:
    """Find the value mappings of a table's columns, by the letter of their query."""
    (organize,) = (one for one in panel["transformations"] if one["id"] == "organize")
    titles = organize["options"]["renameByName"]
    overrides = {
        one["matcher"]["options"]: {part["id"]: part["value"] for part in one["properties"]}
        for one in panel["fieldConfig"]["overrides"]
    }
    letters = [one["refId"] for one in panel["targets"]]
    assert set(overrides) <= set(titles.values())
    return {
        letter: overrides.get(titles.get(f"Value #{letter}"), {}).get("mappings", [])
        for letter in letters
    }


def test_hand_overs_and_findings_are_annotated() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    annotated = {one["name"]: one["expr"] for one in dashboard["annotations"]["list"]}
    assert "sentinel_gpu_yields_total" in annotated["Hand-over"]
    assert "sentinel_gpu_findings_total" in annotated["Finding"]


@needs_promtool
@pytest.mark.parametrize("path", [DASHBOARD, FLEET_DASHBOARD], ids=lambda path: path.name)
def test_promtool_accepts_every_query_of_a_dashboard(path: Path, tmp_path: Path) -> None:
    check_queries(dashboard_queries(path), tmp_path)


# --- promtool and a real Prometheus ----------------------------------------------------------


@needs_promtool
def test_promtool_accepts_the_metrics(api: ApiServer) -> None:
    promtool("check", "metrics", text=get_metrics(api)[2].decode())


@needs_promtool
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", str(RULES), str(FLEET_RULES))
    promtool("check", "config", str(CONFIG))


GPU = 'hostname="n1",gpu="0",instance="n1:8766"'
#: Each alert, and the series that make it fire, in the notation of promtool.
FIRING: dict[str, dict[str, str]] = {
    "SentinelDown": {'up{job="sentinel",instance="n1:8766"}': "0x20"},
    "SentinelStalled": {'sentinel_up{instance="n1:8766"}': "0x20"},
    "SentinelRestarts": {'sentinel_start_time_seconds{instance="n1:8766"}': "1 2 3 4 5x16"},
    "SentinelServiceRestarts": {
        'sentinel_service_start_time_seconds{instance="n1:8766"}': "1 2 3 4 5x16",
        'sentinel_start_time_seconds{instance="n1:8766"}': "1x20",
    },
    "SentinelProbeRestarts": {
        'sentinel_probe_restarts_total{instance="n1:8766",reason="hung"}': "0+1x20"
    },
    "SentinelFileSetAside": {
        'sentinel_files_set_aside{instance="n1:8766",file="reservations.json"}': "0x10 1x10"
    },
    "SentinelReadingOld": {f"sentinel_gpu_reading_age_seconds{{{GPU}}}": "0+60x20"},
    "SentinelGpuUnknown": {f'sentinel_gpu_state{{{GPU},state="unknown"}}': "1x20"},
    "SentinelGpuFault": {f'sentinel_gpu_fault{{{GPU},fault="lost"}}': "0x16 1x3"},
    "SentinelGpuXid": {f'sentinel_gpu_xids_total{{{GPU},xid="79"}}': "0x16 1x3"},
    "SentinelGpusFewerThanExpected": {
        'sentinel_gpus{instance="n1:8766"}': "7x20",
        'sentinel_gpus_expected{instance="n1:8766"}': "8x20",
    },
    "SentinelVerificationErrors": {f"sentinel_gpu_wrong_results{{{GPU}}}": "0x10 1x10"},
    "SentinelBurninFailed": {f'sentinel_gpu_burnin_verdict{{{GPU},verdict="fail"}}': "1x20"},
    "SentinelBurninIncomplete": {
        f'sentinel_gpu_burnin_verdict{{{GPU},verdict="incomplete"}}': "1x1560",
    },
    "SentinelGpuMissing": {'sentinel_gpus{instance="n1:8766"}': "8x2 7x18"},
    "SentinelHandoverSlow": {
        f'sentinel_gpu_handover_kill_seconds_bucket{{{GPU},le="0.06"}}': "0x20",
        f'sentinel_gpu_handover_kill_seconds_bucket{{{GPU},le="0.1"}}': "0+1x20",
        f'sentinel_gpu_handover_kill_seconds_bucket{{{GPU},le="+Inf"}}': "0+1x20",
    },
    "SentinelMemoryBackSlow": {
        f'sentinel_gpu_handover_memory_back_seconds_bucket{{{GPU},le="2"}}': "0x20",
        f'sentinel_gpu_handover_memory_back_seconds_bucket{{{GPU},le="5"}}': "0+1x20",
        f'sentinel_gpu_handover_memory_back_seconds_bucket{{{GPU},le="+Inf"}}': "0+1x20",
    },
    "SentinelGpuCritical": {
        f'sentinel_gpu_health_state{{{GPU},state="critical"}}': "1x20",
        f'sentinel_gpu_health_cause{{{GPU},cause="temperature"}}': "1x20",
    },
    "SentinelGpuOverheats": {
        f"sentinel_gpu_temperature_celsius{{{GPU}}}": "90x20",
        f"sentinel_gpu_slowdown_temperature_celsius{{{GPU}}}": "89x20",
    },
    "SentinelGpuThrottled": {f"sentinel_gpu_thermal_throttled_seconds_total{{{GPU}}}": "0+30x20"},
    "SentinelStressorFails": {
        f'sentinel_gpu_stressor_failures_total{{{GPU},kind="hang"}}': "0+1x20",
    },
    "SentinelStressorGivenUp": {f'sentinel_gpu_stressor_state{{{GPU},state="fatal"}}': "1x20"},
    "SentinelGpuMemoryFails": {
        f'sentinel_gpu_ecc_errors_total{{{GPU},type="uncorrected"}}': "0x10 1x10"
    },
    "SentinelGpuNeedsReset": {f"sentinel_gpu_row_remap_pending{{{GPU}}}": "1x20"},
}
#: When an alert fires that waits for longer than the others.
LATE = {"SentinelBurninIncomplete": "25h"}
#: Series without an alert: an incomplete burn-in goes on.
BURNING_IN = {
    **FIRING["SentinelBurninIncomplete"],
    f"sentinel_gpu_burnin_phase{{{GPU}}}": "3x1560",
}
#: Nor this: a GPU is not read after an intentional release of the driver.
RELEASED = {
    'sentinel_state{instance="n1:8766",state="released"}': "1x20",
    **FIRING["SentinelReadingOld"],
    **FIRING["SentinelGpuUnknown"],
}


#: Nor for a job that fills its GPU, with `throttle.pace` = `full`.
FULL_CARD = {
    f'sentinel_gpu_health_state{{{GPU},state="critical"}}': "1x20",
    f'sentinel_gpu_health_cause{{{GPU},cause="memory"}}': "1x20",
    f'sentinel_gpu_health_cause{{{GPU},cause="temperature"}}': "0x20",
    f'sentinel_gpu_health_cause{{{GPU},cause="hardware"}}': "0x20",
    f"sentinel_gpu_memory_foreign_bytes{{{GPU}}}": "139e9x20",
}


@pytest.mark.long
@needs_promtool
def test_each_alert_fires_for_its_series_only(tmp_path: Path) -> None:
    names = re.findall(r"^ +- alert: (\w+)", RULES.read_text(), re.MULTILINE)
    assert names == list(FIRING)
    probe = 'count by (alertname) (ALERTS{alertname="%s",alertstate="firing"})'
    cases = [
        rule_case(
            series,
            {probe % name: [{"labels": f'{{alertname="{name}"}}', "value": 1}]},
            LATE.get(name, "18m"),
        )
        for name, series in FIRING.items()
    ]
    cases += [rule_case(series, {"ALERTS": []}, "18m") for series in (RELEASED, FULL_CARD)]
    cases += [rule_case(BURNING_IN, {"ALERTS": []}, "25h")]
    check_rules(RULES, cases, tmp_path)


@pytest.mark.long
@needs_prometheus
def test_a_real_prometheus_scrapes_a_daemon_with_the_deployed_configuration(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    scraped = free_port()
    _deploy(tmp_path, scraped)
    quick = ("--rearm", "300ms", "--poll", "100ms", "--workload", "hold")
    with simulated.sentinel(1, *quick, "--metrics", str(scraped), api=True) as process:
        process.wait_for("stressor.ready")
        with running_prometheus(tmp_path / "prometheus.yml") as samples:

            def query(text: str) -> list[float]:
                return [value for _, value in samples(text)]

            running = 'sentinel_gpu_stressor_state{state="running"} == 1'
            eventually(lambda: query('up{job="sentinel"}') == [1.0])
            eventually(lambda: query(running) == [1.0])
            # These are the labels of dcgm-exporter.
            uuid = simulated.uuid()
            assert query(f'sentinel_gpu_memory_held_bytes{{UUID="{uuid}",modelName!=""}} > 0')
            assert query("sentinel_gpu_handover_kill_seconds_count") == [0.0]
            check_values(samples, DASHBOARD, NO_VALUE)
            with simulated.job(stay=600.0) as job:
                assert job.got_memory()
                process.wait_for("gpu.handed_over")
                eventually(lambda: query("sentinel_gpu_handover_kill_seconds_count") == [1.0])
                eventually(lambda: query('sentinel_gpu_state{state="busy"}') == [1.0])
        assert process.stop() == 0


def _deploy(folder: Path, scraped: int) -> None:
    """Copy the deployed configuration, with short intervals, to scrape a port of this host."""
    config = CONFIG.read_text()
    for text, replacement in (("15s", "1s"), ('"localhost:8766"', f'"127.0.0.1:{scraped}"')):
        assert text in config
        config = config.replace(text, replacement)
    (folder / "prometheus.yml").write_text(config)
    for file in (RULES, FLEET_RULES):
        (folder / file.name).write_text(file.read_text().replace("[10m]", "[15s]"))


def test_the_alert_on_xids_has_those_that_mean_a_hardware_fault() -> None:
    (numbers,) = re.findall(r'xids_total\{xid=~"([\d|]+)"\}', RULES.read_text())
    assert {"other", *numbers.split("|")} == set(BEGUN_XIDS)


@pytest.mark.long
@needs_prometheus
def test_each_known_fault_pages_at_once_and_is_over_when_it_has_gone(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    scraped, uuid, registry = free_port(), simulated.uuid(), simulated.registry
    _deploy(tmp_path, scraped)
    flags = ("--paused", "--poll", "100ms", "--metrics", str(scraped), "--expect-gpus", "2")
    with (
        simulated.sentinel(1, *flags, api=True) as process,
        running_prometheus(tmp_path / "prometheus.yml") as samples,
    ):
        paging = 'alertstate="firing",severity="critical"'
        names = "SentinelGpuFault|SentinelGpuXid|SentinelGpusFewerThanExpected"

        def firing() -> set[str]:
            found = samples(f'ALERTS{{{paging},alertname=~"{names}"}}')
            return {
                f"{labels['alertname']} {labels.get('fault', '')}".strip() for labels, _ in found
            }

        # A node that never had its second GPU.
        eventually(lambda: firing() == {"SentinelGpusFewerThanExpected"})
        for figures, kind in (
            ({"recovery_action": "gpu_reset"}, "recovery"),
            ({"ecc_uncorrected_total": 1}, "uncorrectable"),
        ):
            registry.inject_figures(uuid, figures)
            eventually(lambda kind=kind: f"SentinelGpuFault {kind}" in firing())  # type: ignore[misc]
            registry.inject_figures(uuid, None)
            eventually(lambda: firing() == {"SentinelGpusFewerThanExpected"})
        registry.throw_xids(uuid, 79)
        eventually(lambda: {"SentinelGpuXid", "SentinelGpuFault xid"} <= firing())
        registry.inject(uuid, "lost")
        eventually(lambda: "SentinelGpuFault lost" in firing())
        registry.inject(uuid, None)
        eventually(lambda: firing() == {"SentinelGpusFewerThanExpected", "SentinelGpuFault xid"})
        assert process.stop() == 0


#: Queries of what simulated GPUs or a few seconds do not have.
NO_VALUE = (
    r"_clock_|_flops_|_bytes_per_second|_clocks_event_|memory_temperature|_margin_|ecc_errors|burnin"
    r"|\[6h\]|\[1h\]|> 0"
)
