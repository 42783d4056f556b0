/* The files of a job's RESULT_DIR: listed, and read piece by piece, here or where it lies.
 *
 *   asker: hosts that run it, own folder, guardians; until one has a file --list, page by page--> lines
 *   asker: the one that listed ---------------------------------------------read, piece by piece--> bytes
 *
 * A question: job, u8 what (0 list, 1 read), text path (list: what comes after it; read: of the file), u64 offset, u32
 * max. The answer of a list: bool more, u64 left out, lines, the last of which may be "owed <text>" (agent_tree_owed(); no file to an
 * agent of a version before); of a read: bytes. Folders and files are waited for on a
 * thread. */
#include "backend_files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "node/agent/agent_results.h"
#include "shoal/below.h"

#include "shoal/banned.h"

#define LIST_TIMEOUT_NS (5 * SHOAL_S)
#define HOSTS_WAIT_MS 1000u /* then a host that has them already is asked */
#define PAGE_BYTES (512 * SHOAL_KIB)
#define PAGES_MAX 16
#define HOSTS_ASKED_MAX 4 /* that run the job: each has all */
#define NODES_MAX 16
#define LINE_BYTES (64 + 2 * 21 + 8 + AGENT_RESULT_PATH_BYTES)
_Static_assert((uint64_t)PAGES_MAX *PAGE_BYTES >= (uint64_t)SHOAL_RESULT_FILES_MAX * LINE_BYTES,
               "all pages hold the longest list");

#define LISTS_AT_ONCE 2u /* that are made here for clients of this node: each takes megabytes until it is on its way */
#define LIST_HEAD_BYTES 9 /* of an answer: more, left out */

#define OWED "owed "

enum what { WHAT_LIST, WHAT_READ };

/* ---- this host's folder ---- */

struct look {
    uv_work_t work;
    struct agent *agent;
    enum what what;
    char root[AGENT_PATH_BYTES];
    char path[AGENT_RESULT_PATH_BYTES];
    uint64_t offset;
    size_t max;
    struct agent_results results;
    size_t lines_max;        /* WHAT_LIST: a page, or all */
    struct shoal_buf lines;  /* behind `path` */
    bool more;
    char owed_folder[AGENT_PATH_BYTES];
    char owed[AGENT_OWED_BYTES];
    uint8_t *bytes;
    ssize_t len;
    int error;
    void (*done)(struct look *look); /* frees nothing */
    void *arg;
};

static bool put_lines(const struct agent_results *results, const char *after, size_t most, struct shoal_buf *lines);

static void look_run(uv_work_t *work)
{
    struct look *look = work->data;
    int fd;

    if (look->what == WHAT_LIST) {
        agent_results_walk(look->root, &look->results);
        look->more = put_lines(&look->results, look->path, look->lines_max, &look->lines);
        if (!agent_tree_owed(look->owed_folder, look->owed))
            look->owed[0] = '\0';
        return;
    }
    fd = shoal_open_below(look->root, look->path, O_RDONLY);
    look->len = fd < 0 ? -1 : pread(fd, look->bytes, look->max, (off_t)look->offset);
    look->error = look->len < 0 ? errno : 0;
    if (fd >= 0)
        (void)close(fd);
}

static void look_ended(uv_work_t *work, int status)
{
    struct look *look = work->data;

    (void)status;
    look->done(look);
    free(look->results.list);
    shoal_buf_deinit(&look->lines);
    free(look->bytes);
    free(look);
}

/* Of a job's files on this host; its list is of none where the host has none. */
static struct look *look_create(struct agent *agent, enum what what, struct shoal_job_id id, void (*done)(struct look *look),
                                void *arg)
{
    const struct agent_job *job = backend_serves_files(agent, id);
    struct look *look = calloc(1, sizeof(*look));

    SHOAL_ASSERT(look != NULL);
    look->work.data = look;
    look->agent = agent;
    look->what = what;
    look->done = done;
    look->arg = arg;
    look->lines_max = PAGE_BYTES - LIST_HEAD_BYTES;
    (void)snprintf(look->root, sizeof(look->root), "%s", job == NULL ? "" : job->result_dir);
    agent_tree_owed_folder(agent, id, look->owed_folder);
    return look;
}

