/* A libnvidia-ml.so.1 of our own: answers by a file of lines `key value`, named by FAKE_NVML, which may change any time.
 *
 * Structures and numbers are those of NVIDIA's public nvml.h. With -DOLD_DRIVER everything that came after R450 is not
 * there at all, so that whoever asks for it finds no symbol.
 *
 *   driver 550.54        count 8           gone 1 (the driver is unloaded)    hang 1 (it does not answer)
 *   fail.<call> 4        fail.<call>.<device> 15      fail.*.<device> 15
 *   every 2 (every second call fails, as an unknown error)
 *   device.0.uuid ...    pair.0.1.nvlink 0            event.0 <device> <type> <xid>
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10, UNKNOWN = 999 };
enum { MOST_DEVICES = 128, MOST_PARTS = 8, MOST_LINES = 20000 };

typedef struct { int device, part; } Handle;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Handle *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type; int result; unsigned long long value; } Field;
typedef struct { unsigned sizes[8]; unsigned long long memory_mib; } Attributes;

static Handle handles[MOST_DEVICES][MOST_PARTS + 1];
static char *keys[MOST_LINES], *values[MOST_LINES];
static int lines, initialised, delivered, asked;
static struct stat read_at;

static void forget(void) {
    for (int line = 0; line < lines; line++) free(keys[line]);
    lines = 0;
}

/* The file is replaced as a whole, so its inode tells that it is another. */
static void learn(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    char text[4096];
    FILE *file;
    if (!path || stat(path, &now)) { forget(); return; }
    if (lines && now.st_ino == read_at.st_ino && now.st_mtim.tv_nsec == read_at.st_mtim.tv_nsec) return;
    if (!(file = fopen(path, "r"))) return;
    forget();
    read_at = now;
    while (lines < MOST_LINES && fgets(text, sizeof text, file)) {
        text[strcspn(text, "\n")] = 0;
        char *space = strchr(keys[lines] = strdup(text), ' ');
        if (!space) { free(keys[lines]); continue; }
        *space = 0;
        values[lines++] = space + 1;
    }
    fclose(file);
}

static const char *find(const char *form, ...) {
    char key[256];
    va_list arguments;
    va_start(arguments, form);
    vsnprintf(key, sizeof key, form, arguments);
    va_end(arguments);
    for (int line = 0; line < lines; line++)
        if (!strcmp(keys[line], key)) return values[line];
    return NULL;
}

#define NUMBER(text) strtoull(text, NULL, 0)

/* Events and processes are waited for in one thread while another asks: one at a time here. */
static volatile int busy;
static void enter(void) { while (__sync_lock_test_and_set(&busy, 1)) usleep(50); }
static void leave(void) { __sync_lock_release(&busy); }

static int refusal(const char *call, int device) {
    const char *text;
    learn();
    while (find("hang")) { leave(); usleep(5000); enter(); learn(); }
    if (!initialised || find("gone")) return UNINITIALIZED;
    if ((text = find("fail.%s", call))) return (int)NUMBER(text);
    if (device >= 0 && (text = find("fail.%s.%d", call, device))) return (int)NUMBER(text);
    if (device >= 0 && (text = find("fail.*.%d", device))) return (int)NUMBER(text);
    if ((text = find("every")) && ++asked % (int)NUMBER(text) == 0) return UNKNOWN;
    return OK;
}

#define BODY(name, device) { int result; enter(); result = refusal(#name, device); if (!result) do
#define END(name) while (0); leave(); return result; }
#define GIVE(code) { result = (code); break; }
#define NEED(text) if (!(text)) GIVE(NOT_SUPPORTED)

static const char *of(Handle *handle, const char *what) {
    if (handle->part) return find("device.%d.part.%d.%s", handle->device, handle->part - 1, what);
    return find("device.%d.%s", handle->device, what);
}

int nvmlInitWithFlags(unsigned flags) {
    const char *text;
    (void)flags;
    enter();
    learn();
    int result = find("gone") ? NOT_LOADED : (text = find("fail.nvmlInit")) ? (int)NUMBER(text) : OK;
    if (!result) initialised++;
    leave();
    return result;
}

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return OK;
}

