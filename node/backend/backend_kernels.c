/* The kernels of a service, by the word of the hosts that run them: each is asked, and what does not answer is left out.
 *
 *     {"kernels":[{"id","node","state","batch","running","finished","failed",
 *                  "milli_requests_per_s","bytes_per_s","platform","inputs","outputs"
 *                  and on a card "gpu","gpu_name","gpu_mem","gpu_mem_total", in MiB: what it declared, or all}, ...]} */
#include "shoal/json_text.h"
#include "shoal/mesh.h"
#include "shoal/pack.h"
#include "shoal/service_doc.h"
#include "shoal/slots.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define ASK_NS (2 * SHOAL_S)
#define HOSTS_MAX 64
#define TENSOR_DEPTH_MAX 6
#define ROWS_BYTES_MAX (64 * SHOAL_KIB)

struct kernels_look {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_buf rows;
    unsigned open; /* hosts that are asked, and one while they are being asked */
    shoal_backend_text_fn *done;
    void *arg;
};

/* The kernel's own word of its tensors, as JSON: {"name","datatype","shape"} of each; other values become null. False: memory
 * is short, or it is malformed. */
static bool put_value(struct shoal_pack_reader *r, struct shoal_buf *json, unsigned depth)
{
    struct shoal_pack_value v = shoal_pack_next(r);
    bool map = v.type == SHOAL_PACK_MAP, fine = !r->failed && depth < TENSOR_DEPTH_MAX;
    char number[32];

    if (!fine)
        return false;
    if (v.type == SHOAL_PACK_STR)
        return shoal_json_quote(v.bytes, json) == SHOAL_OK;
    if (v.type == SHOAL_PACK_UINT || v.type == SHOAL_PACK_INT) {
        int len = v.type == SHOAL_PACK_UINT ? snprintf(number, sizeof(number), "%llu", (unsigned long long)v.uint)
                                            : snprintf(number, sizeof(number), "%lld", (long long)(int64_t)v.uint);

        return shoal_buf_append(json, number, (size_t)len) == SHOAL_OK;
    }
    if (!map && v.type != SHOAL_PACK_ARRAY)
        return shoal_buf_append(json, "null", 4) == SHOAL_OK;
    fine = shoal_buf_append(json, map ? "{" : "[", 1) == SHOAL_OK;
    for (uint32_t i = 0; i < v.count && fine; i++) {
        fine = i == 0 || shoal_buf_append(json, ",", 1) == SHOAL_OK;
        if (map)
            fine = fine && put_value(r, json, depth + 1) && shoal_buf_append(json, ":", 1) == SHOAL_OK;
        fine = fine && put_value(r, json, depth + 1);
    }
    return fine && shoal_buf_append(json, map ? "}" : "]", 1) == SHOAL_OK;
}

static bool put_tensors(struct shoal_buf *json, const char *key, struct shoal_view tensors)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(tensors);
    struct shoal_buf made = { 0 };
    char text[32];
    bool fine;

    if (tensors.len == 0 || !put_value(&r, &made, 0) || made.len == 0 || made.bytes[0] != '[')
        made.len = 0;
    (void)snprintf(text, sizeof(text), ",\"%s\":", key);
    fine = shoal_buf_append(json, text, strlen(text)) == SHOAL_OK &&
           shoal_buf_append(json, made.len == 0 ? "[]" : (const char *)made.bytes, made.len == 0 ? 2 : made.len) ==
               SHOAL_OK;
    shoal_buf_deinit(&made);
    return fine;
}

/* The card of a kernel's slot; of one that its profile lets see none, nothing. */
static bool put_card(struct agent *agent, const struct agent_job *job, const struct agent_run *run, struct shoal_buf *json)
{
    const struct agent_device *device = agent_slot_device(&agent->settings, run->slot);
    struct shoal_slot_status slot;
    struct service_knobs knobs;
    char text[AGENT_DEVICE_BYTES + 100];

    if (device == NULL)
        return true;
    shoal_slots_slot(shoal_sched_slots(agent->sched), run->slot, &slot);
    agent_serve_knobs(agent, job, &knobs);
    if (knobs.need.device != SHOAL_JOB_DEVICE_GPU)
        return true;
    (void)snprintf(text, sizeof(text), ",\"gpu_mem\":%u,\"gpu_mem_total\":%u,\"gpu\":\"%s\",\"gpu_name\":",
                   slot.gpu_mib > 0 ? slot.gpu_mib : device->mib, device->mib, device->uuid);
    return shoal_buf_append(json, text, strlen(text)) == SHOAL_OK &&
           shoal_json_quote(shoal_view_text(device->name), json) == SHOAL_OK;
}

static bool put_kernel(struct agent *agent, const struct serve_replica *replica, struct shoal_buf *json)
{
    struct agent_job *job = NULL;
    const struct agent_run *run = agent_run_find(agent, replica->worker_id, &job);
    char name[64], text[400];

    if (run == NULL) /* its process has ended */
        return true;
    (void)backend_node_name(agent, agent->identity.node, name, sizeof(name));
    (void)snprintf(text, sizeof(text),
                   "%s{\"id\":\"%s\",\"state\":\"%s\",\"batch\":%u,\"running\":%u,\"finished\":%llu,"
                   "\"failed\":%llu,\"milli_requests_per_s\":%llu,\"bytes_per_s\":%llu,\"node\":",
                   json->len == 0 ? "" : ",", run->task,
                   !replica->ready         ? "STARTING"
                   : replica->running == 0 ? "IDLE"
                                           : "RUNNING",
                   replica->batch, replica->running, (unsigned long long)replica->finished,
                   (unsigned long long)replica->failed,
                   (unsigned long long)replica->milli_requests_per_s, (unsigned long long)replica->bytes_per_s);
    return shoal_buf_append(json, text, strlen(text)) == SHOAL_OK &&
           shoal_json_quote(shoal_view_text(name), json) == SHOAL_OK &&
           shoal_buf_append(json, ",\"platform\":", 12) == SHOAL_OK &&
           shoal_json_quote(shoal_view_text(replica->platform), json) == SHOAL_OK &&
           put_tensors(json, "inputs", replica->inputs) && put_tensors(json, "outputs", replica->outputs) &&
           put_card(agent, job, run, json) &&
           shoal_buf_append(json, "}", 1) == SHOAL_OK;
}

bool backend_kernels_here(struct agent *agent, struct shoal_job_id job, struct shoal_buf *json)
{
    struct serve_replica replica;
    bool fine = true;

    for (size_t i = 0; fine && serve_host_replica(agent->serve, i, &replica); i++)
        if (shoal_job_id_equal(replica.job, job))
            fine = put_kernel(agent, &replica, json);
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
