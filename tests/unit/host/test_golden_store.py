"""The file of golden checksums: the first record is valid, and no line or process breaks it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.host.golden_store import GoldenKey, Goldens, _format, _parse, locate
from sentinel.host.rendezvous import Rendezvous
from sentinel.protocol.gpu import Gpu
from sentinel.supervisor.bootstrap import _spec_for
from sentinel.supervisor.discovery import Found
from sentinel.supervisor.probe_process import ProbeProcess
from tests.harness.command_line import CommandLine
from tests.harness.programs import run_program
from tests.harness.timing import TIMEOUT_S

KEY = GoldenKey(
    gpu="NVIDIA H200", sms=132, torch="2.11.0", blas="13.1", dtype="bf16", shape="16384", seed=1
)
OTHER = replace(KEY, seed=2)
HOME = Path("/home/ann")
#: Whole numbers of messages.
INTEGERS = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "goldens.jsonl"


def write_records(path: Path, *records: tuple[GoldenKey, int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for key, checksum in records:
            file.write(_format(key, checksum))
    return path


def test_a_missing_file_has_no_records(path: Path) -> None:
    assert Goldens(path).known(KEY) is None
    assert not path.parent.exists(), "a query creates no folder"


@given(
    st.builds(GoldenKey, sms=INTEGERS, seed=INTEGERS),
    st.integers(min_value=-(2**63), max_value=2**64 - 1),
)
def test_a_line_contains_the_record(key: GoldenKey, checksum: int) -> None:
    line = _format(key, checksum)
    assert line.count(b"\n") == 1
    assert _parse(line) == (key, checksum)


def test_a_record_of_one_process_is_visible_to_others(path: Path) -> None:
    first, second = Goldens(path), Goldens(path)
    first.record(KEY, -5)
    assert second.known(KEY) == -5
    second.record(OTHER, 2**64 - 1)
    assert (first.known(OTHER), first.known(KEY)) == (2**64 - 1, -5)
    assert Goldens(path).known(OTHER) == 2**64 - 1


def test_the_first_record_of_a_key_is_never_changed(path: Path) -> None:
    write_records(path, (KEY, 1))
    before = path.read_bytes()
    goldens = Goldens(path)
    goldens.record(KEY, 2)
    goldens.record(KEY, 1)
    assert path.read_bytes() == before
    goldens.record(OTHER, 3)
    assert path.read_bytes().startswith(before)
    assert goldens.known(KEY) == 1


def test_an_incomplete_last_line_is_skipped_with_a_warning_and_corrupts_no_record(
    path: Path,
) -> None:
    write_records(path, (KEY, 1))
    with path.open("ab") as file:
        file.write(_format(OTHER, 2)[:-20])
    warnings: list[str] = []
    goldens = Goldens(path, warn=warnings.append)
    assert goldens.known(OTHER) is None
    goldens.record(OTHER, 3)
    for reader in (goldens, Goldens(path)):
        assert (reader.known(KEY), reader.known(OTHER)) == (1, 3)
    assert [line.line for line in goldens.skipped()] == [2]
    assert len(warnings) == 1
    assert "line 2 is skipped" in warnings[0]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", ""),
        (b"7", ""),
        (b'{"schema_version": 2}', "schema_version is 2"),
        (b'{"schema_version": 1, "gpu": "x"}', "the fields blas"),
        (_format(KEY, 1).replace(b"132", b'"132"'), "sms: expected a whole number"),
        (_format(KEY, 1).replace(b"132", b"true"), "sms: expected a whole number"),
        (_format(KEY, 1).replace(b'"0x1"', b"1"), ""),
        (_format(KEY, 1).replace(b"0x1", b"one"), "one"),
    ],
)
def test_an_invalid_line_is_skipped_with_the_reason(path: Path, line: bytes, why: str) -> None:
    write_records(path)
    path.write_bytes(line + b"\n" + _format(OTHER, 4))
    warnings: list[str] = []
    goldens = Goldens(path, warn=warnings.append)
    assert goldens.known(KEY) is None
    assert goldens.known(OTHER) == 4
    (skipped,) = goldens.skipped()
    assert (skipped.line, why in skipped.why) == (1, True)
    assert len(warnings) == 1


def test_an_unwritable_file_causes_one_warning_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    goldens = Goldens(tmp_path / "file" / "goldens.jsonl", warn=warnings.append)
    for key in (KEY, OTHER):
        goldens.record(key, 1)
        assert goldens.known(key) is None
    assert len([text for text in warnings if "no checksum can be recorded" in text]) == 1


STRANGER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give links away")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("file", "all users may write"),
        ("folder", "all users may write"),
        pytest.param("link", "is a link", marks=as_root),
    ],
)
def test_a_file_that_another_user_could_change_accuses_no_gpu_and_is_not_written(
    path: Path, tmp_path: Path, kind: str, why: str
) -> None:
    target = write_records(tmp_path / "other" / "goldens.jsonl", (KEY, 1))
    path.parent.mkdir()
    if kind == "file":
        target.rename(path).chmod(0o666)
    elif kind == "folder":
        path.parent.chmod(0o777)
    else:
        path.symlink_to(target)
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    files = {file: file.read_bytes() for file in tmp_path.glob("*/*")}
    warnings: list[str] = []
    goldens = Goldens(path, warn=warnings.append)
    goldens.record(OTHER, 2)
    assert (goldens.known(KEY), goldens.known(OTHER)) == (None, None)
    assert {file: file.read_bytes() for file in tmp_path.glob("*/*")} == files
    assert "it is not trusted: " in warnings[0]
    assert why in warnings[0]
    assert Goldens(tmp_path / "none", [path]).known(KEY) == (None if kind == "folder" else 1)


def test_a_link_of_this_user_is_followed(path: Path, tmp_path: Path) -> None:
    target = write_records(tmp_path / "other" / "goldens.jsonl", (KEY, 1))
    path.parent.mkdir()
    path.symlink_to(target)
    goldens = Goldens(path)
    goldens.record(OTHER, 2)
    assert (goldens.known(KEY), goldens.known(OTHER)) == (1, 2)


FULL = """
import resource, sys
from pathlib import Path
from sentinel.host.golden_store import GoldenKey, Goldens
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, resource.RLIM_INFINITY))
key = GoldenKey(gpu="x", sms=1, torch="t", blas="b", dtype="d", shape="s", seed=1)
Goldens(path).record(key, 1)
"""


def test_a_disk_that_fills_up_during_a_write_raises_no_error(path: Path) -> None:
    write_records(path, (KEY, 1))
    done = run_program(sys.executable, "-c", FULL, str(path), check=True)
    assert "no checksum can be recorded: No space left on device" in done.stderr
    assert not path.read_bytes().endswith(b"\n"), "no line was cut"
    goldens = Goldens(path, warn=lambda _: None)
    goldens.record(OTHER, 2)
    assert (goldens.known(KEY), goldens.known(OTHER)) == (1, 2)


def test_a_fifo_at_the_path_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "goldens.jsonl")
    warnings: list[str] = []
    goldens = Goldens(tmp_path / "goldens.jsonl", warn=warnings.append)
    goldens.record(KEY, 1)
    assert goldens.known(KEY) is None
    assert any("is not a regular file" in text for text in warnings)


def test_a_file_that_stays_locked_raises_no_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.host.golden_store._LOCK_TIMEOUT_S", 0.05)
    write_records(path, (KEY, 1))
    warnings: list[str] = []
    with path.open("ab") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        goldens = Goldens(path, warn=warnings.append)
        assert goldens.known(KEY) == 1
        goldens.record(OTHER, 2)
    assert warnings == [f"{path}: no checksum can be recorded: another process keeps it locked"]
    goldens.record(OTHER, 2)
    assert goldens.known(OTHER) == 2


def test_a_replaced_file_is_read_from_its_beginning(path: Path) -> None:
    write_records(path, (KEY, 1), (OTHER, 2))
    goldens = Goldens(path)
    assert goldens.known(KEY) == 1
    path.write_bytes(_format(replace(KEY, seed=3), 3))
    assert goldens.known(replace(KEY, seed=3)) == 3


def test_a_different_record_in_another_file_is_a_conflict_and_is_ignored(
    path: Path, tmp_path: Path
) -> None:
    write_records(path, (KEY, 1))
    other = write_records(tmp_path / "theirs", (KEY, 9), (OTHER, 2))
    goldens = Goldens(path, [other])
    assert (goldens.known(KEY), goldens.known(OTHER)) == (1, 2)
    (conflict,) = goldens.conflicts()
    assert (conflict.first.checksum, conflict.later.checksum) == (1, 9)
    assert (conflict.later.file, conflict.later.line) == (other, 1)
    assert Goldens(path, [write_records(tmp_path / "same", (KEY, 1))]).conflicts() == ()


MANY = """
import sys
from pathlib import Path
from sentinel.host.golden_store import GoldenKey, Goldens
goldens = Goldens(Path(sys.argv[1]))
sys.stdin.readline()
for seed in range(25):
    key = GoldenKey(gpu="x" * 300, sms=1, torch="t", blas="b", dtype="d", shape="s", seed=seed)
    goldens.record(key, int(sys.argv[2]))
