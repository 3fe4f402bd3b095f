"""The events about the driver, the API process, stressors and the probe."""

from __future__ import annotations

from sentinel.protocol.event_type import (
    BY,
    BY_OR_NULL,
    EXIT_CODE,
    FOR,
    PACE,
    RESULTS,
    SENSORS,
    WORKLOAD,
    EventType,
    Kind,
)

PROCESS_EVENTS = (
    EventType(
        "driver.release_requested",
        "driver",
        Kind.COMMAND,
        "is to be released, [for {for_s:duration}, ]{by:caller}",
        "A client requested the release of every GPU and of the driver (`pause --release`).",
        f"""
        {FOR}
        {BY}
        """,
    ),
    EventType(
        "driver.released",
        "driver",
        Kind.COMMAND,
        "no process of sentinel uses it any more",
        "No process of sentinel uses the driver any more; the probe has ended as well.",
    ),
    EventType(
        "driver.acquire_requested",
        "driver",
        Kind.COMMAND,
        "is in use again, {by:caller}",
        "The driver is in use again.",
        BY_OR_NULL,
    ),
    EventType(
        "driver.unavailable",
        "no driver",
        Kind.FINDING,
        "the driver does not respond: {reason}",
        "The driver as a whole does not respond any more. A `probe.exited` follows, and later the"
        " next attempt.",
        """
        code (text): NVML's error where there is one, such as `driver_not_loaded`
        reason (text): what is wrong, and what to do
        """,
    ),
    EventType(
        "service.ready",
        "service",
        Kind.DETAIL,
        "ready after {start_s:duration}",
        "The API process serves clients.",
        "start_s (seconds): duration of its start",
    ),
    EventType(
        "service.failed",
        "service",
        Kind.FINDING,
        "{reason}; it is replaced",
        "The API process ended, was silent for ten seconds or sent a malformed message, and is"
        " replaced. Stressors are not affected, unless a daemon cannot be reached for 30 s: then it"
        " releases its GPUs.",
        """
        reason (text): what was wrong
        pause_s (seconds): delay until the next start
        """,
    ),
    EventType(
        "service.warning",
        "service",
        Kind.FINDING,
        "{about}: {text}",
        "An action that no client requested failed.",
        """
        about (`settings`, `reservations`, `history`, `watch`, `token`, `notify`, `socket`,
            `channel`, `log`): the subject
        text (text): what is wrong, and where
        """,
    ),
    EventType(
        "stressor.starting",
        "starting",
        Kind.DETAIL,
        "{workload}",
        "A stressor is started on an idle GPU.",
        f"""
        {WORKLOAD}
        standby (true or false): whether the standby stressor becomes this one
        """,
    ),
    EventType(
        "stressor.slow_start",
        "starting",
        Kind.FINDING,
        "not ready after {since_s:duration}: {reason}; it fails after {left_s:duration} more",
        "A stressor has not become ready for ten seconds. It is killed after `--start-timeout`.",
        """
        reason (text): what it does or waits for
        since_s (seconds): time since it was spawned
        left_s (seconds): time until it has failed
        """,
    ),
    EventType(
        "standby.failed",
        "stressor",
        Kind.FINDING,
        "the standby one failed: {reason}; the next one in {pause_s:duration}",
        "The process that becomes the next stressor could not be prepared; starts take longer.",
        """
        reason (text): its error
        exit_code (whole number): its exit code; null if it was not ready in time
        pause_s (seconds): pause before the next one
        """,
    ),
    EventType(
        "stressor.ready",
        "occupied",
        Kind.USE,
        "{held:size}[{refused?} of the requested {asked:size}] in {chunks} chunks, ready after"
        " {start_s:duration}",
        "The stressor holds its memory, has done every kind of work once, and is RUNNING.",
        """
        held (bytes): memory in its chunks, without the context
        asked (bytes): the requested memory; a rest below 10 MiB is not taken
        chunks (whole number): number of chunks
        refused (true or false): whether the GPU provided less than requested
        start_s (seconds): time since it was spawned
        """,
    ),
    EventType(
        "stressor.pace",
        "pace",
        Kind.DETAIL,
        "{share:pace}",
        "A stressor has a new target: at its start if a"
        " [target](configuration.md#load-and-power) is set, and at each phase of `duty`."
        " Corrections on the way are not published; `gpu.status` has the present share. A stressor"
        " at full speed from the start has no such event.",
        f"""
        {PACE}
        share (0 to 1): share of the time that it works at first: the lowest of these
        """,
    ),
    EventType(
        "stressor.stopped",
        "stopped",
        Kind.DETAIL,
        "{cause}[{killed?}, killed after {stop_s:duration}]",
        "A stressor exited, neither by a yield nor by a failure.",
        f"""
        cause (`shutdown`, `policy`, `unknown`, `lease ran out`, `out of memory beside a newcomer`):
            why; `policy` follows a `gpu.released`, `unknown` an unreadable GPU
        {EXIT_CODE}
        killed (true or false): whether it was killed, at once or after `--grace`
        stop_s (seconds): from the decision, or its own last message, to its exit
        """,
    ),
    EventType(
        "stressor.failed",
        "failed",
        Kind.FINDING,
        "{reason}; next attempt in {pause_s:duration}",
        "A stressor failed and is started again after a pause.",
        """
        reason (text): what happened
        kind (text): `workload` raised an error, `returned` without a stop, `malformed` workload,
            `unusable` options or torch, `out_of_memory`, `not_ready` within `--start-timeout`,
            `peers` of its group did not come or went, `hang` without progress, `stuck` in native
            code, `garbage` instead of messages, `crash` by a signal or without a message, failed
            `spawn`
        pause_s (seconds): how long the GPU is left alone
        failures (whole number): failures on this GPU within the last hour
        """,
    ),
    EventType(
        "stressor.fatal",
        "fatal",
        Kind.FINDING,
        "{reason}; no further attempt before {until}",
        "A stressor failed in a way that no retry can repair, or for the tenth time within an hour."
        " The GPU is left alone until then.",
        """
        reason (text): what happened
        until (text): what ends this: the next phase of a plan; else a restart, `resume` or new
            settings
        kind (text): as in [`stressor.failed`](#stressorfailed)
        """,
    ),
    EventType(
        "stressor.mismatch",
        "mismatch",
        Kind.FINDING,
        "{errors} of {checks} results were WRONG: this GPU cannot be trusted",
        "Results were wrong: this GPU cannot be trusted. The stressor goes on.",
        RESULTS,
    ),
    EventType(
        "stressor.finding",
        "finding",
        Kind.FINDING,
        "WRONG {place}[ in {dtype}] ([{kind}|once]): {count} elements from {first} on{bits:bits}"
        "[{repeats?}, {repeated} of {repeats} repetitions wrong]; this GPU cannot be trusted",
        "Proof that a GPU was wrong. The stressor repeats it until the supervisor confirms it, so a"
        " stressor that dies right after loses nothing.",
        f"""
        number (whole number): counts the findings of one stressor
        place (`result`, `input`, `reference`, `memory`, `link`, `golden`): what was wrong: a result
            with correct inputs and reference; an input; the reference; memory that was not written
            since it was last correct; a result that is always the same, and other than on other
            GPUs of this model
        kind (`transient`, `repeatable` or null): whether a repetition was wrong again; null if none
            was possible
        {WORKLOAD}
        dtype (text or null): the number format
        round (whole number): the round of the workload
        seed (whole number or null): the seed of its inputs
        count (whole number): number of wrong elements
        first (list of whole numbers): the first wrong element: row and column of a matrix, or chunk
            and element
        bits (list of whole numbers): errors per bit of an element, lowest first
        reread (true, false or null): whether a second read was wrong: true is a bad store, false a
            bad load
        repeats (whole number or null): number of repetitions
        repeated (whole number or null): how many of them were wrong
        {SENSORS}
        detail (text): further facts
        """,
    ),
    EventType(
        "stressor.unkillable",
        "unkillable",
        Kind.FINDING,
        "pid {pid} has survived SIGKILL for {since_s:duration}",
        "A stressor is alive ten seconds after its SIGKILL: it is stuck in the kernel, or frozen."
        " Published once. No stressor is started on that GPU until it has exited.",
        """
        pid (whole number or null): its PID
        since_s (seconds): time since the SIGKILL
        """,
    ),
    EventType(
        "probe.ready",
        "probe",
        Kind.DETAIL,
        "replaced; driver {driver}, {gpus} GPUs",
        "A new probe has found the GPUs. The first probe of a run is not announced.",
        """
        driver (text): version of the driver
        gpus (whole number): number of GPUs on the host
        """,
    ),
    EventType(
        "probe.exited",
        "probe",
        Kind.DETAIL,
        "exited with code {exit_code}[: {reason}], is replaced[; crashed in {call}, its GPU is left"
        " out for {left_out_s:duration}]",
        "The probe exited and is replaced. The event has a `gpu` if it crashed in a call on one.",
        f"""
        {EXIT_CODE}
        pause_s (seconds): delay until the next start; 0 the first time
        reason (text): what the host refused it; only then
        call (text): the call to the driver; only after a crash in a call on a GPU
        left_out_s (seconds): how long that GPU is left out; only with `call`
        """,
    ),
    EventType(
        "probe.hung",
        "probe",
        Kind.FINDING,
        "[the driver hangs in {call}|no message for {silent_s:duration}]; the probe is replaced[,"
        " the GPU is left out for {pause_s:duration}]",
        "The probe hangs in a call to the driver, or is silent; it is killed and replaced. The"
        " event has a `gpu` if the call was on one.",
        """
        silent_s (seconds): time since its last reading
        call (text): the call to the driver; only if a call hangs
        since_s (seconds): time since the call; only with `call`
        pause_s (seconds): how long that GPU is left out; only with a `gpu`
        """,
    ),
)
