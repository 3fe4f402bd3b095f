"""``sentinel start``: a daemon where none runs, and the word to occupy where one does."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from sentinel.cli.json_output import print_json
from sentinel.cli.setting_options import settings
from sentinel.config.model import SETTINGS
from sentinel.config.sources import Sources, checked
from sentinel.errors import AlreadyRunningError, ConfigError, ExitCode
from sentinel.host.paths import Places, places
from sentinel.host.simulation import default_folder
from sentinel.supervisor.daemonize import NotStartedError, ask, start_detached
from sentinel.supervisor.single_instance import running

#: How long a daemon may take until it answers, in seconds: a driver without persistence mode needs
#: up to 3 s for each GPU.
WAIT = 60.0


@click.command("start")
@click.option(
    "--simulate", metavar="N", type=int, help="Pretend N GPUs, for a host without; nothing is real."
)
@settings
@click.option("--json", "as_json", is_flag=True, help="Say it as one JSON object.")
def command(
    sources: Sources,
    simulate: int | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Start the daemon, unless one runs, and let it occupy idle GPUs.

    It goes on when the terminal is closed. Where one runs already, it is told to occupy.
    """
    checked(sources)
    if simulate is not None and not 1 <= simulate <= 64:  # noqa: PLR2004
        raise ConfigError(f"--simulate: {simulate} is out of range", "allowed is from 1 to 64")
    where, pid = _find(simulated=simulate is not None)
    flags = _flags(sources)
    if pid is None:
        more = ["--simulate", str(simulate)] if simulate is not None else []
        pid = start_detached([*_config(sources), *flags, *more], where, WAIT).pid
        _say(where, pid, f"started: pid {pid}", as_json=as_json, started=True)
        return int(ExitCode.OK)
    if flags:
        raise AlreadyRunningError(
            f"a daemon runs already: pid {pid or 'unknown'}, socket {where.socket}",
            "It keeps its settings. To give it these, use: sentinel restart",
        )
    text = _occupy(where, pid)
    _say(
        where, pid, f"runs already: pid {pid or 'unknown'}; {text}", as_json=as_json, started=False
    )
    return int(ExitCode.OK)


def _find(*, simulated: bool) -> tuple[Places, int | None]:
    """Return where the daemon is or will be, and its PID if it runs; 0 is one that is not known.

    With ``$SENTINEL_SIM_DIR`` the one on simulated GPUs is meant where it runs, as by all clients.
    """
    pretended = places(os.environ, os.getuid(), default_folder().absolute())
    if simulated:
        return pretended, _pid(pretended)
    if os.environ.get("SENTINEL_SIM_DIR"):
        pid = _pid(pretended)
        if pid is not None:
            return pretended, pid
    real = places(os.environ, os.getuid())
    return real, _pid(real)


def _pid(where: Places) -> int | None:
    """Return the PID of the daemon there, also where only its socket may be used, by a group."""
    pid = running(where)
    if pid is None:
        with contextlib.suppress(OSError, ValueError):
            ask(where.socket, "GET", "/v1/health")
            return 0
    return pid


def _flags(sources: Sources) -> list[str]:
    """Return the flags that were given, as a daemon in another folder understands them."""
    flags = {setting.flag: setting for setting in SETTINGS}
    found = []
    for given in sources.given.values():
        setting = flags.get(given.source)
        if setting is None:
            continue
        relative = setting.key == "goldens" and given.text != "off"
        relative = relative and not given.text.startswith(("/", "~/"))
        text = str(Path(given.text).absolute()) if relative else given.text
        found.append(f"{setting.flag}={text}")
    return found


def _config(sources: Sources) -> list[str]:
    """Return the flag for the file that was found: what is read anew must be the same."""
    return [f"--config={sources.file.absolute()}"] if sources.file is not None else []


def _occupy(where: Places, pid: int) -> str:
    """Tell a daemon to occupy; return what it says."""
    who = f"pid {pid or 'unknown'}"
    try:
        status, answer = ask(where.socket, "POST", "/v1/start", {}, timeout=10.0)
    except (OSError, ValueError) as error:
        raise NotStartedError(
            f"a daemon runs, {who}, and does not answer at {where.socket}: {error}",
            f"Its log is {where.log}; it ends by: kill {pid or 'PID'}",
        ) from error
    text = str(answer.get("text") or answer.get("detail") or answer.get("title") or "")
    if status >= 400:  # noqa: PLR2004 - what HTTP calls errors
        raise NotStartedError(f"the daemon, {who}, refused: {text}")
    return text


def _say(where: Places, pid: int, text: str, *, as_json: bool, started: bool) -> None:
    """Say what came of it, for people or for programs."""
    if not as_json:
        print(f"sentinel {text}\nsocket {where.socket}\nlog    {where.log}")
        return
    print_json({"started": started, "pid": pid, "socket": where.socket, "log": where.log})
