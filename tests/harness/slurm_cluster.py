"""A real Slurm of several nodes on this machine: munge, a controller and one slurmd per node.

Each node has its own host name, PID, mount and network namespace, and a shell as its init. All
nodes share the file system, like the shared disk of a cluster. Needs root, but no systemd and no
GPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

_COMMANDS = (
    *("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged", "mungekey"),
    *("ip", "nsenter", "unshare", "setpriv"),
)
#: The most clusters of one machine at a time.
_MAX_CLUSTERS = 64
#: The major number of NVIDIA's devices; no driver has to be loaded for a device file.
_NVIDIA_MAJOR = 195
#: Ends a process with the process that started it, even if that is killed.
_DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")

#: The settings of ``slurm.conf`` that a test may replace.
_SETTINGS: Mapping[str, str] = {
    "ClusterName": "test",
    "SlurmUser": "root",
    "AuthType": "auth/munge",
    # Control groups would depend on their version here. linuxproc sends no signal to a process with
    # a space in its name, as the supervisor and the stressors have.
    "ProctrackType": "proctrack/pgid",
    "TaskPlugin": "task/none",
    "MpiDefault": "none",
    "ReturnToService": "2",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    "GresTypes": "gpu",
    # Nodes have the processors of their line, whatever this machine has.
    "SlurmdParameters": "config_overrides",
    "SlurmdTimeout": "10",
    "KillWait": "5",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,sched_min_interval=10000,"
    "bf_interval=1",
}


def _missing() -> str:
    """Say what is missing for a cluster, or return an empty string."""
    if os.getuid() != 0:
        return "needs root, as slurmd does"
    if missing := [name for name in _COMMANDS if shutil.which(name) is None]:
        return f"needs slurmctld, slurmd, slurm-client, munge and iproute2: no {missing[0]}"
    bridge = ("unshare", "--net", "--uts", "--pid", "--fork", "ip", "link", "add", "name", "b")
    done = run_program(*bridge, "type", "bridge")
    return "needs the right to create network namespaces and bridges" if done.returncode else ""


_MISSING = _missing()
needs_slurm = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)


class SlurmCluster:
    """The nodes ``node1``, ``node2``, … of a cluster and its controller.

    Start it with :func:`slurm_cluster`. Start and use it in one thread: its processes end with the
    thread that started them.

    Args:
        number: Distinguishes the clusters of this machine: their bridge, addresses and ports.
        folder: A folder for everything that the cluster writes; every user can read it.
        nodes: The number of nodes, at most 200.
        gpus: The number of GPUs per node.
        minors: The minor numbers of their device files in ``folder/dev``, in the order of
            ``gres.conf``; None stands for 0, 1, ….
        settings: Lines of ``slurm.conf`` to add or replace, such as ``Prolog``; ``{folder}`` stands
            for the folder.
        files: More files beside ``slurm.conf``, by name.
        partitions: The words after ``PartitionName=``, one text per partition. ``ALL`` in
            ``Nodes=ALL`` stands for all nodes.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        *,
        nodes: int = 1,
        gpus: int = 2,
        minors: Sequence[int] | None = None,
        settings: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        partitions: Sequence[str] = ("all Nodes=ALL Default=YES",),
    ) -> None:
        self.folder = folder
        self.nodes = tuple(f"node{index + 1}" for index in range(nodes))
        self.bridge = f"slurm{number}"
        self.subnet = f"10.77.{number}"
        self.port = 16800 + 2 * number
        #: The variables of this process and SLURM_CONF.
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._booted: dict[str, subprocess.Popen[bytes]] = {}
        self._controller: subprocess.Popen[bytes] | None = None
        for name in ("dev", "log", "spool", "state", "munge"):
            (folder / name).mkdir()
        minors = range(gpus) if minors is None else minors
        for minor in minors:
            os.mknod(self.device(minor), stat.S_IFCHR | 0o666, os.makedev(_NVIDIA_MAJOR, minor))
        own = {
            "SlurmctldHost": f"{socket.gethostname().partition('.')[0]}({self.subnet}.1)",
            "SlurmctldPort": str(self.port),
            "SlurmdPort": str(self.port + 1),
            # A requeued job waits until its credential has expired, otherwise for two minutes.
            "AuthInfo": f"socket={folder}/munge/socket,cred_expire=5",
            "SlurmctldPidFile": f"{folder}/slurmctld.pid",
            "SlurmdPidFile": f"{folder}/slurmd.%n.pid",
            "SlurmdSpoolDir": f"{folder}/spool/%n",
            "StateSaveLocation": f"{folder}/state",
            "SlurmctldLogFile": f"{folder}/log/slurmctld",
            "SlurmdLogFile": f"{folder}/log/%n",
        }
        lines = [
            f"{key}={value}".replace("{folder}", str(folder))
            for key, value in {**_SETTINGS, **own, **(settings or {})}.items()
        ]
        lines += [
            f"NodeName={name} NodeHostname={name} NodeAddr={self._address(name)} CPUs=2"
            f" Gres=gpu:{gpus} State=UNKNOWN"
            for name in self.nodes
        ]
        lines += [f"PartitionName={words}" for words in partitions]
        self._write("slurm.conf", "\n".join(lines))
        # Without device files, gres/gpu takes the count for a fault of the node.
        devices = [f"Name=gpu File={self.device(minor)}" for minor in minors]
        self._write("gres.conf", "\n".join(["AutoDetect=off", *devices]))

        for name, text in (files or {}).items():
            self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"{text}\n")

    def device(self, minor: int) -> Path:
        """Return the device file of a GPU; its minor number is part of its name, as NVIDIA's."""
        return self.folder / "dev" / f"nvidia{minor}"

    def _number(self, node: str) -> int:
        return int(node.removeprefix("node"))

    def _address(self, node: str) -> str:
        return f"{self.subnet}.{10 + self._number(node)}"

    def _namespace(self, node: str) -> str:
        return f"{self.bridge}-{node}"

    def _port_of_bridge(self, node: str) -> str:
        return f"{self.bridge}n{self._number(node)}"

    def up(self) -> None:
        """Start the cluster; return once every node is idle."""
        self._start_munge()
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.subnet}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for node in self.nodes:
            name, port = self._namespace(node), self._port_of_bridge(node)
            _ip("netns", "add", name)
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", port, "master", self.bridge)
            _ip("-n", name, "addr", "add", f"{self._address(node)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        self.start_controller()
        for node in self.nodes:
            self.boot(node)
        eventually(lambda: all(self.state(node) == "idle" for node in self.nodes))

    def _start_munge(self) -> None:
        # One per cluster, so that a key of this machine plays no part. --force: the folder above,
        # /tmp, is writable to all.
        munge = self.folder / "munge"
        subprocess.run(["mungekey", "--create", f"--keyfile={munge}/key"], check=True)
        files = {"key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        words = [f"--{option}={munge}/{name}" for option, name in files.items()]
        words += [f"--socket={munge}/socket", "--num-threads=1", "--foreground", "--force"]
        self._spawn(["munged", *words], "munged")
        eventually((munge / "socket").exists)

    def start_controller(self) -> None:
        """Start the controller, with the state that a previous one left."""
        self._controller = self._spawn(["slurmctld", "-D"], "controller")

        def answers() -> bool:
            return self.run("scontrol", "ping", check=False).returncode == 0

        eventually(answers)

    def stop_controller(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the controller; jobs go on."""
        assert self._controller is not None
        self._controller.send_signal(number)
        self._controller.wait(TIMEOUT_S)

    def save_jobs(self) -> None:
        """Return once the controller has saved the present states of its jobs, of at least one.

        It does so some seconds after a change, and a crash loses what it has not saved.
        """
        saved = self.folder / "state" / "job_state"
        before = saved.stat().st_mtime_ns if saved.exists() else 0
        self.run("scontrol", "update", f"JobId={next(iter(self.jobs()))}", "Comment=saved")
        eventually(lambda: saved.exists() and saved.stat().st_mtime_ns > before)

    def restart_controller(self) -> None:
        """Restart the controller, as after a crash of its host."""
        self.stop_controller(signal.SIGKILL)
        self.start_controller()

    def boot(self, node: str) -> None:
        """Start slurmd on a node; return at once."""
        _ip("link", "set", self._port_of_bridge(node), "up")
        # Not `ip netns exec`, which mounts another /sys, without the control groups.
        self._booted[node] = self._spawn(
            [
                "nsenter",
                f"--net=/run/netns/{self._namespace(node)}",
                *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
                # The shell is the init of the node: slurmd takes a zombie for a process that lives.
                # The sleep is there for a node without its slurmd.
                *("sh", "-c", f"hostname {node} && slurmd -D -b; sleep infinity; exit"),
            ],
            f"{node}.output",
        )

    def kill_slurmd(self, node: str) -> None:
        """Kill slurmd on a node; its jobs go on."""
        self.run_on(node, "pkill", "--signal=KILL", f"--pidfile={self.folder}/slurmd.{node}.pid")

    def kill_job(self, node: str) -> None:
        """Kill the only job of a node, with the process of Slurm that serves it."""
        step = self.run_on(node, "pgrep", "--oldest", "slurmstepd").stdout.strip()
        job = self.run_on(node, "pgrep", f"--parent={step}").stdout.split()
        self.run_on(node, "kill", "-KILL", step, *job)

    def start_slurmd(self, node: str) -> None:
        """Start slurmd again on a node where it was killed; return at once."""
        self._spawn([*self._enter(node), "slurmd", "-D"], f"{node}.output")

    def kill(self, node: str) -> None:
        """Cut the power of a node: its link goes down, then all its processes are killed."""
        self.net(node, up=False)
        process = self._booted.pop(node)
        # The first process of a PID namespace takes all others with it.
        os.kill(self._first_process(process), signal.SIGKILL)
        process.wait(TIMEOUT_S)

    def net(self, node: str, *, up: bool) -> None:
        """Connect a node to the network, or disconnect it."""
        _ip("link", "set", self._port_of_bridge(node), "up" if up else "down")

    def _first_process(self, process: subprocess.Popen[bytes]) -> int:
        eventually(lambda: psutil.Process(process.pid).children())
        return psutil.Process(process.pid).children()[0].pid

    def _spawn(self, words: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log" / log).open("ab") as file:
            process = subprocess.Popen(
                [*_DIES_WITH_PARENT, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def run(
        self,
        *words: str | Path,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the cluster on this host, such as ``srun``.

        Args:
            words: The command line.
            check: Fail with the output and the logs if the exit code is not 0.
            environment: More variables.
        """
        done = run_program(*words, env={**self.environment, **(environment or {})})
        assert not (check and done.returncode), f"{words}: {done.returncode}: {done.stderr}"
        return done

    def run_on(
        self,
        node: str,
        *words: str | Path,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node, outside of Slurm; see :meth:`run`."""
        return self.run(*self._enter(node), *words, environment=environment)

    def _enter(self, node: str) -> tuple[str, ...]:
        first = self._first_process(self._booted[node])
        return ("nsenter", f"--target={first}", "--net", "--uts", "--pid", "--mount")

    def start(
        self,
        *words: str | Path,
        environment: Mapping[str, str] | None = None,
        **options: int | str | Path,
    ) -> subprocess.Popen[str]:
        """Start a command of the cluster on this host; it is killed at the end.

        Args:
            words: The command line.
            environment: More variables.
            options: Of :class:`subprocess.Popen`; by default, its output can be read.
        """
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        process = subprocess.Popen(
            [*_DIES_WITH_PARENT, *words],
            env={**self.environment, **(environment or {})},
            text=True,
            **{**streams, "stderr": subprocess.STDOUT, **options},  # type: ignore[call-overload]
        )
        self._processes.append(process)
        return process  # type: ignore[no-any-return]

    def _field(self, node: str, field: str) -> str:
        words = ("--noheader", f"--nodes={node}", "--Format", f"{field}:200")
        lines = self.run("sinfo", *words, check=False).stdout.splitlines()
        return lines[0].strip() if lines else ""

    def state(self, node: str) -> str:
        """Query the state of a node, such as ``idle``, ``drained`` or ``down*``."""
        return self._field(node, "StateLong")

    def reason(self, node: str) -> str:
        """Query why a node is drained or down; ``none`` if it is not."""
        return self._field(node, "Reason")

    def jobs(self) -> dict[str, str]:
        """Query the states of all jobs that the controller remembers, by number."""
        lines = self.run("squeue", "--noheader", "--states=all", "--format=%i %T").stdout
        return dict(line.split() for line in lines.splitlines())

    def print_logs(self) -> None:
        """Print the ends of all logs."""
        for file in sorted((self.folder / "log").iterdir()):
            sys.stdout.write(f"--- {file.name}\n")
            sys.stdout.write("\n".join(file.read_text(errors="replace").splitlines()[-20:]) + "\n")

    def down(self) -> None:
        """Kill everything and remove the network."""
        for process in reversed(self._processes):
            process.kill()
            process.wait(TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()
        _remove_network(self.bridge)


def _ip(*words: str) -> None:
    done = run_program("ip", *words)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def _remove_network(bridge: str) -> None:
    """Remove the bridge of a cluster, its links and network namespaces, if there are any."""
    # A link that ends with its namespace would still be there for a moment.
    for link in Path("/sys/class/net").glob(f"{bridge}n*"):
        _ip("link", "del", link.name)
    folder = Path("/run/netns")
    for name in folder.glob(f"{bridge}-*") if folder.exists() else ():
        _ip("netns", "del", name.name)
    if Path("/sys/class/net", bridge).exists():
        _ip("link", "del", bridge)


@contextlib.contextmanager
def _claim() -> Iterator[tuple[int, Path]]:
    """Claim a number that no other cluster of this machine has, and create its folder."""
    for number in range(_MAX_CLUSTERS):
        folder = Path("/tmp", f"slurm-cluster-{number}")  # noqa: S108 - of root alone
        with Path(f"{folder}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            # A test that was killed leaves its network and its files.
            _remove_network(f"slurm{number}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            folder.chmod(0o755)
            try:
                yield number, folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
    raise AssertionError(f"there are {_MAX_CLUSTERS} clusters already")


@contextlib.contextmanager
def slurm_cluster(**options: Any) -> Iterator[SlurmCluster]:
    """Run a cluster, beside any others; see :class:`SlurmCluster` for the options."""
    with _claim() as (number, folder):
        cluster = SlurmCluster(number, folder, **options)
        try:
            cluster.up()
            yield cluster
        except BaseException:
            cluster.print_logs()  # pytest shows what a failed test printed
            raise
        finally:
            cluster.down()