static void look_start(struct look *look)
{
    (void)uv_queue_work(&look->agent->loop, &look->work, look_run, look_ended);
}

/* The lines behind `after`, up to `most` bytes. True: there are more. */
static bool put_lines(const struct agent_results *results, const char *after, size_t most, struct shoal_buf *lines)
{
    static const char no_hash[] = "0000000000000000000000000000000000000000000000000000000000000000";
    char line[LINE_BYTES];

    for (size_t i = 0; i < results->count; i++) {
        const struct agent_result *result = &results->list[i];
        int len;

        if (strcmp(result->path, after) <= 0)
            continue;
        if (lines->len + LINE_BYTES > most)
            return true;
        len = snprintf(line, sizeof(line), "%s %llu %llu %c %s\n", no_hash, (unsigned long long)result->bytes,
                       (unsigned long long)result->mtime_s, result->executable ? 'x' : '-', result->path);
        shoal_ignore(shoal_buf_append(lines, line, (size_t)len)); /* no memory: the list is shorter */
    }
    return false;
}

/* No memory: the list seems whole. */
static void put_owed(const char *owed, struct shoal_buf *lines)
{
    char line[AGENT_OWED_BYTES + 16];

    (void)snprintf(line, sizeof(line), OWED "%s\n", owed);
    shoal_ignore(shoal_buf_append(lines, line, strlen(line)));
}

/* The last line if it says what is owed: taken off, and its text. */
static void take_owed(struct shoal_buf *lines, char owed[AGENT_OWED_BYTES])
{
    size_t end = lines->len == 0 ? 0 : lines->len - 1, at = end;

    owed[0] = '\0';
    while (at > 0 && lines->bytes[at - 1] != '\n')
        at--;
    if (end - at < sizeof(OWED) || end - at >= sizeof(OWED) + AGENT_OWED_BYTES - 1 ||
        memcmp(lines->bytes + at, OWED, sizeof(OWED) - 1) != 0)
        return;
    (void)snprintf(owed, AGENT_OWED_BYTES, "%.*s", (int)(end - at - (sizeof(OWED) - 1)),
                   (const char *)lines->bytes + at + sizeof(OWED) - 1);
    lines->len = at;
}

static void say_away(const struct agent *agent, char *text, size_t cap)
{
    (void)snprintf(text, cap, "files of this job are still on their way to %.60s; ask again in a few seconds",
                   agent->settings.name);
}

/* ---- for others ---- */

static void on_served(struct look *look)
{
    struct shoal_buf answer = { 0 };
    enum shoal_err err;
    uint8_t head[LIST_HEAD_BYTES] = { 0 };
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));

    if (look->agent->stopping)
        return; /* the question's asker gives up by itself */
    if (look->what == WHAT_READ) {
        peer_answer(look->arg, look->len < 0 ? SHOAL_ERR_NOT_FOUND : SHOAL_OK,
                    look->len < 0 ? strerror(look->error) : "",
                    shoal_view_of(look->bytes, look->len < 0 ? 0 : (size_t)look->len));
        return;
    }
    shoal_put_bool(&w, look->more);
    shoal_put_u64(&w, look->results.left_out);
    err = shoal_buf_append(&answer, head, sizeof(head));
    if (err == SHOAL_OK && look->lines.len > 0)
        err = shoal_buf_append(&answer, look->lines.bytes, look->lines.len);
    if (err == SHOAL_OK && !look->more && look->owed[0] != '\0')
        put_owed(look->owed, &answer);
    peer_answer(look->arg, err, "", shoal_buf_view(&answer));
    shoal_buf_deinit(&answer);
}

/* A list that waits until what other hosts have written is here. Else the answer's bytes are the ids of those hosts, one of
 * which has what is missing. */
