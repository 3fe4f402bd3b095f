"""Judges the driver, the binding that talks to it, and the torch that computes on it."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.diagnostics.doctor.facts import DriverFacts, HostFacts, Unread
from sentinel.diagnostics.doctor.finding import Finding, problem, warning, well
from sentinel.host.packages import ODD_BINDING, Bindings, Version, misreads, version_of

#: The first binding after that; older ones are not tried with sentinel.
_LEAST_BINDING = (12, 535, 108)
#: The first drivers with the second and the third lists of processes.
_SECOND_LISTS, _THIRD_LISTS = (450, 66), (510, 39)

_NO_GPU = "Or try it without a GPU: python -m sentinel --simulate 2"


def judge_software(facts: HostFacts) -> Iterator[Finding]:
    """Yield the lines about driver, binding and torch."""
    yield _driver(facts.driver)
    yield from _binding(facts.bindings, facts.driver)
    yield _torch(facts)


# --- the driver ------------------------------------------------------------------------------


def _driver(driver: DriverFacts) -> Finding:
    if driver.simulated:
        return well("driver", "simulated GPUs", "no driver was asked, and nothing here is real")
    if driver.missing is not None:
        means = "no GPU can be read: sentinel would end with exit code 5"
        return problem("driver", driver.missing, means, f"Do as that says. {_NO_GPU}")
    if driver.fault is not None:
        found = f"{driver.fault.call} {driver.fault.how}"
        means = "the driver as a whole does not answer, so no GPU can be read"
        do = "See whether nvidia-smi answers and what `dmesg` says of NVRM; reboot if it does not."
        return problem("driver", found, means, f"{do} {_NO_GPU}")
    version = version_of(driver.version)
    if not version:
        found = f"version {driver.version!r}" if driver.version else "it does not say its version"
        means = "nobody can tell whether it has known faults"
        return warning("driver", found, means, "See what nvidia-smi says of it.")
    if version < _SECOND_LISTS:
        means = (
            "it has none of the lists of processes that sentinel reads: no GPU would be occupied"
        )
        return problem("driver", f"{driver.version}", means, "Install driver 510.39 or newer.")
    if version < _THIRD_LISTS:
        means = "sentinel asks it in the older way, which counts the driver's own memory as used"
        return warning("driver", f"{driver.version}", means, "Install driver 510.39 or newer.")
    return well("driver", f"{driver.version}{_supports(driver)}", "it answers")


def _supports(driver: DriverFacts) -> str:
    cuda = _cuda_of(driver)
    return f", for CUDA up to {cuda[0]}.{cuda[1]}" if cuda else ""


def _cuda_of(driver: DriverFacts) -> Version:
    """Return the newest CUDA that the driver supports, as two numbers, or none."""
    if isinstance(driver.cuda, Unread) or not driver.cuda:
        return ()
    return driver.cuda[0] // 1000, driver.cuda[0] % 1000 // 10


# --- the binding -----------------------------------------------------------------------------


def _binding(bindings: Bindings, driver: DriverFacts) -> Iterator[Finding]:
    name = f"nvidia-ml-py {bindings.version}"
    if bindings.rivals or bindings.shadow:
        found = ", ".join(filter(None, [*bindings.rivals, bindings.shadow]))
        means = "another module called pynvml than NVIDIA's would be asked, or may be at any time"
        rivals = " ".join(rival.split()[0] for rival in bindings.rivals)
        remove = f"Run: pip uninstall {rivals};" if rivals else f"Remove {bindings.shadow};"
        do = f"{remove} then: pip install --force-reinstall nvidia-ml-py"
        yield problem("binding", found, means, do)
    if bindings.version is None:
        if driver.simulated:
            yield well("binding", "not installed", "simulated GPUs do without it")
        else:
            means = "no NVIDIA driver can be asked"
            yield problem("binding", "not installed", means, "Run: pip install nvidia-ml-py")
        return
    yield _pair(name, version_of(bindings.version), driver)


def _pair(name: str, binding: Version, driver: DriverFacts) -> Finding:
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
        means = "these two were made for each other, but sentinel is not tried with them"
        return warning("binding", both, means, update)
    if binding < _LEAST_BINDING:
        means = "sentinel asks for 12.535.108 or newer, and is not tried with older ones"
        return warning("binding", name, means, "Run: pip install --upgrade nvidia-ml-py")
    if not version:
        return well("binding", name, "there is no driver to compare it with")
    return well("binding", name, "no fault of it with this driver is known")


# --- torch -----------------------------------------------------------------------------------


def _torch(facts: HostFacts) -> Finding:
    torch, driver = facts.torch, facts.driver
    install = "Install a CUDA build of torch: https://pytorch.org/get-started/locally/"
    if torch is None:
        return problem("torch", "not installed", "no stressor could start", install)
    found = f"torch {torch.version or 'of unknown version'}"
    if driver.simulated:
        return well("torch", found, "any build will do for simulated GPUs")
    if torch.without:
        means = "built without CUDA: no stressor could use a GPU"
        return problem("torch", f"{found}, without CUDA", means, install)
    built, supported = version_of(torch.cuda), _cuda_of(driver)
    if not built:
        means = "nobody can tell whether this driver is new enough for it"
        return warning("torch", f"{found}, for an unknown CUDA", means, install)
    found = f"{found}, for CUDA {torch.cuda}"
    if not supported:
        return well("torch", found, "there is no driver's CUDA to compare it with")
    newest = f"{supported[0]}.{supported[1]}"
    if built[0] > supported[0]:
        means = f"the driver supports CUDA up to {newest}: no stressor could use a GPU"
        do = f"Install a newer driver, or a torch for CUDA {supported[0]}."
        return problem("torch", found, means, do)
    if built[0] == supported[0] and built > supported:
        return well(
            "torch", found, f"newer than the driver's {newest}, but of the same major version"
        )
    return well("torch", found, f"the driver supports CUDA up to {newest}")
