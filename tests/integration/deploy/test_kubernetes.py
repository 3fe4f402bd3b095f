"""The manifests for Kubernetes are valid, and their commands and those of the document work."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.burnin.levels import find_plan
from sentinel.config.model import SETTINGS
from sentinel.diagnostics.doctor_checks import RESIDENT
from sentinel.errors import ExitCode
from sentinel.protocol import __version__
from sentinel.units import parse_size
from tests.harness.fake_nvml import NEEDS_COMPILER, NvmlHost
from tests.harness.gpu_environment import ROOT
from tests.harness.kubernetes_cluster import (
    DEPLOY,
    KUBECTL,
    RENDERED,
    check_words,
    needs_kubectl,
    objects,
    overlay_with,
    rendered,
)
from tests.harness.parameters import mostly_long
from tests.harness.programs import documented_commands, run_program, write_script

yaml = pytest.importorskip("yaml")

PLAIN = ("device-taints/rbac.yaml", "device-taints/devicetaintrule.yaml")
#: Beside the Python that runs the tests, or in the search path.
VALIDATOR = shutil.which("kubernetes-validate") or shutil.which(
    "kubernetes-validate", path=str(Path(sys.executable).parent)
)
needs_validator = pytest.mark.skipif(
    VALIDATOR is None, reason="needs kubernetes-validate: pip install kubernetes-validate"
)
#: The versions of Kubernetes that the manifests are for; DeviceTaintRule v1 is of the last.
VERSIONS = ("1.31", "1.34", "1.37")
#: The host memory of the supervisor, two probes, the API and the standby stressor, in bytes
#: (docs/guides/daemon.md).
OWN = (35 + 2 * 40 + 60 + 350) * 10**6
#: linux/capability.h
CAP_SYSLOG = 34


@pytest.fixture
def daemon_set() -> dict[str, Any]:
    return pod_of("base", "DaemonSet")


def pod_of(folder: str, kind: str) -> dict[str, Any]:
    """Build the manifests of a folder; return the pod of its only object of this kind."""
    (found,) = objects(folder, kind)
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def validate(text: str, folder: Path, version: str) -> None:
    file = folder / "manifest.yaml"
    file.write_text(text)
    done = run_program(str(VALIDATOR), "--strict", "--no-warn", "-k", version, file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@needs_kubectl
@needs_validator
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", RENDERED)
def test_what_kustomize_builds_is_valid(folder: str, version: str, tmp_path: Path) -> None:
    validate(rendered(folder), tmp_path, version)


@pytest.mark.long
@needs_kubectl
@needs_validator
@pytest.mark.parametrize(
    ("name", "more"), [("overlay", ()), ("acceptance-overlay", ("expectation",))]
)
def test_an_overlay_with_components_is_valid(
    name: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    folder = overlay_with(tmp_path, name, "tolerations", "privileged", *more)
    validate(rendered(folder), tmp_path, VERSIONS[-1])


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


@pytest.mark.long
@needs_kubectl
@NEEDS_COMPILER
@pytest.mark.usefixtures("fake_torch")
def test_the_hook_leaves_no_process_with_the_driver(
    daemon_set: dict[str, Any], nvml_library: Path, tmp_path: Path
) -> None:
    """Otherwise neither the kernel module can be unloaded nor a GPU be reset."""
    nvml = NvmlHost(tmp_path, nvml_library)
    hook = daemon_set["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    folders = {name: str(tmp_path / name) for name in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY")}
    flags = ("--rearm", "300ms", "--workload", "hold")
    with nvml.sentinel(2, *flags, api=True, environment=folders) as sentinel:

        def readers() -> list[psutil.Process]:
            every = [psutil.Process(sentinel.process.pid), *sentinel.children()]
            return [one for one in every if any("nvidia-ml" in m.path for m in one.memory_maps())]

        for gpu in (0, 1):
            sentinel.wait_for("stressor.ready", gpu=gpu)
        sentinel.wait_for("service.ready")
        assert readers()
        environment = nvml.environment(**folders)
        run_program(sys.executable, "-m", *hook, env=environment, check=True)
        assert not readers()
        assert nvml.empty(0)
        assert nvml.empty(1)


#: The values of the label of GPU operator 26.7 and later; None before, and without it.
CLIENT = "nvidia.com/gpu.deploy.client"
CLIENT_VALUES = ("true", None, "paused-for-driver-upgrade", "paused-for-mig-change", "false")


def _runs_on(pod: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Decide as the controller of DaemonSets does, by the selector and any term of the affinity."""
    needed = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    def holds(rule: Mapping[str, Any]) -> bool:
        if rule["operator"] == "DoesNotExist":
            return rule["key"] not in labels
        return rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]

    return pod["nodeSelector"].items() <= labels.items() and any(
        all(map(holds, term["matchExpressions"])) for term in needed["nodeSelectorTerms"]
    )


