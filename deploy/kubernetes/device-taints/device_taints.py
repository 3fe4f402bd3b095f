#!/usr/bin/env python3
"""Keep pods from the GPUs that failed their acceptance: a DeviceTaintRule for each.

Reads the verdicts from the termination messages of the acceptance Jobs' pods, finds the device of
each GPU by its UUID in the ResourceSlices of the DRA driver, and prints the rules, or applies them
with --apply. An incomplete burn-in changes nothing, neither a rule nor an earlier verdict.

A rule names a device, and the names of devices follow the slots of a node. A rule of an earlier run
is therefore removed when its GPU has passed since, or is gone and another one has its device; where
the GPU has another device, the rule follows it. Rules that others made are never touched.

Needs Kubernetes with DeviceTaintRule (resource.k8s.io/v1 since 1.37; see --api-version), a DRA
driver that publishes the attribute `uuid`, kubectl, and the rights of rbac.yaml. The standard
library only. Exit code 1 if a faulty GPU is in no ResourceSlice or in several pools, 2 if kubectl
failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

LABELS = {"app.kubernetes.io/managed-by": "sentinel"}
#: On a rule: the UUID of the GPU.
UUID = "sentinel/gpu-uuid"
REASON = "sentinel/reason"
TAINT = "sentinel/gpu-burnin-failed"
PODS = "app.kubernetes.io/name=sentinel-acceptance"
#: The verdicts after which a GPU may be used again.
GOOD = frozenset({"PASS", "WARN"})
#: The verdict after which it may not. Any other, such as INCOMPLETE, proves nothing.
BAD = "FAIL"
#: How long one request to the API server may take, and a whole call of kubectl, in seconds.
REQUEST_TIMEOUT_S = 60
TIMEOUT_S = 300


@dataclass(frozen=True)
class Device:
    """A device as a rule selects it."""

    driver: str
    pool: str
    name: str


#: The fields of a rule's selector, as Device has them.
_SELECTOR = ("driver", "pool", "device")


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
        # kubectl reads on in JSON after the first object, and takes no "---" then.
        text = "\n".join(map(json.dumps, rules))
        words = ["apply", "--server-side", "--force-conflicts", "--field-manager=sentinel"]
        sys.stderr.write(self._run([*words, "-f", "-"], text))

    def delete(self, names: list[str]) -> None:
        """Delete rules by name."""
        words = ["delete", self._rules, "--ignore-not-found", "--wait=false"]
        sys.stderr.write(self._run([*words, *names]))

    def _get(self, *words: str) -> list[dict[str, Any]]:
        text = self._run(["get", *words, "-o", "json"])
        try:
            items: list[dict[str, Any]] = json.loads(text)["items"]
        except (ValueError, LookupError, TypeError):
            raise KubectlError(f"kubectl get {words[0]}: the answer is no list in JSON") from None
        return items

    def _run(self, words: list[str], text: str | None = None) -> str:
        command = [*self._kubectl, f"--request-timeout={REQUEST_TIMEOUT_S}s", *words]
        try:
            done = subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except OSError as error:
            raise KubectlError(f"{command[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise KubectlError(f"{' '.join(command)}: no end within {TIMEOUT_S} s") from None
        if done.returncode != 0:
            raise KubectlError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def newest_verdicts(pods: Iterable[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Find the newest verdict of each GPU that proves something, and its reason, by UUID."""
    found: dict[str, tuple[str, str]] = {}
    for _, gpus in sorted(_summaries(pods), key=lambda one: one[0]):
        for gpu in gpus:
            if gpu["verdict"] == BAD or gpu["verdict"] in GOOD:
                found[str(gpu["uuid"])] = (str(gpu["verdict"]), str(gpu.get("reason", "")))
    return found


def _summaries(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """Yield the end and the GPUs of the run of each pod that has ended with a summary.

    A pod that follows one whose node was lost repeats the verdict of a run that ended before. Only
    if the end of a run is not known, that of its pod counts.
    """
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses") or []:
            ended = (container.get("state") or {}).get("terminated") or {}
            summary = _summary(ended.get("message", ""))
            if summary is not None:
                yield _time(summary[0], ended.get("finishedAt")), summary[1]


def _time(*texts: str | None) -> float:
    """Read the first time that is known, in seconds since 1970; otherwise 0."""
    for text in texts:
        with contextlib.suppress(TypeError, ValueError):
            return datetime.fromisoformat(text or "").timestamp()
    return 0.0


def _summary(message: str) -> tuple[Any, list[dict[str, Any]]] | None:
    """Read the end and the GPUs of a summary; None for the end of a log, or another shape."""
    try:
        summary = json.loads(message)
        if summary["schema_version"] != 1:
            return None
        gpus: list[dict[str, Any]] = [dict(gpu) for gpu in summary["gpus"]]
    except (ValueError, LookupError, TypeError):
        return None
    shaped = all({"uuid", "verdict"} <= gpu.keys() for gpu in gpus)
    return (summary.get("ended"), gpus) if shaped else None


def devices(slices: Iterable[dict[str, Any]]) -> dict[Device, str]:
    """Read the UUID of each device from the newest generation of each pool.

    An older generation is of the time before a change: it may name a GPU that is gone, with the
    device of the one that took its place.
    """
    newest: dict[tuple[str, str], tuple[int, dict[Device, str]]] = {}
    for one in slices:
        spec = one["spec"]
        driver, pool, generation = spec["driver"], spec["pool"]["name"], spec["pool"]["generation"]
        known, found = newest.get((driver, pool), (generation, {}))
        if generation < known:
            continue
        if generation > known:
            found = {}
        for device in spec.get("devices") or []:
            attributes = (device.get("basic") or device).get("attributes", {})
            for name, value in attributes.items():
                if name.rpartition("/")[2] == "uuid" and "string" in value:
                    found[Device(driver, pool, device["name"])] = value["string"]
        newest[driver, pool] = (generation, found)
    return {device: uuid for _, found in newest.values() for device, uuid in found.items()}


def rule(uuid: str, device: Device, *, effect: str, reason: str, version: str) -> dict[str, Any]:
    """Build the rule of one GPU."""
    return {
        "apiVersion": version,
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": f"sentinel-{uuid.lower()}",
            "labels": LABELS,
            "annotations": {UUID: uuid, REASON: reason},
        },
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.name},
            "taint": {"key": TAINT, "value": "fail", "effect": effect},
        },
    }


