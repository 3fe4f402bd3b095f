"""`config` shows what runs, checks a file for everything that is wrong, and writes a new one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sentinel.config.sources import from_flags, in_effect
from sentinel.config.specs import WORKLOADS
from tests.harness.command_line import CommandLine
from tests.harness.given_settings import given
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.parameters import mostly_long
from tests.harness.registered import register_package
from tests.harness.stub_daemon import DAEMON, STATUS, Reply, StubDaemon

RUNNING = {
    "settings": [
        vars(value)
        for value in in_effect(
            (
                *from_flags({"memory.target": "50%"}),
                *given({"workload": "hold"}, "1", "/etc/x.toml: gpu.1."),
            )
        )
    ],
}


@pytest.fixture
def daemon(stub: StubDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubDaemon:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    stub.replies["GET /v1/settings"] = Reply(RUNNING)
    return stub


def test_show_is_the_configuration_of_the_daemon(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_MEMORY", "70%")
    text = cli("config", "show").out
    assert 'target = "50%"                    # --memory\n' in text
    assert 'workload = "hold"                 # /etc/x.toml: gpu.1.workload' in text
    assert tomllib.loads(text)["memory"]["target"] == "50%"
    shown = cli.json("config", "show", "--json")
    assert shown["running"] is True
    (row,) = (one for one in shown["settings"] if one["key"] == "memory.target")
    assert row == {"key": "memory.target", "value": "50%", "origin": "--memory"}
    requests = [("GET /v1/settings", None), ("GET /v1/status", None)]
    assert daemon.requests == requests * 2


@pytest.mark.parametrize(
    ("simulated", "line"),
    [
        (False, 'driver = "nvml"                   # default'),
        (True, "# driver is not set               # the GPUs are simulated: --simulate"),
    ],
)
def test_show_names_the_driver_that_is_in_use(
    daemon: StubDaemon, cli: CommandLine, *, simulated: bool, line: str
) -> None:
    shown: dict[str, object] = {**STATUS, "daemon": {**DAEMON, "simulated": simulated}}
    daemon.replies["GET /v1/status"] = Reply(shown)
    text = cli("config", "show").out
    assert line in text.splitlines()
    tomllib.loads(text)


def test_show_is_toml_whatever_a_value_has(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    program = '/opt/\N{GRINNING FACE}\u00e9\x7f"\\/hook'
    quoted = f"'{program}'"
    monkeypatch.setenv("SENTINEL_NOTIFY_COMMAND", quoted)
    assert tomllib.loads(cli("config", "show", "--offline").out)["notify"]["command"] == quoted
    assert daemon.requests == []


def test_show_offline_is_what_a_new_daemon_would_take(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_MEMORY", "70%")
    text = cli("config", "show", "--offline", "--poll", "500ms").out
    assert 'target = "70%"                    # SENTINEL_MEMORY\n' in text
    assert 'poll = "500ms"                    # --poll\n' in text
    assert daemon.requests == []


@pytest.mark.parametrize(
    ("typed", "code", "expected"),
    [
        (["--poll", "1s"], 2, "--poll is for --offline"),
        (["--config", "x"], 2, "--config is for --offline"),
        (["--socket", "/nowhere"], 3, "no sentinel daemon runs at /nowhere"),
    ],
)
@pytest.mark.usefixtures("daemon")
def test_show_names_offline(cli: CommandLine, typed: list[str], code: int, expected: str) -> None:
    output = cli("config", "show", *typed, code=code)
    assert output.out == ""
    assert output.err.startswith(f"sentinel: {expected}")
    assert "--offline" in output.err


WRONG = """
rearn = "5s"
poll = "1h"
workload = "nothing"

[api]
group = "no-such-group"

[stressor]
user = "no-such-user"

[throttle]
pace = "half"

