"""DeviceTaintRules of GPUs that failed, with the real kubectl against a fake API."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.verdict import verdict_summary
from tests.harness.example_run import RUNS, report_of
from tests.harness.gpu_environment import ROOT
from tests.harness.kubernetes_cluster import FakeKubernetes, fake_kubernetes
from tests.harness.programs import run_program

yaml = pytest.importorskip("yaml")

SCRIPT = ROOT / "deploy" / "kubernetes" / "device-taints" / "device_taints.py"
PODS = "/api/v1/namespaces/sentinel/pods"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
RULES = "/apis/resource.k8s.io/v1/devicetaintrules"

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with fake_kubernetes(tmp_path) as cluster:
        cluster.objects = {PODS: [], SLICES: [], RULES: []}
        yield cluster


def run(cluster: FakeKubernetes, *words: str) -> tuple[int, Any, str]:
    """Run the program; return its exit code, what it printed and its errors."""
    config = cluster.kubeconfig
    environment = {**os.environ, "KUBECONFIG": str(config), "HOME": str(config.parent)}
    done = run_program(sys.executable, SCRIPT, *words, env=environment)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


NOON = "2026-11-23T12:00:00Z"


def pod(message: str, finished: str = NOON, run: str | None = "") -> dict[str, Any]:
    """Build a pod of an acceptance Job that has ended, by default when its run has."""
    ended_run = json.dumps(finished if run == "" else run)
    message = re.sub(r'"ended":(null|"[^"]*")', f'"ended":{ended_run}', message)
    ended = {"exitCode": 1, "finishedAt": finished, "message": message}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"p-{finished}".lower().replace(":", ""),
            "namespace": "sentinel",
            "labels": {"app.kubernetes.io/name": "sentinel-acceptance"},
        },
        "status": {"containerStatuses": [{"name": "burnin", "state": {"terminated": ended}}]},
    }


def resource_slice(uuids: list[str], generation: int = 1, first: int = 0) -> dict[str, Any]:
    """Build the slice of a node as NVIDIA's driver publishes it."""
    devices = [
        {"name": f"gpu-{first + index}", "attributes": {"uuid": {"string": uuid}}}
        for index, uuid in enumerate(uuids)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"s-{generation}"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    return report_of(RUNS["FAIL"], tmp_path / "run")


def uuids(report: dict[str, Any]) -> list[str]:
    return [str(gpu["uuid"]) for gpu in report["gpus"]]


def faulty(report: dict[str, Any]) -> str:
    (uuid,) = (str(gpu["uuid"]) for gpu in report["gpus"] if gpu["verdict"] == "FAIL")
    return uuid


def test_a_faulty_gpu_gets_a_rule_and_only_that_one(
    cluster: FakeKubernetes, report: dict[str, Any], tmp_path: Path
) -> None:
    known = uuids(report)
    incomplete = verdict_summary(report_of(RUNS["INCOMPLETE"], tmp_path / "cut"))
    cluster.objects[SLICES] = [resource_slice(known[::-1]), resource_slice(known, 2, first=4)]
    cluster.objects[PODS] = [pod("no verdict"), pod(verdict_summary(report)), pod("{}")]
    # An incomplete burn-in does not hide an earlier failure.
    cluster.objects[PODS].append(pod(incomplete, "2026-11-23T13:00:00Z"))
    code, shown, errors = run(cluster)
    assert (code, errors, cluster.writes) == (0, "", []), "nothing is written without --apply"
    (rule,) = shown["apply"]
    code, shown, errors = run(cluster, "--apply", "--effect", "NoExecute")
    assert code == 0, errors
    (applied,) = cluster.objects[RULES]
    device = f"gpu-{4 + known.index(faulty(report))}"
    selector = {"driver": "gpu.nvidia.com", "pool": "n1", "device": device}
    assert applied["spec"]["deviceSelector"] == selector == rule["spec"]["deviceSelector"]
    assert applied["spec"]["taint"]["effect"] == "NoExecute"
    assert "results.wrong" in applied["metadata"]["annotations"]["sentinel/reason"]
    ((method, path, _),) = cluster.writes
    assert method == "PATCH"
    assert path.startswith(f"{RULES}/sentinel-{faulty(report).lower()}?")
    assert "fieldValidation=Strict" in path


@pytest.mark.long
def test_each_of_several_faulty_gpus_gets_a_rule(
    cluster: FakeKubernetes, report: dict[str, Any]
) -> None:
    summary = json.loads(verdict_summary(report))
    for gpu in summary["gpus"]:
        gpu["verdict"] = "FAIL"
    cluster.objects[SLICES] = [resource_slice(uuids(report))]
    cluster.objects[PODS] = [pod(json.dumps(summary))]
    code, _, errors = run(cluster, "--apply")
    assert code == 0, errors
    assert len(cluster.objects[RULES]) == len(summary["gpus"]) > 1


@pytest.mark.long
def test_a_rule_is_removed_when_the_gpu_has_passed_since_and_no_other_rule(
    cluster: FakeKubernetes, report: dict[str, Any], tmp_path: Path
) -> None:
    cluster.objects[SLICES] = [resource_slice(uuids(report))]
    cluster.objects[PODS] = [pod(verdict_summary(report), "2026-11-23T12:00:00Z")]
    code, _, errors = run(cluster, "--apply")
    assert code == 0, errors
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "a", "annotations": {"sentinel/gpu-uuid": faulty(report)}},
    }
    cluster.objects[RULES].append(foreign)
    incomplete = report_of(RUNS["INCOMPLETE"], tmp_path / "cut")
    assert set(uuids(incomplete)) == set(uuids(report))
    cluster.objects[PODS].append(pod(verdict_summary(incomplete), "2026-11-23T13:00:00Z"))
    assert run(cluster, "--apply")[1]["delete"] == [], "an incomplete burn-in proves nothing"
    passed = report_of(RUNS["PASS"], tmp_path / "passed")
    cluster.objects[PODS].append(pod(verdict_summary(passed), "2026-11-23T14:00:00Z"))
    cluster.writes.clear()
    name = f"sentinel-{faulty(report).lower()}"
    assert run(cluster, "--apply")[1] == {"apply": [], "delete": [name]}
    assert cluster.objects[RULES] == [foreign]
    assert [write[0] for write in cluster.writes] == ["DELETE"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("ended", "rules"),
    [("2026-11-23T14:00:00+02:30", 0), ("2026-11-23T11:00:00-02:30", 1), (None, 1)],
)
def test_the_newest_verdict_is_that_of_the_run_that_ended_last(
    cluster: FakeKubernetes, report: dict[str, Any], tmp_path: Path, ended: str | None, rules: int
) -> None:
    cluster.objects[SLICES] = [resource_slice(uuids(report))]
    passed = report_of(RUNS["PASS"], tmp_path / "passed")
    # A second pod repeats what the first one found, whose node was lost.
    again = pod(verdict_summary(report), "2026-11-23T15:00:00Z", ended)
    cluster.objects[PODS] = [again, pod(verdict_summary(passed))]
    assert len(run(cluster)[1]["apply"]) == rules


