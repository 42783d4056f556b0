/* Lists for the API, and what is made of them: a job found by the end of its id, and the deletion of all jobs of a user. */
#include "agent_backend.h"
#include "backend_services.h"
#include "list.h"

#include "shoal/banned.h"

/* Deletions that one request has under way at one time. */
#define DELETES_AT_ONCE 32u
#define DELETE_PAGE 200u

static enum shoal_err too_many(struct shoal_msg *msg)
{
    return shoal_fail(msg, SHOAL_ERR_FULL, "too many lists at once on this node; try again, or ask another node");
}

/* ---- lists ---- */

struct listing_call {
    struct agent *agent;
    shoal_backend_jobs_fn *done;
    void *arg;
};

static void on_page(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct list_page *page)
{
    struct listing_call call = *(struct listing_call *)arg;
    size_t count = page == NULL ? 0 : page->count;
    struct backend_info *infos = malloc((count + 1) * sizeof(*infos));
    struct shoal_job_info *jobs = malloc((count + 1) * sizeof(*jobs));
    struct shoal_job_page shown = { .jobs = jobs, .count = count };

    free(arg);
    SHOAL_ASSERT(infos != NULL && jobs != NULL);
    for (size_t i = 0; i < count; i++) {
        backend_info_of_facts(call.agent, page->rows[i], &infos[i]);
        jobs[i] = infos[i].info;
    }
    if (page != NULL) {
        shown.next = page->next;
        shown.complete = page->complete;
        shown.missing = page->missing;
        shown.missing_count = page->missing_count;
        shown.unsettled = page->unsettled;
    }
    call.done(call.arg, err, msg, page == NULL ? NULL : &shown);
    free(jobs);
    free(infos);
}

void backend_list(void *ctx, const struct shoal_user *caller, const struct shoal_job_filter *filter,
                  shoal_backend_jobs_fn *done, void *arg)
{
    static struct list_query query; /* copied before anything else runs */
    struct listing_call *call = calloc(1, sizeof(*call));
    struct shoal_msg msg = { "" };

    SHOAL_ASSERT(call != NULL);
    *call = (struct listing_call){ .agent = ctx, .done = done, .arg = arg };
    list_query_of(filter, &query);
    if (!caller->admin)
        (void)snprintf(query.creator, sizeof(query.creator), "%s", caller->name);
    if (list_ask(ctx, &query, on_page, call) == SHOAL_OK)
        return;
    free(call);
    done(arg, too_many(&msg), &msg, NULL);
}

/* ---- a job by the end of its id ---- */

struct ending_call {
    char text[SHOAL_JOB_ID_DIGITS + 1];
    backend_id_fn *done;
    void *arg;
};

static void on_endings(void *arg, enum shoal_err err, const struct shoal_msg *said, const struct list_page *page)
{
    struct ending_call call = *(struct ending_call *)arg;
    struct shoal_job_id id = { { 0 } };
    struct shoal_msg msg = *said;

    free(arg);
    if (err == SHOAL_OK && page->count == 0 && !page->complete)
        err =
            shoal_fail(&msg, SHOAL_ERR_UNREACHABLE,
                       "no job that ends in %s is known, but some nodes do not answer; try again, or give the whole id",
                       call.text);
    else if (err == SHOAL_OK && page->count == 0)
        err = shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "exec %s does not exist", call.text);
    if (err == SHOAL_OK && page->count > 1) {
        char names[300] = "";

        for (size_t i = 0; i < page->count && i < 8; i++) {
            size_t used = strlen(names);

            names[used] = ' ';
            shoal_job_id_text(page->rows[i]->id, names + used + 1);
        }
        err = shoal_fail(&msg, SHOAL_ERR_INVALID, "%s is the ending of several jobs:%s; give more digits", call.text,
                         names);
    }
    if (err == SHOAL_OK)
        id = page->rows[0]->id;
    call.done(call.arg, err, &msg, id);
}

