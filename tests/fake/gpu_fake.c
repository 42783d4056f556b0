/* Stands for libcuda.so.1 and libnccl.so.2 where there is no GPU: one library of both names, loaded through libshoal's very
 * tables. Device memory is host memory whose addresses have one bit more, so that whoever takes one for the other's is
 * found out. A communicator is a memory file among processes; what runs "on the stream" runs in a thread, ends late, and
 * waits for members that may be dead, until it is aborted or revoked.
 *
 * It keeps NCCL's rules of 2.29 and later, as far as libshoal leans on them: nothing is done at once (in progress, until
 * asked; an operation is not on the stream before), a second revoke is an error, a revoked communicator runs nothing and may
 * be shrunk. Who shrinks one asks the parent, and has the new one when that is over; grow needs an id of its root, one at a
 * time. What NCCL would answer by memory that was freed ends the process here: revoke while an operation is in progress,
 * abort of a communicator that grows.
 * Sums begin at the last rank: another order than the canonical tree.
 *
 * Memory of the device is a file among processes, too: who has opened another's keeps it when its owner ends, as the
 * driver's does. Memory of the host is registered by whole pages, once, and let go of before it is unmapped: else the
 * process ends here.
 *
 *   GPU_FAKE_FAIL=CALL:N:CODE   the Nth call gives CODE        GPU_FAKE_HANG=CALL   what it begins never ends
 *   GPU_FAKE_DEVICES=N          [1]                            GPU_FAKE_RANK=N      its communicators break, the others' stand
 * Built with -DOLD_NCCL it lacks shrink, revoke and grow. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collective/memory/half.h"

#define DEVICE_BIT (1ull << 62)
#define RANKS 64
#define AREA (256u * 1024u)

/* A call may be made to fail by name. */
static int failing(const char *call)
{
    static _Atomic int calls;
    const char *want = getenv("GPU_FAKE_FAIL");
    size_t len = strlen(call);

    if (want == NULL || strncmp(want, call, len) != 0 || want[len] != ':')
        return 0;
    return ++calls == atoi(want + len + 1) ? atoi(strrchr(want, ':') + 1) : 0;
}

static bool hangs(const char *call)
{
    const char *want = getenv("GPU_FAKE_HANG");

    return want != NULL && strcmp(want, call) == 0;
}

#define MAY_FAIL(call)                                                                                                 \
    do {                                                                                                               \
        int code = failing(call);                                                                                      \
        if (code != 0)                                                                                                 \
            return code;                                                                                               \
    } while (0)

/* ---- CUDA ---- */

struct late {
    struct late *next;
    void *to;
    const void *from;
    size_t bytes;
};

struct stream {
    _Atomic int pending;
    struct late *late; /* copies to the host: they come when the stream is waited for, as they may */
};

static struct stream default_stream;
static _Thread_local bool has_context;
static _Atomic long allocated;

static struct stream *stream_of(void *stream) { return stream == NULL ? &default_stream : stream; }

static void stream_rest(void *stream)
{
    struct stream *s = stream_of(stream);

    while (atomic_load(&s->pending) > 0)
        sched_yield();
    while (s->late != NULL) {
        struct late *late = s->late;

        s->late = late->next;
        memcpy(late->to, late->from, late->bytes);
        free(late);
    }
}

static void mistake(const char *what)
{
    (void)fprintf(stderr, "gpu_fake: %s\n", what);
    abort();
}

/* libshoal copies when what it was asked for before is over: an operation under way here was taken for over. */
static void stream_idle(void *stream)
{
    if (stream != NULL && atomic_load(&stream_of(stream)->pending) > 0)
        mistake("a copy while an operation runs");
}

static void *plain(uint64_t address)
{
    if (!(address & DEVICE_BIT)) {
        (void)fprintf(stderr, "gpu_fake: %llx is no device memory\n", (unsigned long long)address);
        abort();
    }
    return (void *)(uintptr_t)(address & ~DEVICE_BIT);
}

int cuInit(unsigned flags)
{
    MAY_FAIL("cuInit");
    return flags == 0 ? 0 : 1;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    const char *want = getenv("GPU_FAKE_DEVICES");
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    *count = visible != NULL && *visible == '\0' ? 0 : want == NULL ? 1 : atoi(want);
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int cap, int device)
{
    (void)device;
    (void)snprintf(name, (size_t)cap, "Pretence GPU");
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    MAY_FAIL("cuDevicePrimaryCtxRetain");
    *context = &default_stream;
    return 0;
}