@pytest.mark.long
def test_a_gpu_without_a_device_is_named(cluster: FakeKubernetes, report: dict[str, Any]) -> None:
    cluster.objects[PODS] = [pod(verdict_summary(report))]
    code, shown, errors = run(cluster, "--apply")
    assert code == 1
    assert shown == {"apply": [], "delete": []}
    assert faulty(report) in errors


def test_a_cluster_that_refuses_is_an_error_with_its_words(cluster: FakeKubernetes) -> None:
    del cluster.objects[SLICES]
    code, shown, errors = run(cluster)
    assert (code, shown) == (2, None)
    assert "resourceslices" in errors


def with_rule(cluster: FakeKubernetes, report: dict[str, Any]) -> int:
    """Make the rule of the GPU that failed; return the index of its device."""
    cluster.objects[SLICES] = [resource_slice(uuids(report))]
    cluster.objects[PODS] = [pod(verdict_summary(report))]
    assert run(cluster, "--apply", "--effect", "NoExecute")[0] == 0
    return uuids(report).index(faulty(report))


@pytest.mark.long
@pytest.mark.parametrize("job_kept", [False, True])
def test_the_gpu_that_replaced_a_faulty_one_is_not_tainted(
    cluster: FakeKubernetes, report: dict[str, Any], *, job_kept: bool
) -> None:
    slot = with_rule(cluster, report)
    after = uuids(report)
    after[slot] = "GPU-new"
    # The slice of the time before may still be there, and its pool has a newer generation.
    cluster.objects[SLICES] = [resource_slice(uuids(report)), resource_slice(after, 2)]
    cluster.objects[PODS] = cluster.objects[PODS] if job_kept else []
    code, shown, errors = run(cluster, "--apply")
    assert shown == {"apply": [], "delete": [f"sentinel-{faulty(report).lower()}"]}
    assert cluster.objects[RULES] == []
    assert code == int(job_kept), errors
    assert (faulty(report) in errors) == job_kept, "its verdict has no device"


@pytest.mark.long
@pytest.mark.parametrize("job_kept", [False, True])
def test_a_rule_follows_a_gpu_that_has_another_device(
    cluster: FakeKubernetes, report: dict[str, Any], *, job_kept: bool
) -> None:
    slot = with_rule(cluster, report)
    cluster.objects[SLICES] = [resource_slice(uuids(report), 2, first=4)]
    cluster.objects[PODS] = cluster.objects[PODS] if job_kept else []
    assert run(cluster, "--apply", "--effect", "NoExecute")[1]["delete"] == []
    (rule,) = cluster.objects[RULES]
    assert rule["spec"]["deviceSelector"]["device"] == f"gpu-{4 + slot}"
    assert rule["spec"]["taint"]["effect"] == "NoExecute"
    assert "results.wrong" in rule["metadata"]["annotations"]["sentinel/reason"]


