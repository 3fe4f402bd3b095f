"""Which daemon a command means, and where `sentinel logs` finds the log of the last one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.daemon.known_faults import known_findings
from sentinel.cli.main import run_command_line
from sentinel.cli.tools.check import _places
from sentinel.client import connect
from sentinel.errors import ConfigError
from sentinel.host.daemon_lookup import find_shared
from sentinel.host.registry import MAX_ENDED, read_all, records_folder
from tests.harness.command_line import CommandLine
from tests.harness.parameters import mostly_long
from tests.harness.registered import RegisteredDaemons
from tests.harness.stub_daemon import DAEMON, GPU, STATUS, Reply, StubDaemon, stub_daemon

EVENT = {"event": "sentinel.stopped", "time": "2026-11-21T20:00:00.000+00:00", "exit_code": 0}


@pytest.fixture(autouse=True)
def _own_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this test the folders of a user who has no daemon."""
    for name in [name for name in os.environ if name.startswith("SENTINEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # As another user than root, whose paths follow from no variable.
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() or 12345)
    monkeypatch.setattr("sentinel.host.daemon_lookup.why_untrusted", lambda _: None)
    monkeypatch.setattr("sentinel.host.registry._is_own", lambda _: True)
    runtime = tmp_path / "run"
    (runtime / "sentinel").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


@pytest.fixture
def registered() -> Iterator[RegisteredDaemons]:
    with RegisteredDaemons() as daemons:
        yield daemons


@pytest.fixture
def add(tmp_path: Path, registered: RegisteredDaemons) -> Iterator[Callable[..., StubDaemon]]:
    """Provide a function that starts a daemon at a place of its own, with its record."""
    with ExitStack() as stack:

        def add_one(name: str, **facts: Any) -> StubDaemon:
            folder = tmp_path / name
            folder.mkdir()
            socket = folder / "sentinel.sock"
            one = stack.enter_context(stub_daemon(socket))
            log = folder / "sentinel.log"
            log.write_text(json.dumps({**EVENT, "exit_code": len(name)}) + "\n")
            daemon = {**DAEMON, "socket": str(socket), "log": str(log)}
            one.replies["GET /v1/status"] = Reply({**STATUS, "daemon": daemon})
            registered.add(facts.pop("state", folder), socket=str(socket), log=str(log), **facts)
            return one

        yield add_one


def test_the_only_daemon_is_found_wherever_it_is(
    add: Callable[..., StubDaemon], tmp_path: Path, cli: CommandLine
) -> None:
    cli("status", code=3)
    one = add("simulated", simulated=str(tmp_path / "simulated"), simulate=2)
    cli("status")
    assert str(tmp_path / "simulated") in cli("status", "--simulated").out
    assert connect().address.socket == str(tmp_path / "simulated" / "sentinel.sock")
    assert len(one.requests) == 2


def test_several_daemons_are_listed_with_how_to_choose(
    add: Callable[..., StubDaemon],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    add("first")
    add("second", simulated=str(tmp_path / "second"), simulate=4)
    said = cli("status", code=2).err
    assert "2 daemons of this user run" in said
    assert f"{tmp_path}/first/sentinel.sock" in said
    assert f"{tmp_path}/second/sentinel.sock with 4 simulated GPUs" in said
    assert "--socket" in said
    with pytest.raises(ConfigError, match="2 daemons of this user run"):
        connect()
    cli("status", "--socket", f"{tmp_path}/first/sentinel.sock")
    cli("status", "--simulated")
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "second"))
    assert "second" in cli("status").out
    # A chosen folder never leads to another one.
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "third"))
    assert f"{tmp_path}/third" in cli("status", code=3).err


