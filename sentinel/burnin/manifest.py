"""The manifest of a run: the hash of every file at its end, signed and checked by ssh-keygen.

Without a signature it shows what was changed by mistake; whoever can change the files can change it
as well. A signature shows who had the files so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

from sentinel.burnin.run_folder import RunFolder, read_object
from sentinel.errors import ConfigError
from sentinel.host.regular_file import open_regular

MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"
#: A signature is for this purpose only: one of the same key for mail or commits does not count.
NAMESPACE = "sentinel-burnin"
#: The key may be in an agent that asks its owner.
_SIGN_TIMEOUT_S = 300.0
_CHECK_TIMEOUT_S = 30.0


def write_manifest(folder: RunFolder) -> None:
    """Write the hashes of all files of a run; a signature of an earlier state is removed.

    Raises:
        ConfigError: A file cannot be read, or the manifest not be written.
    """
    (folder.path / SIGNATURE).unlink(missing_ok=True)
    folder.write(folder.path / MANIFEST, {"schema_version": 1, "sha256": _hashes(folder.path)})


def differences(folder: Path) -> list[str]:
    """List what is not as the manifest has it: missing, added and changed files.

    Raises:
        ConfigError: There is no manifest, it is none, or a file cannot be read.
    """
    if not (folder / MANIFEST).exists():
        raise ConfigError(
            f"{folder} has no {MANIFEST}: the run has not ended, or is of an earlier version",
            "sentinel report RUN --sign KEY writes one of the files as they are.",
        )
    known = read_object(folder / MANIFEST).get("sha256")
    if not isinstance(known, dict):
        raise ConfigError(f"{folder / MANIFEST}: it has no sha256 of files")
    found = _hashes(folder)
    return [
        f"{name} {_difference(known.get(name), found.get(name))}"
        for name in sorted({*known, *found})
        if known.get(name) != found.get(name)
    ]


def _difference(known: object, found: str | None) -> str:
    if found is None:
        return "is missing"
    return "was added" if known is None else "was changed"


def sign(run: RunFolder, key: Path) -> None:
    """Sign the manifest of a run that is as it says; without one, that of the files as they are.

    Args:
        run: The run.
        key: A private key of SSH, or a public one whose private key an agent has.

    Raises:
        ConfigError: The run is not as its manifest says, or ssh-keygen is missing or failed.
    """
    _check_program()
    if not (run.path / MANIFEST).exists():
        write_manifest(run)
    if found := differences(run.path):
        raise ConfigError(f"{run.path} is not signed: {', '.join(found)}")
    signature = run.path / SIGNATURE
    signature.unlink(missing_ok=True)  # ssh-keygen would ask
    words = ("sign", "-f", str(key), "-n", NAMESPACE, str(run.path / MANIFEST))
    done = _ssh_keygen(*words, timeout=_SIGN_TIMEOUT_S)
    if done.returncode or not signature.exists():
        raise ConfigError(f"--sign {key}: ssh-keygen: {_last_line(done)}")


def signed_by(folder: Path, signers: Path) -> tuple[str | None, str]:
    """Check the signature of a manifest.

    Args:
        folder: The run.
        signers: A file of allowed signers, as ssh-keygen describes it; their namespaces and the
            times for which they are valid count.

    Returns:
        Who has signed it, or None; and what ssh-keygen said.

    Raises:
        ConfigError: The file of signers cannot be read, or ssh-keygen is missing.
    """
    try:
        os.close(open_regular(signers, os.O_RDONLY))
    except OSError as error:
        raise ConfigError(f"--signers {signers} cannot be read: {error.strerror}") from None
    _check_program()
    signature = folder / SIGNATURE
    if not signature.exists():
        return None, "it is not signed"
    common = ("-f", str(signers), "-s", str(signature))
    found = _ssh_keygen("find-principals", *common, timeout=_CHECK_TIMEOUT_S)
    said = found if found.returncode else None
    data = (folder / MANIFEST).read_bytes()
    for name in found.stdout.decode(errors="replace").splitlines() if said is None else ():
        words = ("verify", *common, "-I", name, "-n", NAMESPACE)
        said = _ssh_keygen(*words, timeout=_CHECK_TIMEOUT_S, data=data)
        if not said.returncode:
            return name, _last_line(said)
    return None, "no signer is named" if said is None else _last_line(said)


def _hashes(folder: Path) -> dict[str, str]:
    """Compute the SHA-256 of every file of a folder but the manifest and its signature, by name.

    Raises:
        ConfigError: A file cannot be read, or is a folder, a link or another thing that is no file.
    """
    found = {}
    try:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if name in {MANIFEST, SIGNATURE} or stat.S_ISDIR(path.lstat().st_mode):
                continue
            with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None
    return found


def _check_program() -> str:
    """Find ssh-keygen.

    Raises:
        ConfigError: It is missing.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise ConfigError(
            "signatures need ssh-keygen, which is not installed",
            "Install OpenSSH 8.2 or newer: openssh-client (Debian), openssh (Fedora, RHEL).",
        )
    return program


def _ssh_keygen(
    *words: str, timeout: float, data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y``.

    Raises:
        ConfigError: It cannot be run, or does not end.
    """
    command = [_check_program(), "-Y", *words]
    try:
        return subprocess.run(
            command, capture_output=True, input=data, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"ssh-keygen -Y {words[0]} has not ended in {timeout:.0f} s") from None
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be executed: {error.strerror}") from None


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with code {done.returncode}"
