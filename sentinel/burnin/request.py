"""A burn-in that is wanted: the same value from its command over its recorder to the daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.evidence import Findings
from sentinel.burnin.checks.thresholds_file import recorded
from sentinel.burnin.run_folder import RunFolder
from sentinel.config.plan import Plan, parse_plan
from sentinel.config.toml_text import parse_toml
from sentinel.protocol.codec import from_json
from sentinel.protocol.commands import EarlierWork


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What to run, how to judge it, and which daemon does it; paths are absolute."""

    folder: str
    #: The plan as TOML, or None to go on with the run of the folder.
    plan: str | None
    #: The selected GPUs; empty for all of the daemon's, or for those of a run to go on with.
    gpus: tuple[str, ...] = ()
    #: What was done of the plan before, by UUID; of a run to go on with, its folder says it.
    done: Mapping[str, EarlierWork] = field(default_factory=dict)
    #: Whether a GPU does no more of the plan after its first error.
    fail_fast: bool = False
    #: Whether a WARN ends with 1.
    strict: bool = False
    #: By which it is judged; None for the defaults, or for those of a run to go on with.
    thresholds: Thresholds | None = None
    #: What the node must be, as TOML, and its source; of a run to go on with, its folder says it.
    expectation: str = ""
    expected_by: str = ""
    #: What daemons know against GPUs, by UUID.
    findings: Mapping[str, Findings] = field(default_factory=dict)
    #: The state directory, in which a new run is known.
    state: str
    #: The folder of the simulated GPUs and their number; None with real ones.
    simulated: str | None = None
    simulate: int | None = None
    #: The socket of the daemon, or None to start a private one.
    socket: str | None = None
    #: The flags of ``sentinel run`` for a private daemon, and its settings for single GPUs.
    flags: tuple[str, ...] = ()
    single: str = ""
    #: The PID of the command, with which a private daemon ends.
    command: int = 0

    @property
    def run_folder(self) -> RunFolder:
        """The folder of the run."""
        return RunFolder(path=Path(self.folder))

    @property
    def simulation(self) -> Path | None:
        """The folder of the simulated GPUs, or None."""
        return None if self.simulated is None else Path(self.simulated)


def plan_of(request: RunRequest) -> Plan:
    """Parse the plan of a request that has one.

    Raises:
        ConfigError: It is invalid.
    """
    return parse_plan(parse_toml(request.plan or "", "the plan"), "the plan")


def encode(request: RunRequest) -> bytes:
    """Write a request as JSON, for another process."""
    return json.dumps(asdict(request)).encode()


def decode(data: bytes) -> RunRequest:
    """Read a request that ``encode`` has written."""
    value = json.loads(data)
    request = from_json(RunRequest, value)
    given = value["thresholds"]
    return request if given is None else replace(request, thresholds=recorded(given))
