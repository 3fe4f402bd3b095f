"""The real binding over a pretended libnvidia-ml: structs, lists, errors and old drivers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a library with")

FIRST = "GPU-11111111-0000-0000-0000-000000000000"
SECOND = "GPU-22222222-0000-0000-0000-000000000000"

#: A driver with two GPUs. The file named by FAKE_NVML_FAULTS has lines of a function's name and the
#: error that it returns; ``stale`` is an error for handles that were not looked up by UUID. With
#: -DOLD it is a driver of the year 2020, without the second memory struct and the third lists.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef unsigned long long u64;
typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } process;
static const u64 GIB = 1ull << 30, UNKNOWN = ~0ull;
static const char *uuids[] = {"GPU-11111111-0000-0000-0000-000000000000",
                              "GPU-22222222-0000-0000-0000-000000000000"};

static int fault(const char *function) {
    char name[80]; int code;
    const char *path = getenv("FAKE_NVML_FAULTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    while (fscanf(file, "%79s %d", name, &code) == 2)
        if (!strcmp(name, function)) { fclose(file); return code; }
    fclose(file);
    return 0;
}
#define TRY(name) do { int code = fault(name); if (code) return code; } while (0)
static int at(void *handle) { return ((long)handle - 1) % 100; }
static int use(const char *function, void *handle) {
    if ((long)handle < 100) TRY("stale");
    return fault(function);
}
#define USE(name) do { int code = use(name, device); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { TRY("init"); return 0; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    TRY("version"); snprintf(text, size, "580.159"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { TRY("count"); *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    TRY(index ? "handle1" : "handle0"); *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (int i = 0; i < 2; i++)
        if (!strcmp(uuid, uuids[i])) { *device = (void *)(long)(i + 101); return 0; }
    return 6; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "%s", uuids[at(device)]); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    TRY("name"); snprintf(text, size, at(device) ? "NVIDIA \xff\xfe" : "NVIDIA H200"); return 0; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
int nvmlDeviceGetPciInfo_v3(void *device, pci *info) {
    snprintf(info->bus_id, 32, "00000000:%02X:00.0", 10 + at(device)); return 0; }
typedef struct { u64 total, free, used; } memory_v1;
int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *m) {
    USE("memory"); m->total = 16 * GIB; m->used = 3 * GIB; m->free = 13 * GIB; return 0; }
static int list(unsigned *count, process *out, const process *all, unsigned n) {
    unsigned room = *count;
    *count = n;
    if (n == 0) return 0;
    if (room < n) return 7;
    memcpy(out, all, n * sizeof *all);
    return 0;
}
static int compute(void *device, unsigned *count, process *out) {
    process all[] = {{100, GIB, -1, -1}, {200, UNKNOWN, -1, -1}, {300, 2, -1, -1},
                     {400, 3, -1, -1}, {100, 2 * GIB, -1, -1}};
    USE("compute"); return list(count, out, all, at(device) ? 0 : 5); }
static int graphics(void *device, unsigned *count, process *out) {
    process all[] = {{400, 3, -1, -1}, {500, 4, -1, -1}};
    USE("graphics"); return list(count, out, all, at(device) ? 0 : 2); }
static int mps(void *device, unsigned *count, process *out) {
    process all[] = {{300, UNKNOWN, -1, -1}};
    USE("mps"); return list(count, out, all, at(device) ? 0 : 1); }
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(void *d, unsigned *n, process *p) {
    return compute(d, n, p); }
#else
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *m) {
    USE("memory"); if (m->version != 0x02000028) return 25;
    m->total = 16 * GIB; m->reserved = GIB; m->used = 2 * GIB; m->free = 13 * GIB; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process *p) {
    return compute(d, n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, process *p) {
    return graphics(d, n, p); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *d, unsigned *n, process *p) {
    return mps(d, n, p); }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    USE("mig"); *now = at(device); *pending = 0; return 0; }
#endif
int nvmlDeviceGetComputeMode(void *device, unsigned *mode) {
    USE("mode"); *mode = at(device) ? 3 : 0; return 0; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    USE("minor"); *minor = 7 - at(device); return 0; }
"""

#: Runs in a process that loads the library, and prints each result or error as JSON.
SCRIPT = """
import dataclasses, json, sys
from pathlib import Path
from sentinel.gpu.driver import DriverError
from sentinel.gpu.nvml import NvmlDriver

driver = NvmlDriver()
faults = Path(sys.argv[1])
said = []
for call, argument, planted in json.loads(sys.argv[2]):
    faults.write_text(planted)
    try:
        answer = getattr(driver, call)(*([argument] if argument else []))
    except DriverError as error:
        cause = type(error.__cause__).__name__
        answer = dict(
            error=type(error).__name__, code=error.code, reason=error.reason, cause=cause
        )
    said.append(answer)
print(json.dumps(said, default=lambda o: vars(o) if dataclasses.is_dataclass(o) else str(o)))
"""

Step = tuple[str, str | None, str]


@pytest.fixture(scope="module", params=[], ids=[])
def unused() -> None:
    """Nothing."""


def build(folder: Path, *flags: str) -> Path:
    """Compile the pretended library into ``folder``."""
    folder.mkdir()
    source = folder / "nvml.c"
    source.write_text(LIBRARY)
    assert COMPILER is not None
    target = str(folder / "libnvidia-ml.so.1")
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-w", *flags, "-o", target, str(source)], check=True
    )
    return folder