"""


@pytest.mark.long
def test_eight_processes_at_once_record_each_key_once(path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", MANY, str(path), str(number)], stdin=subprocess.PIPE
        )
        for number in range(8)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
    assert [child.wait(TIMEOUT_S) for child in children] == [0] * 8
    lines = path.read_bytes().splitlines()
    assert sorted(_parse(line)[0].seed for line in lines) == list(range(25))
    assert Goldens(path).skipped() == ()


# --- the path --------------------------------------------------------------------------------


def test_the_path_is_the_setting_or_in_the_folder_of_the_gpus_or_the_state_or_none(
    tmp_path: Path,
) -> None:
    environment = {"HOME": str(HOME)}
    in_state = locate(None, environment | {"STATE_DIRECTORY": "/var/lib/s:/x"})
    assert in_state == Path("/var/lib/s/goldens.jsonl")
    assert locate("off", environment, tmp_path) is None
    assert locate(None, environment, tmp_path) == tmp_path / "goldens.jsonl"
    assert locate("/a/b", environment, tmp_path) == Path("/a/b")
    assert locate("~/b", environment) == HOME / "b"
    assert locate("b", environment) == Path.cwd() / "b"


@pytest.mark.parametrize(("setting", "name"), [(None, "goldens.jsonl"), ("off", None)])
def test_a_stressor_receives_the_path_of_the_golden_file(
    setting: str | None, name: str | None, tmp_path: Path
) -> None:
    config = Config(goldens=setting)
    found = Found(
        probe=cast("ProbeProcess", None),
        gpus=(),
        config=config,
        unused=(),
        driver="",
        is_nvml=False,
        folder=tmp_path,
        hidden=None,
    )
    gpu = Gpu(uuid="GPU-0", index=0, name="x", pci_bus_id="0", memory_total=1)
    expected = str(tmp_path / name) if name else None
    spec = _spec_for(found, None, Rendezvous(None), lambda: config, lambda _: "session a")(gpu)
    assert (spec.goldens, spec.chosen_by) == (expected, "session a")


# --- the commands ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SENTINEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_CONFIG", os.devnull)


def test_exported_records_can_be_imported_on_another_host(
    path: Path, tmp_path: Path, cli: CommandLine
) -> None:
    imported = write_records(tmp_path / "theirs", (KEY, 1), (OTHER, 2))
    write_records(path, (KEY, 1))
    option = ["--goldens", str(path)]
    checked = cli("workloads", "goldens", "check", str(imported), *option)
    assert "2 golden checksums, 1 of them not in" in checked.out
    merged = cli("workloads", "goldens", "merge", str(imported), *option)
    assert merged.out == f"{path}: 1 added\n"
    listing = cli.json("workloads", "goldens", "list", "--json", *option)
    assert listing["goldens"] == [
        asdict(KEY) | {"checksum": "0x1"},
        asdict(OTHER) | {"checksum": "0x2"},
    ]
    assert (listing["conflicts"], listing["skipped"]) == ([], [])


@pytest.mark.parametrize("command", ["check", "merge"])
def test_a_conflict_is_listed_and_not_imported(
    command: str, path: Path, tmp_path: Path, cli: CommandLine
) -> None:
    imported = write_records(tmp_path / "theirs", (KEY, 9))
    write_records(path, (KEY, 1))
    before = path.read_bytes()
    arguments = ["workloads", "goldens", command, str(imported), "--goldens", str(path)]
    assert "NVIDIA H200" in cli(*arguments, code=1).err
    (conflict,) = cli.json(*arguments, "--json", code=1)["conflicts"]
    assert (conflict["checksum"], conflict["holds"]) == ("0x9", "0x1")
    assert path.read_bytes() == before


def test_the_commands_report_problems_of_a_file(
    path: Path, tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "missing")
    merged = cli("workloads", "goldens", "merge", missing, "--goldens", str(path), code=2)
    assert f"{missing}: there is no such file" in merged.err
    listed = cli("workloads", "goldens", "list", "--goldens", str(tmp_path), code=2)
    assert "cannot be read" in listed.err
    monkeypatch.setenv("SENTINEL_GOLDENS", "off")
    off = cli("workloads", "goldens", "list", code=2)
    assert "SENTINEL_GOLDENS: golden checksums are off" in off.err


def test_the_records_of_simulated_gpus_are_selected_by_an_option_and_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "gpus"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    simulated = locate(None, os.environ, tmp_path / "gpus")
    assert simulated is not None
    Goldens(simulated).record(KEY, 1)
    for option in ([], ["--simulated"]):
        listed = cli("workloads", "goldens", "list", *option)
        assert f"{simulated}: 1 golden checksum" in listed.out
    monkeypatch.delenv("SENTINEL_SIM_DIR")
    assert "0 golden checksums" in cli("workloads", "goldens", "list").out
