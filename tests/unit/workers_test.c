/* The agent's side of runners and workers, with a runner that this test plays. */
#include "node/runner/workers.h"

#include <setjmp.h>
#include <stdarg.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "shoal/worker_wire.h"

#include "shoal/banned.h"

#define JOB "shoal-0123456789abcdef"

static unsigned looks_at_all; /* of the host's processes */

__attribute__((visibility("default"))) DIR *opendir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    looks_at_all += strcmp(path, "/proc") == 0;
    return fd < 0 ? NULL : fdopendir(fd);
}

struct fixture {
    uv_loop_t loop;
    char dir[32];
    struct workers *workers;
    int listener, agent; /* of the runner that is played */
    struct shoal_control_page *page;
    int page_fd;
    unsigned left, idle;
    unsigned runners, stepped, dying;
    unsigned exits, exits_before_runner;
    size_t alive_count;
    struct workers_alive alive[4];
    uint64_t step, step_worker;
    bool knows; /* the worker that says HELLO, with the token of ones */
    unsigned asked;
    unsigned hellos, hellos_at_exit;
    bool answers; /* each HELLO, at once */
    bool orders;  /* something of worker 12, at each HELLO */
    bool ordering; /* an order is being given: nobody is called */
    uint64_t exited;
    int32_t exit_status;
    unsigned pages; /* told of */
};

static void on_started(void *arg, uint64_t worker_id, int32_t pid)
{
    (void)arg;
    (void)worker_id;
    assert_true(pid > 0);
}

static void on_exited(void *arg, uint64_t worker_id, int32_t status, bool signalled, const char *text)
{
    struct fixture *f = arg;

    (void)signalled;
    (void)text;
    assert_false(f->ordering);
    f->exited = worker_id;
    f->exit_status = status;
    f->exits++;
    f->hellos_at_exit = f->hellos;
    f->exits_before_runner += f->runners == 0;
}

static void on_runner(void *arg, struct shoal_job_id job, uint32_t generation, const struct workers_alive *alive,
                      size_t count)
{
    struct fixture *f = arg;

    (void)job;
    assert_int_equal(generation, 3);
    assert_true(count <= 4);
    f->runners++;
    f->alive_count = count;
    memcpy(f->alive, alive, count * sizeof(*alive));
}

static bool knows(void *arg, struct shoal_job_id job, const struct shoal_worker_hello *hello)
{
    struct fixture *f = arg;

    (void)job;
    f->asked++;
    return f->knows && hello->token[0] == 1;
}

static bool on_message(void *arg, struct shoal_job_id job, uint64_t worker_id,
                       const struct shoal_worker_message *message)
{
    static const struct shoal_worker_message call = { .kind = SHOAL_WORKER_WRITE_FINAL };
    struct fixture *f = arg;

    (void)job;
    assert_int_equal(worker_id, 11);
    assert_int_equal(message->kind, SHOAL_WORKER_HELLO);
    assert_false(f->ordering);
    f->hellos++;
    if (f->orders)
        workers_renew(f->workers, 12, 1, 2);
    if (f->answers)
        workers_send(f->workers, worker_id, &call);
    return true;
}

static void on_slot_idle(void *arg, uint32_t slot)
{
    (void)slot;
    ((struct fixture *)arg)->idle++;
}

static void on_stuck(void *arg, uint64_t worker_id)
{
    (void)arg;
    (void)worker_id;
}

static void on_dying(void *arg, uint64_t worker_id)
{
    struct fixture *f = arg;

    f->dying++;
    f->step_worker = worker_id;
}

static void on_stands(void *arg, uint64_t worker_id, uint64_t epoch_word, uint8_t activity)
{
    (void)arg;
    (void)worker_id;
    (void)epoch_word;
    (void)activity;
}

static void on_stepped(void *arg, uint64_t worker_id, uint64_t epoch_word, uint64_t step)
{
    struct fixture *f = arg;

    assert_int_equal(epoch_word, (uint64_t)2 << 32);
    f->stepped++;
    f->step = step;
    f->step_worker = worker_id;
}

static void on_page(void *arg, struct shoal_job_id job)
{
    struct fixture *f = arg;

    (void)job;
    f->pages++;
}

static void on_left(void *arg, struct shoal_job_id job)
{
    struct fixture *f = arg;

    (void)job;
    f->left++;
}

