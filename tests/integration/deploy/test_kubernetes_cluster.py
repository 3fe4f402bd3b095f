"""The manifests on a real control plane, whose kubelets and GPUs are stand-ins."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.burnin_run import plan_of
from tests.harness.control_plane import (
    ControlPlane,
    control_plane,
    needs_control_plane,
)
from tests.harness.gpu_environment import ROOT
from tests.harness.kubelet import Kubelets, Node, kubelets
from tests.harness.kubernetes_cluster import DEPLOY, RENDERED
from tests.harness.programs import documented_commands, run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import MACHINE_SLOWNESS

yaml = pytest.importorskip("yaml")
pytestmark = [pytest.mark.long, needs_control_plane]

PODS = "/api/v1/namespaces/sentinel/pods"
JOBS = "/apis/batch/v1/namespaces/sentinel/jobs"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
#: What the cluster has before Sentinel, by the GPU operator and by the Prometheus operator.
BEFORE = """\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PodMonitor, listKind: PodMonitorList, plural: podmonitors, singular: podmonitor}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
PLAN_OF_THE_NODE = """\
patches:
  - target: {kind: Job}
    patch: |-
      - op: replace
        path: /spec/template/spec/containers/0/args
        value: [--plan, /media/plan.toml]
"""
#: As the document says of it: the ConfigMap at /custom-config, and the host's /run/sentinel.
NODE_PROBLEM_DETECTOR = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node-problem-detector, namespace: sentinel}
spec:
  selector: {matchLabels: {app: npd}}
  template:
    metadata: {labels: {app: npd}}
    spec:
      hostNetwork: true
      securityContext: {runAsUser: 0, runAsGroup: 0}
      containers:
        - name: npd
          image: node-problem-detector
          command:
            - PROGRAM
            - --config.custom-plugin-monitor=/custom-config/sentinel-monitor.json
            - --apiserver-override=SERVER?inClusterConfig=false&auth=/media/kubeconfig
            - --prometheus-port=0
            - --port=0
          env:
            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
          volumeMounts:
            - {name: run, mountPath: /run/sentinel, readOnly: true}
            - {name: config, mountPath: /custom-config, readOnly: true}
      volumes:
        - {name: run, hostPath: {path: /run/sentinel}}
        - {name: config, configMap: {name: sentinel-monitor}}
"""
#: What a test sets for all daemons and burn-ins, as an image would.
IMAGE = {
    "SENTINEL_REARM": "300ms",
    "SENTINEL_WORKLOAD": "hold",
    "SENTINEL_POLL": "200ms",
    "SENTINEL_STANDBY": "off",
    "CONDITION_INTERVAL": "1",
    "SENTINEL_UNWATCHED_AFTER": f"{min(5.0, MACHINE_SLOWNESS):.2f}s",
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane") / "files") as found:
        found.kubectl("apply", "-f", "-", input=BEFORE)
        yield found


@pytest.fixture(scope="module")
def all_kubelets(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubelets]:
    with kubelets(plane, tmp_path_factory.mktemp("nodes"), IMAGE) as found:
        yield found


@pytest.fixture
def cluster(all_kubelets: Kubelets) -> Iterator[Kubelets]:
    """Provide kubelets without nodes; afterwards, no workload of Sentinel is left."""
    plane = all_kubelets.plane
    yield all_kubelets
    # pytest shows this of a test that failed.
    sys.stdout.write(plane.kubectl("-n", "sentinel", "get", "events,pods", "-o", "wide").stdout)
    all_kubelets.print_logs()
    space = ("--namespace", "sentinel", "delete", "--all", "--wait=false")
    plane.kubectl(*space, "daemonsets,jobs")
    for name in list(all_kubelets.nodes):
        all_kubelets.remove(name)
    plane.kubectl(*space, "pods", "--force", "--grace-period=0")
    eventually(lambda: not plane.get(PODS)["items"])


class Site:
    """A copy of deploy/ with overlays of a site, as the document says.

    Args:
        plane: The control plane.
        folder: For the copy.
    """

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        self.examples = folder / "deploy" / "kubernetes" / "examples"
        for name in ("", "acceptance-"):
            shutil.copytree(
                self.examples / f"{name}overlay", self.examples / f"site-{name}".strip("-")
            )

    def apply(self, *words: str) -> str:
        """Apply the daemon's overlay; return what kubectl warned of."""
        done = self.plane.kubectl("apply", "-k", self.examples / "site", *words)
        return done.stderr

    def with_plan(self) -> Site:
        """Let Jobs of the acceptance take the plan of the node."""
        with (self.examples / "site-acceptance" / "kustomization.yaml").open("a") as file:
            file.write(PLAN_OF_THE_NODE)
        return self

    def accept(self) -> None:
        """Run the documented commands that make a Job for each node with GPUs."""
        commands = documented_commands("guides/kubernetes.md", "acceptance")
        words = ("sh", "-euc", commands)
        run_program(*words, cwd=self.folder, env=self.plane.environment, check=True)


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> Site:
    return Site(plane, tmp_path)