static void registered_none(void);

int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    registered_none();
    return 0;
}

int cuCtxSetCurrent(void *context)
{
    has_context = context != NULL;
    return 0;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    *stream = calloc(1, sizeof(struct stream));
    return *stream == NULL ? 2 : 0;
}

int cuStreamDestroy_v2(void *stream)
{
    stream_rest(stream);
    free(stream);
    return 0;
}

int cuStreamQuery(void *stream) { return atomic_load(&stream_of(stream)->pending) > 0 ? 600 : 0; }

int cuStreamSynchronize(void *stream)
{
    MAY_FAIL("cuStreamSynchronize");
    stream_rest(stream);
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    MAY_FAIL("cuMemcpyHtoDAsync_v2");
    if (!has_context)
        return 201;
    stream_idle(stream);
    memcpy(plain(to), from, bytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    struct late *late;

    MAY_FAIL("cuMemcpyDtoHAsync_v2");
    if (!has_context)
        return 201;
    stream_idle(stream);
    late = malloc(sizeof(*late));
    if (late == NULL)
        return 2;
    *late = (struct late){ stream_of(stream)->late, to, plain(from), bytes };
    stream_of(stream)->late = late;
    return 0;
}

/* A file of this process, for others to open. */
static uint64_t name_file(int fd) { return (uint64_t)getpid() << 32 | (uint32_t)fd; }

static void path_of(char *path, size_t cap, uint64_t name)
{
    (void)snprintf(path, cap, "/proc/%u/fd/%u", (unsigned)(name >> 32), (unsigned)name);
}

struct piece { /* of device memory: allocated, or another process's */
    uint8_t *at;
    size_t bytes;
    int fd; /* -1: another's */
};
#define PIECES 256
static struct piece pieces[PIECES];
static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;

static int piece_add(int fd, size_t bytes, bool mine, uint64_t *address)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    unsigned i = 0;

    if (map == MAP_FAILED)
        return 2;
    (void)pthread_mutex_lock(&pieces_lock);
    while (i < PIECES && pieces[i].at != NULL)
        i++;
    if (i == PIECES)
        mistake("too many allocations");
    pieces[i] = (struct piece){ map, bytes, mine ? fd : -1 };
    (void)pthread_mutex_unlock(&pieces_lock);
    *address = (uint64_t)(uintptr_t)map | DEVICE_BIT;
    return 0;
}

static struct piece piece_take(uint64_t address, bool mine, bool keep)
{
    struct piece found = { NULL, 0, -1 };

    (void)pthread_mutex_lock(&pieces_lock);
    for (unsigned i = 0; i < PIECES; i++)
        if (pieces[i].at == plain(address) && (pieces[i].fd >= 0) == mine) {
            found = pieces[i];
            if (!keep)
                pieces[i].at = NULL;
        }
    (void)pthread_mutex_unlock(&pieces_lock);
    if (found.at == NULL)
        mistake("that is no allocation");
    return found;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    int fd;
    int code;

    MAY_FAIL("cuMemAlloc_v2");
    if (!has_context || bytes == 0)
        return has_context ? 1 : 201;
    fd = memfd_create("gpu-fake-memory", MFD_CLOEXEC);
    code = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 ? piece_add(fd, bytes, true, address) : 2;
    if (code != 0 && fd >= 0)
        (void)close(fd);
    allocated += code == 0;
    return code;
}

int cuMemFree_v2(uint64_t address)
{
    struct piece piece = piece_take(address, true, false);

    allocated--;
    (void)munmap(piece.at, piece.bytes);
    (void)close(piece.fd);
    return 0;
}

struct memory_handle {
    uint64_t name;
    uint64_t bytes;
    char rest[48];
};

int cuIpcGetMemHandle(struct memory_handle *handle, uint64_t address)
{
    struct piece piece = piece_take(address, true, true);

    MAY_FAIL("cuIpcGetMemHandle");
    *handle = (struct memory_handle){ .name = name_file(piece.fd), .bytes = piece.bytes };
    return 0;
}

