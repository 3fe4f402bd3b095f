"""A fake standby stressor."""

from __future__ import annotations

from sentinel.core.observation import ChildExit, SpareFacts

__all__ = ["FakeStandby"]


class FakeStandby:
    """Is ready as soon as it runs, unless a test says otherwise."""

    def __init__(self) -> None:
        self.running = False
        self.ready = True
        #: How many were started.
        self.started = 0
        #: How many became a stressor.
        self.activated = 0
        #: The error and the exit of the one that runs.
        self.fails: str | None = None
        self.host_has_memory = True

    def start(self) -> None:
        """Start one."""
        assert not self.running, "a second standby stressor"
        self.running = True
        self.started += 1

    def kill(self) -> None:
        """End it."""
        self.running = False

    def become_stressor(self) -> None:
        """End to be the standby stressor."""
        assert self.running, "there is no standby stressor"
        assert self.ready, "the standby stressor is not ready"
        self.running = False
        self.activated += 1

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> SpareFacts | None:
        """Return whether it is ready, or None without one."""
        if not self.running:
            return None
        if self.fails is not None:
            self.running = False
            return SpareFacts(failed=self.fails, exit=ChildExit(code=1, at=0.0))
        return SpareFacts(ready=self.ready)

    def memory_left(self) -> bool:
        """Check that the host has memory for one."""
        return self.host_has_memory
