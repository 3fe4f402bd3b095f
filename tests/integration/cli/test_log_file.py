"""``--log-file`` and ``--log-level``: where the log is, and how much is in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sentinel.host.log_file import MAX_OLD_FILES, RotatingLog
from sentinel.host.registry import running
from tests.harness.daemon_harness import QUICK, Daemon, read_line
from tests.harness.sentinel_process import eventually

pytestmark = pytest.mark.usefixtures("fake_torch")


def events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a log, without one that is being written."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.long
def test_a_daemon_logs_to_the_named_file(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = daemon.run("start", "--simulate", "1", *QUICK, "--log-file", "logs/mine.log")
    log = tmp_path / "logs" / "mine.log"
    assert f"\nlog    {log}\n" in shown
    assert events(log)[0]["event"] == "sentinel.started"
    assert log.with_name("mine.log.stderr").exists()
    assert not daemon.places.log.exists()
    assert daemon.client.status().daemon.log == str(log)
    daemon.close()
    monkeypatch.chdir("/")
    assert "sentinel.stopped" in daemon.run("logs", "--json", "-n", "1")


@pytest.mark.long
def test_in_the_foreground_the_file_has_what_is_printed(daemon: Daemon, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    flags = ("--simulate", "1", *QUICK, "--log-file", str(log))
    with daemon.start_command("run", *flags) as process:
        eventually(lambda: any(event["event"] == "stressor.ready" for event in events(log)))
        assert json.loads(daemon.run("logs", "--json", "-n", "1"))["event"]
        process.terminate()
        out, _ = process.communicate()
    assert "occupied" in out
    assert events(log)[-1]["event"] == "sentinel.stopped"
    assert running(daemon.places) is None


@pytest.mark.long
def test_at_debug_level_the_log_has_the_memory_at_every_check(daemon: Daemon) -> None:
    daemon.start(1)
    daemon.wait_until_occupied(0)
    log = daemon.places.log
    assert not any(event["event"] == "gpu.checked" for event in events(log))
    daemon.run("set", "log-level=debug")

    def checks() -> list[dict[str, Any]]:
        return [event for event in events(log) if event["event"] == "gpu.checked"]

    eventually(lambda: len(checks()) >= 5)
    last = checks()[-1]
    held = daemon.host.registry.memory(daemon.host.uuid(0)).used
    assert (last["gpu"], last["memory_used"], last["processes"]) == (daemon.host.uuid(0), held, 1)
    times = [check["at"] for check in checks()]
    assert len(set(times)) == len(times), "each check once"
    assert "gpu.checked" not in daemon.run("history", "--events", "--json")


@pytest.mark.long
def test_a_rotation_loses_and_repeats_no_line_of_a_follower(daemon: Daemon) -> None:
    """A follower that is stopped, as by a pager, may be five files behind."""
    daemon.start(1)
    daemon.close()
    line = '{{"event": "test", "number": {}}}\n'.format
    numbers = iter(range(10**6))
    with (
        daemon.start_command("logs", "-f", "--json", "-n", "1") as follower,
        closing(RotatingLog(daemon.places.log, max_bytes=50 * len(line(1)))) as log,
    ):
        assert "sentinel.stopped" in read_line(follower)
        for stopped in (True, False) * 3:
            follower.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
            written = [next(numbers) for _ in range(50 * MAX_OLD_FILES)]
            for number in written:
                log.write(line(number))
            follower.send_signal(signal.SIGCONT)
            assert [json.loads(read_line(follower))["number"] for _ in written] == written


def rename(log: Path) -> None:
    """Rotate as logrotate does by default."""
    log.rename(log.with_name(f"{log.name}-20261128"))


def rename_and_create(log: Path) -> None:
    """Rotate as logrotate does with ``create``."""
    log.rename(log.with_name(f"{log.name}.1"))
    log.touch(mode=0o640)


def copy_and_truncate(log: Path) -> None:
    """Rotate as logrotate does with ``copytruncate``."""
    shutil.copy(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)


def truncate(log: Path) -> None:
    """Empty the file, as ``: >sentinel.log``."""
    os.truncate(log, 0)


ROTATIONS: dict[str, Callable[[Path], None]] = {
    "renamed": rename,
    "renamed and created": rename_and_create,
    "copied and truncated": copy_and_truncate,
    "truncated": truncate,
    "removed": Path.unlink,
    "renamed again": rename_and_create,
}


@pytest.mark.long
def test_whatever_rotates_the_log_costs_a_client_no_event(daemon: Daemon) -> None:
    log = daemon.places.log
    daemon.start(1)
    daemon.wait_until_occupied(0)
    with (
        daemon.start_command("logs", "-f", "--json", "-n", "1") as follower,
        daemon.client.events().open() as stream,
    ):
        read_line(follower)
        for how, rotate in ROTATIONS.items():
            for reason in (f"before it is {how}", f"after it is {how}"):
                daemon.run("reserve", "--gpus", "0", "--for", "1h", "--reason", reason)
                assert reason in (event.fields.get("reason") for event in stream)
                lines = iter(lambda: json.loads(read_line(follower)), None)
                assert reason in (line.get("reason") for line in lines)
                daemon.run("reserve", "--cancel", "all")
                if reason.startswith("before"):
                    assert "gpu.unreserved" in (event.name for event in stream)
                    assert "gpu.unreserved" in (line["event"] for line in lines)
                    rotate(log)
        assert events(log)
    found = daemon.client.recorded_events(since="1h")
    recorded = [one.fields.get("reason") for one in found if one.name != "gpu.unreserved"]
    for how in ROTATIONS:
        assert recorded.count(f"after it is {how}") == recorded.count(f"before it is {how}") == 1


@pytest.mark.parametrize("text", ["logs/a.log", "a.log"])
def test_a_relative_path_in_a_file_of_settings_is_refused(
    daemon: Daemon, tmp_path: Path, text: str
) -> None:
    settings = tmp_path / "c.toml"
    settings.write_text(f'[log]\nfile = "{text}"\n')
    done = daemon.run_unchecked("start", "--simulate", "1", "--config", str(settings))
    assert done.code == 2
    assert f"{settings}: log.file: '{text}' is not an absolute path" in done.err


def test_a_log_in_a_folder_that_cannot_be_used_starts_nothing(daemon: Daemon) -> None:
    done = daemon.run_unchecked("start", "--simulate", "1", "--log-file", "/proc/nowhere/a.log")
    assert done.code == 2
    assert "--log-file" in done.err
    assert running(daemon.places) is None
