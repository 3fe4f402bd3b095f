"""Facts about a host and its GPUs produce the right findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.diagnostics.doctor_checks import RESIDENT, diagnose
from sentinel.diagnostics.doctor_facts import (
    Diagnosis,
    DoctorLevel,
    DriverFacts,
    Folder,
    GpuFacts,
    Held,
    HostFacts,
    Quota,
    Room,
    Unread,
    verdict,
)
from sentinel.host.packages import Bindings, Installer, TorchBuild
from tests.harness.doctor_harness import FAILED, GPU, HOST, NO_DRIVER, with_gpu


def lines(facts: HostFacts, check: str) -> list[Diagnosis]:
    """List the findings of one check."""
    return [finding for finding in diagnose(facts) if finding.check == check]


def line(facts: HostFacts, check: str) -> Diagnosis:
    """Return the only finding of a check that is not ok, or the first one."""
    found = lines(facts, check)
    bad = [finding for finding in found if finding.level is not DoctorLevel.OK]
    assert len(bad) <= 1
    return (bad or found)[0]


def test_a_healthy_host_has_no_findings() -> None:
    findings = diagnose(HOST)
    assert [f for f in findings if f.level is not DoctorLevel.OK or f.do] == []
    assert verdict(findings) is DoctorLevel.OK
    assert len({finding.check for finding in findings}) == 25


def driver(version: str) -> dict[str, Any]:
    return {"driver": DriverFacts(version=version)}


def torch(version: str | None, *, without: bool) -> dict[str, Any]:
    return {"torch": TorchBuild(version=version, cuda=None, without=without)}


def held(holder: int, stray: int | None = None, **own: int) -> dict[str, Any]:
    one = Held(uuid="GPU-1", holder=f"pid 5 of uid {holder}", uid=holder, stray=stray)
    return {"held": (one,), **own}


def room(available: int) -> dict[str, Any]:
    return {"room": Room(available=available, where="x")}


HUNG = DriverFacts(missing="nvmlInit hung")
OWN = DriverFacts(version="1.2", own="driver good of a package")
QUOTA = Quota(cpus=0.5, where="/sys/fs/cgroup/a")
MPS = ((7, "nvidia-cuda-mps-control"),)


@pytest.mark.parametrize(
    ("changes", "check", "level", "word"),
    [
        ({"driver": NO_DRIVER}, "driver", "problem", "--simulate 2"),
        ({"driver": NO_DRIVER}, "driver", "problem", "exit with code 5"),
        ({"driver": HUNG}, "driver", "problem", "nvmlInit hung"),
        ({"driver": HUNG}, "driver", "problem", "look for NVRM in `dmesg`"),
        ({"driver": replace(OWN, missing="x")}, "driver", "problem", "see what driver good of a"),
        ({"driver": DriverFacts()}, "driver", "warning", "version"),
        (driver("what"), "driver", "warning", "'what'"),
        (driver("450.51.06"), "driver", "problem", "lacks the process lists"),
        (driver("450.66"), "driver", "warning", "older interface"),
        (driver("510.38.9"), "driver", "warning", "older interface"),
        (driver("510.39"), "driver", "ok", "510.39"),
        ({"torch": None}, "torch", "problem", "not installed"),
        (torch("2.13", without=True), "torch", "problem", "without CUDA"),
        ({"driver": OWN, **torch("2.13", without=True)}, "torch", "ok", "package of the driver"),
        (torch(None, without=False), "torch", "warning", "unknown CUDA"),
        ({"hidden": "a container?"}, "PID namespace", "warning", "detected by memory"),
        ({}, "PID namespace", "ok", "by the process list and by memory"),
        ({"no_inotify": "none left"}, "inotify", "warning", "none left"),
        ({"mps": MPS}, "MPS", "ok", "nvidia-cuda-mps-control (pid 7)"),
        ({"hidden": "a container?"}, "MPS", "ok", "as far as processes are shown here"),
        (held(0), "other sentinels", "warning", "code 75"),
        (held(0, stray=5), "other sentinels", "warning", "leaves this GPU out"),
        (held(0, uid=7), "other sentinels", "warning", "leaves this GPU"),
        (held(7), "other sentinels", "warning", "each yields"),
        ({"nice": 1}, "niceness", "warning", "without nice"),
        ({"nice": -5}, "niceness", "ok", "-5"),
        ({"policy": "SCHED_IDLE"}, "scheduling", "warning", "SCHED_IDLE"),
        ({"policy": "SCHED_BATCH"}, "scheduling", "warning", "SCHED_BATCH"),
        ({"policy": "SCHED_RR"}, "scheduling", "ok", "SCHED_RR"),
        ({"quota": QUOTA}, "CPU quota", "warning", "0.5 processors, by /sys/fs/cgroup/a"),
        ({"room": None}, "host memory", "warning", "unknown"),
        (room(2 * RESIDENT), "host memory", "ok", "enough for 2 GPUs"),
        (room(2 * RESIDENT - 1), "host memory", "warning", "--max-gpus 1"),
        (room(RESIDENT - 1), "host memory", "problem", "not enough for a single one"),
    ],
)
def test_each_fact_about_a_host_produces_its_line(
    changes: dict[str, Any], check: str, level: str, word: str
) -> None:
    finding = line(replace(HOST, **changes), check)
    assert finding.level == level
    assert word in f"{finding.found} / {finding.means} / {finding.do}"
    assert bool(finding.do) == (finding.level is not DoctorLevel.OK)


PAGE = {"remapped": Unread(), "retiring": (1,)}


@pytest.mark.parametrize(
    ("changes", "check", "level", "word"),
    [
        ({"lost": "nvmlDeviceGetMigMode hung"}, "answers", "problem", "MigMode"),
        ({"lost": "it fell off the bus"}, "answers", "problem", "off the bus"),
        ({"unwatched": "No such file"}, "device node", "warning", "/dev/nvidia1 cannot"),
        ({"node": None}, "device node", "warning", "unknown"),
        ({"persistence": (0,)}, "persistence mode", "warning", "1 to 3 s"),
        ({"persistence": FAILED}, "persistence mode", "warning", "no permission"),
        ({"compute_mode": (1,)}, "compute mode", "warning", "exclusive thread"),
        ({"compute_mode": (2,)}, "compute mode", "warning", "prohibited"),
        ({"compute_mode": (3,)}, "compute mode", "warning", "exclusive process"),
        ({"mig": (1, 1)}, "MIG", "warning", "not occupied"),
        ({"mig": (0, 1)}, "MIG", "warning", "on after the next reset"),
        ({"mig": Unread()}, "MIG", "ok", "not supported"),
        ({"display": (1,)}, "display", "warning", "--yield-to compute"),
        ({"compute": FAILED}, "process list", "problem", "never occupied"),
        ({"memory": FAILED}, "memory", "problem", "never occupied"),
        ({"unread": "processes: unknown error"}, "answers", "problem", "never occupied"),
        ({"memory": Unread()}, "memory", "problem", "not supported"),
        ({"compute": (4, 5, 4)}, "process list", "ok", "2 computing"),
        ({"mps": (9, 8, 9)}, "MPS list", "warning", "pid 8, 9"),
        ({"ecc": (0, 0)}, "ECC", "warning", "off"),
        ({"ecc": (1, 0)}, "ECC", "warning", "on, but off after the next reset"),
        ({"ecc": (0, 1)}, "ECC", "warning", "off, but on after the next reset"),
        ({"ecc": Unread()}, "ECC", "ok", "not supported"),
        ({"volatile": (3,)}, "ECC errors", "problem", "3 uncorrected"),
        ({"volatile": (3,), "aggregate": FAILED}, "ECC errors", "problem", "3 uncorrected"),
        ({"aggregate": (4,)}, "ECC errors", "warning", "4 uncorrected in its life"),
        ({"volatile": FAILED}, "ECC errors", "warning", "no permission"),
        ({"aggregate": FAILED}, "ECC errors", "warning", "no permission"),
        ({"volatile": Unread(), "aggregate": Unread()}, "ECC errors", "ok", "not supported"),
        ({"volatile": Unread()}, "ECC errors", "ok", "recent ones are not counted"),
        ({"aggregate": Unread()}, "ECC errors", "ok", "are unknown"),
        ({"volatile": Unread(), "aggregate": (2,)}, "ECC errors", "warning", "2 uncorrected"),
        ({"remapped": (0, 1, 1, 0)}, "repairs of memory", "problem", "remap of a row is pending"),
        ({"remapped": (0, 1, 1, 1)}, "repairs of memory", "problem", "Replace the card"),
        ({"remapped": (1, 2, 0, 0)}, "repairs of memory", "ok", "3 rows remapped, none pending"),
        ({"remapped": FAILED}, "repairs of memory", "warning", "no permission"),
        ({"remapped": Unread()}, "repairs of memory", "ok", "not supported"),
        (PAGE, "repairs of memory", "problem", "retirement of a page is pending"),
        ({"remapped": Unread(), "retiring": (0,)}, "repairs of memory", "ok", "no page"),
    ],
)
def test_each_fact_about_a_gpu_produces_its_line(
    changes: dict[str, Any], check: str, level: str, word: str
) -> None:
    *_, finding = lines(with_gpu(**changes), check)
    assert (finding.level, finding.gpu, finding.index) == (level, "GPU-1", 1)
    assert word in f"{finding.found} / {finding.means} / {finding.do}"
    assert bool(finding.do) == (finding.level is not DoctorLevel.OK)
    first, *_ = lines(with_gpu(**changes), check)
    assert (first.level, first.gpu) == (DoctorLevel.OK, "GPU-0")


@pytest.mark.parametrize(
    ("driver", "binding", "level"),
    [
        ("535.43.02", "12.535.77", "warning"),
        ("535.86.10", "12.535.77", "warning"),
        ("535.54.03", "13.615.71", "problem"),
        ("535.43", "12.535.108", "problem"),
        ("535.86.10", "12.535.161", "problem"),
        ("535.42.9", "12.535.108", "ok"),
        ("535.104.05", "12.535.108", "ok"),
        ("535.104.05", "12.535.77", "problem"),
        ("530.41", "12.535.77", "problem"),
        ("580.159", "12.535.77", "problem"),
        ("580.159", "11.525.150", "warning"),
        (None, "12.535.77", "warning"),
        (None, "13.615.71", "ok"),
    ],
)
def test_a_binding_must_fit_its_driver(driver: str | None, binding: str, level: str) -> None:
    facts = replace(HOST, driver=DriverFacts(version=driver), bindings=Bindings(version=binding))
    assert line(facts, "binding").level == level


@pytest.mark.parametrize(
    ("bindings", "word"),
    [
        (Bindings(version=None), "pip install nvidia-ml-py"),
        (Bindings(version="13.615.71", rivals=("pynvml 11.5.3",)), "pip uninstall pynvml;"),
        (Bindings(version="13.615.71", rivals=("nvidia-ml-py3 7.352.0",)), "nvidia-ml-py3 7.352.0"),
        (Bindings(version="13.615.71", shadow="/x/pynvml.py"), "Remove /x/pynvml.py"),
    ],
)
def test_another_module_that_shadows_the_binding_is_a_problem(
    bindings: Bindings, word: str
) -> None:
    finding = line(replace(HOST, bindings=bindings), "binding")
    assert finding.level is DoctorLevel.PROBLEM
    assert word in f"{finding.found} / {finding.do}"


@pytest.mark.parametrize(
    ("built", "supported", "level", "word"),
    [
        ("13.0", (12090,), "problem", "a torch for CUDA 12"),
        ("12.9", (12020,), "ok", "same major version"),
        ("12.2", (12020,), "ok", "supports CUDA up to 12.2"),
        ("11.8", (13000,), "ok", "supports CUDA up to 13.0"),
        ("13.0", Unread(), "ok", "driver's CUDA is unknown"),
        ("13.0", FAILED, "ok", "driver's CUDA is unknown"),
    ],
)
def test_torch_requires_a_driver_of_its_major_cuda_version(
    built: str, supported: Any, level: str, word: str
) -> None:
    facts = replace(
        HOST,
        driver=replace(HOST.driver, cuda=supported),
        torch=TorchBuild(version="2.11", cuda=built, without=False),
    )
    finding = line(facts, "torch")
    assert finding.level == level
    assert word in f"{finding.means} / {finding.do}"


@pytest.mark.parametrize(
    "build",
    [
        None,
        TorchBuild(version="2.13.0+cpu", cuda=None, without=True),
        TorchBuild(version="2.13.0+cu130", cuda="13.0", without=False),
    ],
)
def test_an_unusable_torch_has_the_command_for_the_driver(build: TorchBuild | None) -> None:
    facts = replace(
        HOST,
        driver=DriverFacts(version="535.104.05", cuda=(12020,)),
        torch=build,
        installer=Installer(python="/opt/it's/bin/python"),
    )
    finding = line(facts, "torch")
    python = """'/opt/it'"'"'s/bin/python' -m pip"""
    remove = "" if build is None else f"{python} uninstall --yes torch && "
    index = "https://download.pytorch.org/whl/cu126"
    assert finding.level is DoctorLevel.PROBLEM
    assert finding.do.endswith(f"Run: {remove}{python} install torch --index-url {index}")


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [
        ({}, {}, "ok"),
        ({"unusable": "it cannot be written"}, {}, "ok"),
        ({"missing": True}, {"missing": True}, "ok"),
        ({"shared": False}, {}, "ok"),
        ({"shared": False}, {"private": True}, "warning"),
        ({"unusable": "no"}, {"shared": False}, "warning"),
        ({"unusable": "no"}, {"private": True, "missing": True}, "warning"),
        ({"unusable": "no"}, {"unusable": "no"}, "warning"),
    ],
)
def test_a_record_folder_must_be_writable_by_all_users(
    first: dict[str, Any], second: dict[str, Any], level: str
) -> None:
    folders = (Folder(path="/run", **first), Folder(path="/tmp", **second))  # noqa: S108
    assert line(replace(HOST, folders=folders), "record folders").level == level


def test_without_a_driver_all_other_lines_about_the_host_are_present() -> None:
    checks = {finding.check for finding in diagnose(HOST) if finding.index is None}
    facts = replace(HOST, driver=NO_DRIVER, gpus=(), usable_gpus=0)
    assert {finding.check for finding in diagnose(facts)} == checks - {"GPUs"}


def test_missing_values_of_an_unresponsive_gpu_are_not_findings() -> None:
    hung = GpuFacts(index=1, uuid="GPU-1", lost="nvmlDeviceGetMigMode hung")
    facts = replace(HOST, gpus=(GPU, hung))
    assert [f.check for f in diagnose(facts) if f.index == 1] == ["answers"]


def test_a_simulated_host_needs_neither_driver_nor_cuda() -> None:
    facts = replace(
        HOST,
        driver=DriverFacts(simulated=True),
        gpus=(replace(GPU, node="/tmp/node"),),  # noqa: S108
        bindings=Bindings(version=None),
        torch=TorchBuild(version="2.13.0+cpu", cuda=None, without=True),
    )
    assert verdict(diagnose(facts)) is DoctorLevel.OK


def test_the_verdict_is_the_worst_line() -> None:
    assert verdict(diagnose(replace(HOST, nice=5))) is DoctorLevel.WARNING
    assert verdict(diagnose(replace(HOST, nice=5, torch=None))) is DoctorLevel.PROBLEM
    assert verdict([]) is DoctorLevel.OK


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"memory": Unread()}, "warning", "GPU 1 is never occupied"),
        ({"compute": FAILED}, "warning", "GPU 1 is never occupied"),
        ({"unread": "processes: unknown error"}, "warning", "GPU 1 is never occupied"),
        ({"compute_mode": (3,)}, "warning", "GPU 1 is never occupied"),
        ({"mig": (1, 1)}, "warning", "would use the others"),
        ({"display": FAILED}, "warning", "GPU 1 is never occupied"),
        ({"display": Unread(), "mig": Unread()}, "ok", "would use all of them"),
    ],
)
def test_all_gpus_would_be_used_only_if_a_daemon_then_does(
    changes: dict[str, Any], level: str, words: str
) -> None:
    (finding,) = lines(with_gpu(**changes), "GPUs")
    assert finding.level == level
    assert words in f"{finding.found} - {finding.means}"
