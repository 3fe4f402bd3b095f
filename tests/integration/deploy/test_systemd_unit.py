"""The systemd unit is valid, and its time limits fit those of the supervisor."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from sentinel.config.model import Config
from sentinel.core.node import daemon
from sentinel.errors import ExitCode
from sentinel.supervisor.bootstrap import LOG_FLUSH_TIMEOUT_S
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program

UNIT = ROOT / "deploy" / "sentinel.service"


def section(name: str) -> dict[str, str]:
    """Parse one section of the unit."""
    _, _, text = UNIT.read_text().partition(f"\n[{name}]\n")
    lines = text.partition("\n[")[0].splitlines()
    options: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            # A repeated list adds to the one before.
            options[key] = f"{options[key]} {value}" if key in options else value
    return options


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert "\nExecStart=/usr/local/bin/sentinel run --daemon\n" in text
    # The commands may not be installed on this host.
    for command in ("/usr/local/bin/sentinel", "/bin/kill"):
        text = text.replace(f"={command} ", f"={sys.executable} ")
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = run_program("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_exposure_of_the_unit_stays_low() -> None:
    # 4.1 with systemd 252; other versions weigh the options a little differently.
    command = ("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=45")
    done = run_program(*command, UNIT)
    if "unrecognized option" in done.stderr:
        pytest.skip("needs systemd 250")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_keeps_the_capabilities_that_settings_need() -> None:
    kept = set(section("Service")["CapabilityBoundingSet"].split())
    assert kept >= {"CAP_KILL", "CAP_SETUID", "CAP_SETGID"}, "--stressor-user"
    assert "CAP_CHOWN" in kept, "--socket-group"
    assert "CAP_DAC_READ_SEARCH" in kept, "workloads in a private home"
    assert kept >= {"CAP_SYS_MODULE", "CAP_MKNOD"}, "nvidia-modprobe"
    assert not any(name.startswith("~") for name in kept)


def test_the_system_calls_of_the_unit_are_allowed_by_name_and_others_return_an_error() -> None:
    service = section("Service")
    # A denied call must not kill: libraries try calls and go on without them.
    assert service["SystemCallErrorNumber"] == "EPERM"
    assert set(service["SystemCallFilter"].split()) == {"@system-service", "@module"}


def test_the_time_limits_of_the_unit_exceed_those_of_the_supervisor() -> None:
    service = section("Service")
    assert (
        float(service["TimeoutStopSec"])
        > Config().grace + daemon.GIVE_UP_AFTER_S + LOG_FLUSH_TIMEOUT_S
    )
    # The watchdog is sent four times per interval, if each GPU was read within its poll.
    slowest = Config(poll=600.0)
    assert float(service["WatchdogSec"]) > 4 * (slowest.quick_poll + slowest.stale_after)


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
    hiding |= {"ProtectProc", "ProcSubset", "PrivatePIDs"}
    hiding |= {"ProtectKernelModules", "MemoryDenyWriteExecute"}
    slow = {"Nice", "CPUQuota", "CPUWeight", "CPUSchedulingPolicy", "IOSchedulingClass"}
    assert not section("Service").keys() & (hiding | slow)
