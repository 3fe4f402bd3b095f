"""``sentinel set`` and ``sentinel session``: their requests, output and exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sentinel.config.sources import from_flags
from sentinel.errors import ExitCode
from sentinel.host.simulation import Registry
from sentinel.protocol.commands import Given
from sentinel.supervisor.daemonize import NotStartedError
from tests.harness.command_line import CommandLine
from tests.harness.daemon_harness import Daemon, isolated_daemon
from tests.harness.given_settings import given
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.stub_daemon import GPU, STATUS, Reply, StubDaemon, problem, stub_daemon

UUID = str(GPU["uuid"])
VALUE = {"text": "50%", "source": "--util"}
CHANGED: dict[str, Any] = {
    "text": "the settings were applied",
    "gpus": [],
    "settings": [
        vars(value)
        for value in (
            *from_flags({"util.target": "50%"}),
            Given(key="power", text="", source="default"),
            *given({"util.target": "20%"}, UUID, "session train: "),
        )
    ],
    "saved": None,
    "notes": [],
}
SESSION = {
    "name": "train",
    "gpus": [UUID],
    "indices": [0],
    "settings": {"workload": "hold", "memory.target": "1GiB"},
    "since": "2026-11-21T20:00:00Z",
    "until": None,
    "holder": {"uid": 0, "user": "root", "pid": 77, "name": "sentinel"},
    "suspended": None,
}


@pytest.fixture
def daemon(stub: StubDaemon) -> StubDaemon:
    stub.replies["PATCH /v1/settings"] = Reply(CHANGED)
    stub.replies["POST /v1/sessions"] = Reply({"session": SESSION}, 201)
    stub.replies["GET /v1/sessions"] = Reply({"sessions": [SESSION]})
    stub.replies["DELETE /v1/sessions/train"] = Reply({"text": "is over", "gpus": [UUID]})
    return stub


@pytest.mark.parametrize(
    ("typed", "body"),
    [
        (["util=50%"], {"settings": {"util.target": "50%"}}),
        (["--", "--util=50%"], {"settings": {"util.target": "50%"}}),
        (["util.target=50%", "power="], {"settings": {"util.target": "50%", "power": None}}),
        (
            ["--unset", "util,power", "ignore=name=Xorg"],
            {"settings": {"ignore": "name=Xorg", "util.target": None, "power": None}},
        ),
        (
            ["util=50%", "--gpus", "0-1", "--gpus", "2", "--save"],
            {"settings": {"util.target": "50%"}, "gpus": ["0", "1", "2"], "save": True},
        ),
    ],
)
def test_settings_are_named_by_key_or_option(
    daemon: StubDaemon, typed: list[str], body: object, cli: CommandLine
) -> None:
    cli("set", *typed)
    assert daemon.commands == [("PATCH /v1/settings", body)]


def test_a_relative_path_is_that_of_this_folder(
    daemon: StubDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    """The daemon has another working directory."""
    monkeypatch.chdir(tmp_path)
    cli("set", "goldens=mine.jsonl")
    cli("set", "goldens=off")
    sent = [body["settings"]["goldens"] for _, body in daemon.commands]
    assert sent == [f"{tmp_path}/mine.jsonl", "off"]


def test_what_is_in_effect_is_printed_with_its_source(daemon: StubDaemon, cli: CommandLine) -> None:
    file = {"saved": "/var/lib/sentinel/settings.toml", "notes": ["--util was given before."]}
    more = {"effects": ["GPU 1 is released."]}
    daemon.replies["PATCH /v1/settings"] = Reply({**CHANGED, **file, **more})
    captured = cli("set", "util=50%", "power=", "--save")
    assert [line.split("  ")[0] for line in captured.out.splitlines()] == [
        'util.target = "50%"',
        "power is not set",
        'GPU 0: util.target = "20%"',
    ]
    assert [line.rpartition("# ")[2] for line in captured.out.splitlines()] == [
        "--util",
        "default",
        "session train: util.target",
    ]
    assert captured.err.splitlines() == [
        "saved in /var/lib/sentinel/settings.toml",
        "GPU 1 is released.",
        "sentinel: warning: --util was given before.",
    ]


def test_set_as_json_has_the_form_of_config_show(daemon: StubDaemon, cli: CommandLine) -> None:
    printed = cli.json("set", "util=50%", "power=", "--json")
    assert printed["settings"] == [
        {"key": "util.target", "value": "50%", "origin": "--util"},
        {"key": "power", "value": None, "origin": "default"},
    ]
    (single,) = printed["gpu"][UUID]
    assert single["origin"] == "session train: util.target"
    assert (printed["saved"], printed["notes"]) == (None, [])
    assert len(daemon.commands) == 1


@pytest.mark.parametrize(
    ("command", "typed", "why"),
    [
        ("set", [], "at least one KEY=VALUE"),
        ("set", ["util"], "'util' has no value"),
        ("set", ["utl=50%"], "Did you mean util?"),
        ("set", ["temp_throttle=80"], "Did you mean throttle.temp_critical_from?"),
        ("set", ["memroy.target=50%"], "Did you mean memory.target?"),
        ("set", ["--unset", "utl"], "--unset: there is no setting 'utl'"),
        ("set", ["utilization=50%"], "no setting 'utilization'\nDid you mean util.target?"),
        ("set", ["MEM=50%"], "no setting 'MEM'\nDid you mean memory.target?"),
        ("set", ["MEMORY.TARGET=50%"], "Did you mean memory.target?"),
        ("set", ["--utilization", "50%"], "to change it: sentinel set util.target=VALUE"),
        (
            "set",
            ["poll=2s"],
            "poll takes effect only at a start\nUse `sentinel set --save poll=VALUE`, then",
        ),
        ("set", ["util=50%", "util.target=20%"], "util.target is given twice"),
        ("set", ["util=50%", "--unset", "util"], "util.target is given twice"),
        ("session start", ["train"], "name the GPUs of the session: --gpus 0,1 or --gpus all"),
        ("session start", ["train", "--gpus", "0", "--poll", "1s"], "has no option --poll"),
        ("session start", ["train", "--gpus", "0", "--for", "soon"], "--for"),
        ("session start", ["train", "--gpus", "0", "memory="], "memory.target: a session needs a"),
        ("session start", ["train", "--gpus", "0", "util=1%", "--util", "2%"], "given twice"),
    ],
)
def test_a_wrong_change_or_session_sends_no_request(
    daemon: StubDaemon, cli: CommandLine, command: str, typed: list[str], why: str
) -> None:
    assert why in cli(*command.split(), *typed, code=2).err
    assert daemon.requests == []


def test_a_session_is_started_with_the_settings_of_single_gpus(
    daemon: StubDaemon, cli: CommandLine
) -> None:
    words = ["train", "--gpus", "0", "--workload", "hold", "--memory", "1GiB"]
    captured = cli("session", "start", *words, "--for", "1h")
    settings = {"workload": "hold", "memory.target": "1GiB"}
    body = {"name": "train", "gpus": ["0"], "settings": settings}
    assert daemon.commands == [("POST /v1/sessions", {**body, "seconds": 3600})]
    what = "session train has GPU 0: workload=hold memory.target=1GiB\n"
    assert captured.out == what
    assert captured.err == "To end it: sentinel session stop train\n"
    cli("session", "start", "train", "--gpus", "0", "workload=hold", "--memory", "1GiB")
    assert daemon.commands[-1] == ("POST /v1/sessions", body)
    assert cli.json("session", "start", *words, "--json")["session"]["name"] == "train"


def test_sessions_are_listed_and_stopped(daemon: StubDaemon, cli: CommandLine) -> None:
    header, row = cli("session", "list").out.splitlines()
    assert header.split() == ["NAME", "GPU", "UNTIL", "BY", "SETTINGS"]
    assert row.split() == ["train", "0", "no", "end", "root", "workload=hold", "memory.target=1GiB"]
    why = "session other has a GPU of it"
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": [{**SESSION, "suspended": why}]})
    assert f"suspended, {why}"[:25] in cli("session", "list").out
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": [SESSION]})
    assert cli.json("session", "list", "--json")["sessions"] == [SESSION]
    assert cli("session", "stop", "train", "train").out == "is over\n"
    refused = cli("session", "stop", "nosuch", "train", "other", code=None)
    assert refused.code != 0
    assert refused.out == "is over\n"
    assert [line.split(":")[:2] for line in refused.err.splitlines() if "sentinel" in line] == [
        ["sentinel", " nosuch"],
        ["sentinel", " other"],
    ]
    found = cli.json("session", "stop", "nosuch", "train", "--json", code=refused.code)
    assert (found["names"], list(found["refused"])) == (["train"], ["nosuch"])
    assert cli.json("session", "stop", "train", "--json")["gpus"] == [UUID]
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": []})
    assert cli("session", "list").err == "there are no sessions\n"


def test_a_conflict_has_exit_code_1(daemon: StubDaemon, cli: CommandLine) -> None:
    daemon.replies["POST /v1/sessions"] = problem("conflict", "GPU 0 is in the session 'b'", 409)
    assert "session 'b'" in cli("session", "start", "a", "--gpus", "0", code=1).err


def test_the_status_marks_the_gpus_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("COLUMNS", "200")
    status = {**STATUS, "gpus": [{**GPU, "session": "train"}], "sessions": [SESSION]}
    with stub_daemon(tmp_path / "s", status):
        out = cli("status").out
        assert "sentinel gemm [train]" in out
        assert "GPU 0: session train\n" in out
        assert cli.json("status", "--json", "0")["sessions"] == [SESSION]
    (tmp_path / "s").unlink()
    over = {**STATUS, "sessions": [{**SESSION, "suspended": "its power is too low"}]}
    with stub_daemon(tmp_path / "s", over):
        assert "GPU 0: session train, suspended: its power is too low\n" in cli("status").out


def test_a_session_without_a_name_gets_one(daemon: StubDaemon, cli: CommandLine) -> None:
    cli("session", "start", "--gpus", "0", "memory=1GiB")
    cli("session", "start", "memory=1GiB", "--gpus", "0")
    bodies = [body for route, body in daemon.commands if route == "POST /v1/sessions"]
    assert [body["settings"] for body in bodies] == [{"memory.target": "1GiB"}] * 2
    assert all(re.fullmatch("[0-9a-f]{8}", body["name"]) for body in bodies)
    assert bodies[0]["name"] != bodies[1]["name"]


def test_all_sessions_end_together(daemon: StubDaemon, cli: CommandLine) -> None:
    other = {**SESSION, "name": "b"}
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": [SESSION, other]})
    daemon.replies["DELETE /v1/sessions/b"] = Reply({"text": "b is over", "gpus": [UUID]})
    printed = cli.json("session", "stop", "all", "--json")
    assert (printed["names"], printed["refused"]) == (["train", "b"], {})
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": []})
    assert cli("session", "stop", "all").err == "there are no sessions\n"


#: What a session has whose stressor needs no torch.
HOLD = ("memory=1GiB", "workload=hold")


@pytest.fixture
def host(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("PYTHONPATH", simulated.environment()["PYTHONPATH"])
    with isolated_daemon(simulated, monkeypatch) as daemon:
        Registry.create(simulated.folder, 2)
        yield daemon


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_without_a_daemon_a_session_starts_one_that_occupies_only_its_gpus(host: Daemon) -> None:
    refused = host.run_unchecked("session", "start", "--gpus", "7", "memory=1GiB")
    assert (refused.code, "no GPU matches '7'" in refused.err) == (4, True)
    assert host.run_unchecked("status").code == 3, "what it had started has ended"
    done = host.run_unchecked("session", "start", "--gpus", "1", *HOLD)
    assert done.code == 0, done.err
    assert f"started a daemon (pid {host.pid}) for these GPUs only" in done.err
    assert host.gpu(1).occupied
    assert (host.gpu(0).admin, host.gpu(0).stressor) == ("PAUSED", "STOPPED")
    (found,) = host.client.sessions()
    assert done.out.startswith(f"session {found.name} has GPU 1: memory.target=1GiB")
    assert "paused" not in done.err
    again = host.run_unchecked("session", "start", "--gpus", "0", *HOLD)
    assert (again.code, "started a daemon" in again.err) == (0, False)
    stays = "sentinel: warning: paused: GPU 0; `sentinel resume 0` ends that\n"
    assert stays in again.err
    host.run("resume", "0")
    eventually(lambda: host.gpu(0).occupied)
    host.run("session", "stop", "all")
    assert host.client.sessions() == ()


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_session_names_why_the_daemon_that_it_starts_occupies_nothing(
    host: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = (datetime.now(UTC).hour + 12) % 24
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("SENTINEL_HOURS", f"{later:02}:00-{later:02}:30")
    done = host.run_unchecked("session", "start", "--gpus", "1", *HOLD)
    assert done.code == 0, done.err
    assert "the daemon starts no stressor: GPU 1: " in done.err
    assert "GPU 0" not in done.err, "paused on purpose"


def test_without_a_driver_a_session_advises_what_it_takes(
    host: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        remedy = "sentinel: no GPU can be read\nWithout a GPU, simulate some: add --simulate 2"
        raise NotStartedError("the daemon has exited:", remedy, ExitCode.NO_DRIVER)

    monkeypatch.setattr("sentinel.cli.daemon.start.start_detached", fail)
    monkeypatch.setattr("sentinel.cli.daemon.start.check_before_start", lambda *_, **__: None)
    refused = host.run_unchecked("session", "start", "--gpus", "0")
    assert refused.code == ExitCode.NO_DRIVER
    assert refused.err.endswith("Without a GPU, simulate some: sentinel start --simulate 2\n")


def test_options_of_other_packages_are_left_to_the_daemon(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    """Its folder and its packages may be others than those of the command."""

    def refuse(*_: object) -> None:
        raise AssertionError("imported here")

    monkeypatch.setattr("sentinel.diagnostics.workload_catalog.describe_workloads", refuse)
    cli("set", "workload=its.module:run:speed=2")
    assert daemon.commands == [
        ("PATCH /v1/settings", {"settings": {"workload": "its.module:run:speed=2"}})
    ]


UTIL = Given(key="util.target", text="50%", source="session train: util.target", gpu=UUID)


@pytest.mark.parametrize(
    ("typed", "workload", "warns"),
    [
        (["session", "start", "a", "--gpus", "0", "--util", "50%"], "hold", True),
        (["session", "start", "a", "--gpus", "0", "--util", "50%"], "gemm", False),
        (["session", "start", "a", "--gpus", "0", "--rearm", "5s"], "hold", False),
        (["set", "util=50%"], "hold", True),
        (["set", "workload=hold", "--wait", "0"], "hold", True),
    ],
)
def test_a_target_of_a_load_that_has_no_effect_is_named(
    daemon: StubDaemon, cli: CommandLine, typed: list[str], workload: str, *, warns: bool
) -> None:
    values = (*from_flags({"workload": workload}), UTIL)
    daemon.replies["GET /v1/settings"] = Reply({"settings": [vars(value) for value in values]})
    text = "session train: util.target: no effect with the workload hold, which has no load"
    assert (text in cli(*typed).err) is warns


def test_quiet_hours_that_cover_all_others_are_named(daemon: StubDaemon, cli: CommandLine) -> None:
    given_hours = from_flags({"hours": "22:00-07:00", "quiet": "21:00-08:00"})
    daemon.replies["GET /v1/settings"] = Reply({"settings": [vars(one) for one in given_hours]})
    text = "--quiet: no GPU is ever occupied: these hours cover all others"
    assert text in cli("set", "quiet=21:00-08:00").err
    assert text not in cli("set", "rearm=5s").err
