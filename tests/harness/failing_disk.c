/* Makes writes to chosen files fail or take long: the plan is described in preloaded.py. */
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
