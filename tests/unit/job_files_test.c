/* What an agent reads of a job's own folder, where the job has laid something else: nothing waits, nothing is followed, nothing
 * is read beyond its bound (shoal/below.h, shoal_disk_read_below). A call that waits ends this program by its alarm. */
#include "node/agent/agent.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/disk.h"
#include "shoal/service_doc.h"

#include "node/agent/agent_audit.h"
#include "node/agent/agent_metrics.h"

#include "loop_test.h"
#include "no_env.h"

#define ALARM_S 120
#define HOLE_BYTES (1ll << 40)
#define SECRET "a secret of another folder"

enum trap { PIPE, LINK, LINK_TO_NOTHING, FOLDER, HOLE, TRAPS };
static const char *const trap_names[TRAPS] = { "a pipe", "a link", "a link to nothing", "a folder", "a file of 1 TiB" };

/* The names that were read of folders. */
static atomic_uint looks, looks_of_loop;
static pthread_t loop_thread;

__attribute__((visibility("default"))) struct dirent *readdir(DIR *dir)
{
    static struct dirent *(*real)(DIR *dir);

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    atomic_fetch_add(&looks, 1);
    if (pthread_equal(pthread_self(), loop_thread))
        atomic_fetch_add(&looks_of_loop, 1);
    return real(dir);
}

/* Bytes that were read by the loop of files. */
static atomic_uint read_by_loop;

__attribute__((visibility("default"))) ssize_t read(int fd, void *buf, size_t len)
{
    static ssize_t (*real)(int fd, void *buf, size_t len);
    ssize_t got;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "read");
    got = real(fd, buf, len);
    if (pthread_equal(pthread_self(), loop_thread) && got > 4096) /* libuv's own word to itself is small */
        atomic_fetch_add(&read_by_loop, (unsigned)got);
    return got;
}

struct fixture {
    char dir[64];
    char own[AGENT_PATH_BYTES]; /* the job's folder */
    struct agent *agent;
    uv_timer_t watchdog;
    bool late, done, whole;
    enum shoal_err err;
    char json[1024];
    unsigned answered, refused;
    struct shoal_hash blob;
};

static const struct shoal_job_id job_id = { { 7 } };

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct shoal_sched_options options = { .self = { { 1 } },
                                           .env = { .hash = no_hash, .verify = no_verify },
                                           .groups_max = 4 };
    char path[AGENT_PATH_BYTES];

    (void)alarm(ALARM_S);
    loop_thread = pthread_self();
    atomic_store(&looks, 0);
    atomic_store(&looks_of_loop, 0);
    if (f == NULL || (f->agent = calloc(1, sizeof(*f->agent))) == NULL || uv_loop_init(&f->agent->loop) != 0)
        return -1;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-job-files-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    (void)snprintf(f->agent->settings.data, sizeof(f->agent->settings.data), "%s", f->dir);
    (void)snprintf(path, sizeof(path), "%s/jobs", f->dir);
    agent_job_folder(f->agent, job_id, f->own, sizeof(f->own));
    if (mkdir(path, 0700) != 0 || mkdir(f->own, 0700) != 0)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/secret", f->dir);
    if (shoal_disk_replace(path, shoal_view_text(SECRET), 0600, NULL) != SHOAL_OK)
        return -1;
    shoal_rand_init(&options.chance, 1);
    if (shoal_sched_create(&f->agent->sched, &options) != SHOAL_OK)
        return -1;
    loop_watch(&f->agent->loop, &f->watchdog, &f->late);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    loop_end(&f->agent->loop);
    free(f->agent->curves);
    shoal_sched_destroy(f->agent->sched);
    (void)snprintf(command, sizeof(command), "rm -rf %.60s", f->dir);
    free(f->agent);
    free(f);
    (void)alarm(0);
    return system(command);
}

