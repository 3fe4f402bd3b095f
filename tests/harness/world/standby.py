"""A fake spare process: a standby stressor, or a spare probe."""

from __future__ import annotations

from sentinel.core.observation import ChildExit, ProcessFacts

__all__ = ["FakeSpare"]


class FakeSpare:
    """Is ready as soon as it runs, unless a test says otherwise."""

    def __init__(self) -> None:
        self.generation = 0
        self.running = False
        self.ready = True
        #: How many were started.
        self.started = 0
        #: How many became a stressor.
        self.activated = 0
        #: The error and the exit of the one that runs.
        self.fails: str | None = None
        self.host_has_memory = True

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:
        """Start one."""
        assert not excluded
        assert not self.running, "a second spare process"
        self.generation, self.running = generation, True
        self.started += 1

    def kill(self, generation: int) -> None:
        """End it."""
        assert generation == self.generation
        self.running = False

    def become_stressor(self) -> None:
        """End to be the standby stressor."""
        assert self.running, "there is no standby stressor"
        assert self.ready, "the standby stressor is not ready"
        self.running = False
        self.activated += 1

    def send(self, message: object) -> None:
        """Refuse: nothing is sent to a spare process."""
        raise AssertionError(message)

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> ProcessFacts | None:
        """Return whether it is ready, or None without one."""
        if not self.running:
            return None
        if self.fails is not None:
            self.running = False
            exit_ = ChildExit(code=1, at=0.0)
            return ProcessFacts(generation=self.generation, failed=self.fails, exit=exit_)
        return ProcessFacts(generation=self.generation, works=self.ready)

    def memory_left(self) -> bool:
        """Check that the host has memory for one."""
        return self.host_has_memory