int cuIpcOpenMemHandle_v2(uint64_t *address, struct memory_handle handle, unsigned flags)
{
    char path[64];
    int fd;
    int code;

    MAY_FAIL("cuIpcOpenMemHandle_v2");
    if (flags != 1)
        return 1;
    if (handle.name >> 32 == (uint64_t)getpid())
        return 201; /* not by who exported it */
    path_of(path, sizeof(path), handle.name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return 1;
    code = piece_add(fd, handle.bytes, false, address);
    (void)close(fd);
    return code;
}

int cuIpcCloseMemHandle(uint64_t address)
{
    struct piece piece = piece_take(address, false, false);

    (void)munmap(piece.at, piece.bytes);
    return 0;
}

int cuMemGetInfo_v2(size_t *bytes_free, size_t *bytes_total)
{
    *bytes_total = (size_t)1 << 30;
    *bytes_free = *bytes_total - (size_t)allocated;
    return 0;
}

int cuDeviceGetUuid_v2(uint8_t uuid[16], int device)
{
    const char *other = getenv("GPU_FAKE_UUID");

    MAY_FAIL("cuDeviceGetUuid_v2");
    memset(uuid, 0x11 + device, 16);
    if (other != NULL)
        uuid[15] = (uint8_t)atoi(other);
    return 0;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    MAY_FAIL("cuMemcpyDtoDAsync_v2");
    if (!has_context)
        return 201;
    stream_idle(stream);
    memmove(plain(to), plain(from), bytes);
    return 0;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    stream_idle(stream);
    memset(plain(to), value, bytes);
    return 0;
}

int cuMemAllocHost_v2(void **bytes, size_t len)
{
    *bytes = calloc(1, len);
    return *bytes == NULL ? 2 : 0;
}

/* ---- memory of the host that is registered ---- */

static struct {
    uintptr_t begin;
    uintptr_t end;
} registered[PIECES];

static void registered_none(void)
{
    for (unsigned i = 0; i < PIECES; i++)
        if (registered[i].end != 0)
            mistake("memory of the host is still registered");
}

int cuMemHostRegister_v2(void *bytes, size_t len, unsigned flags)
{
    uintptr_t begin = (uintptr_t)bytes;
    unsigned at = PIECES;

    (void)flags;
    MAY_FAIL("cuMemHostRegister_v2");
    if (!has_context)
        return 201;
    if (msync((void *)(begin / 4096 * 4096), len + begin % 4096, MS_ASYNC) != 0)
        mistake("memory that is registered is not mapped");
    (void)pthread_mutex_lock(&pieces_lock);
    for (unsigned i = 0; i < PIECES; i++) {
        if (registered[i].end == 0)
            at = i;
        else if (begin < registered[i].end && registered[i].begin < begin + len)
            at = PIECES + 1;
        if (at > PIECES)
            break;
    }
    if (at < PIECES) {
        registered[at].begin = begin;
        registered[at].end = begin + len;
    }
    (void)pthread_mutex_unlock(&pieces_lock);
    return at < PIECES ? 0 : 712; /* registered already */
}

int cuMemHostUnregister(void *bytes)
{
    uintptr_t begin = (uintptr_t)bytes;
    bool found = false;

    (void)pthread_mutex_lock(&pieces_lock);
    for (unsigned i = 0; i < PIECES; i++)
        if (registered[i].end != 0 && registered[i].begin == begin) {
            if (msync((void *)begin, (registered[i].end - begin) / 4096 * 4096, MS_ASYNC) != 0)
                mistake("memory was unmapped before it was unregistered");
            registered[i].end = 0;
            found = true;
        }
    (void)pthread_mutex_unlock(&pieces_lock);
    return found ? 0 : 713;
}

int cuGetErrorName(int result, const char **name)
{
    *name = result == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == 100 ? "CUDA_ERROR_NO_DEVICE"
            : result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                            : "CUDA_ERROR_UNKNOWN";
    return 0;
}

/* ---- NCCL ---- */

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };

struct work;

struct shared {
    _Atomic uint32_t joined[RANKS];
    _Atomic uint64_t at[RANKS]; /* how far each has come: twice a round */
    _Atomic uint64_t child;     /* process and descriptor of the communicator that comes of this one */
    uint8_t areas[RANKS][AREA];
};

struct comm {
    int ranks;
    int rank;
    struct shared *shared;
    struct shared *parent; /* its id is awaited there */
    int fd;                /* of whom made the file */
    uint64_t round;
    _Atomic int running;
    _Atomic bool stop;
    bool revoked;
    bool hangs;
    bool id_given; /* and not used yet */
    int failed;
    struct work *later;  /* given, and not launched yet */
    struct comm *child;  /* in progress: shrunk or grown of this one */
    struct comm *uses;   /* while in progress: the one that grows */
    struct comm **where; /* a shrunk child is written to, when it is ready */
};

