"""A start waits for the first stressor, and settings are checked before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sentinel.cli.daemon import start
from sentinel.cli.daemon.start import NotProvedError, wait_for_stressor
from sentinel.client import Client, GpuStatus, Status
from sentinel.client.requester import decode
from tests.harness.command_line import CommandLine
from tests.harness.stub_daemon import GPU, STATUS

READY: GpuStatus = decode(Status, STATUS).gpus[0]


def gpu(index: int, stressor: str, rule: str = "backoff", reason: str = "why") -> GpuStatus:
    return replace(READY, index=index, stressor=stressor, rule=rule, reason=reason)


RUNNING = gpu(0, "RUNNING", "running")
STARTING = gpu(0, "STARTING")
SOON = gpu(0, "STOPPED", "rearm", "idle again for less than 3 s")
BUSY = gpu(1, "STOPPED", "process", "used by foreign processes")
BROKEN = gpu(0, "BACKOFF", reason="it broke")
LATER = replace(
    gpu(0, "STOPPED", "idle.wait", "idle for less than 5 min (idle.wait)"), rule_until_s=300.0
)
CLOSED = replace(LATER, rule="quiet", reason="quiet hours until 05:00")
UNREAD = gpu(0, "STOPPED", "unknown", "unknown: not read yet")


class _Daemon:
    """A client whose daemon has one state after another; the last stays."""

    def __init__(self, *states: tuple[GpuStatus, ...], ending: str | None = None) -> None:
        self._states = iter(states)
        self._last: tuple[GpuStatus, ...] = ()
        self._ending = ending
        self.seconds = 0.0

    def status(self) -> Status:
        self.seconds += 0.1
        self._last = next(self._states, self._last)
        status = decode(Status, STATUS)
        daemon = replace(status.daemon, ending=self._ending)
        return replace(status, gpus=self._last, daemon=daemon)


@pytest.fixture(autouse=True)
def _no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_POLL_INTERVAL_S", 0.0)


def wait(*states: tuple[GpuStatus, ...], ending: str | None = None) -> Any:
    daemon = _Daemon(*states, ending=ending)
    return wait_for_stressor(
        cast("Client", daemon), 60.0, lambda: True, clock=lambda: daemon.seconds
    )


@pytest.mark.parametrize(
    ("states", "occupied", "text"),
    [
        ([(UNREAD,), (SOON,), (STARTING,), (RUNNING,)], (0,), "occupies GPU 0"),
        ([(RUNNING, gpu(1, "STARTING"))], (0,), "occupies GPU 0; GPU 1 is starting"),
        (
            [(RUNNING, gpu(1, "STARTING"), gpu(2, "STARTING"), BUSY, replace(SOON, index=3))],
            (0,),
            "occupies GPU 0; GPU 1, 2 are starting; GPU 3 is about to start",
        ),
        ([(BROKEN, gpu(1, "STARTING")), (BROKEN, gpu(1, "RUNNING"))], (1,), "occupies GPU 1"),
        ([(gpu(0, "STOPPING", "paused"), BUSY), (gpu(0, "STOPPED", "paused"), BUSY)], (), "GPU 0"),
        ([(BUSY,)], (), "starts no stressor: GPU 1: used by foreign processes"),
        ([(BUSY, gpu(2, "STOPPED", "mig", "MIG is enabled"))], (), "; GPU 2: MIG is enabled"),
        ([(SOON,)], (), "starts no stressor: GPU 0: idle again for less than 3 s"),
        ([(LATER,)], (), "idle for less than 5 min (idle.wait); may change in 5 min"),
        ([(CLOSED,)], (), "GPU 0: quiet hours until 05:00 (in 5 min)"),
        ([()], (), "has no GPU"),
    ],
)
def test_it_waits_for_the_first_stressor_or_until_nothing_is_to_come(
    states: list[tuple[GpuStatus, ...]], occupied: tuple[int, ...], text: str
) -> None:
    proof = wait(*states)
    assert proof.occupied == occupied
    assert text in proof.text


def test_a_wait_that_is_known_to_be_long_is_not_waited_for() -> None:
    daemon = _Daemon((LATER,))
    wait_for_stressor(cast("Client", daemon), 60.0, lambda: True, clock=lambda: daemon.seconds)
    assert daemon.seconds == pytest.approx(0.1), "one look"


def test_each_new_reason_of_a_long_wait_is_printed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = [replace(STARTING, rule="starting", reason=f"it {does}") for does in ("waits", "hangs")]
    wait(*([(slow[0],)] * 200), *([(slow[1],)] * 200), (RUNNING,))
    printed = capsys.readouterr().err.splitlines()
    assert printed == [f"sentinel: still waiting: GPU 0: it {does}" for does in ("waits", "hangs")]
    wait(*([(slow[0],)] * 50), (RUNNING,))
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([(STARTING,), (BROKEN,)], "no stressor has started: GPU 0: it broke"),
        ([(BROKEN, BUSY)], "no stressor has started: GPU 0: it broke"),
        ([(gpu(0, "FATAL", reason="no such option"),)], "GPU 0: no such option"),
        ([(STARTING,)], "no stressor has started within 60 s: GPU 0: why"),
    ],
)
def test_failures_and_the_end_of_the_time_are_errors(
    states: list[tuple[GpuStatus, ...]], text: str
) -> None:
    with pytest.raises(NotProvedError) as caught:
        wait(*states)
    assert text in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_daemon_that_ends_has_proved_nothing() -> None:
    with pytest.raises(NotProvedError, match="the daemon ends: no stressor can run"):
        wait((STARTING,), ending="no stressor can run")


def test_the_stub_is_a_gpu_with_a_stressor() -> None:
    assert GPU["stressor"] in {"RUNNING", "running"}
    assert READY.occupied


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [(["--no-api"], True), (["--dry-run"], True), (["--no-api", "--notify-command", "off"], False)],
)
def test_notifications_that_are_not_sent_are_named(
    arguments: list[str],
    warns: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    monkeypatch.setattr("sentinel.supervisor.bootstrap.supervise", lambda *_: 0)
    file = tmp_path / "config.toml"
    file.write_text('notify.command = "/bin/true"\n')
    error = cli("run", "--simulate", "1", "--config", str(file), *arguments).err
    assert (f"{file}: notify.command: no notification is sent, since" in error) is warns
    if warns:
        assert f"{arguments[0]} starts no API process" in error


def test_a_burn_in_without_a_daemon_names_notifications_that_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path))
    monkeypatch.setattr("sentinel.cli.daemon.burnin.follow_new_run", lambda *_, **__: 0)
    given = ["--simulate", "1", "--level", "screen", "--notify-webhook", "http://127.0.0.1/"]
    assert "--notify-webhook: no notification is sent, since" in cli("burnin", *given).err
