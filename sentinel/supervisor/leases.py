"""Renew the leases of the stressors.

A stressor that sees newcomers itself has a long lease. One that cannot has a short one, renewed
only while the probe reads its GPU: it ends as soon as the supervisor or the probe stops to work.
"""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.core.gpu import watchers
from sentinel.core.observation import WatchTimes
from sentinel.core.state import State
from sentinel.core.stressor_state import Running
from sentinel.supervisor.ports import Spawner

#: The duration of a long lease and the interval of its renewals, in seconds.
LONG_LEASE_S = 3.0
RENEW_EVERY_S = 0.5
#: The interval of the renewals of short leases, in seconds. Their duration is the time in which a
#: newcomer has not asked for much memory yet.
RENEW_SHORT_EVERY_S = 0.025


class Leases:
    """The leases of all stressors.

    Args:
        spawner: The stressors.

    Attributes:
        due: When the next long leases must be renewed.
    """

    def __init__(self, spawner: Spawner) -> None:
        self.due = 0.0
        self._spawner = spawner
        self._short: set[str] = set()

    @property
    def any_short(self) -> bool:
        """Whether there is a stressor with a short lease."""
        return bool(self._short)

    def renew(self, state: State, now: float, times: Mapping[str, WatchTimes]) -> bool:
        """Renew the leases that are due; return False if a held GPU is not watched.

        Args:
            state: The state after the last tick.
            now: The time.
            times: When the memory of each held GPU was last read.
        """
        long_is_due = now >= self.due
        if long_is_due:
            self.due = now + RENEW_EVERY_S
        watched = True
        for uuid, gpu_state in state.gpu_states.items():
            if gpu_state.child is None:
                self._short.discard(uuid)
                continue
            own, seen = state.config.of(uuid), times.get(uuid)
            if seen is not None and not watchers.watches_itself(seen, now):
                self._short.add(uuid)
                if watchers.unwatched_for(gpu_state, seen, now, own) is None:
                    self._spawner.renew_lease(uuid, watchers.blind_limit(gpu_state, own))
                else:
                    watched = False
            elif long_is_due or uuid in self._short:
                self._short.discard(uuid)
                running = isinstance(gpu_state.stressor, Running)
                shared = running and seen is not None and watchers.alternates(seen, now, own)
                self._spawner.renew_lease(uuid, LONG_LEASE_S, shared=shared)
        return watched