static void say(struct fixture *f, const struct shoal_runner_message *message, int fd_to_pass)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    struct iovec part = { .iov_base = bytes };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };

    assert_int_equal(shoal_runner_encode(message, bytes, sizeof(bytes), &part.iov_len), SHOAL_OK);
    if (fd_to_pass >= 0) {
        header.msg_control = control.space;
        header.msg_controllen = sizeof(control.space);
        control.header =
            (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
        memcpy(CMSG_DATA(&control.header), &fd_to_pass, sizeof(int));
    }
    assert_int_equal(sendmsg(f->agent, &header, MSG_NOSIGNAL), (ssize_t)part.iov_len);
}

/* Reads all that is readable; more turns than there are messages. */
static void turns(struct fixture *f)
{
    for (unsigned i = 0; i < 20; i++)
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
}

static struct shoal_runner_message *fresh(uint8_t kind, uint64_t worker_id, uint32_t slot, int32_t pid)
{
    static struct shoal_runner_message message;

    message = (struct shoal_runner_message){ .kind = kind, .worker_id = worker_id, .slot = slot, .pid = pid };
    return &message;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct workers_options options = { .slots = 4,
                                       .on_started = on_started,
                                       .on_exited = on_exited,
                                       .on_runner = on_runner,
                                       .on_left = on_left,
                                       .knows = knows,
                                       .on_message = on_message,
                                       .on_slot_idle = on_slot_idle,
                                       .on_stuck = on_stuck,
                                       .on_dying = on_dying,
                                       .on_stepped = on_stepped,
                                       .on_stands = on_stands,
                                       .on_page = on_page };
    char jobs[64], slots[64], path[64];
    struct shoal_msg msg;

    *state = f;
    f->agent = -1;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    memcpy(f->dir, "/tmp/shoal-workers-XXXXXX", 26);
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(jobs, sizeof(jobs), "%s/jobs", f->dir);
    (void)snprintf(slots, sizeof(slots), "%s/slots", f->dir);
    (void)snprintf(path, sizeof(path), "%s/w.sock", f->dir);
    options.loop = &f->loop;
    options.arg = f;
    options.jobs_dir = jobs;
    options.slots_dir = slots;
    options.socket_path = path;
    assert_int_equal(workers_create(&f->workers, &options, &msg), SHOAL_OK);
    (void)snprintf(name.sun_path, sizeof(name.sun_path), "%s/jobs/" JOB, f->dir);
    assert_int_equal(mkdir(name.sun_path, 0700), 0);
    (void)snprintf(name.sun_path, sizeof(name.sun_path), "%s/jobs/" JOB "/runner.sock", f->dir);
    f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(f->listener, 4), 0);
    f->page_fd = memfd_create("page", MFD_CLOEXEC);
    assert_int_equal(ftruncate(f->page_fd, sizeof(*f->page)), 0);
    f->page = mmap(NULL, sizeof(*f->page), PROT_READ | PROT_WRITE, MAP_SHARED, f->page_fd, 0);
    assert_true(f->page != MAP_FAILED);
    f->page->generation = 3;
    return 0;
}

static void on_reattached(void *arg) { (void)arg; }

static int teardown(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = { ("jobs/" JOB "/runner.sock"),
                                         ("jobs/" JOB "/alive"),
                                         ("jobs/" JOB),
                                         "jobs",
                                         "slots/0.lock",
                                         "slots/1.lock",
                                         "slots/2.lock",
                                         "slots/3.lock",
                                         "slots",
                                         "w.sock",
                                         "" };
    char path[128];

    if (f->agent >= 0)
        (void)close(f->agent);
    workers_stop(f->workers);
    turns(f);
    (void)uv_loop_close(&f->loop);
    (void)close(f->listener);
    (void)close(f->page_fd);
    (void)munmap(f->page, sizeof(*f->page));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", f->dir, names[i]);
        (void)remove(path);
    }
    free(f);
    return 0;
}

static int dial(struct fixture *f)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    (void)snprintf(name.sun_path, sizeof(name.sun_path), "%s/w.sock", f->dir);
    assert_int_equal(connect(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    return fd;
}

static bool say_later; /* the loop has no turn after what is said */

static void say_on(struct fixture *f, int fd, uint8_t kind, uint64_t worker_id, uint8_t token, const int *fds)
{
    static struct shoal_worker_message message;
    static uint8_t bytes[SHOAL_WORKER_MESSAGE_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct iovec part = { .iov_base = bytes };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = { 0 };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };

    message = (struct shoal_worker_message){ .kind = kind };
    if (kind == SHOAL_WORKER_HELLO) {
        message.hello.worker_id = worker_id;
        memset(message.hello.token, token, sizeof(message.hello.token));
    }
    assert_int_equal(shoal_worker_encode(&message, &w), SHOAL_OK);
    part.iov_len = w.len;
    if (fds != NULL) {
        header.msg_control = control.space;
        header.msg_controllen = sizeof(control.space);
        control.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                                           .cmsg_type = SCM_RIGHTS,
                                           .cmsg_len = CMSG_LEN(2 * sizeof(int)) };
        memcpy(CMSG_DATA(&control.header), fds, 2 * sizeof(int));
    }
    assert_int_equal(sendmsg(fd, &header, MSG_NOSIGNAL), (ssize_t)w.len);
    if (!say_later)
        turns(f);
}

