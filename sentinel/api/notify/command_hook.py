"""Run a program for a notification, without a shell, within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel.api.notify.delivery import DeliveryError

#: The time for one run, in seconds; then its process group is killed.
TIMEOUT_S = 30.0
#: The longest value of a variable, in characters.
_MAX_VALUE = 4096
#: As many links as the kernel follows in one path.
_MAX_LINKS = 40
#: Variables that are the daemon's alone.
_OWN = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "MALLOC_ARENA_MAX")


class CommandHook:
    """A program that gets each notification as JSON on its standard input, and in variables.

    It runs as the daemon's own user.

    Args:
        command: The absolute path of the program, and its arguments.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    async def send(self, name: str, id_: str, body: bytes) -> None:
        """Run the program for one notification.

        Args:
            name: The name of the event.
            id_: Identifies the notification; the same in each attempt.
            body: The JSON.

        Raises:
            DeliveryError: The program cannot be run, or did not succeed.
        """
        path = self._command[0]
        why = why_unsafe(path)
        if why is not None:
            raise DeliveryError(f"{path} is not run: {why}", final=True)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                env=environment(name, id_, json.loads(body)),
                cwd="/",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DeliveryError(f"{path} cannot be run: {reason}") from error
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await process.communicate(body + b"\n")  # a program may append it to a file
        except TimeoutError:
            raise DeliveryError(f"{path} did not end within {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:  # also if this process ends
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        if process.returncode != 0:
            raise DeliveryError(f"{path} ended with exit code {process.returncode}")


def why_unsafe(path: str) -> str | None:
    """Explain why a program must not be run by this user, or return None.

    Root runs only what no other user can change: a path of a file is not yet a program of root's.
    Nor is a link, which its owner may turn to another program at any time.
    """
    if os.getuid() != 0:
        return None
    try:
        for one in _way_to(Path(path)):
            there = one.lstat()
            shared = there.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            sticky = stat.S_ISDIR(there.st_mode) and there.st_mode & stat.S_ISVTX
            open_to_all = shared and not sticky and not stat.S_ISLNK(there.st_mode)
            if there.st_uid != 0 or open_to_all:
                return f"users other than root can change {one}"
    except OSError as error:
        return str(error.strerror)
    return None


def _way_to(path: Path) -> Iterator[Path]:
    """Yield each folder and each link on the way to a file, and the file.

    Raises:
        OSError: One does not exist, or there are too many links.
    """
    done, names, links = Path("/"), list(path.parts[1:]), 0
    yield done
    while names:
        name = names.pop(0)
        if name == "..":
            done = done.parent
            continue
        yield done / name
        try:
            target = (done / name).readlink()
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is no link
                raise
            done /= name
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        done = Path("/") if target.is_absolute() else done
        names = [*target.parts[target.is_absolute() :], *names]


def environment(name: str, id_: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Build the variables of the program: those of the daemon, and the fields of the event."""
    variables = {key: text for key, text in os.environ.items() if not key.startswith(_OWN)}
    variables = {
        key: text for key, text in variables.items() if not key.startswith("SENTINEL_EVENT_")
    }
    event = {f"EVENT_{key}".upper(): value for key, value in body["event"].items()}
    event |= {"EVENT_NAME": name, "EVENT_DELIVERY": id_, "EVENT_HOST": body["host"]}
    event |= {"EVENT_COUNT": body["count"]}
    event.pop("EVENT_EVENT", None)
    for key, value in event.items():
        text = value if isinstance(value, str) else json.dumps(value)
        variables[f"SENTINEL_{key}"] = text.replace("\0", "")[:_MAX_VALUE]
    return variables