struct listing {
    struct look *look;
    struct shoal_job_id job;
    struct peer_question *question;
};

static void on_all_here(void *arg, bool all)
{
    struct listing *listing = arg;
    struct agent *agent = listing->look->agent;
    struct shoal_node_id hosts[NODES_MAX];
    char text[200];

    if (all && !agent->stopping) {
        look_start(listing->look);
    } else {
        say_away(agent, text, sizeof(text));
        if (!agent->stopping)
            peer_answer(listing->question, SHOAL_ERR_STALE, text,
                        shoal_view_of(hosts, agent_tree_hosts(agent, listing->job, hosts, NODES_MAX) * sizeof(hosts[0])));
        free(listing->look);
    }
    free(listing);
}

void backend_serve_files(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    enum what what = (enum what)shoal_get_enum(&r, WHAT_READ + 1);
    char path[AGENT_RESULT_PATH_BYTES];
    struct look *look;
    uint64_t offset;
    uint32_t max;

    (void)from;
    shoal_get_text(&r, path, sizeof(path));
    offset = shoal_get_u64(&r);
    max = shoal_get_u32(&r);
    if (!shoal_reader_done(&r) || offset > INT64_MAX || (what == WHAT_READ && !agent_result_is_shown(path))) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "not a file of a result folder", (struct shoal_view){ 0 });
        return;
    }
    look = look_create(agent, what, id, on_served, question);
    memcpy(look->path, path, sizeof(path));
    look->offset = offset;
    look->max = max < BACKEND_FILE_PIECE_BYTES ? max : BACKEND_FILE_PIECE_BYTES;
    look->bytes = what == WHAT_READ ? malloc(look->max + 1) : NULL;
    SHOAL_ASSERT(what == WHAT_LIST || look->bytes != NULL);
    if (what == WHAT_LIST && path[0] == '\0' && backend_files_may_come(agent, id)) {
        struct listing *listing = malloc(sizeof(*listing));

        SHOAL_ASSERT(listing != NULL);
        *listing = (struct listing){ .look = look, .job = id, .question = question };
        agent_tree_await(agent, id, false, HOSTS_WAIT_MS, on_all_here, listing);
    } else {
        look_start(look);
    }
}

/* ---- for this node ---- */

struct list_call {
    struct agent *agent;
    struct list_call *next; /* of those that wait for a place */
    struct shoal_job_id id;
    struct shoal_node_id nodes[NODES_MAX];
    size_t node_count, node;
    bool answered; /* somebody has said that nothing is there */
    bool away;     /* ... that not all is there yet */
    unsigned pages;
    struct shoal_buf lines;
    struct backend_files files;
    bool has_part; /* of the first host that lacks something: taken if no other has all */
    struct shoal_buf part_lines;
    struct backend_files part;
    char said[200];
    backend_files_fn *done;
    void *arg;
};

static void ask_next(struct list_call *call);

static void list_end(struct list_call *call, enum shoal_err err, const char *text)
{
    call->files.lines = shoal_buf_view(&call->lines);
    call->done(call->arg, err, text, &call->files);
    shoal_buf_deinit(&call->lines);
    shoal_buf_deinit(&call->part_lines);
    free(call);
}

/* A host's list is here, all of it. */
static void list_found(struct list_call *call)
{
    if (call->files.owed[0] == '\0') {
        list_end(call, SHOAL_OK, "");
        return;
    }
    if (!call->has_part) {
        call->has_part = true;
        call->part = call->files;
        call->part_lines = call->lines;
        call->lines = (struct shoal_buf){ 0 };
    }
    call->lines.len = 0;
    call->files = (struct backend_files){ 0 };
    call->node++;
    ask_next(call);
}

static void ask_page(struct list_call *call);

/* The path on the last line. */
static const char *last_path(struct shoal_buf *lines)
{
    size_t end = lines->len - 1; /* where its newline is */
    size_t at = end;
    unsigned blanks = 0;

    while (at > 0 && lines->bytes[at - 1] != '\n')
        at--;
    for (; at < end && blanks < 4; at++)
        blanks += lines->bytes[at] == ' ' ? 1u : 0u;
    lines->bytes[end] = '\0';
    return (const char *)lines->bytes + at;
}

