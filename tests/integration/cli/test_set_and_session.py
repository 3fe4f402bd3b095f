"""``sentinel set`` and ``sentinel session``: their requests, output and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.main import run_command_line
from sentinel.config.sources import from_flags
from sentinel.protocol.commands import Given
from tests.harness.given_settings import given
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
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDaemon]:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("COLUMNS", "80")
    with stub_daemon(tmp_path / "s") as daemon:
        daemon.replies["PATCH /v1/settings"] = Reply(CHANGED)
        daemon.replies["POST /v1/sessions"] = Reply({"session": SESSION}, 201)
        daemon.replies["GET /v1/sessions"] = Reply({"sessions": [SESSION]})
        daemon.replies["DELETE /v1/sessions/train"] = Reply({"text": "is over", "gpus": [UUID]})
        yield daemon


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
            ["util=50%", "--gpus", "0,1", "--gpus", "2", "--save"],
            {"settings": {"util.target": "50%"}, "gpus": ["0", "1", "2"], "save": True},
        ),
    ],
)
def test_settings_are_named_by_key_or_option(
    daemon: StubDaemon, typed: list[str], body: object
) -> None:
    assert run_command_line(["set", *typed]) == 0
    assert daemon.commands == [("PATCH /v1/settings", body)]


def test_a_relative_path_is_that_of_this_folder(
    daemon: StubDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon has another working directory."""
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["set", "goldens=mine.jsonl"]) == 0
    assert run_command_line(["set", "goldens=off"]) == 0
    sent = [body["settings"]["goldens"] for _, body in daemon.commands]
    assert sent == [f"{tmp_path}/mine.jsonl", "off"]


def test_what_is_in_effect_is_printed_with_its_source(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    file = {"saved": "/var/lib/sentinel/settings.toml", "notes": ["--util was given before."]}
    daemon.replies["PATCH /v1/settings"] = Reply({**CHANGED, **file})
    assert run_command_line(["set", "util=50%", "power=", "--save"]) == 0
    captured = capsys.readouterr()
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
        "sentinel: warning: --util was given before.",
    ]


def test_set_as_json_has_the_form_of_config_show(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["set", "util=50%", "power=", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"] == [
        {"key": "util.target", "value": "50%", "origin": "--util"},
        {"key": "power", "value": None, "origin": "default"},
    ]
    (single,) = printed["gpu"][UUID]
    assert single["origin"] == "session train: util.target"
    assert (printed["saved"], printed["notes"]) == (None, [])
    assert len(daemon.requests) == 1


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ([], "at least one KEY=VALUE"),
        (["util"], "'util' has no value"),
        (["utl=50%"], "Did you mean util?"),
        (["memroy.target=50%"], "Did you mean memory.target?"),
        (["--unset", "utl"], "--unset: there is no setting 'utl'"),
        (["poll=2s"], "poll is fixed while sentinel runs: stop it and start it with another"),
        (["util=50%", "util.target=20%"], "util.target is given twice"),
        (["util=50%", "--unset", "util"], "util.target is given twice"),
    ],
)
def test_a_wrong_change_sends_no_request(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str], typed: list[str], why: str
) -> None:
    assert run_command_line(["set", *typed]) == 2
    assert why in capsys.readouterr().err
    assert daemon.requests == []


def test_a_session_is_started_with_the_settings_of_single_gpus(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--gpus", "0", "--workload", "hold", "--memory", "1GiB"]
    assert run_command_line(["session", "start", *words, "--for", "1h"]) == 0
    settings = {"workload": "hold", "memory.target": "1GiB"}
    body = {"name": "train", "gpus": ["0"], "settings": settings, "seconds": 3600}
    assert daemon.commands == [("POST /v1/sessions", body)]
    captured = capsys.readouterr()
    what = "session train has GPU 0, until it is ended: workload=hold memory.target=1GiB\n"
    assert captured.out == what
    assert captured.err == "To end it: sentinel session stop train\n"
    assert run_command_line(["session", "start", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["session"]["name"] == "train"


def test_sessions_are_listed_and_stopped(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["session", "list"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "GPU", "UNTIL", "BY", "SETTINGS"]
    assert row.split() == ["train", "0", "no", "end", "root", "workload=hold", "memory.target=1GiB"]
    why = "session other has a GPU of it"
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": [{**SESSION, "suspended": why}]})
    assert run_command_line(["session", "list"]) == 0
    assert f"suspended, {why}"[:25] in capsys.readouterr().out
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": [SESSION]})
    assert run_command_line(["session", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sessions"] == [SESSION]
    assert run_command_line(["session", "stop", "train", "train"]) == 0
    assert capsys.readouterr().out == "is over\n"
    assert run_command_line(["session", "stop", "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == [UUID]
    daemon.replies["GET /v1/sessions"] = Reply({"sessions": []})
    assert run_command_line(["session", "list"]) == 0
    assert capsys.readouterr().err == "there are no sessions\n"


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["train"], "give the GPUs of the session"),
        (["train", "--gpus", "0", "--poll", "1s"], "has no option --poll"),
        (["train", "--gpus", "0", "--for", "soon"], "--for"),
    ],
)
def test_a_session_that_cannot_be_sends_no_request(
    daemon: StubDaemon, capsys: pytest.CaptureFixture[str], typed: list[str], why: str
) -> None:
    assert run_command_line(["session", "start", *typed]) == 2
    assert why in capsys.readouterr().err
    assert daemon.requests == []


def test_a_conflict_has_exit_code_1(daemon: StubDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.replies["POST /v1/sessions"] = problem("conflict", "GPU 0 is in the session 'b'", 409)
    assert run_command_line(["session", "start", "a", "--gpus", "0"]) == 1
    assert "session 'b'" in capsys.readouterr().err


def test_the_status_marks_the_gpus_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("COLUMNS", "200")
    status = {**STATUS, "gpus": [{**GPU, "session": "train"}], "sessions": [SESSION]}
    with stub_daemon(tmp_path / "s", status):
        assert run_command_line(["status"]) == 0
        out = capsys.readouterr().out
        assert "sentinel gemm [train]" in out
        assert "GPU 0: session train\n" in out
        assert run_command_line(["status", "--json", "0"]) == 0
        assert json.loads(capsys.readouterr().out)["sessions"] == [SESSION]
    (tmp_path / "s").unlink()
    over = {**STATUS, "sessions": [{**SESSION, "suspended": "its power is too low"}]}
    with stub_daemon(tmp_path / "s", over):
        assert run_command_line(["status"]) == 0
        assert "GPU 0: session train, suspended: its power is too low\n" in capsys.readouterr().out


def test_options_of_other_packages_are_left_to_the_daemon(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder and its packages may be others than those of the command."""

    def refuse(*_: object) -> None:
        raise AssertionError("imported here")

    monkeypatch.setattr("sentinel.diagnostics.workload_catalog.describe_workloads", refuse)
    assert run_command_line(["set", "workload=its.module:run:speed=2"]) == 0
    assert daemon.commands == [
        ("PATCH /v1/settings", {"settings": {"workload": "its.module:run:speed=2"}})
    ]
