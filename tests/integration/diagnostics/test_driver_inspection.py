"""The doctor inspects a fake driver that works, fails, hangs or crashes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.diagnostics.doctor_facts import DriverFacts, Unread
from sentinel.diagnostics.doctor_inspection import DriverInspection, inspect_driver
from sentinel.diagnostics.one_shot import Timeouts
from tests.harness.doctor_harness import doctor, rows

COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with")

#: A driver with three GPUs. Lines of the file named by FAKE_NVML_PLAN change one answer each: the
#: function, the GPU's index or -1, an error (-1 hangs, -2 crashes the process), and a value.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int planned(const char *function, int gpu, long *value) {
    char name[80]; int where, code, found = 0; long other;
    const char *path = getenv("FAKE_NVML_PLAN");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    while (!found && fscanf(file, "%79s %d %d %ld", name, &where, &code, &other) == 4)
        found = !strcmp(name, function) && where == gpu;
    fclose(file);
    if (!found) return 0;
    if (code == -1) for (;;) pause();
    if (code == -2) abort();
    *value = other;
    return code;
}
#define ANSWER(normal) long value = (normal); \
    int code = planned(__func__, at(device), &value); if (code) return code
static int at(void *device) { return (int)(long)device - 1; }

int nvmlInitWithFlags(unsigned flags) { void *device = 0; ANSWER(0); return 0; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    void *device = 0; ANSWER(580); snprintf(text, size, "%ld.159", value); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) {
    void *device = 0; ANSWER(13000); *version = value; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    void *device = 0; ANSWER(3); *count = value; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    void *device = (void *)(long)(index + 1); ANSWER(0); *handle = device; return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    ANSWER(0); snprintf(text, size, "GPU-%d", at(device)); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    snprintf(text, size, "NVIDIA H200"); return 0; }
#define NUMBER(name, type, normal) int name(void *device, type *out) { \
    ANSWER(normal); *out = value; return 0; }
#define PAIR(name, normal) int name(void *device, unsigned *now, unsigned *later) { \
    ANSWER(normal); *now = *later = value; return 0; }
NUMBER(nvmlDeviceGetMinorNumber, unsigned, 200 + at(device))
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, 1)
NUMBER(nvmlDeviceGetComputeMode, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, 0)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, 0)
PAIR(nvmlDeviceGetMigMode, 0)
PAIR(nvmlDeviceGetEccMode, 1)
int nvmlDeviceGetTotalEccErrors(
    void *device, unsigned type, unsigned since, unsigned long long *count) {
    ANSWER(0); if (type != 1) return 2; *count = since ? 5 + value : value; return 0; }
int nvmlDeviceGetRemappedRows(
    void *device, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    ANSWER(0); *c = 1; *u = 2; *pending = value; *failed = 0; return 0; }
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;
#define LIST(name, normal) int name(void *device, unsigned *count, process *out) { \
    ANSWER(normal); unsigned room = *count; *count = value > 0; \
    if (!value) return 0; if (!room) return 7; \
    memset(out, 0, sizeof *out); out->pid = value; return 0; }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 77)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 0)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the fake driver; return its folder."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(LIBRARY)
    assert COMPILER is not None
    target = str(folder / "libnvidia-ml.so.1")
    command = [COMPILER, "-shared", "-fPIC", "-w", "-o", target, str(folder / "driver.c")]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def asked(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that inspects the fake driver with a plan of changed results."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML_PLAN", str(tmp_path / "plan"))

    def ask(plan: str = "", call: float = 30.0) -> DriverInspection:
        (tmp_path / "plan").write_text(plan)
        return inspect_driver(Timeouts(opening=30.0, call=call))

    return ask


@needs_compiler
def test_a_working_driver_is_inspected_for_all_gpus(asked: Any) -> None:
    found = asked()
    assert found.driver == DriverFacts(version="580.159", cuda=(13000,))
    assert not found.stuck
    assert [(gpu.index, gpu.uuid, gpu.node) for gpu in found.gpus] == [
        (0, "GPU-0", "/dev/nvidia200"),
        (1, "GPU-1", "/dev/nvidia201"),
        (2, "GPU-2", "/dev/nvidia202"),
    ]
    gpu = found.gpus[2]
    assert (gpu.persistence, gpu.compute_mode, gpu.display) == ((1,), (0,), (0,))
    assert (gpu.mig, gpu.ecc, gpu.retiring) == ((0, 0), (1, 1), (0,))
    assert (gpu.volatile, gpu.aggregate, gpu.remapped) == ((0,), (5,), (1, 2, 0, 0))
    assert (gpu.compute, gpu.mps) == ((77,), ())
    assert (gpu.lost, gpu.name) == (None, "NVIDIA H200")


@needs_compiler
def test_an_unsupported_call_has_no_value_and_a_failed_call_has_a_reason(asked: Any) -> None:
    plan = """
        nvmlDeviceGetTotalEccErrors 0 3 0
        nvmlDeviceGetRemappedRows 0 13 0
        nvmlDeviceGetEccMode 0 4 0
        nvmlDeviceGetMPSComputeRunningProcesses_v3 0 3 0
        nvmlDeviceGetComputeRunningProcesses_v3 0 3 0
        nvmlSystemGetCudaDriverVersion -1 13 0
        nvmlDeviceGetTotalEccErrors 1 0 2
        nvmlDeviceGetMPSComputeRunningProcesses_v3 1 0 88
    """
    found = asked(plan)
    first, second, _ = found.gpus
    assert found.driver.cuda == Unread()
    assert first.volatile == first.aggregate == first.remapped == Unread()
    assert "no permission" in first.ecc.why
    assert first.compute == Unread()
    assert first.mps == ()
    assert (second.volatile, second.aggregate, second.mps) == ((2,), (7,), (88,))


@needs_compiler
@pytest.mark.parametrize(
    ("code", "how"),
    [(-1, "did not return within 1 s"), (-2, "crashed the process (SIGABRT)")],
)
def test_a_call_that_does_not_return_costs_only_the_results_of_its_gpu(
    asked: Any, code: int, how: str
) -> None:
    found = asked(f"nvmlDeviceGetEccMode 1 {code} 0\n", call=1.0)
    first, second, third = found.gpus
    assert (second.uuid, second.lost) == ("GPU-1", f"nvmlDeviceGetEccMode {how}")
    for gpu in (first, third):
        assert (gpu.lost, gpu.remapped, gpu.compute) == (None, (1, 2, 0, 0), (77,))
    assert found.driver == DriverFacts(version="580.159", cuda=(13000,))
    assert not found.stuck


@needs_compiler
def test_two_gpus_that_hang_are_both_named(asked: Any) -> None:
    plan = "nvmlDeviceGetUUID 0 -1 0\nnvmlDeviceGetMinorNumber 2 -2 0\n"
    first, second, third = asked(plan, call=1.0).gpus
    assert first.lost.startswith("nvmlDeviceGetUUID ")
    assert first.uuid is None
    assert second.lost is None
    assert third.lost.startswith("nvmlDeviceGetMinorNumber ")


@needs_compiler
@pytest.mark.parametrize(
    "plan", ["nvmlDeviceGetHandleByIndex_v2 1 15 0", "nvmlDeviceGetMigMode 1 15 0"]
)
def test_no_more_calls_are_made_for_a_lost_gpu(asked: Any, plan: str) -> None:
    first, second, third = asked(plan).gpus
    assert "fell off the bus" in second.lost
    assert second.ecc == second.compute == Unread()
    assert first.ecc == third.ecc == (1, 1)


@needs_compiler
@pytest.mark.parametrize(
    ("plan", "word"),
    [
        ("nvmlInitWithFlags -1 18 0", "of different versions"),
        ("nvmlInitWithFlags -1 9 0", "modprobe nvidia"),
        ("nvmlDeviceGetCount_v2 -1 999 0", "unknown error"),
    ],
)
def test_a_driver_that_fails_as_a_whole_has_a_reason(asked: Any, plan: str, word: str) -> None:
    found = asked(plan)
    assert word in found.driver.missing
    assert found.gpus == ()


@pytest.mark.long
@needs_compiler
def test_a_driver_that_hangs_at_its_start_is_named_and_its_process_ended(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML_PLAN", str(tmp_path / "plan"))
    (tmp_path / "plan").write_text("nvmlInitWithFlags -1 -1 0")
    before = psutil.Process().children()
    found = inspect_driver(Timeouts(opening=5.0, call=1.0))
    assert found.driver.missing == "nvmlInit did not return within 5 s"
    # multiprocessing keeps its resource tracker.
    left = [child for child in psutil.Process().children() if child not in before]
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.long
@needs_compiler
def test_the_command_examines_the_gpus_that_are_visible(library: Path, tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("nvmlDeviceGetRemappedRows 2 0 1\n")
    variables = {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_PLAN": str(tmp_path / "plan"),
        "CUDA_VISIBLE_DEVICES": "2,0",
    }
    code, output, errors = doctor("--json", **variables)
    assert (code, errors) == (2, "")
    found = rows(output)
    assert found["driver"]["level"] == "ok"
    assert found["GPUs"]["found"] == "2 of 3"
    assert found["repairs of memory"] == {
        "check": "repairs of memory",
        "gpu": "GPU-2",
        "level": "problem",
        "found": "a remap of a row is pending",
        "means": "memory known to be bad stays in use until the GPU is reset",
        "do": "Free the GPU and run `nvidia-smi --gpu-reset`, or reboot.",
    }
    assert found["device node"]["found"] == "/dev/nvidia202 cannot be watched: " + os.strerror(2)
    code, output, _ = doctor(**variables)
    assert code == 2
    assert "problem  repairs of memory GPU 2: a remap of a row is pending" in output
    assert "\x1b" not in output