static int say_hello(struct fixture *f)
{
    int fd = dial(f);

    say_on(f, fd, SHOAL_WORKER_HELLO, 11, 1, NULL);
    return fd;
}

static bool is_closed(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) != -1;
}

/* It has something unread when it ends: the socket says so before it gives what the worker said last. */
static void the_last_words_of_a_worker_that_did_not_listen_are_heard(void **state)
{
    static struct shoal_worker_message call = { .kind = SHOAL_WORKER_WRITE_FINAL };
    struct fixture *f = *state;
    int worker;

    f->knows = true;
    worker = say_hello(f);
    workers_send(f->workers, 11, &call);
    say_later = true;
    say_on(f, worker, SHOAL_WORKER_HELLO, 11, 1, NULL);
    say_later = false;
    (void)close(worker);
    assert_int_equal(f->hellos, 1);
    turns(f);
    assert_int_equal(f->hellos, 2);
}

/* Its answer finds nobody, and what came behind the question is heard all the same. */
static void a_worker_that_is_gone_when_it_is_answered_is_heard_to_its_end(void **state)
{
    struct fixture *f = *state;
    int worker;

    f->knows = f->answers = true;
    worker = dial(f);
    say_later = true;
    for (unsigned i = 0; i < 3; i++)
        say_on(f, worker, SHOAL_WORKER_HELLO, 11, 1, NULL);
    say_later = false;
    (void)close(worker);
    turns(f);
    assert_int_equal(f->hellos, 3);
    worker = say_hello(f); /* and it may come again */
    assert_int_equal(f->hellos, 4);
    (void)close(worker);
    turns(f);
}

/* Why it failed is among what it said. */
static void a_worker_that_is_gone_when_it_is_told_something_is_heard_to_its_end(void **state)
{
    static struct shoal_worker_message call = { .kind = SHOAL_WORKER_WRITE_FINAL };
    struct fixture *f = *state;
    int worker;

    f->knows = true;
    worker = say_hello(f);
    say_later = true;
    for (unsigned i = 0; i < 10; i++)
        say_on(f, worker, SHOAL_WORKER_HELLO, 11, 1, NULL);
    say_later = false;
    (void)close(worker);
    workers_send(f->workers, 11, &call);
    workers_send(f->workers, 11, &call);
    assert_int_equal(f->hellos, 1); /* in a turn of its own: steps do not nest */
    turns(f);
    assert_int_equal(f->hellos, 11);
}

