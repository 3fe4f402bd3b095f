"""The acceptance Jobs and their verdicts on a real control plane."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import plan_of
from tests.harness.control_plane import (
    TAINT_GATES,
    ControlPlane,
    find_program,
    needs_control_plane,
    needs_node_problem_detector,
)
from tests.harness.gpu_environment import foreign_process
from tests.harness.kubelet import Kubelets, Node
from tests.harness.kubernetes_cluster import DEPLOY, overlay_with
from tests.harness.kubernetes_site import JOBS, PODS, Site, pods, wait_for_daemon
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, needs_control_plane]

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
      automountServiceAccountToken: false
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


#: The time for a burn-in that passes, in seconds.
PASS_S = 60 + 2 * TIMEOUT_S
FAULTY = "faulty_until_repaired"


def give_plan(node: Node, workload: str, seconds: int = 2) -> None:
    phase = ("first", f"bad_workloads:{workload}", f"seconds = {seconds}")
    (node.folder / "plan.toml").write_text(plan_of("short", phase))


def give_passing_plan(node: Node) -> None:
    """Repair a node, and let its burn-ins do enough for a PASS, by the real torch.

    It includes the work that failed, without which a FAIL stands.
    """
    (node.folder / "repaired").touch()
    (node.folder / "python" / "torch.py").unlink()
    failed = ("first", f"bad_workloads:{FAULTY}", "seconds = 2")
    text = plan_of("minute", failed, ("second", "gemm", "seconds = 61"))
    (node.folder / "plan.toml").write_text(text)


def ended(plane: ControlPlane) -> dict[str, list[str]]:
    """List how the Jobs of each node ended, if they did: Complete or Failed."""
    found: dict[str, list[str]] = {}
    for job in plane.get(JOBS)["items"]:
        node = found.setdefault(job["metadata"]["annotations"]["sentinel/node"], [])
        conditions = job["status"].get("conditions", [])
        node += [one["type"] for one in conditions if one["type"] in {"Complete", "Failed"}]
    return found


def exit_codes(plane: ControlPlane) -> list[int]:
    """List how the burn-ins of all pods ended that did."""
    states = [
        pod["status"]["containerStatuses"][0]["state"]
        for pod in pods(plane, app="sentinel-acceptance")
        if "containerStatuses" in pod["status"]
    ]
    return [state["terminated"]["exitCode"] for state in states if "terminated" in state]


def started(node: Node) -> list[Path]:
    """List the runs of a node that have begun."""
    return list((node.folder / "root/var/lib/sentinel/runs").glob("*/events.jsonl"))


def events_of(node: Node) -> str:
    """Read the events of all runs of a node."""
    return "".join(file.read_text() for file in started(node))


def test_an_evicted_burn_in_is_incomplete_and_the_next_pod_goes_on(
    cluster: Kubelets, site: Site
) -> None:
    plane, node = cluster.plane, cluster.add("n" * 63)
    give_plan(node, "checks_results")
    # The foreign process keeps the run from its end, however slow the host is.
    with foreign_process(node.registry, 1):
        site.with_plan().accept()
        eventually(lambda: '"stressor.ready"' in events_of(node))
        (pod,) = pods(plane, app="sentinel-acceptance")
        name = pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        plane.request("POST", f"{PODS}/{name}/eviction", eviction)
        message = node.folder / "pods" / pod["metadata"]["uid"] / "burnin" / "message"
        eventually(message.read_text)
        begun = events_of(node).count('"stressor.ready"')
    eventually(lambda: events_of(node).count('"stressor.ready"') > begun)
    eventually(lambda: ended(plane) == {node.name: ["Complete"]})
    assert json.loads(message.read_text())["verdict"] == "INCOMPLETE"
    (job,) = plane.get(JOBS)["items"]
    assert not job["status"].get("failed"), "an eviction is none of the seven tries"
    (report,) = (node.folder / "root/var/lib/sentinel/runs").glob("*/report.json")
    assert len(json.loads(report.read_text())["run"]["resumed"]) == 1


@pytest.mark.parametrize("beside_a_daemon", [False, True])
def test_two_runs_at_once_on_one_node_both_end(
    cluster: Kubelets, site: Site, *, beside_a_daemon: bool
) -> None:
    plane, node = cluster.plane, cluster.add("gpu-1")
    if beside_a_daemon:
        site.apply()
        wait_for_daemon(plane, node)
    give_plan(node, "checks_results")
    with foreign_process(node.registry, 1):
        site.with_plan().accept()
        eventually(lambda: '"stressor.ready"' in events_of(node))
        site.accept()
        eventually(lambda: ExitCode.HELD in exit_codes(plane))
    eventually(lambda: ended(plane) == {node.name: ["Complete", "Complete"]})
    assert exit_codes(plane).count(0) == 2
    assert set(exit_codes(plane)) == {0, ExitCode.HELD}
    # A burn-in of hours would use up the seven tries of the other Job in ten minutes.
    assert not any(job["status"].get("failed") for job in plane.get(JOBS)["items"])


def test_a_node_that_is_not_as_the_overlay_expects_fails(cluster: Kubelets, site: Site) -> None:
    plane, node = cluster.plane, cluster.add("gpu-1")
    give_plan(node, "checks_results")
    overlay_with(site.folder, "site-acceptance", "expectation")
    site.with_plan().accept()
    eventually(lambda: ended(plane) == {node.name: ["Failed"]})
    assert exit_codes(plane) == [ExitCode.FAIL], "no other try"
    (report,) = (node.folder / "root/var/lib/sentinel/runs").glob("*/report.json")
    assert "2 of 3 are there" in report.read_text()


def test_a_job_ends_at_its_deadline_and_is_removed_when_its_verdict_is_old(
    cluster: Kubelets, site: Site
) -> None:
    plane, node = cluster.plane, cluster.add("gpu-1")
    give_plan(node, "checks_results", seconds=3000)
    site.with_plan().accept()
    eventually(lambda: '"stressor.ready"' in events_of(node))
    (job,) = plane.get(JOBS)["items"]
    ends = {"activeDeadlineSeconds": 86400, "ttlSecondsAfterFinished": 7 * 86400}
    assert ends.items() <= job["spec"].items()
    plane.patch(f"{JOBS}/{job['metadata']['name']}", {"spec": dict.fromkeys(ends, 1)})
    eventually(lambda: not plane.get(JOBS)["items"])
    events = plane.get("/api/v1/namespaces/sentinel/events")["items"]
    reasons = [one["reason"] for one in events if one["involvedObject"]["kind"] == "Job"]
    assert "DeadlineExceeded" in reasons
    eventually(lambda: not pods(plane, app="sentinel-acceptance"))
    assert node.held() == 0
    (report,) = (node.folder / "root/var/lib/sentinel/runs").glob("*/report.json")
    assert json.loads(report.read_text())["verdict"] == "INCOMPLETE"


def publish_devices(plane: ControlPlane, node: Node) -> None:
    """Publish the GPUs of a node as NVIDIA's DRA driver does."""
    devices = [
        {"name": f"gpu-{index}", "attributes": {"uuid": {"string": uuid}}}
        for index, uuid in enumerate(node.uuids())
    ]
    pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node.name, "pool": pool, "devices": devices}
    plane.request(
        "POST",
        "/apis/resource.k8s.io/v1/resourceslices",
        {"metadata": {"name": f"{node.name}-gpus"}, "spec": spec},
    )


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/sentinel/resourceclaims"
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: device.driver == "gpu.nvidia.com"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one, namespace: sentinel}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: sentinel, labels: {app.kubernetes.io/name: job}}
spec:
  automountServiceAccountToken: false
  nodeSelector: {kubernetes.io/hostname: NODE}
  restartPolicy: Never
  resourceClaims: [{name: gpu, resourceClaimName: one}]
  containers:
    - {name: job, image: job, command: ["true"], resources: {claims: [{name: gpu}]}}
