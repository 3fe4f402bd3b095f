"""What proves that the folder of a run is what was recorded, and by whom."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.burnin.formats import FORMATS, write_reports
from sentinel.burnin.manifest import NAMESPACE
from sentinel.burnin.record import LAST
from sentinel.burnin.report import judge_run, report_object
from sentinel.burnin.run_folder import RunFolder
from sentinel.burnin.verdict import Verdict
from sentinel.errors import ExitCode
from sentinel.protocol import __version__
from tests.harness.command_line import CommandLine
from tests.harness.example_run import ExampleRun
from tests.harness.parameters import mostly_long

needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen"
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run that passed, with its reports, as a recorder leaves it."""
    found = ExampleRun().write(tmp_path_factory.mktemp("runs") / "run")
    rows = found.samples.read_text().splitlines()
    counts = {"count": len(rows) - 1, "event_count": found.event_count()}
    rows[-1] = json.dumps({**json.loads(rows[-1]), **counts})
    found.samples.write_text("\n".join([*rows, ""]))
    write_reports(found, judge_run(found))
    return found.path


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> RunFolder:
    """Copy the run, for a test that changes it."""
    return RunFolder(path=shutil.copytree(template, tmp_path / "run"))


# --- a record that ends before the run does --------------------------------------------------


def cut_samples(folder: RunFolder) -> None:
    rows = folder.samples.read_text().splitlines(keepends=True)
    folder.samples.write_text("".join(rows[: len(rows) // 2]))


def torn_last_sample(folder: RunFolder) -> None:
    folder.samples.write_text(folder.samples.read_text()[:-5])


def last_moved_up(folder: RunFolder) -> None:
    rows = folder.samples.read_text().splitlines(keepends=True)
    folder.samples.write_text("".join([*rows[:40], rows[-1]]))


def cut_events(folder: RunFolder) -> None:
    """Drop one event of which nothing else depends, as that of an XID may be."""
    rows = folder.events.read_text().splitlines(keepends=True)
    rows.remove(next(row for row in rows if "stressor.ready" in row))
    folder.events.write_text("".join(rows))


def no_end(folder: RunFolder) -> None:
    rows = folder.events.read_text().splitlines(keepends=True)
    folder.events.write_text("".join(rows[:-1]))


@mostly_long("change", [cut_samples, torn_last_sample, last_moved_up, cut_events, no_end], quick=2)
def test_a_record_that_ends_before_its_run_is_incomplete(
    change: Callable[[RunFolder], None], folder: RunFolder
) -> None:
    assert judge_run(folder).verdict is Verdict.PASS
    change(folder)
    found = judge_run(folder)
    assert found.verdict is Verdict.INCOMPLETE
    text = FORMATS["text"](found, report_object(found))
    assert "end before the run does" in text or "missing" in text or "has ended" in text


def test_the_recorder_counts_events_and_samples_last(folder: RunFolder) -> None:
    last = json.loads(folder.samples.read_text().splitlines()[-1])
    assert (last["event"], last["event_count"]) == (LAST, folder.event_count())


def test_a_plan_that_was_changed_is_no_plan_of_the_run(folder: RunFolder, cli: CommandLine) -> None:
    header = json.loads(folder.header.read_text()) | {"version": __version__}
    folder.header.write_text(json.dumps(header))
    assert cli("report", str(folder.path)).out.startswith("PASS")
    header["plan"]["phases"][1]["seconds"] = 1.0
    folder.header.write_text(json.dumps(header))
    found = cli("report", str(folder.path), code=ExitCode.USAGE)
    assert "the plan was changed after the run" in found.err


# --- the manifest ----------------------------------------------------------------------------


def changed(folder: RunFolder) -> str:
    header = folder.header.read_text()
    folder.header.write_text(header.replace("node-7", "node-8"))
    return "run.json was changed"


def report_changed(folder: RunFolder) -> str:
    folder.report.write_text(folder.report.read_text().replace("PASS", "WARN"))
    return "report.json was changed"


def removed(folder: RunFolder) -> str:
    folder.counters.unlink()
    return "counters.json is missing"


def added(folder: RunFolder) -> str:
    (folder.path / "more").mkdir()
    (folder.path / "more" / "note.txt").write_text("")
    return "more/note.txt was added"


def linked(folder: RunFolder) -> str:
    folder.events.rename(folder.path.parent / "elsewhere")
    folder.events.symlink_to(folder.path.parent / "elsewhere")
    return "events.jsonl cannot be read"


def no_manifest(folder: RunFolder) -> str:
    folder.manifest.unlink()
    return "has no manifest.json"


def broken_manifest(folder: RunFolder) -> str:
    folder.manifest.write_text("[]")
    return "manifest.json cannot be used"


CHANGES = [changed, report_changed, removed, added, linked, no_manifest, broken_manifest]


def test_a_folder_as_its_manifest_says_is_consistent(folder: RunFolder, cli: CommandLine) -> None:
    header = json.loads(folder.header.read_text())
    run = f"run {header['id']} of node-7, begun {header['started']}"
    out = cli("report", "--verify", str(folder.path)).out
    assert out.startswith(f"{run}: consistent, not authentic")
    assert "PASS  node-7" in out
    json.loads(cli("report", "--verify", str(folder.path), "--json").out)


@pytest.mark.parametrize("change", CHANGES)
def test_a_missing_added_or_changed_file_is_found(
    change: Callable[[RunFolder], str], folder: RunFolder, cli: CommandLine
) -> None:
    expected = change(folder)
    code = ExitCode.USAGE if change is linked else ExitCode.INCOMPLETE
    assert expected in cli("report", "--verify", str(folder.path), code=code).err


def test_a_stored_report_that_was_changed_is_not_believed(
    folder: RunFolder, cli: CommandLine
) -> None:
    words = ("report", "--stored", str(folder.path))
    changed(folder)
    assert cli(*words).out.startswith("PASS")
    expected = report_changed(folder)
    assert expected in cli(*words, code=ExitCode.INCOMPLETE).err
    folder.manifest.unlink()
    assert cli(*words).out.startswith("WARN")
    folder.report.write_text(
        json.dumps(json.loads(folder.report.read_text()) | {"schema_version": "1.6"})
    )
    how = f"To judge its run again: sentinel report {folder.path}"
    assert how in cli(*words, code=ExitCode.USAGE).err


def test_a_verdict_that_fails_does_so_when_it_is_verified(tmp_path: Path, cli: CommandLine) -> None:
    folder = ExampleRun(wrong={1: 3}).write(tmp_path / "run")
    write_reports(folder, judge_run(folder))
    assert "FAIL" in cli("report", "--verify", str(folder.path), code=1).out
    # Another report, and another manifest of it: what was recorded says more.
    report = json.loads(folder.report.read_text())
    good = judge_run(ExampleRun().write(tmp_path / "good"))
    write_reports(folder, good)
    assert "what was recorded is FAIL" in cli("report", "--verify", str(folder.path), code=3).err
    assert report["verdict"] == "FAIL"


def test_a_fail_stands_where_a_copy_has_nothing_to_compare_with(
    folder: RunFolder, cli: CommandLine
) -> None:
    report = json.loads(folder.report.read_text())
    folder.report.write_text(json.dumps({**report, "verdict": "FAIL"}))
    found = cli("report", str(folder.path), "--json", code=1)
    assert "FAIL stands" in found.err
    assert json.loads(found.out)["verdict"] == "FAIL", "what is printed, as the exit code"


def test_a_run_that_goes_on_has_no_manifest_of_its_former_part(folder: RunFolder) -> None:
    from sentinel.burnin.run_files import reopen
    from sentinel.diagnostics.counters import CountersResult

    folder.signature.write_text("former")
    reopen(folder, (), CountersResult(counters=(), driver_error=None, stuck=False), {})
    assert not folder.manifest.exists()
    assert not folder.signature.exists()


# --- signatures ------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ops", "-f", str(path))
    subprocess.run(words, check=True)
    return path


def signers_file(key: Path, name: str = "ops@example.org", options: str = "") -> str:
    """Write a file of allowed signers with the public key."""
    path = key.with_name("signers")
    public = key.with_name("key.pub").read_text()
    path.write_text(f"{name} {options} {public}")
    return str(path)


@needs_ssh_keygen
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", None),
        (f'namespaces="{NAMESPACE}"', None),
        ('namespaces="file,git"', "not permitted for use in signature namespace"),
        ('valid-before="20200101"', "signed by none"),
        ('valid-after="20990101"', "signed by none"),
    ],
)
def test_a_signature_is_of_an_allowed_signer_for_this_purpose_and_now(
    options: str, why: str | None, folder: RunFolder, key: Path, cli: CommandLine
) -> None:
    assert "PASS" in cli("report", "--sign", str(key), str(folder.path)).out
    words = ("report", "--verify", "--signers", signers_file(key, options=options))
    printed = cli(*words, str(folder.path), code=3 if why else 0)
    assert why in printed.err if why else "signed by ops@example.org" in printed.out


@needs_ssh_keygen
def test_what_is_signed_by_another_key_or_not_at_all_is_refused(
    folder: RunFolder, key: Path, cli: CommandLine
) -> None:
    path, signers = str(folder.path), signers_file(key)
    words = ("report", "--verify", "--signers", signers, path)
    assert "is not signed" in cli(*words, code=3).err
    other = key.with_name("other")
    made = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other))
    subprocess.run(made, check=True)
    cli("report", "--sign", str(other), path)
    assert "signed by none of" in cli(*words, code=3).err
    # A signature of this key for another purpose.
    signed = ("ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "file", str(folder.manifest))
    folder.signature.unlink()
    subprocess.run(signed, check=True)
    assert "signed by none of" in cli(*words, code=3).err
    # One of another manifest.
    cli("report", "--sign", str(key), path)
    cli(*words)
    folder.manifest.write_text(folder.manifest.read_text() + "\n")
    assert "signed by none of" in cli(*words, code=3).err


@needs_ssh_keygen
def test_nothing_is_signed_that_is_not_consistent(
    folder: RunFolder, key: Path, cli: CommandLine
) -> None:
    changed(folder)
    printed = cli("report", "--sign", str(key), str(folder.path), code=3)
    assert "run.json was changed" in printed.err
    assert not folder.signature.exists()


@pytest.mark.parametrize("option", ["--verify", "--sign=key"])
def test_a_run_without_a_manifest_is_judged_and_neither_verified_nor_signed(
    option: str, folder: RunFolder, cli: CommandLine
) -> None:
    """A manifest that is made later would prove nothing about what was recorded."""
    folder.manifest.unlink()
    printed = cli("report", option, str(folder.path), code=ExitCode.INCOMPLETE)
    assert "has no manifest.json: it has not ended, or is of an earlier version" in printed.err
    assert not folder.manifest.exists()
    assert cli("report", str(folder.path)).out


@pytest.mark.parametrize("words", [("--sign", "/nowhere/key"), ("--verify", "--signers", "s")])
def test_a_missing_program_or_key_is_an_error(
    words: tuple[str, ...],
    folder: RunFolder,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "s").write_text("")
    folder.signature.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    printed = cli("report", *words, str(folder.path), code=ExitCode.USAGE)
    assert "ssh-keygen cannot be run" in printed.err
    assert "OpenSSH" in printed.err


def test_options_that_need_each_other(folder: RunFolder, cli: CommandLine) -> None:
    cli("report", "--signers", "x", str(folder.path), code=ExitCode.USAGE)
    cli("report", "--verify", "--html", str(folder.path), code=ExitCode.USAGE)