/* It has to connect again, and to hear what it needs. */
static void a_worker_that_does_not_listen_is_hung_up_on(void **state)
{
    static struct shoal_worker_message call = { .kind = SHOAL_WORKER_WRITE_FINAL };
    static uint8_t bytes[SHOAL_WORKER_MESSAGE_MAX];
    struct fixture *f = *state;
    int worker;

    f->knows = true;
    worker = say_hello(f);
    for (unsigned i = 0; i < 10000; i++)
        workers_send(f->workers, 11, &call);
    turns(f);
    while (recv(worker, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        continue;
    assert_true(is_closed(worker));
    (void)close(worker);
}

/* Its runner has not answered an agent that has just started: a HELLO that was only dropped would never come again. */
static void a_worker_that_is_not_known_yet_is_hung_up_on(void **state)
{
    struct fixture *f = *state;
    int fd = say_hello(f);

    assert_int_equal(f->asked, 1);
    assert_int_equal(f->hellos, 0);
    assert_true(is_closed(fd));
    (void)close(fd);
    f->knows = true;
    fd = say_hello(f);
    assert_int_equal(f->hellos, 1);
    assert_false(is_closed(fd));
    (void)close(fd);
    turns(f);
}

/* With a worker's id and a guessed token, with another worker's id once its own was shown, or with none at all. */
static void a_stranger_closes_no_workers_connection(void **state)
{
    struct fixture *f = *state;
    int worker, stranger;

    f->knows = true;
    worker = say_hello(f);
    stranger = dial(f);
    say_on(f, stranger, SHOAL_WORKER_HELLO, 11, 2, NULL);
    assert_true(is_closed(stranger));
    assert_false(is_closed(worker));
    (void)close(stranger);
    stranger = dial(f);
    say_on(f, stranger, SHOAL_WORKER_DONE, 0, 0, NULL);
    assert_true(is_closed(stranger));
    (void)close(stranger);
    assert_int_equal(f->hellos, 1);
    assert_false(is_closed(worker));
    say_on(f, worker, SHOAL_WORKER_HELLO, 12, 1, NULL); /* it speaks for itself alone */
    assert_true(is_closed(worker));
    assert_int_equal(f->hellos, 1);
    (void)close(worker);
    turns(f);
}

static unsigned descriptors(void)
{
    unsigned count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) != -1;
    return count;
}

static void descriptors_that_come_along_are_closed(void **state)
{
    struct fixture *f = *state;
    unsigned before;
    int fds[2], worker;

    f->knows = true;
    fds[0] = dup(f->page_fd);
    fds[1] = dup(f->page_fd);
    worker = say_hello(f);
    before = descriptors();
    for (unsigned i = 0; i < 50; i++)
        say_on(f, worker, SHOAL_WORKER_HELLO, 11, 1, fds);
    assert_int_equal(f->hellos, 51);
    assert_int_equal(descriptors(), before);
    (void)close(worker);
    (void)close(fds[0]);
    (void)close(fds[1]);
    turns(f);
}

/* The runner's socket passes one, the control page; a second one that comes with it is closed. */
static void a_second_descriptor_of_a_runner_is_closed(void **state)
{
    struct fixture *f = *state;
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    struct iovec part = { .iov_base = bytes };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = { 0 };
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)
    };
    const int fds[2] = { f->page_fd, f->page_fd };
    unsigned before;

    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    before = descriptors();
    control.header =
        (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(2 * sizeof(int)) };
    memcpy(CMSG_DATA(&control.header), fds, sizeof(fds));
    assert_int_equal(shoal_runner_encode(fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1), bytes, sizeof(bytes), &part.iov_len),
                     SHOAL_OK);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(sendmsg(f->agent, &header, MSG_NOSIGNAL), (ssize_t)part.iov_len);
        turns(f);
    }
    assert_int_equal(descriptors(), before);
}

/* As many as have a place, and none says anything: the next worker is heard. */
static void silent_connections_take_no_place_from_workers(void **state)
{
    enum { SILENT = 300 };
    static int fds[SILENT];
    struct fixture *f = *state;
    unsigned closed = 0;
    int worker, again;

    f->knows = true;
    worker = say_hello(f);
    for (unsigned i = 0; i < SILENT; i++) {
        fds[i] = dial(f);
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    turns(f);
    assert_false(is_closed(worker));
    again = say_hello(f);
    assert_int_equal(f->hellos, 2);
    assert_false(is_closed(again));
    (void)close(again);
    for (unsigned i = 0; i < SILENT; i++) {
        closed += is_closed(fds[i]);
        (void)close(fds[i]);
    }
    assert_true(closed >= SILENT - 256);
    (void)close(worker);
    turns(f);
}

/* Both are there in one turn of the loop. */
static void what_a_worker_said_last_is_heard_before_its_end(void **state)
{
    struct fixture *f = *state;
    struct shoal_runner_message *welcome;
    int worker;

    f->knows = true;
    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    welcome = fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1);
    welcome->status = 1;
    say(f, welcome, f->page_fd);
    say(f, fresh(SHOAL_RUNNER_STARTED, 11, 0, 4711), -1);
    turns(f);
    worker = say_hello(f);
    say(f, fresh(SHOAL_RUNNER_EXITED, 11, 0, 0), -1); /* first: the loop sees them in this order */
    say_later = true;
    say_on(f, worker, SHOAL_WORKER_HELLO, 11, 1, NULL);
    say_later = false;
    turns(f);
    assert_int_equal(f->exits, 1);
    assert_int_equal(f->hellos, 2);
    assert_int_equal(f->hellos_at_exit, 2);
    (void)close(worker);
    turns(f);
}

/* Workers 11 and 12 run. */
static void play_runner_of_two(struct fixture *f)
{
    struct shoal_runner_message *welcome;

    f->knows = true;
    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    welcome = fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1);
    welcome->status = 2;
    say(f, welcome, f->page_fd);
    say(f, fresh(SHOAL_RUNNER_STARTED, 11, 0, 4711), -1);
    say(f, fresh(SHOAL_RUNNER_STARTED, 12, 1, 4712), -1);
    turns(f);
}