def test_commands_about_the_host_need_no_choice_between_daemons_that_share_its_state(
    add: Callable[..., StubDaemon],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    shared = tmp_path / "state" / "sentinel"
    for number, name in enumerate(("first", "second")):
        one = add(name, state=shared / "sockets" / name)
        proof: dict[str, object] = {"seconds": 60.0, "checks": 5, "errors": number, "findings": 0}
        proof |= {"since": EVENT["time"]}
        gpu = {**GPU, "uuid": f"GPU-{name}", "index": number, "verified": proof}
        one.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [gpu]})
    add("simulated", simulated=str(tmp_path / "simulated"), simulate=2)
    cards = cli.json("health", "--json", code=1)["gpus"]
    assert [card["uuid"] for card in cards] == ["GPU-first", "GPU-second"]
    found = {uuid: one.wrong for uuid, one in known_findings(*_places(None)).items()}
    assert found == {"GPU-first": 0, "GPU-second": 1}
    socket = str(tmp_path / "second" / "sentinel.sock")
    assert [
        one["uuid"] for one in cli.json("health", "--json", "--socket", socket, code=1)["gpus"]
    ] == ["GPU-second"]
    assert find_shared() == shared
    assert f"{shared}/runs has no run" in cli("report", code=2).err
    # A daemon with real GPUs and a state directory of its own: now one must be chosen.
    add("third", state=tmp_path / "third")
    assert "4 daemons of this user run" in cli("health", code=2).err
    cli("health", "--socket", socket, code=1)


