/* A fake libnvidia-ml.so.1: a recent driver, controlled by a file, as fake_nvml.py describes.
 *
 * With -DOLD it is a driver of the year 2020, without the second memory struct and the third lists.
 * FAKE_NVML names the file. If FAKE_NVML_WORLD names a registry of simulated GPUs, memory and
 * processes are those of its living members. With -DCOUNTERS it has the calls that `sentinel check`
 * and the doctor make, too.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define MAX_ITEMS 16
#define TEXT_SIZE 128
typedef unsigned long long u64;
typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } process;
static const u64 GIB = 1ull << 30, UNKNOWN = ~0ull;

/* --- the file ----------------------------------------------------------------------------- */

/* Read the word of the n-th line with this name; empty if there is none. */
static int line(const char *name, int n, char *word) {
    char here[TEXT_SIZE];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;
    *word = 0;
    if (!file) return 0;
    while (!found && fscanf(file, "%127s %127s", here, word) == 2)
        if (!strcmp(name, here) && n-- == 0) found = 1;
    fclose(file);
    if (!found) *word = 0;
    return found;
}
static int for_gpu(const char *name, const char *uuid, int n, char *word) {
    char whole[2 * TEXT_SIZE];
    snprintf(whole, sizeof whole, "%s@%s", name, uuid);
    return line(whole, n, word);
}
static int obey(const char *word) {
    if (!strcmp(word, "hang")) for (;;) pause();
    if (!strcmp(word, "crash")) abort();
    if (!strcmp(word, "segfault")) *(volatile int *)8 = 1;
    return atoi(word);
}
static int fault(const char *function) {
    char word[TEXT_SIZE];
    return line(function, 0, word) ? obey(word) : 0;
}

/* --- GPUs: a handle refers to one of these permanently ---------------------------------------- */

static char known[MAX_ITEMS][TEXT_SIZE];
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static int number_of(const char *uuid) {
    int i;
    pthread_mutex_lock(&known_lock);
    for (i = 0; i < MAX_ITEMS - 1 && *known[i] && strcmp(known[i], uuid); i++) {}
    strcpy(known[i], uuid);
    pthread_mutex_unlock(&known_lock);
    return i;
}
static int listed(int index, char *uuid) {
    static const char *default_uuids[] = {"GPU-11111111-0000-0000-0000-000000000000",
                                  "GPU-22222222-0000-0000-0000-000000000000"};
    if (line("gpu", index, uuid)) return 1;
    if (index > 1 || line("gpu", 0, uuid)) return 0;
    strcpy(uuid, default_uuids[index]);
    return 1;
}
static int where(const char *wanted) {
    char uuid[TEXT_SIZE];
    for (int index = 0; listed(index, uuid); index++)
        if (!strcmp(uuid, wanted)) return index;
    return -1;
}
static int at(void *handle) { return ((long)handle - 1) % 100; }
static const char *name_of(void *handle) { return known[at(handle)]; }
static int fault_of(const char *function, void *handle) {
    char word[TEXT_SIZE];
    if (where(name_of(handle)) < 0) return line("left", 0, word) ? obey(word) : 15;
    if ((long)handle < 100 && line("stale", 0, word)) return obey(word);
    if (for_gpu(function, name_of(handle), 0, word)) return obey(word);
    return fault(function);
}
#define CHECK(name) do { int code = fault(name); if (code) return code; } while (0)
#define CHECK_GPU(name) do { int code = fault_of(name, device); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { CHECK("init"); return 0; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    char word[TEXT_SIZE];
    CHECK("version");
    if (line("driver", 0, word)) snprintf(text, size, "%s", word);
    else snprintf(text, size, "%s", line("undecodable", 0, word) ? "\xff\xfe" : "580.159");
    return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    char uuid[TEXT_SIZE];
    CHECK("count"); for (*count = 0; listed(*count, uuid); ++*count) {} return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    char uuid[TEXT_SIZE], word[TEXT_SIZE];
    CHECK(index ? "handle1" : "handle0");
    if (!listed(index, uuid)) return 2;
    if (for_gpu("handle", uuid, 0, word)) return obey(word);
    *device = (void *)(long)(number_of(uuid) + 1); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    CHECK("byuuid");
    if (where(uuid) < 0) return 6;
    *device = (void *)(long)(number_of(uuid) + 101); return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    CHECK_GPU("uuid"); snprintf(text, size, "%s", name_of(device)); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    CHECK_GPU("name");
    snprintf(text, size, at(device) ? "NVIDIA \xff\xfe" : "NVIDIA H200"); return 0; }
