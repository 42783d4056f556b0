/* Descriptors of the kernel (SEQPACKET sockets) are polled by libuv; each connection is one handle.
 *
 *   runner link: connect, WELCOME with the control page, STARTED and EXITED in any order ever after
 *   worker link: accept, HELLO, then messages both ways; the newest connection of a worker id is the one that counts
 *
 * A worker's socket says which worker it is only by its HELLO. on_message() looks at the token in it before anything
 * else: until then the connection is a stranger's, closes nobody's, and is the first to go when there are too many. It
 * passes no descriptors; whatever comes with a message is closed by the kernel. */
#include "workers_state_uv.h"

#include "descriptors.h"
#include "ended.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/disk.h"
#include "shoal/host.h"
#include "shoal/worker_wire.h"

#include "shoal/banned.h"

/* The slot's lock is looked at this often after its worker ended; a teardown takes about 30 ms a GB. */
#define IDLE_CHECK_MS 10
/* A runner that ends before it says WELCOME is asked for this often: its order was lost with the spawn helper. */
#define SPAWNS_MAX 3

static void on_runner_readable(uv_poll_t *poll, int status, int events);

static void job_dir(const struct workers *workers, struct shoal_job_id job, char *path, size_t cap)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(job, text);
    (void)snprintf(path, cap, "%s/%s", workers->jobs_dir, text);
}

struct runner_link *workers_runner_find(const struct workers *workers, struct shoal_job_id job)
{
    for (unsigned i = 0; i < JOBS_HERE_MAX; i++)
        if (workers->runners[i].used && !workers->runners[i].lost && shoal_job_id_equal(workers->runners[i].job, job))
            return (struct runner_link *)(uintptr_t)&workers->runners[i];
    return NULL;
}

static struct runner_link *runner_of_worker(struct workers *workers, uint64_t worker_id)
{
    for (unsigned i = 0; i < JOBS_HERE_MAX; i++) {
        struct runner_link *runner = &workers->runners[i];

        for (size_t j = 0; runner->used && j < runner->alive_count; j++)
            if (runner->alive[j].worker_id == worker_id)
                return runner;
    }
    return NULL;
}

struct worker_link *workers_link_of(struct workers *workers, uint64_t worker_id)
{
    for (struct worker_link *link = workers->links; link != NULL; link = link->next)
        if (link->known && link->worker_id == worker_id)
            return link;
    return NULL;
}

/* ---- slot locks ---- */

static bool lock_is_free(const struct workers *workers, uint32_t slot)
{
    char path[600];
    bool is_free;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%u.lock", workers->slots_dir, slot);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    is_free = flock(fd, LOCK_EX | LOCK_NB) == 0;
    (void)close(fd);
    return is_free;
}

static bool has_runner(void *arg, struct shoal_job_id job) { return workers_runner_find(arg, job) != NULL; }

/* A job can let its lock go, and kill its runner: so a slot whose runner was lost is free only when no process of the job is
 * left here. */
static uint64_t slots_with_orphans(struct workers *workers)
{
    return leftovers_hold(&workers->leftovers, workers->socket_path, has_runner, workers);
}

static void on_idle_timer(uv_timer_t *timer)
{
    struct workers *workers = timer->data;
    const uint64_t held = slots_with_orphans(workers);

    for (uint32_t slot = 0; slot < workers->options.slots; slot++) {
        if (((workers->slots_draining & ~held) >> slot & 1) == 0 || !lock_is_free(workers, slot))
            continue;
        workers->slots_draining &= ~(1ull << slot);
        workers->options.on_slot_idle(workers->options.arg, slot);
    }
    if (workers->slots_draining == 0)
        (void)uv_timer_stop(&workers->idle_timer);
}

static void slot_watch(struct workers *workers, uint32_t slot)
{
    if (slot >= workers->options.slots || workers->stopped)
        return;
    if (workers->slots_draining == 0)
        (void)uv_timer_start(&workers->idle_timer, on_idle_timer, 0, IDLE_CHECK_MS);
    workers->slots_draining |= 1ull << slot;
}

/* ---- runners ---- */

static void handle_closed(struct workers *workers)
{
    if (--workers->handles_open > 0)
        return;
    leftovers_deinit(&workers->leftovers);
    free(workers);
}

