"""Read all GPUs once and report which could be occupied: ``--list`` and ``--explain``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sentinel.config.model import Config
from sentinel.core import decide
from sentinel.core.attribution import pending_ignores
from sentinel.core.node import starts
from sentinel.core.observation import Call, Observation, ProbeFacts
from sentinel.core.ruling import Ruling
from sentinel.core.state import Probe
from sentinel.errors import EndedEarlyError
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import Watch
from sentinel.supervisor.bootstrap import HostClock
from sentinel.supervisor.discovery import Found, Options, find_gpus, follow_probe
from sentinel.supervisor.signals import Signals


@dataclass(frozen=True, kw_only=True)
class SurveyVerdict:
    """Whether a stressor would be started on a GPU, and by which rule."""

    allowed: bool
    rule: str
    reason: str
    #: The time until the rule may decide otherwise, in seconds; None if that is not known.
    left_s: float | None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """One GPU, its reading, and the verdict about it."""

    gpu: Gpu
    reading: Reading | None
    occupancy: str
    verdict: SurveyVerdict
    #: The reason for each ignored process, by PID.
    ignored_processes: Mapping[int, str]
    #: The processes that may be ignored later, by PID.
    pending_ignores: Mapping[int, str]
    #: The sockets of this user's daemons that have a stressor on it, by the PID of the stressor.
    daemon_stressors: Mapping[int, str] = field(default_factory=dict)


def inventory(options: Options) -> Found:
    """Find the GPUs that would be used, and the settings that match none.

    Raises:
        SentinelError: There is no driver, no visible GPU, or a selector matches none.
    """
    with Signals() as signals, find_gpus(options, signals) as found:
        found.probe.close()
        return found


def survey(
    config: Config, given: tuple[Given, ...] = (), *, simulate: int | None = None
) -> tuple[Survey, ...]:
    """Read every GPU once and decide, without acting on the decision.

    Args:
        config: The settings.
        given: All of them as they were given, with those for single GPUs.
        simulate: The number of simulated GPUs, or None for real ones.

    Raises:
        SentinelError: As for :func:`supervise`, except for the locks.
    """
    found, readings, _ = read_once(Options(config=config, given=given, simulate=simulate))
    return tuple(_verdicts(found, readings))


def read_once(options: Options) -> tuple[Found, Mapping[str, Reading], bool]:
    """Read every GPU once; return what was found, and whether the probe survived SIGKILL.

    Raises:
        SentinelError: As for :func:`supervise`, except for the locks.
    """
    readings: dict[str, Reading] = {}
    calls: tuple[Call, ...] = ()
    with Signals() as signals:
        with find_gpus(options, signals) as found:
            missing = {gpu.uuid for gpu in found.gpus}

            def enough(facts: ProbeFacts | None) -> bool | None:
                nonlocal calls
                if facts is not None:
                    readings.update(facts.readings)
                    calls = facts.calls
                missing.difference_update(readings)
                return None if missing else True

            found.probe.send(Watch(gpus=tuple(missing), held=()))
            limit = options.config.quick_poll + options.config.stale_after
            follow_probe(found.probe, signals, enough, limit)
            for call in calls:
                if call.uuid is not None and call.uuid in missing:
                    fault = f"{call.name} has not returned"
                    readings[call.uuid] = Reading(uuid=call.uuid, at=call.since, fault=fault)
            stuck = not found.probe.close()
        name, _ = signals.collect()
        if name is not None:  # it came while the probe was ended
            raise EndedEarlyError(name)
    return found, readings, stuck


def with_daemons(row: Survey, stressors: Mapping[int, str]) -> Survey:
    """Name the daemon that has its stressor on a GPU, which looks like a foreign process.

    Args:
        row: The GPU.
        stressors: The sockets of daemons, by the PIDs of their stressors.
    """
    pids = () if row.reading is None else [process.pid for process in row.reading.processes or ()]
    known = {pid: stressors[pid] for pid in pids if pid in stressors}
    verdict = row.verdict
    if known and verdict.rule == "process" and known.keys() | row.ignored_processes >= set(pids):
        sockets = " and ".join(sorted(set(known.values())))
        verdict = replace(verdict, reason=f"occupied by the daemon at {sockets}")
    return replace(row, daemon_stressors=known, verdict=verdict)


def _verdicts(found: Found, readings: Mapping[str, Reading]) -> Iterator[Survey]:
    """Decide for each GPU as if its reading stayed the same."""
    now, gpus, config = time.monotonic(), found.gpus, found.config
    up = Probe(running=True, works=True, since=now, worked_at=now)
    state = decide.first_state(gpus, now, config, up, found.hidden)
    state = decide.decide(state, Observation(now=now, readings=readings)).state
    # Idle must be seen twice before a start; the second look would be the next poll.
    later = {
        uuid: replace(seen, at=now + config.quick_poll, processes_at=now + config.quick_poll)
        for uuid, seen in readings.items()
    }
    local = HostClock().local()
    verdicts = starts.rulings(state, Observation(now=now, local=local, readings=later))
    for gpu in gpus:
        gpu_state = state.gpu_states[gpu.uuid]
        reading = readings.get(gpu.uuid)
        verdict = verdicts[gpu.uuid]
        occupancy = type(gpu_state.occupancy).__name__.upper()
        yield Survey(
            gpu=gpu,
            reading=reading,
            occupancy=occupancy,
            verdict=_shown(verdict, now),
            ignored_processes=gpu_state.attribution.ignored,
            pending_ignores=pending_ignores(gpu_state, config.of(gpu.uuid)),
        )


def _shown(ruling: Ruling, now: float) -> SurveyVerdict:
    """Replace the time of a ruling by what is left until then."""
    return SurveyVerdict(
        allowed=ruling.allowed,
        rule=ruling.rule,
        reason=ruling.reason,
        left_s=None if ruling.until is None else max(0.0, ruling.until - now),
    )
