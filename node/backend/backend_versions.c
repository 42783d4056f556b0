/* The versions of a service: the one that its name stands for, and the other one that is kept, the version before or the
 * canary.
 *
 *     "/versions/2" --> numbers of both, by gossip; where it does not tell, by their groups --> job
 *                            '-- none has that number: the mesh group is asked anew, once --> 404 with those there are
 *
 * V1. A version's number is that of its job, and stays: going back does not give it another. (A job that an older agent
 *     founded has none: the number is counted from the name's changes, as that agent does.) */
#include "shoal/job_facts.h"
#include "shoal/sched_look.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define READ_MS 5000
#define VERSIONS 2 /* that are kept of a service */
#define DIGITS_MAX 9

static uint32_t counted(const struct shoal_mesh_service *service, bool current)
{
    return service->version - (current ? 0 : 1);
}

uint32_t backend_version_number(struct agent *agent, const struct shoal_mesh_service *service, bool current)
{
    struct shoal_job_summary *summary = calloc(1, sizeof(*summary));
    struct shoal_job_id job = current ? service->job : service->before;
    uint32_t number = 0;

    SHOAL_ASSERT(summary != NULL);
    if (!shoal_job_id_is_mesh(job) && backend_summary(agent, job, summary))
        number = summary->version > 0 ? summary->version : counted(service, current);
    free(summary);
    return number;
}

uint8_t backend_canary_part(struct agent *agent, struct shoal_job_id job)
{
    struct shoal_job_summary *summary = calloc(1, sizeof(*summary));
    uint8_t part = 0;

    SHOAL_ASSERT(summary != NULL);
    if (backend_summary(agent, job, summary))
        part = summary->canary;
    free(summary);
    return part;
}

/* ---- by number ---- */

struct version_find {
    struct agent *agent;
    char name[SHOAL_MESH_SERVICE_BYTES], text[64];
    struct shoal_mesh_service service;
    uint32_t numbers[VERSIONS]; /* of the current one and of the other; 0: not known */
    bool asked[VERSIONS];
    unsigned asking;
    bool fresh;
    backend_version_fn *done;
    void *arg;
};

static struct shoal_job_id job_at(const struct version_find *f, unsigned i)
{
    return i == 0 ? f->service.job : f->service.before;
}

/* Digits without a sign and without zeroes before them; 0: it is none. */
static uint32_t number_of(const char *text)
{
    size_t len = strlen(text);

    if (len == 0 || len > DIGITS_MAX || strspn(text, "0123456789") != len || text[0] == '0')
        return 0;
    return (uint32_t)strtoul(text, NULL, 10);
}

static void find_end(struct version_find *f, enum shoal_err err, const char *text, unsigned i)
{
    struct backend_version found = { .service = &f->service, .job = job_at(f, i), .current = i == 0 };

    f->done(f->arg, err, text, err == SHOAL_OK ? &found : NULL);
    free(f);
}

static void find_none(struct version_find *f)
{
    char text[300];

    if (f->numbers[1] > 0)
        (void)snprintf(text, sizeof(text), "Model <%s> has versions %u and %u, not %s.", f->name, f->numbers[0],
                       f->numbers[1], f->text);
    else
        (void)snprintf(text, sizeof(text), "Model <%s> has version %u, not %s.", f->name, f->numbers[0], f->text);
    find_end(f, SHOAL_ERR_NOT_FOUND, text, 0);
}

static void on_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service);
static void look(struct version_find *f);

static void on_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct version_find *f = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK)
        f->numbers[f->asking] = facts->version > 0 ? facts->version : counted(&f->service, f->asking == 0);
    free(facts);
    if (err != SHOAL_OK && err != SHOAL_ERR_NOT_FOUND)
        find_end(f, err, reply->u.reply.text, 0);
    else
        look(f);
}

static void look(struct version_find *f)
{
    struct shoal_sched_request get = { .kind = SHOAL_SCHED_GET, .linearizable = true, .deadline_ms = READ_MS };
    uint32_t number = number_of(f->text);

    for (unsigned i = 0; i < VERSIONS && number > 0; i++)
        if (f->numbers[i] == number) {
            find_end(f, SHOAL_OK, "", i);
            return;
        }
    for (unsigned i = 0; i < VERSIONS; i++) {
        if (f->numbers[i] > 0 || f->asked[i] || shoal_job_id_is_mesh(job_at(f, i)))
            continue;
        f->asked[i] = true;
        f->asking = i;
        get.job = job_at(f, i);
        agent_request(f->agent, &get, on_facts, f);
        return;
    }
    if (f->fresh) {
        find_none(f);
        return;
    }
    f->fresh = true;
    backend_service_find(f->agent, f->name, true, on_found, f);
}

