"""Checks of the host: PID namespace, locks, MPS, processor time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sentinel.diagnostics.doctor.facts import Folder, HostFacts
from sentinel.diagnostics.doctor.finding import Finding, problem, warning, well
from sentinel.units import format_count, format_size

#: Host memory that one stressor keeps resident, in bytes: 846 MB were measured with `gemm` on an
#: H200 (docs/benchmarks.md), and what torch loads differs between its builds.
RESIDENT = 900 * 10**6

#: What keeps the time short between a kill and the return of the memory.
_TEARDOWN = "a killed stressor frees its memory on its own share of the processors"


def judge_host(facts: HostFacts) -> Iterator[Finding]:
    """Yield the findings about the host."""
    yield _namespace(facts)
    yield _inotify(facts)
    yield _mps(facts)
    yield _folders(facts)
    yield from _holders(facts)
    yield _niceness(facts)
    yield _policy(facts)
    yield _quota(facts)
    yield _memory(facts)


def _namespace(facts: HostFacts) -> Finding:
    check = "PID namespace"
    if facts.driver.simulated:
        return well(check, "irrelevant", "simulated GPUs list every process")
    if facts.hidden is None:
        means = "newcomers are detected by the process list and by memory"
        return well(check, "the host's own", means)
    means = (
        "foreign processes may not be listed here: newcomers are detected by memory and by"
        " the list of computing processes"
    )
    do = (
        "Run sentinel on the host, or in a container with the host's PIDs (--pid=host). Otherwise"
        " share /run/lock/sentinel with the host, so that its sentinels are visible."
    )
    return warning(check, facts.hidden, means, do)


def _inotify(facts: HostFacts) -> Finding:
    if facts.no_inotify is None:
        return well(
            "inotify", "available", "device nodes can be watched: an early hint of newcomers"
        )
    means = "no device node can be watched: a newcomer is noticed later, by its memory"
    do = "Raise fs.inotify.max_user_instances with sysctl, or end processes that use them."
    return warning("inotify", facts.no_inotify, means, do)


def _mps(facts: HostFacts) -> Finding:
    if facts.driver.simulated:
        return well("MPS", "irrelevant", "simulated GPUs have no MPS")
    if not facts.mps:
        hidden = ", as far as processes are shown here" if facts.hidden else ""
        return well("MPS", f"no server runs{hidden}", "each process has its own context")
    found = ", ".join(f"{name} (pid {pid})" for pid, name in facts.mps)
    means = "its clients make a GPU busy, the server alone does not; stressors do not use it"
    return well("MPS", found, means)


# --- locks -----------------------------------------------------------------------------------


def _folders(facts: HostFacts) -> Finding:
    check = "record folders"
    usable = [folder for folder in facts.folders if folder.unusable is None]
    found = "; ".join(f"{folder.path} {_describe(folder)}" for folder in facts.folders)
    if not any(folder.shared and not folder.private for folder in usable):
        means = "a sentinel of another user does not see this one, and each yields to the other"
        remedy = "Make one of them a folder of root that all users may write (mode 1777)."
        return warning(check, found, means, f"{remedy} For a service: PrivateTmp=no.")
    return well(check, found, "sentinels of all users of this host see each other")


def _describe(folder: Folder) -> str:
    if folder.unusable is not None:
        return f"cannot be used: {folder.unusable}"
    if folder.private:
        return "is mounted for this service alone"
    if folder.missing:
        return "is created at the first start"
    return "is writable by all users" if folder.shared else "is not writable by all users"


def _holders(facts: HostFacts) -> Iterator[Finding]:
    check = "other sentinels"
    indices = {gpu.uuid: gpu.index for gpu in facts.gpus}
    for held in facts.held:
        if held.uid == facts.uid:
            means = "a second sentinel that selects this GPU would exit with code 75"
        elif facts.uid == 0:
            means = "a sentinel of root uses this GPU, too, and each yields to the other"
        else:
            means = "a sentinel of another user leaves this GPU to it"
        do = "Nothing, if it is intended; else stop it, or choose other GPUs with --gpus."
        line = warning(check, f"held by {held.holder}", means, do)
        yield replace(line, gpu=held.uuid, index=indices.get(held.uuid))
    if not facts.held:
        yield well(check, "none holds a GPU", "as far as this user can see them")


# --- processor time and memory ---------------------------------------------------------------


def _niceness(facts: HostFacts) -> Finding:
    if facts.nice <= 0:
        return well("niceness", str(facts.nice), "a stressor inherits it and can exit at once")
    means = f"a stressor inherits it, and {_TEARDOWN}: hand-overs take longer"
    return warning("niceness", str(facts.nice), means, "Start sentinel without nice.")


def _policy(facts: HostFacts) -> Finding:
    if facts.policy not in {"SCHED_IDLE", "SCHED_BATCH"}:
        return well("scheduling", facts.policy, "a stressor inherits it and can exit at once")
    means = f"a stressor inherits it, and {_TEARDOWN}: hand-overs take longer"
    return warning("scheduling", facts.policy, means, "Start sentinel with: chrt --other 0")


def _quota(facts: HostFacts) -> Finding:
    if facts.quota is None:
        return well("CPU quota", "none", "a killed stressor exits as fast as the driver allows")
    found = f"{facts.quota.cpus:.3g} processors, by {facts.quota.where}"
    means = f"{_TEARDOWN}, which stops while the quota is exhausted"
    return warning("CPU quota", found, means, "Remove the quota (systemd: no CPUQuota=).")


def _memory(facts: HostFacts) -> Finding:
    check = "host memory"
    room = facts.room
    if room is None:
        means = "it is unknown whether there is enough for the stressors"
        return warning(check, "unknown", means, "See /proc/meminfo.")
    needed = facts.usable_gpus * RESIDENT
    found = f"{format_size(room.available)} left, by {room.where}"
    each = f"a stressor takes about {format_size(RESIDENT)}"
    if not facts.usable_gpus:
        return well(check, found, f"{each}; there is no GPU to use")
    count = format_count(facts.usable_gpus, "GPU")
    if room.available >= needed:
        return well(check, found, f"{each}: enough for {count}")
    fit = room.available // RESIDENT
    if fit == 0:
        means = f"{each}: not enough for a single one"
        return problem(check, found, means, "Free host memory, or raise the limit.")
    means = f"{each}: not enough for {count}, and the kernel would kill some"
    return warning(check, found, means, f"Use --max-gpus {fit}, or free host memory.")