typedef struct { char legacy[16]; unsigned numbers[5]; char bus_id[32]; } pci;
int nvmlDeviceGetPciInfo_v3(void *device, pci *info) {
    CHECK_GPU("bus"); snprintf(info->bus_id, 32, "00000000:%02X:00.0", 10 + at(device)); return 0; }

/* --- processes ------------------------------------------------------------------------------- */

/* Find the PID that holds a lock: 0 if it is free or its PID is not visible in this namespace. */
static int holder_pid(const char *path, int *held) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int file = open(path, O_RDONLY);
    *held = 0;
    if (file < 0) return 0;
    if (fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) *held = 1;
    close(file);
    return *held ? lock.l_pid : 0;
}
/* What a member states, as in sentinel/host/simulation.py. */
typedef struct {
    long long memory; double listed_at, worked_s, works_until; char in_call; double died_at;
} share;
/* Count the listed members of the registry; `used` is the memory of all living members. */
static int members(const char *uuid, process *out, u64 *used) {
    char path[1024];
    share stated;
    struct timespec now;
    struct dirent *entry;
    int n = 0, pid, held;
    *used = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML_WORLD"), uuid);
    DIR *folder = opendir(path);
    while (folder && (entry = readdir(folder))) {
        size_t length = strlen(entry->d_name);
        if (*entry->d_name == '.' || length < 6 || strcmp(entry->d_name + length - 6, ".share"))
            continue;
        snprintf(path, sizeof path, "%s/%s/%s", getenv("FAKE_NVML_WORLD"), uuid, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        size_t whole = fread(&stated, sizeof stated, 1, file);
        fclose(file);
        strcpy(path + strlen(path) - 6, ".lock");
        pid = holder_pid(path, &held);
        if (!whole || !held || !stated.memory) continue;
        *used += stated.memory;
        if (stated.listed_at > now.tv_sec + now.tv_nsec / 1e9 || n == MAX_ITEMS) continue;
        process one = {pid, stated.memory, -1, -1};
        if (pid) out[n++] = one;
    }
    if (folder) closedir(folder);
    return n;
}

/* --- memory ----------------------------------------------------------------------------------- */

typedef struct { u64 total, reserved, used, free; } amounts;
static amounts memory_of(void *device) {
    amounts m = {16 * GIB, GIB, 2 * GIB, 13 * GIB};
    process ignored[MAX_ITEMS];
    char word[TEXT_SIZE];
    if (getenv("FAKE_NVML_WORLD")) {
        m.reserved = 0;
        members(name_of(device), ignored, &m.used);
        m.free = m.total - m.used;
    }
    if (for_gpu("used", name_of(device), 0, word)) m.used = strtoull(word, NULL, 10);
    if (for_gpu("total", name_of(device), 0, word)) m.total = strtoull(word, NULL, 10);
    return m;
}
typedef struct { u64 total, free, used; } memory_v1;
int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *m) {
    CHECK_GPU("memory"); CHECK_GPU("memory_v1");
    amounts all = memory_of(device);
    m->total = all.total; m->used = all.used + all.reserved; m->free = all.free; return 0; }

/* --- processes -------------------------------------------------------------------------------- */

static int list(unsigned *count, process *out, const process *all, unsigned n) {
    unsigned room = *count;
    *count = n;
    if (n == 0) return 0;
    if (room < n) return 7;
    memcpy(out, all, n * sizeof *all);
    return 0;
}
static int compute(void *device, unsigned *count, process *out) {
    static int grown;
    process all[3 * MAX_ITEMS] = {{100, GIB, -1, -1}, {200, UNKNOWN, -1, -1}, {300, 2, -1, -1},
                             {400, 3, -1, -1}, {100, 2 * GIB, -1, -1}};
    unsigned n = at(device) ? 0 : 5;
    u64 ignored;
    char word[TEXT_SIZE];
    CHECK_GPU("compute");
    if (for_gpu("many", name_of(device), 0, word)) {
        unsigned room = *count;
        *count = n = atoi(word);
        for (unsigned i = 0; i < n && room >= n; i++) {
            process one = {1000000 + i, UNKNOWN, -1, -1};
            out[i] = one;
        }
        return room < n ? 7 : 0;
    }
    if (getenv("FAKE_NVML_WORLD")) n = members(name_of(device), all, &ignored);
    for (int i = 0; i < MAX_ITEMS && for_gpu("pid", name_of(device), i, word); i++) {
        process extra = {strtoul(word, NULL, 10), UNKNOWN, -1, -1};
        all[n++] = extra;
    }
    if (*count && line("grow", 0, word) && grown < atoi(word)) { grown++; return 7; }
    if (*count && line("overflow", 0, word)) { *count += 50; return 0; }
    return list(count, out, all, n); }
