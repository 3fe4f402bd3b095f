"""A usage error has one message with the closest match."""

from __future__ import annotations

import sys

import pytest

from tests.harness.command_line import CommandLine
from sentinel.cli.main import run_command_line


def test_a_hidden_command_is_not_listed(cli: CommandLine) -> None:
    assert "'end'; there are: attach, cancel, status\n" in cli("burnin", "end", code=64).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum"], "there is no command 'rum'; did you mean run?"),
        (["session", "end"], "there is no command 'end'; there are: list, start, stop"),
        (
            ["--connect", "node7:8765", "status"],
            "`sentinel run` has no option --connect; it follows a command, as in `sentinel status",
        ),
        (["shutdown"], "there is no command 'shutdown'; use: sentinel stop"),
        (["deallocate", "x"], "there is no command 'deallocate'; use: sentinel allocate --cancel"),
        (["drain"], "there is no command 'drain'; use: sentinel pause"),
        (["frobnicate"], "there is no command 'frobnicate'; `sentinel --help` lists all"),
        (["--stndby", "on"], "`sentinel run` has no option --stndby; did you mean --standby?"),
        (["--wrkload", "x"], "`sentinel run` has no option --wrkload; did you mean --workload?"),
        (
            ["start", "--temp-critical-form", "9"],
            "`sentinel start` has no option --temp-critical-f",
        ),
        (["status", "--workload", "x"], "`sentinel status` has no option --workload\n"),
        (["restart", "--tpc", "1"], "`sentinel restart` has no option --tpc\n"),
        (["run", "--simulate", "99"], "--simulate: 99 is out of range\nallowed is from 1 to 64"),
        (["--memory", "150%"], "--memory: '150%' is not a share; write one"),
        (["--chunk", "1MiB"], "--chunk: '1MiB' is out of range\nallowed is from 2MiB to 16GiB"),
        (["--workload", "nope"], "--workload: there is no workload 'nope'; known are elementwise,"),
        (["workloads", "try", "nope"], "there is no workload 'nope'; known are elementwise,"),
        (["workloads", "try", "hold", "--for", "1ms"], "--for: '1ms' is out of range\nallowed is"),
        (["workloads", "try", "hold", "--memory", "2"], "--memory: '2' has no unit; write 2% for"),
        (["config", "check", "/nowhere"], "/nowhere: cannot be read: No such file"),
        (["demo", "job", "--for", "soon"], "--for: 'soon' is not a duration; write one such as"),
    ],
)
def test_a_usage_error_has_a_message_and_exit_code_2(
    arguments: list[str], message: str, cli: CommandLine
) -> None:
    output = cli(*arguments, code=2)
    assert output.out == ""
    assert output.err.startswith(f"sentinel: {message}")
    assert "Traceback" not in output.err


def test_mcp_without_its_package_reports_what_to_install(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "sentinel.cli.mcp_server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    output = cli("mcp", "--socket", "/nowhere", code=2)
    assert output.out == ""
    assert "pip install 'gpu-sentry[mcp]'" in output.err
