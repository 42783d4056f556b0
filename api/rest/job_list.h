/* The lists of both APIs share this: reading a filter from the query, page tokens, and lists that WMLA's clients want
 * whole. */
#ifndef API_JOB_LIST_H
#define API_JOB_LIST_H

#include "routes.h"

/* A page token stays good for so long. */
#define JOB_LIST_TOKEN_S 3600u
#define JOB_LIST_TOKEN_TEXT_BYTES 200u
/* Rows of a list that a client wants whole: what dlicmd asks for at most. */
#define JOB_LIST_WHOLE_MAX 10000u
#define JOB_LIST_PAGE_DEFAULT 100u

/* page_sodium.c. The token says behind which place the page begins, for one filter of one user, until it expires; it is
 * signed with the mesh's key, so every node takes it. `text` holds JOB_LIST_TOKEN_TEXT_BYTES. */
void page_token_make(const struct shoal_token_keys *keys, uint64_t now_s, struct shoal_view filter,
                     const struct shoal_list_place *place, char *text);
/* INVALID, with the reason: forged or cut, of another list, too old. */
SHOAL_MUST_CHECK enum shoal_err page_token_read(const char *text, const struct shoal_token_keys *keys, uint64_t now_s,
                                                struct shoal_view filter, struct shoal_list_place *place,
                                                struct shoal_msg *msg);

/* The filter of GET /v1/jobs and /v1/top; its texts live as long as the request. False: it is answered (400, 403). */
bool job_list_read(struct http_request *request, struct shoal_job_filter *filter);
/* The token of the page behind this one, "" when there is none. */
void job_list_next(struct http_request *request, const struct shoal_job_page *page, char *text);
/* Headers: how old, whether something may be missing, who is silent. */
void job_list_headers(struct http_request *request, const struct shoal_job_page *page);
void job_list_missing_json(struct json_writer *w, const struct shoal_job_page *page);

/* The same for WMLA's addresses: all jobs that this user may see; of them those in the states of `state`, a comma list in which names
 * of no state match nothing. As execs show states (`shown`) one name stands for all that are shown so. */
void job_list_own(struct http_request *request, struct shoal_job_filter *filter);
void job_list_states(struct http_request *request, struct shoal_job_filter *filter, bool shown);

/* A JSON array of all jobs that match, `skip` left out and then at most `most`, page by page. `filter` is the list's; of what it lets
 * through `keep` takes those that it wants, NULL: all. */
struct job_list_part {
    uint64_t skip, most;
    bool (*keep)(struct http_request *request, const struct shoal_job_info *job);
    void (*row)(struct json_writer *w, struct http_request *request, const struct shoal_job_info *job);
};
void job_list_whole(struct http_request *request, const struct shoal_job_filter *filter, const struct job_list_part *part);

#endif
