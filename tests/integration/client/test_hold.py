"""Private sentinels occupy GPUs for a script, and end with it."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sentinel
from sentinel.client import hold
from sentinel.errors import (
    ConfigError,
    DriverUnavailableError,
    GpuHeldError,
    NoSuchGpuError,
    NotRunningError,
    SentinelError,
    ServiceError,
    TimedOutError,
)
from sentinel.host.procfs import read_stat
from sentinel.host.registry import read_all, records_folder
from tests.harness.gpu_environment import TESTS, SimulatedHost
from tests.harness.narrowing import not_none
from tests.harness.programs import piped_program, run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

FAKE_SENTINEL = (sys.executable, str(TESTS / "fake_sentinel.py"))


@pytest.fixture(name="set_mode")
def fake_sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace the sentinel by a fake; return a function that sets its mode."""
    monkeypatch.setattr(hold, "SENTINEL", FAKE_SENTINEL)
    monkeypatch.setenv("FAKE_SENTINEL_FOLDER", str(tmp_path))

    def set_mode(mode: str) -> None:
        monkeypatch.setenv("FAKE_SENTINEL", mode)

    return set_mode


def test_gpus_are_held_for_the_duration_of_the_block(
    set_mode: Callable[[str], None], tmp_path: Path
) -> None:
    set_mode("held")
    with sentinel.hold(gpus=[0, "GPU-ab"], memory="20GiB", flags=["--util", "50%"]) as held:
        assert held.wait_held(TIMEOUT_S).gpus[0].occupied
        words = Path(f"/proc/{held.pid}/cmdline").read_bytes().decode().split("\0")
        asked = "--workload hold --gpus 0,GPU-ab --util 50%"
        assert "--tcp off --socket-group off --metrics off" in " ".join(words)
        assert asked in " ".join(words)
        assert not (tmp_path / "ended").exists()
    assert (tmp_path / "ended").exists()


def test_an_error_in_the_block_releases_the_gpus(
    set_mode: Callable[[str], None], tmp_path: Path
) -> None:
    set_mode("held")

    def work() -> None:
        with sentinel.hold() as held:
            held.wait_held(TIMEOUT_S)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert (tmp_path / "ended").exists()


NO_DRIVER = "exit 5 no driver\nWithout a GPU, simulate some: add --simulate 2"


@pytest.mark.parametrize(
    ("mode", "kind", "what", "remedy"),
    [
        ("exit 75 GPU 0 is held by pid 7", GpuHeldError, "GPU 0 is held by pid 7", ""),
        (
            "exit 4 no GPU matches '9'\nChoose by\n 0",
            NoSuchGpuError,
            "no GPU matches '9'",
            "Choose by\n 0",
        ),
        (
            NO_DRIVER,
            DriverUnavailableError,
            "no driver",
            "Without a GPU, simulate some: simulate=2",
        ),
        ("exit 2 warning: old\nsentinel: --memory: no", ConfigError, "memory: no", ""),
        ("exit 2 no option\nTry: sentinel run --help", ConfigError, "no option", ""),
        ("exit 7", ServiceError, "the private sentinel exited with code 7", ""),
    ],
)
def test_a_failed_start_is_the_error_of_its_exit_code(
    set_mode: Callable[[str], None],
    mode: str,
    kind: type[SentinelError],
    what: str,
    remedy: str,
) -> None:
    set_mode(mode)
    with sentinel.hold() as held, pytest.raises(kind) as error:
        held.wait_held(TIMEOUT_S)
    assert (error.value.what, error.value.remedy) == (what, remedy)
    if kind is DriverUnavailableError:
        with hold.private_sentinel([]) as own, pytest.raises(kind, match="add --simulate 2"):
            own.wait_held(TIMEOUT_S)


def test_a_timeout_names_the_reason_of_each_gpu(set_mode: Callable[[str], None]) -> None:
    set_mode("busy")
    with sentinel.hold() as held:
        held.wait_ready(TIMEOUT_S)
        with pytest.raises(TimedOutError, match="GPU 0: used by foreign processes"):
            held.wait_held(0.5)


