"""The manifests on a real control plane, whose kubelets and GPUs are stand-ins."""

from __future__ import annotations

import sys
import time

import pytest

from tests.harness.control_plane import (
    ControlPlane,
    needs_control_plane,
)
from tests.harness.kubelet import Kubelets
from tests.harness.kubernetes_cluster import DEPLOY, RENDERED, overlay_with
from tests.harness.kubernetes_site import JOBS, PODS, Site, pods, wait_for_daemon
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

DAEMON_SETS = "/apis/apps/v1/namespaces/sentinel/daemonsets"
#: The Prometheus operator's definition, without its schema.
POD_MONITORS = """\
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
pytestmark = [pytest.mark.long, needs_control_plane]


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


def test_the_documented_overlay_needs_no_edit_but_the_image(cluster: Kubelets, site: Site) -> None:
    plane = cluster.plane
    for kind, name in (("namespace", "sentinel"), ("priorityclass", "sentinel-idle")):
        plane.kubectl("delete", kind, name, "--ignore-not-found")
    file = site.examples / "site" / "kustomization.yaml"
    edited = file.read_text().replace("registry.example/site/sentinel", "registry.site/sentinel")
    file.write_text(edited)
    assert site.apply() == ""
    (found,) = plane.get(DAEMON_SETS)["items"]
    containers = found["spec"]["template"]["spec"]["containers"]
    assert {one["image"].partition(":")[0] for one in containers} == {"registry.site/sentinel"}


def test_the_components_for_operators_are_admitted(cluster: Kubelets, site: Site) -> None:
    plane = cluster.plane
    plane.kubectl("apply", "-f", "-", input=POD_MONITORS)
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all")
    file = site.examples / "site" / "kustomization.yaml"
    file.write_text(file.read_text().replace("# - ../../components", "- ../../components"))
    for _ in range(2):
        done = plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", file.parent)
        assert done.stderr == ""
    assert "nvidia.com/gpu.deploy.client" in str(plane.get(DAEMON_SETS))


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
    # The kernel's log is in privileged containers only.
    assert ("privileged (container" in done.stderr) is ("acceptance" in folder)


def rights(plane: ControlPlane, account: str, namespace: str = "sentinel") -> set[str]:
    """List what a service account may do in a namespace."""
    space = account.partition(":")[0]
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{space}", "system:authenticated")
    words = ("auth", "can-i", "--list", "--no-headers", f"--as=system:serviceaccount:{account}")
    listed = (*words, *(f"--as-group={group}" for group in groups), "-n", namespace)
    return {" ".join(line.split()) for line in plane.kubectl(*listed).stdout.splitlines()}


def test_a_service_account_can_do_what_its_part_does_and_nothing_else(
    taints: ControlPlane, site: Site
) -> None:
    site.apply()
    every_account = rights(taints, "default:default", "default")
    assert rights(taints, "sentinel:default") == every_account, "the daemon and the acceptance"
    assert rights(taints, "sentinel:taints") - every_account == {
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
    assert "PodSecurity" not in site.apply()  # another test may have applied it server-side
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


def test_only_with_the_component_a_tainted_node_gets_daemon_and_acceptance(
    cluster: Kubelets, site: Site
) -> None:
    plane = cluster.plane
    cluster.add("gpu-1", runs=False)
    plane.kubectl("taint", "node", "gpu-1", "site/repair=yes:NoExecute")
    site.apply()
    site.accept()

    eventually(lambda: "untolerated taint" in str(pods(plane, app="sentinel-acceptance")))
    assert not pods(plane)
    for name in ("site", "site-acceptance"):
        overlay_with(site.folder, name, "tolerations")
    site.apply()
    site.accept()
    eventually(lambda: pods(plane, "gpu-1") and pods(plane, "gpu-1", "sentinel-acceptance"))


def test_a_deleted_pod_frees_its_gpus_and_the_next_one_takes_them(
    cluster: Kubelets, site: Site
) -> None:
    plane, node = cluster.plane, cluster.add("gpu-1")
    site.apply()
    uid = wait_for_daemon(plane, node)
    (pod,) = pods(plane)
    began = time.monotonic()
    plane.request("DELETE", f"{PODS}/{pod['metadata']['name']}")
    eventually(lambda: node.held() == 0)
    free_s = time.monotonic() - began
    sys.stdout.write(f"the GPUs were free after {free_s:.2f} s\n")
    assert free_s < pod["spec"]["terminationGracePeriodSeconds"], "not by SIGKILL"
    wait_for_daemon(plane, node, other_than=uid)


def test_a_rolling_update_replaces_one_pod_after_the_other(cluster: Kubelets, site: Site) -> None:
    plane = cluster.plane
    nodes = [cluster.add(f"gpu-{number}") for number in range(2)]
    site.apply()
    before = {node.name: wait_for_daemon(plane, node) for node in nodes}
    plane.kubectl("-n", "sentinel", "set", "env", "ds/sentinel", "-c", "sentinel", "CHANGED=yes")
    waits = ("-n", "sentinel", "rollout", "status", "ds/sentinel")
    watched = plane.kubectl(*waits, timeout=5 * TIMEOUT_S).stdout  # two pods end and start
    assert "1 out of 2 new pods have been updated" in watched
    assert "successfully rolled out" in watched
    for node in nodes:
        wait_for_daemon(plane, node, other_than=before[node.name])


def test_an_update_gives_privileges_and_takes_them_back(cluster: Kubelets, site: Site) -> None:
    plane, node = cluster.plane, cluster.add("gpu-1")
    plane.kubectl("apply", "-k", DEPLOY / "base")
    uid = wait_for_daemon(plane, node)
    line = "- ../../components/privileged"
    file = site.examples / "site" / "kustomization.yaml"
    file.write_text(file.read_text().replace(f"# {line}", line))
    site.apply()
    uid = wait_for_daemon(plane, node, other_than=uid)
    (pod,) = pods(plane)
    assert cluster.execute(pod, "sentinel", "id", "-u") == "0\n"
    plane.kubectl("apply", "-k", DEPLOY / "base")
    wait_for_daemon(plane, node, other_than=uid)
    (pod,) = pods(plane)
    assert cluster.execute(pod, "sentinel", "id", "-u") == "10001\n"


def test_a_hundred_nodes_at_once(cluster: Kubelets, site: Site) -> None:
    plane = cluster.plane
    names = [f"n{number:03}".ljust(63, "x") for number in range(100)]
    for name in names:
        cluster.add(name, runs=False)
    site.apply()
    eventually(lambda: plane.get(DAEMON_SETS)["items"][0]["status"].get("numberReady") == 100)
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