def pods(plane: ControlPlane, node: str = "", app: str = "sentinel") -> list[dict[str, Any]]:
    """List the pods of an application, optionally of one node."""
    found: list[dict[str, Any]] = plane.get(f"{PODS}?labelSelector=app.kubernetes.io/name={app}")[
        "items"
    ]
    return [pod for pod in found if node in {"", pod["spec"].get("nodeName")}]


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return {"Ready": "True"}.items() <= {one["type"]: one["status"] for one in conditions}.items()


def wait_for_daemon(plane: ControlPlane, node: Node, *, other_than: str = "") -> str:
    """Wait until the daemon of a node is ready and holds its GPUs; return the UID of its pod."""

    def found() -> bool:
        here = pods(plane, node.name)
        return (
            len(here) == 1
            and here[0]["metadata"]["uid"] != other_than
            and ready(here[0])
            and all(node.registry.memory(uuid).used for uuid in node.uuids())
        )

    eventually(found)
    return str(pods(plane, node.name)[0]["metadata"]["uid"])


# --- admission and rights ------------------------------------------------------------------------


@pytest.mark.parametrize("folder", RENDERED)
def test_all_is_admitted_twice_without_a_warning_or_a_change(
    cluster: Kubelets, folder: str
) -> None:
    plane = cluster.plane
    for name in ("namespace", "priorityclass"):
        plane.kubectl("apply", "--server-side", "-f", DEPLOY / f"base/{name}.yaml")
    for _ in range(2):
        done = plane.kubectl("apply", "--server-side", "-k", DEPLOY / folder)
        assert done.stderr == ""
    assert plane.kubectl("diff", "--server-side", "-k", DEPLOY / folder).stdout == ""


def test_the_rules_of_taints_are_admitted(plane: ControlPlane, cluster: Kubelets) -> None:
    plane.kubectl("apply", "-f", DEPLOY / "base/namespace.yaml")
    text = (DEPLOY / "device-taints/devicetaintrule.yaml").read_text()
    text = text.replace("resource.k8s.io/v1\n", "resource.k8s.io/v1beta2\n")
    text += "---\n" + (DEPLOY / "device-taints/rbac.yaml").read_text()
    for _ in range(2):
        assert plane.kubectl("apply", "--server-side", "-f", "-", input=text).stderr == ""
    assert plane.kubectl("diff", "--server-side", "-f", "-", input=text).stdout == ""
    plane.kubectl("delete", "-f", "-", input=text, code=None)


@pytest.mark.parametrize("folder", ["examples/overlay", "examples/acceptance-overlay", "base"])
def test_only_the_level_privileged_admits_the_pods(cluster: Kubelets, folder: str) -> None:
    plane = cluster.plane
    plane.kubectl("apply", "-k", DEPLOY / "base")
    level = ("label", "namespace", "sentinel", "--overwrite")
    plane.kubectl(*level, "pod-security.kubernetes.io/warn=baseline")
    done = plane.kubectl("apply", "--server-side", "-k", DEPLOY / folder, "--force-conflicts")
    for reason in ("host namespaces (hostPID=true)", "hostPath volumes"):
        assert reason in done.stderr
    plane.kubectl(*level, "pod-security.kubernetes.io/warn-")
    # The component takes all other privileges from the pod.
    assert ("privileged (container" in done.stderr) is (folder == "base")


