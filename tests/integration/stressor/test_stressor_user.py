"""Stressors of root that run as another user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sentinel.cli.main import run_command_line
from sentinel.errors import ConfigError
from sentinel.host.procfs import read_status
from sentinel.host.unprivileged import (
    check_devices,
    environment_of,
    find_account,
    look_up,
)
from sentinel.protocol.stressor import Account
from tests.harness.gpu_environment import ROOT, SimulatedHost, replace_torch
from tests.harness.isolation import STRANGER, needs_root, public_host
from tests.harness.sentinel_process import eventually, gone

USER = str(STRANGER)
QUICK = ("--rearm", "300ms", "--poll", "200ms", "--workload", "bad_workloads:starts_processes")


@pytest.fixture
def public() -> Iterator[SimulatedHost]:
    with public_host() as host:
        yield host


def files_of(process: psutil.Process) -> dict[str, str]:
    """Read what each descriptor of a process is, by its number."""
    entries = Path(f"/proc/{process.pid}/fd").iterdir()
    return {entry.name: str(entry.readlink()) for entry in entries}


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("standby", ["on", "off"])
def test_a_stressor_of_root_has_no_rights_and_no_secrets(
    public: SimulatedHost, monkeypatch: pytest.MonkeyPatch, standby: str
) -> None:
    if standby == "off":  # the standby process loads all of torch
        replace_torch(public.folder.parent, monkeypatch)
    secrets = {"MY_TOKEN": "secret", "SENTINEL_STANDBY": standby}
    user = ("--stressor-user", USER)
    with public.sentinel(1, *user, *QUICK, environment=secrets) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        if standby == "on":
            sentinel.wait_for_process("standby, becomes")
        with public.job() as newcomer:
            assert newcomer.got_memory()
            sentinel.wait_for("gpu.handed_over", gpu=0)
            newcomer.wait_for_exit()
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        again = sentinel.wait_for("stressor.starting", gpu=0, count=2)
        assert again["standby"] is (standby == "on")
        (stressor,) = sentinel.stressors()
        assert set(stressor.uids()) == set(stressor.gids()) == {STRANGER}
        assert read_status(stressor.pid, "NoNewPrivs") == ["1"]
        assert read_status(stressor.pid, "CapEff") == ["0" * 16]
        opened = files_of(stressor)
        assert not [path for path in opened.values() if "/locks" in path]
        tracker = sentinel.wait_for_process("resource_tracker")
        reads = re.findall(r"main\((\d+)\)", " ".join(tracker.cmdline()))
        assert files_of(tracker)[reads[0]] not in opened.values()
        eventually(stressor.children)  # of which the kernel shows the variables
        (program,) = stressor.children()
        variables = program.environ()
        assert variables["CUDA_VISIBLE_DEVICES"] == public.uuid()
        assert variables["PATH"] == os.environ["PATH"]
        assert not {"MY_TOKEN", "SENTINEL_SIM_DIR"} & variables.keys()
        assert program.cwd() == "/"
        sentinel.process.kill()
        eventually(lambda: gone(stressor) and gone(program))


@needs_root
def test_a_child_gets_its_own_tmp_unless_it_needs_the_old_one(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from sentinel.host.unprivileged import become, find_account\n"
        f"become(find_account({USER!r}, ''), os.getppid(), needed=sys.argv[1:])\n"
        "print(os.listdir('/tmp'), os.getuid())\n"
    )
    if any(Path(path).is_relative_to("/tmp") for path in (ROOT, sys.prefix)):  # noqa: S108
        pytest.skip("the sources are in /tmp")

    def listed(*needed: str) -> str:
        command = [sys.executable, "-c", code, *needed]
        return subprocess.check_output(command, text=True, cwd=ROOT)

    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        assert Path(file.name).name in listed(file.name)
        may_mount = subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0
        assert (listed() == f"[] {USER}\n") is may_mount


@pytest.mark.parametrize(
    ("user", "error"),
    [
        ("no-such-user", "has no user 'no-such-user'"),
        ("99999999999", "has no user"),
        ("\N{SUPERSCRIPT TWO}", "has no user"),
        ("a\0b", "has no user"),
        ("0", "root"),
    ],
)
def test_the_user_must_exist_and_not_be_root(user: str, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"^stressor\.user: .*{error}"):
        look_up(user, "stressor.user")


def test_config_check_names_an_unknown_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[stressor]\nuser = "no-such-user"\n')
    assert run_command_line(["config", "check", str(file)]) == 2
    assert f"{file}: stressor.user: this host has no user 'no-such-user'" in capsys.readouterr().err
    file.write_text(f'[stressor]\nuser = "{USER}"\n')
    code = run_command_line(["config", "check", str(file)])
    refused = f"{file}: stressor.user: {sys.executable} cannot be started as '{USER}'"
    assert code == (2 if refused in capsys.readouterr().err else 0), "or as a start refuses it"


def test_only_root_can_name_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root"):
        find_account(USER, "stressor.user")


@needs_root
@pytest.mark.long
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_a_root_that_cannot_become_the_user_does_not_start(simulated: SimulatedHost) -> None:
    for right in ("setuid", "setgid"):
        within = ("setpriv", "--bounding-set", f"-{right}", "--inh-caps", f"-{right}")
        with simulated.sentinel(1, "--stressor-user", USER, within=within) as sentinel:
            assert sentinel.wait_for_exit() == 2
            assert not sentinel.events
            what = f"stressor.user: {sys.executable} cannot be started as '{USER}': Operation"
            assert sentinel.errors.startswith(
                f"sentinel: {what} not permitted\nSentinel needs CAP_"
            )


def test_only_listed_variables_are_inherited() -> None:
    account = Account(uid=1, gid=1, groups=(1,), name="tester", home="/home/tester")
    harmless = ("PATH", "LC_ALL", "CUDA_HOME", "PYTHONPATH", "NVIDIA_VISIBLE_DEVICES")
    inherited = (*harmless, "AWS_SECRET", "SENTINEL_TCP", "HOME", "NVIDIA_API_KEY", "CUDA_TOKEN")
    assert environment_of(account, inherited) == {
        "AWS_SECRET": None,
        "NVIDIA_API_KEY": None,
        "CUDA_TOKEN": None,
        "SENTINEL_TCP": None,
        "HOME": "/home/tester",
        "USER": "tester",
        "LOGNAME": "tester",
    }


def test_a_missing_device_is_named() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("needs a host without NVIDIA devices")
    account = Account(uid=1, gid=1, groups=(1,), name="tester", home="/")
    with pytest.raises(ConfigError, match="tester cannot open /dev/nvidiactl"):
        check_devices(account)
