"""Checks of the host, of the driver and of torch, and all checks in the order of the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sentinel.diagnostics.doctor_facts import (
    Diagnosis,
    DriverFacts,
    Folder,
    HostFacts,
    Unread,
    problem,
    warning,
    well,
)
from sentinel.diagnostics.doctor_gpu_checks import judge_gpus
from sentinel.host.packages import (
    ODD_BINDING,
    Bindings,
    Version,
    how_to_install,
    misreads,
    version_of,
)
from sentinel.units import format_count, format_size

#: Host memory that one stressor keeps resident, in bytes: 891 MB were measured with `gemm` on an
#: H200 (docs/internals/benchmarks.md), and what torch loads differs between its builds.
RESIDENT = 900 * 10**6

#: What keeps the time short between a kill and the return of the memory.
_TEARDOWN = "a killed stressor frees its memory on its own share of the processors"

#: The first binding after that; older ones are not tried with sentinel.
_LEAST_BINDING = (12, 535, 108)
#: The first drivers with the second and the third lists of processes.
_SECOND_LISTS, _THIRD_LISTS = (450, 66), (510, 39)

_NO_GPU = "Or simulate GPUs: add --simulate 2"


def judge_host(facts: HostFacts) -> Iterator[Diagnosis]:
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


def _namespace(facts: HostFacts) -> Diagnosis:
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


def _inotify(facts: HostFacts) -> Diagnosis:
    if facts.no_inotify is None:
        return well(
            "inotify", "available", "device nodes can be watched: an early hint of newcomers"
        )
    means = "no device node can be watched: a newcomer is noticed later, by its memory"
    do = "Raise fs.inotify.max_user_instances with sysctl, or end processes that use them."
    return warning("inotify", facts.no_inotify, means, do)


def _mps(facts: HostFacts) -> Diagnosis:
    if facts.driver.simulated:
        return well("MPS", "irrelevant", "simulated GPUs have no MPS")
    if not facts.mps:
        hidden = ", as far as processes are shown here" if facts.hidden else ""
        return well("MPS", f"no server runs{hidden}", "each process has its own context")
    found = ", ".join(f"{name} (pid {pid})" for pid, name in facts.mps)
    means = "its clients make a GPU busy, the server alone does not; stressors do not use it"
    return well("MPS", found, means)


# --- locks -----------------------------------------------------------------------------------


def _folders(facts: HostFacts) -> Diagnosis:
    check = "record folders"
    usable = [folder for folder in facts.folders if folder.unusable is None]
    found = "; ".join(f"{folder.path} {_describe(folder)}" for folder in facts.folders)
    if not any(folder.shared and not folder.private for folder in usable):
        means = "a sentinel of another user does not see this one, and each yields to the other"
        remedy = "Make one of them a folder of root that all users may write (mode 1777)."
        more = "Free space in a full one. For a service: PrivateTmp=no."
        return warning(check, found, means, f"{remedy} {more}")
    return well(check, found, "sentinels of all users of this host see each other")


def _describe(folder: Folder) -> str:
    if folder.unusable is not None:
        return f"cannot be used: {folder.unusable}"
    if folder.private:
        return "is mounted for this service alone"
    if folder.missing:
        return "is created at the first start"
    return "is writable by all users" if folder.shared else "is not writable by all users"


def _holders(facts: HostFacts) -> Iterator[Diagnosis]:
    check = "other sentinels"
    indices = {gpu.uuid: gpu.index for gpu in facts.gpus}
    for held in facts.held:
        if held.uid == facts.uid:
            means = "a second Sentinel on these GPUs ends with code 75"
        elif facts.uid == 0:
            means = "a sentinel of root uses this GPU, too, and each yields to the other"
        else:
            means = "a sentinel of another user leaves this GPU to it"
        do = "If this is intended, do nothing. Otherwise stop it, or choose other GPUs with --gpus."
        if held.stray is not None:
            means, do = "a sentinel leaves this GPU out", f"End it: kill {held.stray}"
        line = warning(check, f"held by {held.holder}", means, do)
        yield replace(line, gpu=held.uuid, index=indices.get(held.uuid))
    if not facts.held:
        yield well(check, "none holds a GPU", "as far as this user can see them")


# --- processor time and memory ---------------------------------------------------------------


def _niceness(facts: HostFacts) -> Diagnosis:
    if facts.nice <= 0:
        return well("niceness", str(facts.nice), "stressors inherit this niceness")
    means = f"a stressor inherits it, and {_TEARDOWN}: hand-overs take longer"
    return warning("niceness", str(facts.nice), means, "Start sentinel without nice.")


def _policy(facts: HostFacts) -> Diagnosis:
    if facts.policy not in {"SCHED_IDLE", "SCHED_BATCH"}:
        return well("scheduling", facts.policy, "stressors inherit this policy")
    means = f"a stressor inherits it, and {_TEARDOWN}: hand-overs take longer"
    return warning("scheduling", facts.policy, means, "Start sentinel with: chrt --other 0")


def _quota(facts: HostFacts) -> Diagnosis:
    if facts.quota is None:
        return well("CPU quota", "none", "a killed stressor exits as fast as the driver allows")
    found = f"{facts.quota.cpus:.3g} processors, by {facts.quota.where}"
    means = f"{_TEARDOWN}, which stops while the quota is exhausted"
    return warning("CPU quota", found, means, "Remove the quota (systemd: no CPUQuota=).")


def _memory(facts: HostFacts) -> Diagnosis:
    check = "host memory"
    room = facts.room
    if room is None:
        means = "it is unknown whether there is enough for the stressors"
        return warning(check, "unknown", means, "See /proc/meminfo.")
    needed = facts.usable_gpus * RESIDENT
    found = f"{format_size(room.available)} free ({room.where})"
    each = f"each stressor needs {format_size(RESIDENT)}"
    if not facts.usable_gpus:
        return well(check, found, each)
    count = format_count(facts.usable_gpus, "GPU")
    if room.available >= needed:
        return well(check, found, f"{each}: enough for {count}")
    fit = room.available // RESIDENT
    if fit == 0:
        means = f"{each}: not enough for a single one"
        return problem(check, found, means, "Free host memory, or raise the limit.")
    means = f"{each}: not enough for {count}, and the kernel would kill some"
    return warning(check, found, means, f"Use --max-gpus {fit}, or free host memory.")


def judge_software(facts: HostFacts) -> Iterator[Diagnosis]:
    """Yield the findings about driver, binding and torch."""
    yield _driver(facts.driver)
    yield from _binding(facts.bindings, facts.driver)
    yield _torch(facts)


# --- the driver ------------------------------------------------------------------------------


def _driver(driver: DriverFacts) -> Diagnosis:
    if driver.simulated:
        return well("driver", "simulated GPUs", "no driver is used, and nothing here is real")
    if driver.missing is not None:
        means = "no GPU can be read: sentinel would exit with code 5"
        logs = "look for NVRM in `dmesg`, and reboot"
        do = logs if driver.own is None else f"see what {driver.own} logs"
        do = f"If the driver does not answer, {do}."
        return problem("driver", driver.missing, means, f"{do} {_NO_GPU}")
    if driver.own is not None:
        means = "it lists the GPUs; calls that only NVIDIA's driver has are not made"
        return well("driver", f"{driver.version}, {driver.own}", means)
    version = version_of(driver.version)
    if not version:
        found = f"version {driver.version!r}" if driver.version else "its version is unknown"
        means = "it is unknown whether it has known faults"
        return warning("driver", found, means, "Check it with nvidia-smi.")
    if version < _SECOND_LISTS:
        means = "it lacks the process lists that sentinel reads: no GPU would be occupied"
        return problem("driver", f"{driver.version}", means, "Install driver 510.39 or newer.")
    if version < _THIRD_LISTS:
        means = "its older interface counts the driver's own memory as used"
        return warning("driver", f"{driver.version}", means, "Install driver 510.39 or newer.")
    return well("driver", f"{driver.version}{_supports(driver)}", "it answers")


def _supports(driver: DriverFacts) -> str:
    cuda = _cuda_of(driver)
    return f", for CUDA up to {cuda[0]}.{cuda[1]}" if cuda else ""


def _cuda_of(driver: DriverFacts) -> Version:
    """Split the newest CUDA that the driver supports into two numbers, or none."""
    if isinstance(driver.cuda, Unread) or not driver.cuda:
        return ()
    return driver.cuda[0] // 1000, driver.cuda[0] % 1000 // 10


# --- the binding -----------------------------------------------------------------------------


def _binding(bindings: Bindings, driver: DriverFacts) -> Iterator[Diagnosis]:
    name = f"nvidia-ml-py {bindings.version}"
    if bindings.rivals or bindings.shadow:
        found = ", ".join(filter(None, [*bindings.rivals, bindings.shadow]))
        means = "another module named pynvml than NVIDIA's is or may be imported"
        rivals = " ".join(rival.split()[0] for rival in bindings.rivals)
        remove = f"Run: pip uninstall {rivals};" if rivals else f"Remove {bindings.shadow};"
        do = f"{remove} then: pip install --force-reinstall nvidia-ml-py"
        yield problem("binding", found, means, do)
    if driver.own is not None:
        yield well("binding", name if bindings.version else "not installed", "it is not used")
        return
    if bindings.version is None:
        if driver.simulated:
            yield well("binding", "not installed", "simulated GPUs do not need it")
        else:
            means = "the NVIDIA driver cannot be used"
            yield problem("binding", "not installed", means, "Run: pip install nvidia-ml-py")
        return
    yield _pair(name, version_of(bindings.version), driver)


def _pair(name: str, binding: Version, driver: DriverFacts) -> Diagnosis:
    """Judge whether binding and driver fit."""
    version = version_of(driver.version)
    both = f"{name} with driver {driver.version}"
    misread = misreads(version, binding)
    update = "Install driver 535.104 or newer, and then the newest nvidia-ml-py."
    if misread is not None and binding == ODD_BINDING:
        return problem("binding", both, misread, "Run: pip install --upgrade nvidia-ml-py")
    if misread is not None:
        return problem("binding", both, misread, update)
    if binding == ODD_BINDING and version:
        means = "these two fit, but sentinel is not tested with them"
        return warning("binding", both, means, update)
    if binding < _LEAST_BINDING:
        means = "sentinel needs 12.535.108 or newer, and is not tested with older ones"
        return warning("binding", name, means, "Run: pip install --upgrade nvidia-ml-py")
    if not version:
        return well("binding", name, "there is no driver to compare it with")
    return well("binding", name, "it has no known fault with this driver")


# --- torch -----------------------------------------------------------------------------------


def _torch(facts: HostFacts) -> Diagnosis:
    torch, driver = facts.torch, facts.driver
    install = how_to_install(driver.version, facts.installer, replace=torch is not None)
    if torch is None:
        return problem("torch", "not installed", "stressors cannot start", install)
    found = f"torch {torch.version or 'of unknown version'}"
    if driver.simulated or driver.own is not None:
        of_package = "only the package of the driver knows which build it needs"
        means = "any build works for simulated GPUs" if driver.simulated else of_package
        return well("torch", found, means)
    if torch.without:
        means = "built without CUDA: stressors cannot use a GPU"
        return problem("torch", f"{found}, without CUDA", means, install)
    built, supported = version_of(torch.cuda), _cuda_of(driver)
    if not built:
        means = "it is unknown whether this driver is new enough for it"
        return warning("torch", f"{found}, for an unknown CUDA", means, install)
    found = f"{found}, for CUDA {torch.cuda}"
    if not supported:
        return well("torch", found, "the driver's CUDA is unknown")
    newest = f"{supported[0]}.{supported[1]}"
    if built[0] > supported[0]:
        means = f"the driver supports CUDA up to {newest}: stressors cannot use a GPU"
        do = f"Install a newer driver, or a torch for CUDA {supported[0]}. {install}"
        return problem("torch", found, means, do)
    if built[0] == supported[0] and built > supported:
        return well(
            "torch", found, f"newer than the driver's {newest}, but of the same major version"
        )
    return well("torch", found, f"the driver supports CUDA up to {newest}")


def diagnose(facts: HostFacts) -> tuple[Diagnosis, ...]:
    """Run all checks: software first, then the host, then each of its GPUs."""
    return (*judge_software(facts), *judge_host(facts), *judge_gpus(facts))