def rights(plane: ControlPlane, account: str, namespace: str = "sentinel") -> set[str]:
    """List what a service account may do in a namespace."""
    space = account.partition(":")[0]
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{space}", "system:authenticated")
    words = ("auth", "can-i", "--list", "--no-headers", f"--as=system:serviceaccount:{account}")
    listed = (*words, *(f"--as-group={group}" for group in groups), "-n", namespace)
    return {" ".join(line.split()) for line in plane.kubectl(*listed).stdout.splitlines()}


def grant_device_taints(plane: ControlPlane) -> None:
    """Make the service account of device_taints.py and bind its rights, as its file says."""
    plane.kubectl("apply", "-f", DEPLOY / "device-taints/rbac.yaml")
    plane.kubectl("-n", "sentinel", "create", "serviceaccount", "taints")
    names = ("sentinel-device-taints", "--serviceaccount=sentinel:taints")
    for kind in ("role", "clusterrole"):
        words = ("create", f"{kind}binding", names[0], f"--{kind}={names[0]}", names[1])
        plane.kubectl("-n", "sentinel", *words)


@pytest.fixture
def taints(cluster: Kubelets) -> Iterator[ControlPlane]:
    plane = cluster.plane
    plane.kubectl("apply", "-f", DEPLOY / "base/namespace.yaml")
    grant_device_taints(plane)
    yield plane
    for kind in ("clusterrole", "clusterrolebinding"):
        plane.kubectl("delete", kind, "sentinel-device-taints")
    plane.kubectl("delete", "devicetaintrules.v1beta2.resource.k8s.io", "--all")


def test_a_service_account_can_do_what_its_part_does_and_nothing_else(
    taints: ControlPlane, site: Site
) -> None:
    site.apply()
    anybody = rights(taints, "default:default", "default")
    assert rights(taints, "sentinel:default") == anybody, "the daemon and the acceptance"
    assert rights(taints, "sentinel:taints") - anybody == {
        "pods [] [] [list]",
        "resourceslices.resource.k8s.io [] [] [list]",
        "devicetaintrules.resource.k8s.io [] [] [list create patch delete]",
    }
    assert "pods [] [] [list]" not in rights(taints, "sentinel:taints", "default")


# --- the daemon ----------------------------------------------------------------------------------


def test_the_daemon_reaches_new_nodes_with_gpus_and_leaves_the_others(
    cluster: Kubelets, site: Site
) -> None:
    plane, first = cluster.plane, cluster.add("gpu-1")
    cluster.add("plain", gpus=range(0), runs=False)
    assert "Warning" not in site.apply()
    wait_for_daemon(plane, first)
    second = cluster.add("gpu-2")
    wait_for_daemon(plane, second)
    assert not pods(plane, "plain")
    (pod,) = pods(plane, "gpu-1")
    assert "kube-api-access" not in str(pod["spec"]["volumes"])
    # The label of the GPU operator while it upgrades the driver.
    label = "nvidia.com/gpu.deploy.client"
    plane.kubectl("label", "node", "gpu-1", f"{label}=paused-for-driver-upgrade")
    eventually(lambda: not pods(plane, "gpu-1"))
    assert first.held() == 0
    plane.kubectl("label", "node", "gpu-1", f"{label}=true", "--overwrite")
    wait_for_daemon(plane, first)


def test_a_deleted_pod_frees_its_gpus_and_the_next_one_takes_them(
    cluster: Kubelets, site: Site, record_property: Callable[[str, object], None]
) -> None:
    plane, node = cluster.plane, cluster.add("gpu-1")
    site.apply()
    uid = wait_for_daemon(plane, node)
    (pod,) = pods(plane)
    began = time.monotonic()
    plane.request("DELETE", f"{PODS}/{pod['metadata']['name']}")
    eventually(lambda: node.held() == 0)
    record_property("free_s", free_s := time.monotonic() - began)
    assert free_s < 2.0 * MACHINE_SLOWNESS
    wait_for_daemon(plane, node, other_than=uid)