static void on_runner_poll_closed(uv_handle_t *handle)
{
    struct runner_link *runner = handle->data;
    struct workers *workers = runner->workers;
    char job[SHOAL_JOB_ID_TEXT_BYTES];

    (void)close(runner->fd);
    if (runner->lock >= 0)
        (void)close(runner->lock);
    if (runner->page != NULL)
        (void)munmap(runner->page, sizeof(*runner->page));
    shoal_buf_deinit(&runner->orders);
    free(runner->ends);
    shoal_job_id_text(runner->job, job);
    *runner = (struct runner_link){ .workers = workers };
    if (!workers->stopped)
        warm_ended(workers->warm, job);
    handle_closed(workers);
}

static void reattach_check(struct workers *workers)
{
    void (*done)(void *arg) = workers->reattached;

    if (done == NULL)
        return;
    for (unsigned i = 0; i < JOBS_HERE_MAX; i++)
        if (workers->runners[i].used && !workers->runners[i].reported)
            return;
    workers->reattached = NULL;
    for (uint32_t slot = 0; slot < workers->options.slots; slot++)
        slot_watch(workers, slot);
    done(workers->reattached_arg);
}

void workers_alive_remove(struct workers *workers, struct runner_link *runner, uint64_t worker_id)
{
    for (size_t i = 0; i < runner->alive_count; i++) {
        if (runner->alive[i].worker_id != worker_id)
            continue;
        deaths_forget(workers->deaths, worker_id);
        slot_watch(workers, runner->alive[i].slot);
        runner->alive[i] = runner->alive[--runner->alive_count];
        return;
    }
}

static struct runner_end end_of(const struct shoal_runner_message *message)
{
    struct runner_end end = { .worker_id = message->worker_id,
                              .slot = message->slot,
                              .status = message->status,
                              .signalled = message->signalled };

    memcpy(end.text, message->text, sizeof(end.text));
    return end;
}

/* False: it is to be told at once. */
static bool end_keep(struct runner_link *runner, const struct runner_end *end)
{
    if (runner->reported || runner->spawns != 0 || runner->end_count + runner->alive_count >= SHOAL_RUNNER_WORKERS_MAX)
        return false;
    if (runner->ends == NULL)
        runner->ends = calloc(SHOAL_RUNNER_WORKERS_MAX, sizeof(*runner->ends));
    if (runner->ends == NULL)
        return false;
    runner->ends[runner->end_count++] = *end;
    return true;
}

static void end_tell(struct workers *workers, const struct runner_end *end)
{
    worker_links_hear(workers, end->worker_id);
    workers->options.on_exited(workers->options.arg, end->worker_id, end->status, end->signalled, end->text);
}

static void ends_tell(struct runner_link *runner)
{
    struct workers *workers = runner->workers;

    for (size_t i = 0; i < runner->end_count; i++) {
        end_tell(workers, &runner->ends[i]);
        slot_watch(workers, runner->ends[i].slot);
    }
    runner->end_count = 0;
}

static bool runner_again(struct runner_link *runner, struct shoal_msg *why);

/* Before anybody may start another runner of it. */
static void runner_orphans(struct runner_link *runner)
{
    struct workers *workers = runner->workers;
    char job[SHOAL_JOB_ID_TEXT_BYTES];
    uint64_t slots = 0;

    shoal_job_id_text(runner->job, job);
    (void)leftovers_kill(job, workers->socket_path);
    for (size_t i = 0; i < runner->alive_count; i++)
        if (runner->alive[i].slot < workers->options.slots)
            slots |= 1ull << runner->alive[i].slot;
    leftovers_add(&workers->leftovers, runner->job, slots, runner->lock);
    runner->lock = -1;
}

/* The runner is gone: so are its workers, by the parent-death signal. */
void workers_runner_lost(struct runner_link *runner)
{
    struct workers *workers = runner->workers;
    struct shoal_msg msg = { "" };

    if (!runner->poll_open)
        return;
    if (runner->closing && runner->alive_count == 0 && !workers->stopped)
        workers->options.on_left(workers->options.arg, runner->job);
    runner->poll_open = false;
    runner->lost = true;
    (void)uv_poll_stop(&runner->poll);
    if (!runner->welcomed && runner_again(runner, &msg))
        runner->alive_count = 0; /* they are the new link's */
    if (runner->alive_count > 0)
        runner_orphans(runner);
    while (runner->alive_count > 0 && !runner->welcomed && runner->spawns > 0) { /* it has heard no order: nothing has begun */
        uint64_t worker_id = runner->alive[0].worker_id;

        workers_alive_remove(workers, runner, worker_id);
        workers->options.on_exited(workers->options.arg, worker_id, SHOAL_STATUS_UNSTARTED, false, msg.text);
    }
    while (runner->alive_count > 0) {
        uint64_t worker_id = runner->alive[0].worker_id;

        workers_alive_remove(workers, runner, worker_id);
        worker_links_hear(workers, worker_id);
        workers->options.on_exited(workers->options.arg, worker_id, SIGKILL, true,
                                   runner->was_stopped ? "the job had stopped its runner, which was ended with it"
                                                       : "the runner ended");
    }
    ends_tell(runner);
    runner->reported = true;
    uv_close((uv_handle_t *)&runner->poll, on_runner_poll_closed);
    reattach_check(workers);
}

