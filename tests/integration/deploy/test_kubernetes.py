"""The manifests for Kubernetes render, are valid, and their scripts work on simulated GPUs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from sentinel.burnin.reports.verdict_summary import MAX_BYTES
from sentinel.cli.main import sentinel_command
from sentinel.config.model import SETTINGS
from sentinel.errors import ExitCode
from sentinel.protocol.version import __version__
from tests.harness.daemon_harness import Daemon
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

yaml = pytest.importorskip("yaml")

DEPLOY = ROOT / "deploy" / "kubernetes"
RENDERED = (
    *("base", "acceptance", "node-problem-detector"),
    *("examples/overlay", "examples/acceptance-overlay"),
)
PLAIN = ("device-taints/rbac.yaml", "device-taints/devicetaintrule.yaml")
KUBECTL = shutil.which("kubectl")
#: Beside the Python that runs the tests, or in the search path.
VALIDATOR = shutil.which("kubernetes-validate") or shutil.which(
    "kubernetes-validate", path=str(Path(sys.executable).parent)
)
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
needs_validator = pytest.mark.skipif(
    VALIDATOR is None, reason="needs kubernetes-validate: pip install kubernetes-validate"
)
#: The versions of Kubernetes that the manifests are for; DeviceTaintRule v1 is of the last.
VERSIONS = ("1.31", "1.34", "1.37")


@cache
def rendered(folder: str) -> str:
    command = ["kubectl", "kustomize", str(DEPLOY / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(folder: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(rendered(folder)) if one["kind"] == kind]


@pytest.fixture
def daemon_set() -> dict[str, Any]:
    (found,) = objects("base", "DaemonSet")
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


# --- manifests -------------------------------------------------------------------------------


def validate(text: str, folder: Path, version: str) -> None:
    file = folder / "manifest.yaml"
    file.write_text(text)
    command = [str(VALIDATOR), "--strict", "--no-warn", "-k", version, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@needs_kubectl
@needs_validator
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", RENDERED)
def test_what_kustomize_builds_is_valid(folder: str, version: str, tmp_path: Path) -> None:
    validate(rendered(folder), tmp_path, version)


@pytest.mark.long
@needs_validator
@pytest.mark.parametrize("file", PLAIN)
def test_plain_manifests_are_valid(file: str, tmp_path: Path) -> None:
    validate((DEPLOY / file).read_text(), tmp_path, VERSIONS[-1])


@pytest.mark.long
@needs_validator
def test_the_validator_finds_a_wrong_field(tmp_path: Path) -> None:
    wrong = (DEPLOY / "base" / "daemonset.yaml").read_text().replace("hostPID", "hostPid")
    with pytest.raises(AssertionError, match="hostPid"):
        validate(wrong, tmp_path, VERSIONS[-1])


@needs_kubectl
def test_it_takes_no_gpu_from_the_device_plugin() -> None:
    for folder in RENDERED:
        for one in yaml.safe_load_all(rendered(folder)):
            for container in _containers(one):
                assert "nvidia.com/gpu" not in str(container.get("resources", {}))


def _containers(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    yield from [*pod.get("initContainers", []), *pod.get("containers", [])]


@needs_kubectl
def test_it_sees_all_processes_and_gpus_and_evicts_nothing(daemon_set: dict[str, Any]) -> None:
    assert daemon_set["hostPID"] is True
    assert daemon_set["runtimeClassName"] == "nvidia"
    assert daemon_set["automountServiceAccountToken"] is False
    (container,) = daemon_set["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]
    (priority,) = objects("base", "PriorityClass")
    assert daemon_set["priorityClassName"] == priority["metadata"]["name"]
    assert priority["preemptionPolicy"] == "Never"
    assert priority["value"] < 0
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    wait = int(re.sub(r"\D", "", hook[hook.index("--wait") + 1]))
    assert wait < daemon_set["terminationGracePeriodSeconds"]


@needs_kubectl
def test_the_job_shares_the_folders_of_the_daemon(daemon_set: dict[str, Any]) -> None:
    (job,) = objects("acceptance", "Job")
    pod = job["spec"]["template"]["spec"]
    host = {str(one["hostPath"]) for one in daemon_set["volumes"]}
    assert host == {str(one["hostPath"]) for one in pod["volumes"] if "hostPath" in one}
    (container,) = pod["containers"]
    mounts = [one for one in container["volumeMounts"] if one["name"] != "script"]
    assert mounts == daemon_set["containers"][0]["volumeMounts"]
    (rule, _) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [
        int(ExitCode.FAIL),
        int(ExitCode.USAGE),
        int(ExitCode.VERDICT_USAGE),
    ]
    assert rule["onExitCodes"]["containerName"] == container["name"]


@needs_kubectl
@pytest.mark.parametrize(
    ("folder", "kind", "owner"),
    [
        ("base", "DaemonSet", "0:0"),
        ("examples/overlay", "DaemonSet", "10001:10001"),
        ("examples/acceptance-overlay", "Job", "10001:10001"),
    ],
)
def test_the_folders_become_those_of_the_user_of_the_pod(
    folder: str, kind: str, owner: str, tmp_path: Path
) -> None:
    (found,) = objects(folder, kind)
    pod = found["spec"]["template"]["spec"]
    users = pod["securityContext"]
    assert f"{users['runAsUser']}:{users['runAsGroup']}" == owner
    (init,) = pod["initContainers"]
    assert {"name": "OWNER", "value": owner} in init["env"]
    (script,) = init["args"]
    names = ("run/sentinel", "var/lib/sentinel", "run/lock/sentinel")
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        script = script.replace(f"/{name}", str(tmp_path / name))
    (tmp_path / names[0] / "socket.lock").touch(0o600)
    (tmp_path / names[1] / "runs").mkdir()
    (tmp_path / names[1] / "runs" / "report.json").touch(0o600)
    # Another user is root's to choose.
    user = 10001 if os.getuid() == 0 else os.getuid()
    environment = {**os.environ, "OWNER": f"{user}:{user if user == 10001 else os.getgid()}"}
    for _ in range(2):  # the next pod finds what the first one made
        subprocess.run([*init["command"], script], env=environment, check=True)
    inside = [path for name in names[:2] for path in (tmp_path / name).rglob("*")]
    assert {path.stat().st_uid for path in inside} == {user}
    modes = {name: (tmp_path / name).stat().st_mode & 0o7777 for name in names}
    assert modes == dict(zip(names, (0o755, 0o700, 0o1777), strict=True))


@needs_kubectl
def test_an_acceptance_leaves_the_folders_of_a_running_daemon_alone(tmp_path: Path) -> None:
    (found,) = objects("examples/acceptance-overlay", "Job")
    (init,) = found["spec"]["template"]["spec"]["initContainers"]
    script = init["args"][0].replace("/run/sentinel", str(tmp_path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sentinel.sock"))
        environment = {**os.environ, "OWNER": "no-such-user"}
        subprocess.run([*init["command"], script], env=environment, check=True)


@needs_kubectl
def test_the_name_of_a_job_fits_whatever_the_name_of_the_node() -> None:
    text = rendered("acceptance")
    number = "261123-153000-100000"
    text = text.replace("node-to-burn-in", "n" * 253).replace("number-of-the-run", number)
    (job,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "Job")
    # The controller makes a label of it: kubernetes.io/docs/concepts/workloads/controllers/job
    assert len(job["metadata"]["name"]) <= 63
    terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["n" * 253]


@needs_kubectl
@pytest.mark.parametrize("folder", ["base", "acceptance", "examples/overlay"])
def test_kubectl_logs_and_exec_mean_sentinel(folder: str) -> None:
    (template,) = (
        one["spec"]["template"]
        for one in yaml.safe_load_all(rendered(folder))
        if one["kind"] in {"DaemonSet", "Job"}
    )
    default = template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
    assert default in {"sentinel", "burnin"}
    assert default in [one["name"] for one in template["spec"]["containers"]]


def test_tini_reaps_with_the_pids_of_the_host() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert re.search(r'^ENTRYPOINT \["tini", "--"', text, re.MULTILINE)
    assert "TINI_SUBREAPER=1" in text


@needs_kubectl
def test_the_component_takes_all_privileges_from_daemon_and_job() -> None:
    (daemon,) = objects("examples/overlay", "DaemonSet")
    (job,) = objects("examples/acceptance-overlay", "Job")
    pods = [one["spec"]["template"]["spec"] for one in (daemon, job)]
    for pod in pods:
        assert pod["securityContext"]["runAsUser"] == 10001
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert not rights.get("privileged")
            assert rights.get("runAsUser", 10001) == 10001
            assert rights["capabilities"] == {"drop": ["ALL"]}


# --- the commands of the document ------------------------------------------------------------

NODES = ("ip-192-168-100-200.eu-central-1.compute.internal", "node-b")
#: Knows two nodes, keeps what is applied from its input, and is the real one otherwise.
FAKE_KUBECTL = """#!/bin/sh
case "$1 $3" in
get*) echo {nodes} ;;
"apply -") cat >>{applied}; echo --- >>{applied} ;;
apply*) : ;;
*) exec {kubectl} "$@" ;;
esac
"""


def run_documented(name: str, folder: Path) -> Path:
    """Run a block of the document beside a copy of deploy/; return what was applied."""
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    examples = folder / "deploy" / "kubernetes" / "examples"
    shutil.copytree(examples / "acceptance-overlay", examples / "site-acceptance")
    command, applied = folder / "kubectl", folder / "applied.yaml"
    text = FAKE_KUBECTL.format(nodes=" ".join(NODES), applied=applied, kubectl=KUBECTL)
    command.write_text(text)
    command.chmod(0o755)
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    block = re.search(
        rf"^<!-- test: {name} -->\n```\n(.*?)^```$", document, re.DOTALL | re.MULTILINE
    )
    assert block is not None
    subprocess.run(
        ["sh", "-euc", block[1]],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        check=True,
        timeout=TIMEOUT_S,
    )
    return applied


@needs_kubectl
def test_the_document_gives_the_daemon_settings(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    overlay = tmp_path / "deploy" / "kubernetes" / "examples" / "overlay"
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    block = re.search(r"^```yaml\n(patches:\n.*?)^```$", document, re.DOTALL | re.MULTILINE)
    assert block is not None
    with (overlay / "kustomization.yaml").open("a") as file:
        file.write(block[1])
    (found,) = objects(str(overlay), "DaemonSet")
    (container,) = [
        one for one in found["spec"]["template"]["spec"]["containers"] if one["name"] == "sentinel"
    ]
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given["SENTINEL_METRICS"]
    variables = {one.variable for one in SETTINGS}
    assert {"SENTINEL_WORKLOAD", "SENTINEL_QUIET"} <= set(given) & variables


@needs_kubectl
def test_the_document_makes_a_job_for_each_node(tmp_path: Path) -> None:
    applied = run_documented("acceptance", tmp_path)
    jobs = [one for one in yaml.safe_load_all(applied.read_text()) if one and one["kind"] == "Job"]
    assert [job["metadata"]["annotations"]["sentinel/node"] for job in jobs] == list(NODES)
    assert len({job["metadata"]["name"] for job in jobs}) == len(NODES)
    for job in jobs:
        affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == [job["metadata"]["annotations"]["sentinel/node"]]
    assert "node-to-burn-in" not in str(jobs)
    assert "number-of-the-run" not in str(jobs)


@needs_kubectl
def test_the_document_makes_rules_and_dashboards_for_the_operator(tmp_path: Path) -> None:
    run_documented("monitoring", tmp_path)
    rules = list(yaml.safe_load_all((tmp_path / "sentinel-rules.yaml").read_text()))
    folder = ROOT / "deploy" / "prometheus"
    for one in rules:
        file = folder / f"{one['metadata']['name']}.rules.yml"
        assert one["spec"] == yaml.safe_load(file.read_text())
    assert len(rules) == len(list(folder.glob("*.rules.yml")))
    dashboards = yaml.safe_load((tmp_path / "sentinel-dashboards.yaml").read_text())
    assert dashboards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    for file in (ROOT / "deploy" / "grafana").glob("*.json"):
        assert dashboards["data"][file.name] == file.read_text()


def _words(value: Any) -> Iterator[list[str]]:
    """Yield every command line in a manifest."""
    match value:
        case dict():
            command, arguments = value.get("command"), value.get("args")
            if isinstance(command, list) or isinstance(arguments, list):
                yield [*(command or ["sentinel"]), *(arguments or [])]
            for item in value.values():
                yield from _words(item)
        case list():
            for item in value:
                yield from _words(item)


def check_words(words: list[str]) -> None:
    """Check that a command of sentinel exists and takes these options."""
    context = click.Context(sentinel_command, info_name="sentinel")
    name, command, rest = sentinel_command.resolve_command(context, words[1:])
    assert command is not None
    command.make_context(name, rest, parent=context)


@needs_kubectl
@pytest.mark.parametrize("folder", RENDERED)
def test_every_command_of_a_manifest_exists(folder: str) -> None:
    found = [
        words
        for one in yaml.safe_load_all(rendered(folder))
        for words in _words(one)
        if words[0] == "sentinel"
    ]
    assert len(found) >= (2 if folder in {"base", "examples/overlay"} else 0)
    for words in found:
        check_words(words)


def test_the_other_examples_run_commands_that_exist() -> None:
    values = yaml.safe_load((DEPLOY / "examples/nvsentinel/values.yaml").read_text())
    test = values["lifecycle-manager"]["config"]["tests"]["sentinel-burnin"]
    check_words(test["command"])
    request = yaml.safe_load((DEPLOY / "examples/nvsentinel/validation-request.yaml").read_text())
    assert request["spec"]["tests"] == ["sentinel-burnin"]
    entry = yaml.safe_load(
        (DEPLOY / "examples/cluster-readiness-engine/sentinel-burnin.yaml").read_text()
    )
    trainer = entry["jobTemplate"]["spec"]["workload"]["trainJob"]["trainer"]
    check_words([*trainer["command"], *trainer["args"]])


def test_the_images_are_of_this_version() -> None:
    for path in DEPLOY.rglob("*.yaml"):
        for tag in re.findall(r"(?:image: \S+/sentinel:|newTag: )(\S+)", path.read_text()):
            assert tag == __version__, path


# --- acceptance ------------------------------------------------------------------------------

PLAN = """
spec = "sentinel-plan-v1"
name = "short"
[[phase]]
name = "first"
workload = "bad_workloads:{workload}"
seconds = {seconds}
"""


#: A run that is resumed finds its GPUs by itself, unless they are simulated.
COMMAND = """#!/bin/sh
[ "$1 $2" = "burnin --resume" ] && set -- "$@" --simulate 2
exec {python} -m sentinel "$@"
"""


class Acceptance:
    """The script of the Job on simulated GPUs.

    Args:
        host: The simulated GPUs.
        workload: The workload of the plan's only phase.
        seconds: Its duration.
    """

    def __init__(self, host: SimulatedHost, workload: str, seconds: int = 2) -> None:
        self.plan = host.folder / "plan.toml"
        self.plan.write_text(PLAN.format(workload=workload, seconds=seconds))
        self.message = host.folder / "termination-log"
        self.state = host.folder / "state"
        self.report = self.state / "runs" / "uid-1"
        command = host.folder / "bin" / "sentinel"
        command.parent.mkdir(exist_ok=True)
        command.write_text(COMMAND.format(python=sys.executable))
        command.chmod(0o755)
        self.environment = host.environment(
            SENTINEL_SIM_DIR=str(host.folder),
            RUN_NAME="uid-1",
            TERMINATION_LOG=str(self.message),
            STATE_DIRECTORY=str(self.state),
            NODE_NAME="worker-7",
            PATH=f"{command.parent}:{os.environ['PATH']}",
        )

    def start(self) -> subprocess.Popen[str]:
        """Start the script as the Job's container does."""
        words = ("--simulate", "2", "--plan", str(self.plan), "--fail-fast")
        return subprocess.Popen(
            ["sh", str(DEPLOY / "acceptance" / "acceptance.sh"), *words],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self) -> tuple[int, str]:
        """Run the script; return its exit code and its log."""
        with self.start() as process:
            output, _ = process.communicate(timeout=3 * TIMEOUT_S)
        return process.returncode, output

    def summary(self) -> dict[str, Any]:
        """Read the termination message."""
        assert self.message.stat().st_size <= MAX_BYTES
        found: dict[str, Any] = json.loads(self.message.read_text())
        return found


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("workload", "code", "verdicts"),
    [("checks_results", 0, {"PASS", "WARN"}), ("faulty", 1, {"FAIL"})],
)
def test_an_acceptance_leaves_the_verdict_of_each_gpu(
    simulated: SimulatedHost, workload: str, code: int, verdicts: set[str]
) -> None:
    acceptance = Acceptance(simulated, workload)
    found, output = acceptance.run()
    assert found == code, output
    summary = acceptance.summary()
    assert summary["node"] == "worker-7"
    assert summary["verdict"] in verdicts
    assert len(summary["gpus"]) == 2
    assert "short" in output
    again, output = acceptance.run()
    assert again == code, f"the verdict of a run that is over stands: {output}"
    assert acceptance.summary() == summary


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_an_evicted_acceptance_is_incomplete_and_the_next_pod_goes_on(
    simulated: SimulatedHost,
) -> None:
    acceptance = Acceptance(simulated, "checks_results", seconds=6)
    with acceptance.start() as process:
        events = acceptance.report / "events.jsonl"
        # The first of two: on a busy host, the other one has most of its seconds still to do.
        eventually(lambda: events.exists() and '"stressor.ready"' in events.read_text())
        process.terminate()
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == ExitCode.INCOMPLETE, output
    assert acceptance.summary()["verdict"] == "INCOMPLETE"
    code, output = acceptance.run()
    assert code == 0, output
    report = json.loads((acceptance.report / "report.json").read_text())
    assert len(report["run"]["resumed"]) == 1


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_an_evicted_acceptance_beside_a_daemon_has_the_daemon_end_it(daemon: Daemon) -> None:
    daemon.start(2)
    acceptance = Acceptance(daemon.host, "checks_results", seconds=3000)
    with acceptance.start() as process:
        eventually(lambda: daemon.client.status().daemon.burnin is not None)
        process.terminate()
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == ExitCode.INCOMPLETE, output
    assert acceptance.summary()["verdict"] == "INCOMPLETE"
    eventually(lambda: daemon.client.status().daemon.burnin is None)


