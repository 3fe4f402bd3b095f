"""Check the options of workloads before anything starts, in a process that may hang or crash.

A stressor would find a wrong option only when its GPU is idle, and one of a plan hours later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sentinel.config.plan import Plan
from sentinel.config.specs import check_workload, find_workload, is_built_in, parse_workload
from sentinel.diagnostics.workload_catalog import describe_workloads
from sentinel.errors import ConfigError
from sentinel.protocol.commands import Given
from sentinel.protocol.stressor import Account
from sentinel.stressor.loader import Wanted


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
            if not _is_built_in(name):
                wanted.append(Wanted(number=len(wanted), place=name, options=options))
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


def _is_built_in(name: str) -> bool:
    return is_registered(name) and is_built_in(find_workload(name))
