#include "job_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "shoal/banned.h"

#define FILTER_TEXT_BYTES 1024u

static const char *const all_states[] = { "NEW",
                                          "SUBMITTED",
                                          "PENDING_JOB_SCHEDULER",
                                          "PENDING_CRD_SCHEDULER",
                                          "LAUNCHING",
                                          "RUNNING",
                                          "RECOVERING",
                                          "FINISHED",
                                          "KILLED",
                                          "ERROR" };
#define ALL_STATES (sizeof(all_states) / sizeof(all_states[0]))
_Static_assert(ALL_STATES <= SHOAL_LIST_STATES_MAX, "a filter holds them all");

static const struct {
    const char *name;
    enum shoal_job_sort sort;
} all_sorts[] = { { "created", SHOAL_SORT_CREATED },     { "state", SHOAL_SORT_STATE },
                  { "name", SHOAL_SORT_NAME },           { "user", SHOAL_SORT_USER },
                  { "framework", SHOAL_SORT_FRAMEWORK }, { "workers", SHOAL_SORT_WORKERS } };

static uint64_t now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec;
}

/* ---- the query ---- */

static bool read_states(struct http_request *request, struct shoal_job_filter *filter)
{
    const char *at = http_query(request, "state");

    while (at != NULL && at[0] != '\0') {
        size_t len = strcspn(at, ",");
        char name[41];
        size_t i = 0;

        (void)snprintf(name, sizeof(name), "%.*s", len < sizeof(name) ? (int)len : (int)sizeof(name) - 1, at);
        while (i < ALL_STATES && (strlen(name) != len || strcasecmp(all_states[i], name) != 0))
            i++;
        if (i == ALL_STATES || filter->state_count == SHOAL_LIST_STATES_MAX) {
            http_respond_error(request, 400,
                               "state: \"%.40s\" is not a comma list of NEW, SUBMITTED, PENDING_JOB_SCHEDULER, "
                               "PENDING_CRD_SCHEDULER, LAUNCHING, RUNNING, RECOVERING, FINISHED, KILLED, ERROR",
                               name);
            return false;
        }
        filter->states[filter->state_count++] = all_states[i];
        at += len + (at[len] == ',' ? 1 : 0);
    }
    return true;
}

static bool read_sort(struct http_request *request, struct shoal_job_filter *filter)
{
    const char *text = http_query(request, "sort");
    const char *name = text == NULL ? "-created" : text;

    filter->descending = name[0] == '-';
    name += filter->descending ? 1 : 0;
    for (size_t i = 0; i < sizeof(all_sorts) / sizeof(all_sorts[0]); i++) {
        filter->sort = all_sorts[i].sort;
        if (strcmp(all_sorts[i].name, name) == 0)
            return true;
    }
    http_respond_error(
        request, 400,
        "sort: \"%.40s\" is not created, state, name, user, framework or workers, maybe with a - before it "
        "for the reverse",
        text);
    return false;
}

/* Milliseconds since 1970, or "2031-05-01T09:30:00Z", or its date alone. */
static bool read_time(struct http_request *request, const char *key, uint64_t *ms)
{
    const char *text = http_query(request, key);
    struct tm tm = { .tm_mday = 1 };
    const char *rest;
    char *end = NULL;

    if (text == NULL)
        return true;
    *ms = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0')
        return true;
    rest = strptime(text, "%Y-%m-%d", &tm);
    if (rest != NULL && rest[0] == 'T')
        rest = strptime(rest, "T%H:%M:%SZ", &tm);
    if (rest != NULL && rest[0] == '\0') {
        *ms = (uint64_t)timegm(&tm) * 1000;
        return true;
    }
    http_respond_error(request, 400,
                       "%s: \"%.40s\" is not a time: give milliseconds since 1970, 2031-05-01 or 2031-05-01T09:30:00Z",
                       key, text);
    return false;
}

static bool read_limit(struct http_request *request, struct shoal_job_filter *filter)
{
    const char *text = http_query(request, "limit");
    char *end = NULL;
    unsigned long value;

    filter->limit = JOB_LIST_PAGE_DEFAULT;
    if (text == NULL)
        return true;
    value = strtoul(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && value >= 1 && value <= SHOAL_LIST_ROWS_MAX) {
        filter->limit = (unsigned)value;
        return true;
    }
    http_respond_error(request, 400, "limit: \"%.40s\" is not a number from 1 to %u; `page` asks for what follows",
                       text, (unsigned)SHOAL_LIST_ROWS_MAX);
    return false;
}