static void on_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct version_find *f = arg;

    if (err != SHOAL_OK) {
        find_end(f, err, text, 0);
        return;
    }
    f->service = *service;
    for (unsigned i = 0; i < VERSIONS; i++) {
        f->asked[i] = false;
        f->numbers[i] = backend_version_number(f->agent, &f->service, i == 0);
    }
    look(f);
}

void backend_version_find(struct agent *agent, const char *name, const char *version, bool fresh,
                          backend_version_fn *done, void *arg)
{
    struct version_find *f = calloc(1, sizeof(*f));

    SHOAL_ASSERT(f != NULL);
    f->agent = agent;
    f->fresh = fresh;
    f->done = done;
    f->arg = arg;
    (void)snprintf(f->name, sizeof(f->name), "%.63s", name);
    (void)snprintf(f->text, sizeof(f->text), "%.60s", version);
    backend_service_find(agent, name, fresh, on_found, f);
}

/* ---- counted ---- */

static void add(struct backend_tally *tally, const struct shoal_serving *s)
{
    tally->ready += s->ready;
    tally->open += s->open;
    tally->held += s->ready == 0 ? s->open : 0;
    tally->answered += s->answered;
    tally->failed += s->failed;
}

void backend_serving_tally(const struct backend_serving *all, struct shoal_job_id job, struct backend_tally *tally)
{
    size_t count;
    const struct backend_serving_row *rows = backend_serving_of(all, job, &count);

    *tally = (struct backend_tally){ 0 };
    for (size_t i = 0; i < count; i++)
        add(tally, &rows[i].serving);
}

void backend_version_tally(struct agent *agent, struct shoal_job_id job, struct backend_tally *tally)
{
    struct shoal_serving_record serving;
    struct shoal_record record;
    uint32_t cursor = 0;

    *tally = (struct backend_tally){ 0 };
    while (shoal_records_next(membership_swim(agent->membership), SHOAL_RECORD_SERVICE, &cursor, &record)) {
        if (!backend_host_serves(agent, &record, &serving))
            continue;
        for (unsigned i = 0; i < serving.count; i++) {
            const struct shoal_serving *s = &serving.services[i];

            if (shoal_job_id_equal(s->job, job))
                add(tally, s);
        }
    }
}

/* ---- shown ---- */

/* One of the versions that an answer tells of. */
struct shown {
    bool current;
    unsigned weight;
    const char *role;
};

static bool put_version(struct agent *agent, const struct backend_serving *all, const struct shoal_mesh_service *service,
                        const struct shown *shown, struct shoal_buf *json)
{
    bool current = shown->current;
    struct shoal_job_id job = current ? service->job : service->before;
    struct shoal_job_summary *summary = calloc(1, sizeof(*summary));
    char text[400], id[SHOAL_JOB_ID_TEXT_BYTES];
    struct backend_tally tally;

    SHOAL_ASSERT(summary != NULL);
    (void)backend_summary(agent, job, summary);
    backend_serving_tally(all, job, &tally);
    shoal_job_id_text(job, id);
    (void)snprintf(text, sizeof(text),
                   "%s{\"version\":%u,\"role\":\"%s\",\"job\":\"%s\",\"weight\":%u,\"replicas\":%u,\"ready\":%u,"
                   "\"open\":%u,\"answered\":%llu,\"failed\":%llu}",
                   current ? "" : ",", backend_version_number(agent, service, current), shown->role, id, shown->weight,
                   summary->want_max, tally.ready, tally.open, (unsigned long long)tally.answered,
                   (unsigned long long)tally.failed);
    free(summary);
    return shoal_buf_append(json, text, strlen(text)) == SHOAL_OK;
}

bool backend_versions_put(struct agent *agent, const struct backend_serving *all, const struct shoal_mesh_service *service,
                          struct shoal_buf *json)
{
    bool other = !shoal_job_id_is_mesh(service->before);
    uint8_t part = other ? backend_canary_part(agent, service->job) : 0;
    unsigned weight = part > 0 ? part - 1u : 0;
    const struct shown shown[] = { { true, 100 - weight, "current" },
                                   { false, weight, part > 0 ? "canary" : "before" } };

    return shoal_buf_append(json, ",\"versions\":[", 13) == SHOAL_OK &&
           put_version(agent, all, service, &shown[0], json) &&
           (!other || put_version(agent, all, service, &shown[1], json)) && shoal_buf_append(json, "]", 1) == SHOAL_OK;
}