static void on_runner_readable(uv_poll_t *poll, int status, int events);

/* All the starts of a host's slots, each with its environment, a few times over. */
#define ORDERS_BYTES_MAX (16 * SHOAL_MIB)

static bool orders_add(struct runner_link *runner, const uint8_t *bytes, size_t len)
{
    const uint32_t len32 = (uint32_t)len;
    const size_t before = runner->orders.len;

    if (before + 4 + len <= ORDERS_BYTES_MAX && shoal_buf_append(&runner->orders, (const uint8_t *)&len32, 4) == SHOAL_OK &&
        shoal_buf_append(&runner->orders, bytes, len) == SHOAL_OK)
        return true;
    runner->orders.len = before;
    return false;
}

/* After its WELCOME no other runner is told what it was told. */
static void orders_forget(struct runner_link *runner)
{
    if (runner->orders_sent < runner->orders.len)
        return; /* with the last of them */
    shoal_buf_deinit(&runner->orders);
    runner->orders_sent = 0;
}

/* What the socket has no room for goes when the runner has read: a host's slots are started at once, and it forks for each. False:
 * the runner is gone. */
static bool orders_send(struct runner_link *runner)
{
    bool later = false;

    if (!runner->poll_open)
        return false;
    while (!later && runner->orders_sent + 4 <= runner->orders.len) {
        const uint8_t *order = runner->orders.bytes + runner->orders_sent;
        uint32_t len;

        memcpy(&len, order, 4);
        later = send(runner->fd, order + 4, len, MSG_NOSIGNAL) < 0;
        if (later && errno != EAGAIN)
            return false;
        runner->orders_sent += later ? 0 : 4 + len;
    }
    (void)uv_poll_start(&runner->poll, later ? UV_READABLE | UV_WRITABLE : UV_READABLE, on_runner_readable);
    if (runner->welcomed || runner->spawns == 0)
        orders_forget(runner);
    return true;
}