static bool read_flag(struct http_request *request, const char *key, bool *value)
{
    const char *text = http_query(request, key);

    *value = text != NULL && strcmp(text, "true") == 0;
    if (text == NULL || *value || strcmp(text, "false") == 0)
        return true;
    http_respond_error(request, 400, "%s: \"%.40s\" is not true or false", key, text);
    return false;
}

/* An ordinary user sees the own jobs alone. */
static bool read_user(struct http_request *request, struct shoal_job_filter *filter)
{
    const char *user = http_query(request, "user");

    filter->creator = user == NULL ? "" : user;
    if (request->user.admin)
        return true;
    if (user != NULL && strcmp(user, request->user.name) != 0) {
        http_respond_error(request, 403, "user: only an administrator lists the jobs of other users");
        return false;
    }
    filter->creator = request->user.name;
    return true;
}

/* A token is bound to everything that decides which rows stand in the list, and their order. */
static struct shoal_view filter_text(struct http_request *request, const struct shoal_job_filter *filter, char *text)
{
    int len = snprintf(text, FILTER_TEXT_BYTES, "%.63s|%.63s|%.300s|%d|%d%d|%" PRIu64 "|%" PRIu64 "|",
                       request->user.name, filter->creator, filter->name, (int)filter->sort, filter->descending,
                       filter->active_only, filter->since_ms, filter->until_ms);
    size_t used = len < 0 ? 0 : (size_t)len;

    for (size_t i = 0; i < filter->state_count && used + 40 < FILTER_TEXT_BYTES; i++)
        used += (size_t)snprintf(text + used, FILTER_TEXT_BYTES - used, "%s,", filter->states[i]);
    return shoal_view_of(text, used);
}

static bool read_page(struct http_request *request, struct shoal_job_filter *filter)
{
    const struct shoal_backend *backend = &request->http->backend;
    const char *page = http_query(request, "page");
    struct shoal_token_keys keys = { .count = 0 };
    char text[FILTER_TEXT_BYTES];
    struct shoal_msg msg = { "" };

    if (page == NULL || page[0] == '\0')
        return true;
    backend->token_keys(backend->ctx, &keys);
    if (page_token_read(page, &keys, now_s(), filter_text(request, filter, text), &filter->after, &msg) == SHOAL_OK)
        return true;
    http_respond_error(request, 400, "%s", msg.text);
    return false;
}

bool job_list_read(struct http_request *request, struct shoal_job_filter *filter)
{
    const char *name = http_query(request, "name");

    *filter = (struct shoal_job_filter){ .name = name == NULL ? "" : name };
    if (strlen(filter->name) > 127) {
        http_respond_error(request, 400, "name: longer than 127 bytes; no job's name is");
        return false;
    }
    return read_flag(request, "active", &filter->active_only) && read_user(request, filter) &&
           read_states(request, filter) && read_sort(request, filter) &&
           read_time(request, "since", &filter->since_ms) && read_time(request, "until", &filter->until_ms) &&
           read_limit(request, filter) && read_page(request, filter);
}

void job_list_own(struct http_request *request, struct shoal_job_filter *filter)
{
    *filter = (struct shoal_job_filter){ .creator = request->user.admin ? "" : request->user.name };
}

/* Is the state among the names of a comma list? */
static bool names_state(const char *list, const char *state)
{
    const size_t state_len = strlen(state);

    while (list[0] != '\0') {
        size_t len = strcspn(list, ",");

        if (len == state_len && strncasecmp(state, list, len) == 0)
            return true;
        list += len + (list[len] == ',' ? 1 : 0);
    }
    return false;
}

void job_list_states(struct http_request *request, struct shoal_job_filter *filter, bool shown)
{
    const char *list = http_query(request, "state");

    if (list == NULL || list[0] == '\0')
        return;
    for (size_t i = 0; i < ALL_STATES; i++)
        if (names_state(list, all_states[i]) || (shown && names_state(list, routes_exec_state(request->http, all_states[i]))))
            filter->states[filter->state_count++] = all_states[i];
    if (filter->state_count == 0)
        filter->states[filter->state_count++] = "none";
}