# --- the node's condition --------------------------------------------------------------------

PLUGIN = DEPLOY / "node-problem-detector" / "gpu-burnin.sh"
WRITER = DEPLOY / "components" / "node-condition" / "write-condition.sh"


def plugin(file: Path, *words: str) -> tuple[int, str]:
    command = ["sh", str(PLUGIN), str(file), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert len(line) <= 80
    return done.returncode, line


@pytest.mark.parametrize(
    ("written", "code", "line"),
    [
        ("0 8 GPUs passed the last burn-in\n", 0, "8 GPUs passed the last burn-in"),
        ("1 GPU 1 GPU-952937bc: FAIL standard\n", 1, "GPU 1 GPU-952937bc: FAIL standard"),
        ("2 no burn-in is known\n", 2, "no burn-in is known"),
        ("127 sentinel health failed\n", 2, "sentinel health failed"),
        ("1\n", 2, ""),
        ("0\n", 2, ""),
        ("", 2, ""),
        (f"1 {'x' * 300}\n", 1, "x" * 80),
    ],
)
def test_the_plugin_answers_what_was_written(
    tmp_path: Path, written: str, code: int, line: str
) -> None:
    (tmp_path / "npd").write_text(written)
    assert plugin(tmp_path / "npd") == (code, line)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_plugin_does_not_know_what_it_cannot_read(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    command = [shell, str(PLUGIN), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (2, "")


def test_the_plugin_does_not_know_without_a_fresh_answer(tmp_path: Path) -> None:
    assert plugin(tmp_path / "npd")[0] == 2
    (tmp_path / "npd").write_text("0 good\n")
    os.utime(tmp_path / "npd", (1, 1))
    code, line = plugin(tmp_path / "npd")
    assert code == 2
    assert line.endswith("s old")


@pytest.mark.parametrize(
    ("answer", "code", "known", "line"),
    [
        *(('echo "$@"', code, code, "health --npd") for code in (0, 1, 2)),
        # Python that cannot start has no line, and the code of a faulty GPU.
        *(("", code, 2, "sentinel health failed") for code in (0, 1)),
    ],
)
def test_the_writer_writes_again_and_again_and_ends_at_once(
    tmp_path: Path, answer: str, code: int, known: int, line: str
) -> None:
    command, file, calls = tmp_path / "sentinel", tmp_path / "npd", tmp_path / "calls"
    command.write_text(f"#!/bin/sh\necho x >> {calls}\n{answer}\nexit {code}\n")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CONDITION_FILE": str(file),
        "CONDITION_INTERVAL": "0.1",
    }
    with subprocess.Popen(["sh", str(WRITER)], env=environment) as process:
        eventually(lambda: calls.exists() and len(calls.read_text()) > 4)
        assert plugin(file) == (known, line)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_the_monitors_are_for_the_same_condition_and_name_commands_that_exist() -> None:
    found = [
        json.loads((PLUGIN.parent / f"sentinel-monitor{name}.json").read_text())
        for name in ("", "-host")
    ]
    for one in found:
        (condition,), (rule,) = one["conditions"], one["rules"]
        assert condition["type"] == rule["condition"] == "GpuBurnInFailed"
        assert one["pluginConfig"]["max_output_length"] == 80
    inside, host = (one["rules"][0] for one in found)
    assert [Path(word).name for word in inside["args"]] == [PLUGIN.name]
    (line,) = re.findall(r"/usr/bin/(sentinel [^;)]*?) 2>", host["args"][1])
    check_words(line.split())


@pytest.mark.parametrize(
    ("answer", "code", "known"),
    [("echo good", 0, 0), ("echo bad", 1, 1), ("echo what", 2, 2), ("", 1, 2), ("", 127, 2)],
)
def test_on_the_host_no_answer_is_no_fault(
    tmp_path: Path, answer: str, code: int, known: int
) -> None:
    command = tmp_path / "sentinel"
    command.write_text(f"#!/bin/sh\n{answer}\nexit {code}\n")
    command.chmod(0o755)
    (rule,) = json.loads((PLUGIN.parent / "sentinel-monitor-host.json").read_text())["rules"]
    words = [word.replace("/usr/bin/sentinel", str(command)) for word in rule["args"]]
    done = subprocess.run([rule["path"], *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (known, "")


# --- the PodMonitor --------------------------------------------------------------------------


def test_a_new_pod_of_a_node_continues_its_series() -> None:
    """SentinelGpuMissing compares with the last day, and counts of restarts with an hour."""
    folder = DEPLOY / "components" / "pod-monitor"
    monitor = yaml.safe_load((folder / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    rules = endpoint["relabelings"]
    # The operator adds these to a target; namespace, container and endpoint do not change.
    labels = {"pod": "sentinel-abcde", "instance": "10.0.0.7:8766"}
    for rule in rules:
        if rule["action"] == "labeldrop":
            labels = {k: v for k, v in labels.items() if not re.fullmatch(rule["regex"], k)}
        elif rule.get("sourceLabels") == ["__meta_kubernetes_pod_node_name"]:
            labels[rule["targetLabel"]] = "node-a"
        else:
            labels[rule["targetLabel"]] = rule["replacement"]
    assert labels == {"instance": "node-a", "cluster": "main"}