static void on_welcome(struct runner_link *runner, const struct shoal_runner_message *message, int control_fd)
{
    struct workers *workers = runner->workers;
    int seals = control_fd < 0 ? -1 : fcntl(control_fd, F_GET_SEALS);
    struct stat facts;
    void *page;

    if (control_fd < 0 || runner->welcomed)
        return;
    /* A page that its job could still cut short would end this agent. Runners of the version before do not seal theirs. */
    if (fstat(control_fd, &facts) != 0 || (size_t)facts.st_size < sizeof(struct shoal_control_page) || seals < 0 ||
        (seals & (F_SEAL_SHRINK | F_SEAL_SEAL)) == 0) {
        (void)fprintf(stderr, "a runner's control page is too short, or none: its workers are not watched\n");
        return;
    }
    page = mmap(NULL, sizeof(struct shoal_control_page), PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (page != MAP_FAILED) {
        runner->page = page;
        runner->generation = runner->page->generation;
        memcpy(runner->page_head, page, sizeof(runner->page_head));
        runner->published = atomic_load(&runner->page->published);
        runner->revoked = atomic_load(&runner->page->revoked);
    }
    runner->welcomed = true;
    warm_answered(workers->warm, runner->warm_server);
    runner->awaited = message->status;
    orders_forget(runner);
}

static void watch_death(struct runner_link *runner, const struct shoal_runner_message *started)
{
    struct deaths *deaths = runner->workers->deaths;

    if (runner->page == NULL || started->slot >= SHOAL_SLOTS_MAX || started->pid <= 0)
        return;
    deaths_forget(deaths, started->worker_id); /* told of again */
    (void)deaths_watch(deaths, started->worker_id, &runner->page->slots[started->slot].robust);
}

/* watch_ends() has told of it. */
static bool ended_before(const struct runner_link *runner, uint64_t worker_id)
{
    for (size_t i = 0; i < runner->alive_count; i++)
        if (runner->alive[i].worker_id == worker_id)
            return false;
    return runner->reported;
}

static void on_runner_started(struct runner_link *runner, const struct shoal_runner_message *message)
{
    struct workers *workers = runner->workers;
    size_t at = 0;

    while (at < runner->alive_count && runner->alive[at].worker_id != message->worker_id)
        at++;
    if (at == SHOAL_RUNNER_WORKERS_MAX)
        return; /* whom we cannot know we do not watch either: nothing would end that before the page goes */
    watch_death(runner, message);
    if (at < runner->alive_count) {
        runner->alive[at].pid = message->pid;
    } else {
        runner->alive[runner->alive_count++] = (struct workers_alive){ .worker_id = message->worker_id,
                                                                       .slot = message->slot,
                                                                       .pid = message->pid,
                                                                       .frozen = message->status == 1,
                                                                       .freeze_at_ns = message->freeze_at_ns };
        if (!runner->reported)
            return;
    }
    if (message->pid > 0)
        workers->options.on_started(workers->options.arg, message->worker_id, message->pid);
}

static void on_runner_exited(struct runner_link *runner, const struct shoal_runner_message *message)
{
    struct workers *workers = runner->workers;
    struct runner_end end = end_of(message); /* what the worker said last may bring about orders, which take the message's place */

    if (ended_before(runner, end.worker_id))
        return; /* its slot may be another's by now */
    slot_watch(workers, end.slot);
    workers_alive_remove(workers, runner, end.worker_id);
    if (!end_keep(runner, &end))
        end_tell(workers, &end);
}

static void on_runner_message(struct runner_link *runner, const struct shoal_runner_message *message)
{
    runner->awaited--;
    if (message->kind == SHOAL_RUNNER_STARTED)
        on_runner_started(runner, message);
    else if (message->kind == SHOAL_RUNNER_EXITED)
        on_runner_exited(runner, message);
}

/* One datagram and maybe a descriptor; what else is passed is closed, since the padding of the space for one holds two.
 * 0: nothing now; negative: the other end is gone. */
static ssize_t receive(int fd, uint8_t *bytes, size_t cap, int *passed)
{
    struct iovec part = { .iov_base = bytes, .iov_len = cap };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)
    };
    ssize_t len = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *c;

    if (len < 0 && errno == ECONNRESET) /* before what it said last */
        len = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *passed = -1;
    if (len < 0)
        return shoal_worker_recv_later(errno) ? 0 : -1;
    c = CMSG_FIRSTHDR(&header);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
            int one;

            memcpy(&one, (const uint8_t *)c + at, sizeof(one));
            if (*passed < 0)
                *passed = one;
            else
                (void)close(one);
        }
    if (len == 0 && *passed >= 0)
        (void)close(*passed);
    return len == 0 ? -1 : len;
}

static void runner_report(struct runner_link *runner)
{
    struct workers *workers = runner->workers;
    struct workers_alive all[SHOAL_RUNNER_WORKERS_MAX];
    size_t count = runner->alive_count;

    memcpy(all, runner->alive, count * sizeof(all[0]));
    for (size_t i = 0; i < runner->end_count && count < SHOAL_RUNNER_WORKERS_MAX; i++)
        all[count++] = (struct workers_alive){ .worker_id = runner->ends[i].worker_id,
                                               .slot = runner->ends[i].slot,
                                               .pid = WORKERS_ENDED };
    runner->reported = true;
    workers->options.on_runner(workers->options.arg, runner->job, runner->generation, all, count);
    ends_tell(runner);
}

static void on_runner_readable(uv_poll_t *poll, int status, int events)
{
    struct runner_link *runner = poll->data;
    struct workers *workers = runner->workers;

    if (status == 0 && (events & UV_WRITABLE) != 0 && !orders_send(runner))
        status = -1;
    /* After an error, which is told once, what the runner said is read to its end. */
    for (unsigned i = 0; status < 0 || i < TURN_MESSAGES_MAX; i++) {
        int passed;
        ssize_t len = receive(runner->fd, workers->bytes, sizeof(workers->bytes), &passed);

        if (len == 0)
            break;
        if (len < 0) {
            status = -1;
            break;
        }
        if (shoal_runner_decode(shoal_view_of(workers->bytes, (size_t)len), &workers->command) == SHOAL_OK) {
            if (workers->command.kind == SHOAL_RUNNER_WELCOME)
                on_welcome(runner, &workers->command, passed);
            else
                on_runner_message(runner, &workers->command);
        }
        if (passed >= 0)
            (void)close(passed);
        if (!runner->poll_open)
            return;
    }
    if (status < 0) {
        workers_runner_lost(runner);
        return;
    }
    if (runner->welcomed && runner->awaited <= 0 && !runner->reported) {
        runner_report(runner);
        reattach_check(workers);
    }
}

