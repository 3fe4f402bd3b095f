"""The containers of a pod as processes of this machine.

A container is a process with the command, the user, the capabilities, the environment, the mounts
and the termination message of the pod, in a mount and a network namespace of its own. Its image is
this checkout with the programs of this machine; the GPUs of its node are simulated.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from sentinel.host.simulation import Registry
from tests.harness.control_plane import find_program
from tests.harness.gpu_environment import ROOT, TESTS
from tests.harness.programs import EXEC_SENTINEL, run_program, write_script
from tests.harness.timing import TIMEOUT_S

#: Where a container finds the folder of its node: nothing of a pod is mounted there.
_NODE = "/media"
#: The command of the image on simulated GPUs, which no setting can choose.
_SENTINEL = f"""\
case "$1 $2" in
"burnin --resume") set -- "$@" --simulate {{count}} ;;
run*|"burnin --"*)
    if [ -S /run/sentinel/sentinel.sock ]; then set -- "$@" --simulate {{held}}
    else set -- "$@" --simulate {{count}} --gpus {{gpus}}
    fi ;;
esac
cd {shlex.quote(str(ROOT))}
{EXEC_SENTINEL}"""
#: Makes the file system of a container in the folder "$R": the programs of this machine, and
#: folders of its own. The mounts of the pod and the command follow.
_SETUP = """\
set -e
ip link set lo up
mkdir -p "$R/root" "$R/run/lock" "$R/var/lib" "$R/tmp" "$R/dev/shm" "$R{node}"
chmod 1777 "$R/tmp"
mount --bind "$R" "$R"
cp -a /etc "$R"
for name in bin sbin lib lib64 usr opt proc sys; do
    if [ -L "/$name" ]; then cp -P "/$name" "$R"
    elif [ -d "/$name" ]; then mkdir "$R/$name"; mount --rbind "/$name" "$R/$name"
    fi
done
for name in null zero full random urandom tty; do
    touch "$R/dev/$name"; mount --bind "/dev/$name" "$R/dev/$name"