/* The core answers it with an order to the same runner, before the end is told. */
static void an_end_is_told_of_the_worker_that_has_ended(void **state)
{
    struct fixture *f = *state;
    struct shoal_runner_message *exited;
    int worker;

    play_runner_of_two(f);
    worker = say_hello(f);
    f->orders = true;
    exited = fresh(SHOAL_RUNNER_EXITED, 11, 0, 4711);
    exited->status = 7;
    say(f, exited, -1);
    say_later = true;
    say_on(f, worker, SHOAL_WORKER_HELLO, 11, 1, NULL);
    say_later = false;
    turns(f);
    assert_int_equal(f->hellos_at_exit, 2);
    assert_int_equal(f->exits, 1);
    assert_int_equal(f->exited, 11);
    assert_int_equal(f->exit_status, 7);
    (void)close(worker);
    turns(f);
}

/* It is given within a step of the core, which hears nothing meanwhile: neither ends nor what a worker said last. */
static void an_order_that_finds_no_runner_calls_nobody(void **state)
{
    struct fixture *f = *state;
    struct shoal_job_id job;
    int worker;

    assert_true(shoal_job_id_parse(JOB, &job));
    play_runner_of_two(f);
    worker = say_hello(f);
    say_later = true;
    say_on(f, worker, SHOAL_WORKER_HELLO, 11, 1, NULL);
    say_later = false;
    (void)close(f->agent);
    f->agent = -1;
    f->ordering = true;
    workers_renew(f->workers, 11, 1, 2);
    workers_close(f->workers, job);
    f->ordering = false;
    turns(f);
    assert_int_equal(f->exits, 2);
    assert_int_equal(f->hellos_at_exit, 2);
    (void)close(worker);
    turns(f);
}

/* The watch over deaths looks into the runner's page, which goes with it; the next one that it looks into shows that it lives. */
static void a_worker_too_many_is_not_watched(void **state)
{
    struct fixture *f = *state;
    void *gap = NULL;

    for (unsigned runner = 0; runner < 2; runner++) {
        workers_reattach(f->workers, on_reattached, f);
        f->agent = accept(f->listener, NULL, NULL);
        say(f, fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1), f->page_fd);
        turns(f);
        for (unsigned i = 0; runner == 0 && i <= SHOAL_RUNNER_WORKERS_MAX; i++) {
            say(f, fresh(SHOAL_RUNNER_STARTED, 11 + i, 0, 4711), -1);
            turns(f);
        }
        if (runner == 1)
            break;
        (void)close(f->agent);
        f->agent = -1;
        turns(f);
        assert_int_equal(f->exits, SHOAL_RUNNER_WORKERS_MAX);
        gap = mmap(NULL, sizeof(*f->page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* where the page was */
    }
    atomic_store(&f->page->slots[1].robust, 1); /* held */
    say(f, fresh(SHOAL_RUNNER_STARTED, 11, 1, 4711), -1);
    while ((atomic_load(&f->page->slots[1].robust) & FUTEX_WAITERS) == 0)
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    (void)munmap(gap, sizeof(*f->page));
}

/* An agent that starts again must not take workers for dead of whom the runner has not spoken yet. */
static void all_of_a_runner_is_heard_before_it_is_told(void **state)
{
    struct fixture *f = *state;
    struct shoal_runner_message *welcome;

    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    assert_true(f->agent >= 0);
    welcome = fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1);
    welcome->status = 3;
    say(f, welcome, f->page_fd);
    turns(f);
    assert_int_equal(f->runners, 0);
    say(f, fresh(SHOAL_RUNNER_STARTED, 11, 0, 4711), -1);
    say(f, fresh(SHOAL_RUNNER_EXITED, 12, 1, 0), -1);
    turns(f);
    assert_int_equal(f->runners, 0);
    say(f, fresh(SHOAL_RUNNER_STARTED, 13, 2, 0), -1); /* it is being started: no pid yet */
    turns(f);
    assert_int_equal(f->runners, 1);
    assert_int_equal(f->alive_count, 3);
    assert_int_equal(f->alive[0].worker_id, 11);
    assert_int_equal(f->alive[1].worker_id, 13);
    assert_int_equal(f->alive[2].worker_id, 12); /* its end is told when it has been named */
    assert_int_equal(f->alive[2].pid, WORKERS_ENDED);
    assert_int_equal(f->exits_before_runner, 0);
    assert_int_equal(f->exits, 1);
}

