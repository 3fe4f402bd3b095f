"""The folder of a fleet run on a shared disk, and the runs that this user has begun here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from sentinel.errors import ConfigError
from sentinel.host.registry import records_folder
from sentinel.host.regular_file import File, file_errors, open_regular, read_regular, replace_file
from sentinel.protocol.codec import DecodeError, from_json

#: The version of ``fleet.json``: additions raise the second number, other changes the first.
SCHEMA_VERSION = "1.0"
#: A larger file is none of ours: 100,000 nodes with long names and job ids have 10 MB.
_MAX_BYTES = 64 * 2**20
#: A larger report of a node is not read, in bytes: one of 16 GPUs with every finding has 1 MB.
MAX_REPORT_BYTES = 64 * 2**20
#: The files are for the administrators of the cluster, too.
READABLE = 0o644
#: What a host name may have (RFC 1123, and the underscore that some sites use).
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: The id of a run, which is the name of its jobs; a comma would be a list of names.
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: The names of files in the folder that are no node's report.
NOT_NODES = frozenset({"drained", "fleet", "missing", "report"})

#: How many links are kept.
MAX_KNOWN = 100


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """One run of a plan on many nodes, as ``fleet.json`` has it."""

    #: Names the run; also the name of its jobs.
    id: str
    #: What distributes the work: ``slurm`` or ``clush``.
    engine: str
    #: The level, or None with a plan of the user's own.
    level: str | None = None
    #: The name of the plan and the hash of its content, as each node's report has them in
    #: ``run.plan``; a report with another hash is of another run.
    plan: str
    plan_hash: str
    #: All nodes that must report, by their names in the engine.
    nodes: tuple[str, ...]
    #: When it was submitted. The clocks of nodes may differ from this one.
    started: datetime
    #: At most so many nodes work at a time.
    batch: int = 200
    #: The command line of a node's task, the same for all nodes.
    command: tuple[str, ...] = ()
    #: The hash of the file of thresholds that every node and the verdict use, or None without one.
    thresholds_hash: str | None = None
    #: More options of the engine's command, such as ``--partition=gpu`` for sbatch.
    options: tuple[str, ...] = ()
    #: The ids of the engine's jobs: those of Slurm; of clush, its process.
    jobs: tuple[str, ...] = ()
    #: The id of each node's task in the engine, by node; empty if the engine has none.
    tasks: Mapping[str, str] = field(default_factory=dict)
    #: When tasks were submitted last; None before that, and if the engine has none.
    submitted: datetime | None = None
    #: The number of simulated GPUs of each node, or None with real ones.
    simulate: int | None = None
    #: Whether those who follow the run drain its failing nodes once the verdict is known.
    drain: bool = False
    #: Whether a GPU does no more after its first error.
    fail_fast: bool = False
    #: The hash of the file that says what each node must be, or None without one.
    expectation_hash: str | None = None
    #: Whether a WARN ends with 1.
    strict: bool = False
    schema_version: str = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class FleetFolder:
    """The files of one fleet's run."""

    path: Path
    #: What is run, and where: written before the first node begins.
    run_file = File("fleet.json")
    #: The plan that every node does, as TOML.
    plan = File("plan.toml")
    #: The limits that replace those of the checks, as TOML; there if the run has some.
    thresholds = File("thresholds.toml")
    #: What each node must be, as TOML; there if the run says it.
    expectation = File("expectation.toml")
    #: The nodes end their work once this file exists.
    cancelled = File("cancelled")
    #: The reasons that were written for the drained nodes, by node.
    drained = File("drained.json")
    #: Why nodes have no report, by node.
    missing = File("missing.json")
    #: The page of the whole fleet, with links to the pages of the nodes.
    page = File("report.html")
    #: The verdict of the whole fleet as JSON.
    summary = File("report.json")
    #: The folder of what the engine's tasks print.
    logs = File("logs")

    def report(self, node: str) -> Path:
        """Return the path of the report of a node: there once the node has ended its run."""
        return self.path / f"{node}.json"

    def node(self, node: str) -> Path:
        """Return the folder of the run of a node: its events and its reports."""
        return self.path / "nodes" / node

    def progress(self, node: str) -> Path:
        """Return the path of the live state of a node."""
        return self.path / "progress" / f"{node}.json"

    def create(self) -> None:
        """Create the folder of a new run.

        Raises:
            ConfigError: It cannot be created, or has a run already.
        """
        with file_errors(f"--report {self.path}"):
            for folder in (self.path, self.logs, self.path / "nodes", self.path / "progress"):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.check_new()

    def check_new(self) -> None:
        """Check that the folder has no run yet.

        Raises:
            ConfigError: It has one.
        """
        if self.run_file.exists() or any(self.path.glob("*.json")):
            raise ConfigError(f"--report {self.path}: it has a run already", "Name another folder.")

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Exclude other commands that submit tasks of this folder, on any host.

        The tasks of two would work on the same nodes, and ``fleet.json`` has those of one alone. A
        folder is what every shared disk creates for one of two commands only.

        Raises:
            ConfigError: Another command submits, or was killed while it did.
        """
        claim = self.path / "submitting"
        try:
            claim.mkdir(mode=0o755)
        except FileExistsError:
            what = f"another command submits the tasks of {self.path}"
            raise ConfigError(what, f"If it was killed: rmdir {claim}") from None
        except OSError as error:
            raise ConfigError(f"{claim}: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                claim.rmdir()

    def write(self, run: FleetRun) -> None:
        """Write ``fleet.json`` completely or not at all.

        Raises:
            ConfigError: It cannot be written.
        """
        values = {
            key: value.isoformat(timespec="seconds") if isinstance(value, datetime) else value
            for key, value in asdict(run).items()
        }
        write_shared(self.run_file, json.dumps(values, indent=1))

    def read(self) -> FleetRun:
        """Read ``fleet.json``.

        Raises:
            ConfigError: It is missing, invalid, or of a version that this one cannot read.
        """
        path = self.run_file
        try:
            value: Any = json.loads(read_regular(path, _MAX_BYTES))
        except FileNotFoundError:
            what = f"{self.path} is not the folder of a fleet's run: it has no {path.name}"
            raise ConfigError(what, "Name the folder that --report named.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        version = value.get("schema_version") if isinstance(value, dict) else None
        if str(version).partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            what = f"{path}: its schema_version is {version!r}, this version reads {SCHEMA_VERSION}"
            raise ConfigError(what)
        try:
            run = from_json(FleetRun, value)
        except DecodeError as error:
            raise ConfigError(f"{path}: {error}") from None
        check_nodes(run.nodes, str(path))
        _check_tasks(run, str(path))
        return run

    def has_run(self, run: FleetRun) -> bool:
        """Check whether a run was begun with this folder, by the path in its id.

        A user who can write the folder can write any ``fleet.json``, and name the jobs of another
        run there, but cannot make the id of that run one of this folder.
        """
        prefix, _, mark = run.id.rpartition("-")
        return bool(run.command) and mark == _mark(prefix, run.command[-1]) and self.is_of(run)

    def is_of(self, run: FleetRun) -> bool:
        """Check whether this is the folder that the tasks of a run use, or that folder, moved.

        It was moved if the path of the tasks has no ``fleet.json``, and the one here was written by
        this user: one that another user has forged has another owner. Tasks that still work may
        have created the old folder again.
        """
        if not run.command:
            return False
        named = FleetFolder(path=Path(run.command[-1]))
        try:
            if named.path.exists() and named.path.samefile(self.path):
                return True
            return not named.has_run_file() and self._is_own(run)
        except OSError:  # the disk does not answer
            return False

    def has_run_file(self) -> bool:
        """Check whether ``fleet.json`` is there.

        Raises:
            OSError: The disk does not answer.
        """
        try:
            self.run_file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _is_own(self, run: FleetRun) -> bool:
        """Check whether this user alone can have written ``fleet.json``, and it has this run."""
        try:
            file = open_regular(self.run_file, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        with os.fdopen(file, "rb") as stream:
            there = os.fstat(file)
            if there.st_uid != os.geteuid() or there.st_mode & 0o022:
                return False
            try:  # the file of the run may have been another one when it was read
                value = json.loads(stream.read(_MAX_BYTES))
                return (value["id"], tuple(value["command"])) == (run.id, run.command)
            except (OSError, ValueError, RecursionError, LookupError, TypeError):
                return False


def check_path(path: Path) -> None:
    """Refuse the path of a new folder that cannot be written in files, or named to Slurm.

    Slurm removes backslashes from the path of a task's output, and cannot begin the task.

    Raises:
        ConfigError: It is not UTF-8 text, or has a backslash.
    """
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--report {name!a}: it is not UTF-8 text") from None
    if "\\" in name:
        raise ConfigError(f"--report {name}: it has a backslash", "Slurm removes it from paths.")


def new_id(plan: str, now: datetime, folder: Path) -> str:
    """Build the id of a new run: its plan, its time, and what binds it to its folder.

    Args:
        plan: The name of the plan.
        now: When it is begun.
        folder: Its folder, as the command line of its tasks ends with it.
    """
    prefix = f"sentinel-{plan}-{now:%Y%m%d-%H%M%S}"
    return f"{prefix}-{_mark(prefix, str(folder))}"


def _mark(prefix: str, folder: str) -> str:
    """Compute the end of an id: 64 bits, so that no other folder with the same is found."""
    return hashlib.sha256(f"{prefix}\0{folder}".encode()).hexdigest()[:16]


def _check_tasks(run: FleetRun, source: str) -> None:
    """Refuse ids that would be more than one job for the commands of Slurm, or an option.

    Raises:
        ConfigError: There is such an id.
    """
    if run.engine != "slurm":
        return
    if not _RUN_ID.fullmatch(run.id):
        remedy = "It must be letters, digits, dots, hyphens and underscores."
        raise ConfigError(f"{source}: {run.id!r} is not the id of a run", remedy)
    for node, job in run.tasks.items():
        if not re.fullmatch("[0-9]+", job):
            what = f"{source}: tasks.{node}: {job!r} is not the id of a job"
            raise ConfigError(what, "It must be a number.")


def check_nodes(nodes: tuple[str, ...], source: str) -> None:
    """Refuse names that could not be names of files, and a name that is given twice.

    Args:
        nodes: The names.
        source: Where they came from, for errors.

    Raises:
        ConfigError: There is such a name, or there are no nodes.
    """
    if not nodes:
        raise ConfigError(f"{source}: no nodes")
    for name in nodes:
        if not _NODE_NAME.fullmatch(name) or name in NOT_NODES:
            raise ConfigError(f"{source}: {name!r} is not a name that a node can have")
    if len(set(nodes)) < len(nodes):
        twice = next(name for name in nodes if nodes.count(name) > 1)
        raise ConfigError(f"{source}: node {twice} is given twice")


def write_shared(path: Path, text: str) -> None:
    """Write a file of the run by rename, readable for others.

    The name of the new file is random: commands on several hosts may write the same one at once.

    Raises:
        ConfigError: It cannot be written.
    """
    with file_errors(f"{path} cannot be written"):
        replace_file(path, f"{text}\n", mode=READABLE, temporary=f"{path.name}.{token_hex(4)}.new")


# --- the runs that this user has begun here: a link to the folder of each --------------------


def known_folder(environ: Mapping[str, str], uid: int) -> Path:
    """Compute the folder of the links, beside the records of this user's daemons."""
    return records_folder(environ, uid).with_name("fleet")


