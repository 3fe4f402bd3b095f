"""The script of docs/accept-a-node.md, and its line for LBNL NHC, on simulated GPUs."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from sentinel.burnin.verdict import Verdict, exit_code
from sentinel.errors import ExitCode
from sentinel.host.simulation import Registry
from tests.harness.burnin_run import CHECKED, FAULTLESS, plan_of
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.programs import EXEC_SENTINEL, documented_commands, run_program, write_script
from tests.harness.timing import TIMEOUT_S

PLAN = plan_of("short", ("first", CHECKED, "seconds = 2"))
#: The `sentinel` of the script: two simulated GPUs, and a plan of seconds.
COMMAND = f"""
case "$1 $2" in
"burnin --expect-gpus") set -- "$@" --plan {{plan}} --simulate 2 --rearm 200ms {{more}} ;;
burnin*|--version*) : ;;
health*) set -- "$@" --simulated ;;
*) set -- "$@" --simulate 2 ;;
esac
{EXEC_SENTINEL}
"""

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


@pytest.fixture
def registry(simulated: SimulatedHost) -> Registry:
    return Registry.create(simulated.folder, 2)


def accept(
    host: SimulatedHost, expected: int, more: str = "", *, command: str = COMMAND
) -> tuple[int, Path]:
    """Run the script; return its exit code and the folder of the burn-in."""
    plan, folder = host.folder / "plan.toml", host.folder / "report"
    plan.write_text(PLAN)
    write_script(host.folder / "sentinel", command.format(plan=plan, more=more))
    script = write_script(host.folder / "accept", documented_commands("accept-a-node.md", "script"))
    path = f"{host.folder}:{os.environ['PATH']}"
    environment = host.environment(PATH=path)
    done = run_program(script, str(expected), folder, env=environment, timeout=3 * TIMEOUT_S)
    assert "Traceback" not in done.stderr
    return done.returncode, folder


def check_accepted(code: int, folder: Path) -> None:
    """Check that no fault was found; on a busy host, the low power is a WARN, which ends with 1.

    The plan of the tests is too short for a PASS; one that was not cut has nothing to resume.
    """
    verdict = json.loads((folder / "report.json").read_text())["verdict"]
    assert verdict in FAULTLESS
    not_proven = {ExitCode.USAGE} if verdict == "N/A" else set()
    assert code in {exit_code(Verdict(verdict), strict=True), *not_proven}


def test_a_good_node_is_accepted(simulated: SimulatedHost, registry: Registry) -> None:
    code, folder = accept(simulated, len(registry.gpus()))
    check_accepted(code, folder)


def test_a_run_that_was_cut_short_goes_on(simulated: SimulatedHost, registry: Registry) -> None:
    code, folder = accept(simulated, len(registry.gpus()), "--for 1s")
    check_accepted(code, folder)
    assert json.loads((folder / "report.json").read_text())["run"]["resumed"]


@pytest.mark.parametrize("fault", ["a counter", "a missing GPU"])
def test_a_bad_node_is_refused_before_any_load(
    simulated: SimulatedHost, registry: Registry, fault: str
) -> None:
    if fault == "a counter":
        registry.inject_figures(registry.gpus()[1].uuid, {"remap_failed": True})
    code, folder = accept(simulated, 2 if fault == "a counter" else 3)
    assert code == ExitCode.FAIL
    assert not folder.exists()


def test_a_burn_in_that_was_refused_is_no_fault(
    simulated: SimulatedHost, registry: Registry
) -> None:
    code, folder = accept(simulated, len(registry.gpus()), "--gpus 7")
    assert code == ExitCode.NO_SUCH_GPU
    assert not folder.exists()


def test_an_earlier_fault_refuses_a_node_that_passes_now(
    simulated: SimulatedHost, registry: Registry
) -> None:
    """A wrong result under a daemon that has ended, for example."""
    command = 'echo "$@"\ntest "$1" != health'
    code, _ = accept(simulated, len(registry.gpus()), command=command)
    assert code == ExitCode.FAIL


def test_a_broken_installation_is_no_fault(simulated: SimulatedHost, registry: Registry) -> None:
    """Python ends with 1 for what cannot be imported."""
    command = f"exec {sys.executable} -c 'raise SystemExit(1)'"
    code, folder = accept(simulated, len(registry.gpus()), command=command)
    assert code == ExitCode.USAGE
    assert not folder.exists()


def test_nhc_fails_a_node_for_proven_faults_alone(
    simulated: SimulatedHost, registry: Registry
) -> None:
    line = documented_commands("accept-a-node.md", "nhc")
    words = shlex.split(line)
    assert words[:2] == ["*", "||"]
    pattern = re.compile(words[words.index("-m") + 1].removeprefix("!").strip("/"))
    command = words[words.index("sh") :]
    write_script(simulated.folder / "sentinel", f'set -- "$@" --simulate 2\n{EXEC_SENTINEL}')
    command[-1] = command[-1].replace("/usr/local/bin", str(simulated.folder))
    file = simulated.folder / "node.toml"
    file.write_text("gpus = 2")
    command[-1] = command[-1].replace("/etc/sentinel/node.toml", str(file))

    def result() -> tuple[str, bool]:
        """Return the word of the plugin, and whether the node fails."""
        done = run_program(*command, env=simulated.environment())
        assert done.returncode == 0, "any other code fails the node"
        lines = done.stdout.splitlines()
        return lines[0].split()[1], any(pattern.search(line) for line in lines)

    assert result() == ("OK", False)
    file.write_text("gpus = 3")
    assert result() == ("CRITICAL", True)
    file.write_text("gpus = 2")
    registry.inject_figures(registry.gpus()[0].uuid, {"remap_pending": True})
    assert result() == ("WARNING", False)
    registry.inject_figures(registry.gpus()[1].uuid, {"remap_failed": True})
    assert result() == ("CRITICAL", True)