void backend_id_ask(struct agent *agent, const struct shoal_user *caller, const char *text, backend_id_fn *done,
                    void *arg)
{
    static struct list_query query;
    struct shoal_msg msg = { "" };
    struct ending_call *call;
    struct shoal_job_id id = { { 0 } };

    if (shoal_job_id_parse(text, &id) && !shoal_job_id_is_mesh(id)) {
        done(arg, SHOAL_OK, &msg, id);
        return;
    }
    if (strncmp(text, "shoal-", 6) == 0)
        text += 6;
    if (text[0] == '\0' || strlen(text) >= SHOAL_JOB_ID_DIGITS) {
        done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "exec %.100s does not exist", text), &msg, id);
        return;
    }
    call = calloc(1, sizeof(*call));
    SHOAL_ASSERT(call != NULL);
    *call = (struct ending_call){ .done = done, .arg = arg };
    memcpy(call->text, text, strlen(text) + 1);
    memset(&query, 0, sizeof(query));
    query.limit = 9;
    memcpy(query.ending, text, strlen(text) + 1);
    if (!caller->admin)
        (void)snprintf(query.creator, sizeof(query.creator), "%s", caller->name);
    if (list_ask(agent, &query, on_endings, call) == SHOAL_OK)
        return;
    free(call);
    done(arg, too_many(&msg), &msg, id);
}

/* ---- all jobs of a user, but for services (B2 of backend_verbs.c) ---- */

struct deleting {
    struct agent *agent;
    struct shoal_user caller;
    shoal_backend_done_fn *done;
    void *arg;
    struct shoal_job_id ids[DELETE_PAGE];
    size_t count, next, open;
    struct shoal_list_place after; /* set: another page follows */
    bool running, incomplete;
    enum shoal_err err;
    struct shoal_msg msg;
};

static void delete_page(struct deleting *d);

static void delete_end(struct deleting *d)
{
    if (d->err == SHOAL_OK && d->incomplete)
        d->err = shoal_fail(&d->msg, SHOAL_ERR_UNREACHABLE,
                            "what is known was deleted, but some nodes do not answer; repeat it when they do");
    d->done(d->arg, d->err, &d->msg);
    free(d);
}

static void delete_some(struct deleting *d);

static void on_deleted(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct deleting *d = arg;

    if (err != SHOAL_OK && err != SHOAL_ERR_NOT_FOUND) { /* somebody else was faster */
        d->err = err;
        d->msg = *msg;
    }
    d->open--;
    delete_some(d);
}

/* An answer may come before its question has returned: then the loop goes on, not a second one inside it. */
static void delete_some(struct deleting *d)
{
    if (d->running)
        return;
    d->running = true;
    while (d->next < d->count && d->open < DELETES_AT_ONCE) {
        char text[SHOAL_JOB_ID_TEXT_BYTES];

        shoal_job_id_text(d->ids[d->next++], text);
        d->open++;
        backend_del(d->agent, &d->caller, text, on_deleted, d);
    }
    d->running = false;
    if (d->open > 0)
        return;
    if (d->after.is_set && d->err == SHOAL_OK)
        delete_page(d);
    else
        delete_end(d);
}

static void on_delete_page(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct list_page *page)
{
    struct deleting *d = arg;

    d->count = d->next = 0;
    d->after.is_set = false;
    if (err != SHOAL_OK) {
        d->err = err;
        d->msg = *msg;
        delete_end(d);
        return;
    }
    for (size_t i = 0; i < page->count && i < DELETE_PAGE; i++)
        if (backend_service_of(d->agent, page->rows[i]->id) == NULL)
            d->ids[d->count++] = page->rows[i]->id;
    d->after = page->next;
    d->incomplete = d->incomplete || !page->complete;
    delete_some(d);
}

static void delete_page(struct deleting *d)
{
    static struct list_query query;

    memset(&query, 0, sizeof(query));
    query.limit = DELETE_PAGE;
    query.after = d->after;
    (void)snprintf(query.creator, sizeof(query.creator), "%s", d->caller.name);
    if (list_ask(d->agent, &query, on_delete_page, d) == SHOAL_OK)
        return;
    d->err = too_many(&d->msg);
    delete_end(d);
}

void backend_delete_all(void *ctx, const struct shoal_user *caller, shoal_backend_done_fn *done, void *arg)
{
    struct deleting *d = calloc(1, sizeof(*d));

    SHOAL_ASSERT(d != NULL);
    d->agent = ctx;
    d->caller = *caller;
    d->done = done;
    d->arg = arg;
    delete_page(d);
}
