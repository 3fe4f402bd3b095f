"""The catalogue of all events, for the terminal, the web page and docs/events.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sentinel.protocol.event_type import BY, BY_OR_NULL, FOR, SENSORS, EventType, Kind
from sentinel.protocol.gpu_events import GPU_EVENTS
from sentinel.protocol.process_events import PROCESS_EVENTS

BURNIN_EVENTS = (
    EventType(
        "burnin.run_started",
        "burn-in",
        Kind.USE,
        "{plan} on {gpus:gpus}",
        "A client has asked the daemon for a burn-in.",
        f"""
        id (text): its id
        plan (text): the plan
        gpus (list): its GPUs, each with `uuid`, `index` and `name`
        {BY}
        """,
    ),
    EventType(
        "burnin.run_ended",
        "burn-in over",
        Kind.USE,
        "{plan}",
        "No GPU has anything more to do of the daemon's burn-in; each has the settings that it had"
        " before.",
        """
        id (text): its id
        plan (text): the plan
        """,
    ),
    EventType(
        "burnin.phase_started",
        "phase",
        Kind.USE,
        "{number} of {phases}: {phase}",
        "The next phase of a burn-in is due on a GPU. Its stressor starts as soon as the GPU is"
        " idle.",
        """
        phase (text): the phase
        number (whole number): its number in the plan, from 1
        phases (whole number): how many phases the plan has
        """,
    ),
    EventType(
        "burnin.progress",
        "progress",
        Kind.DETAIL,
        "{number} of {phases}, {phase}[{quota_s?}: {done_s:duration} of {quota_s:duration}]"
        "[{quota_passes?}, {passes} of {quota_passes} passes][, {waiting}][, {temperature_c} C]"
        "[, {power_w:watts}][, {errors} results wrong]; {left_s:duration} of work left",
        "How far a GPU is in a burn-in, as often as `--status-every` says.",
        f"""
        phase (text): the phase
        number (whole number): its number in the plan, from 1
        phases (whole number): how many phases the plan has
        done_s (seconds): work that counts; of the stretch, if only one counts
        quota_s (seconds): work that the phase asks for
        passes (whole number): how often all patterns have covered the memory
        quota_passes (whole number): how often they must
        left_s (seconds): work left, without warming up and passes over the memory
        checks (whole number): results that were checked, in all phases
        errors (whole number): those that were wrong
        waiting (text or null): why nothing counts at the moment, or null
        {SENSORS}
        """,
    ),
    EventType(
        "burnin.waiting",
        "waiting",
        Kind.DETAIL,
        "{phase}: for the other GPUs, at most ten minutes",
        "A GPU could begin a phase that the GPUs of a run do together, and waits for the others.",
        """
        phase (text): the phase
        missing (list): the indices of the GPUs that it waits for
        """,
    ),
    EventType(
        "burnin.grouped",
        "together",
        Kind.DETAIL,
        "{phase}: as rank {rank}",
        "A GPU begins a phase together with others, or alone if there are none.",
        """
        phase (text): the phase
        rank (whole number): its place in the group, from 0
        members (list): the indices of the GPUs of the group, by rank
        missing (list): the indices of GPUs that were busy for too long
        waited_s (seconds): how long the first of them has waited
        """,
    ),
    EventType(
        "burnin.ungrouped",
        "not together",
        Kind.USE,
        "{phase}: {reason}; all of them begin it again",
        "Another GPU has left a group, so that the phase is interrupted for all of its GPUs.",
        """
        phase (text): the phase
        reason (text): which GPU has left it, and why
        """,
    ),
    EventType(
        "burnin.warm",
        "warm",
        Kind.DETAIL,
        "{phase}: from here on, its work counts",
        "The temperature of a GPU is stable, or the longest warm-up is over, so that a steady phase"
        " begins to count.",
        "phase (text): the phase",
    ),
    EventType(
        "burnin.measured",
        "measured",
        Kind.DETAIL,
        "{kind}",
        "What a client records of a burn-in besides its events: what a stressor has measured, its"
        " exit, and a time in which NVML's XIDs were watched without a break.",
        """
        kind (`Failed`, `LinkMeasured`, `ReferenceChecksum`, `SelftestDone`, `SelftestResult`,
            `StressorExit`, `XidsWatched`): what it is about
        values (object): as `sentinel/protocol/stressor.py` describes, `pid` and `at`, or `first`
            and `last`
        """,
    ),
    EventType(
        "burnin.interrupted",
        "interrupted",
        Kind.USE,
        "{phase}: after {stretch_s:duration} of work that counts",
        "The stressor of a phase has ended before the phase was done: for a newcomer, a failure, a"
        " pause or a GPU that could not be read. Another event says why.",
        """
        phase (text): the phase
        stretch_s (seconds): the work of this stretch that counts
        """,
    ),
    EventType(
        "burnin.phase_ended",
        "phase over",
        Kind.USE,
        "{phase}: [{given_up}|{phase?}{seconds:duration} of work that counts, {checks} results"
        " checked, {errors} wrong]",
        "A GPU has done a phase of a burn-in, or does no more of it.",
        """
        phase (text): the phase
        seconds (seconds): work that counts, in all stretches
        uncounted (seconds): warming up, and work without the required checks
        stretch (seconds): the last stretch of work that counts
        longest (seconds): the longest stretch
        interruptions (whole number): how often the stressor had to end
        iterations (whole number): units of work, as the workload defines them
        flops (number): floating-point operations
        bytes (number): bytes read and written
        checks (whole number): results that were checked
        errors (whole number): those that were wrong
        covered (object): how often each pattern has covered the memory
        patterns (whole number): how many patterns a pass has
        passes (whole number): how often all of them have covered the memory
        share (0 to 1 or null): the share of the memory that was covered
        retained (0 to 1 or null): the share of the memory that kept a pattern untouched for a while
        given_up (text or null): why the rest of the phase cannot be done, or null
        """,
    ),
    EventType(
        "burnin.ended",
        "burn-in over",
        Kind.USE,
        "{plan}: [{reason}|all phases are done]",
        "A GPU does no more of a burn-in.",
        """
        plan (text): the plan
        reason (text or null): why phases are missing, or null
        """,
    ),
)


_DAEMON_EVENTS = (
    EventType(
        "sentinel.started",
        "started",
        Kind.USE,
        "{version}: {gpus:gpus}, {workload}; [{simulated?}simulated GPUs|driver {driver}]",
        "The GPUs are found and locked, and the loop starts. The first event of every run.",
        """
        version (text): version of sentinel
        driver (text): version of the NVIDIA driver; `simulated` on simulated GPUs
        simulated (true or false): whether the GPUs are simulated
        gpus (list): the managed GPUs, each with `uuid`, `index` and `name`
        workload (text): the configured workload
        """,
    ),
    EventType(
        "sentinel.stopping",
        "stopping",
        Kind.COMMAND,
        "{reason}[{at_once?}, at once]",
        "The daemon ends: stressors are asked to end, and none is started any more. A second"
        " event follows if a second signal demands an immediate end.",
        """
        reason (text): the signal, an expired time, or why no stressor can ever run
        at_once (true or false): whether stressors are killed without being asked
        """,
    ),
    EventType(
        "sentinel.stopped",
        "stopped",
        Kind.DETAIL,
        "exit code {exit_code}",
        "The last event of every run that ends by itself.",
        "exit_code (whole number): the [exit code](commands.md#exit-codes) of the process",
    ),
    EventType(
        "sentinel.not_started",
        "not started",
        Kind.FINDING,
        "it {reason}",
        "A daemon ended before it answered; `sentinel start` writes this into its log.",
        """
        reason (text): how it ended, and its last output
        exit_code (whole number): the [exit code](commands.md#exit-codes) of `sentinel start`
        """,
    ),
    EventType(
        "sentinel.stalled",
        "stalled",
        Kind.FINDING,
        "the supervisor did not run for {s:duration}",
        "The supervisor did not run for more than a second: it was stopped, or the host was"
        " overloaded. Leases may have expired; stressors that end within the next ten seconds"
        " because of that do not count as failed.",
        "s (seconds): the delay",
    ),
    EventType(
        "config.unused",
        "config",
        Kind.DETAIL,
        "{source} matches no GPU of this host",
        "Settings for a single GPU match no GPU of this host.",
        "source (text): the file and the key in it",
    ),
    EventType(
        "sentinel.configured",
        "configured",
        Kind.COMMAND,
        "{workload}, {by:caller}",
        "New settings are in force. Stressors with other settings are released and started again.",
        """
        workload (text): the workload for all GPUs without their own
        by (caller): who sent it: `via` (`unix` or `tcp`), `uid`, `user` and `pid`, null if unknown
        """,
    ),
    EventType(
        "session.started",
        "session",
        Kind.COMMAND,
        "{session} on {gpus:gpus}, [for {for_s:duration}, ]{by:caller}",
        "A client has given some GPUs settings of their own, under a name. Stressors with"
        " other settings are released and started again.",
        f"""
        session (text): its name
        gpus (list): its GPUs, each with `uuid`, `index` and `name`
        settings (object): the texts of its settings, by key
        {FOR}
        {BY}
        """,
    ),
    EventType(
        "session.ended",
        "session over",
        Kind.COMMAND,
        "{session} on {gpus:gpus}, {by:caller}",
        "A session is over: its GPUs have the settings of the daemon again.",
        f"""
        session (text): its name
        gpus (list): its GPUs, as of `session.started`
        {BY_OR_NULL}
        """,
    ),
    EventType(
        "command.rejected",
        "rejected",
        Kind.COMMAND,
        "{command}: {reason}; {by:caller}",
        "A command of a client was rejected; nothing has changed.",
        f"""
        command (text): the command: `pause gpus`, `reserve`, `start session` ...
        reason (text): why, and what is allowed
        {BY}
        """,
    ),
    EventType(
        "reservation.queued",
        "queued",
        Kind.COMMAND,
        "{id}: place {place}: [{reason}, ]{why}; {by:caller}",
        "A client waits for GPUs, in the queue of reservations. `gpu.reserved` or"
        " `reservation.left` follows.",
        f"""
        id (text): the request, and the reservation that follows
        reason (text): the purpose, as the user gave it
        count (whole number): how many GPUs it is for
        place (whole number): its place in the queue, from 1
        why (text): why too few GPUs are available
        {BY}
        """,
    ),
    EventType(
        "reservation.left",
        "left",
        Kind.COMMAND,
        "{id}: after {waited_s:duration}, {by:caller}",
        "A client waits no longer: its time was over, it ended, or a user ended the request.",
        """
        id (text): the request
        waited_s (seconds): how long it waited
        by (caller or null): who ended it; null if its client did not return after the end of an API
            process
        """,
    ),
    EventType(
        "log.dropped",
        "dropped",
        Kind.DETAIL,
        "{events} events, because the log could not be written or its reader is too slow",
        "Events were dropped because the queue of ten thousand events was full, or because the log"
        " could not be written.",
        "events (whole number): the number of dropped events",
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