"""


def test_a_claim_gets_a_faulty_gpu_only_after_it_has_passed(
    taints: ControlPlane, cluster: Kubelets, site: Site
) -> None:
    plane, node = taints, cluster.add("claimed", gpus=range(4, 5))
    publish_devices(plane, node)
    give_plan(node, FAULTY)
    site.with_plan().accept()
    eventually(lambda: ended(plane) == {node.name: ["Failed"]})
    assert site.tainted() == {f"sentinel-{uuid.lower()}" for uuid in node.uuids()}
    scheduler = plane.start_scheduler(TAINT_GATES)
    try:
        plane.kubectl("apply", "-f", "-", input=CLAIM.replace("NODE", node.name))

        def refused() -> bool:
            (pod,) = pods(plane, app="job")
            said = [one.get("message", "") for one in pod["status"].get("conditions", [])]
            return "cannot allocate all claims" in str(said)

        eventually(lambda: scheduler.poll() is not None or refused())
        if scheduler.poll() is not None:
            pytest.skip("this kube-scheduler ends at a DeviceTaintRule")
        plane.kubectl("-n", "sentinel", "delete", "jobs", "--all")
        give_passing_plan(node)
        site.accept()
        eventually(lambda: ended(plane) == {node.name: ["Complete"]}, PASS_S)
        assert "allocation" not in plane.get(CLAIMS)["items"][0].get("status", {})
        assert site.tainted() == set()
        eventually(lambda: "allocation" in plane.get(CLAIMS)["items"][0].get("status", {}))
    finally:
        plane.start_scheduler()
        plane.kubectl("-n", "sentinel", "delete", "resourceclaims", "--all", "--wait=false")


def condition(plane: ControlPlane, node: Node) -> str:
    """Read the condition of a node, or an empty string before there is one."""
    conditions = plane.get(f"/api/v1/nodes/{node.name}")["status"]["conditions"]
    return next((one["status"] for one in conditions if one["type"] == "GpuBurnInFailed"), "")


def start_node_problem_detector(cluster: Kubelets) -> None:
    plane = cluster.plane
    config = plane.kubectl("config", "view", "--raw", "--flatten", "-o", "json").stdout
    for node in cluster.nodes.values():
        (node.folder / "kubeconfig").write_text(config)
    monitor = plane.kubectl("kustomize", DEPLOY / "node-problem-detector").stdout
    # Half a minute is for real nodes.
    monitor = monitor.replace("namespace: kube-system", "namespace: sentinel")
    plane.kubectl("apply", "-f", "-", input=monitor.replace('"30s"', '"1s"'))
    server = json.loads(config)["clusters"][0]["cluster"]["server"]
    text = NODE_PROBLEM_DETECTOR.replace("SERVER", server)
    text = text.replace("PROGRAM", str(find_program("node-problem-detector")))
    plane.kubectl("apply", "-f", "-", input=text)


@needs_node_problem_detector
def test_the_verdict_of_a_job_is_the_condition_and_the_taint_of_its_node(
    taints: ControlPlane, cluster: Kubelets, site: Site
) -> None:
    plane = taints
    good, bad = cluster.add("good"), cluster.add("bad", gpus=range(2, 4))
    site.with_plan().apply()
    start_node_problem_detector(cluster)
    for node in (good, bad):
        publish_devices(plane, node)
        wait_for_daemon(plane, node)
    give_plan(good, "checks_results")
    give_plan(bad, FAULTY)
    site.accept()
    eventually(lambda: ended(plane) == {"good": ["Complete"], "bad": ["Failed"]})
    assert site.tainted() == {f"sentinel-{uuid.lower()}" for uuid in bad.uuids()}
    eventually(lambda: (condition(plane, good), condition(plane, bad)) == ("Unknown", "True"))

    # Cut short, the next burn-in proves nothing.
    plane.kubectl("-n", "sentinel", "delete", "jobs", "--all")
    give_plan(bad, "checks_results", seconds=3000)
    give_plan(good, "checks_results", seconds=3000)
    site.accept()
    eventually(lambda: len(started(good)) == len(started(bad)) == 2)
    plane.kubectl("-n", "sentinel", "delete", "jobs", "--all")
    eventually(lambda: not pods(plane, app="sentinel-acceptance"))
    assert len(site.tainted()) == 2

    # The repair is told to the daemon, and the GPUs pass.
    give_passing_plan(bad)
    give_passing_plan(good)
    assert condition(plane, bad) == "True"
    (pod,) = pods(plane, "bad")
    for uuid in bad.uuids():
        words = ("health", "--acknowledge", uuid, "--reason", "replaced")
        cluster.execute(pod, "sentinel", "sentinel", *words)
    site.accept()
    eventually(lambda: ended(plane) == {"good": ["Complete"], "bad": ["Complete"]}, PASS_S)
    assert site.tainted() == set()
    eventually(lambda: condition(plane, good) == condition(plane, bad) == "False")
