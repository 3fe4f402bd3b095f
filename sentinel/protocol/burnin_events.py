"""The events of a burn-in."""

from __future__ import annotations

from sentinel.protocol.event_type import (
    BY,
    COUNT,
    OR_NULL,
    SECONDS,
    SENSORS,
    SHARE,
    TEXT,
    EventType,
    Field,
    Kind,
)

BURNIN_EVENTS = (
    EventType(
        "burnin.run_started",
        "burn-in",
        Kind.USE,
        "{plan} on {gpus:gpus}",
        "A client has asked the daemon for a burn-in.",
        (
            Field("id", TEXT, "its id"),
            Field("plan", TEXT, "the plan"),
            Field("gpus", "list", "its GPUs, each with `uuid`, `index` and `name`"),
            BY,
        ),
    ),
    EventType(
        "burnin.run_ended",
        "burn-in over",
        Kind.USE,
        "{plan}",
        "No GPU has anything more to do of the daemon's burn-in; each has the settings that it had"
        " before.",
        (Field("id", TEXT, "its id"), Field("plan", TEXT, "the plan")),
    ),
    EventType(
        "burnin.phase_started",
        "phase",
        Kind.USE,
        "{number} of {phases}: {phase}",
        "The next phase of a burn-in is due on a GPU. Its stressor starts as soon as the GPU is"
        " idle.",
        (
            Field("phase", TEXT, "the phase"),
            Field("number", COUNT, "its number in the plan, from 1"),
            Field("phases", COUNT, "how many phases the plan has"),
        ),
    ),
    EventType(
        "burnin.progress",
        "progress",
        Kind.DETAIL,
        "{number} of {phases}, {phase}[{quota_s?}: {done_s:duration} of {quota_s:duration}]"
        "[{quota_passes?}, {passes} of {quota_passes} passes][, {waiting}][, {temperature_c} C]"
        "[, {power_w:watts}][, {errors} results wrong]; {left_s:duration} of work left",
        "How far a GPU is in a burn-in, as often as `--status-every` says.",
        (
            Field("phase", TEXT, "the phase"),
            Field("number", COUNT, "its number in the plan, from 1"),
            Field("phases", COUNT, "how many phases the plan has"),
            Field("done_s", SECONDS, "work that counts; of the stretch, if only one counts"),
            Field("quota_s", SECONDS, "work that the phase asks for"),
            Field("passes", COUNT, "how often all patterns have covered the memory"),
            Field("quota_passes", COUNT, "how often they must"),
            Field("left_s", SECONDS, "work left, without warming up and passes over the memory"),
            Field("checks", COUNT, "results that were checked, in all phases"),
            Field("errors", COUNT, "those that were wrong"),
            Field("waiting", TEXT + OR_NULL, "why nothing counts at the moment, or null"),
            *SENSORS,
        ),
    ),
    EventType(
        "burnin.waiting",
        "waiting",
        Kind.DETAIL,
        "{phase}: for the other GPUs, at most ten minutes",
        "A GPU could begin a phase that the GPUs of a run do together, and waits for the others.",
        (
            Field("phase", TEXT, "the phase"),
            Field("missing", "list", "the indices of the GPUs that it waits for"),
        ),
    ),
    EventType(
        "burnin.grouped",
        "together",
        Kind.DETAIL,
        "{phase}: as rank {rank}",
        "A GPU begins a phase together with others, or alone if there are none.",
        (
            Field("phase", TEXT, "the phase"),
            Field("rank", COUNT, "its place in the group, from 0"),
            Field("members", "list", "the indices of the GPUs of the group, by rank"),
            Field("missing", "list", "the indices of GPUs that were busy for too long"),
            Field("waited_s", SECONDS, "how long the first of them has waited"),
        ),
    ),
    EventType(
        "burnin.ungrouped",
        "not together",
        Kind.USE,
        "{phase}: {reason}; all of them begin it again",
        "Another GPU has left a group, so that the phase is interrupted for all of its GPUs.",
        (
            Field("phase", TEXT, "the phase"),
            Field("reason", TEXT, "which GPU has left it, and why"),
        ),
    ),
    EventType(
        "burnin.warm",
        "warm",
        Kind.DETAIL,
        "{phase}: from here on, its work counts",
        "The temperature of a GPU is stable, or the longest warm-up is over, so that a steady phase"
        " begins to count.",
        (Field("phase", TEXT, "the phase"),),
    ),
    EventType(
        "burnin.measured",
        "measured",
        Kind.DETAIL,
        "{kind}",
        "What a client records of a burn-in besides its events: what a stressor has measured, its"
        " exit, and a time in which NVML's XIDs were watched without a break.",
        (
            Field(
                "kind",
                "`Failed`, `LinkMeasured`, `ReferenceChecksum`, `SelftestDone`, `SelftestResult`, "
                "`StressorExit`, `XidsWatched`",
                "what it is about",
            ),
            Field(
                "values",
                "object",
                "as `sentinel/protocol/stressor.py` describes, `pid` and `at`, or `first` and"
                " `last`",
            ),
        ),
    ),
    EventType(
        "burnin.interrupted",
        "interrupted",
        Kind.USE,
        "{phase}: after {stretch_s:duration} of work that counts",
        "The stressor of a phase has ended before the phase was done: for a newcomer, a failure, a"
        " pause or a GPU that could not be read. Another event says why.",
        (
            Field("phase", TEXT, "the phase"),
            Field("stretch_s", SECONDS, "the work of this stretch that counts"),
        ),
    ),
    EventType(
        "burnin.phase_ended",
        "phase over",
        Kind.USE,
        "{phase}: [{given_up}|{phase?}{seconds:duration} of work that counts, {checks} results"
        " checked, {errors} wrong]",
        "A GPU has done a phase of a burn-in, or does no more of it.",
        (
            Field("phase", TEXT, "the phase"),
            Field("seconds", SECONDS, "work that counts, in all stretches"),
            Field("uncounted", SECONDS, "warming up, and work without the required checks"),
            Field("stretch", SECONDS, "the last stretch of work that counts"),
            Field("longest", SECONDS, "the longest stretch"),
            Field("interruptions", COUNT, "how often the stressor had to end"),
            Field("iterations", COUNT, "units of work, as the workload defines them"),
            Field("flops", "number", "floating-point operations"),
            Field("bytes", "number", "bytes read and written"),
            Field("checks", COUNT, "results that were checked"),
            Field("errors", COUNT, "those that were wrong"),
            Field("covered", "object", "how often each pattern has covered the memory"),
            Field("patterns", COUNT, "how many patterns a pass has"),
            Field("passes", COUNT, "how often all of them have covered the memory"),
            Field("share", SHARE + OR_NULL, "the share of the memory that was covered"),
            Field(
                "retained",
                SHARE + OR_NULL,
                "the share of the memory that kept a pattern untouched for a while",
            ),
            Field("given_up", TEXT + OR_NULL, "why the rest of the phase cannot be done, or null"),
        ),
    ),
    EventType(
        "burnin.ended",
        "burn-in over",
        Kind.USE,
        "{plan}: [{reason}|all phases are done]",
        "A GPU does no more of a burn-in.",
        (
            Field("plan", TEXT, "the plan"),
            Field("reason", TEXT + OR_NULL, "why phases are missing, or null"),
        ),
    ),
)
