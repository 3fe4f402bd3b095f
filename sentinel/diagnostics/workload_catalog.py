"""List the registered workloads and check their options, in processes that may hang or crash."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sentinel.config.plan import Plan
from sentinel.config.registrations import Registration
from sentinel.config.specs import TARGETS, check_workload, is_shadowed, parse_workload, registered
from sentinel.diagnostics.one_shot import START, Timeouts, run_one_shot
from sentinel.errors import ConfigError, WireError
from sentinel.host.unprivileged import environment_of
from sentinel.protocol.commands import Given
from sentinel.protocol.counters import WorkloadInfo, WorkloadOption
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
class ListedWorkload:
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


def list_workloads() -> tuple[tuple[ListedWorkload, ...], bool]:
    """List every registered workload by name, and whether a process survived SIGKILL."""
    found = registered()
    usable = [one for one in found if one.problem is None]
    wanted = [Wanted(number=number, target=one.target) for number, one in enumerate(usable)]
    infos, stuck = describe_workloads(wanted, TIMEOUTS)
    known = dict(zip(usable, infos, strict=True))
    names = [one.name for one in usable if not is_shadowed(one)]
    listed = (_listed(one, known.get(one), twice=names.count(one.name) > 1) for one in found)
    return tuple(listed), stuck


def _listed(one: Registration, info: WorkloadInfo | None, *, twice: bool) -> ListedWorkload:
    error = one.problem if info is None else info.error
    remedy = f"; it can be used as {one.target}" if error is None else f", and {error}"
    if is_shadowed(one):
        error = f"its name is that of a built-in workload{remedy}"
    elif error is None and twice:
        error = f"its name is registered twice{remedy}"
    return ListedWorkload(
        name=one.name,
        place=one.target,
        package=one.package,
        version=one.version,
        summary=info.summary if info else "",
        options=info.options if info else (),
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
    while missing := {entry.number: entry for entry in wanted if entry.number not in infos}:

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
    return [infos[entry.number] for entry in wanted], stuck


def workloads_of(given: Iterable[Given]) -> Iterator[Given]:
    """Yield the workloads of all settings."""
    return (value for value in given if value.key == "workload")


def workloads_of_plan(plan: Plan, source: str) -> Iterator[Given]:
    """Yield the workloads of a plan that ``source`` names, each once."""
    seen: set[str] = set()
    for phase in plan.phases:
        if phase.workload not in seen:
            seen.add(phase.workload)
            where = f"{source}: phase {phase.name!r}"
            yield Given(key="workload", text=phase.workload, source=where)


def workload_errors(named: Iterable[Given], account: Account | None = None) -> list[ConfigError]:
    """Find what is wrong with workloads and their options.

    Only workloads of other packages are imported, by another process; that takes the seconds of an
    import of torch. What depends on the GPU is not checked.

    Args:
        named: The workloads.
        account: The user whose stressors are to run them; the default is the user of this process.
    """
    errors: list[ConfigError] = []
    sources: list[str] = []
    wanted: list[Wanted] = []
    for workload in named:
        try:
            check_workload(workload.text)
            name, options = parse_workload(workload.text)
            if name not in TARGETS:
                wanted.append(Wanted(number=len(wanted), target=name, options=options))
                sources.append(workload.source)
        except ConfigError as error:
            errors.append(ConfigError(f"{workload.source}: {error.what}", error.remedy))
    if wanted:
        infos, _ = describe_workloads(wanted, account=account)
        errors += [
            ConfigError(f"{source}: {info.error}")
            for source, info in zip(sources, infos, strict=True)
            if info.error is not None
        ]
    return errors


def check_workloads(named: Iterable[Given], account: Account | None = None) -> None:
    """Check workloads and their options as :func:`workload_errors` does.

    Raises:
        ConfigError: At least one is wrong; the message has all of them.
    """
    errors = workload_errors(named, account)
    if errors:
        raise joined(errors)


def joined(errors: Iterable[ConfigError]) -> ConfigError:
    """Return one error for several, a line each; of one alone the error itself."""
    first, *more = errors
    if not more:
        return first
    error = ConfigError("\n".join(map(str, (first, *more))))
    error.parts = (first, *more)
    return error


def is_registered(text: str) -> bool:
    """Check whether a workload is named as a registered one, and not as ``module:attribute``."""
    name, _ = parse_workload(text)
    return ":" not in name
