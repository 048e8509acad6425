/* A driver that is none: enough of libcuda and libnvidia-ml to show what no card at hand shows.
 *
 * Device memory is host memory, copies are carried out at once, kernels do nothing. The environment says what goes
 * wrong: FAKE_CUDA_VERSION, _MAJOR, _MINOR, _COUNT, _TOTAL and _OTHERS (bytes), _FAIL_LAUNCH (that launch and every
 * call after it fail with 700), _PINNING=0 (no page-locked memory), _REGISTERING=0 (no lent pages). */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, ILLEGAL_ADDRESS = 700, NOT_PERMITTED = 800 };

static unsigned long long env(const char *name, unsigned long long otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* What the context, modules and libraries of a process would take. */
static const unsigned long long context_bytes = 64ull << 20;
static unsigned long long taken_bytes;
static int contexts, is_broken, launches;

#define CALL if (is_broken) return ILLEGAL_ADDRESS

int cuDriverGetVersion(int *version) { *version = (int)env("FAKE_CUDA_VERSION", 12040); return OK; }
int cuInit(unsigned flags) { (void)flags; return OK; }
int cuDeviceGetCount(int *count) { *count = (int)env("FAKE_CUDA_COUNT", 1); return OK; }
int cuDeviceGet(int *device, int index) { *device = index; return OK; }
int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    strncpy(name, "Fake Card", (size_t)size);
    return OK;
}
int cuDeviceGetPCIBusId(char *name, int size, int device) {
    (void)device;
    strncpy(name, "0000:00:00.0", (size_t)size);
    return OK;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    switch (which) {
    case 75: *value = (int)env("FAKE_CUDA_MAJOR", 8); break;
    case 76: *value = (int)env("FAKE_CUDA_MINOR", 0); break;
    case 16: *value = 4; break;
    default: *value = 1;
    }
    return OK;
}
int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { (void)device; (void)flags; return OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    contexts++;
    *context = &contexts;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; contexts--; return OK; }
int cuCtxSetCurrent(void *context) { (void)context; CALL; return OK; }
int cuGetErrorString(int status, const char **text) {
    *text = status == ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
          : status == NO_MEMORY ? "out of memory"
          : status == NOT_PERMITTED ? "operation not permitted" : "a made-up error";
    return OK;
}

static unsigned long long own_bytes(void) { return taken_bytes + (contexts > 0 ? context_bytes : 0); }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    CALL;
    *total_bytes = env("FAKE_CUDA_TOTAL", 8ull << 30);
    unsigned long long held = own_bytes() + env("FAKE_CUDA_OTHERS", 0);
    *free_bytes = held < *total_bytes ? *total_bytes - held : 0;
    return OK;
}