static void add_node(struct list_call *call, struct shoal_node_id node)
{
    for (size_t i = 0; i < call->node_count; i++)
        if (shoal_node_id_equal(call->nodes[i], node))
            return;
    if (call->node_count < NODES_MAX && !shoal_node_id_is_zero(node))
        call->nodes[call->node_count++] = node;
}

static void add_nodes(struct list_call *call, struct shoal_view ids)
{
    struct shoal_node_id node;

    for (size_t at = 0; at + sizeof(node) <= ids.len; at += sizeof(node)) {
        memcpy(&node, ids.bytes + at, sizeof(node));
        add_node(call, node);
    }
}

static void on_page(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct list_call *call = arg;
    struct shoal_reader r = shoal_reader_init(answer);
    bool more = shoal_get_bool(&r);
    uint64_t left_out = shoal_get_u64(&r);
    size_t before = call->lines.len;

    if (err == SHOAL_OK && r.failed)
        err = SHOAL_ERR_MALFORMED;
    if (err == SHOAL_OK)
        err = shoal_buf_append(&call->lines, answer.bytes + r.at, answer.len - r.at);
    if (err == SHOAL_OK && call->lines.len > 0 && call->lines.bytes[call->lines.len - 1] != '\n')
        err = SHOAL_ERR_MALFORMED;
    if (err != SHOAL_OK) {
        if (err == SHOAL_ERR_STALE)
            add_nodes(call, answer);
        call->away = call->away || err == SHOAL_ERR_STALE;
        (void)snprintf(call->said, sizeof(call->said), "%.199s", msg->text);
    } else if (more && call->lines.len > before && ++call->pages < PAGES_MAX) {
        ask_page(call);
        return;
    } else {
        take_owed(&call->lines, call->files.owed);
        call->files.left_out = left_out;
        if (call->lines.len > 0 || call->files.owed[0] != '\0') {
            list_found(call);
            return;
        }
        call->answered = true;
    }
    call->lines.len = 0;
    call->node++;
    ask_next(call);
}

static void ask_page(struct list_call *call)
{
    uint8_t args[AGENT_RESULT_PATH_BYTES + 64];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    bool first = call->lines.len == 0;

    shoal_put_job_id(&w, call->id);
    shoal_put_u8(&w, WHAT_LIST);
    shoal_put_text(&w, first ? "" : last_path(&call->lines));
    if (!first)
        call->lines.bytes[call->lines.len - 1] = '\n';
    shoal_put_u64(&w, 0);
    shoal_put_u32(&w, 0);
    peer_ask(call->agent->calls, call->files.node, PEER_RESULT_FILES, shoal_writer_view(&w), LIST_TIMEOUT_NS, on_page,
             call);
}

static void own_next(struct agent *agent);

static void on_own(struct look *look)
{
    struct list_call *call = look->arg;

    call->agent->lists_here--;
    own_next(call->agent);
    if (look->results.count == 0 && look->owed[0] == '\0') { /* others may have what was never pushed here */
        call->answered = true;
        call->node++;
        ask_next(call);
        return;
    }
    shoal_buf_deinit(&call->lines);
    call->lines = look->lines;
    look->lines = (struct shoal_buf){ 0 };
    call->files.node = (struct shoal_node_id){ { 0 } };
    memcpy(call->files.root, look->root, sizeof(look->root));
    call->files.left_out = look->results.left_out;
    memcpy(call->files.owed, look->owed, sizeof(look->owed));
    list_found(call);
}

static void own_next(struct agent *agent)
{
    while (agent->lists_wait != NULL && agent->lists_here < LISTS_AT_ONCE) {
        struct list_call *call = agent->lists_wait;
        struct look *look = look_create(agent, WHAT_LIST, call->id, on_own, call);

        agent->lists_wait = call->next;
        agent->lists_here++;
        look->lines_max = (size_t)PAGES_MAX * PAGE_BYTES;
        look_start(look);
    }
}

