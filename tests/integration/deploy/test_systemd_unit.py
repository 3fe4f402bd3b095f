"""The systemd unit is valid, and its time limits fit those of the supervisor."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.config.model import SETTINGS, Config
from sentinel.core.node import shutdown
from sentinel.errors import ExitCode
from sentinel.supervisor.bootstrap import LOG_FLUSH_TIMEOUT_S
from tests.harness.gpu_environment import ROOT

UNIT = ROOT / "deploy" / "sentinel.service"


def section(name: str) -> dict[str, str]:
    """Parse one section of the unit."""
    _, _, text = UNIT.read_text().partition(f"\n[{name}]\n")
    lines = text.partition("\n[")[0].splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert "\nExecStart=/usr/local/bin/sentinel run --daemon\n" in text
    # The commands may not be installed on this host.
    for command in ("/usr/local/bin/sentinel", "/bin/kill"):
        text = text.replace(f"={command} ", f"={sys.executable} ")
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_time_limits_of_the_unit_exceed_those_of_the_supervisor() -> None:
    service = section("Service")
    assert (
        float(service["TimeoutStopSec"])
        > Config().grace + shutdown.GIVE_UP_AFTER_S + LOG_FLUSH_TIMEOUT_S
    )
    # The watchdog is sent four times per interval, and a poll may be the longest allowed.
    polls = {setting.key: setting for setting in SETTINGS}["poll"]
    assert polls.form.most == "2s"
    assert float(service["WatchdogSec"]) > 4 * (2.0 + Config().stale_after)


def test_permanent_errors_prevent_a_restart() -> None:
    prevented = set(map(int, section("Service")["RestartPreventExitStatus"].split()))
    assert prevented == {
        ExitCode.USAGE,
        ExitCode.NO_SUCH_GPU,
        ExitCode.UNKILLABLE,
        ExitCode.HELD,
    }


def test_the_unit_neither_hides_the_devices_nor_slows_a_hand_over() -> None:
    hiding = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "PrivateTmp"}
    hiding |= {"ProtectProc", "PrivatePIDs", "ProtectKernelModules", "MemoryDenyWriteExecute"}
    slow = {"Nice", "CPUQuota", "CPUWeight", "CPUSchedulingPolicy", "IOSchedulingClass"}
    assert not section("Service").keys() & (hiding | slow)