/* Each piece knows its size; zeroed, as a card's memory mostly is. */
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    CALL;
    size_t free_bytes, total_bytes;
    cuMemGetInfo_v2(&free_bytes, &total_bytes);
    if (bytes > free_bytes) return NO_MEMORY;
    char *memory = calloc(1, bytes + 256);
    if (!memory) return NO_MEMORY;
    memcpy(memory, &bytes, sizeof bytes);
    taken_bytes += bytes;
    *address = (uint64_t)(uintptr_t)(memory + 256);
    return OK;
}
int cuMemFree_v2(uint64_t address) {
    char *memory = (char *)(uintptr_t)address - 256;
    size_t bytes;
    memcpy(&bytes, memory, sizeof bytes);
    taken_bytes -= bytes;
    free(memory);
    return OK;
}
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    CALL;
    /* The device needs some words of it whatever happens: small pieces are always given. */
    if (bytes > 4096 && !env("FAKE_CUDA_PINNING", 1)) return NO_MEMORY;
    return posix_memalign(memory, 4096, bytes) == 0 ? OK : NO_MEMORY;
}
int cuMemFreeHost(void *memory) { free(memory); return OK; }
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    (void)memory; (void)bytes; (void)flags;
    CALL;
    return env("FAKE_CUDA_REGISTERING", 1) ? OK : NOT_PERMITTED;
}
int cuMemHostUnregister(void *memory) { (void)memory; CALL; return OK; }

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream) {
    (void)stream;
    CALL;
    memcpy((void *)(uintptr_t)target, source, bytes);
    return OK;
}
int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream) {
    (void)stream;
    CALL;
    memcpy(target, (void *)(uintptr_t)source, bytes);
    return OK;
}
typedef struct {
    size_t source_x, source_y;
    unsigned source_type;
    const void *source_host;
    uint64_t source_device;
    void *source_array;
    size_t source_pitch, target_x, target_y;
    unsigned target_type;
    void *target_host;
    uint64_t target_device;
    void *target_array;
    size_t target_pitch, width, height;
} Rows;
int cuMemcpy2DAsync_v2(const Rows *rows, void *stream) {
    (void)stream;
    CALL;
    const char *source = rows->source_type == 2 ? (char *)(uintptr_t)rows->source_device : rows->source_host;
    char *target = rows->target_type == 2 ? (char *)(uintptr_t)rows->target_device : rows->target_host;
    for (size_t row = 0; row < rows->height; row++)
        memcpy(target + row * rows->target_pitch, source + row * rows->source_pitch, rows->width);
    return OK;
}
int cuMemsetD32Async(uint64_t target, unsigned word, size_t words, void *stream) {
    (void)stream;
    CALL;
    uint32_t *at = (uint32_t *)(uintptr_t)target;
    for (size_t index = 0; index < words; index++) at[index] = word;
    return OK;
}

static int handle;
int cuModuleLoadData(void **module, const void *image) { (void)image; CALL; *module = &handle; return OK; }
int cuModuleUnload(void *module) { (void)module; return OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module; (void)name;
    CALL;
    *function = &handle;
    return OK;
}
int cuFuncSetAttribute(void *function, int which, int value) { (void)function; (void)which; (void)value; CALL; return OK; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function; (void)gx; (void)gy; (void)gz; (void)bx; (void)by; (void)bz;
    (void)shared; (void)stream; (void)arguments; (void)extra;
    CALL;
    unsigned long long bad = env("FAKE_CUDA_FAIL_LAUNCH", 0);
    if (bad && (unsigned long long)++launches >= bad) {
        is_broken = 1;
        return ILLEGAL_ADDRESS;
    }
    return OK;
}

int cuStreamCreate(void **stream, unsigned flags) { (void)flags; CALL; *stream = &handle; return OK; }
int cuStreamDestroy_v2(void *stream) { (void)stream; return OK; }
int cuStreamSynchronize(void *stream) { (void)stream; CALL; return OK; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream; (void)event; (void)flags; CALL; return OK; }
int cuEventCreate(void **event, unsigned flags) { (void)flags; CALL; *event = &handle; return OK; }
int cuEventDestroy_v2(void *event) { (void)event; return OK; }
int cuEventRecord(void *event, void *stream) { (void)event; (void)stream; CALL; return OK; }
int cuEventSynchronize(void *event) { (void)event; CALL; return OK; }
int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    (void)begin; (void)end;
    CALL;
    *milliseconds = 1.0f;
    return OK;
}

/* libnvidia-ml, which is a link to the same file and so the same library: this process, and another that holds what FAKE_CUDA_OTHERS says. */
typedef struct { unsigned pid; unsigned long long used_bytes; unsigned gpu_instance, compute_instance; } Process;
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { (void)bus; *device = &handle; return OK; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long found[3]) {
    (void)device;
    found[0] = env("FAKE_CUDA_TOTAL", 8ull << 30);
    found[2] = own_bytes() + env("FAKE_CUDA_OTHERS", 0);
    found[1] = found[0] > found[2] ? found[0] - found[2] : 0;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    (void)device;
    unsigned long long own = own_bytes();
    if (*count < 2) return 7;
    Process other = {1, env("FAKE_CUDA_OTHERS", 0), 0, 0}, self = {(unsigned)getpid(), own, 0, 0};
    found[0] = other;
    found[1] = self;
    *count = own > 0 ? 2 : 1;
    return OK;
}
