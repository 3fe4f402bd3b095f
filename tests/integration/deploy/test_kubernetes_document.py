"""The commands that the document on Kubernetes shows do what it says."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from sentinel.config.model import SETTINGS
from tests.harness.gpu_environment import ROOT
from tests.harness.kubernetes_cluster import KUBECTL, needs_kubectl, objects
from tests.harness.programs import run_program, write_script

yaml = pytest.importorskip("yaml")

NODES = ("ip-192-168-100-200.eu-central-1.compute.internal", "node-b")
#: Knows two nodes, keeps what is applied from its input, and is the real one otherwise.
FAKE_KUBECTL = """\
case "$1 $3" in
get*) echo {nodes} ;;
"apply -") cat >>{applied}; echo --- >>{applied} ;;
apply*) : ;;
*) exec {kubectl} "$@" ;;
esac
"""


def run_documented(name: str, folder: Path) -> Path:
    """Run a block of the document beside a copy of deploy/; return what was applied."""
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    examples = folder / "deploy" / "kubernetes" / "examples"
    shutil.copytree(examples / "acceptance-overlay", examples / "site-acceptance")
    applied = folder / "applied.yaml"
    text = FAKE_KUBECTL.format(nodes=" ".join(NODES), applied=applied, kubectl=KUBECTL)
    write_script(folder / "kubectl", text)
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    block = re.search(
        rf"^<!-- test: {name} -->\n```\n(.*?)^```$", document, re.DOTALL | re.MULTILINE
    )
    assert block is not None
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    run_program("sh", "-euc", block[1], cwd=folder, env=environment, check=True)
    return applied


@needs_kubectl
def test_the_document_gives_the_daemon_settings(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    overlay = tmp_path / "deploy" / "kubernetes" / "examples" / "overlay"
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    block = re.search(r"^```yaml\n(patches:\n.*?)^```$", document, re.DOTALL | re.MULTILINE)
    assert block is not None
    with (overlay / "kustomization.yaml").open("a") as file:
        file.write(block[1])
    (found,) = objects(str(overlay), "DaemonSet")
    (container,) = [
        one for one in found["spec"]["template"]["spec"]["containers"] if one["name"] == "sentinel"
    ]
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given["SENTINEL_METRICS"]
    variables = {one.variable for one in SETTINGS}
    assert {"SENTINEL_WORKLOAD", "SENTINEL_QUIET"} <= set(given) & variables


@needs_kubectl
def test_the_document_makes_a_job_for_each_node(tmp_path: Path) -> None:
    applied = run_documented("acceptance", tmp_path)
    jobs = [one for one in yaml.safe_load_all(applied.read_text()) if one and one["kind"] == "Job"]
    assert [job["metadata"]["annotations"]["sentinel/node"] for job in jobs] == list(NODES)
    assert len({job["metadata"]["name"] for job in jobs}) == len(NODES)
    for job in jobs:
        affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == [job["metadata"]["annotations"]["sentinel/node"]]
    assert "node-to-burn-in" not in str(jobs)
    assert "number-of-the-run" not in str(jobs)


@needs_kubectl
def test_the_document_makes_rules_and_dashboards_for_the_operator(tmp_path: Path) -> None:
    run_documented("monitoring", tmp_path)
    rules = list(yaml.safe_load_all((tmp_path / "sentinel-rules.yaml").read_text()))
    folder = ROOT / "deploy" / "prometheus"
    for rule in rules:
        file = folder / f"{rule['metadata']['name']}.rules.yml"
        assert rule["spec"] == yaml.safe_load(file.read_text())
    assert len(rules) == len(list(folder.glob("*.rules.yml")))
    dashboards = yaml.safe_load((tmp_path / "sentinel-dashboards.yaml").read_text())
    assert dashboards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    for file in (ROOT / "deploy" / "grafana").glob("*.json"):
        assert dashboards["data"][file.name] == file.read_text()