/* Of an earlier trap nothing is left. */
static void lay(const struct fixture *f, enum trap trap, const char *name)
{
    char path[AGENT_PATH_BYTES + 32], secret[80];
    int fd;

    (void)snprintf(path, sizeof(path), "%.480s/%s", f->own, name);
    (void)snprintf(secret, sizeof(secret), "%.60s/secret", f->dir);
    (void)(unlink(path) == 0 || rmdir(path) == 0);
    switch (trap) {
    case PIPE: assert_int_equal(mkfifo(path, 0600), 0); return;
    case LINK: assert_int_equal(symlink(secret, path), 0); return;
    case LINK_TO_NOTHING: assert_int_equal(symlink("nothing", path), 0); return;
    case FOLDER: assert_int_equal(mkdir(path, 0700), 0); return;
    case HOLE:
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, HOLE_BYTES), 0);
        assert_int_equal(close(fd), 0);
        return;
    case TRAPS: break;
    }
    fail();
}

__attribute__((format(printf, 1, 2))) static int run(const char *format, ...)
{
    char command[1200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    return system(command);
}

static void pool_run(uv_work_t *work) { (void)work; }

static void pool_ran(uv_work_t *work, int status)
{
    (void)status;
    *(bool *)work->data = true;
}

static void a_file_is_read_below_its_folder(void **state)
{
    struct fixture *f = *state;
    struct shoal_buf buf = { 0 };
    struct shoal_msg msg;
    char path[AGENT_PATH_BYTES + 32];

    assert_int_equal(shoal_disk_read_below(f->own, "spec", 8, &buf, &msg), SHOAL_ERR_NOT_FOUND);
    (void)snprintf(path, sizeof(path), "%s/spec", f->own);
    assert_int_equal(shoal_disk_replace(path, shoal_view_text("12345678"), 0600, &msg), SHOAL_OK);
    assert_int_equal(shoal_disk_read_below(f->own, "spec", 7, &buf, &msg), SHOAL_ERR_TOO_BIG);
    assert_int_equal(shoal_disk_read_below(f->own, "spec", 8, &buf, &msg), SHOAL_OK);
    assert_int_equal(buf.len, 8);
    assert_memory_equal(buf.bytes, "12345678", 8);
    shoal_buf_deinit(&buf);
    for (enum trap trap = PIPE; trap < TRAPS; trap++) {
        enum shoal_err want = trap == HOLE ? SHOAL_ERR_TOO_BIG : SHOAL_ERR_STORAGE;

        lay(f, trap, "spec");
        if (shoal_disk_read_below(f->own, "spec", SHOAL_MIB, &buf, &msg) != want || buf.bytes != NULL)
            fail_msg("%s: %s", trap_names[trap], msg.text);
    }
}

static void on_metrics(void *arg, enum shoal_err err, const char *text, struct shoal_view json, bool whole)
{
    struct fixture *f = arg;

    (void)text;
    f->done = true;
    f->err = err;
    f->whole = whole;
    (void)snprintf(f->json, sizeof(f->json), "%.*s", (int)json.len, (const char *)json.bytes);
}

static void ask_metrics(struct fixture *f)
{
    const struct agent_metrics_ask ask = { .from = 1, .to = UINT64_MAX, .points_max = 100 };

    f->done = false;
    agent_metrics_read(f->agent, job_id, &ask, on_metrics, f);
    RUN_AGENT_UNTIL(f, f->done);
    assert_int_equal(f->err, SHOAL_OK);
}

/* The audit is read of a job without a replica here, which is all that this host knows. */
static void a_curve_waits_for_no_ledger_and_no_audit(void **state)
{
    static const char *const names[] = { "ledger", "audit" };
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2; i++)
        for (enum trap trap = PIPE; trap < TRAPS; trap++) {
            lay(f, trap, names[i]);
            ask_metrics(f);
            if (strstr(f->json, "\"steps\":0,") == NULL || strstr(f->json, "\"calls\":[]") == NULL)
                fail_msg("%s at %s: %s", trap_names[trap], names[i], f->json);
        }
}

static void on_one_of_many(void *arg, enum shoal_err err, const char *text, struct shoal_view json, bool whole)
{
    struct fixture *f = arg;

    (void)text;
    (void)json;
    (void)whole;
    f->answered += err == SHOAL_OK;
    f->refused += err == SHOAL_ERR_FULL;
}