@pytest.mark.long
def test_a_rule_stays_while_its_device_is_not_published(
    cluster: FakeKubernetes, report: dict[str, Any]
) -> None:
    with_rule(cluster, report)
    before = list(cluster.objects[RULES])
    cluster.objects |= {SLICES: [], PODS: []}
    assert run(cluster, "--apply")[1] == {"apply": [], "delete": []}
    assert cluster.objects[RULES] == before


OTHER_SHAPES = (
    *('{"schema_version":1}', '{"schema_version":1,"gpus":null}', "[]", '{"gpus":[]}', "7"),
    *('{"schema_version":1,"gpus":[{"verdict":"FAIL"}]}', '{"schema_version":1,"gpus":[3]}'),
)


@pytest.mark.long
def test_a_message_of_another_shape_is_no_verdict(cluster: FakeKubernetes) -> None:
    without = {**pod(""), "status": {"containerStatuses": None}}
    cluster.objects[PODS] = [*map(pod, OTHER_SHAPES), without]
    assert run(cluster) == (0, {"apply": [], "delete": []}, "")


@pytest.mark.long
@pytest.mark.parametrize("answer", [401, 403, 500, b'{"kind": "List", "items"', b"null"])
def test_an_answer_that_is_none_changes_nothing(
    cluster: FakeKubernetes, report: dict[str, Any], answer: int | bytes
) -> None:
    with_rule(cluster, report)
    cluster.writes.clear()
    for path in (PODS, SLICES, RULES):
        cluster.faults = {("GET", f"{path}?"): answer}
        code, shown, errors = run(cluster, "--apply")
        assert (code, shown) == (2, None), "1 is for a GPU without a device"
        assert errors
        assert "Traceback" not in errors
    assert cluster.writes == []


@pytest.mark.long
@pytest.mark.parametrize("answer", [403, 409, 422])
def test_a_refused_rule_does_not_keep_another_from_being_removed(
    cluster: FakeKubernetes, report: dict[str, Any], answer: int
) -> None:
    with_rule(cluster, report)
    (bad,) = (gpu for gpu in report["gpus"] if gpu["verdict"] == "FAIL")
    other = next(gpu for gpu in report["gpus"] if gpu["verdict"] != "FAIL")
    bad["verdict"], other["verdict"] = "PASS", "FAIL"
    cluster.objects[PODS].append(pod(verdict_summary(report), "2026-11-23T15:00:00Z"))
    cluster.faults = {("PATCH", RULES): answer}
    code, shown, errors = run(cluster, "--apply")
    assert code == 2, errors
    assert f"injected {answer}" in errors
    assert shown["delete"] == [f"sentinel-{str(bad['uuid']).lower()}"]
    assert cluster.objects[RULES] == []


@pytest.mark.long
def test_an_api_version_that_the_server_lacks_changes_nothing(
    cluster: FakeKubernetes, report: dict[str, Any]
) -> None:
    with_rule(cluster, report)
    cluster.writes.clear()
    code, shown, errors = run(cluster, "--apply", "--api-version", "resource.k8s.io/v1beta2")
    assert (code, shown, cluster.writes) == (2, None, [])
    assert "devicetaintrules" in errors


@pytest.mark.long
def test_the_command_may_have_options(cluster: FakeKubernetes, tmp_path: Path) -> None:
    config = cluster.kubeconfig.rename(tmp_path / "elsewhere")
    code, _, errors = run(cluster, "--kubectl", f"kubectl --kubeconfig {config}")
    assert (code, errors) == (0, "")


@pytest.mark.long
def test_the_rights_are_those_of_the_calls(
    cluster: FakeKubernetes, report: dict[str, Any], tmp_path: Path
) -> None:
    with_rule(cluster, report)
    passed = report_of(RUNS["PASS"], tmp_path / "passed")
    cluster.objects[PODS].append(pod(verdict_summary(passed), "2026-11-23T14:00:00Z"))
    assert run(cluster, "--apply")[0] == 0
    called = set()
    for method, path in cluster.requests:
        resource = re.search(r"/(pods|resourceslices|devicetaintrules)(/[^?]+)?(\?|$)", path)
        if resource is None or path.startswith("/openapi"):
            continue
        read = "get" if resource[2] else "list"
        called.add((resource[1], {"GET": read}.get(method, method.lower())))
    rights = {
        (resource, verb)
        for role in yaml.safe_load_all((SCRIPT.parent / "rbac.yaml").read_text())
        for one in role["rules"]
        for resource in one["resources"]
        for verb in one["verbs"]
    }
    # A PATCH of a rule that is not there creates it.
    assert called | {("devicetaintrules", "create")} == rights
