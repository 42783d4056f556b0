/* A version that another one took the place of loses its kernels (node/backend/backend_scale.c), and what it is after a roll-back
 * does not: the mesh, the groups and the hosts are this file's. */
#include "shoal/autoscale.h"
#include "shoal/job_entry.h"
#include "shoal/sched_look.h"

#include "node/backend/agent_backend.h"
#include "node/backend/backend_services.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define DOCUMENT "{\"model\":{}}"

static struct {
    struct agent *agent;
    struct shoal_mesh_service copy, group; /* of the mesh, as this node has it and as its group says */
    enum shoal_err group_err;
    struct shoal_job one, two; /* led here */
    uint32_t ready;            /* of version two, by the word of the hosts */
    unsigned reads, edits;
    uint32_t revision; /* of the last edit */
    uint8_t replicas;
    char document[64];
    bool edited_meanwhile;
    bool ends; /* the group of version one, within the next step */
    bool ended;
} f;

/* ---- What the file under test asks ---- */

const struct shoal_mesh *shoal_sched_mesh(const struct shoal_sched *sched)
{
    (void)sched;
    return (const struct shoal_mesh *)&f;
}

size_t shoal_mesh_service_count(const struct shoal_mesh *mesh)
{
    (void)mesh;
    return 1;
}

const struct shoal_mesh_service *shoal_mesh_service_at(const struct shoal_mesh *mesh, size_t i)
{
    (void)mesh;
    (void)i;
    return &f.copy;
}

const struct shoal_job *shoal_sched_job(const struct shoal_sched *sched, struct shoal_job_id id)
{
    (void)sched;
    if (!shoal_job_id_equal(id, f.one.id))
        return &f.two;
    return f.ended ? NULL : &f.one;
}

bool shoal_sched_group_find(const struct shoal_sched *sched, struct shoal_job_id id, struct shoal_sched_group_status *status)
{
    (void)sched;
    (void)id;
    *status = (struct shoal_sched_group_status){ .leads = true };
    return true;
}

bool backend_serving_read(struct agent *agent, struct backend_serving *all)
{
    (void)agent;
    *all = (struct backend_serving){ .count = 0 };
    return true;
}

void backend_serving_free(struct backend_serving *all)
{
    (void)all;
}

void backend_serving_tally(const struct backend_serving *all, struct shoal_job_id job, struct backend_tally *tally)
{
    (void)all;
    *tally = (struct backend_tally){ .ready = shoal_job_id_equal(job, f.two.id) ? f.ready : f.one.tasks->replicas };
}

bool backend_summary(struct agent *agent, struct shoal_job_id id, struct shoal_job_summary *summary)
{
    (void)agent;
    summary->want_max = shoal_sched_job(NULL, id)->tasks->replicas;
    return true;
}

void service_doc_knobs(struct shoal_view document, uint32_t replicas, struct service_knobs *knobs)
{
    (void)document;
    *knobs = (struct service_knobs){ .started = true, .kernels_min = replicas, .kernels_max = replicas };
}

uint64_t agent_now_ns(void)
{
    return SHOAL_S;
}

void agent_event(struct agent *agent, struct shoal_sched_event *event)
{
    (void)agent;
    assert_int_equal(event->kind, SHOAL_SCHED_FLOOR);
    if (!f.ends || !shoal_job_id_equal(event->u.floor.job, f.one.id))
        return;
    free(f.one.tasks);
    f.one.tasks = NULL;
    f.ended = true;
}

void backend_service_find(struct agent *agent, const char *name, bool fresh, backend_service_fn *done, void *arg)
{
    (void)agent;
    assert_true(fresh);
    assert_string_equal(name, f.copy.name);
    f.reads++;
    if (f.edited_meanwhile)
        f.one.revision++;
    done(arg, f.group_err, "", f.group_err == SHOAL_OK ? &f.group : NULL);
}