[gpu.0]
power = "5W"
poll = "1s"
"""


@mostly_long("named", [[], ["--config"]])
@pytest.mark.usefixtures("daemon")
def test_check_reports_everything_that_is_wrong(
    tmp_path: Path, cli: CommandLine, named: list[str]
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(WRONG)
    output = cli("config", "check", *named, str(file), code=2)
    assert output.out == ""
    for part in (
        "rearn: there is no such key\nDid you mean rearm?",
        "poll: '1h' is out of range",
        "workload: there is no workload 'nothing'",
        "api.group: the group 'no-such-group' for the socket does not exist",
        "stressor.user: this host has no user 'no-such-user'",
        "throttle.pace: 'half' is not one of critical, full, off",
        "gpu.0.power: '5W' is out of range",
        "gpu.0.poll: cannot be set for a single GPU",
    ):
        assert f"{file}: {part}" in output.err
    errors = cli.json("config", "check", *named, str(file), "--json", code=2)["errors"]
    by_text = {error["error"]: error["remedy"] for error in errors}
    assert by_text[f"{file}: rearn: there is no such key"] == "Did you mean rearm?"
    assert len(errors) == output.err.count(f"{file}: ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("gpus = '0-7'", "gpus: no GPU matches '4'\n"),
        ("gpus = 'banana'", "gpus: no GPU matches 'banana'\n"),
        ("[gpu.GPU-e]\nrearm = '1s'", "gpu.GPU-e.rearm: 'GPU-e' matches several GPUs"),
        ("[gpu.1-0]\nrearm = '1s'", "gpu.1-0.rearm: the range '1-0' ends before it begins"),
        (
            "[gpu.0]\nthrottle.temp_normal_from = 80",
            "gpu.0.throttle.temp_normal_from: throttle.temp_normal_from is 80",
        ),
        ("workload = 'gemm:sise=1'", "workload: workload gemm has no option 'sise'"),
        ("[gpu.1]\nworkload = 'gemm:size=1'", "size=1 is not a positive multiple of 64"),
        ("workload = 'no:way'", "No module named 'no'. A module is found if it is installed"),
        ("log.file = 'relative.log'", "log.file: 'relative.log' is not an absolute path"),
        ("log.file = '/etc/passwd/x.log'", "the folder /etc/passwd cannot be created: a file of"),
        ("log.file = '/'", "the log / cannot be written"),
        ("api.group = 'no-such-group'", "the group 'no-such-group' for the socket does not exist"),
        ("api.tcp = '192.0.2.1:8765'", "cannot listen at 192.0.2.1:8765: Cannot assign requested"),
        ("metrics.address = 'no-such-host.invalid:1'", "cannot listen at no-such-host.invalid:1: "),
        (
            "api.tcp = '8765'\nmetrics.address = '8765'",
            "metrics.address: 127.0.0.1:8765 is the address of api.tcp, too",
        ),
        ("stressor.user = 'no-such-user'", "stressor.user: this host has no user 'no-such-user'"),
        ("driver = 'nvml:x=1'", "driver: nvml takes no options"),
        ("driver = 'nope'", "driver: there is no driver 'nope'"),
    ],
)
def test_check_finds_what_a_start_refuses(
    text: str,
    part: str,
    simulated: SimulatedHost,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    """A driver is not looked up for simulated GPUs; all else is the same there."""
    file, of_driver = simulated.folder / "wrong.toml", text.startswith("driver")
    file.write_text(text)
    monkeypatch.setenv("SENTINEL_SIM_DIR", "" if of_driver else str(simulated.folder))
    words = ["--config", str(file), *(() if of_driver else ("--simulate", "4"))]
    assert part in cli("run", *words, "--for", "1s", code=None).err
    output = cli("config", "check", *words, code=2)
    assert part in output.err
    assert output.err.startswith(f"sentinel: {file}: ")


@pytest.mark.long
def test_a_target_of_a_load_that_has_no_effect_is_a_warning_of_run_and_of_check(
    simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(simulated.folder))
    file = simulated.folder / "hold.toml"
    file.write_text("workload = 'hold'\n[gpu.0]\nutil.target = '50%'\n")
    words = ["--config", str(file), "--simulate", "1"]
    text = f"sentinel: warning: {file}: gpu.0.util.target: no effect with the workload hold"
    assert text in cli("config", "check", *words).err
    assert text in cli("run", *words, "--dry-run", "--for", "200ms").err
    file.write_text("util.target = '50%'\n[gpu.0]\nworkload = 'hold'\n[gpu.1]\npower='50W'\n")
    assert f"{file}: util.target: no effect" in cli("config", "check", *words).err
    file.write_text("util.target = '50%'\n")
    assert "no effect" not in cli("config", "check", *words).err


def test_check_names_a_package_that_registers_the_name_of_a_built_in_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    package = register_package(tmp_path, WORKLOADS, "theirs", {"gemm": "theirs:gemm"})
    monkeypatch.syspath_prepend(package)
    (warning,) = cli.json("config", "check", "/dev/null", "--json")["warnings"]
    assert warning.startswith("workload 'gemm' of theirs 0.1.0 (theirs:gemm) is not used: ")
    assert cli("config", "check", "/dev/null").err == f"sentinel: warning: {warning}\n"


@mostly_long(
    "host_has, warns",
    [(("--simulate", "2"), "right.toml: gpu.9.rearm matches no GPU"), ((), "are not looked up: ")],
)
def test_gpus_are_looked_up_where_the_host_has_any(
    *, host_has: tuple[str, ...], warns: str, simulated: SimulatedHost, cli: CommandLine
) -> None:
    file = simulated.folder / "right.toml"
    file.write_text("gpus = '0-1'\n[gpu.0-1]\nrearm = '1s'\n[gpu.9]\nrearm = '1s'\n")
    output = cli("config", "check", str(file), *host_has)
    assert output.out == f"{file}: 3 settings, all valid\n"
    (warning,) = output.err.splitlines()
    assert warns in warning


@pytest.mark.parametrize(
    ("variable", "saved", "wrong"),
    [
        ("half", "", "SENTINEL_MEMORY: 'half' is not "),
        ("", "gpus = '0-7'", "gpus: no GPU matches '2'"),
        ("", "gpus = [", "settings.toml.bad"),
        ("50%", "rearm = '1s'", ""),
    ],
)
def test_check_without_a_file_finds_what_is_wrong_with_variables_and_what_is_saved(
    simulated: SimulatedHost,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    variable: str,
    saved: str,
    wrong: str,
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(simulated.folder))
    monkeypatch.setenv("SENTINEL_MEMORY", variable)
    monkeypatch.setenv("SENTINEL_CONFIG", "/dev/null")
    file = simulated.folder / "settings.toml"
    file.write_text(saved)
    output = cli("config", "check", "--simulate", "2", code=2 if wrong else 0)
    if wrong:
        assert wrong in output.err
    else:
        assert output.out == f"/dev/null, {file}, SENTINEL_MEMORY: 2 settings, all valid\n"


@pytest.mark.usefixtures("daemon")
def test_thresholds_are_compared_only_if_all_values_are_allowed(
    tmp_path: Path, cli: CommandLine
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[throttle]\ntemp_throttled_from = 60\n")
    assert (
        "must be below throttle.temp_throttled_from"
        in cli("config", "check", str(file), code=2).err
    )
    file.write_text("[throttle]\ntemp_throttled_from = 'x'\n")
    assert "must be below" not in cli("config", "check", str(file), code=2).err


@pytest.mark.usefixtures("daemon")
def test_init_writes_a_file_that_check_accepts_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert "every setting has its default; to write one: sentinel config init" in (
        cli("config", "check").out
    )
    assert cli.json("config", "check", "--json")["file"] is None
    file = tmp_path / "home" / "sentinel" / "config.toml"
    assert str(file) in cli("config", "init").out
    text = file.read_text()
    assert cli("config", "check").out == f"{file}: 0 settings, all valid\n"
    assert f"{file} exists and is not overwritten" in cli("config", "init", code=2).err
    assert file.read_text() == text
    assert cli("config", "init", "-").out == text


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("command", ["check", "init"])
def test_one_file_is_named(cli: CommandLine, command: str) -> None:
    assert (
        "two files are given: a, and --config b"
        in cli("config", command, "a", "--config", "b", code=2).err
    )


@pytest.mark.usefixtures("daemon")
def test_unknown_variables_are_named_and_no_error(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_WAIT", "5s")
    monkeypatch.setenv("SENTINEL_SLURM", "/run/x")
    monkeypatch.setenv("SENTINEL_TOKEN_FILE", "/run/token")
    monkeypatch.setenv("SENTINEL_REARN", "5s")
    assert cli("config", "show", "--offline").err == (
        "sentinel: warning: there is no variable SENTINEL_REARN. Did you mean SENTINEL_REARM?\n"
    )
