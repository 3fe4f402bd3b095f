"""Children of a root supervisor as another user, without privileges, secrets or a shared /tmp."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from sentinel.errors import ConfigError
from sentinel.host.process_setup import end_with_parent
from sentinel.protocol.stressor import Account
from sentinel.units import format_exit

#: Variables that a child inherits: where programs, libraries and texts are, and how CUDA, torch and
#: the mathematical libraries work. All others stay with the supervisor, and so do their secrets.
_VARIABLES = frozenset(
    {
        *("PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "VIRTUAL_ENV"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE"),
    }
)
_PREFIXES = ("LC_", "CUDA_", "TORCH_", "PYTORCH_", "NCCL_", "OMP_", "MKL_")
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS")

_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm"))
_TMP = Path("/tmp")  # noqa: S108
_TMP_OPTIONS = b"mode=1777,size=64m"

# <sys/prctl.h>, <sched.h> and <sys/mount.h>
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 16384, 1 << 18


def environment_of(account: Account, inherited: Iterable[str]) -> dict[str, str | None]:
    """Compute the changes to an environment for a user; None removes a variable.

    Args:
        account: The user.
        inherited: The names of the inherited variables.
    """
    kept = {name for name in inherited if name in _VARIABLES or name.startswith(_PREFIXES)}
    removed = dict.fromkeys(name for name in inherited if name not in kept or _SECRET.search(name))
    return {**removed, "HOME": account.home, "USER": account.name, "LOGNAME": account.name}


def look_up(user: str, setting: str) -> Account:
    """Look up the user, given by name or number, that a setting names.

    Raises:
        ConfigError: There is no such user, or it is root.
    """
    try:
        by_number = user.isascii() and user.isdigit()
        entry = pwd.getpwuid(int(user)) if by_number else pwd.getpwnam(user)
    except (KeyError, OverflowError, ValueError):
        what = f"{setting}: this host has no user {user!r}"
        raise ConfigError(what, "Create it with: useradd --system NAME") from None
    if entry.pw_uid == 0:
        what = f"{setting}: {user!r} is root"
        raise ConfigError(what, "Name a user without privileges, or remove the setting.")
    return Account(
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        name=entry.pw_name,
        home=entry.pw_dir,
    )


def find_account(user: str, setting: str) -> Account:
    """Look up a user as :func:`look_up` does, and start a program as this user once.

    Raises:
        ConfigError: As for :func:`look_up`; or this process cannot start Python as this user.
    """
    account = look_up(user, setting)
    if os.getuid() != 0:
        what = f"{setting}: only root can start stressors as another user"
        raise ConfigError(what, "Remove the setting, or start sentinel as root.")
    changes = environment_of(account, os.environ)
    variables = {name: text for name, text in {**os.environ, **changes}.items() if text is not None}
    try:
        subprocess.run(
            [sys.executable, "-S", "-c", ""],
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            env=variables,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.strerror if isinstance(error, OSError) else format_exit(error.returncode)
        what = f"{setting}: {sys.executable} cannot be started as {user!r}: {why}"
        remedy = "Sentinel needs CAP_SETUID and CAP_SETGID, and the user must be able to read it."
        raise ConfigError(what, remedy) from error
    return account


def become(account: Account, parent: int, *, needed: Iterable[str] = ()) -> None:
    """Turn this process into one of another user that can gain no privileges.

    It gets an empty /tmp of its own where it may mount one, and where nothing that it needs is in
    the old one.

    Args:
        account: The user.
        parent: The PID of the supervisor: a change of user clears the parent-death signal.
        needed: Files and folders that this process reads later.

    Raises:
        OSError: A step failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    paths = map(Path, (sys.prefix, sys.base_prefix, *sys.path, *needed))
    if not any(path.absolute().is_relative_to(_TMP) for path in paths):
        with contextlib.suppress(OSError):
            _mount_tmp(libc)
    _leave_resource_tracker()
    os.chdir("/")
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    _call(libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # The change of user cleared it; without it, a process cannot read its own /proc/self.
    _call(libc.prctl, _PR_SET_DUMPABLE, 1, 0, 0, 0)
    end_with_parent(parent)


def _leave_resource_tracker() -> None:
    """Close the pipe to the supervisor's resource tracker, which deletes what it is told to.

    multiprocessing passes it to every child. When it is needed, this process starts one of its own.
    """
    tracker: Any = vars(resource_tracker)["_resource_tracker"]
    pipe = vars(tracker)["_fd"]
    if pipe is not None:
        os.close(pipe)
        vars(tracker)["_fd"] = None


def check_devices(account: Account) -> None:
    """Check that this process, which is the user's now, can open the driver's devices.

    Raises:
        ConfigError: One of them cannot be opened.
    """
    for device in _DEVICES:
        if not os.access(device, os.R_OK | os.W_OK):
            what = f"{account.name} cannot open {device}, which CUDA needs"
            raise ConfigError(what, "Load nvidia-uvm, and allow this user to use the devices.")


def _mount_tmp(libc: ctypes.CDLL) -> None:
    """Mount an empty folder over /tmp, for this process and its children alone."""
    _call(libc.unshare, _CLONE_NEWNS)
    _call(libc.mount, b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _call(libc.mount, b"tmpfs", bytes(_TMP), b"tmpfs", _MS_NOSUID | _MS_NODEV, _TMP_OPTIONS)


def _call(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    """Call a function of libc.

    Raises:
        OSError: It failed.
    """
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")