const char *nvmlErrorString(int code) { return code == 7777 ? "\377" : "an error that pynvml has no words for"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length)
BODY(nvmlSystemGetDriverVersion, -1) { const char *version = find("driver"); NEED(version) snprintf(text, length, "%s", version); }
END(nvmlSystemGetDriverVersion)

int nvmlDeviceGetCount_v2(unsigned *count)
BODY(nvmlDeviceGetCount, -1) { *count = (unsigned)NUMBER(find("count")); }
END(nvmlDeviceGetCount)

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **handle)
BODY(nvmlDeviceGetHandleByIndex, (int)index) {
    if (index >= NUMBER(find("count")) || index >= MOST_DEVICES) GIVE(INVALID)
    handles[index][0].device = (int)index;
    *handle = &handles[index][0];
}
END(nvmlDeviceGetHandleByIndex)

#define TEXT(name, key) \
    int name(Handle *handle, char *text, unsigned length) \
    BODY(name, handle->device) { const char *found = of(handle, key); NEED(found) snprintf(text, length, "%s", found); } END(name)

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")

#define UNSIGNED(name, key) \
    int name(Handle *handle, unsigned *number) \
    BODY(name, handle->device) { const char *found = of(handle, key); NEED(found) *number = (unsigned)NUMBER(found); } END(name)

UNSIGNED(nvmlDeviceGetMinorNumber, "minor")
UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, "retiring")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "parts")

static void fill(Pci *pci, const char *text) {
    sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", text);
}

int nvmlDeviceGetPciInfo_v3(Handle *handle, Pci *pci)
BODY(nvmlDeviceGetPciInfo, handle->device) { const char *found = of(handle, "pci"); NEED(found) fill(pci, found); }
END(nvmlDeviceGetPciInfo)

int nvmlDeviceGetMemoryInfo(Handle *handle, unsigned long long *memory)
BODY(nvmlDeviceGetMemoryInfo, handle->device) {
    const char *total = of(handle, "memory.total"), *used = of(handle, "memory.used"), *kept = of(handle, "memory.reserved");
    NEED(total)
    memory[0] = NUMBER(total);
    memory[2] = NUMBER(used) + (kept ? NUMBER(kept) : 0);
    memory[1] = memory[0] - memory[2];
}
END(nvmlDeviceGetMemoryInfo)

int nvmlDeviceGetTotalEccErrors(Handle *handle, int kind, int counter, unsigned long long *count)
BODY(nvmlDeviceGetTotalEccErrors, handle->device) {
    const char *found = of(handle, kind == 1 && counter == 0 ? "ecc" : "ecc.other");
    NEED(found)
    *count = NUMBER(found);
}
END(nvmlDeviceGetTotalEccErrors)

int nvmlDeviceGetFieldValues(Handle *handle, int count, Field *fields)
BODY(nvmlDeviceGetFieldValues, handle->device) {
    for (int each = 0; each < count; each++) {
        const char *found = find("device.%d.field.%u", handle->device, fields[each].field);
        fields[each].result = found ? OK : NOT_SUPPORTED;
        fields[each].value = found ? NUMBER(found) : 0;
    }
}
END(nvmlDeviceGetFieldValues)

static int list(Handle *handle, const char *kind, unsigned *count, Process *processes) {
    const char *text = find("device.%d.%s", handle->device, kind);
    unsigned there = 0, room = *count;
    if (!text) return NOT_SUPPORTED;
    for (const char *at = text; at && *at && *at != '-'; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) {
        unsigned pid;
        unsigned long long memory = ~0ULL;
        if (sscanf(at, "%u:%llu", &pid, &memory) < 1) break;
        if (there < room && processes) processes[there] = (Process){pid, memory, ~0u, ~0u};
        there++;
    }
    *count = there;
    return there > room ? TOO_SMALL : OK;
}