/* A ledger may be of any length: who waits for a disk or for its own file does not wait behind all that asked for a curve. */
static void curves_take_a_part_of_the_threads(void **state)
{
    const struct agent_metrics_ask ask = { .from = 1, .to = UINT64_MAX, .points_max = 100 };
    const unsigned asked = AGENT_CURVES_MAX + 10;
    struct fixture *f = *state;
    bool ran = false;
    uv_work_t work = { .data = &ran };

    for (unsigned i = 0; i < asked; i++)
        agent_metrics_read(f->agent, job_id, &ask, on_one_of_many, f);
    assert_int_equal(f->refused, 10);
    assert_int_equal(uv_queue_work(&f->agent->loop, &work, pool_run, pool_ran), 0);
    RUN_AGENT_UNTIL(f, ran);
    assert_true(f->answered <= AGENT_CURVES_AT_ONCE);
    RUN_AGENT_UNTIL(f, f->answered == AGENT_CURVES_MAX);
}

static void what_an_audit_says_of_the_calls_is_shown(void **state)
{
    struct fixture *f = *state;
    char path[AGENT_PATH_BYTES + 32];

    (void)snprintf(path, sizeof(path), "%s/audit", f->own);
    assert_int_equal(shoal_disk_replace(path, shoal_view_text("{\"exact\":true,\"calls\":[{\"call\":1}]}"), 0600, NULL), SHOAL_OK);
    ask_metrics(f);
    assert_non_null(strstr(f->json, ",\"calls\":[{\"call\":1}]}"));
}

static void an_audit_that_was_kept_is_read_and_nothing_else(void **state)
{
    struct fixture *f = *state;
    struct shoal_buf json = { 0 };
    struct shoal_msg msg;

    for (enum trap trap = PIPE; trap < TRAPS; trap++) {
        lay(f, trap, "audit");
        if (agent_audit_kept(f->agent, job_id, &json, &msg) == SHOAL_OK)
            fail_msg("%s is read", trap_names[trap]);
    }
}

static void a_service_without_a_document_has_no_knobs(void **state)
{
    struct fixture *f = *state;
    struct agent_job *job = calloc(1, sizeof(*job));

    assert_non_null(job);
    job->id = job_id;
    for (enum trap trap = PIPE; trap < TRAPS; trap++) {
        struct service_knobs knobs;

        lay(f, trap, "service.json");
        agent_serve_knobs(f->agent, job, &knobs);
        assert_int_equal(knobs.timeout_s, 0);
    }
    free(job);
}

/* The name that it is written under until it is whole may be a trap as well. */
static void a_document_is_written_into_no_trap(void **state)
{
    struct fixture *f = *state;
    char secret[80];
    struct shoal_buf buf = { 0 };

    (void)snprintf(secret, sizeof(secret), "%.60s/secret", f->dir);
    for (enum trap trap = PIPE; trap < HOLE; trap++) {
        lay(f, trap, "service.json.next");
        if (agent_serve_write(f->agent, job_id, "service.json", shoal_view_text("{}")))
            fail_msg("%s is written to", trap_names[trap]);
    }
    lay(f, HOLE, "service.json.next");
    assert_true(agent_serve_write(f->agent, job_id, "service.json", shoal_view_text("{}")));
    assert_int_equal(shoal_disk_read_below(f->own, "service.json", 2, &buf, NULL), SHOAL_OK);
    shoal_buf_deinit(&buf);
    assert_int_equal(shoal_disk_read(secret, sizeof(SECRET) - 1, &buf, NULL), SHOAL_OK);
    assert_memory_equal(buf.bytes, SECRET, sizeof(SECRET) - 1);
    shoal_buf_deinit(&buf);
}

