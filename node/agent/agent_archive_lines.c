/* The list of an ended job's blobs, and where the files lie that become blobs or are made from them.
 *
 * A line: "<64 hex of the blob> <what> <size> <path>\n"; what: l a file below log/, g the ledger, a its audit,
 * r the result's manifest or one of its files. Logs come in the order in which they are read. Any other file of RESULT_DIR,
 * an f in memory, is a line of kind r, "f <x or -> <mtime> <path>" as its path: an agent of the version before holds its blob
 * and makes no file of it. */
#include "agent_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent_results.h"

#include "shoal/below.h"

#include "shoal/banned.h"

#define LINES_MAX 8192
_Static_assert(2 * LINES_MAX <= ARCHIVE_SEATS, "a seat is looked for until one is empty");

/* The lines come off the wire: nothing of them is trusted. */
bool archive_is_log(const char *path)
{
    if (strncmp(path, "log/", 4) != 0)
        return false;
    for (const char *part = path; part != NULL; part = strchr(part, '/')) {
        part += *part == '/' ? 1 : 0;
        if (*part == '.' || *part == '/' || *part == '\0')
            return false;
    }
    return true;
}

/* "f <x or -> <mtime> <path>" */
static bool file_parse(struct archive_line *line)
{
    unsigned long long mtime;
    char mode;
    int at = 0;

    if (sscanf(line->path, "f %c %llu%n", &mode, &mtime, &at) != 2 || line->path[at] != ' ' ||
        !agent_result_is_shown(line->path + at + 1))
        return false;
    line->what = 'f';
    line->executable = mode == 'x';
    line->mtime_s = mtime;
    memmove(line->path, line->path + at + 1, strlen(line->path + at + 1) + 1);
    return true;
}

bool archive_line_text(const struct archive_line *line, char *text, size_t cap)
{
    char hex[SHOAL_HASH_TEXT_BYTES];
    int len;

    shoal_hex_text(line->hash.bytes, 32, hex);
    if (line->what == 'f')
        len = snprintf(text, cap, "%s r %llu f %c %llu %s\n", hex, (unsigned long long)line->bytes,
                       line->executable ? 'x' : '-', (unsigned long long)line->mtime_s, line->path);
    else
        len = snprintf(text, cap, "%s %c %llu %s\n", hex, line->what, (unsigned long long)line->bytes, line->path);
    return len > 0 && (size_t)len < cap;
}

static bool line_parse(const char *text, struct archive_line *line)
{
    char hex[SHOAL_HASH_TEXT_BYTES];
    unsigned long long bytes;

    if (sscanf(text, "%64s %c %llu %299[^\n]", hex, &line->what, &bytes, line->path) != 4 ||
        !shoal_hex_parse(hex, line->hash.bytes, 32))
        return false;
    line->bytes = bytes;
    if (line->what == 'l')
        return archive_is_log(line->path);
    if (line->what == 'r' && strncmp(line->path, "f ", 2) == 0)
        return file_parse(line);
    return line->what == 'g' || line->what == 'a' || line->what == 'r';
}

void agent_archive_folder(const struct agent *agent, const char *user, struct shoal_job_id id, char *path, size_t cap)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(id, text);
    (void)snprintf(path, cap, "%.200s/results/%.63s/batchworkdir/%s", agent->settings.data,
                   user[0] == '\0' || user[0] == '.' || strchr(user, '/') != NULL ? "nobody" : user, text);
}

void archive_make_parents(char *path, size_t from)
{
    for (size_t i = from; path[i] != '\0'; i++) {
        if (path[i] != '/')
            continue;
        path[i] = '\0';
        (void)mkdir(path, 0700);
        path[i] = '/';
    }
}

struct archive_line *archive_lines_add(struct archive_lines *lines)
{
    if (lines->count == LINES_MAX)
        return NULL;
    if (lines->count == lines->cap) {
        size_t cap = lines->cap == 0 ? 16 : 2 * lines->cap;
        struct archive_line *grown = realloc(lines->list, cap * sizeof(*grown));

        if (grown == NULL)
            return NULL;
        lines->list = grown;
        lines->cap = cap;
    }
    lines->list[lines->count] = (struct archive_line){ .what = 'r' };
    return &lines->list[lines->count++];
}

enum shoal_err archive_lines_read(struct archive_lines *lines, struct shoal_view bytes)
{
    char text[ARCHIVE_PATH_BYTES + 128];
    size_t at = 0;

    while (at < bytes.len) {
        const uint8_t *end = memchr(bytes.bytes + at, '\n', bytes.len - at);
        size_t len = end == NULL ? bytes.len - at : (size_t)(end - (bytes.bytes + at));
        struct archive_line *line = archive_lines_add(lines);

        if (line == NULL)
            return SHOAL_ERR_TOO_BIG;
        if (len >= sizeof(text)) {
            lines->count--;
            return SHOAL_ERR_TOO_BIG;
        }
        memcpy(text, bytes.bytes + at, len);
        text[len] = '\0';
        if (!line_parse(text, line)) { /* what was read of it is not believed */
            lines->count--;
            return SHOAL_ERR_MALFORMED;
        }
        at += len + 1;
    }
    return SHOAL_OK;
}