def test_a_rolling_update_replaces_one_pod_after_the_other(cluster: Kubelets, site: Site) -> None:
    plane = cluster.plane
    nodes = [cluster.add(f"gpu-{number}") for number in range(2)]
    site.apply()
    before = {node.name: wait_for_daemon(plane, node) for node in nodes}
    plane.kubectl("-n", "sentinel", "set", "env", "ds/sentinel", "-c", "sentinel", "CHANGED=yes")
    waits = ("rollout", "status", "ds/sentinel", "--timeout=120s")
    watched = plane.kubectl("-n", "sentinel", *waits).stdout
    assert "1 out of 2 new pods have been updated" in watched
    assert "successfully rolled out" in watched
    for node in nodes:
        wait_for_daemon(plane, node, other_than=before[node.name])


def test_a_hundred_nodes_at_once(cluster: Kubelets, site: Site) -> None:
    plane = cluster.plane
    names = [f"n{number:03}".ljust(63, "x") for number in range(100)]
    for name in names:
        cluster.add(name, runs=False)
    site.apply()
    status = "/apis/apps/v1/namespaces/sentinel/daemonsets/sentinel/status"
    eventually(lambda: plane.get(status)["status"].get("numberReady") == 100)
    site.accept()
    site.accept()
    jobs = plane.get(JOBS)["items"]
    assert len({job["metadata"]["name"] for job in jobs}) == 200
    eventually(lambda: len(pods(plane, app="sentinel-acceptance")) == 200)
    eventually(
        lambda: all("nodeName" in pod["spec"] for pod in pods(plane, app="sentinel-acceptance"))
    )
    meant = {
        job["metadata"]["name"]: job["metadata"]["annotations"]["sentinel/node"] for job in jobs
    }
    for pod in pods(plane, app="sentinel-acceptance"):
        assert pod["spec"]["nodeName"] == meant[pod["metadata"]["labels"]["job-name"]]


# --- the acceptance ------------------------------------------------------------------------------


def give_plan(node: Node, workload: str, seconds: int = 2) -> None:
    phase = ("first", f"bad_workloads:{workload}", f"seconds = {seconds}")
    (node.folder / "plan.toml").write_text(plan_of("short", phase))


def ended(plane: ControlPlane) -> dict[str, list[str]]:
    """List how the Jobs of each node ended, if they did: Complete or Failed."""
    found: dict[str, list[str]] = {}
    for job in plane.get(JOBS)["items"]:
        node = found.setdefault(job["metadata"]["annotations"]["sentinel/node"], [])
        conditions = job["status"].get("conditions", [])
        node += [one["type"] for one in conditions if one["type"] in {"Complete", "Failed"}]
    return found


def events_of(node: Node) -> str:
    """Read the events of all runs of a node."""
    files = (node.folder / "root/var/lib/sentinel/runs").glob("*/events.jsonl")
    return "".join(file.read_text() for file in files)


def test_an_evicted_burn_in_is_incomplete_and_the_next_pod_goes_on(
    cluster: Kubelets, site: Site
) -> None:
    plane, node = cluster.plane, cluster.add("n" * 63)
    give_plan(node, "checks_results", seconds=8)
    site.with_plan().accept()
    eventually(lambda: '"stressor.ready"' in events_of(node))
    (pod,) = pods(plane, app="sentinel-acceptance")
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    plane.request("POST", f"{PODS}/{name}/eviction", eviction)
    eventually(lambda: ended(plane) == {node.name: ["Complete"]})
    message = node.folder / "pods" / pod["metadata"]["uid"] / "burnin" / "message"
    assert json.loads(message.read_text())["verdict"] == "INCOMPLETE"
    (job,) = plane.get(JOBS)["items"]
    assert not job["status"].get("failed"), "an eviction is none of the seven tries"
    (report,) = (node.folder / "root/var/lib/sentinel/runs").glob("*/report.json")
    assert len(json.loads(report.read_text())["run"]["resumed"]) == 1


def test_two_runs_at_once_on_one_node_both_end(cluster: Kubelets, site: Site) -> None:
    plane, node = cluster.plane, cluster.add("gpu-1")
    give_plan(node, "checks_results", seconds=4)
    site.with_plan().accept()
    eventually(lambda: '"stressor.ready"' in events_of(node))
    site.accept()
    eventually(lambda: ended(plane) == {node.name: ["Complete", "Complete"]})
