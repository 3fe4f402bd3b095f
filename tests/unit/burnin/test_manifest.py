"""The manifest of a run: what was changed since its end, and who has signed it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.formats import write_reports
from sentinel.burnin.manifest import MANIFEST, NAMESPACE, SIGNATURE
from sentinel.burnin.report import judge_run
from tests.harness.command_line import CommandLine
from tests.harness.example_run import ExampleRun

needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = ExampleRun().write(tmp_path_factory.mktemp("ended") / "run")
    write_reports(folder, judge_run(folder, Thresholds()))
    return folder.path


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "run"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


def make_key(path: Path) -> Path:
    words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path))
    subprocess.run(words, check=True)
    return path


def signers_of(key: Path, options: str = f'namespaces="{NAMESPACE}"') -> Path:
    kind, public, _ = key.with_suffix(".pub").read_text().split()
    file = key.with_suffix(".signers")
    other = f"other@example.com {kind} {'A' * 68}"
    file.write_text(f"{other}\nlab@example.com {options} {kind} {public}\n")
    return file


def test_a_run_is_as_at_its_end(run: Path, cli: CommandLine) -> None:
    printed = cli("report", str(run), "--verify").out
    assert printed.endswith("consistent, not authentic (no signers given)\n")


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda run: (run / "samples.jsonl").unlink(), "samples.jsonl is missing"),
    (lambda run: (run / "more.txt").touch(), "more.txt was added"),
    (lambda run: (run / "run.json").write_text("{}"), "run.json was changed"),
    (lambda run: (run / "report.json").write_text("{}"), "report.json was changed"),
    (lambda run: (run / "events.jsonl").write_text("\n"), "events.jsonl was changed"),
]


@pytest.mark.parametrize(("change", "what"), CHANGES)
@needs_ssh_keygen
def test_what_is_missing_added_or_changed_is_named(
    change: Callable[[Path], object], what: str, run: Path, key: Path, cli: CommandLine
) -> None:
    cli("report", str(run), "--sign", str(key))
    change(run)
    for words in ((), ("--signers", str(signers_of(key)))):
        printed = cli("report", str(run), "--verify", *words, code=1).out
        assert printed.splitlines()[1:] == [what]
    assert f"is not signed: {what}" in cli("report", str(run), "--sign", str(key), code=2).err


@needs_ssh_keygen
def test_a_signature_proves_who_signed(run: Path, key: Path, cli: CommandLine) -> None:
    words = ("report", str(run), "--verify", "--signers", str(signers_of(key)))
    assert "it is not signed" in cli(*words, code=1).out
    assert cli("report", str(run), "--sign", str(key)).out == f"signed: {run / SIGNATURE}\n"
    assert 'authentic, signed by lab@example.com: Good "sentinel-burnin"' in cli(*words).out


@needs_ssh_keygen
@pytest.mark.parametrize(
    "options",
    ['namespaces="git"', f'namespaces="{NAMESPACE}",valid-before="20200101"', "cert-authority"],
)
def test_a_key_that_is_not_allowed_for_it_proves_nothing(
    options: str, run: Path, key: Path, cli: CommandLine
) -> None:
    cli("report", str(run), "--sign", str(key))
    signers = str(signers_of(key, options))
    printed = cli("report", str(run), "--verify", "--signers", signers, code=1).out
    assert f"\n{MANIFEST}: " in printed
    assert "authentic" not in printed


@needs_ssh_keygen
def test_the_signature_of_another_key_purpose_or_state_proves_nothing(
    run: Path, key: Path, tmp_path: Path, cli: CommandLine
) -> None:
    words = ("report", str(run), "--verify", "--signers", str(signers_of(key)))
    cli("report", str(run), "--sign", str(make_key(tmp_path / "other")))
    cli(*words, code=1)
    (run / SIGNATURE).unlink()
    given = ("-f", str(key), "-n", "git", str(run / MANIFEST))
    subprocess.run(("ssh-keygen", "-Y", "sign", *given), check=True, capture_output=True)
    cli(*words, code=1)
    cli("report", str(run), "--sign", str(key))
    (run / MANIFEST).write_text((run / MANIFEST).read_text() + "\n")
    assert "authentic" not in cli(*words, code=1).out


def test_without_ssh_keygen_it_is_named(
    run: Path, tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / SIGNATURE).touch()
    signers = tmp_path / "signers"
    signers.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in (("--sign", "key"), ("--verify", "--signers", str(signers))):
        error = cli("report", str(run), *words, code=2).err
        assert "signatures need ssh-keygen, which is not installed" in error
        assert "Install OpenSSH 8.2 or newer" in error


@needs_ssh_keygen
def test_a_run_of_an_earlier_version_is_signed_as_it_is(
    run: Path, key: Path, cli: CommandLine
) -> None:
    (run / MANIFEST).unlink()
    cli("report", str(run), "--sign", str(key))
    cli("report", str(run), "--verify", "--signers", str(signers_of(key)))
    error = cli("report", str(run), "--verify", "--signers", "/nowhere", code=2).err
    assert "--signers /nowhere cannot be read" in error


def test_a_run_without_a_manifest_is_not_verified(run: Path, cli: CommandLine) -> None:
    (run / MANIFEST).unlink()
    assert f"has no {MANIFEST}" in cli("report", str(run), "--verify", code=2).err
    assert "--signers is for --verify" in cli("report", str(run), "--signers", "x", code=2).err