/* Its folders are for another job then: nobody is there who might still write into them. */
static void a_runner_has_left_when_it_was_told_that_it_may_end_and_nobody_lives(void **state)
{
    struct fixture *f = *state;
    struct shoal_job_id job;

    assert_true(shoal_job_id_parse(JOB, &job));
    for (unsigned told = 0; told < 2; told++)
        for (unsigned alive = 0; alive < 2; alive++) {
            struct shoal_runner_message *welcome;

            workers_reattach(f->workers, on_reattached, f);
            f->agent = accept(f->listener, NULL, NULL);
            welcome = fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1);
            welcome->status = (int32_t)alive;
            say(f, welcome, f->page_fd);
            if (alive == 1)
                say(f, fresh(SHOAL_RUNNER_STARTED, 11, 0, 4711), -1);
            turns(f);
            if (told == 1)
                workers_close(f->workers, job);
            (void)close(f->agent);
            f->agent = -1;
            turns(f);
            assert_int_equal(f->left, told == 1 ? 1 : 0);
        }
}

/* Its job may listen there itself, and accept nobody. */
static void a_runner_that_accepts_nobody_is_not_waited_for(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    int waiting[8];

    (void)snprintf(name.sun_path, sizeof(name.sun_path), "%s/jobs/" JOB "/runner.sock", f->dir);
    for (size_t i = 0; i < 8; i++) {
        waiting[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(waiting[i], (const struct sockaddr *)&name, sizeof(name));
    }
    (void)alarm(30);
    workers_reattach(f->workers, on_reattached, f);
    (void)alarm(0);
    turns(f);
    for (size_t i = 0; i < 8; i++)
        (void)close(waiting[i]);
}

/* The words of the worker that is furthest in the newest epoch, whoever ships the records. */
static void steps_are_read_from_the_control_page(void **state)
{
    struct fixture *f = *state;
    struct shoal_runner_message *welcome;

    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    welcome = fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1);
    welcome->status = 2;
    say(f, welcome, f->page_fd);
    say(f, fresh(SHOAL_RUNNER_STARTED, 11, 0, 4711), -1);
    say(f, fresh(SHOAL_RUNNER_STARTED, 12, 1, 4712), -1);
    turns(f);
    for (uint64_t i = 0; i < 2; i++) {
        f->page->slots[i].worker_id = 11 + i;
        f->page->slots[i].epoch_word = (uint64_t)2 << 32;
        f->page->slots[i].applied_step = 40 + i;
    }
    f->page->slots[0].epoch_word = (uint64_t)1 << 32; /* further, but in an older epoch */
    f->page->slots[0].applied_step = 99;
    while (f->stepped == 0)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->step, 41);
    assert_int_equal(f->step_worker, 12);
}

static void watch(struct fixture *f)
{
    uint64_t until_ns = uv_hrtime() + 400 * SHOAL_MS; /* some looks of the watchdog */

    while (f->pages == 0 && uv_hrtime() < until_ns)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
}

/* Every process of the job has the page's descriptor, and this agent's words stand in it: what it did not write somebody else has. */
static void who_writes_over_the_control_page_is_found(void **state)
{
    struct fixture *f = *state;
    struct shoal_job_id job;
    uint64_t ours = (uint64_t)2 << 32;

    assert_true(shoal_job_id_parse(JOB, &job));
    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    f->page->revoked = (uint64_t)1 << 32; /* of the agent before */
    say(f, fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1), f->page_fd);
    turns(f);
    workers_revoke(f->workers, job, ours);
    workers_revoke(f->workers, job, (uint64_t)1 << 32);
    f->page->slots[0].applied_step = 7; /* its own words are each worker's */
    f->page->arena_bytes = 4096;
    watch(f);
    assert_int_equal(f->page->revoked, ours);
    assert_int_equal(f->pages, 0);

    f->page->revoked = UINT64_MAX;
    watch(f);
    assert_int_equal(f->pages, 1);
    assert_int_equal(f->page->revoked, ours); /* what comes after it finds it whole */
    f->pages = 0;
    watch(f);
    assert_int_equal(f->pages, 0);
    f->page->published = ours;
    watch(f);
    assert_int_equal(f->pages, 1);
}

static void the_head_of_the_control_page_is_watched(void **state)
{
    struct fixture *f = *state;

    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    say(f, fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1), f->page_fd);
    turns(f);
    f->page->generation++;
    watch(f);
    assert_int_equal(f->pages, 1);
}