static enum shoal_err socket_name(struct sockaddr_un *name, const char *path, struct shoal_msg *msg)
{
    *name = (struct sockaddr_un){ .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof(name->sun_path))
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                          "%s: longer than a socket's path may be (%zu); choose a shorter data folder", path,
                          sizeof(name->sun_path) - 1);
    memcpy(name->sun_path, path, strlen(path) + 1);
    return SHOAL_OK;
}

static enum shoal_err runner_connect(struct workers *workers, struct shoal_job_id job, uint32_t generation,
                                     struct runner_link **found, struct shoal_msg *msg)
{
    struct runner_link *runner = NULL;
    struct sockaddr_un name;
    char path[600];
    enum shoal_err err;
    int fd;

    for (unsigned i = 0; i < JOBS_HERE_MAX && runner == NULL; i++)
        if (!workers->runners[i].used)
            runner = &workers->runners[i];
    if (runner == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "more than %d jobs run on this host", JOBS_HERE_MAX);
    job_dir(workers, job, path, sizeof(path) - 16);
    memcpy(path + strlen(path), "/runner.sock", 13);
    err = socket_name(&name, path, msg);
    if (err != SHOAL_OK)
        return err;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* its job may listen there, and accept nobody */
    if (fd < 0 || connect(fd, (const struct sockaddr *)&name, sizeof(name)) != 0) {
        err = shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "%s: no runner answers: %s%s", path, strerror(errno),
                         errno == EMFILE ? "; " DESCRIPTORS_REMEDY : "");
        if (fd >= 0)
            (void)close(fd);
        return err;
    }
    path[strlen(path) - 12] = '\0'; /* the folder again */
    *runner = (struct runner_link){ .workers = workers,
                                    .used = true,
                                    .job = job,
                                    .generation = generation,
                                    .fd = fd,
                                    .lock = leftovers_find(path),
                                    .poll_open = true };
    (void)uv_poll_init(workers->options.loop, &runner->poll, fd);
    workers->handles_open++;
    runner->poll.data = runner;
    (void)uv_poll_start(&runner->poll, UV_READABLE, on_runner_readable);
    workers_watch_start(workers);
    *found = runner;
    return SHOAL_OK;
}

/* A socket that a runner will listen on: made here, so that we may connect before the runner has come up. */
static enum shoal_err runner_socket(const char *dir, int *fd, struct shoal_msg *msg)
{
    struct sockaddr_un name;
    char path[600];
    enum shoal_err err;

    (void)snprintf(path, sizeof(path), "%s/runner.sock", dir);
    err = socket_name(&name, path, msg);
    if (err != SHOAL_OK)
        return err;
    (void)unlink(path);
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && bind(*fd, (const struct sockaddr *)&name, sizeof(name)) == 0 && listen(*fd, 4) == 0)
        return SHOAL_OK;
    err = shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot listen: %s; %s", path, strerror(errno), shoal_disk_remedy(errno));
    if (*fd >= 0)
        (void)close(*fd);
    return err;
}

/* `warm`: the first worker's start, where a warm interpreter is to fork the runner; NULL: the spawn helper does. */
static enum shoal_err runner_spawn(struct workers *workers, struct shoal_job_id job, uint32_t generation,
                                   const struct shoal_runner_start *warm, uint64_t *warm_server, struct shoal_msg *msg)
{
    struct spawn_order order = { .generation = generation };
    struct shoal_msg why = { "" };
    struct spawn_fds fds;
    enum shoal_err err;

    *warm_server = 0;
    shoal_job_id_text(job, order.job);
    job_dir(workers, job, order.dir, sizeof(order.dir));
    (void)mkdir(order.dir, 0700);
    err = runner_socket(order.dir, &fds.listener, msg);
    if (err != SHOAL_OK)
        return err;
    err = leftovers_lock(order.dir, &fds.lock, msg);
    if (err != SHOAL_OK) {
        (void)close(fds.listener);
        return err;
    }
    err = warm == NULL ? SHOAL_ERR_UNREACHABLE : warm_runner(workers->warm, warm, &order, &fds, warm_server, &why);
    if (err != SHOAL_OK && why.text[0] != '\0')
        workers->options.on_cold(workers->options.arg, job, why.text);
    if (err != SHOAL_OK)
        err = spawner_runner(workers->spawner, &order, &fds, msg);
    (void)close(fds.listener);
    (void)close(fds.lock);
    return err;
}

/* The same, and the agent's connection to it. The helper's own word says more than a socket that is closed already. */
static enum shoal_err runner_begin(struct workers *workers, struct shoal_job_id job, uint32_t generation, const struct shoal_runner_start *warm,
                                   struct runner_link **runner, struct shoal_msg *msg)
{
    char job_text[SHOAL_JOB_ID_TEXT_BYTES];
    uint64_t warm_server;
    enum shoal_err err = runner_spawn(workers, job, generation, warm, &warm_server, msg);
    const char *why;

