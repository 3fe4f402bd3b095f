"""The events about GPUs and their memory."""

from __future__ import annotations

from sentinel.protocol.event_type import (
    ALLOCATION,
    BOOL,
    BY,
    BY_OR_NULL,
    BYTES,
    COUNT,
    DEGREES,
    EVIDENCE,
    FOR,
    MONOTONIC,
    OR_NULL,
    PACE,
    PROCESSES,
    RESULTS,
    RULE,
    SECONDS,
    SENSORS,
    SHARE,
    TEXT,
    EventType,
    Field,
    Kind,
)

GPU_EVENTS = (
    EventType(
        "gpu.idle",
        "idle",
        Kind.USE,
        "[left alone for {left_alone_s:duration}]",
        "No foreign process uses the GPU any more; it was busy or unknown before.",
        (Field("left_alone_s", SECONDS, "how long it must stay idle before a stressor starts"),),
    ),
    EventType(
        "gpu.busy",
        "busy",
        Kind.USE,
        "{reason}[: {processes:processes}]",
        "A foreign process uses the GPU, or the GPU cannot be shared; also if the processes have"
        " changed.",
        (
            Field("reason", TEXT, "the rule"),
            Field("processes", PROCESSES, "the foreign processes; empty for another reason"),
        ),
    ),
    EventType(
        "gpu.identity",
        "identity",
        Kind.DETAIL,
        "{reason}[; processes may be hidden: {hidden}]; memory shows newcomers",
        "How NVML lists the stressor on a GPU was learned at its first context, or has changed.",
        (
            Field(
                "mode",
                "`direct`, `mapped`, `blind`",
                "by its PID; by a PID of another namespace; not at all",
            ),
            Field("reason", TEXT, "how that is known"),
            Field("hidden", "text or null", "why foreign processes may be hidden, or null"),
            Field("complete", BOOL, "whether all processes are listed; if not, memory decides"),
        ),
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
        (
            Field("bytes", BYTES, "the leaked memory; 0 if only the utilization remains"),
            Field("utilization", SHARE + OR_NULL, "the unexplained utilization, or null"),
        ),
    ),
    EventType(
        "gpu.held_elsewhere",
        "shared",
        Kind.FINDING,
        "[{used?}each yields to the other's stressors|not used]: held by another sentinel,"
        " {holder}",
        "At the start, a sentinel of another user holds a selected GPU. Root uses the GPU, too;"
        " other users do not use it before their next start.",
        (
            Field("holder", TEXT, "the PID and the user of that sentinel, and since when it runs"),
            Field("used", BOOL, "whether this sentinel uses the GPU, too"),
        ),
    ),
    EventType(
        "gpu.cleanup_started",
        "cleanup",
        Kind.DETAIL,
        "opens and closes a context, attempt {attempt}",
        "A child process opens and closes a context on a GPU with leaked memory, which may free"
        " it. This happens 5, 20 and 80 seconds after the last stressor, and only while no process"
        " is on the GPU.",
        (Field("attempt", COUNT, "the number of the attempt, at most 3"),),
    ),
    EventType(
        "gpu.unknown",
        "unknown",
        Kind.FINDING,
        "{reason}",
        "The occupancy of the GPU is unknown. No stressor is started, and a running one is killed.",
        (Field("reason", TEXT, "why"),),
    ),
    EventType(
        "gpu.unwatched",
        "unwatched",
        Kind.FINDING,
        "released: its memory has not been read for {unwatched_s:duration}",
        "Neither the stressor nor the probe has read the memory of a held GPU for longer than"
        " `--unwatched-after`, so that a newcomer would not be noticed. The stressor is killed.",
        (Field("unwatched_s", SECONDS, "since the last read"),),
    ),
    EventType(
        "gpu.yielding",
        "yielding",
        Kind.YIELD,
        "to [{processes:processes}|a process that allocated {grown:size}|a process that computes"
        " and is not listed]",
        "A newcomer appeared on a held GPU. The stressor is killed in the same tick, or asked to"
        " end with `--yield ask`.",
        (
            *EVIDENCE,
            Field("grown", BYTES, "growth beyond the expected memory; 0 without such evidence"),
            Field("processes", PROCESSES, "the newcomers; often empty, as memory shows first"),
            Field("stressor", "`STARTING`, `RUNNING`, `STOPPING`", "the state of the stressor"),
        ),
    ),
    EventType(
        "gpu.handed_over",
        "handed over",
        Kind.HANDOVER,
        "[killed {kill_s:duration} after|asked to end at] the first evidence, exited after"
        " {exit_s:duration}, [memory free after {memory_back_s:duration}|memory not seen free]",
        "The stressor that yielded has exited, and its memory is free as far as can be seen. Times"
        " with `_s` count from the first evidence.",
        (
            *EVIDENCE,
            Field("killed_at", MONOTONIC + OR_NULL, "time of the SIGKILL; null if only asked"),
            Field("kill_s", SECONDS + OR_NULL, "until the SIGKILL"),
            Field("exit_s", SECONDS, "until the supervisor saw the exit"),
            Field(
                "memory_back_s",
                SECONDS + OR_NULL,
                "until the first reading with its memory free; null if the newcomer's memory cannot"
                " be separated from it, or it was not seen within 5 s of the exit",
            ),
            Field("processes", PROCESSES, "the newcomers, as far as known by then"),
        ),
    ),
    EventType(
        "gpu.verdict",
        "verdict",
        Kind.DETAIL,
        "[{allowed?}may be occupied: ]{reason}[; may change in {left_s:duration}] (rule {rule})",
        "With `--explain`: another rule decides whether this GPU is occupied.",
        (
            Field("allowed", BOOL, "whether a stressor may start"),
            *RULE,
        ),
    ),
    EventType(
        "gpu.checked",
        "checked",
        Kind.DETAIL,
        "{memory_used:size} of {memory_total:size} used[; processes: {processes}|]",
        "With `--log-level debug`: a full reading of this GPU. It is in the log only, not in the"
        " history and the streams of the API.",
        (
            Field("memory_used", BYTES, "used memory, including the stressor's"),
            Field("memory_total", BYTES, "all memory"),
            Field("processes", "whole number or null", "all processes that NVML lists"),
            Field("took_s", SECONDS, "duration of the call for the memory"),
        ),
    ),
    EventType(
        "gpu.released",
        "released",
        Kind.DETAIL,
        "{reason}",
        "A rule over all GPUs requires this one to be free: its stressor is asked to end.",
        (Field("reason", TEXT, "the rule"),),
    ),
    EventType(
        "gpu.status",
        "status",
        Kind.DETAIL,
        "{stressor:status}",
        "The state of each GPU, every `--status-every`. The fields from `running_s` on exist only"
        " while the stressor is RUNNING. Those from `iterations_per_s` on follow its first progress"
        " report and cover the time since the report before.",
        (
            Field("occupancy", "`UNKNOWN`, `BUSY`, `IDLE`", "use by foreign processes"),
            Field(
                "stressor",
                "`STOPPED`, `STARTING`, `RUNNING`, `STOPPING`, `BACKOFF`, `FATAL`",
                "the state of the stressor",
            ),
            *RULE,
            Field("processes", PROCESSES, "the foreign processes"),
            Field(
                "identity",
                "`unlearned`, `direct`, `mapped`, `blind`",
                "how NVML lists the stressor, as in [`gpu.identity`](#gpuidentity)",
            ),
            Field("identity_reason", TEXT, "how that is known, and whether others may be hidden"),
            Field("memory_used", BYTES + OR_NULL, "used memory, including the stressor's"),
            Field(
                "utilization",
                SHARE + OR_NULL,
                "share of the last second with running kernels; null if the GPU does not report it"
                " or no setting needs it",
            ),
            *SENSORS,
            Field(
                "findings",
                COUNT,
                "findings on this GPU since the start ([`stressor.finding`](#stressorfinding))",
            ),
            Field("running_s", SECONDS, "how long the stressor has been RUNNING"),
            Field("note", "text or null", "what its workload is doing, up to 200 characters"),
            Field("share", SHARE, "share of the time that it is to work"),
            *PACE,
            Field("iterations_per_s", "per second", "units of work, as the workload defines them"),
            Field("flops_per_s", "per second", "floating-point operations"),
            Field("bytes_per_s", "bytes per second", "device memory read and written"),
            *RESULTS,
            Field(
                "longest_quantum_s",
                SECONDS,
                "longest time between two calls of `ctx.pace()`, on the host or on the device; a"
                " stop has to wait for it, so it must not exceed 0.05",
            ),
        ),
    ),
    EventType(
        "gpu.paused",
        "paused",
        Kind.COMMAND,
        "[for {for_s:duration}, ]{by:caller}",
        "A client paused this GPU. Its stressor is released.",
        (FOR, BY),
    ),
    EventType(
        "gpu.resumed",
        "resumed",
        Kind.COMMAND,
        "{by:caller}",
        "The pause of this GPU ended.",
        (BY_OR_NULL,),
    ),
    EventType(
        "gpu.reserved",
        "reserved",
        Kind.COMMAND,
        "{id}: [{reason}, ][for {for_s:duration}, ][{bound?}while its process lives, ]{by:caller}",
        "This GPU is reserved for a user.",
        (
            Field("id", TEXT, "the reservation, which may include several GPUs"),
            Field("reason", TEXT, "the purpose, as the user gave it"),
            FOR,
            Field("bound", BOOL, "whether it ends with the process that requested it"),
            Field("waited_s", SECONDS, "how long the request waited in the queue"),
            BY,
        ),
    ),
    EventType(
        "gpu.unreserved",
        "unreserved",
        Kind.COMMAND,
        "{id}: {by:caller}",
        "A reservation of this GPU ended.",
        (Field("id", TEXT, "the reservation"), BY_OR_NULL),
    ),
    EventType(
        "gpu.results_acknowledged",
        "acknowledged",
        Kind.COMMAND,
        "{errors} wrong results and {findings} findings, {by:caller}: {reason}",
        "An administrator acknowledged the wrong results of a GPU, as after a repair: they [no"
        " longer count](health.md#after-a-repair) as a fault.",
        (
            Field("reason", TEXT, "why they no longer count"),
            Field("errors", COUNT, "how many wrong results were acknowledged"),
            Field("findings", COUNT, "how many findings were acknowledged"),
            BY,
        ),
    ),
    EventType(
        "gpu.health_changed",
        "health",
        Kind.USE,
        "{health}[ at {temperature_c} C][, because of its {cause}]; before: {before}",
        "The [health](health.md) of a GPU changed.",
        (
            Field("before", TEXT, "optimal, normal, throttled or critical"),
            Field("health", TEXT, "the new health"),
            Field(
                "cause",
                "`temperature`, `memory`, `hardware` or null",
                "why it is not optimal; null if it is",
            ),
            Field("temperature_c", DEGREES + OR_NULL, "the temperature"),
            Field("memory_foreign_share", SHARE, "share of its memory used outside the stressor"),
            Field("multiplier", SHARE, "share of its speed that [health](health.md) permits"),
        ),
    ),
    EventType(
        "gpu.overheat",
        "overheat",
        Kind.FINDING,
        "{temperature_c} C, above {limit_c} C",
        "A GPU is hotter than it should ever be; published once until it has cooled down.",
        (
            Field("temperature_c", DEGREES, "the temperature"),
            Field(
                "limit_c",
                DEGREES,
                "`throttle.temp_overheating_from` or the slowdown temperature, whichever is lower",
            ),
        ),
    ),
    EventType(
        "gpu.xid",
        "XID",
        Kind.FINDING,
        "{xid}[ {repeats} more times][: {own?}the cleanup after a stressor that was ended]",
        "The driver reported an error of this GPU, an [XID](checks.md#xids), through NVML. The"
        " first of a number is published at once, its repeats together after five seconds.",
        (
            Field("xid", COUNT, "NVIDIA's number"),
            Field("repeats", COUNT, "how often it was repeated since; 0 for the first"),
            Field(
                "own",
                BOOL,
                "whether it is 43 or 45, within 10 s after Sentinel ended its stressor on this GPU",
            ),
            Field("reported_at", MONOTONIC, "when NVML delivered it, or the first of the repeats"),
            Field("last_at", MONOTONIC, "when NVML delivered the last of them"),
        ),
    ),
    EventType(
        "memory.allocated",
        "allocated",
        Kind.COMMAND,
        "{size:size} as {id}, {by:caller}",
        "Memory of this GPU was allocated to a process.",
        (*ALLOCATION, BY),
    ),
    EventType(
        "memory.deallocated",
        "deallocated",
        Kind.COMMAND,
        "{size:size} as {id}",
        "An allocation ended: it was returned, or its process exited.",
        (
            *ALLOCATION,
            Field("by", "caller", "who sent the command; `via` is `service` after an exit"),
        ),
    ),
)