struct id {
    char bytes[128];
};

struct config {
    size_t size;
    uint32_t magic;
    uint32_t version;
    int blocking;
};

static int make_file(void)
{
    int fd = memfd_create("gpu-fake", 0);

    return fd >= 0 && ftruncate(fd, sizeof(struct shared)) == 0 ? fd : -1;
}

static struct shared *map_file(uint64_t name)
{
    char path[64];
    void *map;
    int fd;

    path_of(path, sizeof(path), name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    return map == MAP_FAILED ? NULL : map;
}

int ncclGetVersion(int *version)
{
#ifdef OLD_NCCL
    *version = 21805;
#else
    *version = 23203;
#endif
    return OK;
}

const char *ncclGetErrorString(int result)
{
    return result == SYSTEM_ERROR ? "unhandled system error" : result == INVALID_USAGE ? "invalid usage" : "an error";
}

int ncclGetUniqueId(struct id *id)
{
    uint64_t name;
    int fd = make_file(); /* kept open while the process lives, as NCCL keeps its socket */

    MAY_FAIL("ncclGetUniqueId");
    name = name_file(fd);
    memset(id, 0, sizeof(*id));
    memcpy(id->bytes, &name, sizeof(name));
    return fd < 0 ? SYSTEM_ERROR : OK;
}

static struct comm *new_comm(int ranks, int rank, const struct config *config)
{
    struct comm *comm = calloc(1, sizeof(*comm));

