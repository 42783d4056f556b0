/* Folders of a job that has written nothing go to the next one (agent_folders.c): as an agent makes them, or not at all. */
#include "node/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/remove_tree.h"

#include "loop_test.h"

#include "shoal/banned.h"

#define TASK "task1"

enum deed { NONE, MODE, LINK, FOLDER, NAMED_TWICE, ATTRIBUTE };

struct row {
    const char *name;
    enum deed deed;
    const char *at; /* "result" and "job" are its two folders */
    mode_t mode;
    bool left;
};

static const struct row rows[] = {
    { "a job that has changed nothing leaves its folders", NONE, "", 0, true },
    { "a folder that cannot be written is left to nobody", MODE, "result/model", 0500, false },
    { "... nor one that cannot be listed", MODE, "result/checkpoint", 0300, false },
    { "... nor one that others may enter", MODE, "result", 0755, false },
    { "... nor that of a log", MODE, "result/log/app." TASK, 0500, false },
    { "... nor the one that holds it", MODE, "result/log", 0500, false },
    { "... nor that of the code", MODE, "result/_submitted_code", 0500, false },
    { "... nor the job's own", MODE, "job", 0500, false },
    { "... nor that of temporary files", MODE, "job/tmp", 0500, false },
    { "a link to a folder is none", LINK, "result/model", 0, false },
    { "an attribute stays with its job", ATTRIBUTE, "result/model", 0, false },
    { "a specification that cannot be written is left to nobody", MODE, "job/spec", 0400, false },
    { "... nor one that has another name, too", NAMED_TWICE, "job/spec", 0, false },
    { "a link where the runner's lock was is left to nobody", LINK, "job/alive", 0, false },
    { "... nor a folder there", FOLDER, "job/alive", 0, false },
};

struct fixture {
    struct agent *agent;
    struct agent_job *job;
    char outside[80];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char path[AGENT_PATH_BYTES];

    if (f == NULL || (f->agent = calloc(1, sizeof(*f->agent))) == NULL || (f->job = calloc(1, sizeof(*f->job))) == NULL)
        return -1;
    (void)snprintf(f->agent->settings.data, sizeof(f->agent->settings.data), "/tmp/shoal-folders-XXXXXX");
    if (mkdtemp(f->agent->settings.data) == NULL)
        return -1;
    (void)snprintf(f->outside, sizeof(f->outside), "%.60s/outside", f->agent->settings.data);
    (void)snprintf(path, sizeof(path), "%.60s/spare", f->agent->settings.data);
    if (mkdir(f->outside, 0700) != 0 || mkdir(path, 0700) != 0)
        return -1;
    (void)snprintf(path, sizeof(path), "%.60s/jobs", f->agent->settings.data);
    if (mkdir(path, 0700) != 0)
        return -1;
    *state = f;
    return 0;
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *walk)
{
    (void)facts;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int open_one(const char *path, const struct stat *facts, int kind, struct FTW *walk)
{
    (void)facts;
    (void)walk;
    return kind == FTW_D || kind == FTW_DNR ? chmod(path, 0700) : 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    (void)nftw(f->agent->settings.data, open_one, 8, FTW_PHYS);
    (void)nftw(f->agent->settings.data, remove_one, 8, FTW_PHYS | FTW_DEPTH);
    shoal_buf_deinit(&f->job->spec_bytes);
    free(f->job);
    free(f->agent);
    free(f);
    return 0;
}

/* What an agent does of a job of one process, up to its end. */
static void run_job(struct fixture *f, uint8_t number)
{
    struct agent_job *job = f->job;
    char path[AGENT_PATH_BYTES + 64];
    int fd;

    job->id = (struct shoal_job_id){ { number } };
    (void)snprintf(job->result_dir, sizeof(job->result_dir), "%.60s/results/ada/%u", f->agent->settings.data, number);
    (void)snprintf(job->spec.framework, sizeof(job->spec.framework), "PyTorch");
    job->spec.workers_max = 1;
    job->spec_bytes.len = 0;
    assert_int_equal(shoal_buf_append(&job->spec_bytes, "specification", 13), SHOAL_OK);
    agent_folders_open(f->agent, job);
    (void)snprintf(path, sizeof(path), "%s/_submitted_code", job->result_dir);
    agent_folders_code(job, path);
    (void)snprintf(path, sizeof(path), "%s/log/app." TASK, job->result_dir);
    agent_folders_log(job, path);
    agent_job_folder(f->agent, job->id, path, AGENT_PATH_BYTES);
    memcpy(path + strlen(path), "/alive", 7);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)snprintf(job->last_task, sizeof(job->last_task), TASK);
    job->files = AGENT_FILES_READY;
}

