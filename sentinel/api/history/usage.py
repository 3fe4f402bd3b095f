"""Who uses which GPU, and from when to when: uses made of what is shown of a GPU. Pure.

Made of the views and not of the events, since an event may be lost on its way, and what is shown
once a second tells the whole of it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.protocol.views import GpuView

#: A use that was not seen for so long, in seconds, ended when it was seen last. What is seen again
#: earlier goes on: a service was replaced meanwhile, or the GPU could not be read.
CONTINUES = 30.0
#: What is shown is at most so old, in seconds: a use that is gone ended just now.
_SHOWN_WITHIN = 2.0
#: Memory tells of a newcomer first. Who is named within so many seconds was that one.
_NAMED_WITHIN = 10.0

#: The states of a stressor in which it is on its GPU.
_ON_IT = {"STARTING", "RUNNING", "STOPPING"}
#: Rules by which a GPU is busy though nobody uses it.
_NOBODY = {"exclusive", "mig", "display", "leak"}

#: Tells one use of a GPU from others at the same time: whether it is ours, the PID, its start.
Key = tuple[bool, int | None, int | None]
_UNNAMED: Key = (False, None, None)


@dataclass(frozen=True, kw_only=True)
class Use:
    """One process on one GPU, from ``began`` on, in seconds since the epoch.

    ``first`` and ``seen`` are when it was seen first and last, by the monotonic clock, which tells
    how long it took though the wall's may have jumped. ``who`` is the name of the process, ``None``
    where nobody tells, and then ``pid`` may be, too.
    """

    gpu: str
    index: int
    key: Key
    who: str | None
    user: str | None
    began: float
    first: float
    seen: float

    @property
    def until(self) -> float:
        """When it was seen last, by the clock by which it began."""
        return self.began + self.seen - self.first


class Uses:
    """All uses that go on.

    Attributes:
        ended: Those that ended since somebody took them.
        renamed: Those that stand under the name of another one by now, since somebody took them.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[Key, Use]] = {}
        self.ended: list[Use] = []
        self.renamed: list[Use] = []

    @property
    def open(self) -> list[Use]:
        """Those that go on."""
        return [use for uses in self._open.values() for use in uses.values()]

    def adopt(self, use: Use) -> None:
        """Take over a use that went on when it was written, for it to be seen again or to end."""
        self._open.setdefault(use.gpu, {}).setdefault(use.key, use)

    def see(self, view: GpuView, ahead: float) -> None:
        """Take in what is shown of a GPU; ``ahead`` makes seconds since the epoch of its times."""
        before = self._open.get(view.uuid, {})
        present = _users(view, ahead)
        blind = view.occupancy == "UNKNOWN"
        after: dict[Key, Use] = {}
        unnamed = before.get(_UNNAMED)
        for key, use in before.items():
            if key in present:
                new = present.pop(key)
                who, user = new.who or use.who, new.user or use.user
                after[key] = replace(use, seen=new.seen, who=who, user=user)
            elif blind and not key[0] and view.at - use.seen < CONTINUES:
                after[key] = use  # whether it is there still, nobody can say
            elif not (use is unnamed and self._named(use, present)):
                self._end(use, view.at)
        self._open[view.uuid] = after | present

    def expire(self, now: float) -> None:
        """End what was not seen for too long, by the monotonic clock: nothing is shown of it."""
        for uses in self._open.values():
            for key in [key for key, use in uses.items() if now - use.seen > CONTINUES]:
                self._end(uses.pop(key), now)

    def _named(self, unnamed: Use, present: dict[Key, Use]) -> bool:
        """Let those who were named soon after have begun when somebody came; say if there are."""
        new = [key for key, use in present.items() if not key[0]]
        if not new or unnamed.seen - unnamed.first > _NAMED_WITHIN:
            return False
        for key in new:
            present[key] = replace(present[key], began=unnamed.began, first=unnamed.first)
        self.renamed.append(unnamed)
        return True

    def _end(self, use: Use, now: float) -> None:
        if now - use.seen < _SHOWN_WITHIN:
            use = replace(use, seen=max(now, use.seen))
        self.ended.append(use)


def _users(view: GpuView, ahead: float) -> dict[Key, Use]:
    """Return who is on a GPU as it is shown, each as a use that begins."""
    found: dict[Key, tuple[str | None, str | None]] = {}
    if view.pid is not None and view.stressor in _ON_IT:
        found[True, view.pid, None] = ("sentinel", None)
    for process in (*view.processes, *view.allocated_processes):
        found[False, process.pid, process.started] = (process.name, process.user)
    if view.occupancy == "BUSY" and not view.processes and view.rule not in _NOBODY:
        found[_UNNAMED] = (None, None)
    return {
        key: Use(
            gpu=view.uuid,
            index=view.index,
            key=key,
            who=who,
            user=user,
            began=view.at + ahead,
            first=view.at,
            seen=view.at,
        )
        for key, (who, user) in found.items()
    }
