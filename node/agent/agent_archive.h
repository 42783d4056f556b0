/* Ended jobs in the archive, between the files of this room: agent_archive.c makes blobs, agent_archive_fetch.c fetches them,
 * agent_archive_index.c knows which jobs there are, agent_archive_lines.c reads and writes lists of blobs. */
#ifndef NODE_AGENT_ARCHIVE_H
#define NODE_AGENT_ARCHIVE_H

#include "agent.h"

#include <dirent.h>

#define ARCHIVE_LIST_BYTES_MAX (4 * SHOAL_MIB)
#define ARCHIVE_PATH_BYTES 300
#define ARCHIVE_TASKS_MAX 256 /* whose logs are archived */
#define ARCHIVE_ASK_TIMEOUT_NS (5 * SHOAL_S)
#define ARCHIVE_ANSWER_BYTES_MAX (512 * SHOAL_KIB)

struct archive_line {
    struct shoal_hash hash;
    char what;
    uint64_t bytes;
    char path[ARCHIVE_PATH_BYTES];
    uint64_t mtime_s; /* of an f, with `executable` */
    bool executable;
};

struct archive_lines {
    struct archive_line *list;
    size_t count, cap;
};

/* Lines of kind r by their hashes; zeroed: none yet. */
#define ARCHIVE_SEATS 16384u
struct archive_seats {
    uint16_t line[ARCHIVE_SEATS]; /* 1 + its place in the list; 0: empty */
    size_t count;                 /* so many lines of the list have been looked at */
};

/* The lines come off the wire: nothing of them is trusted. */
bool archive_is_log(const char *path);
/* Writes a line as archive_lines_read() reads it. False: it does not fit `cap`. */
bool archive_line_text(const struct archive_line *line, char *text, size_t cap);
/* A line of kind r, to be filled in; NULL: too many, or no memory. */
struct archive_line *archive_lines_add(struct archive_lines *lines);
/* The lines that were read before an error stay. TOO_BIG: more lines than fit. */
SHOAL_MUST_CHECK enum shoal_err archive_lines_read(struct archive_lines *lines, struct shoal_view bytes);
/* A blob of the result, with this hash. All lines have theirs, and none was taken out since the last call for these seats. */
bool archive_lines_have(const struct archive_lines *lines, struct archive_seats *seats, struct shoal_hash hash);
/* The place of a line's file on this host; `root` is the job's result folder. */
void archive_line_path(const struct agent *agent, struct shoal_job_id job, const char *root,
                       const struct archive_line *line, char *path, size_t cap);
/* A folder of logs below the result folder `root`; NULL: it cannot be read. */
DIR *archive_open_log(const char *root, const char *name);
/* What this host has of an ended job's logs and ledger, for its leader: u32 count, then each path with its length in bytes (u64),
 * after the first `skip` of them; on any thread. A byte of 1 follows if not all fit, which a version before does not say, nor look at. */
void archive_put_files(struct shoal_writer *w, const char *root, const char *folder, uint64_t skip);
/* Adds those that are logs or a ledger. Returns how many were told; `more`: one asks again after them. */
uint32_t archive_get_files(struct shoal_view list, struct archive_lines *lines, bool *more);
/* The folders that lead to `path`, below its first `from` bytes. */
void archive_make_parents(char *path, size_t from);
/* Ready to be told, and to answer, which archived jobs there are. */
void archive_index_create(struct agent *agent);

#endif