/* Where the hash is, or the empty seat for it: there are twice as many as lines. */
static uint16_t *seat_of(const struct archive_lines *lines, struct archive_seats *seats, struct shoal_hash hash)
{
    size_t at = ((size_t)hash.bytes[0] << 8 | hash.bytes[1]) % ARCHIVE_SEATS;

    while (seats->line[at] != 0 && !shoal_hash_equal(lines->list[seats->line[at] - 1].hash, hash))
        at = (at + 1) % ARCHIVE_SEATS;
    return &seats->line[at];
}

bool archive_lines_have(const struct archive_lines *lines, struct archive_seats *seats, struct shoal_hash hash)
{
    for (; seats->count < lines->count; seats->count++)
        if (lines->list[seats->count].what == 'r')
            *seat_of(lines, seats, lines->list[seats->count].hash) = (uint16_t)(seats->count + 1);
    return *seat_of(lines, seats, hash) != 0;
}

size_t agent_archive_lines(struct shoal_view list)
{
    struct archive_lines lines = { 0 };
    enum shoal_err err = archive_lines_read(&lines, list);
    size_t count = err == SHOAL_OK ? lines.count : 0;

    free(lines.list);
    return count;
}

void archive_line_path(const struct agent *agent, struct shoal_job_id job, const char *root,
                       const struct archive_line *line, char *path, size_t cap)
{
    if (line->what == 'g' || line->what == 'a') {
        agent_job_folder(agent, job, path, cap - 16);
        memcpy(path + strlen(path), line->what == 'g' ? "/ledger" : "/audit", line->what == 'g' ? 8 : 7);
    } else {
        (void)snprintf(path, cap, "%s/%s", root, line->path);
    }
}

/* ---- what another guardian has ---- */

#define ENTRY_BYTES_MAX (4 + ARCHIVE_PATH_BYTES + 8)

DIR *archive_open_log(const char *root, const char *name)
{
    char path[ARCHIVE_PATH_BYTES];
    DIR *dir;
    int fd;

    (void)snprintf(path, sizeof(path), "log/%.95s", name);
    fd = shoal_open_below(root, path, O_RDONLY | O_DIRECTORY);
    dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL && fd >= 0)
        (void)close(fd);
    return dir;
}

struct putting {
    struct shoal_writer *w;
    uint64_t skip;
    uint64_t seen;
    uint32_t count;
    bool more;
};

static void put_file(struct putting *p, const char *path, const struct stat *facts)
{
    if (p->seen++ < p->skip || p->more)
        return;
    if (p->w->cap - p->w->len < ENTRY_BYTES_MAX + 1) { /* 1: for `more` */
        p->more = true;
        return;
    }
    shoal_put_text(p->w, path);
    shoal_put_u64(p->w, (uint64_t)facts->st_size);
    p->count++;
}

static void put_logs(struct putting *p, const char *root, const char *name)
{
    DIR *dir = archive_open_log(root, name);
    const struct dirent *entry;
    struct stat facts;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char below[ARCHIVE_PATH_BYTES];

        if ((size_t)snprintf(below, sizeof(below), "log/%s/%s", name, entry->d_name) < sizeof(below) &&
            archive_is_log(below) && fstatat(dirfd(dir), entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(facts.st_mode))
            put_file(p, below, &facts);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

void archive_put_files(struct shoal_writer *w, const char *root, const char *folder, uint64_t skip)
{
    char(*names)[96] = calloc(ARCHIVE_TASKS_MAX, sizeof(*names));
    size_t count = names == NULL ? 0 : agent_log_tasks(root, names, ARCHIVE_TASKS_MAX);
    struct putting p = { .w = w, .skip = skip };
    struct shoal_writer at = shoal_writer_init(w->bytes + w->len, 4);
    char path[AGENT_PATH_BYTES + 16];
    struct stat facts;

    shoal_put_u32(w, 0);
    (void)snprintf(path, sizeof(path), "%s/ledger", folder);
    if (lstat(path, &facts) == 0 && S_ISREG(facts.st_mode))
        put_file(&p, "ledger", &facts);
    for (size_t i = 0; i < count; i++)
        put_logs(&p, root, names[i]);
    free(names);
    if (!w->failed)
        shoal_put_u32(&at, p.count);
    if (p.more)
        shoal_put_bool(w, true);
}

uint32_t archive_get_files(struct shoal_view list, struct archive_lines *lines, bool *more)
{
    struct shoal_reader r = shoal_reader_init(list);
    uint32_t count = shoal_get_u32(&r);
    uint32_t told = 0;

    for (; told < count && !r.failed; told++) {
        struct archive_line *line = archive_lines_add(lines);

        if (line == NULL)
            break;
        shoal_get_text(&r, line->path, sizeof(line->path));
        line->bytes = shoal_get_u64(&r);
        if (r.failed || (!archive_is_log(line->path) && strcmp(line->path, "ledger") != 0))
            lines->count--;
    }
    *more = told == count && shoal_reader_left(&r) > 0 && shoal_get_bool(&r) && !r.failed;
    return told;
}
