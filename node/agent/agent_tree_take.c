/* Files of result folders that other hosts push here (agent_tree.c): checked, then written on the file thread. */
#include "agent.h"

#include "agent_files.h"
#include "node/blob/tree_disk.h"
#include "node/blob/tree_owed.h"

#include "shoal/banned.h"

/* What a piece's first byte may say. */
#define KINDS (1 | TREE_VERSIONED | TREE_GONE | TREE_CHUNKS)

struct taking {
    struct agent_file_job file;
    struct agent *agent;
    struct peer_question *question;
    struct shoal_job_id job;
    struct tree_place place;
    struct tree_piece piece; /* its bytes follow */
    struct tree_work work;
    struct tree_taken taken;
    enum shoal_err err;
    uint8_t bytes[];
};

/* T2 */
static bool safe_path(const char *path)
{
    const char *part = path;

    if (path[0] == '\0' || path[0] == '/')
        return false;
    for (;;) {
        const char *end = strchr(part, '/');
        size_t len = end == NULL ? strlen(part) : (size_t)(end - part);

        if (len == 0 || part[0] == '.')
            return false;
        if (end == NULL)
            return true;
        part = end + 1;
    }
}

static bool safe_user(const char *user) { return user[0] != '\0' && user[0] != '.' && strchr(user, '/') == NULL; }

static void take(struct agent_file_job *file)
{
    struct taking *t = (struct taking *)(void *)file;

    t->err = tree_take(&t->place, &t->piece, &t->work, &t->taken);
}

static void taken(struct agent_file_job *file)
{
    struct taking *t = (struct taking *)(void *)file;
    uint8_t answer[64];
    struct shoal_writer w = shoal_writer_init(answer, sizeof(answer));
    const bool is_taken = t->err == SHOAL_OK && t->taken.outcome == TREE_TAKEN;

    if (t->err == SHOAL_OK && t->work.more && !t->agent->stopping) {
        agent_tree_again(&t->file);
        return;
    }
    if (is_taken && t->piece.gone)
        agent_tree_removed(t->agent, t->job, t->place.path);
    else if (is_taken && (t->piece.last || t->piece.log))
        agent_tree_received(t->agent, t->job, t->place.path, &t->taken.facts);
    shoal_put_bool(&w, t->taken.outcome == TREE_KEPT);
    shoal_put_u64(&w, t->taken.ours.number);
    shoal_put_raw(&w, t->taken.ours.author.bytes, sizeof(t->taken.ours.author.bytes));
    if (!t->agent->stopping)
        peer_answer(t->question, t->err == SHOAL_ERR_MALFORMED ? SHOAL_ERR_STALE : t->err,
                    t->err == SHOAL_OK ? "" : "the file could not be written here",
                    t->piece.versioned ? shoal_writer_view(&w) : (struct shoal_view){ 0 });
    free(t);
}

static void get_version(struct shoal_reader *r, struct tree_version *version)
{
    version->number = shoal_get_u64(r);
    shoal_get_raw(r, version->author.bytes, sizeof(version->author.bytes));
    version->bytes = shoal_get_u64(r);
    version->hash = shoal_get_hash(r);
}

void agent_tree_deleted(struct agent *agent, struct shoal_job_id id)
{
    agent->deleted_jobs[agent->deleted_next++ % AGENT_DELETED_MAX] = id;
}

/* Who changes files of the job here. */
static struct tree_author author_here(struct agent *agent, struct shoal_job_id id)
{
    const struct agent_job *job = agent_job_find(agent, id);

    return (struct tree_author){ .node = agent->identity.node, .call = job == NULL ? 0 : job->call };
}

static bool is_deleted(const struct agent *agent, struct shoal_job_id id)
{
    for (unsigned i = 0; i < AGENT_DELETED_MAX; i++)
        if (shoal_job_id_equal(agent->deleted_jobs[i], id))
            return true;
    return false;
}

/* It is no piece, but a question: agent_tree_wait.c */
static void serve_settle(struct agent *agent, struct shoal_node_id from, bool logs, struct shoal_reader *r,
                         struct peer_question *question)
{
    struct shoal_job_id id = shoal_get_job_id(r);

    if (shoal_reader_done(r))
        agent_tree_settle(agent, from, id, logs, question);
    else
        peer_answer(question, SHOAL_ERR_MALFORMED, "not the id of a job", (struct shoal_view){ 0 });
}

/* ---- what is not here ---- */

struct owing {
    struct agent_file_job file;
    struct agent *agent;
    struct peer_question *question;
    struct shoal_node_id from;
    char folder[AGENT_PATH_BYTES];
    char line[TREE_OWED_BYTES];
    enum shoal_err err;
};
_Static_assert(AGENT_OWED_BYTES == TREE_OWED_BYTES, "a line that is kept is a line that is shown");

static void owe(struct agent_file_job *file)
{
    struct owing *o = (struct owing *)(void *)file;

    o->err = tree_owed_put(o->folder, o->from, o->line);
}