@dataclass(frozen=True)
class Plan:
    """What is to be changed."""

    apply: list[dict[str, Any]]
    #: The names of rules.
    delete: list[str]
    #: The GPUs that failed and have no device, or several: why, by UUID.
    unplaced: dict[str, str]


def plan(
    verdicts: Mapping[str, tuple[str, str]],
    occupants: Mapping[Device, str],
    rules: Iterable[dict[str, Any]],
    *,
    effect: str,
    version: str,
) -> Plan:
    """Decide which rules to apply and to delete.

    Args:
        verdicts: The newest verdict of each GPU and its reason, by UUID.
        occupants: The UUID of the GPU of each device.
        rules: The rules of earlier runs.
        effect: That of the taints of GPUs with a verdict; a rule that is moved keeps its own.
        version: The API version of DeviceTaintRule.
    """
    places: dict[str, list[Device]] = {}
    for device, uuid in occupants.items():
        places.setdefault(uuid, []).append(device)
    found = Plan([], [], {})
    for uuid, (verdict, reason) in verdicts.items():
        here = places.get(uuid, [])
        if verdict != BAD:
            continue
        if len(here) == 1:
            found.apply.append(rule(uuid, here[0], effect=effect, reason=reason, version=version))
        else:
            pools = ", ".join(one.pool for one in here)
            found.unplaced[uuid] = f"several pools: {pools}" if pools else "no ResourceSlice"
    for one in rules:
        meta, spec = one["metadata"], one["spec"]
        notes = meta.get("annotations", {})
        uuid = notes.get(UUID)
        if uuid is None:
            continue
        selector = spec.get("deviceSelector") or {}
        device = Device(*(selector.get(name, "") for name in _SELECTOR))
        here = places.get(uuid, [])
        if uuid in verdicts:
            # A GPU that is gone may have its verdict for as long as its Job is kept.
            over = verdicts[uuid][0] != BAD or (not here and device in occupants)
        else:
            over = not here and device in occupants
            if len(here) == 1 and here != [device]:
                kept, reason = spec["taint"]["effect"], notes.get(REASON, "")
                moved = rule(uuid, here[0], effect=kept, reason=reason, version=version)
                found.apply.append(moved)
        if over:
            found.delete.append(meta["name"])
    return found


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
    parser.add_argument(
        "--kubectl", default="kubectl", help="the command and its options, as one word"
    )
    given = parser.parse_args()
    cluster = Cluster(shlex.split(given.kubectl), given.api_version, given.namespace)
    try:
        return _run(cluster, given.effect, apply=given.apply)
    except KubectlError as error:
        _complain(str(error))
    except (LookupError, TypeError, AttributeError) as error:
        _complain(f"an answer of kubectl has another shape: {type(error).__name__}: {error}")
    return 2


def _complain(what: str) -> None:
    print(f"device_taints.py: {what}", file=sys.stderr)


def _run(cluster: Cluster, effect: str, *, apply: bool) -> int:
    verdicts, occupants = newest_verdicts(cluster.pods()), devices(cluster.slices())
    rules, version = cluster.rules(), cluster.api_version
    change = plan(verdicts, occupants, rules, effect=effect, version=version)
    for uuid, where in change.unplaced.items():
        _complain(f"{uuid} failed, and is in {where}")
    refused = False
    if apply:
        # One call that is refused does not keep the other from being made.
        calls = [partial(cluster.delete, change.delete)] * bool(change.delete)
        calls += [partial(cluster.apply, change.apply)] * bool(change.apply)
        for call in calls:
            try:
                call()
            except KubectlError as error:
                _complain(str(error))
                refused = True
    print(json.dumps({"apply": change.apply, "delete": change.delete}, indent=1))
    return 2 if refused else int(bool(change.unplaced))


if __name__ == "__main__":
    sys.exit(main())
