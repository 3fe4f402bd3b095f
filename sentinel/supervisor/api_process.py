"""The service process and its successors, as the supervisor sees them.

The only module that names the service's entry function.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
from dataclasses import replace
from multiprocessing.connection import wait as wait_for_files
from pathlib import Path

from sentinel.api import main as service_process
from sentinel.core.observation import ChildExit, ServiceFacts
from sentinel.errors import WireError
from sentinel.protocol import codec
from sentinel.protocol.commands import (
    Allocate,
    Answer,
    Configure,
    Confirm,
    Deallocate,
    Drain,
    PauseGpus,
    ReloadConfig,
    Reserve,
    Resume,
    ResumeGpus,
    ServiceMessage,
    ServiceSpec,
    ServiceWarning,
    Serving,
    ShutDown,
    Unreserve,
)
from sentinel.protocol.views import GpuView, HostView, LogRecord
from sentinel.supervisor.child_process import NOT_SPAWNED, Child, Inherited

#: Orders taken in one tick; the rest is still there at the next.
MOST_AT_ONCE = 64

#: So many lines of the journal wait for a service that has yet to begin, or that does not read.
_MOST_UNHEARD = 256

#: How long a service may take to answer what is open and to end, in seconds.
_GRACE = 1.5

#: What it gets on top of our environment, to stay small: one pool of memory for all its threads.
_SMALL = {"MALLOC_ARENA_MAX": "1"}

_SAYS: tuple[type[ServiceMessage], ...] = (
    Serving,
    Resume,
    Drain,
    PauseGpus,
    ResumeGpus,
    Reserve,
    Confirm,
    Unreserve,
    Allocate,
    Deallocate,
    Configure,
    ShutDown,
    ServiceWarning,
)


class ServiceProcess:
    """The process that talks to clients, and its replacements. Nothing in it blocks.

    Args:
        spec: What a service is told.
        listening: The descriptor of the socket at its path. It outlives each service, so that
            nobody is refused while one is replaced.
        tcp: The descriptor of that at an address, where there is one.
        metrics: The descriptor of that for scrapes alone, where there is one.

    Attributes:
        state_folder: Where it keeps what outlives the daemon.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        listening: int,
        tcp: int | None = None,
        metrics: int | None = None,
    ) -> None:
        self.state_folder = Path(spec.state)
        self._spec = spec
        self._listening = (listening, tcp, metrics)
        self._child: Child | None = None
        self._generation = 0
        self._given_up: list[Child] = []
        self._failure: ChildExit | None = None
        self._said = 0
        #: What there was no room for yet, by what it is about.
        self._owed: dict[tuple[str, object], Answer | GpuView | HostView | ReloadConfig] = {}
        self._behind = False
        #: Lines of the journal that no service has yet; the oldest are lost where there are many.
        self._unheard: collections.deque[LogRecord] = collections.deque(maxlen=_MOST_UNHEARD)
        self._hearing = threading.Lock()  # they come from another thread
        self._configure: Configure | None = None

    def start(self, generation: int) -> None:
        """Spawn a service; a spawn that fails is an exit that :meth:`collect` tells."""
        self._bury()
        self._owed.clear()
        self._behind = False
        self._generation = generation
        sockets = [None if one is None else Inherited(one) for one in self._listening]
        try:
            self._child = Child(service_process.run, self._spec, sockets, _SMALL)
        except OSError:
            self._failure = ChildExit(code=NOT_SPAWNED, at=time.monotonic())

    def kill(self, generation: int) -> None:
        """Kill the service and forget it."""
        if self._child is not None and generation == self._generation:
            self._give_up(self._child)

    def tell(self, message: Answer | GpuView | HostView | ReloadConfig) -> None:
        """Send it a message, or keep that until there is room: what was done must be answered.

        In their order, since a client that is answered looks at what was shown before; but of each
        GPU only the newest is worth to be kept.
        """
        if isinstance(message, Answer) and self._configure is not None:
            self._remember(self._configure, message)
        self._owed[_about(message)] = message
        self._send_owed()

    def hear(self, line: str) -> None:
        """Pass on one line of the journal, from its writer's thread; a gap in the numbers shows."""
        with self._hearing:
            self._said += 1
            self._unheard.append(LogRecord(number=self._said, line=line))
            self._pass_on()

    def _pass_on(self) -> None:
        """Send what was said and not passed on; what informs waits for what is owed."""
        child = self._child
        while self._unheard and child is not None and not self._behind:
            if not _send(child, self._unheard[0]):
                return
            self._unheard.popleft()

    def files(self) -> list[int]:
        """Return what to wait for."""
        return self._child.files() if self._child is not None else []

    def collect(self) -> ServiceFacts | None:
        """Return what became known since the last call."""
        self._send_owed()
        with self._hearing:
            self._pass_on()
        if self._failure is not None:
            facts = ServiceFacts(generation=self._generation, exit=self._failure)
            self._failure = None
            return facts
        if self._child is None:
            return None
        ended = self._child.ended()
        facts = ServiceFacts(generation=self._generation)
        for datagram in self._child.receive(MOST_AT_ONCE):
            try:
                message = codec.decode(datagram, _SAYS)
            except WireError as error:
                facts = replace(facts, garbage=facts.garbage or f"it sent garbage: {error.what}")
                continue
            match message:
                case Serving():
                    facts = replace(facts, serving=True)
                case ServiceWarning():
                    facts = replace(facts, service_warnings=(*facts.service_warnings, message))
                case Configure():
                    self._configure = message
                    facts = replace(facts, orders=(*facts.orders, message))
                case _:
                    facts = replace(facts, orders=(*facts.orders, message))
        if ended:
            exit_ = ChildExit(code=self._child.reap(), at=time.monotonic())
            facts = replace(facts, exit=exit_)
            self._child = None
        return facts

    def close(self) -> bool:
        """Kill the service; return whether all of them are gone."""
        if self._child is not None:
            # The end of the channel tells it: whoever asked for this end is still to be answered.
            with contextlib.suppress(OSError):
                self._child.channel.shutdown(socket.SHUT_RDWR)
            wait_for_files([self._child.pidfd], _GRACE)
            self._give_up(self._child)
        until = time.monotonic() + 1.0
        while self._given_up and time.monotonic() < until:
            self._bury()
            time.sleep(0.005)
        return not self._given_up

    def _send_owed(self) -> None:
        """Send what is owed, as far as there is room; nothing to a service that is gone."""
        while self._owed:
            about, message = next(iter(self._owed.items()))
            self._behind = self._child is not None and not _send(self._child, message)
            if self._behind:
                return
            del self._owed[about]

    def _remember(self, configure: Configure, answer: Answer) -> None:
        """Keep what was taken over: a successor shows that, and not what the file says by now."""
        if answer.number == configure.number:
            self._configure = None
            if answer.refused is None:
                self._spec = replace(
                    self._spec, given=configure.given, overrides=configure.overrides
                )

    def _give_up(self, child: Child) -> None:
        child.kill()
        self._given_up.append(child)
        self._child = None

    def _bury(self) -> None:
        """Reap those that ended."""
        for child in [child for child in self._given_up if child.ended()]:
            child.reap()
            self._given_up.remove(child)


def _about(message: Answer | GpuView | HostView | ReloadConfig) -> tuple[str, object]:
    """Return what a message is about: a newer one about the same takes its place."""
    match message:
        case Answer(number=number):
            return "answer", number
        case GpuView(uuid=uuid):
            return "gpu", uuid
        case _:
            return type(message).__name__, None


def _send(child: Child, message: object) -> bool:
    """Send a message; return whether it needs no second try: sent, too large, or nobody there."""
    try:
        return child.send(message)
    except (WireError, OSError):  # too large, or closed by now
        return True
