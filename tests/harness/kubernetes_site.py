"""A site with Sentinel on a real control plane: its overlays, what it applies, and its pods."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.harness.control_plane import ControlPlane
from tests.harness.gpu_environment import ROOT
from tests.harness.kubelet import Node
from tests.harness.programs import documented_commands, run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import MACHINE_SLOWNESS, TIMEOUT_S

PODS = "/api/v1/namespaces/sentinel/pods"
JOBS = "/apis/batch/v1/namespaces/sentinel/jobs"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
#: What the cluster has before Sentinel, by the GPU operator.
RUNTIME_CLASS = """\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
"""
#: A plan of seconds is N/A, which a strict Job does not accept.
PLAN_OF_THE_NODE = """\
patches:
  - target: {kind: Job}
    patch: |-
      - op: replace
        path: /spec/template/spec/containers/0/args
        value: [--plan, /media/plan.toml, --fail-fast]
  - target: {kind: Job}
    patch: |-
      apiVersion: batch/v1
      kind: Job
      metadata: {name: any}
      spec:
        template:
          spec:
            containers:
              - name: burnin
                env: [{name: SENTINEL_STRICT, value: "off"}]
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

    def apply(self) -> str:
        """Apply the daemon's overlay as documented; return what kubectl warned of."""
        return self.plane.kubectl("apply", "-k", self.examples / "site").stderr

    def with_plan(self) -> Site:
        """Let Jobs of the acceptance take the plan of the node."""
        with (self.examples / "site-acceptance" / "kustomization.yaml").open("a") as file:
            file.write(PLAN_OF_THE_NODE)
        return self

    def tainted(self) -> set[str]:
        """Run device_taints.py with its own rights; return the names of the rules afterwards."""
        token = self.plane.kubectl("-n", "sentinel", "create", "token", "taints").stdout
        config = json.loads(self.plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        (self.folder / "taints.json").write_text(json.dumps(config))
        program = self.folder / "deploy/kubernetes/device-taints/device_taints.py"
        kubectl = f"kubectl --kubeconfig {self.folder}/taints.json"
        words = ("--apply", "--api-version", "resource.k8s.io/v1beta2", "--kubectl", kubectl)
        done = run_program(sys.executable, program, *words, env=self.plane.environment)
        assert done.returncode == 0, done.stderr
        return {rule["metadata"]["name"] for rule in self.plane.get(RULES)["items"]}

    def accept(self) -> None:
        """Run the documented commands that make a Job for each node with GPUs."""
        commands = documented_commands("guides/kubernetes.md", "acceptance")
        words = ("sh", "-euc", commands)
        limit_s = 5 * TIMEOUT_S  # a hundred nodes take half a minute
        run_program(
            *words, cwd=self.folder, env=self.plane.environment, check=True, timeout=limit_s
        )


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