/* Holds the word as a library thread does, until it is killed. */
static pid_t hold(_Atomic uint32_t *word)
{
    int ready[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        static struct robust_list node;
        static struct robust_list_head head;

        node.next = &head.list;
        head.list.next = &node;
        head.futex_offset = (long)((intptr_t)word - (intptr_t)&node);
        atomic_store(word, (uint32_t)syscall(SYS_gettid));
        (void)syscall(SYS_set_robust_list, &head, sizeof(head));
        (void)!write(ready[1], "x", 1);
        (void)close(ready[1]);
        while (true)
            (void)pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    return pid;
}

/* Before it is reaped: here nobody reaps it until the agent has been told. */
static void a_death_is_known_before_the_process_is_reaped(void **state)
{
    struct fixture *f = *state;
    struct shoal_runner_message *welcome;
    int status;
    pid_t pid;

    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    welcome = fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1);
    welcome->status = 2;
    say(f, welcome, f->page_fd);
    say(f, fresh(SHOAL_RUNNER_STARTED, 11, 0, 4711), -1);
    say(f, fresh(SHOAL_RUNNER_STARTED, 12, 1, 4712), -1); /* it never takes its word */
    turns(f);
    pid = hold(&f->page->slots[0].robust);
    while ((atomic_load(&f->page->slots[0].robust) & FUTEX_WAITERS) == 0) /* the watch has seen that it is held */
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    assert_int_equal(f->dying, 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    while (f->dying == 0)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->step_worker, 11);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    say(f, fresh(SHOAL_RUNNER_EXITED, 11, 0, 4711), -1);
    turns(f);
    assert_int_equal(f->dying, 1);
}

/* Its runner stands still: nobody reaps it, nobody tells. */
static void an_end_is_told_though_the_runner_stands_still(void **state)
{
    struct fixture *f = *state;
    struct shoal_runner_message *welcome;
    uint64_t until_ns = uv_hrtime() + 30 * SHOAL_S;
    pid_t dead, lives;
    int status;

    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    lives = fork();
    if (lives == 0)
        while (true)
            (void)pause();
    dead = fork();
    if (dead == 0)
        _exit(0);
    welcome = fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1);
    welcome->status = 2;
    say(f, welcome, f->page_fd);
    say(f, fresh(SHOAL_RUNNER_STARTED, 11, 0, dead), -1);
    say(f, fresh(SHOAL_RUNNER_STARTED, 12, 1, lives), -1);
    for (unsigned i = 0; i < 2; i++) { /* engines */
        atomic_store(&f->page->slots[i].worker_id, 11 + i);
        atomic_store(&f->page->slots[i].heartbeat, 1);
    }
    while (f->exits == 0 && uv_hrtime() < until_ns)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->exits, 1);
    say(f, fresh(SHOAL_RUNNER_EXITED, 11, 0, dead), -1); /* it goes on */
    turns(f);
    assert_int_equal(f->exits, 1);
    say(f, fresh(SHOAL_RUNNER_EXITED, 12, 1, lives), -1);
    turns(f);
    assert_int_equal(f->exits, 2);
    assert_int_equal(waitpid(dead, &status, 0), dead);
    assert_int_equal(kill(lives, SIGKILL), 0);
    assert_int_equal(waitpid(lives, &status, 0), lives);
}