#define RUNNING(name, suffix, kind) \
    int name##suffix(Handle *handle, unsigned *count, Process *processes) \
    BODY(name, handle->device) { result = list(handle, kind, count, processes); } END(name)

RUNNING(nvmlDeviceGetComputeRunningProcesses, _v2, "compute")
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, _v2, "graphics")

int nvmlDeviceGetNvLinkState(Handle *handle, unsigned link, unsigned *state)
BODY(nvmlDeviceGetNvLinkState, handle->device) {
    const char *count = of(handle, "links"), *down = find("device.%d.link.%u.down", handle->device, link);
    NEED(count)
    if (link >= NUMBER(count)) GIVE(INVALID)
    *state = !down;
}
END(nvmlDeviceGetNvLinkState)

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle *handle, unsigned link, Pci *pci)
BODY(nvmlDeviceGetNvLinkRemotePciInfo, handle->device) {
    const char *found = find("device.%d.link.%u.pci", handle->device, link);
    NEED(found)
    fill(pci, found);
}
END(nvmlDeviceGetNvLinkRemotePciInfo)

int nvmlDeviceGetP2PStatus(Handle *one, Handle *other, unsigned by, int *status)
BODY(nvmlDeviceGetP2PStatus, one->device) {
    const char *found = find("pair.%d.%d.p2p.%u", one->device, other->device, by);
    NEED(found)
    *status = (int)NUMBER(found);
}
END(nvmlDeviceGetP2PStatus)

int nvmlDeviceGetTopologyCommonAncestor(Handle *one, Handle *other, int *level)
BODY(nvmlDeviceGetTopologyCommonAncestor, one->device) {
    const char *found = find("pair.%d.%d.ancestor", one->device, other->device);
    NEED(found)
    *level = (int)NUMBER(found);
}
END(nvmlDeviceGetTopologyCommonAncestor)

int nvmlDeviceGetSupportedEventTypes(Handle *handle, unsigned long long *types)
BODY(nvmlDeviceGetSupportedEventTypes, handle->device) { const char *found = of(handle, "events"); NEED(found) *types = NUMBER(found); }
END(nvmlDeviceGetSupportedEventTypes)

static int pending(void) {
    int number = 0;
    while (find("event.%d", number)) number++;
    return number;
}

/* What happened before the set was made is lost, as with the real one. */
int nvmlEventSetCreate(void **set)
BODY(nvmlEventSetCreate, -1) { *set = &delivered; delivered = pending(); }
END(nvmlEventSetCreate)

int nvmlEventSetFree(void *set) { (void)set; return OK; }

int nvmlDeviceRegisterEvents(Handle *handle, unsigned long long types, void *set)
BODY(nvmlDeviceRegisterEvents, handle->device) { (void)types; (void)set; }
END(nvmlDeviceRegisterEvents)

static int take(Event *event)
BODY(nvmlEventSetWait, -1) {
    const char *text = find("event.%d", delivered);
    int device;
    if (!text) GIVE(TIMEOUT)
    delivered++;
    sscanf(text, "%d %llu %llu", &device, &event->type, &event->data);
    event->device = device < 0 ? NULL : &handles[device][0];
    event->gpu_instance = event->compute_instance = ~0u;
}
END(nvmlEventSetWait)

int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0; ; waited += 5) {
        int result = take(event);
        if (result != TIMEOUT || waited >= timeout_ms) return result;
        usleep(5000);
    }
}

#ifndef OLD_DRIVER

int nvmlDeviceGetMemoryInfo_v2(Handle *handle, unsigned char *memory)
BODY(nvmlDeviceGetMemoryInfo_v2, handle->device) {
    const char *total = of(handle, "memory.total"), *used = of(handle, "memory.used"), *kept = of(handle, "memory.reserved");
    unsigned long long *numbers = (unsigned long long *)(memory + 8);
    if (*(unsigned *)memory != 0x02000028) GIVE(25)
    NEED(total)
    numbers[0] = NUMBER(total);
    numbers[1] = kept ? NUMBER(kept) : 0;
    numbers[3] = NUMBER(used);
    numbers[2] = numbers[0] - numbers[1] - numbers[3];
}
END(nvmlDeviceGetMemoryInfo_v2)

