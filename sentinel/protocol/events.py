"""The catalogue of all events, for the terminal, the web page and docs/events.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sentinel.protocol.burnin_events import BURNIN_EVENTS
from sentinel.protocol.event_type import (
    BOOL,
    BY,
    BY_OR_NULL,
    COUNT,
    FOR,
    SECONDS,
    TEXT,
    EventType,
    Field,
    Kind,
)
from sentinel.protocol.gpu_events import GPU_EVENTS
from sentinel.protocol.process_events import PROCESS_EVENTS

_DAEMON_EVENTS = (
    EventType(
        "sentinel.started",
        "started",
        Kind.USE,
        "{version}: {gpus:gpus}, {workload}; [{simulated?}simulated GPUs|driver {driver}]",
        "The GPUs are found and locked, and the loop starts. The first event of every run.",
        (
            Field("version", TEXT, "version of sentinel"),
            Field("driver", TEXT, "version of the NVIDIA driver; `simulated` on simulated GPUs"),
            Field("simulated", BOOL, "whether the GPUs are simulated"),
            Field("gpus", "list", "the managed GPUs, each with `uuid`, `index` and `name`"),
            Field("workload", TEXT, "the configured workload"),
        ),
    ),
    EventType(
        "sentinel.stopping",
        "stopping",
        Kind.COMMAND,
        "{reason}[{at_once?}, at once]",
        "A shutdown starts: stressors are asked to end, and none is started any more. A second"
        " event follows if a second signal demands an immediate end.",
        (
            Field("reason", TEXT, "the signal, an expired time, or why no stressor can ever run"),
            Field("at_once", BOOL, "whether stressors are killed without being asked"),
        ),
    ),
    EventType(
        "sentinel.stopped",
        "stopped",
        Kind.DETAIL,
        "exit code {exit_code}",
        "The last event of every run that ends by itself.",
        (Field("exit_code", COUNT, "the [exit code](commands.md#exit-codes) of the process"),),
    ),
    EventType(
        "sentinel.not_started",
        "not started",
        Kind.FINDING,
        "it {reason}",
        "A daemon ended before it answered; `sentinel start` writes this into its log.",
        (
            Field("reason", TEXT, "how it ended, and its last output"),
            Field(
                "exit_code", COUNT, "the [exit code](commands.md#exit-codes) of `sentinel start`"
            ),
        ),
    ),
    EventType(
        "sentinel.stalled",
        "stalled",
        Kind.FINDING,
        "the supervisor did not run for {s:duration}",
        "The supervisor did not run for more than a second: it was stopped, or the host was"
        " overloaded. Leases may have expired; stressors that end within the next ten seconds"
        " because of that do not count as failed.",
        (Field("s", SECONDS, "the delay"),),
    ),
    EventType(
        "config.unused",
        "config",
        Kind.DETAIL,
        "{source} matches no GPU of this host",
        "Settings for a single GPU match no GPU of this host.",
        (Field("source", TEXT, "the file and the key in it"),),
    ),
    EventType(
        "sentinel.occupying",
        "occupying",
        Kind.COMMAND,
        "{by:caller}",
        "A client enabled the occupying of idle GPUs.",
        (
            Field(
                "by",
                "caller",
                "who sent it: `via` (`unix` or `tcp`), `uid`, `user` and `pid`, null if unknown",
            ),
        ),
    ),
    EventType(
        "sentinel.drained",
        "drained",
        Kind.COMMAND,
        "{by:caller}",
        "A client drained the host: every GPU is released, and none is occupied until"
        " `sentinel.occupying`.",
        (BY,),
    ),
    EventType(
        "sentinel.configured",
        "configured",
        Kind.COMMAND,
        "{workload}, {by:caller}",
        "New settings are in force. Stressors with other settings are released and started again.",
        (Field("workload", TEXT, "the workload for all GPUs without their own"), BY),
    ),
    EventType(
        "session.started",
        "session",
        Kind.COMMAND,
        "{session} on {gpus:gpus}, [for {for_s:duration}, ]{by:caller}",
        "A client has given some GPUs settings of their own, under a name. Stressors with"
        " other settings are released and started again.",
        (
            Field("session", TEXT, "its name"),
            Field("gpus", "list", "its GPUs, each with `uuid`, `index` and `name`"),
            Field("settings", "object", "the texts of its settings, by key"),
            FOR,
            BY,
        ),
    ),
    EventType(
        "session.ended",
        "session over",
        Kind.COMMAND,
        "{session} on {gpus:gpus}, {by:caller}",
        "A session is over: its GPUs have the settings of the daemon again.",
        (
            Field("session", TEXT, "its name"),
            Field("gpus", "list", "its GPUs, as of `session.started`"),
            BY_OR_NULL,
        ),
    ),
    EventType(
        "command.rejected",
        "rejected",
        Kind.COMMAND,
        "{command}: {reason}; {by:caller}",
        "A command of a client was rejected; nothing has changed.",
        (
            Field("command", TEXT, "the command: `pause gpus`, `reserve`, `start session` ..."),
            Field("reason", TEXT, "why, and what is allowed"),
            BY,
        ),
    ),
    EventType(
        "reservation.queued",
        "queued",
        Kind.COMMAND,
        "{id}: place {place}: [{reason}, ]{why}; {by:caller}",
        "A client waits for GPUs, in the queue of reservations. `gpu.reserved` or"
        " `reservation.left` follows.",
        (
            Field("id", TEXT, "the request, and the reservation that follows"),
            Field("reason", TEXT, "the purpose, as the user gave it"),
            Field("count", COUNT, "how many GPUs it is for"),
            Field("place", COUNT, "its place in the queue, from 1"),
            Field("why", TEXT, "why too few GPUs are available"),
            BY,
        ),
    ),
    EventType(
        "reservation.left",
        "left",
        Kind.COMMAND,
        "{id}: after {waited_s:duration}, {by:caller}",
        "A client waits no longer: its time was over, it ended, or a user ended the request.",
        (
            Field("id", TEXT, "the request"),
            Field("waited_s", SECONDS, "how long it waited"),
            Field(
                "by",
                "caller or null",
                "who ended it; null if its client did not return after the end of an API process",
            ),
        ),
    ),
    EventType(
        "log.dropped",
        "dropped",
        Kind.DETAIL,
        "{events} events, because the log could not be written or its reader is too slow",
        "Events were dropped because the queue of ten thousand events was full, or because the log"
        " could not be written.",
        (Field("events", COUNT, "the number of dropped events"),),
    ),
)

#: All types of events by name, in the order of the documents.
EVENTS: Mapping[str, EventType] = MappingProxyType(
    {event.name: event for event in (*_DAEMON_EVENTS, *GPU_EVENTS, *BURNIN_EVENTS, *PROCESS_EVENTS)}
)

#: The events about the host. All others are about a GPU; those of the probe sometimes.
HOST_EVENTS = frozenset(
    {
        *(event.name for event in _DAEMON_EVENTS),
        "burnin.run_ended",
        "burnin.run_started",
        "driver.acquire_requested",
        "driver.release_requested",
        "driver.released",
        "driver.unavailable",
        "probe.ready",
        "service.failed",
        "service.ready",
        "service.warning",
        "standby.failed",
    }
)
