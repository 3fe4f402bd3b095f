"""The Ansible role installs the package, the unit and the scripts, and changes nothing twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program
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


def play(folder: Path, **variables: object) -> dict[str, int]:
    """Run the role on this host with a folder as its root; return Ansible's counts."""
    playbook = folder / "playbook.yml"
    playbook.write_text(PLAYBOOK)
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
        "ANSIBLE_ROLES_PATH": str(ROOT / "deploy" / "ansible" / "roles"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
        "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        "LC_ALL": "C.UTF-8",
    }
    words = ("ansible-playbook", "-i", "localhost,", "-e", json.dumps(given), playbook)
    done = run_program(*words, env=environment, timeout=3 * TIMEOUT_S)
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
    assert play(tmp_path, **variables | {"sentinel_config": "poll = '2s'\n"})["changed"] == 1


def test_the_playbook_is_valid(tmp_path: Path) -> None:
    playbook = ROOT / "deploy" / "ansible" / "site.yml"
    environment = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(tmp_path), "LC_ALL": "C.UTF-8"}
    words = ("ansible-playbook", "-i", "localhost,", "--syntax-check", playbook)
    done = run_program(*words, env=environment)
    assert done.returncode == 0, done.stderr


def test_settings_that_are_wrong_are_not_installed(tmp_path: Path) -> None:
    environment_beside_this_one(tmp_path / "venv")
    shim = tmp_path / "venv/bin/sentinel"
    wheel = build_wheel(tmp_path)
    with pytest.raises(AssertionError, match="wrkload"):
        play(tmp_path, sentinel_package=str(wheel), sentinel_config="wrkload = 'hold'\n")
    assert shim.exists()
    assert not (tmp_path / "root/etc/sentinel/config.toml").exists()
