"""Facts about a host lead to the right findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from sentinel.cli.tools.doctor import as_object, page
from sentinel.diagnostics.doctor.facts import (
    DriverFacts,
    Fault,
    Folder,
    GpuFacts,
    Held,
    HostFacts,
    Quota,
    Room,
    Unread,
)
from sentinel.diagnostics.doctor.finding import Finding, Level, verdict
from sentinel.diagnostics.doctor.host_checks import RESIDENT
from sentinel.diagnostics.doctor.report import diagnose
from sentinel.host.packages import Bindings, TorchBuild

GIB = 2**30
GPU = GpuFacts(
    index=0,
    uuid="GPU-0",
    name="NVIDIA H200",
    node="/dev/nvidia0",
    persistence=(1,),
    compute_mode=(0,),
    mig=(0, 0),
    display=(0,),
    ecc=(1, 1),
    volatile=(0,),
    aggregate=(0,),
    remapped=(0, 0, 0, 0),
    retiring=Unread(),
    compute=(),
    mps=(),
)
HOST = HostFacts(
    driver=DriverFacts(version="580.159", cuda=(13000,)),
    gpus=(GPU, replace(GPU, index=1, uuid="GPU-1", node="/dev/nvidia1")),
    cared_for=2,
    bindings=Bindings(version="13.615.71"),
    torch=TorchBuild(version="2.11.0+cu130", cuda="13.0", without=False),
    folders=(Folder(path="/run/lock/sentinel"), Folder(path="/tmp/sentinel-locks")),  # noqa: S108
    room=Room(available=64 * GIB, where="MemAvailable"),
)
NO_DRIVER = DriverFacts(missing="there is no NVIDIA driver here")
FAILED = Unread(why="no permission")


def lines(facts: HostFacts, check: str) -> list[Finding]:
    """Return the lines of one check."""
    return [finding for finding in diagnose(facts) if finding.check == check]


def line(facts: HostFacts, check: str) -> Finding:
    """Return the one line of a check that is not ok, or else the first one."""
    found = lines(facts, check)
    bad = [finding for finding in found if finding.level is not Level.OK]
    assert len(bad) <= 1
    return (bad or found)[0]


def with_gpu(**changes: Any) -> HostFacts:
    """Return the healthy host with a second GPU that is otherwise."""
    return replace(HOST, gpus=(GPU, replace(HOST.gpus[1], **changes)))


def test_a_healthy_host_has_no_findings() -> None:
    findings = diagnose(HOST)
    assert [f for f in findings if f.level is not Level.OK or f.do] == []
    assert verdict(findings) is Level.OK
    assert len({finding.check for finding in findings}) == 24


@pytest.mark.parametrize(
    ("facts", "check", "level", "word"),
    [
        (replace(HOST, driver=NO_DRIVER), "driver", "problem", "--simulate 2"),
        (replace(HOST, driver=NO_DRIVER), "driver", "problem", "exit with code 5"),
        (
            replace(HOST, driver=DriverFacts(fault=Fault(call="nvmlInit", how="hung"))),
            "driver",
            "problem",
            "nvmlInit hung",
        ),
        (replace(HOST, driver=DriverFacts()), "driver", "warning", "version"),
        (replace(HOST, driver=DriverFacts(version="what")), "driver", "warning", "'what'"),
        (
            replace(HOST, driver=DriverFacts(version="450.51.06")),
            "driver",
            "problem",
            "lacks the process lists",
        ),
        (
            replace(HOST, driver=DriverFacts(version="450.66")),
            "driver",
            "warning",
            "older interface",
        ),
        (
            replace(HOST, driver=DriverFacts(version="510.38.9")),
            "driver",
            "warning",
            "older interface",
        ),
        (replace(HOST, driver=DriverFacts(version="510.39")), "driver", "ok", "510.39"),
        (replace(HOST, torch=None), "torch", "problem", "not installed"),
        (
            replace(HOST, torch=TorchBuild(version="2.13", cuda=None, without=True)),
            "torch",
            "problem",
            "without CUDA",
        ),
        (
            replace(HOST, torch=TorchBuild(version=None, cuda=None, without=False)),
            "torch",
            "warning",
            "unknown CUDA",
        ),
        (replace(HOST, hidden="a container?"), "PID namespace", "warning", "detected by memory"),
        (HOST, "PID namespace", "ok", "by the process list and by memory"),
        (replace(HOST, no_inotify="none left"), "inotify", "warning", "none left"),
        (
            replace(HOST, mps=((7, "nvidia-cuda-mps-control"),)),
            "MPS",
            "ok",
            "nvidia-cuda-mps-control (pid 7)",
        ),
        (replace(HOST, hidden="a container?"), "MPS", "ok", "as far as processes are shown here"),
        (
            replace(HOST, held=(Held(uuid="GPU-1", holder="pid 5 of uid 0"),)),
            "other sentinels",
            "warning",
            "pid 5 of uid 0",
        ),
        (
            replace(HOST, held=(Held(uuid="GPU-1", unusable="the lock cannot be opened"),)),
            "other sentinels",
            "problem",
            "mode 0666",
        ),
        (replace(HOST, nice=1), "niceness", "warning", "without nice"),
        (replace(HOST, nice=-5), "niceness", "ok", "-5"),
        (replace(HOST, policy="SCHED_IDLE"), "scheduling", "warning", "SCHED_IDLE"),
        (replace(HOST, policy="SCHED_BATCH"), "scheduling", "warning", "SCHED_BATCH"),
        (replace(HOST, policy="SCHED_RR"), "scheduling", "ok", "SCHED_RR"),
        (
            replace(HOST, quota=Quota(cpus=0.5, where="/sys/fs/cgroup/a")),
            "CPU quota",
            "warning",
            "0.5 processors, by /sys/fs/cgroup/a",
        ),
        (replace(HOST, room=None), "host memory", "warning", "unknown"),
        (
            replace(HOST, room=Room(available=2 * RESIDENT, where="x")),
            "host memory",
            "ok",
            "enough for 2 GPUs",
        ),
        (
            replace(HOST, room=Room(available=2 * RESIDENT - 1, where="x")),
            "host memory",
            "warning",
            "--max-gpus 1",
        ),
        (
            replace(HOST, room=Room(available=RESIDENT - 1, where="x")),
            "host memory",
            "problem",
            "not enough for a single one",
        ),
        (replace(HOST, gpus=(), cared_for=0), "GPUs", "problem", "lists none"),
        (replace(HOST, cared_for=0), "GPUs", "problem", "none of them visible"),
        (replace(HOST, cared_for=1), "GPUs", "ok", "1 of 2"),
    ],
)
def test_each_fact_about_a_host_produces_its_line(
    facts: HostFacts, check: str, level: str, word: str
) -> None:
    finding = line(facts, check)
    assert finding.level == level
    assert word in f"{finding.found} / {finding.means} / {finding.do}"
    assert bool(finding.do) == (finding.level is not Level.OK)


@pytest.mark.parametrize(
    ("changes", "check", "level", "word"),
    [
        (
            {"fault": Fault(call="nvmlDeviceGetMigMode", how="hung")},
            "answers",
            "problem",
            "MigMode",
        ),
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
        (
            {"remapped": Unread(), "retiring": (1,)},
            "repairs of memory",
            "problem",
            "retirement of a page is pending",
        ),
        ({"remapped": Unread(), "retiring": (0,)}, "repairs of memory", "ok", "no page"),
    ],
)
def test_each_fact_about_a_gpu_produces_its_line(
    changes: dict[str, Any], check: str, level: str, word: str
) -> None:
    *_, finding = lines(with_gpu(**changes), check)
    assert (finding.level, finding.gpu, finding.index) == (level, "GPU-1", 1)
    assert word in f"{finding.found} / {finding.means} / {finding.do}"
    assert bool(finding.do) == (finding.level is not Level.OK)
    first, *_ = lines(with_gpu(**changes), check)
    assert (first.level, first.gpu) == (Level.OK, "GPU-0")


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
def test_another_module_in_the_place_of_the_binding_is_a_problem(
    bindings: Bindings, word: str
) -> None:
    finding = line(replace(HOST, bindings=bindings), "binding")
    assert finding.level is Level.PROBLEM
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
    ("first", "second", "level"),
    [
        ({}, {}, "ok"),
        ({"unusable": "it cannot be written"}, {}, "ok"),
        ({"missing": True}, {"missing": True}, "ok"),
        ({"shared": False}, {}, "ok"),
        ({"shared": False}, {"private": True}, "warning"),
        ({"unusable": "no"}, {"shared": False}, "warning"),
        ({"unusable": "no"}, {"private": True, "missing": True}, "warning"),
        ({"unusable": "no"}, {"unusable": "no"}, "problem"),
    ],
)
def test_a_lock_folder_must_be_writable_by_all_users(
    first: dict[str, Any], second: dict[str, Any], level: str
) -> None:
    folders = (Folder(path="/run", **first), Folder(path="/tmp", **second))  # noqa: S108
    assert line(replace(HOST, folders=folders), "lock folders").level == level


def test_without_a_driver_all_other_lines_about_the_host_are_present() -> None:
    there = {finding.check for finding in diagnose(HOST) if finding.index is None}
    facts = replace(HOST, driver=NO_DRIVER, gpus=(), cared_for=0)
    assert {finding.check for finding in diagnose(facts)} == there - {"GPUs"}


def test_missing_values_of_an_unresponsive_gpu_are_not_findings() -> None:
    silent = GpuFacts(index=1, uuid="GPU-1", fault=Fault(call="nvmlDeviceGetMigMode", how="hung"))
    facts = replace(HOST, gpus=(GPU, silent))
    assert [f.check for f in diagnose(facts) if f.index == 1] == ["answers"]


def test_a_simulated_host_needs_neither_driver_nor_cuda() -> None:
    facts = replace(
        HOST,
        driver=DriverFacts(simulated=True),
        gpus=(GpuFacts(index=0, uuid="GPU-0", node="/tmp/node"),),  # noqa: S108
        bindings=Bindings(version=None),
        torch=TorchBuild(version="2.13.0+cpu", cuda=None, without=True),
    )
    assert verdict(diagnose(facts)) is Level.OK


def test_the_verdict_is_the_worst_line() -> None:
    assert verdict(diagnose(replace(HOST, nice=5))) is Level.WARNING
    assert verdict(diagnose(replace(HOST, nice=5, torch=None))) is Level.PROBLEM
    assert verdict([]) is Level.OK


def test_gpus_with_the_same_result_share_a_line() -> None:
    gpus = tuple(
        replace(GPU, index=i, uuid=f"GPU-{i}", persistence=(int(i != 3),)) for i in range(6)
    )
    text = list(page(diagnose(replace(HOST, gpus=gpus, cared_for=6)), colour=False))
    modes = [said for said in text if said[9:].startswith("persistence mode")]
    assert [mode[27:].partition(": ")[0] for mode in modes] == ["GPU 0-2, 4-5", "GPU 3"]
    assert [mode[:7].strip() for mode in modes] == ["ok", "warning"]
    assert ": 1 warning, " in text[-1]
    assert len(text) < 50
    assert max(map(len, text)) <= 100
    narrow = page(diagnose(HOST), colour=False, width=70)
    assert max(map(len, narrow)) <= 70


def test_the_report_has_a_line_for_a_held_gpu_that_the_driver_does_not_list() -> None:
    facts = replace(HOST, held=(Held(uuid="GPU-9", holder="pid 5"),))
    assert any("GPU-9: held by pid 5" in said for said in page(diagnose(facts), colour=False))


def test_only_the_level_words_are_coloured() -> None:
    plain = "\n".join(page(diagnose(with_gpu(mig=(1, 1))), colour=False))
    coloured = "\n".join(page(diagnose(with_gpu(mig=(1, 1))), colour=True))
    assert "\x1b[33mwarning" in coloured
    assert "\x1b" not in plain
    assert click.unstyle(coloured) == plain


def test_the_json_report_identifies_gpus_by_uuid() -> None:
    body = as_object(diagnose(with_gpu(display=(1,))))
    assert body["verdict"] == "warning"
    assert isinstance(body["lines"], list)
    (display,) = (row for row in body["lines"] if row["level"] == "warning")
    assert display == {
        "check": "display",
        "gpu": "GPU-1",
        "level": "warning",
        "found": "attached",
        "means": "this GPU is not occupied, for the user of the display",
        "do": "To occupy it: --yield-to compute",
    }
