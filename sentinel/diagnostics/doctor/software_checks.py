"""Checks of the driver, of nvidia-ml-py and of torch."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.diagnostics.doctor.facts import DriverFacts, HostFacts, Unread
from sentinel.diagnostics.doctor.finding import Finding, problem, warning, well
from sentinel.host.installed.packages import ODD_BINDING, Bindings, Version, misreads, version_of
from sentinel.host.installed.torch_install import how_to_install

#: The first binding after that; older ones are not tried with sentinel.
_LEAST_BINDING = (12, 535, 108)
#: The first drivers with the second and the third lists of processes.
_SECOND_LISTS, _THIRD_LISTS = (450, 66), (510, 39)

_NO_GPU = "Or simulate GPUs: python -m sentinel --simulate 2"


def judge_software(facts: HostFacts) -> Iterator[Finding]:
    """Yield the findings about driver, binding and torch."""
    yield _driver(facts.driver)
    yield from _binding(facts.bindings, facts.driver)
    yield _torch(facts)


# --- the driver ------------------------------------------------------------------------------


def _driver(driver: DriverFacts) -> Finding:
    if driver.simulated:
        return well("driver", "simulated GPUs", "no driver is used, and nothing here is real")
    if driver.missing is not None:
        means = "no GPU can be read: sentinel would exit with code 5"
        return problem("driver", driver.missing, means, f"Follow the message. {_NO_GPU}")
    if driver.fault is not None:
        found = f"{driver.fault.call} {driver.fault.how}"
        means = "the driver as a whole does not answer, so no GPU can be read"
        do = "Check whether nvidia-smi answers, and `dmesg` for NVRM; reboot if it does not answer."
        return problem("driver", found, means, f"{do} {_NO_GPU}")
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


def _binding(bindings: Bindings, driver: DriverFacts) -> Iterator[Finding]:
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
        means = "these two fit, but sentinel is not tested with them"
        return warning("binding", both, means, update)
    if binding < _LEAST_BINDING:
        means = "sentinel needs 12.535.108 or newer, and is not tested with older ones"
        return warning("binding", name, means, "Run: pip install --upgrade nvidia-ml-py")
    if not version:
        return well("binding", name, "there is no driver to compare it with")
    return well("binding", name, "it has no known fault with this driver")


# --- torch -----------------------------------------------------------------------------------


def _torch(facts: HostFacts) -> Finding:
    torch, driver = facts.torch, facts.driver
    install = how_to_install(driver.version, facts.installer, replace=torch is not None)
    if torch is None:
        return problem("torch", "not installed", "stressors cannot start", install)
    found = f"torch {torch.version or 'of unknown version'}"
    if driver.simulated:
        return well("torch", found, "any build works for simulated GPUs")
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
