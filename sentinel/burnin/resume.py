"""Go on with a run that was cut short.

A run is resumed only where nothing has changed that its work depends on, and within the age that
the plan allows. A reboot ends it, too: it may have been the GPU's doing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.record import PhaseRecord
from sentinel.burnin.report import judge_run, why_not_resumed
from sentinel.burnin.run_folder import RunFolder, read_object
from sentinel.burnin.verdict import Verdict
from sentinel.config.model import SETTINGS
from sentinel.config.plan import Plan
from sentinel.config.sources import Sources
from sentinel.config.verified_work import first_left
from sentinel.errors import ConfigError
from sentinel.host.regular_file import BY_ITS_USER, why_foreign
from sentinel.protocol import __version__
from sentinel.protocol.commands import EarlierWork, Given, PhaseWork
from sentinel.protocol.counters import Counters

#: What must be the same: the card, its firmware and its driver.
_SAME = ("uuid", "serial", "vbios", "driver")

#: The settings that the rates and the results of a run depend on, by how their keys begin.
_OF_THE_WORK = ("memory.", "throttle.")
#: Flags that are of one part of a run.
_OF_A_PART = ("gpus", "for", "until")


def earlier_work(
    folder: RunFolder, now: datetime, counters: tuple[Counters, ...], thresholds: Thresholds | None
) -> tuple[Plan, dict[str, EarlierWork]]:
    """Load the plan of a run, and what each GPU has done of it.

    Args:
        folder: The run.
        now: The time, with its zone.
        counters: The GPUs as they are now.
        thresholds: Other limits than those of the run, or None; a FAIL by the limits in force or in
            the last report is final.

    Raises:
        ConfigError: It cannot be resumed; the message says why.
    """
    check_own(folder)
    run = read_run(folder)
    header, plan = run.header, run.plan
    failed = [
        *(
            gpu.record.index
            for gpu in judge_run(folder, thresholds).gpus
            if gpu.verdict is Verdict.FAIL
        ),
        *_reported_failures(folder),
    ]
    where = f"--resume {folder.path}"
    if failed:
        _refuse(where, f"GPU {failed[0]} has failed, which is final")
    if why := why_not_resumed(header, plan, now):
        _refuse(where, why)
    present = {counter.uuid: counter for counter in counters}
    found = {}
    for uuid, record in run.records.items():
        before, present_gpu = record.before, present.get(uuid)
        if before is None or present_gpu is None:
            _refuse(where, f"GPU {record.index} ({uuid}) is not there any more")
        changed = [name for name in _SAME if getattr(before, name) != getattr(present_gpu, name)]
        if changed:
            _refuse(where, f"GPU {record.index} has another {', '.join(changed)}")
        found[uuid] = _earlier(record.phases)
    if all(earlier.phase >= len(plan.phases) for earlier in found.values()):
        phases = [phase for record in run.records.values() for phase in record.phases]
        if all(phase.complete for phase in phases):
            _refuse(where, "the run is complete")
        _refuse(where, "each GPU has done its phases, but for those that it could not do")
    return plan, found


def check_own(folder: RunFolder) -> None:
    """Refuse a run that another user could have written: its plan names workloads, which are code.

    Raises:
        ConfigError: It is such a run, or one that this user cannot write.
    """
    found = (path for path in (folder.path, folder.events, folder.samples) if path.exists())
    closed = next((path for path in found if not os.access(path, os.W_OK)), None)
    why = why_foreign(folder.header) or (closed and f"{closed} cannot be written")
    if why is not None:
        raise ConfigError(f"--resume {folder.path}: {why}", BY_ITS_USER)


def _reported_failures(folder: RunFolder) -> list[int]:
    """List the GPUs that have failed by the last report, whose limits may have been others."""
    with suppress(ConfigError, ValueError, KeyError, TypeError):
        report = read_object(folder.report)
        return [int(gpu["index"]) for gpu in report["gpus"] if gpu["verdict"] == Verdict.FAIL]
    return []  # a run that was killed has none


def _earlier(phases: Sequence[PhaseRecord]) -> EarlierWork:
    """Build what a GPU has done up to the first phase that is neither complete nor given up."""
    left = first_left((phase.phase, phase.work) for phase in phases)
    if left is None:
        return EarlierWork(phase=len(phases), work=_work(phases[-1]))
    return EarlierWork(phase=left, work=_work(phases[left]))


def _work(phase: PhaseRecord) -> PhaseWork:
    """Return the work of a phase; the stretch that was cut short is over."""
    return replace(phase.work, stretch=0.0)


def _refuse(where: str, why: str) -> NoReturn:
    raise ConfigError(f"{where}: {why}", "Start a new run.")


# --- with the settings that it was begun with ------------------------------------------------


def begun_with(folder: RunFolder) -> list[dict[str, Any]]:
    """Read the settings that a run was begun with, as ``recorded_settings`` lists them.

    Raises:
        ConfigError: The folder has no run.
    """
    found: list[dict[str, Any]] = read_object(folder.header).get("settings") or []
    return found


def simulated_gpus(folder: RunFolder) -> int | None:
    """Count the simulated GPUs of the host of a run; None of a run on real ones.

    Raises:
        ConfigError: The folder has no run.
    """
    if not read_object(folder.header).get("simulated"):
        return None
    return len(read_object(folder.counters).get("before") or ()) or None


def flags_to_resume(folder: RunFolder, sources: Sources) -> list[str]:
    """Build the flags with which a private daemon goes on as the run was begun.

    What the work depends on is as it was. Another setting is what its flag says now, or said then.
    What a file or a variable says now may be a new limit of the host; what they said then is in
    force only where nothing says otherwise.

    Raises:
        ConfigError: A flag asks for other work.
    """
    begun = {value["key"]: value for value in begun_with(folder) if value["gpu"] is None}
    flags = []
    for setting in SETTINGS:
        given, was = sources.get(setting.key), begun.get(setting.key)
        is_flag = given is not None and given.source == setting.flag
        by_flag = was is not None and was["source"] == setting.flag
        replaced = is_flag or (given is not None and not by_flag)
        text = setting.default if was is None else str(was["value"])
        if setting.key.startswith(_OF_THE_WORK):
            parse = setting.form.parse
            if given is not None and is_flag and parse(given.text) != parse(text):
                raise ConfigError(
                    f"{setting.flag}={given.text}: the run was begun with {text}",
                    f"Omit {setting.flag}: a run goes on with what it was begun with.",
                )
        elif was is None or replaced or setting.key in _OF_A_PART:
            continue
        flags += [f"{setting.flag}={text}"] if text else []
    return flags


def single_to_resume(folder: RunFolder, sources: Sources) -> list[Given]:
    """List the settings of single GPUs that a run was begun with, as :func:`flags_to_resume` does.

    No flag has one: they are for the saved settings of a private daemon.
    """
    now = {(value.key, value.gpu) for value in sources.given}
    return [
        Given(key=value["key"], text=str(value["value"]), source=value["source"], gpu=value["gpu"])
        for value in begun_with(folder)
        if value["gpu"] is not None
        and (value["key"].startswith(_OF_THE_WORK) or (value["key"], value["gpu"]) not in now)
    ]


def check_settings(folder: RunFolder, version: str, settings: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a daemon with which the work of a run would be another.

    Args:
        folder: The run.
        version: The version of the daemon.
        settings: Its settings, as ``recorded_settings`` lists them.

    Raises:
        ConfigError: The version is another, or a setting that the work depends on.
    """
    where = f"--resume {folder.path}"
    if version != __version__:
        _refuse(where, f"the daemon has version {version}, this is {__version__}")
    begun, now = _of_the_work(begun_with(folder)), _of_the_work(settings)
    for key, gpu in sorted(begun.keys() | now.keys()):
        earlier, current = begun.get((key, gpu)), now.get((key, gpu))
        parse = next(setting.form.parse for setting in SETTINGS if setting.key == key)
        if earlier and current and parse(earlier["value"]) == parse(current["value"]):
            continue
        values = [
            "the default" if value is None else value["value"] for value in (earlier, current)
        ]
        name = key if not gpu else f"{key} of GPU {gpu}"
        raise ConfigError(
            f"{where}: it was begun with {name} = {values[0]}, and that is {values[1]} now",
            f"Change it back: {current['source']}"
            if gpu and current
            else "A run without a daemon has its own settings. To end the daemon: sentinel stop",
        )


def _of_the_work(settings: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Select the settings that the work depends on, by key and GPU."""
    return {
        (value["key"], value["gpu"] or ""): value
        for value in settings
        if value["key"].startswith(_OF_THE_WORK)
    }