def test_the_daemon_of_the_default_path_counts_also_without_a_link(
    add: Callable[..., StubDaemon],
    registered: RegisteredDaemons,
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    socket = tmp_path / "run" / "sentinel" / "sentinel.sock"
    registered.add(tmp_path, socket=str(socket))
    shutil.rmtree(records_folder(os.environ, os.getuid()))
    add("elsewhere", simulate=1, simulated=str(tmp_path / "elsewhere"))
    assert f"pid {os.getpid()}, socket {socket}" in cli("status", code=2).err
    registered.close()
    add("another", simulate=1, simulated=str(tmp_path / "another"))
    cli("status")


def test_a_record_in_a_folder_of_another_user_is_no_daemon(
    add: Callable[..., StubDaemon],
    registered: RegisteredDaemons,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    folder = tmp_path / "run" / "sentinel"
    why = f"the folder {folder} belongs to uid 4711"
    monkeypatch.setattr(
        "sentinel.host.daemon_lookup.why_untrusted",
        lambda one: why if one == folder else None,
    )
    registered.add(tmp_path, socket=str(folder / "sentinel.sock"))
    shutil.rmtree(records_folder(os.environ, os.getuid()))
    with stub_daemon(folder / "sentinel.sock") as theirs:
        assert "belongs to uid 4711" in cli("status", code=4).err
        assert not theirs.requests
        add("own")
        assert run_command_line(["status"]) == 0, "nor does it hide the only one of this user"


def test_what_is_not_a_record_is_left_out(tmp_path: Path, registered: RegisteredDaemons) -> None:
    good = registered.add(tmp_path, socket=str(tmp_path / "good"))
    folder = records_folder(os.environ, os.getuid())
    texts = ("{", '{"pid": 1, "color": "red"}', "[" * 15_000, "[]", "")
    for number, text in enumerate(texts):
        (tmp_path / f"{number}").write_text(text)
        (folder / f"{number}.json").symlink_to(tmp_path / f"{number}")
    (folder / "gone.json").symlink_to(tmp_path / "nothing")
    (folder / "folder.json").mkdir()
    (folder / "file.json").write_text("{}")
    assert read_all(folder) == [good]


def test_a_daemon_replaces_its_record_and_old_ones_are_dropped(
    tmp_path: Path, registered: RegisteredDaemons
) -> None:
    folder = records_folder(os.environ, os.getuid())
    ended = [
        registered.add(tmp_path, socket=f"{tmp_path}/{number}", alive=False, since=float(number))
        for number in range(MAX_ENDED + 5)
    ]
    socket = f"{tmp_path}/running"
    registered.add(tmp_path, socket=socket, alive=False, since=0.2)
    running = registered.add(tmp_path, socket=socket, since=0.5)
    found = read_all(folder)
    assert found == [*ended[: -MAX_ENDED - 1 : -1], running]


def test_a_path_may_have_bytes_that_are_no_text(
    tmp_path: Path, registered: RegisteredDaemons
) -> None:
    one = registered.add(tmp_path, socket=os.fsdecode(os.fsencode(tmp_path) + b"/\xff.sock"))
    assert read_all(records_folder(os.environ, os.getuid())) == [one]


@pytest.mark.parametrize(
    "match", ["--vacuum-size=1", "_PID=1 --flush", "-fu", "", "_PID=\N{ARABIC-INDIC DIGIT ONE}"]
)
def test_what_a_socket_says_is_no_option_of_journalctl(
    add: Callable[..., StubDaemon],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    match: str,
) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "journalctl").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    (bin_ / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    one = add("daemon")
    daemon = {**DAEMON, "socket": str(tmp_path / "daemon/sentinel.sock"), "journal": match}
    one.replies["GET /v1/status"] = Reply({**STATUS, "daemon": daemon})
    assert "no match of a daemon" in cli("logs", code=2).err
    assert not (tmp_path / "called").exists()


def test_logs_has_the_log_of_the_last_daemon_also_after_its_death(
    tmp_path: Path, registered: RegisteredDaemons, cli: CommandLine
) -> None:
    assert "there is no log" in cli("logs", code=3).err
    for number, name in enumerate(("early", "late")):
        log = tmp_path / f"{name}.log"
        log.write_text(json.dumps({**EVENT, "exit_code": number}) + "\n")
        os.utime(log, (time.time() + number - 10,) * 2)
        since = time.time() - 100 + number
        registered.add(
            tmp_path, socket=str(tmp_path / name), log=str(log), alive=False, since=since
        )
    (tmp_path / "late.log.stderr").write_text("Fatal Python error\n")
    output = cli("logs")
    assert "exit code 1" in output.out
    assert "Fatal Python error" in output.err
    assert f"no daemon runs at {tmp_path}/late" in output.err
    assert "exit code 0" in cli("logs", "--socket", str(tmp_path / "early")).out


def test_logs_of_the_running_daemon_come_before_those_of_later_ones(
    add: Callable[..., StubDaemon],
    registered: RegisteredDaemons,
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    add("running")
    later = tmp_path / "later.log"
    later.write_text(json.dumps({**EVENT, "exit_code": 99}) + "\n")
    registered.add(
        tmp_path,
        socket=f"{tmp_path}/later",
        log=str(later),
        alive=False,
        since=time.time() + 99,
    )
    output = cli("logs")
    assert ("exit code 7" in output.out, output.err) == (True, "")


def test_what_a_daemon_of_simulated_gpus_knows_counts_against_no_real_one(
    add: Callable[..., StubDaemon], tmp_path: Path
) -> None:
    """A GPU that the host does not have, with a known fault, would be a lost one of the node."""
    one = add("simulated", simulated=str(tmp_path / "simulated"), simulate=1)
    fault = {"kind": "xid", "text": "XID 48: double bit ECC error", "remedy": "reset the GPU"}
    gpu = {**GPU, "uuid": "GPU-simulated", "faults": [fault]}
    one.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [gpu]})
    state, sockets = _places(None)
    assert (state, known_findings(state, sockets)) == (tmp_path / "state" / "sentinel", {})
    found = known_findings(*_places(tmp_path / "simulated"))
    assert found["GPU-simulated"].faults == ("XID 48: double bit ECC error: reset the GPU",)


@pytest.mark.parametrize("by", ["", "variable"])
@mostly_long("flags", ["--strict", "--npd --strict", "--require pass"])
def test_simulated_gpus_of_the_only_daemon_are_accepted_only_if_chosen(
    add: Callable[..., StubDaemon],
    tmp_path: Path,
    cli: CommandLine,
    flags: str,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add("simulated", simulated=str(tmp_path / "simulated"), simulate=1)
    if by:  # one that was left set must fool no script
        monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "simulated" / "sentinel.sock"))
    refusal = "the daemon has simulated GPUs, accepted only with --simulated"
    assert refusal in cli("health", *flags.split(), code=2).err
    for chosen in (["--simulated"], ["--socket", str(tmp_path / "simulated" / "sentinel.sock")]):
        assert refusal not in cli("health", *flags.split(), *chosen, code=None).err
    cli("health", code=3)