static void own_start(struct list_call *call)
{
    struct agent *agent = call->agent;

    call->next = NULL;
    if (agent->lists_wait == NULL)
        agent->lists_wait = call;
    else
        agent->lists_last->next = call;
    agent->lists_last = call;
    own_next(agent);
}

static void on_own_here(void *arg, bool all)
{
    struct list_call *call = arg;

    if (all) {
        own_start(call);
        return;
    }
    say_away(call->agent, call->said, sizeof(call->said));
    call->away = true;
    call->node++;
    ask_next(call);
}

static bool is_self(const struct list_call *call, struct shoal_node_id node)
{
    return shoal_node_id_equal(node, call->agent->identity.node);
}

static void ask_next(struct list_call *call)
{
    while (call->node < call->node_count && !is_self(call, call->nodes[call->node]) &&
           !shoal_link_is_up(call->agent->link, call->nodes[call->node]))
        call->node++;
    if (call->node < call->node_count) {
        call->files.node = call->nodes[call->node];
        call->pages = 0;
        if (!is_self(call, call->files.node))
            ask_page(call);
        else if (backend_files_may_come(call->agent, call->id))
            agent_tree_await(call->agent, call->id, false, HOSTS_WAIT_MS, on_own_here, call);
        else
            own_start(call);
        return;
    }
    call->files.node = (struct shoal_node_id){ { 0 } };
    if (call->has_part) {
        shoal_buf_deinit(&call->lines);
        call->lines = call->part_lines;
        call->part_lines = (struct shoal_buf){ 0 };
        call->files = call->part;
        list_end(call, SHOAL_OK, "");
        return;
    }
    if ((call->answered && !call->away) || call->node_count == 0)
        list_end(call, SHOAL_OK, "");
    else
        list_end(call, SHOAL_ERR_UNREACHABLE,
                 call->said[0] == '\0' ? "no host that keeps this job's files is reachable from here; try another node"
                                       : call->said);
}

/* A host that runs the job has its files first, then whoever guards it, this node before others. */
static void choose_nodes(struct list_call *call)
{
    static struct shoal_job_summary summary;
    struct shoal_node_id nodes[NODES_MAX];
    size_t count;

    if (backend_in_gossip(call->agent, call->id) && backend_summary(call->agent, call->id, &summary))
        for (unsigned i = 0; i < summary.host_count && i < HOSTS_ASKED_MAX; i++)
            add_node(call, summary.hosts[i].node);
    if (backend_has_files(call->agent, call->id, &nodes[0]))
        add_node(call, call->agent->identity.node);
    else
        add_node(call, nodes[0]);
    count = agent_tree_hosts(call->agent, call->id, nodes, NODES_MAX);
    for (size_t i = 0; i < count; i++)
        add_node(call, nodes[i]);
}

void backend_files_list(struct agent *agent, struct shoal_job_id id, backend_files_fn *done, void *arg)
{
    struct list_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL);
    call->agent = agent;
    call->id = id;
    call->done = done;
    call->arg = arg;
    choose_nodes(call);
    ask_next(call);
}

void backend_file_read(struct agent *agent, struct shoal_job_id id, struct shoal_node_id node, const char *path,
                       uint64_t offset, size_t max, shoal_backend_bytes_fn *done, void *arg)
{
    uint8_t args[AGENT_RESULT_PATH_BYTES + 64];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));

    shoal_put_job_id(&w, id);
    shoal_put_u8(&w, WHAT_READ);
    shoal_put_text(&w, path);
    shoal_put_u64(&w, offset);
    shoal_put_u32(&w, (uint32_t)(max < BACKEND_FILE_PIECE_BYTES ? max : BACKEND_FILE_PIECE_BYTES));
    peer_ask(agent->calls, node, PEER_RESULT_FILES, shoal_writer_view(&w), LIST_TIMEOUT_NS, done, arg);
}