static int graphics(void *device, unsigned *count, process *out) {
    process all[] = {{400, 3, -1, -1}, {500, 4, -1, -1}};
    CHECK_GPU("graphics");
    return list(count, out, all, at(device) || getenv("FAKE_NVML_WORLD") ? 0 : 2); }
static int mps(void *device, unsigned *count, process *out) {
    process all[] = {{300, UNKNOWN, -1, -1}};
    CHECK_GPU("mps");
    return list(count, out, all, at(device) || getenv("FAKE_NVML_WORLD") ? 0 : 1); }
int nvmlDeviceGetComputeRunningProcesses_v2(void *d, unsigned *n, process *p) {
    return compute(d, n, p); }
#ifndef OLD
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *m) {
    CHECK_GPU("memory"); CHECK_GPU("memory_v2"); if (m->version != 0x02000028) return 25;
    amounts all = memory_of(device);
    m->total = all.total; m->reserved = all.reserved; m->used = all.used; m->free = all.free;
    return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, process *p) {
    CHECK_GPU("compute_v3"); return compute(device, n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, process *p) {
    return graphics(d, n, p); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *d, unsigned *n, process *p) {
    return mps(d, n, p); }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    CHECK_GPU("mig"); *now = at(device) && !getenv("FAKE_NVML_WORLD"); *pending = 0; return 0; }
#endif

/* --- events ----------------------------------------------------------------------------------- */

#ifndef OLD
/* Like NVML, a set delivers the events after the registration of a GPU; here, all lines of it. */
typedef struct { void *devices[MAX_ITEMS]; int delivered[MAX_ITEMS]; int count; } event_set;
typedef struct { void *device; u64 type, data; unsigned gi, ci; } event;
int nvmlEventSetCreate(event_set **set) { CHECK("set"); *set = calloc(1, sizeof **set); return 0; }
int nvmlEventSetFree(event_set *set) { CHECK("free"); free(set); return 0; }
int nvmlDeviceGetSupportedEventTypes(void *device, u64 *types) {
    char word[TEXT_SIZE];
    CHECK_GPU("types_of");
    *types = for_gpu("types", name_of(device), 0, word) ? strtoull(word, NULL, 0) : 0xff9f;
    return 0; }
int nvmlDeviceRegisterEvents(void *device, u64 types, event_set *set) {
    CHECK_GPU("register"); if (types != 8) return 2;
    set->devices[set->count++] = device; return 0; }
int nvmlEventSetWait_v2(event_set *set, event *found, unsigned timeout) {
    char word[TEXT_SIZE];
    struct timespec pause = {0, 5000000};
    for (unsigned passed = 0; ; passed += 5) {
        CHECK("wait");
        for (int i = 0; i < set->count; i++) {
            if (for_gpu("lost", name_of(set->devices[i]), 0, word)) return obey(word);
            if (!for_gpu("xid", name_of(set->devices[i]), set->delivered[i], word)) continue;
            set->delivered[i]++;
            event one = {set->devices[i], 8, strtoull(word, NULL, 10), ~0u, ~0u};
            *found = one;
            return 0;
        }
        if (passed >= timeout) return 10;
        nanosleep(&pause, NULL);
    } }
#endif

/* --- the rest --------------------------------------------------------------------------------- */

int nvmlDeviceGetComputeMode(void *device, unsigned *mode) {
    CHECK_GPU("mode"); *mode = at(device) && !getenv("FAKE_NVML_WORLD") ? 3 : 0; return 0; }
int nvmlDeviceGetDisplayActive(void *device, unsigned *active) {
    CHECK_GPU("display"); *active = at(device) && !getenv("FAKE_NVML_WORLD"); return 0; }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    CHECK_GPU("utilization"); rates[0] = 43; rates[1] = 7; return 0; }
