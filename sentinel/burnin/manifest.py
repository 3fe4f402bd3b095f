"""The manifest of a run, the SHA-256 of each file of its folder, and the signature of it.

Keys and signatures are OpenSSH's: ``ssh-keygen -Y`` signs and checks them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from sentinel.burnin.run_folder import RunFolder, digest
from sentinel.errors import ConfigError, IncompleteError
from sentinel.host.regular_file import read_regular
from sentinel.units import format_exit

SCHEMA_VERSION = "1.0"
#: What a signature is for, so that none of another purpose can be taken for it.
NAMESPACE = "sentinel-burnin"
#: As the user's path has it.
_PROGRAM = "ssh-keygen"
_MAX_BYTES = 2**20


def write_manifest(folder: RunFolder) -> None:
    """Write the manifest of a folder whose files are complete; a former signature is removed.

    Raises:
        ConfigError: A file cannot be read or written.
    """
    folder.signature.unlink(missing_ok=True)
    files = dict(_digests(folder))
    folder.write(folder.manifest, {"schema_version": SCHEMA_VERSION, "files": files})


def check_manifest(folder: RunFolder) -> bytes:
    """Compare the folder with its manifest, and return the manifest.

    Raises:
        IncompleteError: There is none, or a file is missing, added or changed.
    """
    text, known = _read(folder)
    found = dict(_digests(folder))
    names = sorted({*known, *found})
    wrong = [
        f"{name} {_difference(name, known, found)}"
        for name in names
        if known.get(name) != found.get(name)
    ]
    if wrong:
        raise IncompleteError(f"{folder.path} is not as its manifest says: {', '.join(wrong)}")
    return text


def check_report(folder: RunFolder) -> None:
    """Compare the report of a run with the manifest, if there is one.

    Raises:
        IncompleteError: The report was changed, or the manifest cannot be used.
        ConfigError: The report cannot be read.
    """
    if folder.manifest.exists():
        name = folder.report.name
        _, known = _read(folder)
        if known.get(name) != _digest(folder.report):
            raise IncompleteError(f"{folder.path} is not as its manifest says: {name} was changed")


def _read(folder: RunFolder) -> tuple[bytes, Mapping[str, str]]:
    """Read the manifest: its text, and the SHA-256 of each file.

    Raises:
        IncompleteError: There is none, or it cannot be used.
    """
    try:
        text = read_regular(folder.manifest, _MAX_BYTES)
        return text, {str(name): value for name, value in json.loads(text)["files"].items()}
    except FileNotFoundError:
        what = "it has not ended, or is of an earlier version"
        raise IncompleteError(f"{folder.path} has no {folder.manifest.name}: {what}") from None
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise IncompleteError(f"{folder.manifest} cannot be used: {error!r}") from None


def _difference(name: str, known: Mapping[str, str], found: Mapping[str, str]) -> str:
    if name not in found:
        return "is missing"
    return "was changed" if name in known else "was added"


def _digests(folder: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield the path of each file below a folder, but for the manifest, and its SHA-256."""
    own = {folder.manifest, folder.signature}
    for path in sorted(folder.path.rglob("*")):
        if path not in own and (path.is_symlink() or not path.is_dir()):
            yield str(path.relative_to(folder.path)), _digest(path)


def _digest(path: Path) -> str:
    try:
        return digest(path, os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


def sign(folder: RunFolder, key: Path) -> None:
    """Sign the manifest with a private key, or with a public one whose private key an agent has.

    Raises:
        IncompleteError: The folder is not as the manifest says: a signature would prove nothing.
        ConfigError: It cannot be signed.
    """
    text = check_manifest(folder)
    signed = _ssh_keygen("sign", "-f", str(key.absolute()), manifest=text)
    if signed.returncode:
        raise ConfigError(f"--sign {key}: {_reason(signed)}")
    folder.write(folder.signature, signed.stdout.decode().rstrip("\n"))


def signer(folder: RunFolder, signers: Path, manifest: bytes) -> str:
    """Find who signed the manifest, by a file of allowed signers.

    Args:
        folder: The folder.
        signers: As for ``ssh-keygen``: principals, keys, and the namespaces and times of each.
        manifest: The manifest.

    Raises:
        IncompleteError: None of them did, or not for this purpose and now.
        ConfigError: It cannot be checked.
    """
    if not folder.signature.exists():
        raise IncompleteError(f"{folder.path} is not signed")
    if not signers.is_file():
        raise ConfigError(f"--signers {signers}: no such file")
    signature = ("-s", str(folder.signature.absolute()), "-f", str(signers.absolute()))
    found = _ssh_keygen("find-principals", *signature, manifest=b"")
    why = _reason(found)
    for name in found.stdout.decode(errors="replace").splitlines() if not found.returncode else ():
        checked = _ssh_keygen("verify", *signature, "-I", name, manifest=manifest)
        if not checked.returncode:
            return name
        why = _reason(checked)
    raise IncompleteError(f"{folder.path} is signed by none of {signers}: {why}")


def _ssh_keygen(action: str, *words: str, manifest: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run OpenSSH's program.

    Raises:
        ConfigError: It is not there.
    """
    purpose = () if action == "find-principals" else ("-n", NAMESPACE)
    try:
        return subprocess.run(
            [_PROGRAM, "-Y", action, *words, *purpose],
            input=manifest,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        what = f"{_PROGRAM} cannot be run: {error.strerror}"
        raise ConfigError(what, "Install OpenSSH's client, version 8.2 or later.") from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Extract why the program failed: its last line."""
    lines = (done.stderr or done.stdout).decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else f"{_PROGRAM} {format_exit(done.returncode)}"
