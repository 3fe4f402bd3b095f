"""The levels of ``sentinel burnin``: plans that are shipped with it."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from sentinel.config.plan import Plan, check_workloads, parse_plan
from sentinel.config.specs import parse_workload
from sentinel.config.toml_text import decode_toml, parse_toml
from sentinel.errors import ConfigError
from sentinel.host.regular_file import read_regular, why_foreign

#: By rising duration.
LEVELS = ("screen", "standard", "long", "soak")

#: A larger file is no plan.
_MAX_BYTES = 2**20


def level_text(name: str) -> str:
    """Read the file of a level."""
    return resources.files(__package__).joinpath(f"{name}.toml").read_text()


def _text_of(level: str, file: Path | None) -> str:
    """Read a plan as text: that of a file, or of a level.

    Raises:
        ConfigError: The file cannot be read.
    """
    if file is None:
        return level_text(level)
    try:
        return decode_toml(read_regular(file, _MAX_BYTES), f"--plan {file}")
    except OSError as error:
        raise ConfigError(f"--plan {file} cannot be read: {error.strerror or error}") from None


def find_plan(name: str) -> Plan:
    """Load a plan by the name of a level, or by the path of a file.

    Raises:
        ConfigError: As for :func:`load_plan`.
    """
    return load_plan(name, None) if name in LEVELS else load_plan("", Path(name))


def load_plan(level: str, file: Path | None) -> Plan:
    """Load a plan as :func:`read_plan` does.

    Raises:
        ConfigError: As for :func:`read_plan`.
    """
    return read_plan(level, file)[0]


def read_plan(level: str, file: Path | None) -> tuple[Plan, str]:
    """Load a plan, that of a file or of a level, and its text.

    Raises:
        ConfigError: The file cannot be read, is not a plan, has the name of a level and another
            content, names an unknown workload, or names code and is not root's.
    """
    text = _text_of(level, file)
    source = f"level {level}" if file is None else f"--plan {file}"
    plan = parse_plan(parse_toml(text, source), source)
    if file is not None:
        _check_own_plan(plan, file, source)
    check_workloads(plan, source)
    return plan, text


def _check_own_plan(plan: Plan, file: Path, source: str) -> None:
    """Refuse a plan that passes as a level, or has root import what another user has named."""
    if plan.name in LEVELS and plan.hash != find_plan(plan.name).hash:
        # A verdict names its plan: a changed copy of a level must not pass as the level.
        what = f"{source}: it has the name of the level {plan.name}, but another content"
        raise ConfigError(what, "Give it another name.")
    for phase in plan.phases:
        name, _ = parse_workload(phase.workload)
        if os.getuid() == 0 and ":" in name and (why := why_foreign(file)) is not None:
            raise ConfigError(
                f"{source}: phase {phase.name!r} names code for root to import, {name}, and {why}",
                "Read the plan, and copy it to a folder that only root can write.",
            )