    if (comm == NULL || config->magic != 0xcafebeefu || config->blocking != 0 || ranks > RANKS || rank >= ranks)
        abort(); /* libshoal's mistake */
    comm->ranks = ranks;
    comm->rank = rank;
    comm->fd = -1;
    return comm;
}

static void join_file(struct comm *comm, uint64_t name)
{
    comm->shared = map_file(name);
    comm->parent = NULL;
    if (comm->shared == NULL)
        comm->failed = SYSTEM_ERROR; /* whoever made it is gone */
    else
        atomic_store(&comm->shared->joined[comm->rank], 1);
}

int ncclCommInitRankConfig(struct comm **made, int ranks, struct id id, int rank, struct config *config)
{
    const char *one_rank = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const char *broken = getenv("GPU_FAKE_RANK");
    uint64_t name;

    MAY_FAIL("ncclCommInitRankConfig");
    memcpy(&name, id.bytes, sizeof(name));
    *made = new_comm(ranks, rank, config);
    (*made)->hangs = hangs("ncclCommInitRankConfig");
    join_file(*made, name);
    if (broken != NULL && atoi(broken) == rank)
        (*made)->failed = SYSTEM_ERROR;
    if (ranks > 1 && one_rank != NULL && strcmp(one_rank, "0") == 0)
        (*made)->failed = INVALID_USAGE; /* they share a card here */
    return IN_PROGRESS;
}

static int state_of(struct comm *comm)
{
    int state = comm->failed;

    if (state != OK)
        return state;
    if (comm->shared == NULL && comm->parent != NULL && atomic_load(&comm->parent->child) != 0)
        join_file(comm, atomic_load(&comm->parent->child));
    state = comm->shared == NULL || comm->hangs ? IN_PROGRESS : comm->failed;
    for (int i = 0; i < comm->ranks && comm->shared != NULL; i++)
        if (!atomic_load(&comm->shared->joined[i]))
            state = IN_PROGRESS;
    return state;
}

static void launch(struct work *w);

int ncclCommGetAsyncError(struct comm *comm, int *state)
{
    if (comm == NULL)
        return INVALID_ARGUMENT;
    if (comm->later != NULL) {
        launch(comm->later);
        comm->later = NULL;
    }
    if (comm->where != NULL) {
        *state = state_of(comm->child);
        if (*state == IN_PROGRESS)
            return OK;
        *comm->where = comm->child;
        comm->where = NULL;
        comm->child = NULL;
        return OK;
    }
    *state = state_of(comm);
    if (*state == OK && comm->uses != NULL) {
        comm->uses->child = NULL;
        comm->uses = NULL;
    }
    return OK;
}

static void stop_running(struct comm *comm)
{
    atomic_store(&comm->stop, true);
    while (atomic_load(&comm->running) > 0)
        sched_yield();
    atomic_store(&comm->stop, false);
}

int ncclCommAbort(struct comm *comm)
{
    while (hangs("ncclCommAbort"))
        pause();
    if (comm->where != NULL)
        *comm->where = comm->child; /* NCCL's thread was joined, and has written it */
    else if (comm->child != NULL)
        mistake("abort of a communicator that grows");
    if (comm->uses != NULL)
        comm->uses->child = NULL;
    if (comm->later != NULL)
        free(comm->later);
    stop_running(comm);
    if (comm->shared != NULL)
        (void)munmap(comm->shared, sizeof(struct shared));
    if (comm->fd >= 0)
        (void)close(comm->fd);
    free(comm);
    return OK;
}

/* ---- what runs on the stream ---- */

enum { REDUCE, SCATTER, GATHER, BROADCAST };

struct work {
    struct comm *comm;
    struct stream *stream;
    int kind;
    const uint8_t *in;
    uint8_t *out;
    size_t elems;
    int type;
    int op;
    int root;
};

static size_t size_of(int type) { return type == 7 || type == 2 ? 4 : type == 6 || type == 9 ? 2 : 8; }

static double value_at(const uint8_t *bytes, int type, size_t i)
{
    float f;

    switch (type) {
    case 2: return ((const int32_t *)(const void *)bytes)[i];
    case 4: return (double)((const int64_t *)(const void *)bytes)[i];
    case 7: return (double)((const float *)(const void *)bytes)[i];
    case 6: half_widen_f16_plain(&f, (const uint16_t *)(const void *)bytes + i, 1); return (double)f;
    case 9: return (double)half_widen_bf16(((const uint16_t *)(const void *)bytes)[i]);
    default: return ((const double *)(const void *)bytes)[i];
    }
}

static void put_at(uint8_t *bytes, int type, size_t i, double value)
{
    float f = (float)value;

    switch (type) {
    case 2: ((int32_t *)(void *)bytes)[i] = (int32_t)value; return;
    case 4: ((int64_t *)(void *)bytes)[i] = (int64_t)value; return;
    case 7: ((float *)(void *)bytes)[i] = f; return;
    case 6: half_narrow_f16_plain((uint16_t *)(void *)bytes + i, &f, 1); return;
    case 9: ((uint16_t *)(void *)bytes)[i] = half_narrow_bf16(f); return;
    default: ((double *)(void *)bytes)[i] = value;
    }
}

/* false: stopped, by abort or revoke. */
static bool meet(struct comm *comm, uint64_t at)
{
    atomic_store(&comm->shared->at[comm->rank], at);
    for (int i = 0; i < comm->ranks; i++)
        while (atomic_load(&comm->shared->at[i]) < at) {
            if (atomic_load(&comm->stop))
                return false;
            sched_yield();
        }
    return true;
}

static double reduced(const struct work *w, size_t i)
{
    const struct comm *comm = w->comm;
    double sum = value_at(comm->shared->areas[comm->ranks - 1], w->type, i);

    for (int rank = comm->ranks - 2; rank >= 0; rank--) {
        double value = value_at(comm->shared->areas[rank], w->type, i);

        if (w->op == 2)
            sum = value > sum ? value : sum;
        else if (w->op == 3)
            sum = value < sum ? value : sum;
        else
            sum = w->type == 7 ? (double)((float)sum + (float)value) : sum + value;
    }
    return w->op == 4 ? sum / comm->ranks : sum;
}

/* Elements [at, at + n) of what each gives. */
static bool one_piece(const struct work *w, size_t at, size_t n)
{
    struct comm *comm = w->comm;
    size_t bytes = size_of(w->type);
    bool ok;

    if (w->kind != BROADCAST || w->root == comm->rank)
        memcpy(comm->shared->areas[comm->rank], w->in + at * bytes, n * bytes);
    ok = meet(comm, ++comm->round);
    for (size_t i = 0; i < n && ok; i++) {
        size_t share = (at + i) / w->elems; /* of a scatter: whose this is */

        if (w->kind == REDUCE)
            put_at(w->out, w->type, at + i, reduced(w, i));
        else if (w->kind == SCATTER && share == (size_t)comm->rank)
            put_at(w->out, w->type, (at + i) % w->elems, reduced(w, i));
    }
    for (int rank = 0; rank < comm->ranks && ok && w->kind == GATHER; rank++)
        memcpy(w->out + ((size_t)rank * w->elems + at) * bytes, comm->shared->areas[rank], n * bytes);
    if (ok && w->kind == BROADCAST)
        memcpy(w->out + at * bytes, comm->shared->areas[w->root], n * bytes);
    return ok && meet(comm, ++comm->round);
}

static void *work_thread(void *arg)
{
    struct work *w = arg;
    size_t total = w->kind == SCATTER ? w->elems * (size_t)w->comm->ranks : w->elems;
    size_t most = AREA / size_of(w->type);
    bool ok = true;

    for (size_t at = 0; at < total && ok; at += most)
        ok = one_piece(w, at, total - at < most ? total - at : most);
    atomic_fetch_sub(&w->stream->pending, 1);
    atomic_fetch_sub(&w->comm->running, 1);
    free(w);
    return NULL;
}

static void launch(struct work *w)
{
    pthread_t thread;

    atomic_fetch_add(&w->stream->pending, 1);
    atomic_fetch_add(&w->comm->running, 1);
    if (pthread_create(&thread, NULL, work_thread, w) != 0)
        abort();
    (void)pthread_detach(thread);
}

static int run(struct work given, void *stream)
{
    struct work *w = malloc(sizeof(*w));

    if (given.comm->revoked || given.comm->later != NULL)
        return INVALID_USAGE;
    given.stream = stream_of(stream);
    given.in = plain((uint64_t)(uintptr_t)given.in);
    given.out = plain((uint64_t)(uintptr_t)given.out);
    *w = given;
    given.comm->later = w;
    return IN_PROGRESS;
}

int ncclAllReduce(const void *in, void *out, size_t elems, int type, int op, struct comm *comm, void *stream)
{
    MAY_FAIL("ncclAllReduce");
    return run((struct work){ comm, NULL, REDUCE, in, out, elems, type, op, 0 }, stream);
}

int ncclReduceScatter(const void *in, void *out, size_t elems, int type, int op, struct comm *comm, void *stream)
{
    return run((struct work){ comm, NULL, SCATTER, in, out, elems, type, op, 0 }, stream);
}

int ncclAllGather(const void *in, void *out, size_t elems, int type, struct comm *comm, void *stream)
{
    return run((struct work){ comm, NULL, GATHER, in, out, elems, type, 0, 0 }, stream);
}

int ncclBroadcast(const void *in, void *out, size_t elems, int type, int root, struct comm *comm, void *stream)
{
    return run((struct work){ comm, NULL, BROADCAST, in, out, elems, type, 0, root }, stream);
}

#ifndef OLD_NCCL

int ncclCommRevoke(struct comm *comm, int flags)
{
    if (flags != 0 || comm->revoked)
        return INVALID_USAGE;
    if (comm->later != NULL)
        mistake("revoke while an operation is in progress");
    stop_running(comm);
    comm->revoked = true;
    return OK;
}

int ncclCommShrink(struct comm *comm, int *excluded, int count, struct comm **made, struct config *config, int flags)
{
    int rank = comm->rank;
    int lowest = 0;
    struct comm *child;

    MAY_FAIL("ncclCommShrink");
    if (flags != 1 || count == 0)
        return INVALID_USAGE;
    stop_running(comm);
    for (int i = 0; i < count; i++) {
        rank -= excluded[i] < comm->rank;
        lowest += excluded[i] == lowest; /* they are ascending */
    }
    child = new_comm(comm->ranks - count, rank, config);
    child->hangs = hangs("ncclCommShrink");
    child->parent = comm->shared;
    if (comm->rank == lowest) {
        child->fd = make_file();
        atomic_store(&comm->shared->child, name_file(child->fd));
    }
    *made = NULL;
    comm->child = child;
    comm->where = made;
    return OK;
}

int ncclCommGetUniqueId(struct comm *comm, struct id *id)
{
    if (comm->revoked || comm->id_given)
        return INVALID_USAGE;
    comm->id_given = true;
    return ncclGetUniqueId(id);
}

int ncclCommGrow(struct comm *comm, int ranks, const struct id *id, int rank, struct comm **made, struct config *config)
{
    uint64_t name = 0;

    MAY_FAIL("ncclCommGrow");
    if (id != NULL)
        memcpy(&name, id->bytes, sizeof(name));
    if (comm == NULL ? id == NULL || rank < 0 : rank != -1 || comm->revoked)
        return INVALID_USAGE;
    *made = new_comm(ranks, comm == NULL ? rank : comm->rank, config);
    if (comm == NULL) {
        join_file(*made, name);
        return OK;
    }
    if (id != NULL)
        atomic_store(&comm->shared->child, name);
    comm->child = *made;
    (*made)->uses = comm;
    (*made)->parent = comm->shared;
    return OK;
}

#endif