@needs_kubectl
@mostly_long("added", [(), ("gpu-operator",)])
def test_the_pod_ends_while_the_gpu_operator_pauses_clients_of_the_gpu(
    added: tuple[str, ...], tmp_path: Path
) -> None:
    pod = pod_of(overlay_with(tmp_path, "overlay", *added), "DaemonSet")
    # The operator waits for a pod by the key of its selector.
    assert (CLIENT in pod["nodeSelector"]) is bool(added)
    present = {"nvidia.com/gpu.present": "true"}
    labels = {value: present | ({CLIENT: value} if value else {}) for value in CLIENT_VALUES}
    runs = {value for value in CLIENT_VALUES if _runs_on(pod, labels[value])}
    assert runs == ({"true"} if added else {"true", None})


@needs_kubectl
def test_the_job_shares_the_folders_of_the_daemon(daemon_set: dict[str, Any]) -> None:
    (job,) = objects("acceptance", "Job")
    pod = job["spec"]["template"]["spec"]
    host = {str(one["hostPath"]) for one in daemon_set["volumes"] if "hostPath" in one}
    assert host == {str(one["hostPath"]) for one in pod["volumes"] if "hostPath" in one}
    (container,) = pod["containers"]
    mounts = [one for one in container["volumeMounts"] if one["name"] != "script"]
    of_daemon = daemon_set["containers"][0]["volumeMounts"]
    assert mounts == [one for one in of_daemon if one["name"] != "tmp"]
    (final, held, _) = (
        rule.get("onExitCodes") for rule in job["spec"]["podFailurePolicy"]["rules"]
    )
    assert final["values"] == [int(ExitCode.FAIL), int(ExitCode.USAGE)]
    assert held["values"] == [int(ExitCode.HELD)]
    assert final["containerName"] == held["containerName"] == container["name"]


def user_of(pod: Mapping[str, Any]) -> str:
    """Find the user and the group that the work of a pod has."""
    (container, *_) = pod["containers"]
    words = dict(word.split("=") for word in container.get("command", ()) if "id=" in word)
    users = {"runAsGroup": 0, **pod.get("securityContext", {}), **container["securityContext"]}
    return ":".join(
        str(words.get(f"--re{name}", users[f"runAs{user}"]))
        for name, user in (("uid", "User"), ("gid", "Group"))
    )


@needs_kubectl
@mostly_long(
    "name, components, owner",
    [
        ("overlay", (), "10001:10001"),
        ("acceptance-overlay", (), "10001:10001"),
        ("overlay", ("privileged",), "0:0"),
        ("acceptance-overlay", ("privileged",), "0:0"),
    ],
)
def test_the_folders_become_those_of_the_user_of_the_pod(
    name: str, components: tuple[str, ...], owner: str, tmp_path: Path
) -> None:
    kind = "Job" if name.startswith("acceptance") else "DaemonSet"
    pod = pod_of(overlay_with(tmp_path, name, *components), kind)
    assert user_of(pod) == owner
    (init,) = pod["initContainers"]
    assert {"name": "OWNER", "value": owner} in init["env"]
    (script,) = init["args"]
    names = ("run/sentinel", "var/lib/sentinel", "run/lock/sentinel", "tmp")
    for place in names:
        (tmp_path / place).mkdir(parents=True)
    script = re.sub(rf" /({'|'.join(names)})\b", rf" {tmp_path}/\1", script)
    (tmp_path / names[0] / "socket.json").touch(0o600)
    (tmp_path / names[1] / "runs").mkdir()
    (tmp_path / names[1] / "runs" / "report.json").touch(0o600)
    # Another user is root's to choose.
    user = 10001 if os.getuid() == 0 else os.getuid()
    environment = {**os.environ, "OWNER": f"{user}:{user if user == 10001 else os.getgid()}"}
    for _ in range(2):  # the next pod finds what the first one made
        run_program(*init["command"], script, env=environment, check=True)
    inside = [path for place in names[:2] for path in (tmp_path / place).rglob("*")]
    assert {path.stat().st_uid for path in inside} == {user}
    modes = [(tmp_path / place).stat().st_mode & 0o7777 for place in names[:3]]
    assert modes == [0o755, 0o700, 0o1777]
    # A burn-in trusts no socket in a folder without the sticky bit, as an emptyDir has none.
    shared = any(mount["mountPath"] == "/tmp" for mount in init["volumeMounts"])  # noqa: S108
    assert bool((tmp_path / "tmp").stat().st_mode & 0o1000) is shared is (kind == "DaemonSet")


