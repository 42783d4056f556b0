/* Requests for a model that has no ready kernel (I3 of node/backend/backend_infer.c): as many are held as may, and none is lost.
 * The mesh, the groups and the hosts are this file's. */
#include "shoal/control_record.h"
#include "shoal/job_facts.h"
#include "shoal/sched_look.h"

#include "node/backend/backend_infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define REQUESTS_MAX (3 * SHOAL_SERVICE_QUEUE_MAX)

static struct {
    struct agent *agent;
    struct shoal_mesh_service service;
    struct shoal_user user;
    uint64_t now_ns;
    bool at_once; /* the group answers before agent_request() returns */
    struct {
        agent_reply_fn *done;
        void *arg;
    } asked[REQUESTS_MAX];
    unsigned asked_count;
    bool ready_here, ready_elsewhere;
    unsigned full, answered, late;
    bool waits;                      /* in the queue of this host */
    bool asks_again;                 /* a client, whose request is late */
    uint64_t cancels;                /* as soon as another one is late; 0: none */
    struct shoal_infer again;
    bool kept;                       /* what waits here is not given back */
    bool crowded;                    /* the way to another host is full */
    struct shoal_msg msg;              /* the last refusal's */
    uint64_t order[64];              /* requests, as they went to a kernel or were asked back */
    unsigned ordered;
} f;

static void note(uint64_t id)
{
    if (f.ordered < 64)
        f.order[f.ordered++] = id;
}

/* ---- What the file under test asks ---- */

uint64_t agent_now_ns(void) { return f.now_ns; }

void agent_request(struct agent *agent, struct shoal_sched_request *request, agent_reply_fn *done, void *arg)
{
    static const struct shoal_sched_action reply = { .kind = SHOAL_SCHED_REPLY };

    (void)agent;
    assert_int_equal(request->kind, SHOAL_SCHED_GET);
    if (f.at_once) {
        done(arg, SHOAL_OK, &reply);
        return;
    }
    assert_true(f.asked_count < REQUESTS_MAX);
    f.asked[f.asked_count].done = done;
    f.asked[f.asked_count++].arg = arg;
}

void backend_service_find(struct agent *agent, const char *name, bool fresh, backend_service_fn *done, void *arg)
{
    (void)agent, (void)name, (void)fresh;
    done(arg, SHOAL_OK, "", &f.service);
}

bool backend_service_is_half(const struct service_knobs *knobs, const struct shoal_mesh_service *service)
{
    (void)knobs, (void)service;
    return false;
}

bool backend_summary(struct agent *agent, struct shoal_job_id id, struct shoal_job_summary *summary)
{
    (void)agent, (void)id, (void)summary;
    return false;
}

void backend_version_find(struct agent *agent, const char *name, const char *version, bool fresh, backend_version_fn *done,
                          void *arg)
{
    (void)agent, (void)name, (void)version, (void)fresh, (void)done, (void)arg;
    fail_msg("no version is named");
}

uint8_t backend_canary_part(struct agent *agent, struct shoal_job_id job)
{
    (void)agent, (void)job;
    return 0;
}

void backend_infer_out(struct infer_call *call, struct shoal_node_id node, uint32_t timeout_ms)
{
    (void)node, (void)timeout_ms;
    if (!f.crowded)
        fail_msg("none goes to another host");
    call->crowded = true;
    backend_infer_next(call);
}

void backend_infer_out_more(struct infer_call *call, size_t bytes) { (void)call, (void)bytes; }

void backend_infer_out_cancel(struct infer_call *call) { (void)call; }

void backend_infer_out_back(struct infer_call *call) { (void)call; }

void backend_infer_serve_look(struct agent *agent) { (void)agent; }

void service_doc_knobs(struct shoal_view document, uint32_t replicas, struct service_knobs *knobs)
{
    (void)document, (void)replicas;
    *knobs = (struct service_knobs){ .started = true, .kernels_min = 1, .kernels_max = 1 };
}

enum shoal_err shoal_job_facts_decode(struct shoal_view bytes, struct shoal_job_facts *facts)
{
    (void)bytes, (void)facts;
    return SHOAL_OK;
}

size_t serve_host_facts(const struct serve_host *host, struct serve_facts *facts, size_t cap)
{
    (void)host, (void)cap;
    facts[0] = (struct serve_facts){ .job = f.service.job, .ready = 1, .room = 1 };
    return f.ready_here;
}

bool serve_host_infer(struct serve_host *host, const struct serve_ask *ask)
{
    const struct serve_answer answer = { .status = 200, .content_type = "" };

    (void)host;
    if (f.waits) {
        *ask->id = ((struct infer_call *)ask->arg)->id;
        return true;
    }
    note(((struct infer_call *)ask->arg)->id);
    ask->done(ask->arg, SHOAL_OK, "", &answer);
    return false;
}

