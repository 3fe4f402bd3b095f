"""A stand-in for the kubelets of a cluster: nodes, and their pods as processes of this machine.

It registers nodes and does with pods what a kubelet does: init containers, startup probes, hooks,
signals, termination messages. It has no device plugin and no control groups, renews no lease and
restarts no container.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.host.simulation import Registry
from tests.harness.control_plane import ApiError, ControlPlane
from tests.harness.pod_containers import Containers, prepare_node
from tests.harness.timing import TIMEOUT_S

#: How often it looks at a probe, in seconds; the periods of the manifests are for real nodes.
_PROBE_S = 0.5


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Node:
    """A node of the stand-in."""

    name: str
    folder: Path
    #: The indices of its simulated GPUs, whose UUIDs other nodes have, too.
    gpus: range
    #: Whether pods are processes; otherwise they are reported as running.
    runs: bool

    @property
    def registry(self) -> Registry:
        """The simulated GPUs."""
        return Registry(self.folder / "gpus")

    def held(self) -> int:
        """Read how much memory of the GPUs is used, in bytes."""
        return sum(self.registry.memory(uuid).used for uuid in self.uuids())

    def uuids(self) -> list[str]:
        """List the UUIDs of the GPUs."""
        return [gpu.uuid for gpu in self.registry.gpus() if gpu.index in self.gpus]


class Kubelets:
    """The kubelets of all nodes.

    Args:
        plane: The control plane.
        folder: For the files of the nodes.
        environment: Variables of every container, as of an image.
    """

    def __init__(self, plane: ControlPlane, folder: Path, environment: Mapping[str, str]) -> None:
        self.plane = plane
        self.nodes: dict[str, Node] = {}
        self.environment = environment
        self._folder = folder
        self._pods: dict[str, _Pod] = {}
        self._made = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Start to watch pods."""
        self._thread.start()

    def stop(self) -> None:
        """End all pods at once."""
        self._end.set()
        for pod in self._pods.values():
            pod.kill()
        self._thread.join(TIMEOUT_S)

    def add(self, name: str, *, gpus: range = range(2), runs: bool = True) -> Node:
        """Register a node, which is ready."""
        self._made += 1
        node = Node(name, self._folder / str(self._made), gpus, runs)
        if runs:
            prepare_node(node.folder, gpus)
        self.nodes[name] = node
        present = {"nvidia.com/gpu.present": "true"} if gpus else {}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name[:63], **present}}
        self.plane.request("POST", "/api/v1/nodes", {"metadata": meta})
        size = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(len(gpus))}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        ready |= {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
        status = {"capacity": size, "allocatable": size, "conditions": [ready]}
        self.plane.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        return node

    def remove(self, name: str) -> None:
        """Cut the power of a node, and take it and its pods out of the cluster."""
        node = self.nodes.pop(name)
        self.plane.request("DELETE", f"/api/v1/nodes/{name}")
        for pod in self._pods.values():
            if pod.node is node:
                pod.vanish()

    def execute(self, pod: Mapping[str, Any], container: str, *command: str) -> str:
        """Run a command in a container of a pod, which must succeed; return its output."""
        found = self._pods[pod["metadata"]["uid"]].containers
        (spec,) = [one for one in pod["spec"]["containers"] if one["name"] == container]
        done = found.execute(spec, list(command))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def print_logs(self) -> None:
        """Print the ends of the logs of all containers."""
        for file in sorted(self._folder.glob("*/pods/*/*/log")):
            sys.stdout.write(f"--- {file}\n{file.read_text(errors='replace')[-1500:]}\n")

    def _watch(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, ApiError, ValueError):
                self._watch_once()

    def _watch_once(self) -> None:
        chosen = "/api/v1/pods?fieldSelector=spec.nodeName!="
        found = self.plane.get(chosen)
        for pod in found["items"]:
            self._see(pod)
        version = found["metadata"]["resourceVersion"]
        path = f"{chosen}&watch=1&timeoutSeconds=5&resourceVersion={version}"
        with contextlib.closing(self.plane.connect()) as connection:
            connection.request("GET", path, headers={"Authorization": "Bearer admin"})
            for line in connection.getresponse():
                event = json.loads(line)
                if event["type"] in {"ADDED", "MODIFIED"}:
                    self._see(event["object"])

    def _see(self, found: dict[str, Any]) -> None:
        uid, name = found["metadata"]["uid"], found["spec"]["nodeName"]
        if name not in self.nodes or self._end.is_set():
            return
        if uid not in self._pods:
            if found["status"].get("phase") in {"Succeeded", "Failed"}:
                return
            self._pods[uid] = _Pod(self, self.nodes[name], found)
        if found["metadata"].get("deletionTimestamp"):
            self._pods[uid].delete(found["metadata"].get("deletionGracePeriodSeconds", 0))


class _Pod:
    """One pod of a node.

    Args:
        kubelets: All kubelets.
        node: The node.
        pod: The object as it was first seen.
    """

    def __init__(self, kubelets: Kubelets, node: Node, pod: dict[str, Any]) -> None:
        self._kubelets, self.node, self._spec = kubelets, node, pod["spec"]
        self._meta = pod["metadata"]
        self._path = f"/api/v1/namespaces/{self._meta['namespace']}/pods/{self._meta['name']}"
        self.containers = Containers(kubelets.plane.get, node.folder, pod, kubelets.environment)
        self._deleting = False
        threading.Thread(target=self._live, daemon=True).start()

    # --- the life of a pod ---

    def _live(self) -> None:
        try:
            if self.node.runs:
                self._run()
            else:
                self._report("Running", ready=True)
        except Exception as error:  # noqa: BLE001 - a thread has no test to fail
            self._report("Failed", reason=f"{type(error).__name__}: {error}"[:400])

    def _run(self) -> None:
        for container in self._spec.get("initContainers", []):
            code = self.containers.start(container).wait(TIMEOUT_S)
            del self.containers.running[container["name"]]
            if code:
                log = self.containers.log(container["name"])
                self._report("Failed", reason=f"{container['name']}: {code}: {log}"[:400])
                return
        for container in self._spec["containers"]:
            self.containers.start(container)
        self._report("Running")
        probes = [one for one in self._spec["containers"] if "startupProbe" in one]
        while not all(self._started(one) for one in probes):
            if self._over():
                break
            time.sleep(_PROBE_S)
        else:
            self._report("Running", ready=True)
        for process in self.containers.running.values():
            process.wait()
        if not self._deleting:
            self._report("Failed" if self._codes() else "Succeeded")

    def _started(self, container: dict[str, Any]) -> bool:
        command = container["startupProbe"]["exec"]["command"]
        return self.containers.execute(container, command).returncode == 0

    def _over(self) -> bool:
        return any(process.poll() is not None for process in self.containers.running.values())

    def _codes(self) -> int:
        return sum(abs(process.returncode or 0) for process in self.containers.running.values())

    def delete(self, grace: float) -> None:
        """End the pod as asked, once: the hooks, SIGTERM, and SIGKILL when the time is over."""
        if not self._deleting:
            self._deleting = True
            threading.Thread(target=self._delete, args=(grace,), daemon=True).start()

    def _delete(self, grace: float) -> None:
        began = time.monotonic()
        for container in self._spec["containers"]:
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec")
            if hook and container["name"] in self.containers.running:
                self.containers.execute(container, hook["command"])
        for process in self.containers.running.values():
            process.terminate()
        for process in self.containers.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, grace - (time.monotonic() - began)))
        self.kill()
        with contextlib.suppress(ApiError, OSError):
            self._report("Failed" if self._codes() else "Succeeded")
            self._kubelets.plane.request("DELETE", self._path, {"gracePeriodSeconds": 0})

    def vanish(self) -> None:
        """Kill the containers and remove the pod, as after the end of its node."""
        self._deleting = True
        self.kill()
        with contextlib.suppress(ApiError):
            self._kubelets.plane.request("DELETE", self._path, {"gracePeriodSeconds": 0})

    def kill(self) -> None:
        """Kill the containers."""
        self.containers.kill()

    # --- what is reported ---

    def _report(self, phase: str, *, ready: bool = False, reason: str = "") -> None:
        yes = "True" if ready else "False"
        conditions = [{"type": name, "status": yes} for name in ("Ready", "ContainersReady")]
        status = {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [
                self._status(one, ready=ready) for one in self._spec["containers"]
            ],
            "message": reason,
            "startTime": _now(),
            "podIP": "127.0.0.1",
        }
        with contextlib.suppress(OSError):
            self._kubelets.plane.patch(f"{self._path}/status", {"status": status})

    def _status(self, container: Mapping[str, Any], *, ready: bool) -> dict[str, Any]:
        name, process = container["name"], self.containers.running.get(container["name"])
        state: dict[str, Any] = {"running": {"startedAt": _now()}}
        if process is not None and process.poll() is not None:
            code = process.returncode
            message = self.containers.message(name)
            if not message and code and container.get("terminationMessagePolicy", "File") != "File":
                message = self.containers.log(name)[-2048:]
            ended = {"exitCode": code if code >= 0 else 128 - code, "message": message}
            state = {"terminated": ended | {"startedAt": _now(), "finishedAt": _now()}}
        elif process is None and self.node.runs:
            state = {"waiting": {"reason": "PodInitializing"}}
        image = {"image": container["image"], "imageID": "", "restartCount": 0}
        return {"name": name, "ready": ready, "state": state, **image}


@contextlib.contextmanager
def kubelets(
    plane: ControlPlane, folder: Path, environment: Mapping[str, str]
) -> Iterator[Kubelets]:
    """Run kubelets until the block ends."""
    found = Kubelets(plane, folder, environment)
    found.start()
    try:
        yield found
    finally:
        found.stop()