typedef struct { unsigned pid; u64 at; unsigned sm, memory, encoder, decoder; } sample;
int nvmlDeviceGetProcessUtilization(void *device, sample *out, unsigned *count, u64 since) {
    char word[TEXT_SIZE];
    unsigned room = *count, pid, sm;
    u64 at;
    CHECK_GPU("samples");
    *count = 0;
    for (int i = 0; i < MAX_ITEMS && for_gpu("sample", name_of(device), i, word); i++) {
        if (sscanf(word, "%u:%llu:%u", &pid, &at, &sm) != 3 || at <= since) continue;
        sample one = {pid, at, sm, 0, 0, 0};
        if (*count < room) out[*count] = one;
        ++*count;
    }
    return !*count ? 6 : room < *count ? 7 : 0; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *degrees) {
    CHECK_GPU("temperature"); if (sensor) return 2; *degrees = 41; return 0; }
int nvmlDeviceGetClockInfo(void *device, unsigned which, unsigned *megahertz) {
    CHECK_GPU("clock"); if (which != 1 && which != 2) return 2;
    *megahertz = which == 1 ? 1980 : 3201; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    CHECK_GPU("power"); *milliwatts = 91500; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *millijoules) {
    /* A counter that grows by 600 W. */
    struct timespec now;
    CHECK_GPU("energy");
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = (now.tv_sec + now.tv_nsec / 1e9) * 600000; return 0; }
typedef struct {
    unsigned id, scope; long long at, took; unsigned kind; int code; u64 value; } field;
int nvmlDeviceGetFieldValues(void *device, int count, field *fields) {
    char word[TEXT_SIZE];
    unsigned id;
    u64 value;
    CHECK_GPU("fields");
    for (int n = 0; n < count; n++) {
        fields[n].kind = 3; fields[n].code = 3; fields[n].value = 0;
        for (int i = 0; for_gpu("field", name_of(device), i, word); i++) {
            unsigned scope = fields[n].scope, error = 0;
            if (sscanf(word, "%u:e%u", &id, &error) == 2 && id == fields[n].id)
                fields[n].code = error;
            else if ((sscanf(word, "%u:%llu", &id, &value) == 2
                      || sscanf(word, "%u.%u:%llu", &id, &scope, &value) == 3)
                     && id == fields[n].id && scope == fields[n].scope)
                fields[n].code = 0, fields[n].value = value;
        }
    }
    return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *reasons) {
    CHECK_GPU("reasons"); *reasons = 0x4 | 0x1000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
    CHECK_GPU("limit"); *milliwatts = 700000; return 0; }
int nvmlDeviceGetPerformanceState(void *device, unsigned *state) {
    CHECK_GPU("pstate"); *state = at(device) ? 32 : 0; return 0; }
int nvmlDeviceGetTemperatureThreshold(void *device, unsigned which, unsigned *degrees) {
    static const unsigned of[] = {95, 89, 0, 87};
    char word[TEXT_SIZE];
    CHECK_GPU("threshold"); if (which > 3) return 2; *degrees = of[which];
    if (which == 2 && for_gpu("memory_max=", name_of(device), 0, word)) *degrees = atoi(word);
    return 0; }
int nvmlDeviceGetFanSpeed(void *device, unsigned *percent) {
    CHECK_GPU("fan"); *percent = 40; return at(device) ? 0 : 3; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation) {
    CHECK_GPU("pcie"); *generation = 5; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width) {
    CHECK_GPU("pcie"); *width = 16; return 0; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    char word[TEXT_SIZE];
    CHECK_GPU("minor");
    *minor = for_gpu("minor=", name_of(device), 0, word) ? atoi(word) : 7 - at(device);
    return 0; }

int nvmlDeviceGetSerial(void *device, char *text, unsigned size) {
    CHECK_GPU("serial"); snprintf(text, size, "165000000000%d", at(device)); return 0; }

/* --- counters --------------------------------------------------------------------------------- */

#ifdef COUNTERS
static u64 value_of(const char *name, void *device, u64 normal) {
    char whole[TEXT_SIZE], word[TEXT_SIZE];
    snprintf(whole, sizeof whole, "%s=", name);
    return for_gpu(whole, name_of(device), 0, word) ? strtoull(word, NULL, 10) : normal;
}
#define VALUE(name, normal) value_of(name, device, normal)
#define NUMBER(function, name, normal) int function(void *device, unsigned *out) { \
    CHECK_GPU(name); *out = VALUE(name, normal); return 0; }