/* As many as a host has slots, each with its whole environment: more than a socket holds while the runner is busy. */
static void orders_wait_for_room_in_the_runners_socket(void **state)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    static struct shoal_runner_message got;
    struct fixture *f = *state;
    struct shoal_job_id job;
    struct shoal_runner_start start = { .cwd = "/", .stdout_path = "", .stderr_path = "", .lock_path = "", .cgroup = "", .argc = 1, .envc = 1 };
    char *env = malloc(8192);
    uint64_t heard = 0;

    memset(env, 'e', 8191);
    env[8191] = '\0';
    start.argv[0] = "fit";
    start.env[0] = env;
    assert_true(shoal_job_id_parse(JOB, &job));
    workers_reattach(f->workers, on_reattached, f);
    f->agent = accept(f->listener, NULL, NULL);
    say(f, fresh(SHOAL_RUNNER_WELCOME, 0, 0, 1), f->page_fd);
    turns(f);
    for (uint32_t i = 0; i < SHOAL_SLOTS_MAX; i++) {
        struct shoal_msg msg = { "" };

        start.worker_id = 100 + i;
        start.slot = i;
        if (workers_start(f->workers, job, 3, &start, &msg) != SHOAL_OK)
            fail_msg("the order for slot %u is not taken: %s", i, msg.text);
    }
    workers_kill(f->workers, 100, 0); /* behind them */
    for (uint32_t i = 0; i < 100 && heard <= SHOAL_SLOTS_MAX; i++) {
        ssize_t len;

        while ((len = recv(f->agent, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
            assert_int_equal(shoal_runner_decode(shoal_view_of(bytes, (size_t)len), &got), SHOAL_OK);
            assert_int_equal(got.kind, heard < SHOAL_SLOTS_MAX ? SHOAL_RUNNER_START : SHOAL_RUNNER_KILL);
            assert_int_equal(got.worker_id, 100 + heard % SHOAL_SLOTS_MAX);
            heard++;
        }
        turns(f);
    }
    assert_int_equal(heard, SHOAL_SLOTS_MAX + 1);
    assert_int_equal(f->exits, 0);
    free(env);
}

static void is_over(uv_timer_t *timer) { *(bool *)timer->data = true; }

/* As long as a helper says that somebody of a job is left, that is looked up by its word: to look at every process of the host costs
 * the loop milliseconds, and a job may have had many slots. */
static void a_job_that_lost_its_runner_is_not_looked_for_at_each_look_at_its_slots(void **state)
{
    struct fixture *f = *state;
    char path[128];
    uv_timer_t timer;
    bool over = false;
    int lock;

    (void)snprintf(path, sizeof(path), "%s/jobs/" JOB "/alive", f->dir);
    lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(lock, LOCK_SH | LOCK_NB), 0);
    play_runner_of_two(f);
    while (f->idle < 4) /* at its start an agent looks at them all; nobody holds a lock here */
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    (void)close(f->agent);
    f->agent = -1;
    turns(f);
    assert_int_equal(f->exits, 2);
    looks_at_all = 0;
    (void)uv_timer_init(&f->loop, &timer);
    timer.data = &over;
    (void)uv_timer_start(&timer, is_over, 300, 0);
    while (!over)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->idle, 4);
    assert_in_range(looks_at_all, 1, 5); /* of 30 */
    (void)close(lock);
    while (f->idle < 6)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    turns(f);
}

/* The connection waits, and would wake the loop again at once. */
static void without_descriptors_the_loop_does_not_spin(void **state)
{
    struct fixture *f = *state;
    struct rlimit limit, none;
    unsigned rounds = 0;
    bool over = false;
    uv_timer_t timer;
    int fd;

    f->knows = true;
    turns(f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 3;
    fd = dial(f);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    (void)uv_timer_init(&f->loop, &timer);
    timer.data = &over;
    (void)uv_timer_start(&timer, is_over, 300, 0);
    while (!*(const bool *)timer.data) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
        rounds++;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_in_range(rounds, 1, 100);
    say_later = true;
    say_on(f, fd, SHOAL_WORKER_HELLO, 11, 1, NULL);
    say_later = false;
    while (f->hellos == 0)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    (void)close(fd);
    uv_close((uv_handle_t *)&timer, NULL);
    turns(f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_worker_that_is_not_known_yet_is_hung_up_on, setup, teardown),
        cmocka_unit_test_setup_teardown(the_last_words_of_a_worker_that_did_not_listen_are_heard, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_is_gone_when_it_is_answered_is_heard_to_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_is_gone_when_it_is_told_something_is_heard_to_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_does_not_listen_is_hung_up_on, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stranger_closes_no_workers_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(descriptors_that_come_along_are_closed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_descriptor_of_a_runner_is_closed, setup, teardown),
        cmocka_unit_test_setup_teardown(silent_connections_take_no_place_from_workers, setup, teardown),
        cmocka_unit_test_setup_teardown(without_descriptors_the_loop_does_not_spin, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_worker_said_last_is_heard_before_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(an_end_is_told_of_the_worker_that_has_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(an_order_that_finds_no_runner_calls_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_too_many_is_not_watched, setup, teardown),
        cmocka_unit_test_setup_teardown(all_of_a_runner_is_heard_before_it_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_runner_has_left_when_it_was_told_that_it_may_end_and_nobody_lives, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_death_is_known_before_the_process_is_reaped, setup, teardown),
        cmocka_unit_test_setup_teardown(an_end_is_told_though_the_runner_stands_still, setup, teardown),
        cmocka_unit_test_setup_teardown(steps_are_read_from_the_control_page, setup, teardown),
        cmocka_unit_test_setup_teardown(who_writes_over_the_control_page_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(the_head_of_the_control_page_is_watched, setup, teardown),
        cmocka_unit_test_setup_teardown(a_runner_that_accepts_nobody_is_not_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_job_that_lost_its_runner_is_not_looked_for_at_each_look_at_its_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(orders_wait_for_room_in_the_runners_socket, setup, teardown),
    };

    if (argc > 1 && strcmp(argv[1], "spawn-helper") == 0) /* workers_create() starts this program again */
        return shoal_spawn_helper_main(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
