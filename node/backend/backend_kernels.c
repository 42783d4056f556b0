/* The kernels of a service, by the word of the hosts that run them: each is asked, and what does not answer is left out.
 *
 *     {"kernels":[{"id","node","state","batch","running","finished","failed"}, ...]} */
#include "shoal/json_text.h"
#include "shoal/mesh.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define ASK_NS (2 * SHOAL_S)
#define HOSTS_MAX 64
#define ROWS_BYTES_MAX (64 * SHOAL_KIB)

struct kernels_look {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_buf rows;
    unsigned open; /* hosts that are asked, and one while they are being asked */
    shoal_backend_text_fn *done;
    void *arg;
};

bool backend_kernels_here(struct agent *agent, struct shoal_job_id job, struct shoal_buf *json)
{
    struct serve_replica replica;
    char name[64], id[SHOAL_JOB_ID_TEXT_BYTES], text[400];
    bool fine = true;

    shoal_job_id_text(job, id);
    (void)backend_node_name(agent, agent->identity.node, name, sizeof(name));
    for (size_t i = 0; fine && serve_host_replica(agent->serve, i, &replica); i++) {
        if (!shoal_job_id_equal(replica.job, job))
            continue;
        (void)snprintf(text, sizeof(text),
                       "%s{\"id\":\"%s-%u\",\"state\":\"%s\",\"batch\":%u,\"running\":%u,\"finished\":%llu,"
                       "\"failed\":%llu,\"node\":",
                       json->len == 0 ? "" : ",", id, replica.index,
                       !replica.ready         ? "STARTING"
                       : replica.running == 0 ? "IDLE"
                                              : "RUNNING",
                       replica.batch, replica.running, (unsigned long long)replica.finished,
                       (unsigned long long)replica.failed);
        fine = shoal_buf_append(json, text, strlen(text)) == SHOAL_OK &&
               shoal_json_quote(shoal_view_text(name), json) == SHOAL_OK && shoal_buf_append(json, "}", 1) == SHOAL_OK;
    }
    return fine;
}

static void look_over(struct kernels_look *l)
{
    static const char head[] = "{\"kernels\":[", tail[] = "]}";
    struct shoal_buf json = { 0 };
    struct shoal_msg msg = { "" };
    enum shoal_err err;

    if (--l->open > 0)
        return;
    err = shoal_buf_append(&json, head, sizeof(head) - 1);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&json, l->rows.bytes, l->rows.len);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&json, tail, sizeof(tail) - 1);
    l->done(l->arg, err, &msg, shoal_buf_view(&json));
    shoal_buf_deinit(&json);
    shoal_buf_deinit(&l->rows);
    free(l);
}

static void on_rows(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct kernels_look *l = arg;

    (void)msg; /* a host that is gone has no kernels to show */
    if (err == SHOAL_OK && answer.len > 1 && answer.len <= ROWS_BYTES_MAX && answer.bytes[0] == '{' &&
        (l->rows.len == 0 || shoal_buf_append(&l->rows, ",", 1) == SHOAL_OK))
        shoal_ignore(shoal_buf_append(&l->rows, answer.bytes, answer.len));
    look_over(l);
}

static void ask_hosts(struct kernels_look *l)
{
    struct agent *agent = l->agent;
    struct shoal_serving_record serving;
    struct shoal_record record;
    uint32_t cursor = 0;
    uint8_t bytes[32];

    while (l->open < HOSTS_MAX &&
           shoal_records_next(membership_swim(agent->membership), SHOAL_RECORD_SERVICE, &cursor, &record)) {
        struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
        bool there = false;

        if (record.tombstone || shoal_node_id_equal(record.author, agent->identity.node) ||
            shoal_serving_record_decode(record.payload, &serving) != SHOAL_OK)
            continue;
        for (unsigned i = 0; i < serving.count; i++)
            there = there || shoal_job_id_equal(serving.services[i].job, l->job);
        if (!there)
            continue;
        shoal_put_u8(&w, BACKEND_INFER_LOOK);
        shoal_put_u64(&w, 0);
        shoal_put_job_id(&w, l->job);
        l->open++;
        peer_ask(agent->calls, record.author, PEER_INFER, shoal_writer_view(&w), ASK_NS, on_rows, l);
    }
}

static void on_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct kernels_look *l = arg;
    struct shoal_msg msg;

    if (err != SHOAL_OK) {
        (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
        l->done(l->arg, err, &msg, (struct shoal_view){ 0 });
        free(l);
        return;
    }
    l->job = service->job;
    l->open = 1;
    if (!backend_kernels_here(l->agent, l->job, &l->rows))
        l->rows.len = 0;
    ask_hosts(l);
    look_over(l);
}

void backend_service_kernels(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                             void *arg)
{
    struct kernels_look *l = calloc(1, sizeof(*l));

    (void)caller; /* as backend_services() */
    SHOAL_ASSERT(l != NULL);
    l->agent = ctx;
    l->done = done;
    l->arg = arg;
    backend_service_find(ctx, name, false, on_found, l);
}
