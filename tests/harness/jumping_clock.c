/* Adds seconds to the wall clock: JUMPING_CLOCK names a file with one 64-bit number. The file is
 * mapped, so that a change takes effect at once. */
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