done
mount --rbind /dev/shm "$R/dev/shm"
ln -s /proc/self/fd "$R/dev/fd"
touch "$R/../message" "$R/dev/termination-log"
chmod 0666 "$R/../message"
mount --bind "$R/../message" "$R/dev/termination-log"
mount --rbind "$NODE" "$R{node}"
"""


def _image() -> set[Path]:
    """Find the folders of this machine that are not in /usr and belong to the image."""
    programs = (find_program("node-problem-detector"), find_program("kubectl"))
    more = {Path(found).parent for found in programs if found and not found.startswith("/usr")}
    return {ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix), *more}


def prepare_node(folder: Path, gpus: range) -> None:
    """Make the folder of a node: its simulated GPUs, and what the image has in its search path."""
    for name in ("bin", "python"):
        (folder / name).mkdir(parents=True)
    Registry.create(folder / "gpus", gpus.stop)
    chosen = {"count": gpus.stop, "held": len(gpus), "gpus": ",".join(map(str, gpus))}
    write_script(folder / "bin" / "sentinel", _SENTINEL.format(**chosen))
    write_script(folder / "bin" / "tini", 'shift\nexec "$@"')
    (folder / "python" / "torch.py").symlink_to(TESTS / "fake_torch.py")


class Containers:
    """The containers of one pod.

    Args:
        maps: Finds the ConfigMap at a path of the API.
        node: The folder of the node.
        pod: The pod, which has a node.
        variables: Variables of every container, as of an image.
    """

    def __init__(
        self,
        maps: Callable[[str], Any],
        node: Path,
        pod: dict[str, Any],
        variables: Mapping[str, str],
    ) -> None:
        self._maps, self._node, self._variables = maps, node, variables
        self._spec: dict[str, Any] = pod["spec"]
        self._meta: dict[str, Any] = pod["metadata"]
        self._folder = node / "pods" / str(self._meta["uid"])
        #: The processes by the names of the containers.
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> str:
        """Read the output of a container so far."""
        return (self._folder / name / "log").read_text(errors="replace")

    def message(self, name: str) -> str:
        """Read the termination message of a container."""
        return (self._folder / name / "message").read_text()[:4096]

    def start(self, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Start a container."""
        place = self._folder / container["name"]
        place.mkdir(parents=True)
        environment = self._environment(container)
        if environment.get("NVIDIA_VISIBLE_DEVICES") == "all":
            # Simulated GPUs are for one user; devices would be for all.
            for path in (self._node / "gpus", *(self._node / "gpus").rglob("*")):
                with contextlib.suppress(FileNotFoundError):  # of a daemon that rewrites it
                    os.chown(path, *self._final_user(container))
        setup = place / "setup"
        read_only = container.get("securityContext", {}).get("readOnlyRootFilesystem")
        lines = [
            f"NODE={self._node} R={place}/root",
            _SETUP.format(node=_NODE),
            *self._mounts(container),
            'mount -o remount,bind,ro "$R"' if read_only else "",
            f'exec chroot "$R" {self._words(container)}',
        ]
        setup.write_text("\n".join(lines))
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                ["unshare", *self._namespaces(), "--propagation", "private", "sh", str(setup)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running[container["name"]] = process
        return process

    def _namespaces(self) -> list[str]:
        return ["--mount"] if self._spec.get("hostNetwork") else ["--mount", "--net"]

    def _words(self, container: Mapping[str, Any], command: list[str] | None = None) -> str:
        """Build the command line of a container with its user and its rights."""
        own, (user, group) = container.get("securityContext", {}), self.user(container)
        words = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        capabilities = own.get("capabilities", {})
        if "ALL" in capabilities.get("drop", []):
            kept = [f"+{name.lower()}" for name in capabilities.get("add", [])]
            words += [f"--bounding-set={','.join(['-all', *kept])}"]
            words += [f"--inh-caps={','.join(['-all', *kept])}"]
        if own.get("allowPrivilegeEscalation") is False:
            words.append("--no-new-privs")
        image = container.get("command", ["tini", "--", "sentinel"])
        return shlex.join([*words, *(command or [*image, *container.get("args", [])])])

    def user(self, container: Mapping[str, Any]) -> tuple[int, int]:
        """Find the user and the group of a container; the defaults are those of the image."""
        pod, own = self._spec.get("securityContext", {}), container.get("securityContext", {})
        user, group = (own.get(name, pod.get(name, 10001)) for name in ("runAsUser", "runAsGroup"))
        return user, group

    def _final_user(self, container: Mapping[str, Any]) -> tuple[int, int]:
        """Find the user that a container is in the end, if its command changes it."""
        words = " ".join(container.get("command", ()))
        changed = re.search(r"--reuid=(\d+) --regid=(\d+)", words)
        return self.user(container) if changed is None else (int(changed[1]), int(changed[2]))

    def _mounts(self, container: Mapping[str, Any]) -> Iterator[str]:
        """Yield commands that mount the volumes of a container."""
        volumes = {one["name"]: one for one in self._spec.get("volumes", [])}
        mounts = [(str(one), str(one), "bind,ro") for one in _image()]
        for mount in container.get("volumeMounts", []):
            kind = "bind,ro" if mount.get("readOnly") else "bind"
            source = self._source(volumes[mount["name"]]) / mount.get("subPath", "")
            mounts.append((str(source), mount["mountPath"], kind))
        # As a runtime does: a checkout in /tmp is in the pod's volume of that name, not behind it.
        for what, target, kind in sorted(mounts, key=lambda mount: mount[1].count("/")):
            make = f'mkdir -p "$R{target}"'
            if Path(what).is_file():  # by subPath
                make = f'mkdir -p "$R{Path(target).parent}" && touch "$R{target}"'
            yield f'{make} && mount -o {kind} {what} "$R{target}"'

    def _source(self, volume: dict[str, Any]) -> Path:
        """Find or make what is mounted for a volume."""
        if "hostPath" in volume:
            host = self._node / "root" / str(volume["hostPath"]["path"]).lstrip("/")
            host.mkdir(parents=True, exist_ok=True)
            return host
        place = self._folder / "volumes" / str(volume["name"])
        is_new = not place.exists()
        place.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            name = volume["configMap"]["name"]
            space = self._meta["namespace"]
            path = f"/api/v1/namespaces/{space}/configmaps/{name}"
            for key, text in self._maps(path)["data"].items():
                (place / key).write_text(text)
        elif "emptyDir" in volume and is_new:
            place.chmod(0o777)  # without the sticky bit, as a kubelet makes it
        elif "emptyDir" not in volume:
            raise ValueError(f"the stand-in has no volume like {volume}")
        return place

    def _environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        own = {"PATH": f"{_NODE}/bin:{os.environ['PATH']}", "SENTINEL_SIM_DIR": f"{_NODE}/gpus"}
        own |= {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/tmp/cache"}  # noqa: S108
        own |= {"PYTHONPATH": f"{_NODE}/python:{TESTS}:{ROOT}"}
        for variable in container.get("env", []):
            value = variable.get("value", "")
            if "valueFrom" in variable:
                value = self._field(variable["valueFrom"]["fieldRef"]["fieldPath"])
            own[variable["name"]] = value
        return {**own, **self._variables}

    def _field(self, path: str) -> str:
        if path == "spec.nodeName":
            return str(self._spec["nodeName"])
        part, _, key = path.removesuffix("']").partition("['")
        return str(self._meta[part.removeprefix("metadata.")][key])

    def execute(
        self, container: dict[str, Any], command: list[str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        process = self.running[container["name"]]
        words = shlex.split(self._words(container, command))
        enter = ("nsenter", f"--target={process.pid}", *self._namespaces(), "--root")
        return run_program(*enter, *words, env=self._environment(container))

    def kill(self) -> None:
        """Kill all processes of the containers."""
        for process in self.running.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                started = psutil.Process(process.pid).children(recursive=True)
                for one in [psutil.Process(process.pid), *started]:
                    one.kill()
            process.wait(TIMEOUT_S)
