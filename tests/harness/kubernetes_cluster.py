"""The manifests of this repository, and a fake Kubernetes API for the real kubectl.

The API has discovery, lists, server-side apply and delete.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import pytest

from sentinel.cli.main import sentinel_command
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program

yaml = pytest.importorskip("yaml")

DEPLOY = ROOT / "deploy" / "kubernetes"
RENDERED = (
    *("base", "acceptance", "node-problem-detector"),
    *("examples/overlay", "examples/acceptance-overlay"),
)
KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")


@cache
def rendered(folder: str) -> str:
    """Build the manifests of a folder, relative to deploy/kubernetes or absolute."""
    done = run_program("kubectl", "kustomize", DEPLOY / folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(folder: str, kind: str) -> list[dict[str, Any]]:
    """Build the manifests of a folder; return the objects of one kind."""
    return [one for one in yaml.safe_load_all(rendered(folder)) if one["kind"] == kind]


def check_words(words: list[str]) -> None:
    """Check that a command of sentinel exists and takes these options."""
    context = click.Context(sentinel_command, info_name="sentinel")
    name, command, rest = sentinel_command.resolve_command(context, words[1:])
    assert command is not None
    command.make_context(name, rest, parent=context)


#: The resources by the path of their group: name, kind and whether they are in a namespace.
RESOURCES = {
    "/api/v1": [("pods", "Pod", True)],
    "/apis/resource.k8s.io/v1": [
        ("resourceslices", "ResourceSlice", False),
        ("devicetaintrules", "DeviceTaintRule", False),
    ],
}
#: What kubectl looks for before it leaves the validation to the server.
OPENAPI = {
    "openapi": "3.0.0",
    "info": {"title": "Kubernetes", "version": "v1.37.0"},
    "paths": {
        "/apis/resource.k8s.io/v1/devicetaintrules/{name}": {
            "patch": {
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
                "x-kubernetes-group-version-kind": {
                    "group": "resource.k8s.io",
                    "kind": "DeviceTaintRule",
                    "version": "v1",
                },
            }
        }
    },
}
ALL_VERBS = ["create", "delete", "get", "list", "patch", "update"]


class FakeKubernetes:
    """The objects of a cluster, and what was written.

    Args:
        config: The file for kubectl's configuration.
    """

    def __init__(self, config: Path) -> None:
        #: Objects by the path of their list.
        self.objects: dict[str, list[dict[str, Any]]] = {}
        #: What was written: the method, the path and the body.
        self.writes: list[tuple[str, str, Any]] = []
        #: Answers instead of the usual ones, by the method and the start of the path: a status, or
        #: a body of bytes with the status 200.
        self.faults: dict[tuple[str, str], int | bytes] = {}
        #: All requests for objects: the method and the path.
        self.requests: list[tuple[str, str]] = []
        self.kubeconfig = config

    def get(self, path: str, selector: dict[str, str]) -> Any:
        """Answer a GET, or None for an unknown path."""
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            only = {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
            group = {"name": "resource.k8s.io", "versions": [only], "preferredVersion": only}
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
        if path == "/openapi/v3":
            place = {"serverRelativeURL": "/openapi/v3/apis/resource.k8s.io/v1?hash=1"}
            return {"paths": {"apis/resource.k8s.io/v1": place}}
        if path == "/openapi/v3/apis/resource.k8s.io/v1":
            return OPENAPI
        if path in RESOURCES:
            found = [
                {"name": name, "kind": kind, "namespaced": space, "verbs": ALL_VERBS}
                | {"singularName": kind.lower()}
                for name, kind, space in RESOURCES[path]
            ]
            version = path.removeprefix("/apis/").removeprefix("/api/")
            return {"kind": "APIResourceList", "groupVersion": version, "resources": found}
        if path not in self.objects:
            return None
        items = [
            one
            for one in self.objects[path]
            if selector.items() <= one["metadata"].get("labels", {}).items()
        ]
        version = path.split("/")[2] if path.startswith("/api/") else "resource.k8s.io/v1"
        return {"kind": "List", "apiVersion": version, "metadata": {}, "items": items}

    def fault(self, method: str, path: str) -> int | bytes | None:
        """Find the answer to give instead of the usual one."""
        self.requests.append((method, path))
        for (of, start), answer in self.faults.items():
            if of == method and path.startswith(start):
                return answer
        return None

    def apply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create or replace the object of a server-side apply."""
        folder, _, name = path.rpartition("/")
        kept = [one for one in self.objects[folder] if one["metadata"]["name"] != name]
        self.objects[folder] = [*kept, body]
        return body

    def delete(self, path: str) -> bool:
        """Delete an object; return whether there was one."""
        folder, _, name = path.rpartition("/")
        before = self.objects[folder]
        self.objects[folder] = [one for one in before if one["metadata"]["name"] != name]
        return len(self.objects[folder]) < len(before)


class _Handler(BaseHTTPRequestHandler):
    #: Of a subclass.
    cluster: FakeKubernetes
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._fail():
            return
        url = urlsplit(self.path)
        query = parse_qs(url.query).get("labelSelector", [""])[0]
        selector = dict(part.split("=", 1) for part in query.split(",") if part)
        folder, _, name = url.path.rpartition("/")
        found = self.cluster.get(url.path, selector)
        if found is None:
            known = self.cluster.objects.get(folder, [])
            found = next((one for one in known if one["metadata"]["name"] == name), None)
        self._send(found)

    def do_PATCH(self) -> None:
        path = urlsplit(self.path).path
        body = json.loads(self._body())  # JSON is YAML, and kubectl sends what it was given
        if self._fail():
            return
        self.cluster.writes.append(("PATCH", self.path, body))
        self._send(self.cluster.apply(path, body))

    def do_DELETE(self) -> None:
        path = urlsplit(self.path).path
        self._body()
        if self._fail():
            return
        self.cluster.writes.append(("DELETE", path, None))
        gone = self.cluster.delete(path)
        status = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        self._send(status if gone else None)

    def _fail(self) -> bool:
        """Send the answer of a fault, if there is one."""
        fault = self.cluster.fault(self.command, self.path)
        if isinstance(fault, int):
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
            self._send(status | {"message": f"injected {fault}", "code": fault})
        elif fault is not None:
            self._send_bytes(200, fault)
        return fault is not None

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, found: Any) -> None:
        if found is None:
            found = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
            found |= {"reason": "NotFound", "message": f"no {self.path}", "code": 404}
        self._send_bytes(found.get("code", 200), json.dumps(found).encode())

    def _send_bytes(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def fake_kubernetes(folder: Path) -> Iterator[FakeKubernetes]:
    """Serve a cluster without objects of the known kinds' lists until the block ends."""
    cluster = FakeKubernetes(folder / "kubeconfig")
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    cluster.kubeconfig.write_text(json.dumps(config))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def overlay_with(folder: Path, name: str, *components: str) -> str:
    """Copy deploy/, and take components into an example overlay as its comments say."""
    shutil.copytree(ROOT / "deploy", folder / "deploy", dirs_exist_ok=True)
    overlay = folder / "deploy" / "kubernetes" / "examples" / name
    text = (overlay / "kustomization.yaml").read_text().replace("# components:", "components:")
    if "expectation" in components:
        text = text.replace("# configMapGenerator:", "configMapGenerator:")
        (overlay / "node.toml").write_text("gpus = 3\n")
    for component in components:
        line = f"- ../../components/{component}\n"
        assert f"# {line}" in text
        text = text.replace(f"# {line}", line)
    (overlay / "kustomization.yaml").write_text(text)
    return str(overlay)
