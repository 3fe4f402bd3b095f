#!/usr/bin/env python3
"""Keep pods from the GPUs that failed their acceptance: a DeviceTaintRule for each.

Reads the verdicts from the termination messages of the acceptance Jobs' pods, finds the device of
each GPU by its UUID in the ResourceSlices of the DRA driver, and prints the rules, or applies them
with --apply. A rule of an earlier run is removed when the GPU has passed since; rules that others
made are never touched. An incomplete burn-in changes nothing.

Needs Kubernetes with DeviceTaintRule (resource.k8s.io/v1 since 1.37; see --api-version), a DRA
driver that publishes the attribute `uuid`, kubectl, and the rights of rbac.yaml. The standard
library only. Exit code 1 if a faulty GPU is in no ResourceSlice, 2 if kubectl failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

LABELS = {"app.kubernetes.io/managed-by": "sentinel"}
#: On a rule: the UUID of the GPU.
UUID = "sentinel/gpu-uuid"
TAINT = "sentinel/gpu-burnin-failed"
PODS = "app.kubernetes.io/name=sentinel-acceptance"
#: The verdicts after which a GPU may be used again.
GOOD = frozenset({"PASS", "WARN"})


@dataclass(frozen=True)
class Device:
    """A device as a rule selects it."""

    driver: str
    pool: str
    name: str


class KubectlError(Exception):
    """A call of kubectl has failed."""


class Cluster:
    """The calls of kubectl.

    Args:
        kubectl: The command with its global options.
        api_version: That of DeviceTaintRule.
        namespace: That of the acceptance Jobs.
    """

    def __init__(self, kubectl: list[str], api_version: str, namespace: str) -> None:
        self._kubectl = kubectl
        self._namespace = namespace
        self.api_version = api_version
        group, _, version = api_version.partition("/")
        self._rules = f"devicetaintrules.{version}.{group}"

    def pods(self) -> list[dict[str, Any]]:
        """Read the pods of the acceptance Jobs."""
        return self._get("pods", "--namespace", self._namespace, "--selector", PODS)

    def slices(self) -> list[dict[str, Any]]:
        """Read all ResourceSlices."""
        return self._get("resourceslices")

    def rules(self) -> list[dict[str, Any]]:
        """Read the rules that this program made."""
        label = ",".join(f"{name}={value}" for name, value in LABELS.items())
        return self._get(self._rules, "--selector", label)

    def apply(self, rules: list[dict[str, Any]]) -> None:
        """Create or change rules."""
        text = "\n---\n".join(map(json.dumps, rules))
        words = ["apply", "--server-side", "--force-conflicts", "--field-manager=sentinel"]
        sys.stderr.write(self._run([*words, "-f", "-"], text))

    def delete(self, names: list[str]) -> None:
        """Delete rules by name."""
        sys.stderr.write(self._run(["delete", self._rules, "--ignore-not-found", *names]))

    def _get(self, *words: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self._run(["get", *words, "-o", "json"]))["items"]
        return items

    def _run(self, words: list[str], text: str | None = None) -> str:
        command = [*self._kubectl, *words]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        except OSError as error:
            raise KubectlError(f"{command[0]}: {error.strerror}") from None
        if done.returncode != 0:
            raise KubectlError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def newest_verdicts(pods: Iterable[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Find the newest verdict of each GPU and its reason, by UUID."""
    found: dict[str, tuple[str, str]] = {}
    for _, summary in sorted(_summaries(pods), key=lambda one: one[0]):
        for gpu in summary["gpus"]:
            found[str(gpu["uuid"])] = (str(gpu["verdict"]), str(gpu.get("reason", "")))
    return found


def _summaries(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the end and the summary of each pod that has ended with one."""
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses", []):
            ended = container.get("state", {}).get("terminated") or {}
            try:
                summary = json.loads(ended.get("message", ""))
            except ValueError:
                continue  # the end of a log, or nothing: no verdict
            if isinstance(summary, dict) and summary.get("schema_version") == 1:
                yield str(ended.get("finishedAt", "")), summary


def devices(slices: Iterable[dict[str, Any]]) -> dict[str, Device]:
    """Find the device of each GPU, by UUID, in the newest generation of each pool."""
    found: dict[str, tuple[int, Device]] = {}
    for one in slices:
        spec = one["spec"]
        pool = spec["pool"]
        for device in spec.get("devices") or []:
            attributes = (device.get("basic") or device).get("attributes", {})
            for name, value in attributes.items():
                if name.rpartition("/")[2] == "uuid" and "string" in value:
                    place = Device(spec["driver"], pool["name"], device["name"])
                    known = found.get(value["string"])
                    if known is None or known[0] <= pool["generation"]:
                        found[value["string"]] = (pool["generation"], place)
    return {uuid: device for uuid, (_, device) in found.items()}


def rule(uuid: str, device: Device, *, effect: str, reason: str, version: str) -> dict[str, Any]:
    """Build the rule of one GPU."""
    return {
        "apiVersion": version,
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": f"sentinel-{uuid.lower()}",
            "labels": LABELS,
            "annotations": {UUID: uuid, "sentinel/reason": reason},
        },
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.name},
            "taint": {"key": TAINT, "value": "fail", "effect": effect},
        },
    }


def main() -> int:
    """Print or apply the rules; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--apply", action="store_true", help="change the cluster; else only print")
    parser.add_argument(
        "--effect",
        default="NoSchedule",
        choices=("None", "NoSchedule", "NoExecute"),
        help="None is a trial; NoExecute also ends the pods that use the GPU",
    )
    parser.add_argument("--namespace", default="sentinel", help="of the acceptance Jobs")
    parser.add_argument("--api-version", default="resource.k8s.io/v1", help="of DeviceTaintRule")
    parser.add_argument("--kubectl", nargs="+", default=["kubectl"], help="the command")
    given = parser.parse_args()
    cluster = Cluster(given.kubectl, given.api_version, given.namespace)
    try:
        return _run(cluster, given.effect, apply=given.apply)
    except KubectlError as error:
        print(f"device_taints.py: {error}", file=sys.stderr)
        return 2


def _run(cluster: Cluster, effect: str, *, apply: bool) -> int:
    verdicts = newest_verdicts(cluster.pods())
    places = devices(cluster.slices())
    failed = {uuid: reason for uuid, (verdict, reason) in verdicts.items() if verdict == "FAIL"}
    wanted = [
        rule(uuid, places[uuid], effect=effect, reason=reason, version=cluster.api_version)
        for uuid, reason in failed.items()
        if uuid in places
    ]
    passed = {uuid for uuid, (verdict, _) in verdicts.items() if verdict in GOOD}
    old = [
        one["metadata"]["name"]
        for one in cluster.rules()
        if one["metadata"].get("annotations", {}).get(UUID) in passed
    ]
    for uuid in failed.keys() - places.keys():
        print(f"device_taints.py: {uuid} failed, and is in no ResourceSlice", file=sys.stderr)
    if apply and wanted:
        cluster.apply(wanted)
    if apply and old:
        cluster.delete(old)
    print(json.dumps({"apply": wanted, "delete": old}, indent=1))
    return 1 if failed.keys() - places.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