    if (err != SHOAL_OK)
        return err;
    err = runner_connect(workers, job, generation, runner, msg);
    if (err == SHOAL_OK) {
        (*runner)->warm_server = warm_server;
        return SHOAL_OK;
    }
    shoal_job_id_text(job, job_text);
    why = spawner_why(workers->spawner, job_text);
    return why[0] == '\0' ? err : shoal_fail(msg, err, "%s", why);
}

/* P3 of spawn.h: the order was lost, and nothing of it has begun, since a runner says WELCOME before it hears what it is
 * told. Another runner takes the same orders. False: it was tried often enough, or cannot be tried; `why` says so. */
static bool runner_again(struct runner_link *runner, struct shoal_msg *why)
{
    struct workers *workers = runner->workers;
    char job[SHOAL_JOB_ID_TEXT_BYTES];
    struct runner_link *next;

    if (runner->spawns == 0 || runner->spawns == SPAWNS_MAX || workers->stopped) {
        shoal_job_id_text(runner->job, job);
        (void)snprintf(why->text, sizeof(why->text), "%s", spawner_why(workers->spawner, job));
        if (why->text[0] == '\0')
            (void)snprintf(why->text, sizeof(why->text), "its runner ended before it took an order, in each of %u tries; see the log "
                           "of this host's agent", runner->spawns);
        return false;
    }
    if (runner->warm_server != 0) {
        warm_failed(workers->warm, runner->warm_server);
        workers->options.on_cold(workers->options.arg, runner->job, "the warm interpreter ended, or did not answer");
    }
    if (runner_begin(workers, runner->job, runner->generation, NULL, &next, why) != SHOAL_OK) {
        (void)fprintf(stderr, "a runner was lost, and no other can be started: %s\n", why->text);
        return false;
    }
    next->spawns = runner->spawns + 1;
    next->orders = runner->orders;
    next->alive_count = runner->alive_count;
    memcpy(next->alive, runner->alive, sizeof(next->alive));
    runner->orders = (struct shoal_buf){ 0 };
    runner->orders_sent = 0;
    (void)orders_send(next); /* not taken: it is lost in its turn */
    return true;
}

static enum shoal_err command_send(struct workers *workers, struct runner_link *runner, struct shoal_msg *msg)
{
    bool must_wait = runner->orders_sent < runner->orders.len; /* orders keep their order */
    size_t len;
    enum shoal_err err = shoal_runner_encode(&workers->command, workers->bytes, sizeof(workers->bytes), &len);

    if (err != SHOAL_OK)
        return shoal_fail(msg, err, "arguments and environment exceed %u bytes", (unsigned)sizeof(workers->bytes));
    if ((runner->welcomed || runner->spawns == 0) && !must_wait) {
        if (send(runner->fd, workers->bytes, len, MSG_NOSIGNAL) >= 0)
            return SHOAL_OK;
        must_wait = errno == EAGAIN && workers->command.kind == SHOAL_RUNNER_START;
        if (!must_wait)
            return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the runner does not take orders: %s", strerror(errno));
    }
    if (!orders_add(runner, workers->bytes, len))
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for an order to a runner, or too many wait for it");
    (void)orders_send(runner); /* not taken before the WELCOME: it is said again to the next one */
    return SHOAL_OK;
}

enum shoal_err workers_start(struct workers *workers, struct shoal_job_id job, uint32_t generation,
                             const struct shoal_runner_start *start, struct shoal_msg *msg)
{
    struct runner_link *runner = workers_runner_find(workers, job);
    enum shoal_err err;

    if (runner == NULL) {
        err = runner_begin(workers, job, generation, start->warm == SHOAL_WARM_NONE ? NULL : start, &runner, msg);
        if (err != SHOAL_OK)
            return err;
        runner->spawns = 1;
        runner->asked_ns = uv_hrtime();
    }
    if (runner->alive_count == SHOAL_RUNNER_WORKERS_MAX)
        return shoal_fail(msg, SHOAL_ERR_FULL, "more than %d workers of one job on this host",
                          SHOAL_RUNNER_WORKERS_MAX);
    workers->command =
        (struct shoal_runner_message){ .kind = SHOAL_RUNNER_START, .worker_id = start->worker_id, .slot = start->slot };
    workers->command.start = *start;
    err = command_send(workers, runner, msg);
    if (err == SHOAL_OK)
        runner->alive[runner->alive_count++] = (struct workers_alive){ .worker_id = start->worker_id,
                                                                       .slot = start->slot,
                                                                       .freeze_at_ns = start->freeze_at_ns };
    return err;
}

