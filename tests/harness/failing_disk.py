"""A library that makes writes to chosen files fail or take long in a real process.

It is preloaded. FAILING_DISK names a file of lines ``CALL PART EFFECT``: the call (write, fsync or
rename), a part of the path, and the number of the error, or ``slow``. Each call reads the file, so
it can change while the process runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.harness.fake_nvml import build

#: How long a slow call takes, in seconds: longer than any write is waited for.
SLOW_S = 8

_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(const char *call, const char *path) {
    char name[16], part[PATH_MAX], effect[16];
    const char *plan = getenv("FAILING_DISK");
    FILE *file = plan ? fopen(plan, "re") : NULL;
    int found = 0;
    if (!file) return 0;
    while (!found && fscanf(file, "%15s %4095s %15s", name, part, effect) == 3)
        found = !strcmp(name, call) && strstr(path, part);
    fclose(file);
    if (!found) return 0;
    if (!strcmp(effect, "slow")) { sleep(SLOW_S); return 0; }
    errno = atoi(effect);
    return 1;
}
static int fails_on(const char *call, int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(call, path);
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
ssize_t write(int file, const void *data, size_t size) {
    return fails_on("write", file) ? -1 : REAL(write)(file, data, size); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return fails_on("write", file) ? -1 : REAL(pwrite64)(file, data, size, at); }
int fsync(int file) { return fails_on("fsync", file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails_on("fsync", file) ? -1 : REAL(fdatasync)(file); }
int rename(const char *old, const char *new) {
    return fails("rename", new) ? -1 : REAL(rename)(old, new); }
"""


class FailingDisk:
    """The preloaded library and its plan.

    Args:
        folder: The folder of the plan.
        shared: A folder for the library, which is built once.
    """

    def __init__(self, folder: Path, shared: Path) -> None:
        flags = (f"-DSLOW_S={SLOW_S}", "-ldl")
        library = build(shared, *flags, source_text=_LIBRARY, name="libfailingdisk.so")
        self._plan = folder / "disk.plan"
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library / "libfailingdisk.so"),
            "FAILING_DISK": str(self._plan),
        }
        self.set()

    def set(self, *lines: str) -> None:
        """Set what fails from now on."""
        draft = self._plan.with_suffix(".draft")
        draft.write_text("\n".join([*lines, ""]))
        draft.replace(self._plan)
