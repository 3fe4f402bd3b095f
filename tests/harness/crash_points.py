"""Run sentinel's command line with a supervisor that kills itself at one event.

CRASH_POINT has the name of the event and a moment. ``decided``: the event exists, but it is not
written, and nothing of its tick has been done except kills. ``written``: it is in the log, and on
its way to the API process.

LOG_QUEUE is the number of events that may wait for a slow reader, instead of the usual one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

#: The moments of a crash.
DECIDED, WRITTEN = "decided", "written"


def main() -> int:
    from sentinel.cli.main import run_command_line
    from sentinel.host.event_lines import Sink
    from sentinel.protocol.events import Event
    from sentinel.supervisor import bootstrap, event_log, loop

    point = os.environ.get("CRASH_POINT")

    def crash(events: Iterable[Event], moment: str) -> None:
        if any(f"{event.name} {moment}" == point for event in events):
            os.kill(os.getpid(), signal.SIGKILL)

    class CrashingLog(event_log.EventLog):
        def __init__(self, sinks: Sequence[Sink]) -> None:
            super().__init__([*sinks, lambda event: crash([event], WRITTEN)])

        def publish(self, events: Iterable[Event]) -> None:
            events = tuple(events)
            crash(events, DECIDED)  # those that were decided by no tick
            super().publish(events)

    decide = vars(loop)["conclude"]

    def conclude(*args: Any) -> Any:
        decision = decide(*args)
        crash(decision.events, DECIDED)
        return decision

    make_dropped = vars(event_log)["_dropped"]

    def dropped(*args: Any) -> Event:
        event: Event = make_dropped(*args)
        crash([event], DECIDED)
        return event

    vars(loop)["conclude"] = conclude
    vars(event_log)["_dropped"] = dropped
    vars(bootstrap)["EventLog"] = CrashingLog
    queue_size = os.environ.get("LOG_QUEUE")
    if queue_size is not None:
        vars(event_log)["MAX_QUEUED_EVENTS"] = int(queue_size)
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