/* ---- the answer ---- */

void job_list_next(struct http_request *request, const struct shoal_job_page *page, char *text)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_token_keys keys = { .count = 0 };
    struct shoal_job_filter filter;
    char filter_bytes[FILTER_TEXT_BYTES];

    text[0] = '\0';
    if (!page->next.is_set || !job_list_read(request, &filter)) /* it was read before, so it can be read again */
        return;
    backend->token_keys(backend->ctx, &keys);
    page_token_make(&keys, now_s(), filter_text(request, &filter, filter_bytes), &page->next, text);
}

void job_list_headers(struct http_request *request, const struct shoal_job_page *page)
{
    char names[512] = "";
    size_t used = 0;

    for (size_t i = 0; i < page->missing_count && used + 70 < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%.63s", i == 0 ? "" : ", ", page->missing[i]);
    http_header_add(request, "Shoal-Age-Ms", "%d", 0);
    http_header_add(request, "Shoal-Complete", "%s", page->complete ? "true" : "false");
    if (page->missing_count > 0)
        http_header_add(request, "Shoal-Missing", "%s", names);
}

void job_list_missing_json(struct json_writer *w, const struct shoal_job_page *page)
{
    json_bool(w, "complete", page->complete);
    json_array_begin(w, "missing");
    for (size_t i = 0; i < page->missing_count; i++)
        json_text(w, NULL, page->missing[i]);
    json_end(w);
    json_uint(w, "unsettled", page->unsettled);
}

/* ---- whole lists ---- */

struct whole {
    struct http_request *request;
    struct shoal_job_filter filter;
    struct job_list_part part;
    uint64_t left;
    struct shoal_buf buf;
    struct json_writer w;
    bool complete;
    bool first;
};

static void whole_end(struct whole *whole, enum shoal_err err, const struct shoal_msg *msg,
                      const struct shoal_job_page *page)
{
    struct http_request *request = whole->request;

    if (err != SHOAL_OK) {
        shoal_buf_deinit(&whole->buf);
        http_respond_failure(request, err, msg, 400);
    } else {
        struct shoal_job_page last = *page;

        last.complete = last.complete && whole->complete;
        json_end(&whole->w);
        job_list_headers(request, &last);
        if (page->next.is_set && whole->left == 0)
            http_header_add(request, "Shoal-More", "true");
        http_respond_json(request, 200, &whole->w);
    }
    http_request_release(request);
    free(whole);
}

static void on_whole_page(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_page *page)
{
    struct whole *whole = arg;
    const struct shoal_backend *backend = &whole->request->http->backend;

    for (size_t i = 0; err == SHOAL_OK && i < page->count && whole->left > 0; i++) {
        if (whole->part.keep != NULL && !whole->part.keep(whole->request, &page->jobs[i]))
            continue;
        if (whole->part.skip > 0) {
            whole->part.skip--;
            continue;
        }
        whole->part.row(&whole->w, whole->request, &page->jobs[i]);
        whole->left--;
    }
    if (err != SHOAL_OK || !page->next.is_set || whole->left == 0) {
        whole_end(whole, err, msg, page);
        return;
    }
    whole->complete = whole->complete && page->complete;
    whole->filter.after = page->next;
    backend->list(backend->ctx, &whole->request->user, &whole->filter, on_whole_page, whole);
}

void job_list_whole(struct http_request *request, const struct shoal_job_filter *filter, const struct job_list_part *part)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct whole *whole = calloc(1, sizeof(*whole));

    if (whole == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *whole = (struct whole){ .request = request, .filter = *filter, .part = *part, .complete = true };
    whole->left = part->most < JOB_LIST_WHOLE_MAX ? part->most : JOB_LIST_WHOLE_MAX;
    whole->filter.limit = SHOAL_LIST_ROWS_MAX;
    if (part->keep == NULL && whole->left + part->skip < SHOAL_LIST_ROWS_MAX)
        whole->filter.limit = (unsigned)(whole->left + part->skip);
    if (whole->filter.limit == 0)
        whole->filter.limit = 1;
    whole->w = json_writer_init(&whole->buf);
    json_array_begin(&whole->w, NULL);
    http_request_hold(request);
    backend->list(backend->ctx, &request->user, &whole->filter, on_whole_page, whole);
}