bool serve_host_take_back(struct serve_host *host, uint64_t id)
{
    (void)host;
    note(id);
    return !f.kept;
}

void serve_host_more(struct serve_host *host, uint64_t id, size_t bytes) { (void)host, (void)id, (void)bytes; }

void serve_host_cancel(struct serve_host *host, uint64_t id) { (void)host, (void)id; }

const struct shoal_swim *membership_swim(const struct membership *membership)
{
    (void)membership;
    return NULL;
}

bool shoal_swim_member_find(const struct shoal_swim *swim, struct shoal_node_id node, struct shoal_member *member)
{
    (void)swim, (void)node;
    *member = (struct shoal_member){ .state = SHOAL_MEMBER_ALIVE };
    return true;
}

bool shoal_records_next(const struct shoal_swim *swim, enum shoal_record_kind kind, uint32_t *cursor,
                        struct shoal_record *record)
{
    (void)swim, (void)kind;
    *record = (struct shoal_record){ .author = { { 2 } } };
    return f.ready_elsewhere && (*cursor)++ == 0;
}

enum shoal_err shoal_serving_record_decode(struct shoal_view bytes, struct shoal_serving_record *serving)
{
    (void)bytes;
    *serving = (struct shoal_serving_record){ .count = 1, .pieces = true };
    serving->services[0] = (struct shoal_serving){ .job = f.service.job, .ready = 1, .room = 1 };
    return SHOAL_OK;
}

bool shoal_link_is_up(const struct shoal_link *link, struct shoal_node_id node)
{
    (void)link, (void)node;
    return true;
}

const struct shoal_mesh *shoal_sched_mesh(const struct shoal_sched *sched)
{
    (void)sched;
    return NULL;
}

/* ---- The tests ---- */

static int begin(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    f.agent = calloc(1, sizeof(*f.agent));
    assert_non_null(f.agent);
    f.agent->identity.node.bytes[0] = 1;
    f.service.job.bytes[0] = 7;
    f.now_ns = SHOAL_S;
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_true(f.agent->infer_calls == NULL); /* I2 */
    free(f.agent);
    return 0;
}

static void ask(struct shoal_infer *infer);

static void on_done(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_inferred *inferred)
{
    (void)arg, (void)inferred;
    f.msg = *msg;
    f.full += err == SHOAL_ERR_FULL;
    f.answered += err == SHOAL_OK;
    f.late += err == SHOAL_ERR_TIMEOUT;
    if (err == SHOAL_ERR_TIMEOUT && f.cancels != 0)
        backend_infer_cancel(f.agent, f.cancels);
    if (err == SHOAL_ERR_TIMEOUT && f.asks_again) {
        f.asks_again = f.waits = f.ready_here = f.ready_elsewhere = false;
        ask(&f.again);
    }
}

static void ask(struct shoal_infer *infer)
{
    *infer = (struct shoal_infer){ .caller = &f.user, .model = "echo", .version = "", .method = "", .path = "", .content_type = "" };
    backend_infer(f.agent, infer, on_done, NULL);
}

static void ask_many(unsigned count)
{
    struct shoal_infer infer;

    for (unsigned i = 0; i < count; i++)
        ask(&infer);
}

static void answer_groups(void)
{
    static const struct shoal_sched_action reply = { .kind = SHOAL_SCHED_REPLY };
    unsigned count = f.asked_count;

    f.asked_count = 0;
    for (unsigned i = 0; i < count; i++)
        f.asked[i].done(f.asked[i].arg, SHOAL_OK, &reply);
}

static uint32_t held(void)
{
    struct shoal_serving serving[1] = { { .open = 0 } };

    return backend_infer_held(f.agent, serving, 1) == 0 ? 0 : serving[0].open;
}

static void no_more_are_held_than_may_and_each_has_an_answer(void **state)
{
    (void)state;
    ask_many(1000);
    answer_groups();
    assert_int_equal(held(), 1000);
    ask_many(1000); /* all of them before their group has answered for one */
    assert_int_equal(f.full, 2000 - SHOAL_SERVICE_QUEUE_MAX);
    answer_groups();
    assert_int_equal(held(), SHOAL_SERVICE_QUEUE_MAX);
    backend_infer_look(f.agent);
    assert_int_equal(held(), SHOAL_SERVICE_QUEUE_MAX);
    f.ready_here = true;
    backend_infer_look(f.agent);
    assert_int_equal(f.answered, SHOAL_SERVICE_QUEUE_MAX);
    assert_int_equal(f.answered + f.full, 2000);
}