/* f->own stands for a result folder. */
static void the_order_of_logs_is_read_to_its_bound(void **state)
{
    struct fixture *f = *state;
    char names[4][96];

    assert_int_equal(run("cd %s && mkdir log log/app.b log/app.a && printf 'app.b\\napp.a\\n' > log/.order", f->own), 0);
    assert_int_equal(agent_log_tasks(f->own, names, 4), 2);
    assert_string_equal(names[0], "app.b");
    for (enum trap trap = PIPE; trap < TRAPS; trap++) {
        lay(f, trap, "log/.order");
        assert_int_equal(agent_log_tasks(f->own, names, 4), 2);
    }
}

/* A job may leave what it likes in log/, and each reader of a log looks into it. */
static void a_folder_of_logs_is_looked_at_to_its_bound(void **state)
{
    struct fixture *f = *state;
    char names[4][96], own[2][96];
    size_t found;

    for (unsigned i = 0; i < 2; i++)
        (void)snprintf(own[i], sizeof(own[i]), "app.%.80s-%u", strrchr(f->own, '/') + 1, i);
    assert_int_equal(run("cd %s && mkdir log && cd log && seq -f app.%%g 3000 | xargs touch", f->own), 0);
    found = agent_log_tasks(f->own, names, 4);
    assert_int_equal(found, 4);
    assert_int_equal(run("cd %s/log && mkdir %s %s", f->own, own[0], own[1]), 0);
    assert_int_equal(agent_log_tasks(f->own, names, 4), 4); /* its own processes', whatever else is there, and once each */
    for (unsigned i = 0; i < 2; i++) {
        found = 0;
        for (unsigned at = 0; at < 4; at++)
            found += strcmp(names[at], own[i]) == 0;
        assert_int_equal(found, 1);
    }
    atomic_store(&looks, 0);
    assert_int_equal(run("cd %s/log && rmdir app.*-* && seq -f app.%%g 3000 | xargs rm && seq 3000 | xargs touch", f->own), 0);
    assert_int_equal(agent_log_tasks(f->own, names, 4), 0);
    if (atomic_load(&looks) > 1200)
        fail_msg("%u names were looked at", atomic_load(&looks));
}

/* Else its archive would be waited for without an end. */
static void what_lies_where_a_file_belongs_is_cleared_away(void **state)
{
    struct fixture *f = *state;
    char path[AGENT_PATH_BYTES + 32];
    struct stat facts;

    assert_int_equal(run("mkdir %s/spare", f->dir), 0);
    (void)snprintf(path, sizeof(path), "%s/audit", f->own);
    agent_folders_clear(f->agent, path); /* there is nothing */
    for (enum trap trap = PIPE; trap < TRAPS; trap++) {
        lay(f, trap, "audit");
        if (trap == FOLDER)
            assert_int_equal(run("mkdir %s/audit/below && chmod 500 %s/audit", f->own, f->own), 0);
        agent_folders_clear(f->agent, path);
        if ((lstat(path, &facts) == 0) != (trap == HOLE))
            fail_msg("%s", trap_names[trap]);
    }
    assert_int_equal(access(path, F_OK), 0); /* a file of the agent itself */
    (void)uv_timer_stop(&f->watchdog);
    (void)uv_run(&f->agent->loop, UV_RUN_DEFAULT);
    assert_int_equal(run("test -z \"$(ls %s/spare)\" && test -s %s/secret", f->dir, f->dir), 0);
}

#define LINKS 2000

/* Links are no files of a result, and take the same time to look at. */
static void the_files_of_a_result_are_looked_for_on_a_thread_and_to_a_bound(void **state)
{
    struct fixture *f = *state;
    struct agent_job *job = agent_job_need(f->agent, job_id);
    bool ran = false;
    uv_work_t work = { .data = &ran };
    char path[AGENT_PATH_BYTES + 32];

    assert_non_null(job);
    (void)snprintf(job->result_dir, sizeof(job->result_dir), "%s", f->own);
    assert_int_equal(run("mkdir %s/model", f->own), 0);
    for (unsigned i = 0; i < LINKS; i++) {
        (void)snprintf(path, sizeof(path), "%s/model/%u", f->own, i);
        assert_int_equal(symlink("x", path), 0);
    }
    f->agent->settings.files_max = LINKS / 4;
    f->agent->stopping = true; /* nobody is told what was found */
    atomic_store(&looks_of_loop, 0);
    atomic_store(&looks, 0);
    agent_manifest(f->agent, job_id, 1, 1);
    assert_int_equal(uv_queue_work(&f->agent->loop, &work, pool_run, pool_ran), 0);
    RUN_AGENT_UNTIL(f, ran);
    if (atomic_load(&looks_of_loop) > 0 || atomic_load(&looks) == 0 || atomic_load(&looks) > LINKS / 2 + 8)
        fail_msg("%u names were looked at, %u of them on the loop", atomic_load(&looks), atomic_load(&looks_of_loop));
}