int nvmlDeviceGetNumaNodeId(Handle *handle, int *node)
BODY(nvmlDeviceGetNumaNodeId, handle->device) { const char *found = of(handle, "numa"); NEED(found) *node = atoi(found); }
END(nvmlDeviceGetNumaNodeId)

int nvmlDeviceGetMemoryAffinity(Handle *handle, unsigned size, unsigned long *set, unsigned scope)
BODY(nvmlDeviceGetMemoryAffinity, handle->device) {
    const char *found = of(handle, "nearest");
    NEED(found)
    for (unsigned word = 0; word < size; word++) set[word] = 0;
    set[atoi(found) / 64] = 1ul << (atoi(found) % 64);
    (void)scope;
}
END(nvmlDeviceGetMemoryAffinity)

int nvmlDeviceGetRemappedRows(Handle *handle, unsigned *corrected, unsigned *uncorrected, unsigned *is_pending, unsigned *has_failed)
BODY(nvmlDeviceGetRemappedRows, handle->device) {
    const char *found = of(handle, "rows");
    NEED(found)
    sscanf(found, "%u %u %u %u", corrected, uncorrected, is_pending, has_failed);
}
END(nvmlDeviceGetRemappedRows)

RUNNING(nvmlDeviceGetComputeRunningProcesses, _v3, "compute")
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, _v3, "graphics")
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, _v3, "mps")

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle *handle, unsigned link, unsigned *type)
BODY(nvmlDeviceGetNvLinkRemoteDeviceType, handle->device) {
    const char *found = find("device.%d.link.%u.type", handle->device, link);
    NEED(found)
    *type = (unsigned)NUMBER(found);
}
END(nvmlDeviceGetNvLinkRemoteDeviceType)

int nvmlDeviceGetMigMode(Handle *handle, unsigned *current, unsigned *wanted)
BODY(nvmlDeviceGetMigMode, handle->device) {
    const char *found = of(handle, "mig");
    NEED(found)
    sscanf(found, "%u %u", current, wanted);
}
END(nvmlDeviceGetMigMode)

int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, unsigned index, Handle **part)
BODY(nvmlDeviceGetMigDeviceHandleByIndex, handle->device) {
    if (index >= MOST_PARTS || !find("device.%d.part.%u.uuid", handle->device, index)) GIVE(NOT_FOUND)
    *part = &handles[handle->device][index + 1];
    **part = (Handle){handle->device, (int)index + 1};
}
END(nvmlDeviceGetMigDeviceHandleByIndex)

int nvmlDeviceGetAttributes_v2(Handle *handle, Attributes *attributes)
BODY(nvmlDeviceGetAttributes_v2, handle->device) {
    const char *slices = of(handle, "slices"), *memory = of(handle, "mib");
    NEED(slices)
    sscanf(slices, "%u %u", &attributes->sizes[6], &attributes->sizes[7]);
    attributes->memory_mib = NUMBER(memory);
}
END(nvmlDeviceGetAttributes_v2)

typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned state, health; } Fabric;

int nvmlDeviceGetGpuFabricInfoV(Handle *handle, unsigned char *raw)
BODY(nvmlDeviceGetGpuFabricInfoV, handle->device) {
    const char *cluster = of(handle, "fabric.cluster"), *state = of(handle, "fabric.state"), *clique = of(handle, "fabric.clique");
    const char *form = of(handle, "fabric.form");
    Fabric *fabric = (Fabric *)raw;
    if (fabric->version != (form ? NUMBER(form) : 0x02000024)) GIVE(25)
    NEED(cluster)
    for (int byte = 0; byte < 16; byte++) sscanf(cluster + 2 * byte, "%2hhx", &fabric->cluster[byte]);
    fabric->status = OK;
    fabric->clique = (unsigned)NUMBER(clique);
    fabric->state = (unsigned)NUMBER(state);
}
END(nvmlDeviceGetGpuFabricInfoV)

#endif
