"""Checks of each GPU: its modes, its memory errors, and whether it can be watched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sentinel.diagnostics.doctor_facts import (
    Diagnosis,
    GpuFacts,
    HostFacts,
    Numbers,
    Unread,
    problem,
    warning,
    well,
)
from sentinel.units import format_count, format_indices, format_size

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_NOT_SUPPORTED = "not supported"
_ELSE = "See `nvidia-smi -q` and `dmesg`; if it persists, exclude this GPU with --gpus."
_RESET = "Free the GPU and run `nvidia-smi --gpu-reset`, or reboot."


def judge_gpus(facts: HostFacts) -> Iterator[Diagnosis]:
    """Yield the findings about the number of GPUs, and those about each."""
    if facts.driver.missing is None:
        yield _count(facts)
    for gpu in facts.gpus:
        for finding in _lines(gpu, facts):
            yield replace(finding, gpu=gpu.uuid, index=gpu.index)


def _count(facts: HostFacts) -> Diagnosis:
    there, usable_gpus = len(facts.gpus), facts.usable_gpus
    if not there:
        means = "sentinel has no GPU to use and would exit with code 4"
        do = "See `nvidia-smi -L`; in a container, start it with GPUs."
        return problem("GPUs", "the driver lists none", means, do)
    if not usable_gpus:
        means = "sentinel has no GPU to use and would exit with code 4"
        do = facts.ignored or "Check CUDA_VISIBLE_DEVICES, and the lines about each GPU."
        return problem("GPUs", f"{there}, none of them visible", means, do)
    kept = [gpu for gpu in facts.gpus if not _can_be_occupied(gpu)]
    if kept:
        visible = f"{usable_gpus} of {there}" if usable_gpus < there else f"{there}"
        indices = format_indices(gpu.index for gpu in kept)
        found = f"{visible}, and GPU {indices} is never occupied"
        means = "sentinel would use the others, as far as they are visible"
        return warning("GPUs", found, means, "See the lines about each GPU.")
    if facts.ignored is not None:
        means = "sentinel uses the visible ones, and CUDA ignores a part of CUDA_VISIBLE_DEVICES"
        return warning("GPUs", f"{usable_gpus} of {there}", means, facts.ignored)
    if usable_gpus < there:
        means = "sentinel uses the visible ones: see CUDA_VISIBLE_DEVICES"
        return well("GPUs", f"{usable_gpus} of {there}", means)
    return well("GPUs", str(there), "sentinel would use all of them")


def _can_be_occupied(gpu: GpuFacts) -> bool:
    """Check whether a daemon can read all that it needs to know of a GPU, and may use it."""
    needed = (gpu.memory, gpu.compute)
    modes = (gpu.compute_mode, gpu.mig, gpu.display)
    read = (
        gpu.lost is None
        and gpu.unread is None
        and not any(isinstance(numbers, Unread) for numbers in needed)
    )
    return read and all(
        numbers.why is None if isinstance(numbers, Unread) else not numbers[0] for numbers in modes
    )


def _lines(gpu: GpuFacts, facts: HostFacts) -> Iterator[Diagnosis]:
    silent = gpu.lost is not None  # then unsupported values mean nothing
    if gpu.lost is not None:
        means = "this GPU is unusable here; later calls were not made"
        do = f"If the GPU does not answer, reset it or reboot. {_ELSE}"
        yield problem("answers", gpu.lost, means, do)
    elif gpu.unread is not None:
        means = "this GPU is never occupied: a daemon cannot read all that it needs"
        yield problem("answers", gpu.unread, means, _ELSE)
    else:
        yield well("answers", gpu.name or "yes", "no call hung")
    if gpu.node is not None or not silent:
        yield _node(gpu, facts)
    if silent:
        return
    yield _memory(gpu.memory)
    yield _mig(gpu.mig)
    if facts.driver.simulated:
        return
    yield _persistence(gpu.persistence)
    yield _compute_mode(gpu.compute_mode)
    yield _display(gpu.display)
    yield _processes(gpu.compute)
    yield _mps(gpu.mps)
    yield _ecc(gpu.ecc)
    yield _errors(gpu)
    yield _repairs(gpu)


def _unread(check: str, numbers: Unread, means: str) -> Diagnosis:
    """Build the finding for an unknown value: a warning only if a call failed."""
    if numbers.why is None:
        return well(check, _NOT_SUPPORTED, "this GPU or its driver does not support it")
    return warning(check, f"cannot be read: {numbers.why}", means, _ELSE)


def _node(gpu: GpuFacts, facts: HostFacts) -> Diagnosis:
    name = gpu.node or "its device node is unknown"
    means = "a newcomer is noticed later, by its memory"
    if facts.no_inotify is not None:  # reported once, for the host
        return well("device node", name, "not watched; see `inotify`")
    if gpu.node is None:
        return warning("device node", name, means, "Do nothing unless hand-overs are slow.")
    if gpu.unwatched is not None:
        do = "Check that the node exists and is readable, in a container as well."
        return warning("device node", f"{name} cannot be watched: {gpu.unwatched}", means, do)
    means = "opens are seen early, except those of a container"
    return well("device node", "watched", means)


def _memory(total: Numbers) -> Diagnosis:
    if isinstance(total, Unread):
        found = f"cannot be read: {total.why}" if total.why else _NOT_SUPPORTED
        means = "this GPU is never occupied: without figures, no newcomer is seen by its memory"
        return problem("memory", found, means, _ELSE)
    return well("memory", format_size(total[0]), "its use can be read")


def _persistence(mode: Numbers) -> Diagnosis:
    check = "persistence mode"
    if isinstance(mode, Unread):
        return _unread(check, mode, "each first open of this GPU may cost 1 to 3 s")
    if mode[0]:
        return well(check, "on", "the driver stays loaded between processes")
    means = "each first open of this GPU costs 1 to 3 s, for newcomers and stressors"
    return warning(check, "off", means, "Enable nvidia-persistenced, or run: nvidia-smi -pm 1")


def _compute_mode(mode: Numbers) -> Diagnosis:
    check = "compute mode"
    if isinstance(mode, Unread):
        return _unread(check, mode, "sentinel does not occupy a GPU if this cannot be read")
    name = _COMPUTE_MODES.get(mode[0], f"mode {mode[0]}")
    if mode[0] == 0:
        return well(check, name, "a newcomer can start beside a stressor")
    means = "this GPU is not occupied: a newcomer could not start beside a stressor"
    return warning(check, name, means, "To occupy it: nvidia-smi -c DEFAULT")


def _mig(modes: Numbers) -> Diagnosis:
    if isinstance(modes, Unread):
        return _unread("MIG", modes, "sentinel does not occupy a GPU if this cannot be read")
    now, later = modes[0], modes[-1]
    if now:
        means = "this GPU is not occupied: sentinel does not support MIG"
        return warning("MIG", "on", means, "To occupy it: nvidia-smi -mig 0")
    if later:
        means = "from the next reset on, this GPU is not occupied"
        return warning(
            "MIG", "off, but on after the next reset", means, "If unwanted: nvidia-smi -mig 0"
        )
    return well("MIG", "off", "the GPU is whole")


def _display(active: Numbers) -> Diagnosis:
    if isinstance(active, Unread):
        return _unread("display", active, "sentinel does not occupy a GPU if this cannot be read")
    if not active[0]:
        return well("display", "none", "no display uses this GPU")
    means = "this GPU is not occupied, for the user of the display"
    return warning("display", "attached", means, "To occupy it: --yield-to compute")


def _processes(pids: Numbers) -> Diagnosis:
    check = "process list"
    if isinstance(pids, Unread):
        found = f"cannot be read: {pids.why}" if pids.why else _NOT_SUPPORTED
        means = "the processes on this GPU are unknown, so it is never occupied"
        return problem(check, found, means, _ELSE)
    return well(check, f"{len(set(pids))} computing", "it can be read")


def _mps(pids: Numbers) -> Diagnosis:
    check = "MPS list"
    if isinstance(pids, Unread):
        return _unread(check, pids, "clients of an MPS server may be missed")
    if not pids:
        return well(check, "empty", "no process uses this GPU through MPS")
    found = "pid " + ", ".join(str(pid) for pid in sorted(set(pids)))
    means = "an MPS server uses this GPU, which is not occupied meanwhile"
    return warning(check, found, means, "To occupy it, end MPS: see the line `MPS`.")


# --- memory errors ---------------------------------------------------------------------------


def _ecc(modes: Numbers) -> Diagnosis:
    if isinstance(modes, Unread):
        return _unread("ECC", modes, "it is unknown whether memory errors are detected")
    now, later = bool(modes[0]), bool(modes[-1])
    words = {True: "on", False: "off"}
    found = words[now] if now == later else f"{words[now]}, but {words[later]} after the next reset"
    if now and later:
        return well("ECC", found, "memory errors are detected and counted")
    means = "memory errors are not detected, except those that `gemm` finds"
    return warning("ECC", found, means, "Run: nvidia-smi -e 1, and reset the GPU or reboot.")


def _errors(gpu: GpuFacts) -> Diagnosis:
    """Judge uncorrected errors: since the driver was loaded, and over the card's lifetime."""
    check = "ECC errors"
    recent, ever = gpu.volatile, gpu.aggregate
    if not isinstance(recent, Unread) and recent[0] > 0:
        found = f"{recent[0]} uncorrected since the driver was loaded or the GPU was reset"
        means = "results computed here may be wrong, and programs on it may have been killed"
        return problem(check, found, means, f"{_RESET} If they recur, replace the card.")
    if isinstance(recent, Unread) and recent.why is not None:
        return _unread(check, recent, "it is unknown whether the memory is sound")
    if isinstance(ever, Unread):
        if isinstance(recent, Unread) or ever.why is not None:
            return _unread(check, ever, "it is unknown whether the memory was sound")
        return well(
            check, "no uncorrected errors", "those before the driver was loaded are unknown"
        )
    if ever[0] > 0:
        found = f"{ever[0]} uncorrected in its life"
        means = "none since the driver was loaded; the rows may have been replaced since then"
        return warning(check, found, means, "Watch whether the number grows.")
    if isinstance(recent, Unread):
        return well(
            check,
            "no uncorrected errors over its lifetime",
            "recent ones are not counted separately",
        )
    return well(check, "no uncorrected errors", "neither recent nor over its lifetime")


def _repairs(gpu: GpuFacts) -> Diagnosis:
    """Judge remapped rows, and on older GPUs retired pages."""
    check = "repairs of memory"
    rows, pages = gpu.remapped, gpu.retiring
    failed = not isinstance(rows, Unread) and rows[3]
    pending = (not isinstance(rows, Unread) and rows[2]) or (
        not isinstance(pages, Unread) and pages[0]
    )
    if failed:
        means = "no spare rows are left where they are needed: errors will recur"
        return problem(check, "a row could not be remapped", means, "Replace the card.")
    if pending:
        what = "retirement of a page" if isinstance(rows, Unread) else "remap of a row"
        means = "memory known to be bad stays in use until the GPU is reset"
        return problem(check, f"a {what} is pending", means, _RESET)
    for numbers in (rows, pages):
        if isinstance(numbers, Unread) and numbers.why is not None:
            return _unread(check, numbers, "it is unknown whether a repair is pending")
    if isinstance(rows, Unread):
        if isinstance(pages, Unread):
            return _unread(check, rows, "")
        return well(check, "no page retirement is pending", "nothing to repair")
    found = f"{format_count(rows[0] + rows[1], 'row')} remapped, none pending"
    return well(check, found, "nothing to repair")