#define TEXT(function, name, format) \
    int function(void *device, char *text, unsigned size) { \
    CHECK_GPU(name); snprintf(text, size, format, at(device)); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { CHECK("cuda"); *version = 13000; return 0; }
TEXT(nvmlDeviceGetVbiosVersion, "vbios", "96.00.9F.00.0%d")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom", "G520.0280.00.0%d")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retiring", 0)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max", 5)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_own_max", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "width_max", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, "replays", 12)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "default_limit", 700000)
int nvmlDeviceGetMaxClockInfo(void *device, unsigned which, unsigned *megahertz) {
    CHECK_GPU("max_clock"); *megahertz = which == 1 ? 1980 : 3201; return 0; }
int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *later) {
    CHECK_GPU("ecc"); *now = VALUE("ecc", 1); *later = VALUE("ecc_later", 1); return 0; }
int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned since, u64 *count) {
    static const char *names[] = {"corrected", "corrected_ever", "uncorrected", "uncorrected_ever"};
    CHECK_GPU("errors"); CHECK_GPU(names[2 * kind + since]);
    *count = VALUE(names[2 * kind + since], 0); return 0; }
int nvmlDeviceGetRemappedRows(void *device, unsigned *c, unsigned *u, unsigned *p, unsigned *f) {
    CHECK_GPU("rows"); *c = VALUE("remapped", 1); *u = VALUE("remapped_uncorrected", 0);
    *p = VALUE("remap_pending", 0); *f = VALUE("remap_failed", 0); return 0; }
int nvmlDeviceGetRowRemapperHistogram(void *device, unsigned *banks) {
    CHECK_GPU("banks"); banks[0] = 640; banks[1] = banks[2] = 0;
    banks[3] = VALUE("banks_low", 0); banks[4] = VALUE("banks_none", 0); return 0; }
int nvmlDeviceGetRetiredPages(void *device, unsigned cause, unsigned *count, u64 *pages) {
    CHECK_GPU("pages"); unsigned room = *count;
    *count = VALUE(cause ? "retired_double" : "retired_single", 0);
    return room < *count ? 7 : 0; }
int nvmlDeviceGetRepairStatus(void *device, unsigned *status) {
    CHECK_GPU("repair"); status[1] = VALUE("channel", 0); status[2] = VALUE("tpc", 0); return 0; }
int nvmlDeviceGetUnrepairableMemoryFlag_v1(void *device, unsigned *status) {
    CHECK_GPU("unrepairable"); status[1] = VALUE("unrepairable", 0); return 0; }
int nvmlDeviceGetMarginTemperature(void *device, int *margin) {
    CHECK_GPU("margin"); margin[1] = (int)VALUE("margin", 46); return 0; }
int nvmlDeviceValidateInforom(void *device) { CHECK_GPU("valid"); return 0; }
typedef struct { unsigned version; u64 sums[6], buckets[5]; unsigned exceeded; } sram;
int nvmlDeviceGetSramEccErrorStatus(void *device, sram *status) {
    CHECK_GPU("sram"); if (status->version != 0x1000068) return 25;
    memset(status->sums, 0, sizeof status->sums);
    status->sums[0] = VALUE("sram_parity", 0); status->sums[1] = VALUE("sram_double", 0);
    status->sums[2] = VALUE("sram_corrected", 0);
    status->exceeded = VALUE("sram_exceeded", 0); return 0; }
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique;
    unsigned char state; unsigned mask; unsigned char summary; } fabric;
int nvmlDeviceGetGpuFabricInfoV(void *device, fabric *info) {
    CHECK_GPU("fabric"); if (info->version != 0x3000028) CHECK_GPU("fabric_v2");
    if (info->version == 0x3000028) CHECK_GPU("fabric_v3");
    info->state = VALUE("fabric_state", 3); info->status = VALUE("fabric_status", 0);
    info->mask = 0; if (info->version == 0x3000028) info->summary = VALUE("fabric_health", 1);
    return 0; }
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    char name[32]; CHECK_GPU("links"); snprintf(name, sizeof name, "link%u", link);
    if (link >= VALUE("link_count", at(device) ? 2 : 18)) return 2; *active = VALUE(name, 1); return 0; }
int nvmlDeviceGetViolationStatus(void *device, unsigned policy, u64 *times) {
    CHECK_GPU("violation"); times[0] = 0;
    times[1] = policy > 1 ? 0 : VALUE(policy ? "thermal_ns" : "power_ns", 3000000000ull);
    return 0; }
#endif
