"""Fixtures of the tests on a real control plane."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.control_plane import ControlPlane, control_plane
from tests.harness.kubelet import Kubelets, kubelets
from tests.harness.kubernetes_cluster import DEPLOY
from tests.harness.kubernetes_site import IMAGE, PODS, RUNTIME_CLASS, Site
from tests.harness.sentinel_process import eventually


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane") / "files") as found:
        found.kubectl("apply", "-f", "-", input=RUNTIME_CLASS)
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


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> Site:
    return Site(plane, tmp_path)


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
    own = ("serviceaccount/taints", "rolebinding/sentinel-device-taints")
    plane.kubectl("-n", "sentinel", "delete", *own)
    plane.kubectl("delete", "devicetaintrules.v1beta2.resource.k8s.io", "--all")
