"""The events about GPUs and their memory."""

from __future__ import annotations

from sentinel.protocol.event_type import (
    ALLOCATION,
    BY,
    BY_OR_NULL,
    EVIDENCE,
    FOR,
    PACE,
    RESULTS,
    RULE,
    SENSORS,
    EventType,
    Kind,
)

GPU_EVENTS = (
    EventType(
        "gpu.idle",
        "idle",
        Kind.USE,
        "[left alone for {left_alone_s:duration}]",
        "No foreign process uses the GPU any more; it was busy or unknown before.",
        "left_alone_s (seconds): how long it must stay idle before a stressor starts",
    ),
    EventType(
        "gpu.busy",
        "busy",
        Kind.USE,
        "{reason}[: {processes:processes}]",
        "A foreign process uses the GPU, or the GPU cannot be shared; also if the processes have"
        " changed.",
        """
        reason (text): the rule
        processes (list of processes): the foreign processes; empty for another reason
        """,
    ),
    EventType(
        "gpu.identity",
        "identity",
        Kind.DETAIL,
        "{reason}[; processes may be hidden: {hidden}]; memory shows newcomers",
        "How NVML lists the stressor on a GPU was learned at its first context, or has changed.",
        """
        mode (`direct`, `mapped`, `blind`): by its PID; by a PID of another namespace; not at all
        reason (text): how that is known
        hidden (text or null): why foreign processes may be hidden, or null
        complete (true or false): whether all processes are listed; if not, memory decides
        """,
    ),
    EventType(
        "gpu.memory_leaked",
        "leaked",
        Kind.FINDING,
        "[{utilization:percent} utilization|{bytes:size} in use] without a process since the"
        " stressor exited",
        "Five seconds after the stressor exited, more memory is in use than before it started, and"
        " no process owns it; or the GPU is in use without a process; and a second later that is"
        " still so. The GPU is not idle until it is over.",
        """
        bytes (bytes): the leaked memory; 0 if only the utilization remains
        utilization (0 to 1 or null): the unexplained utilization, or null
        """,
    ),
    EventType(
        "gpu.held_elsewhere",
        "shared",
        Kind.FINDING,
        "[{used?}each yields to the other's stressors|not used]: held by another sentinel,"
        " {holder}",
        "At the start, a sentinel of another user holds a selected GPU. Root uses the GPU, too;"
        " other users do not use it before their next start.",
        """
        holder (text): the PID and the user of that sentinel, and since when it runs
        used (true or false): whether this sentinel uses the GPU, too
        """,
    ),
    EventType(
        "gpu.cleanup_started",
        "cleanup",
        Kind.DETAIL,
        "opens and closes a context, attempt {attempt}",
        "A child process opens and closes a context on a GPU with leaked memory, which may free"
        " it. This happens 5, 20 and 80 seconds after the last stressor, and only while no process"
        " is on the GPU.",
        "attempt (whole number): the number of the attempt, at most 3",
    ),
    EventType(
        "gpu.unknown",
        "unknown",
        Kind.FINDING,
        "{reason}",
        "The occupancy of the GPU is unknown. No stressor is started, and a running one is killed.",
        "reason (text): why",
    ),
    EventType(
        "gpu.unwatched",
        "unwatched",
        Kind.FINDING,
        "released: its memory has not been read for {unwatched_s:duration}",
        "Neither the stressor nor the probe has read the memory of a held GPU for longer than"
        " `--unwatched-after`, so that a newcomer would not be noticed. The stressor is killed.",
        "unwatched_s (seconds): since the last read",
    ),
    EventType(
        "gpu.yielding",
        "yielding",
        Kind.YIELD,
        "to [{processes:processes}|a process that allocated {grown:size}|a process that computes"
        " and is not listed]",
        "A newcomer appeared on a held GPU. The stressor is killed in the same tick, or asked to"
        " end with `--yield ask`.",
        f"""
        {EVIDENCE}
        grown (bytes): growth beyond the expected memory; 0 without such evidence
        processes (list of processes): the newcomers; often empty, as memory shows first
        stressor (`STARTING`, `RUNNING`, `STOPPING`): the state of the stressor
        """,
    ),
    EventType(
        "gpu.handed_over",
        "handed over",
        Kind.HANDOVER,
        "[killed {kill_s:duration} after|asked to end at] the first evidence, exited after"
        " {exit_s:duration}, [memory free after {memory_back_s:duration}|memory not seen free]",
        "The stressor that yielded has exited, and its memory is free as far as can be seen. Times"
        " with `_s` count from the first evidence.",
        f"""
        {EVIDENCE}
        killed_at (seconds, monotonic or null): time of the SIGKILL; null if only asked
        kill_s (seconds or null): until the SIGKILL
        exit_s (seconds): until the supervisor saw the exit
        memory_back_s (seconds or null): until the first reading with its memory free; null if the
            newcomer's memory cannot be separated from it, or it was not seen within 5 s of the exit
        processes (list of processes): the newcomers, as far as known by then
        """,
    ),
    EventType(
        "gpu.verdict",
        "verdict",
        Kind.DETAIL,
        "[{allowed?}may be occupied: ]{reason}[; may change in {left_s:duration}] (rule {rule})",
        "With `--explain`: another rule decides whether this GPU is occupied.",
        f"""
        allowed (true or false): whether a stressor may start
        {RULE}
        """,
    ),
    EventType(
        "gpu.checked",
        "checked",
        Kind.DETAIL,
        "{memory_used:size} of {memory_total:size} used[; processes: {processes}|]",
        "With `--log-level debug`: a full reading of this GPU. It is in the log only, not in the"
        " history and the streams of the API.",
        """
        memory_used (bytes): used memory, including the stressor's
        memory_total (bytes): all memory
        processes (whole number or null): all processes that NVML lists
        took_s (seconds): duration of the call for the memory
        """,
    ),
    EventType(
        "gpu.released",
        "released",
        Kind.DETAIL,
        "{reason}",
        "A rule over all GPUs requires this one to be free: its stressor is asked to end.",
        "reason (text): the rule",
    ),
    EventType(
        "gpu.status",
        "status",
        Kind.DETAIL,
        "{stressor:status}",
        "The state of each GPU, every `--status-every`. The fields from `running_s` on exist only"
        " while the stressor is RUNNING. Those from `iterations_per_s` on follow its first progress"
        " report and cover the time since the report before.",
        f"""
        occupancy (`UNKNOWN`, `BUSY`, `IDLE`): use by foreign processes
        stressor (`STOPPED`, `STARTING`, `RUNNING`, `STOPPING`, `BACKOFF`, `FATAL`): the state of
            the stressor
        {RULE}
        processes (list of processes): the foreign processes
        identity (`unlearned`, `direct`, `mapped`, `blind`): how NVML lists the stressor, as in
            [`gpu.identity`](#gpuidentity)
        identity_reason (text): how that is known, and whether others may be hidden
        memory_used (bytes or null): used memory, including the stressor's
        utilization (0 to 1 or null): share of the last second with running kernels; null if the GPU
            does not report it or no setting needs it
        {SENSORS}
        findings (whole number): findings on this GPU since the start
            ([`stressor.finding`](#stressorfinding))
        running_s (seconds): how long the stressor has been RUNNING
        note (text or null): what its workload is doing, up to 200 characters
        share (0 to 1): share of the time that it is to work
        {PACE}
        iterations_per_s (per second): units of work, as the workload defines them
        flops_per_s (per second): floating-point operations
        bytes_per_s (bytes per second): device memory read and written
        {RESULTS}
        longest_quantum_s (seconds): longest time between two calls of `ctx.pace()`, on the host or
            on the device; a stop has to wait for it, so it must not exceed 0.05
        """,
    ),
    EventType(
        "gpu.paused",
        "paused",
        Kind.COMMAND,
        "[for {for_s:duration}, ]{by:caller}",
        "A client paused this GPU. Its stressor is released.",
        f"""
        {FOR}
        {BY}
        """,
    ),
    EventType(
        "gpu.resumed",
        "resumed",
        Kind.COMMAND,
        "{by:caller}",
        "The pause of this GPU ended.",
        BY_OR_NULL,
    ),
    EventType(
        "gpu.reserved",
        "reserved",
        Kind.COMMAND,
        "{id}: [{reason}, ][for {for_s:duration}, ][{bound?}while its process lives, ]{by:caller}",
        "This GPU is reserved for a user.",
        f"""
        id (text): the reservation, which may include several GPUs
        reason (text): the purpose, as the user gave it
        {FOR}
        bound (true or false): whether it ends with the process that requested it
        waited_s (seconds): how long the request waited in the queue
        {BY}
        """,
    ),
    EventType(
        "gpu.unreserved",
        "unreserved",
        Kind.COMMAND,
        "{id}: {by:caller}",
        "A reservation of this GPU ended.",
        f"""
        id (text): the reservation
        {BY_OR_NULL}
        """,
    ),
    EventType(
        "gpu.results_acknowledged",
        "acknowledged",
        Kind.COMMAND,
        "{errors} wrong results and {findings} findings, {by:caller}: {reason}",
        "An administrator acknowledged the wrong results of a GPU, as after a repair: they [no"
        " longer count](health.md#after-a-repair) as a fault.",
        f"""
        reason (text): why they no longer count
        errors (whole number): how many wrong results were acknowledged
        findings (whole number): how many findings were acknowledged
        {BY}
        """,
    ),
    EventType(
        "gpu.health_changed",
        "health",
        Kind.USE,
        "{health}[ at {temperature_c} C][, because of its {cause}]; before: {before}",
        "The [health](health.md) of a GPU changed.",
        """
        before (text): optimal, normal, throttled or critical
        health (text): the new health
        cause (`temperature`, `memory`, `hardware` or null): why it is not optimal; null if it is
        temperature_c (degrees Celsius or null): the temperature
        memory_foreign_share (0 to 1): share of its memory used outside the stressor
        multiplier (0 to 1): share of its speed that [health](health.md) permits
        """,
    ),
    EventType(
        "gpu.overheat",
        "overheat",
        Kind.FINDING,
        "{temperature_c} C, above {limit_c} C",
        "A GPU is hotter than it should ever be; published once until it has cooled down.",
        """
        temperature_c (degrees Celsius): the temperature
        limit_c (degrees Celsius): `throttle.temp_overheating_from` or the slowdown temperature,
            whichever is lower
        """,
    ),
    EventType(
        "gpu.xid",
        "XID",
        Kind.FINDING,
        "{xid}[ {repeats} more times][: {own?}the cleanup after a stressor that was ended]",
        "The driver reported an error of this GPU, an [XID](checks.md#xids), through NVML. The"
        " first of a number is published at once, its repeats together after five seconds.",
        """
        xid (whole number): NVIDIA's number
        repeats (whole number): how often it was repeated since; 0 for the first
        own (true or false): whether it is 43 or 45, within 10 s after Sentinel ended its stressor
            on this GPU
        reported_at (seconds, monotonic): when NVML delivered it, or the first of the repeats
        last_at (seconds, monotonic): when NVML delivered the last of them
        """,
    ),
    EventType(
        "memory.allocated",
        "allocated",
        Kind.COMMAND,
        "{size:size} as {id}, {by:caller}",
        "Memory of this GPU was allocated to a process.",
        f"""
        {ALLOCATION}
        {BY}
        """,
    ),
    EventType(
        "memory.deallocated",
        "deallocated",
        Kind.COMMAND,
        "{size:size} as {id}",
        "An allocation ended: it was returned, or its process exited.",
        f"""
        {ALLOCATION}
        by (caller): who sent the command; `via` is `service` after an exit
        """,
    ),
)