/* False: this file system has no attributes. */
static bool spoil(const struct fixture *f, const struct row *row)
{
    char folder[AGENT_PATH_BYTES], path[AGENT_PATH_BYTES + 100];
    bool is_result = strncmp(row->at, "result", 6) == 0;

    agent_job_folder(f->agent, f->job->id, folder, sizeof(folder));
    (void)snprintf(path, sizeof(path), "%s%s", is_result ? f->job->result_dir : folder, row->at + (is_result ? 6 : 3));
    switch (row->deed) {
    case NONE: return true;
    case MODE: assert_int_equal(chmod(path, row->mode), 0); return true;
    case LINK:
        assert_int_equal(remove(path), 0);
        assert_int_equal(symlink(f->outside, path), 0);
        return true;
    case FOLDER:
        assert_int_equal(remove(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
        return true;
    case NAMED_TWICE:
        (void)snprintf(folder, sizeof(folder), "%s/file", f->outside);
        assert_int_equal(link(path, folder), 0);
        return true;
    case ATTRIBUTE:
        if (setxattr(path, "user.mine", "1", 1, 0) == 0)
            return true;
        assert_int_equal(errno, ENOTSUP);
        return false;
    }
    return false;
}

static void test_only_folders_as_an_agent_makes_them_go_to_the_next_job(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fixture *f;

        assert_int_equal(setup(state), 0);
        f = *state;
        run_job(f, 1);
        if (spoil(f, &rows[i])) {
            agent_folders_leave(f->agent, f->job);
            if (f->agent->spares.count != (rows[i].left ? 1 : 0))
                fail_msg("%s: %u are left", rows[i].name, f->agent->spares.count);
        }
        (void)teardown(state);
    }
}

/* The second job's folders are the first one's, with its own specification: nothing of it has been made anew. */
static void test_the_next_job_takes_them(void **state)
{
    struct fixture *f = *state;
    char path[AGENT_PATH_BYTES + 64];
    struct stat before, after;

    run_job(f, 1);
    (void)snprintf(path, sizeof(path), "%s/model", f->job->result_dir);
    assert_int_equal(stat(path, &before), 0);
    agent_folders_leave(f->agent, f->job);
    assert_int_equal(f->agent->spares.count, 1);
    run_job(f, 2);
    assert_int_equal(f->agent->spares.count, 0);
    (void)snprintf(path, sizeof(path), "%s/model", f->job->result_dir);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    agent_folders_leave(f->agent, f->job); /* and on */
    assert_int_equal(f->agent->spares.count, 1);
}

/* ---- removal ---- */

#define REMOVALS 8u

static uv_sem_t gate;
static atomic_uint removals_done;

/* In the place of the agent's own: one that takes its time. */
bool shoal_remove_tree(const char *path)
{
    (void)path;
    uv_sem_wait(&gate);
    atomic_fetch_add(&removals_done, 1);
    return true;
}

static void other_run(uv_work_t *work) { (void)work; }

static void other_ran(uv_work_t *work, int status)
{
    (void)status;
    *(bool *)work->data = true;
}

/* Somebody deletes many jobs with many files, and the next job's code is unpacked. */
static void test_what_is_removed_leaves_threads_to_the_rest(void **state)
{
    struct fixture *f = *state;
    uv_timer_t watchdog;
    bool late = false, ran = false;
    uv_work_t other = { .data = &ran };

    assert_int_equal(uv_loop_init(&f->agent->loop), 0);
    assert_int_equal(uv_sem_init(&gate, 0), 0);
    loop_watch(&f->agent->loop, &watchdog, &late);
    for (unsigned i = 0; i < REMOVALS; i++)
        agent_folders_remove(f->agent, "one", "");
    assert_int_equal(uv_queue_work(&f->agent->loop, &other, other_run, other_ran), 0);
    while (!ran && !late)
        (void)uv_run(&f->agent->loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < REMOVALS; i++)
        uv_sem_post(&gate);
    while (atomic_load(&removals_done) < REMOVALS)
        (void)uv_run(&f->agent->loop, UV_RUN_ONCE);
    loop_end(&f->agent->loop);
    uv_sem_destroy(&gate);
    assert_false(late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_folders_as_an_agent_makes_them_go_to_the_next_job),
        cmocka_unit_test_setup_teardown(test_the_next_job_takes_them, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_removed_leaves_threads_to_the_rest, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