void agent_request(struct agent *agent, struct shoal_sched_request *request, agent_reply_fn *done, void *arg)
{
    struct shoal_reader reader = shoal_reader_init(request->command);

    (void)agent;
    assert_int_equal(request->kind, SHOAL_SCHED_EDIT);
    assert_true(shoal_job_id_equal(request->job, f.one.id));
    f.edits++;
    f.revision = shoal_get_u32(&reader);
    f.replicas = shoal_get_u8(&reader);
    assert_true(shoal_reader_left(&reader) < sizeof(f.document));
    memcpy(f.document, request->command.bytes + SHOAL_EDIT_HEAD_BYTES, shoal_reader_left(&reader));
    done(arg, SHOAL_OK, NULL);
}

/* ---- The tests ---- */

static int begin(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    f.agent = calloc(1, sizeof(*f.agent));
    assert_non_null(f.agent);
    f.one.id.bytes[0] = 1;
    f.two.id.bytes[0] = 2;
    f.one.tasks = calloc(1, sizeof(*f.one.tasks));
    f.two.tasks = calloc(1, sizeof(*f.two.tasks));
    assert_true(f.one.tasks != NULL && f.two.tasks != NULL);
    f.one.tasks->replicas = f.two.tasks->replicas = f.ready = 2;
    f.one.document = f.two.document = (uint8_t *)DOCUMENT;
    f.one.document_len = f.two.document_len = sizeof(DOCUMENT) - 1;
    f.one.revision = 7;
    (void)snprintf(f.copy.name, sizeof(f.copy.name), "echo");
    f.copy.job = f.two.id;
    f.copy.before = f.one.id;
    f.group = f.copy;
    return 0;
}

static int end(void **state)
{
    (void)state;
    backend_scale_end(f.agent);
    free(f.one.tasks);
    free(f.two.tasks);
    free(f.agent);
    return 0;
}

static void looks(unsigned reads, unsigned edits)
{
    backend_scale_look(f.agent);
    assert_int_equal(f.reads, reads);
    assert_int_equal(f.edits, edits);
}

static void test_it_is_to_have_none_when_the_other_one_is_as_many(void **state)
{
    (void)state;
    f.ready = 1;
    looks(0, 0);
    f.ready = 2;
    looks(1, 1);
    assert_int_equal(f.revision, 7);
    assert_int_equal(f.replicas, 0);
    assert_string_equal(f.document, DOCUMENT);
}

static void test_a_copy_of_the_mesh_from_before_a_roll_back_takes_nothing(void **state)
{
    (void)state;
    f.group.job = f.one.id;
    f.group.before = f.two.id;
    looks(1, 0);
    looks(2, 0);
    f.group = f.copy; /* and forth again */
    looks(3, 1);
}

static void test_a_version_that_was_edited_while_the_name_was_read_is_looked_at_again(void **state)
{
    (void)state;
    f.edited_meanwhile = true;
    looks(1, 0);
    f.edited_meanwhile = false;
    looks(2, 1);
    assert_int_equal(f.revision, 8);
}

static void test_a_mesh_group_that_does_not_answer_is_asked_again(void **state)
{
    (void)state;
    f.group_err = SHOAL_ERR_UNREACHABLE;
    looks(1, 0);
    f.group_err = SHOAL_OK;
    looks(2, 1);
}

static void test_a_group_that_ends_while_it_is_told_is_left(void **state)
{
    (void)state;
    f.ends = true;
    looks(0, 0);
    assert_true(f.ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_it_is_to_have_none_when_the_other_one_is_as_many, begin, end),
        cmocka_unit_test_setup_teardown(test_a_copy_of_the_mesh_from_before_a_roll_back_takes_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_a_version_that_was_edited_while_the_name_was_read_is_looked_at_again, begin, end),
        cmocka_unit_test_setup_teardown(test_a_mesh_group_that_does_not_answer_is_asked_again, begin, end),
        cmocka_unit_test_setup_teardown(test_a_group_that_ends_while_it_is_told_is_left, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