static void owed(struct agent_file_job *file)
{
    struct owing *o = (struct owing *)(void *)file;

    if (!o->agent->stopping)
        peer_answer(o->question, o->err, o->err == SHOAL_OK ? "" : "it could not be noted here",
                    (struct shoal_view){ 0 });
    free(o);
}

void agent_tree_owed_folder(const struct agent *agent, struct shoal_job_id id, char folder[AGENT_PATH_BYTES])
{
    char job[AGENT_PATH_BYTES];

    agent_job_folder(agent, id, job, sizeof(job));
    (void)snprintf(folder, AGENT_PATH_BYTES, "%.*s/owed", AGENT_PATH_BYTES - 6, job);
}

bool agent_tree_owed(const char *folder, char line[AGENT_OWED_BYTES]) { return tree_owed_get(folder, line); }

static void serve_owed(struct agent *agent, struct shoal_node_id from, struct shoal_reader *r,
                       struct peer_question *question)
{
    struct owing *o = calloc(1, sizeof(*o));
    struct shoal_job_id id = shoal_get_job_id(r);
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    SHOAL_ASSERT(o != NULL);
    shoal_get_text(r, o->line, sizeof(o->line));
    if (shoal_reader_done(r) && (is_deleted(agent, id) || !agent_job_known(agent, id))) {
        err = SHOAL_ERR_NOT_FOUND;
    } else if (shoal_reader_done(r)) {
        o->agent = agent;
        o->question = question;
        o->from = from;
        agent_tree_owed_folder(agent, id, o->folder);
        o->file = (struct agent_file_job){ .bytes = sizeof(*o), .run = owe, .done = owed };
        err = agent_tree_submit(agent, &o->file);
    }
    if (err == SHOAL_OK)
        return;
    free(o);
    peer_answer(question, err, "not what a host owes of a job", (struct shoal_view){ 0 });
}

/* ---- pieces ---- */

/* An agent of the version before says nothing of versions. */
static void serve(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    uint8_t kind = shoal_get_u8(&r);
    struct taking *t = calloc(1, sizeof(*t) + args.len);
    char user[SHOAL_JOB_TEXT_BYTES], text[SHOAL_JOB_ID_TEXT_BYTES];
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    SHOAL_ASSERT(t != NULL);
    if (kind == TREE_SETTLE || kind == TREE_SETTLE_LOGS) {
        free(t);
        serve_settle(agent, from, kind == TREE_SETTLE_LOGS, &r, question);
        return;
    }
    if (kind == TREE_OWED) {
        free(t);
        serve_owed(agent, from, &r, question);
        return;
    }
    t->agent = agent;
    t->question = question;
    t->piece.versioned = (kind & TREE_VERSIONED) != 0;
    t->piece.doubted = agent->boot_is_new;
    t->piece.from = from;
    t->piece.log = (kind & 1) != 0;
    t->piece.gone = (kind & TREE_GONE) != 0;
    t->piece.last = shoal_get_bool(&r);
    t->job = shoal_get_job_id(&r);
    t->piece.here = author_here(agent, t->job);
    shoal_get_text(&r, user, sizeof(user));
    shoal_get_text(&r, t->place.path, sizeof(t->place.path));
    t->piece.mode = shoal_get_u32(&r);
    t->piece.mtime_ns = shoal_get_u64(&r);
    if (t->piece.versioned)
        get_version(&r, &t->piece.version);
    t->piece.version.by_bytes = t->piece.version.bytes > TREE_WHOLE_BYTES && (kind & TREE_CHUNKS) == 0;
    t->piece.offset = shoal_get_u64(&r);
    if (t->piece.gone && (!t->piece.versioned || t->piece.log || t->piece.version.number == 0))
        r.failed = true; /* no agent sends that */
    if (!r.failed && is_deleted(agent, t->job)) {
        err = SHOAL_ERR_NOT_FOUND;
    } else if (!r.failed && (kind & ~KINDS) == 0 && safe_path(t->place.path) && safe_user(user)) {
        memcpy(t->bytes, r.bytes + r.at, r.len - r.at);
        t->piece.bytes = shoal_view_of(t->bytes, r.len - r.at);
        shoal_job_id_text(t->job, text);
        (void)snprintf(t->place.root, sizeof(t->place.root), "%s/results/%.60s/batchworkdir/%s", agent->settings.data,
                       user, text);
        agent_tree_notes(agent, t->job, t->place.notes);
        t->file.bytes = args.len;
        t->file.bulk = !t->piece.log && t->piece.version.bytes > TREE_SLICE_BYTES;
        t->file.run = take;
        t->file.done = taken;
        err = agent_tree_submit(agent, &t->file);
    }
    if (err == SHOAL_OK)
        return;
    free(t);
    peer_answer(question, err, err == SHOAL_ERR_FULL ? "the disk is behind" : "not a file of a result folder",
                (struct shoal_view){ 0 });
}

void agent_tree_take_create(struct agent *agent) { peer_serve(agent->calls, PEER_PUSH_FILE, serve, agent); }