void workers_slot_left(struct workers *workers, uint32_t slot) { slot_watch(workers, slot); }

/* It takes no order: its reader finds the end in the next turn. Not here, where what its workers said last would be told within the
 * step of the core that gives the order. */
static void runner_hang_up(struct runner_link *runner) { (void)shutdown(runner->fd, SHUT_RDWR); }

static void order(struct workers *workers, uint8_t kind, uint64_t worker_id, uint64_t a, uint64_t b)
{
    struct runner_link *runner = runner_of_worker(workers, worker_id);
    struct shoal_msg msg;

    if (runner == NULL)
        return;
    workers->command = (struct shoal_runner_message){ .kind = kind, .worker_id = worker_id };
    if (kind == SHOAL_RUNNER_RENEW) {
        workers->command.freeze_at_ns = a;
        workers->command.kill_at_ns = b;
    } else {
        workers->command.grace_ns = a;
    }
    if (command_send(workers, runner, &msg) != SHOAL_OK)
        runner_hang_up(runner);
}

void workers_renew(struct workers *workers, uint64_t worker_id, uint64_t freeze_at_ns, uint64_t kill_at_ns)
{
    order(workers, SHOAL_RUNNER_RENEW, worker_id, freeze_at_ns, kill_at_ns);
}

void workers_freeze(struct workers *workers, uint64_t worker_id)
{
    order(workers, SHOAL_RUNNER_FREEZE, worker_id, 0, 0);
}
void workers_thaw(struct workers *workers, uint64_t worker_id) { order(workers, SHOAL_RUNNER_THAW, worker_id, 0, 0); }

void workers_kill(struct workers *workers, uint64_t worker_id, uint64_t grace_ns)
{
    struct runner_link *runner = runner_of_worker(workers, worker_id);
    uint64_t end_by_ns = uv_hrtime() + grace_ns + STOPPED_RUNNER_NS;

    for (size_t i = 0; runner != NULL && i < runner->alive_count; i++) {
        struct workers_alive *one = &runner->alive[i];

        if (one->worker_id == worker_id && (one->end_by_ns == 0 || end_by_ns < one->end_by_ns))
            one->end_by_ns = end_by_ns;
    }
    order(workers, SHOAL_RUNNER_KILL, worker_id, grace_ns, 0);
}

void workers_close(struct workers *workers, struct shoal_job_id job)
{
    struct runner_link *runner = workers_runner_find(workers, job);
    struct shoal_msg msg;

    if (runner == NULL)
        return;
    workers->command = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_CLOSE };
    if (command_send(workers, runner, &msg) == SHOAL_OK)
        runner->closing = true;
    else
        runner_hang_up(runner);
}