@needs_kubectl
def test_an_acceptance_leaves_the_folders_of_a_running_daemon_alone(tmp_path: Path) -> None:
    (init,) = pod_of("examples/acceptance-overlay", "Job")["initContainers"]
    script = init["args"][0].replace("/run/sentinel", str(tmp_path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sentinel.sock"))
        environment = {**os.environ, "OWNER": "no-such-user"}
        run_program(*init["command"], script, env=environment, check=True)


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
@pytest.mark.parametrize("folder", ["base", "examples/overlay"])
def test_the_daemon_has_no_privileges(folder: str) -> None:
    pod = pod_of(folder, "DaemonSet")
    assert pod["securityContext"]["runAsUser"] == 10001
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert not rights.get("privileged")
        assert not rights["allowPrivilegeEscalation"]
        assert "runAsUser" not in rights
        assert rights["capabilities"] == {"drop": ["ALL"]}


@needs_kubectl
def test_the_component_makes_the_daemon_privileged(tmp_path: Path) -> None:
    pod = pod_of(overlay_with(tmp_path, "overlay", "privileged"), "DaemonSet")
    rights = {one["name"]: one["securityContext"] for one in pod["containers"]}
    # The API server refuses a privileged container without allowPrivilegeEscalation.
    assert rights["sentinel"] == {"privileged": True}


@needs_kubectl
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_acceptance_reads_the_log_of_the_kernel_and_can_do_nothing_else() -> None:
    pod = pod_of("acceptance", "Job")
    (container,) = pod["containers"]
    assert container["securityContext"] == {"privileged": True, "runAsUser": 0}
    command = container["command"]
    words = command[command.index("setpriv") : command.index("sh")]
    done = run_program(*words, "cat", "/proc/self/status", check=True)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines())
    assert {*status["Uid"].split(), *status["Gid"].split()} == {"10001"}
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 1 << CAP_SYSLOG
    assert status["NoNewPrivs"] == "1"


@needs_kubectl
@pytest.mark.parametrize(("folder", "kind"), [("base", "DaemonSet"), ("acceptance", "Job")])
def test_the_requests_are_what_the_doctor_counts_for_eight_gpus(folder: str, kind: str) -> None:
    needed = 8 * RESIDENT + OWN
    (container,) = pod_of(folder, kind)["containers"]
    assert container["resources"].keys() == {"requests"}, "a limit delays hand-overs"
    memory = parse_size(f"{container['resources']['requests']['memory']}B")
    assert needed <= memory < 1.2 * needed
    assert int(container["resources"]["requests"]["cpu"]) >= 8 * 0.081 + 0.05, "benchmarks.md"


def test_every_pod_with_stressors_asks_for_their_memory_and_has_room_for_nccl() -> None:
    """A container has 64 MB of shared memory, which NCCL fills between GPUs without P2P."""
    texts = [file.read_text() for file in DEPLOY.rglob("*.yaml")]
    pods = [text for text in texts if "{name: NVIDIA_VISIBLE_DEVICES, value: all}" in text]
    assert len(pods) == len(("daemon", "acceptance", "NVSentinel", "Cluster Readiness Engine"))
    for text in pods:
        assert 'requests: {cpu: "1", memory: 8Gi}' in text
        assert "{name: shm, mountPath: /dev/shm}" in text
        assert re.search(r"name: shm\b[,\s]+emptyDir: {medium: Memory}", text)


@needs_kubectl
def test_the_overlay_has_a_patch_for_nodes_without_eight_gpus(tmp_path: Path) -> None:
    """A node.toml with another number than the Job's is wrong usage."""
    overlay = overlay_with(tmp_path, "acceptance-overlay", "expectation")
    file = Path(overlay) / "kustomization.yaml"
    head, found, rest = file.read_text().partition("# patches:\n")
    assert found
    file.write_text(head + "patches:\n" + re.sub(r"^# ", "", rest, flags=re.MULTILINE))
    (container,) = pod_of(overlay, "Job")["containers"]
    assert container["args"] == ["--level", "standard", "--expect-gpus", "4"]
    assert "SENTINEL_EXPECT" in str(container["env"])


@needs_kubectl
def test_an_acceptance_ends_and_its_verdict_is_kept_as_long_as_it_is_new() -> None:
    (job,) = objects("acceptance", "Job")
    assert job["spec"]["activeDeadlineSeconds"] > 20 * find_plan("standard").seconds
    assert job["spec"]["ttlSecondsAfterFinished"] == 7 * 86400


def _tolerates(pod: Mapping[str, Any], key: str) -> bool:
    """Decide as the scheduler does, for a taint with the effect NoSchedule."""
    return any(
        one["operator"] == "Exists"
        and one.get("key", key) == key
        and one.get("effect", "NoSchedule") == "NoSchedule"
        for one in pod["tolerations"]
    )


@needs_kubectl
@mostly_long(
    "name, kind, own",
    [
        # The controller of DaemonSets adds the toleration of cordoned nodes by itself.
        ("overlay", "DaemonSet", {"nvidia.com/gpu"}),
        ("acceptance-overlay", "Job", {"nvidia.com/gpu", "node.kubernetes.io/unschedulable"}),
    ],
)
def test_only_the_component_tolerates_every_taint(
    name: str, kind: str, own: set[str], tmp_path: Path
) -> None:
    taints = ("nvidia.com/gpu", "node.kubernetes.io/unschedulable", "site/under-repair")
    pod = pod_of(f"examples/{name}", kind)
    assert {taint for taint in taints if _tolerates(pod, taint)} == own
    pod = pod_of(overlay_with(tmp_path, name, "tolerations"), kind)
    assert all(_tolerates(pod, taint) for taint in taints)


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
    # As the CRD has it: of the cluster, nodes by name, and names of tests.
    assert set(request["metadata"]) == {"name"}
    assert set(request["spec"]) == {"nodes", "tests"}
    assert {tuple(node) for node in request["spec"]["nodes"]} == {("name",)}
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


# --- the document --------------------------------------------------------------------------------

NODES = ("ip-192-168-100-200.eu-central-1.compute.internal", "node-b")
#: Knows two nodes, keeps what is applied from its input, and is the real one otherwise.
FAKE_KUBECTL = """\
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
    applied = folder / "applied.yaml"
    text = FAKE_KUBECTL.format(nodes=" ".join(NODES), applied=applied, kubectl=KUBECTL)
    write_script(folder / "kubectl", text)
    commands = documented_commands("guides/kubernetes.md", name)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    run_program("sh", "-euc", commands, cwd=folder, env=environment, check=True)
    return applied


@needs_kubectl
def test_the_document_gives_the_daemon_settings(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    overlay = tmp_path / "deploy" / "kubernetes" / "examples" / "overlay"
    document = (ROOT / "docs" / "guides/kubernetes.md").read_text()
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
    for rule in rules:
        file = folder / f"{rule['metadata']['name']}.rules.yml"
        assert rule["spec"] == yaml.safe_load(file.read_text())
    assert len(rules) == len(list(folder.glob("*.rules.yml")))
    dashboards = yaml.safe_load((tmp_path / "sentinel-dashboards.yaml").read_text())
    assert dashboards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    for file in (ROOT / "deploy" / "grafana").glob("*.json"):
        assert dashboards["data"][file.name] == file.read_text()