USES: dict[str, Callable[[sentinel.Hold], object]] = {
    "pid": lambda held: held.pid,
    "client": lambda held: held.client,
    "status": lambda held: held.status(),
    "wait_held": lambda held: held.wait_held(0),
    "check": lambda held: held.check(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_outside_its_block_a_hold_explains_itself(
    set_mode: Callable[[str], None], use: Callable[[sentinel.Hold], object]
) -> None:
    set_mode("held")
    holding = sentinel.hold()
    with pytest.raises(NotRunningError, match=r"not held yet\nWrite: with sentinel.hold"):
        use(holding)
    with holding, pytest.raises(ConfigError, match="in use already"):
        holding.__enter__()
    with pytest.raises(NotRunningError, match="not held any more: the `with` block has ended"):
        use(holding)


def test_a_flag_that_cannot_be_an_argument_is_refused(set_mode: Callable[[str], None]) -> None:
    set_mode("held")
    with pytest.raises(ConfigError, match="null byte"), sentinel.hold(flags=["--util", "5\0"]):
        pass


def test_numbers_may_be_given_as_flags(set_mode: Callable[[str], None]) -> None:
    set_mode("held")
    flags: Any = ["--poll", 2]
    with sentinel.hold(gpus=0, flags=flags) as held:
        held.wait_held(TIMEOUT_S)
        words = Path(f"/proc/{held.pid}/cmdline").read_bytes().decode().split("\0")
        assert " ".join(words).strip().endswith("--gpus 0 --poll 2")


PROGRAM = f"""
import sentinel, signal, threading
from sentinel.client import hold
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run without a terminal
hold.SENTINEL = {FAKE_SENTINEL}
with sentinel.hold() as held:
    held.wait_held({TIMEOUT_S})
    print(held.pid, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_the_end_of_the_script_ends_its_sentinel(
    set_mode: Callable[[str], None], tmp_path: Path, number: signal.Signals
) -> None:
    set_mode("held")
    with piped_program(sys.executable, "-c", PROGRAM) as script:
        pid = int(not_none(script.stdout).readline())
        os.kill(script.pid, number)
        eventually((tmp_path / "ended").exists)
        eventually(lambda: (stat := read_stat(pid)) is None or not stat.alive)


def test_the_sentinel_survives_the_thread_that_started_it(
    set_mode: Callable[[str], None], tmp_path: Path
) -> None:
    """The kernel sends the parent-death signal when the creating thread ends."""
    set_mode("held")
    entered: list[sentinel.Hold] = []
    holding = sentinel.hold()
    thread = threading.Thread(target=lambda: entered.append(holding.__enter__()))
    thread.start()
    thread.join()
    entered[0].wait_held(TIMEOUT_S)
    time.sleep(0.2)
    assert not (tmp_path / "ended").exists()
    holding.__exit__(None, None, None)
    assert (tmp_path / "ended").exists()


def test_the_example_holds_and_releases_a_gpu(
    set_mode: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_mode("held")
    example = Path(__file__).parents[3] / "examples" / "hold" / "hold.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--simulate", "1", "--seconds", "0.1"])
    runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["GPU 0 (Simulated GPU) is held: 14.0 GiB", "still held", "released"]
    set_mode(NO_DRIVER)
    with pytest.raises(SystemExit, match=r"hold.py: no driver\nWithout a GPU, simulate"):
        runpy.run_path(str(example), run_name="__main__")


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.long
def test_a_private_sentinel_imports_nothing_from_the_working_directory(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    """A script may be called in a folder that anyone can write."""
    (tmp_path / "sentinel.py").write_text("raise SystemExit('not this one')\n")
    script = "import sentinel\nwith sentinel.hold(simulate=1) as held: held.wait_ready()"
    command = (sys.executable, "-P", "-c", script)
    done = run_program(*command, cwd=tmp_path, env=simulated.environment())
    assert done.returncode == 0, done.stderr


# --- the folder of a hold --------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replace the folder for temporary files; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="holds-") as parent:
        folder = Path(parent) / "tmp"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.mark.long
def test_the_folder_of_a_killed_hold_is_removed_by_the_next_one(
    set_mode: Callable[[str], None], temporary: Path
) -> None:
    set_mode("held")
    code = (
        "import os, signal, sys, sentinel\n"
        "from sentinel.client import hold\n"
        f"hold.SENTINEL = {FAKE_SENTINEL!r}\n"
        "with sentinel.hold() as held:\n"
        "    held.wait_held()\n"
        "    print(held.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_program(sys.executable, "-c", code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    child = int(done.stdout)
    eventually(lambda: (stat := read_stat(child)) is None or not stat.alive)
    (left,) = temporary.iterdir()
    with sentinel.hold() as held:
        held.wait_held(TIMEOUT_S)
        (new,) = temporary.iterdir()
        assert new != left
    assert list(temporary.iterdir()) == []


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_the_sentinel_of_a_killed_script_removes_its_folder(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "simulation"))
    code = (
        "import os, signal, sentinel\n"
        "with sentinel.hold(simulate=1, flags=('--standby', 'off')) as held:\n"
        f"    held.wait_held({TIMEOUT_S})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_program(sys.executable, "-c", code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    eventually(lambda: not any(temporary.glob("sentinel-hold-*")))


def test_the_folder_of_a_living_hold_stays(
    set_mode: Callable[[str], None], temporary: Path
) -> None:
    set_mode("held")
    with sentinel.hold() as first:
        first.wait_held(TIMEOUT_S)
        with sentinel.hold() as second:
            second.wait_held(TIMEOUT_S)
            assert len(list(temporary.iterdir())) == 2
            assert first.status().gpus


def test_folders_of_others_stay(
    set_mode: Callable[[str], None], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_mode("held")
    elsewhere = temporary.parent / "elsewhere"
    for folder in (temporary / "sentinel-hold-1", temporary / "other", elsewhere):
        folder.mkdir()
        (folder / "lock").touch()
    (temporary / "sentinel-hold-link").symlink_to(elsewhere)
    (temporary / "sentinel-hold-2").mkdir()  # without a lock: it may just be created
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: os.geteuid() + 1)
        hold._remove_abandoned(temporary)
    assert (temporary / "sentinel-hold-1").exists(), "it belongs to another user"
    hold._remove_abandoned(temporary)
    assert not (temporary / "sentinel-hold-1").exists()
    assert (temporary / "sentinel-hold-2").exists()
    assert (temporary / "other" / "lock").exists()
    assert (elsewhere / "lock").exists()


@pytest.mark.long
def test_no_command_takes_the_sentinel_of_a_script_for_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "simulation"))
    records = records_folder(os.environ, os.getuid())
    monkeypatch.setenv("SENTINEL_NOTIFY_COMMAND", "/bin/false")
    with hold.private_sentinel(["--monitor", "--simulate", "1"]) as held:
        eventually(lambda: _answers(held))
        assert read_all(records) == []
        command = not_none(held.client.settings().get("notify.command"))
        assert command.text == "off", "events of a script notify no operator"


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_of_a_larger_size_than_is_free_what_is_free_is_held(
    simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(simulated.folder))
    with sentinel.hold(memory="20GiB", simulate=1) as held:
        (gpu,) = held.wait_held(TIMEOUT_S).gpus
        assert gpu.held is not None
        assert 15 * 2**30 < gpu.held <= gpu.memory_total
        with held.client.events(since=0) as events:
            ready = next(event for event in events if event.name == "stressor.ready")
    assert (ready.fields["held"], ready.fields["asked"]) == (gpu.held, 20 * 2**30)


def _answers(held: sentinel.Hold) -> bool:
    try:
        return bool(held.status().gpus)
    except NotRunningError:
        return False