const struct shoal_control_page *workers_page(const struct workers *workers, struct shoal_job_id job)
{
    const struct runner_link *runner = workers_runner_find(workers, job);

    return runner == NULL ? NULL : runner->page;
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void workers_revoke(struct workers *workers, struct shoal_job_id job, uint64_t epoch_word)
{
    struct runner_link *runner = workers_runner_find(workers, job);

    if (runner == NULL || runner->page == NULL)
        return;
    if (runner->revoked < epoch_word) {
        uint64_t seen = runner->revoked;

        runner->revoked = epoch_word;
        (void)atomic_compare_exchange_strong(&runner->page->revoked, &seen, epoch_word); /* another word stays, to be found */
    }
    (void)atomic_fetch_add(&runner->page->revoke_futex, 1);
    futex_wake_all(&runner->page->revoke_futex);
}

/* ---- life ---- */

static bool is_quiet(void *arg)
{
    const struct workers *workers = arg;

    for (unsigned i = 0; i < JOBS_HERE_MAX; i++)
        if (workers->runners[i].used)
            return false;
    return true;
}

static void on_dying(void *arg, uint64_t worker_id)
{
    struct workers *workers = arg;

    worker_links_hear(workers, worker_id);
    workers->options.on_dying(workers->options.arg, worker_id);
}

enum shoal_err workers_create(struct workers **out, const struct workers_options *options, struct shoal_msg *msg)
{
    struct workers *workers = calloc(1, sizeof(*workers));
    struct sockaddr_un name;
    enum shoal_err err;

    if (workers == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the workers' table");
    workers->options = *options;
    (void)snprintf(workers->jobs_dir, sizeof(workers->jobs_dir), "%s", options->jobs_dir);
    (void)snprintf(workers->slots_dir, sizeof(workers->slots_dir), "%s", options->slots_dir);
    (void)snprintf(workers->socket_path, sizeof(workers->socket_path), "%s", options->socket_path);
    (void)mkdir(workers->jobs_dir, 0700);
    (void)mkdir(workers->slots_dir, 0700);
    err = socket_name(&name, options->socket_path, msg);
    if (err != SHOAL_OK)
        goto release;
    (void)unlink(options->socket_path);
    workers->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (workers->listener < 0 || bind(workers->listener, (const struct sockaddr *)&name, sizeof(name)) != 0 ||
        listen(workers->listener, 64) != 0) {
        err = shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot listen for workers: %s", options->socket_path,
                         strerror(errno));
        goto release;
    }
    (void)uv_poll_init(options->loop, &workers->listener_poll, workers->listener);
    workers->listener_poll.data = workers;
    (void)uv_poll_start(&workers->listener_poll, UV_READABLE, worker_links_on_connect);
    (void)uv_timer_init(options->loop, &workers->listen_timer);
    workers->listen_timer.data = workers;
    (void)uv_timer_init(options->loop, &workers->idle_timer);
    workers->idle_timer.data = workers;
    (void)uv_timer_init(options->loop, &workers->watchdog);
    workers->watchdog.data = workers;
    err = spawner_create(&workers->spawner, options->loop, msg);
    if (err != SHOAL_OK)
        return err; /* the process ends */
    err = warm_create(&workers->warm,
                      &(struct warm_options){ .loop = options->loop,
                                              .native = options->native_dir,
                                              .memory_bytes = options->warm_memory_bytes,
                                              .is_quiet = is_quiet,
                                              .arg = workers },
                      msg);
    if (err != SHOAL_OK)
        return err;
    workers->handles_open = 7;
    err = deaths_create(&workers->deaths, options->loop, on_dying, workers);
    if (err != SHOAL_OK)
        return shoal_fail(msg, err, "no memory, or no thread, for the watch over workers"); /* the process ends */
    *out = workers;
    return SHOAL_OK;
release:
    free(workers);
    return err;
}

/* None answers: nothing of it runs, unless its runner was killed while no agent was there. */
static void runner_reattach(struct workers *workers, struct shoal_job_id job)
{
    struct runner_link *runner;
    struct shoal_msg msg;
    char path[600];
    int lock;

    if (runner_connect(workers, job, 0, &runner, &msg) == SHOAL_OK)
        return;
    job_dir(workers, job, path, sizeof(path));
    lock = leftovers_find(path);
    if (lock >= 0 && !leftovers_lock_is_free(lock))
        leftovers_add(&workers->leftovers, job, UINT64_MAX, lock);
    else if (lock >= 0)
        (void)close(lock);
}

void workers_reattach(struct workers *workers, void (*done)(void *arg), void *arg)
{
    DIR *dir = opendir(workers->jobs_dir);
    const struct dirent *entry;

    workers->reattached = done;
    workers->reattached_arg = arg;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        struct shoal_job_id job;

        if (entry->d_name[0] != '.' && shoal_job_id_parse(entry->d_name, &job))
            runner_reattach(workers, job);
    }
    if (dir != NULL)
        (void)closedir(dir);
    reattach_check(workers);
}

static void on_part_stopped(void *arg) { handle_closed(arg); }

static void on_handle_closed(uv_handle_t *handle) { handle_closed(handle->data); }

void workers_stop(struct workers *workers)
{
    workers->stopped = true;
    deaths_stop(workers->deaths, on_part_stopped, workers);
    spawner_stop(workers->spawner, on_part_stopped, workers);
    warm_stop(workers->warm, on_part_stopped, workers);
    while (workers->links != NULL)
        worker_link_close(workers->links);
    for (unsigned i = 0; i < JOBS_HERE_MAX; i++) {
        struct runner_link *runner = &workers->runners[i];

        if (!runner->used || !runner->poll_open)
            continue;
        runner->poll_open = false;
        (void)uv_poll_stop(&runner->poll);
        uv_close((uv_handle_t *)&runner->poll, on_runner_poll_closed);
    }
    (void)uv_poll_stop(&workers->listener_poll);
    (void)close(workers->listener);
    uv_close((uv_handle_t *)&workers->listener_poll, on_handle_closed);
    uv_close((uv_handle_t *)&workers->listen_timer, on_handle_closed);
    uv_close((uv_handle_t *)&workers->idle_timer, on_handle_closed);
    uv_close((uv_handle_t *)&workers->watchdog, on_handle_closed);
}