def remember(known: Path, run_id: str, folder: FleetFolder) -> None:
    """Link a run by its id; without the link, it is named by its folder."""
    with contextlib.suppress(OSError):
        known.mkdir(mode=0o700, parents=True, exist_ok=True)
        (known / run_id).symlink_to(folder.path)
        for link in _newest_first(known)[MAX_KNOWN:]:
            link.unlink()


def find_fleet(known: Path, name: str | None) -> FleetFolder:
    """Find the folder of a run.

    Args:
        known: The folder of the links.
        name: Its folder, or its id; None for the last one that was begun here.

    Raises:
        ConfigError: There is none.
    """
    if name is None:
        links = _newest_first(known)
        if not links:
            raise ConfigError("no fleet run was begun here by this user", "Name its folder.")
        return FleetFolder(path=links[0].readlink())
    folder = FleetFolder(path=Path(name).absolute())
    link = known / name
    if not folder.run_file.exists() and "/" not in name and link.is_symlink():
        return FleetFolder(path=link.readlink())
    return folder


def _newest_first(known: Path) -> list[Path]:
    """List the links by the time of their creation."""
    links = [path for path in known.glob("*") if path.is_symlink()]
    return sorted(links, key=lambda link: link.lstat().st_mtime_ns, reverse=True)