/* While their group is asked again, those that are held keep their places. */
static void who_is_asked_about_again_keeps_its_place(void **state)
{
    (void)state;
    ask_many(SHOAL_SERVICE_QUEUE_MAX);
    answer_groups();
    f.now_ns += 5 * SHOAL_S;
    backend_infer_look(f.agent);
    assert_int_equal(held(), 0);
    ask_many(1);
    assert_int_equal(f.full, 1);
    answer_groups();
    assert_int_equal(held(), SHOAL_SERVICE_QUEUE_MAX);
    f.ready_here = true;
    backend_infer_look(f.agent);
    assert_int_equal(f.answered, SHOAL_SERVICE_QUEUE_MAX);
}

static void a_request_that_comes_while_others_are_looked_at_is_held(void **state)
{
    struct shoal_infer infer;

    (void)state;
    f.at_once = f.asks_again = f.waits = f.ready_here = true;
    ask(&infer);
    f.ready_elsewhere = true;
    f.now_ns += 1000 * SHOAL_S;
    backend_infer_look(f.agent); /* I7: it is taken back to go elsewhere, and is late */
    assert_int_equal(f.late, 1);
    assert_int_equal(held(), 1);
    f.ready_here = true;
    backend_infer_look(f.agent);
    assert_int_equal(f.answered, 1);
}

/* As a client's connection does that is closed while another client is answered. */
static void a_request_that_is_cancelled_while_another_is_looked_at_is_left_alone(void **state)
{
    struct shoal_infer first, second;

    (void)state;
    f.waits = f.ready_here = true;
    ask(&first);
    ask(&second); /* the oldest is looked at first */
    f.cancels = second.number;
    f.ready_elsewhere = true;
    f.now_ns += 1000 * SHOAL_S;
    backend_infer_look(f.agent);
    assert_int_equal(f.late, 1);
    assert_true(f.agent->infer_calls == NULL);
}

static void check_order(uint64_t first, unsigned count)
{
    assert_int_equal(f.ordered, count);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(f.order[i], first + i);
    f.ordered = 0;
}

static void who_has_been_held_longest_gets_the_first_kernel(void **state)
{
    (void)state;
    ask_many(3);
    answer_groups();
    backend_infer_look(f.agent);
    ask_many(2);
    answer_groups();
    f.now_ns += 5 * SHOAL_S;
    backend_infer_look(f.agent); /* their group is asked again, and answers for the newest first */
    for (unsigned i = 0; i < f.asked_count / 2; i++) {
        void *arg = f.asked[i].arg;

        f.asked[i].arg = f.asked[f.asked_count - 1 - i].arg;
        f.asked[f.asked_count - 1 - i].arg = arg;
    }
    answer_groups();
    f.ready_here = true;
    backend_infer_look(f.agent);
    check_order(1, 5);
}

/* A look asks for so many, of those that wait longest; those that cannot go keep nobody else from it. */
static void all_that_wait_are_asked_back_in_turn_the_oldest_first(void **state)
{
    struct shoal_infer infers[20];

    (void)state;
    f.waits = f.ready_here = f.kept = true;
    for (unsigned i = 0; i < 20; i++)
        ask(&infers[i]);
    f.ready_elsewhere = true;
    backend_infer_look(f.agent);
    check_order(1, 8);
    backend_infer_look(f.agent);
    check_order(9, 8);
    backend_infer_look(f.agent);
    check_order(17, 4);
    backend_infer_look(f.agent);
    check_order(1, 8);
    for (unsigned i = 0; i < 20; i++)
        backend_infer_cancel(f.agent, infers[i].number);
}

static void a_refusal_names_what_was_full(void **state)
{
    (void)state;
    f.ready_elsewhere = f.crowded = true;
    ask_many(1);
    assert_int_equal(f.full, 1);
    assert_string_equal(f.msg.text, "the way to this model's hosts is full; send it again in a second, or ask another node");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_more_are_held_than_may_and_each_has_an_answer, begin, end),
        cmocka_unit_test_setup_teardown(who_is_asked_about_again_keeps_its_place, begin, end),
        cmocka_unit_test_setup_teardown(a_request_that_comes_while_others_are_looked_at_is_held, begin, end),
        cmocka_unit_test_setup_teardown(a_request_that_is_cancelled_while_another_is_looked_at_is_left_alone, begin, end),
        cmocka_unit_test_setup_teardown(who_has_been_held_longest_gets_the_first_kernel, begin, end),
        cmocka_unit_test_setup_teardown(all_that_wait_are_asked_back_in_turn_the_oldest_first, begin, end),
        cmocka_unit_test_setup_teardown(a_refusal_names_what_was_full, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
