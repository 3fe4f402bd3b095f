"""A library that moves the wall clock of real processes while they run.

It is preloaded. JUMPING_CLOCK names a file with one 64-bit number: the seconds that are added to
the time of day. The file is mapped, so that a change takes effect at once.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tests.harness.fake_nvml import build

_LIBRARY = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *added;

__attribute__((constructor)) static void map_the_number(void) {
    const char *path = getenv("JUMPING_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *added, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) added = page;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && added && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *added;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec read;
    clock_gettime(CLOCK_REALTIME, &read);
    now->tv_sec = read.tv_sec;
    now->tv_usec = read.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *result) {
    struct timespec read;
    clock_gettime(CLOCK_REALTIME, &read);
    if (result) *result = read.tv_sec;
    return read.tv_sec;
}
"""


class JumpingClock:
    """The preloaded library and the seconds that it adds.

    Args:
        folder: The folder of the file with the number.
        shared: A folder for the library, which is built once.
    """

    def __init__(self, folder: Path, shared: Path) -> None:
        library = build(shared, source_text=_LIBRARY, name="libjumpingclock.so")
        self._file = folder / "clock"
        self._file.write_bytes(struct.pack("q", 0))
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library / "libjumpingclock.so"),
            "JUMPING_CLOCK": str(self._file),
        }

    def jump(self, to: datetime) -> None:
        """Set the wall clock; it goes on from there."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", int(to.timestamp() - time.time())))
