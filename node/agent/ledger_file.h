/* The file of a ledger: its records, in order (agent_ledger.c says what they are for). */
#ifndef NODE_LEDGER_FILE_H
#define NODE_LEDGER_FILE_H

#include "agent_ledger.h"

/* The records after (call, step) begin at `bytes`. */
struct ledger_mark {
    uint64_t bytes;
    uint32_t call;
    uint64_t step;
};

struct ledger_file {
    int fd; /* the caller's */
    uint64_t bytes; /* of whole records, each of which follows the one before */
    uint32_t call;  /* of the last one */
    uint64_t step;
    struct ledger_progress progress;
    uint64_t rate_from_ns;
    uint64_t rate_from_step;
    struct ledger_mark *marks; /* one for each piece of the file, in order: no long walk to any record */
    size_t mark_count, mark_cap;
};

void ledger_file_deinit(struct ledger_file *file);

/* Reads the rest of the file: where its whole records end, what the last one is. Any thread may call. FULL, STORAGE: it cannot
 * be read, so nothing is known of it; what `file` says then is of no use. */
SHOAL_MUST_CHECK enum shoal_err ledger_file_scan(struct ledger_file *file, struct shoal_msg *msg);
/* After a scan: what follows the last whole record goes. False, with errno: it stays. */
SHOAL_MUST_CHECK bool ledger_file_cut(const struct ledger_file *file);

/* Of what it was, this is left. */
void ledger_file_back(struct ledger_file *file, const struct ledger_mark *end);

/* It is the next step of the same call, or the first one of a later call. */
bool ledger_file_takes(const struct ledger_file *file, const struct shoal_step_head *head);
/* `record` follows, as ledger_file_takes() says. STORAGE: it is not taken. */
SHOAL_MUST_CHECK enum shoal_err ledger_file_append(struct ledger_file *file, struct shoal_view record,
                                                   const struct shoal_step_head *head, struct shoal_reader tuples);

/* Whether no record has come for so long that the rate says nothing of the present. */
bool ledger_file_rests(const struct ledger_file *file, uint64_t now_ns);

/* The length of the record at `at`, by the four bytes before it. 0: they cannot be read. */
uint32_t ledger_file_length(const struct ledger_file *file, uint64_t at);
/* Where the records after (call, step) begin. */
uint64_t ledger_file_after(const struct ledger_file *file, uint32_t call, uint64_t step);

/* What a record says of how far the job has come. */
void ledger_progress_note(struct ledger_progress *progress, const struct shoal_step_head *head,
                          struct shoal_reader tuples);

/* Every record of the open file in order; `each` gets the head and a reader at the tuples. Any thread may call. A torn end is
 * left out; FULL, STORAGE: not all could be read. */
typedef void ledger_each_fn(void *arg, const struct shoal_step_head *head, struct shoal_reader tuples);
SHOAL_MUST_CHECK enum shoal_err ledger_file_each(int fd, ledger_each_fn *each, void *arg, struct shoal_msg *msg);

#endif
