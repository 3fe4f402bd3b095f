"""The Ansible role installs everything and changes nothing twice; a play accepts the nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.levels import find_plan
from tests.harness.example_fleet import Fleets, node_report
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import EXEC_SENTINEL, run_program, write_script
from tests.harness.timing import TIMEOUT_S
from tests.harness.wheels import build_wheel

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs ansible-core"),
]

PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  roles: [sentinel]
"""
CONFIG = "workload = 'hold'\n"


def run_playbook(
    folder: Path, playbook: Path, inventory: str | Path, *options: str, **variables: object
) -> subprocess.CompletedProcess[str]:
    """Run a playbook on this host."""
    given = {
        "ansible_python_interpreter": sys.executable,
        "sentinel_prefix": str(folder / "venv"),
        "sentinel_pip_arguments": "--no-deps --no-index",
        "sentinel_destdir": str(folder / "root"),
        "sentinel_service": False,  # there may be no systemd
        **variables,
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PWD": str(folder),
        "ANSIBLE_ROLES_PATH": str(ROOT / "deploy" / "ansible" / "roles"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
        "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        "LC_ALL": "C.UTF-8",
    }
    words = ("ansible-playbook", "-i", inventory, "-e", json.dumps(given), *options, playbook)
    return run_program(*words, env=environment, cwd=folder, timeout=3 * TIMEOUT_S)


def play(folder: Path, *options: str, **variables: object) -> dict[str, int]:
    """Run the role on this host with a folder as its root; return Ansible's counts."""
    playbook = folder / "playbook.yml"
    playbook.write_text(PLAYBOOK)
    done = run_playbook(folder, playbook, "localhost,", *options, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    recap = done.stdout.rpartition("PLAY RECAP")[2]
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", recap)}


def environment_beside_this_one(folder: Path) -> None:
    """Create the environment with pip and the dependencies of the tests: nothing is downloaded."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=3 * TIMEOUT_S)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


@pytest.mark.timeout(900)
def test_the_role_installs_everything_and_is_idempotent(tmp_path: Path) -> None:
    environment_beside_this_one(tmp_path / "venv")
    wheel = build_wheel(tmp_path)
    variables = {
        "sentinel_package": str(wheel),
        "sentinel_config": CONFIG,
        "sentinel_slurm": True,
        "sentinel_slurm_settings": {"SENTINEL_DRAIN": "yes", "PATH": "/opt/slurm/bin:/a b"},
    }
    assert play(tmp_path, **variables)["changed"] > 0
    root = tmp_path / "root"
    files = {str(one.relative_to(root)) for one in root.rglob("*") if not one.is_dir()}
    scripts = {"settings.sh", "prolog.sh", "epilog.sh", "healthcheck.sh", "idle-burnin.sh"}
    assert files == {
        "usr/local/bin/sentinel",
        "etc/sentinel/config.toml",
        "etc/sentinel/slurm.env",
        "etc/systemd/system/sentinel.service",
        *(f"etc/slurm/sentinel/{name}" for name in scripts),
    }
    for name in scripts:
        installed = root / "etc/slurm/sentinel" / name
        assert installed.read_bytes() == (ROOT / "deploy/slurm" / name).read_bytes()
        assert os.access(installed, os.X_OK) == (name != "settings.sh")
    assert (root / "etc/sentinel/config.toml").read_text() == CONFIG
    command = str(tmp_path / "venv/bin/sentinel")
    unit = (root / "etc/systemd/system/sentinel.service").read_text()
    assert f"\nExecStart={command} run --daemon\n" in unit
    shell = f". {root}/etc/sentinel/slurm.env; echo $SENTINEL_DRAIN $PATH"
    assert run_program("/bin/sh", "-c", shell, check=True).stdout == "yes /opt/slurm/bin:/a b\n"
    linked = root / "usr/local/bin/sentinel"
    assert run_program(linked, "--version", check=True).stdout.startswith("sentinel, version ")

    assert play(tmp_path, **variables)["changed"] == 0
    assert play(tmp_path, "--check", **variables)["changed"] == 0
    changed = variables | {"sentinel_config": "poll = '2s'\n"}
    assert play(tmp_path, "--check", **changed)["changed"] == 1
    moved = variables | {"sentinel_slurm_folder": "/etc/elsewhere"}
    assert play(tmp_path, "--check", **moved)["failed"] == 0
    assert play(tmp_path, **variables | {"sentinel_config": "poll = '2s'\n"})["changed"] == 1


ANSIBLE = ROOT / "deploy" / "ansible"


def inventory_of(folder: Path, *nodes: str) -> Path:
    """Write an inventory of nodes that are all this host, and of a host without GPUs."""
    local = "ansible_connection=local ansible_become=false"
    lines = ["[gpu_nodes]", *(f"{node} {local}" for node in nodes), "[other]", f"login {local}"]
    (folder / "inventory").write_text("\n".join(lines) + "\n")
    return folder / "inventory"


@pytest.mark.parametrize("name", ["site.yml", "accept.yml"])
def test_check_mode_works_on_a_fresh_host_and_only_on_those_of_the_group(
    name: str, tmp_path: Path
) -> None:
    given = {"sentinel_slurm": True, "sentinel_config": CONFIG, "sentinel_service": True}
    given["sentinel_expectation"] = "gpus = 8"
    done = run_playbook(
        tmp_path, ANSIBLE / name, inventory_of(tmp_path, "node-a"), "--check", **given
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^node-a .* changed=2 ", done.stdout, re.MULTILINE)
    assert "login" not in done.stdout
    assert not (tmp_path / "venv").exists()
    assert not (tmp_path / "root").exists()


#: A node: the package is there, a check passes unless the node has a file of this name, and a
#: burn-in leaves the report that the node has.
NODE = """\
cd {folder}
echo "$@" >>commands
case $1 in
check) test ! -e fails-the-check ;;
burnin) mkdir -p "$3"; cp "$NODE_NAME.json" "$3/report.json"; exit "$(cat code)" ;;
esac
"""


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Fleets:
    folder = tmp_path_factory.mktemp("fleets")
    template, plan = node_report(folder), find_plan("standard")
    run = template["run"] | {"simulated": False, "started": str(datetime.now().astimezone())}
    run["plan"] |= {"name": plan.name, "hash": plan.hash}
    return Fleets({**template, "run": run}, folder)


def accept(
    folder: Path,
    fleets: Fleets,
    *,
    failed: frozenset[int] = frozenset(),
    bad: str = "",
    expectation: str = "gpus = 8",
    **nodes: Any,
) -> subprocess.CompletedProcess[str]:
    """Run the play of the acceptance on three nodes, of which one may fail its check."""
    fleet = fleets.example(nodes=3, **{"verdicts": dict.fromkeys(failed, "FAIL")} | nodes)
    names = [fleet.name(number) for number in range(3)]
    for number, name in enumerate(names):
        node = folder / name
        (node / "bin").mkdir(parents=True)
        write_script(node / "bin" / "python", "echo Requirement already satisfied")
        write_script(node / "bin" / "sentinel", NODE.format(folder=node))
        (node / f"{name}.json").write_text(json.dumps(fleet.report(number)))
        (node / "code").write_text(str(int(number in failed)))
        if name == bad:
            (node / "fails-the-check").touch()
    write_script(folder / "merge", f"export PYTHONPATH={ROOT}\n{EXEC_SENTINEL}")
    here = f"{folder}/{{{{ inventory_hostname }}}}"
    given = {"sentinel_prefix": here, "sentinel_state": here, "sentinel_merge": f"{folder}/merge"}
    given["sentinel_expectation"] = expectation
    return run_playbook(folder, ANSIBLE / "accept.yml", inventory_of(folder, *names), **given)


def test_the_acceptance_of_nodes_that_pass_ends_with_the_verdict_of_all(
    fleets: Fleets, tmp_path: Path
) -> None:
    done = accept(tmp_path, fleets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    (reports,) = (tmp_path / "acceptance").iterdir()
    assert len(list(reports.glob("node-*.json"))) == 3
    commands = (tmp_path / "node-0000" / "commands").read_text().splitlines()
    assert [line.split()[0] for line in commands] == ["check", "burnin"]
    assert commands[1].endswith("--level standard")


def test_an_acceptance_fails_with_a_node_that_fails_and_one_that_is_not_burned_in(
    fleets: Fleets, tmp_path: Path
) -> None:
    done = accept(tmp_path, fleets, failed=frozenset({1}), bad="node-0002")
    assert done.returncode != 0
    said = done.stdout.partition("TASK [Show the verdict]")[2]
    assert re.search(r"FAIL .*node-0001", said)
    assert re.search(r"MISSING .*node-0002", said)
    assert (tmp_path / "node-0002" / "commands").read_text().split() == ["check"]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"short": frozenset(range(3))}, "7 of 8 are there"),
        ({"verdicts": {1: "WARN"}}, "WARN"),
        ({"expectation": ""}, "sentinel_expectation is empty"),
    ],
)
def test_no_gpu_is_missing_on_every_node_and_no_warning_is_accepted(
    nodes: dict[str, Any], said: str, fleets: Fleets, tmp_path: Path
) -> None:
    done = accept(tmp_path, fleets, **nodes)
    assert done.returncode != 0
    assert said in done.stdout


@pytest.mark.parametrize("options", [(), ("--limit", "login")])
def test_an_acceptance_of_no_node_is_an_error(options: tuple[str, ...], tmp_path: Path) -> None:
    nodes = ("node-a",) if options else ()
    inventory = inventory_of(tmp_path, *nodes)
    given = {"sentinel_expectation": "gpus = 8"}
    done = run_playbook(tmp_path, ANSIBLE / "accept.yml", inventory, *options, **given)
    assert done.returncode != 0
    assert "gpu_nodes" in done.stdout + done.stderr


def test_settings_that_are_wrong_are_not_installed(tmp_path: Path) -> None:
    environment_beside_this_one(tmp_path / "venv")
    shim = tmp_path / "venv/bin/sentinel"
    wheel = build_wheel(tmp_path)
    with pytest.raises(AssertionError, match="wrkload"):
        play(tmp_path, sentinel_package=str(wheel), sentinel_config="wrkload = 'hold'\n")
    assert shim.exists()
    assert not (tmp_path / "root/etc/sentinel/config.toml").exists()