static void on_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct fixture *f = arg;

    f->done = true;
    f->err = err;
    (void)snprintf(f->json, sizeof(f->json), "%s", text);
    f->blob = hash;
}

/* The file that was stored has the same bytes. */
static void on_blob(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct fixture *f = arg;
    struct shoal_buf file = { 0 };

    (void)msg;
    f->done = true;
    f->whole = err == SHOAL_OK && shoal_disk_read_below(f->own, "large", view.len, &file, NULL) == SHOAL_OK &&
               shoal_view_equal(view, shoal_buf_view(&file));
    shoal_buf_deinit(&file);
}

static void on_blobs_stopped(void *arg) { ((struct fixture *)arg)->done = true; }

static void store(struct fixture *f, const char *name)
{
    f->done = false;
    agent_store_below(f->agent, job_id, f->own, name, on_stored, f);
    RUN_AGENT_UNTIL(f, f->done);
}

/* It may lie on a disk that is slow. */
static void a_file_becomes_a_blob_without_the_loop_reading_it(void **state)
{
    struct fixture *f = *state;
    char path[AGENT_PATH_BYTES];
    struct shoal_blobs_options options = { .loop = &f->agent->loop, .dir = path };
    struct shoal_msg msg;

    (void)snprintf(path, sizeof(path), "%s/blobs", f->dir);
    assert_int_equal(shoal_blobs_create(&f->agent->blobs, &options, &msg), SHOAL_OK);
    assert_int_equal(run("cd %s && seq 1000000 > large && : > empty", f->own), 0);
    atomic_store(&read_by_loop, 0);
    store(f, "large");
    assert_int_equal(f->err, SHOAL_OK);
    assert_int_equal(atomic_load(&read_by_loop), 0);
    f->done = false;
    assert_int_equal(shoal_blobs_get(f->agent->blobs, f->blob, 8 * SHOAL_MIB, on_blob, f), SHOAL_OK);
    RUN_AGENT_UNTIL(f, f->done);
    assert_true(f->whole);
    store(f, "empty");
    assert_int_equal(f->err, SHOAL_OK);
    lay(f, FOLDER, "folder");
    store(f, "folder");
    assert_int_equal(f->err, SHOAL_ERR_STORAGE);
    f->done = false;
    shoal_blobs_stop(f->agent->blobs, on_blobs_stopped, f);
    RUN_AGENT_UNTIL(f, f->done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_is_read_below_its_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(a_curve_waits_for_no_ledger_and_no_audit, setup, teardown),
        cmocka_unit_test_setup_teardown(curves_take_a_part_of_the_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(what_an_audit_says_of_the_calls_is_shown, setup, teardown),
        cmocka_unit_test_setup_teardown(an_audit_that_was_kept_is_read_and_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(a_service_without_a_document_has_no_knobs, setup, teardown),
        cmocka_unit_test_setup_teardown(a_document_is_written_into_no_trap, setup, teardown),
        cmocka_unit_test_setup_teardown(the_order_of_logs_is_read_to_its_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(what_lies_where_a_file_belongs_is_cleared_away, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_of_logs_is_looked_at_to_its_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_becomes_a_blob_without_the_loop_reading_it, setup, teardown),
        cmocka_unit_test_setup_teardown(the_files_of_a_result_are_looked_for_on_a_thread_and_to_a_bound, setup, teardown),
    };

    (void)setenv("UV_THREADPOOL_SIZE", "1", 1); /* so what was queued before has run */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
