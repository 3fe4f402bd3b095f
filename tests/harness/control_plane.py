"""A real Kubernetes control plane on this machine: etcd, API server, controllers and scheduler.

The programs are found, never built or downloaded: in ``$SENTINEL_KUBERNETES``, in the newest folder
of ``~/.cache/sentinel-kubernetes``, or in the search path.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
#: What the tests need beside: keys, and the mounts of a container.
_TOOLS = ("openssl", "ip", "unshare", "nsenter", "setpriv")
#: Of the API server, for DeviceTaintRules. Of the scheduler only where a test needs their effect:
#: that of MicroShift's copy of 1.36.2 ends by a panic at a rule, which it takes for v1alpha3.
TAINT_GATES = "--feature-gates=DRADeviceTaints=true,DRADeviceTaintRules=true"
#: The users of the control plane and their groups; the token of each is its name.
_USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}


def _folders() -> list[Path]:
    """List where the programs may be, the best place first."""
    given = os.environ.get("SENTINEL_KUBERNETES")
    cache = Path.home() / ".cache" / "sentinel-kubernetes"
    versions = sorted(cache.glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [Path(given)] if given else versions


def find_program(name: str) -> str | None:
    """Find a program of Kubernetes."""
    places = os.pathsep.join(map(str, _folders()))
    return (places and shutil.which(name, path=places)) or shutil.which(name)


def _missing() -> str:
    """Say what is missing for a control plane, or return an empty string."""
    if os.getuid() != 0:
        return "needs root, for the mounts of containers"
    lacking = [name for name in (*_PROGRAMS, *_TOOLS) if find_program(name) is None]
    if lacking:
        return f"needs {lacking[0]} in $SENTINEL_KUBERNETES, ~/.cache/sentinel-kubernetes or PATH"
    done = run_program("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/run")
    return "needs the right to mount" if done.returncode else ""


_MISSING = _missing()
needs_control_plane = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)
needs_node_problem_detector = pytest.mark.skipif(
    find_program("node-problem-detector") is None, reason="needs node-problem-detector"
)


class ApiError(Exception):
    """An answer of the API server that is not a success.

    Args:
        status: The HTTP status.
        text: The body.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class ControlPlane:
    """One control plane, its administrator's kubectl and its API.

    Args:
        folder: For its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "admin.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._port, self._etcd, self._peers = _free_ports(3)

    def up(self) -> None:
        """Start all programs; return when the API server has its default objects."""
        self.folder.mkdir()
        run = ("openssl", "genrsa", "-out", self.folder / "sa.key", "2048")
        run_program(*run, check=True)
        public = ("-pubout", "-out", self.folder / "sa.pub")
        run_program("openssl", "rsa", "-in", self.folder / "sa.key", *public, check=True)
        lines = [f'{name},{name},{name},"{group}"' for name, group in _USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines))
        for name in _USERS:
            self._write_config(name)
        self._start_server()
        self.start_controllers()
        self.start_scheduler()
        # The controllers make it, and no pod starts without it.
        eventually(lambda: self.exists("/api/v1/namespaces/default/serviceaccounts/default"))

    def _start_server(self) -> None:
        url = f"http://127.0.0.1:{self._etcd}"
        peers = f"http://127.0.0.1:{self._peers}"
        self._spawn(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
        )
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={url}",
            *("--bind-address=127.0.0.1", f"--secure-port={self._port}"),
            *("--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
            f"--cert-dir={self.folder}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/sa.pub",
            f"--service-account-signing-key-file={self.folder}/sa.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            *("--authorization-mode=Node,RBAC", f"--token-auth-file={self.folder}/tokens.csv"),
            *(
                "--allow-privileged=true",
                "--runtime-config=resource.k8s.io/v1beta2=true",
                TAINT_GATES,
            ),
        )
        eventually(lambda: self.exists("/readyz"))

    def start_controllers(self) -> None:
        """Start the controllers."""
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self._config('system:kube-controller-manager')}",
            f"--service-account-private-key-file={self.folder}/sa.key",
            f"--root-ca-file={self.folder}/apiserver.crt",
            # The stand-ins for kubelets renew no lease.
            "--node-monitor-grace-period=24h",
            *("--use-service-account-credentials", "--leader-elect=false", "--secure-port=0"),
        )

    def start_scheduler(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start the scheduler, and end an earlier one."""
        if self._scheduler is not None:
            self._scheduler.kill()
            self._scheduler.wait(TIMEOUT_S)
        config = f"--kubeconfig={self._config('system:kube-scheduler')}"
        alone = ("--leader-elect=false", "--secure-port=0")
        self._scheduler = self._spawn("kube-scheduler", config, *alone, *flags)
        return self._scheduler

    def _config(self, user: str) -> Path:
        return self.folder / f"{user.replace(':', '-')}.json"

    def _write_config(self, user: str) -> None:
        server = f"https://127.0.0.1:{self._port}"
        place = {"server": server, "certificate-authority": f"{self.folder}/apiserver.crt"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": place}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": user}}],
            "current-context": "c",
        }
        self._config(user).write_text(json.dumps(config))

    def _spawn(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as file:
            command = ["setpriv", "--pdeathsig", "KILL", str(find_program(name)), *words]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        self._processes.append(process)
        return process

    @property
    def environment(self) -> dict[str, str]:
        """The environment of kubectl, as the administrator."""
        own = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)}
        found = str(Path(str(find_program("kubectl"))).parent)
        return {**os.environ, **own, "PATH": f"{found}:{os.environ['PATH']}"}

    # --- what a client does ---

    def connect(self) -> http.client.HTTPSConnection:
        """Connect to the API server."""
        trust = ssl.create_default_context(cafile=str(self.folder / "apiserver.crt"))
        return http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=trust, timeout=TIMEOUT_S
        )

    def request(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json"
    ) -> Any:
        """Send a request as the administrator; return the object of the answer.

        Raises:
            ApiError: The answer is not a success.
        """
        headers = {"Authorization": "Bearer admin", "Content-Type": kind}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status >= 400:
            raise ApiError(answer.status, text)
        return json.loads(text) if text.startswith("{") else text

    def get(self, path: str) -> Any:
        """Read an object or a list."""
        return self.request("GET", path)

    def patch(self, path: str, change: Mapping[str, Any]) -> Any:
        """Change an object by a strategic merge."""
        kind = "application/strategic-merge-patch+json"
        return self.request("PATCH", path, change, kind=kind)

    def exists(self, path: str) -> bool:
        """Look for an object; False, too, while the server starts."""
        try:
            self.get(path)
        except (OSError, ApiError, http.client.HTTPException):
            return False
        return True

    def kubectl(
        self, *words: str | Path, code: int | None = 0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; it must end with this exit code, unless None."""
        done = run_program("kubectl", *words, env=self.environment, **options)
        assert code in {None, done.returncode}, f"kubectl {words}: {done.stdout}{done.stderr}"
        return done

    def print_logs(self) -> None:
        """Print the ends of all logs."""
        for file in sorted(self.folder.glob("*.log")):
            lines = file.read_text(errors="replace").splitlines()[-15:]
            sys.stdout.write(f"--- {file.name}\n" + "\n".join(line[:400] for line in lines) + "\n")

    def down(self) -> None:
        """Kill all programs."""
        for process in reversed(self._processes):
            process.kill()
            process.wait(TIMEOUT_S)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Run a control plane until the block ends."""
    plane = ControlPlane(folder)
    try:
        plane.up()
        yield plane
    except BaseException:
        plane.print_logs()  # pytest shows what a failed fixture printed
        raise
    finally:
        plane.down()
