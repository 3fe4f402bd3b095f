"""List the registered workloads with their options, without importing any of them here.

This process reads only the metadata of installed packages. Another process imports the workloads;
if one of them hangs or crashes it, a new process goes on with the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint

from sentinel.config.specs import registered
from sentinel.diagnostics.one_shot import START, Timeouts, run_one_shot
from sentinel.errors import WireError
from sentinel.host.processes.unprivileged import environment_of
from sentinel.protocol.inspection import WorkloadInfo, WorkloadOption
from sentinel.protocol.stressor import Account
from sentinel.stressor import loader
from sentinel.stressor.loader import Wanted

#: The importing process gets no GPU to create a context on, and one thread.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_SUBJECTS = {
    START: "the start of the process that imports workloads",
    loader.TORCH: "the import of torch",
}


#: An import of torch takes 14 s from a cold disk, and longer from a network.
TIMEOUTS = Timeouts(opening=120.0, call=30.0)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One registered workload."""

    name: str
    #: Its ``module:attribute``.
    place: str
    #: The distribution that registers it.
    package: str | None
    version: str | None
    summary: str = ""
    options: tuple[WorkloadOption, ...] = ()
    #: Why it cannot be used, or None; summary and options are empty then.
    error: str | None = None


def list_workloads(timeouts: Timeouts = TIMEOUTS) -> tuple[tuple[Listed, ...], bool]:
    """List every registered workload by name, and whether a process survived SIGKILL."""
    entries = registered()
    wanted = [
        Wanted(number=number, place=f"{entry.module}:{entry.attr}")
        for number, entry in enumerate(entries)
    ]
    infos, stuck = describe_workloads(wanted, timeouts)
    names = [entry.name for entry in entries]
    listed = (
        _listed(entry, info, twice=names.count(entry.name) > 1)
        for entry, info in zip(entries, infos, strict=True)
    )
    return tuple(listed), stuck


def _listed(entry: EntryPoint, info: WorkloadInfo, *, twice: bool) -> Listed:
    error = info.error
    if error is None and twice:
        error = f"its name is registered twice; it can be used as {entry.value}"
    return Listed(
        name=entry.name,
        place=entry.value,
        package=entry.dist.name if entry.dist else None,
        version=entry.dist.version if entry.dist else None,
        summary=info.summary,
        options=info.options,
        error=error,
    )


def describe_workloads(
    wanted: Sequence[Wanted], timeouts: Timeouts = TIMEOUTS, account: Account | None = None
) -> tuple[list[WorkloadInfo], bool]:
    """Describe workloads, in at most one timeout for each.

    Args:
        wanted: The workloads, numbered from 0.
        timeouts: How long an import may take.
        account: The user that imports them; the default is the user of this process.

    Returns:
        A description or an error for each workload, and whether a process survived SIGKILL; the
        interpreter's own exit would wait for that.
    """
    environment: dict[str, str | None] = dict(_ENVIRONMENT)
    if account is not None:
        environment = {**environment_of(account, os.environ), **_ENVIRONMENT}
    infos: dict[int, WorkloadInfo] = {}
    stuck = False
    while missing := {one.number: one for one in wanted if one.number not in infos}:

        def take(info: WorkloadInfo, missing: dict[int, Wanted] = missing) -> bool:
            if info.number not in missing:
                raise WireError(f"a description of workload {info.number}")
            infos.setdefault(info.number, info)
            return infos.keys() >= missing.keys()

        done = run_one_shot(
            loader.run,
            loader.DescribeSpec(wanted=tuple(missing.values()), account=account),
            environment,
            kinds=(WorkloadInfo,),
            take=take,
            timeout_s=partial(timeouts.limit_s, _SUBJECTS),
        )
        stuck = stuck or done.stuck
        if done.failure is not None:
            call = done.failure.call
            error = f"{_SUBJECTS.get(call, 'its import')} {done.failure.what}"
            # Before the first import, the failure is not that of one workload.
            for number in [int(call)] if call.isdecimal() else list(missing):
                infos.setdefault(number, WorkloadInfo(number=number, error=error))
    return [infos[one.number] for one in wanted], stuck
