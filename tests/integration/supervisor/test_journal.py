"""A daemon in a unit of systemd: its events are in the journal, and `sentinel logs` finds them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.host.registry import running
from tests.harness.daemon_harness import QUICK, Daemon
from tests.harness.journal_harness import FakeJournal, fake_journal
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]

INVOCATION = "0123456789abcdef" * 2
#: As the unit starts it, but with a journal of the test.
UNDER_SYSTEMD = (
    "import sys, pathlib, sentinel.host.systemd as journal;"
    " path = pathlib.Path(sys.argv.pop(1));"
    " journal.Journal.__init__.__defaults__ = (path,);"
    " journal.gets_stream.__defaults__ = (path,);"
    " from sentinel.__main__ import main; sys.exit(main())"
)
#: A journalctl that prints what the journal of the test has received.
JOURNALCTL = """#!/bin/sh
printf '%s\\n' "$*" >"$0.words"
cat "$0.entries"
"""


@contextmanager
def in_a_unit(
    daemon: Daemon, tmp_path: Path, *words: str
) -> Iterator[tuple[subprocess.Popen[bytes], FakeJournal]]:
    """Run a command as systemd runs that of a unit."""
    path = tmp_path / "journal"
    read, write = os.pipe()
    there = os.fstat(write)
    environ = {
        **os.environ,
        "JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}",
        "INVOCATION_ID": INVOCATION,
    }
    command = [sys.executable, "-c", UNDER_SYSTEMD, str(path), *words, "--simulate", "1", *QUICK]
    with fake_journal(path) as journal:
        process = subprocess.Popen(command, env=environ, stdout=write, stderr=write)
        os.close(write)
        try:
            yield process, journal
        finally:
            daemon.processes()
            process.kill()
            process.wait(TIMEOUT_S)
            os.close(read)


@pytest.mark.parametrize("words", [("run", "--daemon"), ("run",)], ids=" ".join)
def test_a_unit_logs_to_the_journal_and_logs_reads_it(
    daemon: Daemon, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_a_unit(daemon, tmp_path, *words) as (process, journal):
        entries = journal.take_until("stressor.ready")
        by_event = {entry["SENTINEL_EVENT"]: entry for entry in entries}
        assert by_event["sentinel.started"]["PRIORITY"] == "6"
        assert by_event["stressor.ready"]["MESSAGE"].startswith("GPU 0: occupied ")
        assert by_event["stressor.ready"]["SENTINEL_GPU"] == daemon.host.uuid(0)
        status = daemon.client.status().daemon
        assert (status.log, status.journal) == (None, f"_SYSTEMD_INVOCATION_ID={INVOCATION}")
        assert not daemon.places.log.exists()
        assert "log in the journal" in daemon.run("status")
        # What was decided before a crash is in the journal, and nothing waits in the process.
        daemon.client.pause(["0"], wait=0)
        entries += journal.take_until("gpu.paused")
        daemon.processes()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)
        entries += journal.waiting()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    script = bin_ / "journalctl"
    script.write_text(JOURNALCTL)
    script.chmod(0o755)
    trouble = {"MESSAGE": list(b"Traceback \xff")}  # what is not UTF-8 comes as bytes
    kept = Path(f"{script}.entries")
    kept.write_text("".join(f"{json.dumps(one)}\n" for one in [*entries, trouble]))
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    shown = daemon.run_unchecked("logs", "-n", "7")
    assert shown.code == 0
    assert "GPU 0     paused" in shown.out
    assert "Traceback" in shown.out
    assert "in the journal" in shown.err
    words_ = Path(f"{script}.words").read_text()
    assert f"_SYSTEMD_INVOCATION_ID={INVOCATION}" in words_
    assert "--lines=7" in words_
    assert "--priority=6" in words_, "hidden events have 7, and are not counted"
    listed = daemon.run("logs", "--json").splitlines()
    assert [json.loads(line)["event"] for line in listed] == [
        entry["SENTINEL_EVENT"] for entry in entries
    ]
    assert "--priority" not in Path(f"{script}.words").read_text()
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    missing = daemon.run_unchecked("logs")
    assert missing.code == 2
    assert f"journalctl _SYSTEMD_INVOCATION_ID={INVOCATION}" in missing.err


def test_an_explicit_format_goes_to_standard_output(daemon: Daemon, tmp_path: Path) -> None:
    with in_a_unit(daemon, tmp_path, "run", "--log-format", "json") as (_, journal):
        eventually(lambda: running(daemon.places) and daemon.places.socket.exists())
        daemon.wait_until_occupied(0)
        assert journal.waiting() == []
        assert daemon.client.status().daemon.journal is None
