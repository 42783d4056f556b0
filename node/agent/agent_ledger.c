/* The ledger: the step records of a job, in order, on its guardians and on the hosts it runs on (PROTOCOLS 11).
 *
 *   rank 0 --RECORDS--> its agent --PEER_RECORDS--> guardians            acknowledged when a majority has flushed them
 *                          |                            |
 *                        file                         file               <data>/jobs/<id>/ledger
 *
 * A file is records as they came: u32 length, record (step_record.h). Only the record that follows the last one is
 * taken: the next step of the same call, or the first of a later call. So the same records may come from several hosts,
 * in any order and again, and every file is a prefix of the one true sequence. The auditor reads it back: every sample
 * of every data epoch exactly once, by the keyed sums of the ids.
 *
 * G1. A host says that it has a record once that is flushed. It is acknowledged when a majority of the guardians has said so;
 *     until then the workers keep it, and send it again.
 * G2. Records that come before those that they follow wait here, up to a bound, while the others are fetched: whoever has
 *     more than an asker pushes it. So a host that lost its file's end in a power cut has it again.
 * G3. What later stages rest on (a snapshot, the final files) is told after the records before it are acknowledged.
 * G4. A flush that fails is never tried again: the kernel takes the pages for written then, and the next flush succeeds without
 *     them. What was not flushed is cut off, and this agent takes no more into that file.
 * G5. A file may have gigabytes, so a thread reads it when it is opened. Until then the records of a worker wait here, and who
 *     pushes waits for the answer, which says what is here. */
#include "agent.h"

#include "agent_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/permute.h"
#include "shoal/step_record.h"

#include "ledger_file.h"

#include "shoal/banned.h"

#define PUSH_BYTES_MAX (512 * SHOAL_KIB)
#define PUSH_MS 50
#define PUSH_AGAIN_MS 200
#define PUSH_TIMEOUT_NS (3 * SHOAL_S)
#define PEERS_MAX 8
#define WAITING_MAX 32
#define EARLY_BYTES_MAX SHOAL_RECORD_QUEUE_BYTES /* what a worker keeps unacknowledged: it sends it once */
#define OPEN_AGAIN_MS 5000
#define SETTLE_MS 10
#define LOOKS_MAX 256
#define LOOK_NOW_BYTES ((off_t)(4 * SHOAL_MIB)) /* a few milliseconds: a thread reads a longer one, for the next look */

/* One other host that keeps this ledger, or is to keep it, and how much of it that host is known to have. */
struct ledger_source {
    struct shoal_node_id node;
    uint32_t call;
    uint64_t step;
    uint64_t again_ns; /* it did not take what was pushed: it is not asked before */
    uint64_t offset;   /* in our file: where the next push begins */
    bool asking;
    bool known;  /* it has answered since the start: offset is right */
    bool asked;  /* it has pushed here: what it lacks is pushed to it, whether it guards the job or not */
    bool guards; /* the job, now: who does not any more is not waited for, and does not count */
    struct ledger *ledger;
};

enum ledger_state {
    LEDGER_OPENING, /* G5 */
    LEDGER_OPEN,
    LEDGER_UNREAD, /* it could not be read, which is tried again */
    LEDGER_FAILED, /* G4 */
};

struct ledger {
    struct agent *agent;
    struct agent_job *job;
    struct ledger_file file;
    uint32_t read_call; /* where the last agent_ledger_read ended */
    uint64_t read_step;
    uint64_t read_offset;
    uint64_t source_worker; /* the local rank 0, to be acknowledged */
    uint32_t acked_call;
    uint64_t acked_step;
    struct ledger_source sources[PEERS_MAX];
    size_t source_count;
    uint32_t flushed_call; /* the records up to here are on the disk */
    uint64_t flushed_step;
    struct ledger_mark kept; /* this is left of the file when a flush fails: as it was opened, then what is flushed */
    bool flushing, folder_flushed;
    struct peer_question *waiting[WAITING_MAX]; /* answered when what they brought is flushed */
    size_t waiting_count;
    struct shoal_buf early; /* G2 */
    uv_timer_t timer;
    enum ledger_state state;
    bool unread_said;
    bool reading; /* G5 */
    uv_work_t read;
    struct ledger_file found;
    enum shoal_err found_err;
    struct shoal_msg found_msg;
    bool closing, closed;
};

struct flushing {
    struct agent_file_job file;
    struct ledger *ledger;
    char path[AGENT_PATH_BYTES];
    int fd;
    bool folder;
    int error; /* an errno; 0: it is flushed */
    uint64_t kept_bytes;
    struct ledger_mark end; /* of what is flushed */
};

static void push(struct ledger *ledger);
static void acknowledge(struct ledger *ledger);
static bool reached(uint32_t a_call, uint64_t a_step, uint32_t b_call, uint64_t b_step);

static void on_timer(uv_timer_t *timer) { push(timer->data); }

/* ---- the file ---- */

/* G2. Those who have more are asked anew. */
static void keep_early(struct ledger *ledger, struct shoal_view view)
{
    if (ledger->early.len + view.len <= EARLY_BYTES_MAX)
        shoal_ignore(shoal_buf_append(&ledger->early, view.bytes, view.len)); /* else as if it had not come */
    for (size_t i = 0; i < ledger->source_count; i++)
        ledger->sources[i].known = false;
    if (!uv_is_active((uv_handle_t *)&ledger->timer))
        (void)uv_timer_start(&ledger->timer, on_timer, PUSH_MS, 0);
}

static bool is_ahead(const struct ledger *ledger, const struct shoal_step_head *head)
{
    return head->call > ledger->file.call || (head->call == ledger->file.call && head->step > ledger->file.step);
}

/* Takes what follows of the records in `view` (one behind the other). MALFORMED: garbage after what was taken. */
static enum shoal_err take_some(struct ledger *ledger, struct shoal_view view)
{
    while (view.len > 0) {
        struct shoal_step_head head;
        struct shoal_reader tuples;
        size_t len = shoal_step_record_len(view, &head, &tuples);

        if (len == 0)
            return SHOAL_ERR_MALFORMED;
        if (ledger_file_takes(&ledger->file, &head)) {
            enum shoal_err err = ledger_file_append(&ledger->file, shoal_view_of(view.bytes, len), &head, tuples);

            if (err != SHOAL_OK)
                return err;
        } else if (is_ahead(ledger, &head)) {
            keep_early(ledger, view);
            return SHOAL_OK;
        }
        view.bytes += len;
        view.len -= len;
    }
    return SHOAL_OK;
}

static enum shoal_err take_early(struct ledger *ledger)
{
    enum shoal_err err = SHOAL_OK;
    uint64_t before;

    do {
        struct shoal_buf early = ledger->early;

        before = ledger->file.bytes;
        ledger->early = (struct shoal_buf){ 0 };
        err = take_some(ledger, shoal_buf_view(&early));
        shoal_buf_deinit(&early);
    } while (err == SHOAL_OK && ledger->file.bytes > before && ledger->early.len > 0);
    return err;
}

static enum shoal_err take(struct ledger *ledger, struct shoal_view view)
{
    uint64_t before = ledger->file.bytes;
    enum shoal_err err = take_some(ledger, view);

    return err == SHOAL_OK && ledger->file.bytes > before ? take_early(ledger) : err;
}

static struct ledger_mark end_of(const struct ledger_file *file)
{
    return (struct ledger_mark){ file->bytes, file->call, file->step };
}

/* A ledger is freed when nothing that is under way needs it any more. */
static void maybe_free(struct ledger *ledger)
{
    if (!ledger->closed || ledger->flushing || ledger->reading)
        return;
    for (size_t i = 0; i < ledger->source_count; i++)
        if (ledger->sources[i].asking)
            return;
    (void)close(ledger->file.fd);
    ledger_file_deinit(&ledger->file);
    ledger_file_deinit(&ledger->found);
    shoal_buf_deinit(&ledger->early);
    free(ledger);
}

static void answer_waiting(struct ledger *ledger, bool ok)
{
    uint8_t answer[12];
    struct shoal_writer w = shoal_writer_init(answer, sizeof(answer));

    shoal_put_u32(&w, ledger->flushed_call);
    shoal_put_u64(&w, ledger->flushed_step);
    for (size_t i = 0; i < ledger->waiting_count && !ledger->agent->stopping; i++)
        peer_answer(ledger->waiting[i], ok ? SHOAL_OK : SHOAL_ERR_STORAGE, ok ? "" : "the step records were not kept",
                    ok ? shoal_writer_view(&w) : (struct shoal_view){ 0 });
    ledger->waiting_count = 0;
}

static void on_ledger_closed(uv_handle_t *handle)
{
    struct ledger *ledger = handle->data;

    ledger->closed = true;
    answer_waiting(ledger, false);
    maybe_free(ledger);
}

/* In the thread. A file that cannot be read stays as it is. */
static void open_run(uv_work_t *work)
{
    struct ledger *ledger = work->data;

    ledger->found_err = ledger_file_scan(&ledger->found, &ledger->found_msg);
    if (ledger->found_err == SHOAL_OK && !ledger_file_cut(&ledger->found))
        ledger->found_err = shoal_fail(&ledger->found_msg, SHOAL_ERR_STORAGE,
                                       "the ledger's torn end cannot be cut off: %s", strerror(errno));
}

static void opened(struct ledger *ledger)
{
    ledger->file = ledger->found;
    ledger->found = (struct ledger_file){ .fd = -1 };
    ledger->kept = end_of(&ledger->file);
    ledger->state = LEDGER_OPEN;
    if (take_early(ledger) != SHOAL_OK)
        agent_log(ledger->agent, "%s: step records that came before the ledger was read were not kept",
                  ledger->job->text);
    if (reached(ledger->flushed_call, ledger->flushed_step, ledger->file.call, ledger->file.step))
        answer_waiting(ledger, true);
    push(ledger);
}

static void open_done(uv_work_t *work, int status)
{
    struct ledger *ledger = work->data;

    ledger->reading = false;
    if (ledger->closing) {
        maybe_free(ledger);
    } else if (status == 0 && ledger->found_err == SHOAL_OK) {
        opened(ledger);
    } else {
        ledger->state = LEDGER_UNREAD;
        if (!ledger->unread_said)
            agent_log(ledger->agent, "%s: %s; no step records are kept here until it can be read", ledger->job->text,
                      ledger->found_msg.text);
        ledger->unread_said = true;
        answer_waiting(ledger, false);
        (void)uv_timer_start(&ledger->timer, on_timer, OPEN_AGAIN_MS, 0);
    }
}

/* G5 */
static void open_start(struct ledger *ledger)
{
    ledger_file_deinit(&ledger->found);
    ledger->found = (struct ledger_file){ .fd = ledger->file.fd };
    ledger->read.data = ledger;
    ledger->state = LEDGER_OPENING;
    ledger->reading = uv_queue_work(&ledger->agent->loop, &ledger->read, open_run, open_done) == 0;
    SHOAL_ASSERT(ledger->reading); /* it refuses nothing but a missing function */
}

/* NULL: it cannot be kept here. */
static struct ledger *ledger_need(struct agent *agent, struct agent_job *job)
{
    char folder[AGENT_PATH_BYTES];
    struct ledger *ledger;
    struct stat facts;

    if (job->ledger != NULL)
        return job->ledger;
    ledger = calloc(1, sizeof(*ledger));
    SHOAL_ASSERT(ledger != NULL);
    ledger->agent = agent;
    ledger->job = job;
    agent_job_folder(agent, job->id, folder, sizeof(folder));
    ledger->file.fd = shoal_open_below(folder, "ledger", O_RDWR | O_CREAT);
    if (ledger->file.fd < 0) {
        agent_log(agent, "%s/ledger: %s; step records cannot be kept here", folder, strerror(errno));
        free(ledger);
        return NULL;
    }
    (void)uv_timer_init(&agent->loop, &ledger->timer);
    ledger->timer.data = ledger;
    job->ledger = ledger;
    if (fstat(ledger->file.fd, &facts) == 0 && facts.st_size == 0)
        ledger->state = LEDGER_OPEN; /* there is nothing to be read */
    else
        open_start(ledger);
    return ledger;
}

void agent_ledger_close(struct agent_job *job)
{
    struct ledger *ledger = job->ledger;

    if (ledger == NULL)
        return;
    job->ledger = NULL;
    ledger->closing = true;
    uv_close((uv_handle_t *)&ledger->timer, on_ledger_closed);
}

/* A new file's name is flushed too, and its folder's. Returns an errno, or 0. */
static int flush_all(struct flushing *f)
{
    char *slash;

    if (fdatasync(f->fd) != 0)
        return errno;
    if (!f->folder)
        return 0;
    if (!shoal_disk_flush_folder(f->path))
        return errno;
    slash = strrchr(f->path, '/');
    *slash = '\0';
    return shoal_disk_flush_folder(f->path) ? 0 : errno;
}

/* In the thread. Cutting drops the pages too, so the next agent does not find them in memory (G4). */
static void flush_run(struct agent_file_job *file)
{
    struct flushing *f = (struct flushing *)(void *)file;

    f->error = flush_all(f);
    if (f->error != 0)
        shoal_ignore(ftruncate(f->fd, (off_t)f->kept_bytes) == 0 ? SHOAL_OK : SHOAL_ERR_STORAGE);
}

/* G4 */
static void fail(struct ledger *ledger, int error)
{
    ledger->state = LEDGER_FAILED;
    ledger_file_back(&ledger->file, &ledger->kept);
    shoal_buf_deinit(&ledger->early);
    agent_log(ledger->agent,
              "%s: the ledger cannot be flushed here: %s; no step records are kept here until this agent starts again; "
              "look at the disk",
              ledger->job->text, strerror(error));
}

static void flush_start(struct ledger *ledger);

static void flush_done(struct agent_file_job *file)
{
    struct flushing *f = (struct flushing *)(void *)file;
    struct ledger *ledger = f->ledger;

    ledger->flushing = false;
    if (f->error == 0) {
        ledger->flushed_call = f->end.call;
        ledger->flushed_step = f->end.step;
        ledger->kept = f->end;
        ledger->folder_flushed = true;
    }
    if (!ledger->closing && f->error != 0) {
        fail(ledger, f->error);
        answer_waiting(ledger, false);
    } else if (!ledger->closing) {
        bool whole = reached(f->end.call, f->end.step, ledger->file.call, ledger->file.step);

        if (whole)
            answer_waiting(ledger, true);
        if (!whole)
            flush_start(ledger);
        acknowledge(ledger); /* the last: its job may go with it */
    }
    free(f);
    maybe_free(ledger);
}

/* One at a time: what came meanwhile goes with the next one. */
static void flush_start(struct ledger *ledger)
{
    struct flushing *f;

    if (ledger->flushing || ledger->closing || ledger->state != LEDGER_OPEN ||
        reached(ledger->flushed_call, ledger->flushed_step, ledger->file.call, ledger->file.step))
        return;
    f = calloc(1, sizeof(*f));
    SHOAL_ASSERT(f != NULL);
    f->ledger = ledger;
    f->fd = ledger->file.fd;
    f->folder = !ledger->folder_flushed;
    f->kept_bytes = ledger->kept.bytes;
    f->end = end_of(&ledger->file);
    agent_job_folder(ledger->agent, ledger->job->id, f->path, sizeof(f->path));
    f->file.run = flush_run;
    f->file.done = flush_done;
    if (agent_file_submit(ledger->agent, &f->file) == SHOAL_OK) {
        ledger->flushing = true;
        return;
    }
    free(f);
    if (!uv_is_active((uv_handle_t *)&ledger->timer))
        (void)uv_timer_start(&ledger->timer, on_timer, PUSH_MS, 0);
}

/* ---- to the other guardians ---- */

static bool behind(const struct ledger_source *source, const struct ledger *ledger)
{
    return source->call < ledger->file.call || (source->call == ledger->file.call && source->step < ledger->file.step);
}

/* (call, step) a is at or after b. */
static bool reached(uint32_t a_call, uint64_t a_step, uint32_t b_call, uint64_t b_step)
{
    return a_call > b_call || (a_call == b_call && a_step >= b_step);
}

struct position {
    uint32_t call;
    uint64_t step;
};

/* G1. The furthest that a majority of the guardians has reached: the greatest of theirs that so many are at or beyond. */
static struct position majority(const struct ledger *ledger)
{
    struct position at[PEERS_MAX + 1];
    struct position best = { 0, 0 };
    size_t count = 0;

    for (size_t i = 0; i < ledger->source_count; i++)
        if (ledger->sources[i].guards)
            at[count++] = (struct position){ ledger->sources[i].call, ledger->sources[i].step };
    if (shoal_sched_job(ledger->agent->sched, ledger->job->id) != NULL)
        at[count++] = (struct position){ ledger->flushed_call, ledger->flushed_step };
    for (size_t i = 0; i < count; i++) {
        size_t there = 0;

        for (size_t j = 0; j < count; j++)
            there += reached(at[j].call, at[j].step, at[i].call, at[i].step);
        if (there > count / 2 && !reached(best.call, best.step, at[i].call, at[i].step))
            best = at[i];
    }
    return best;
}

static void acknowledge(struct ledger *ledger)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RECORDS_MARK };
    struct position held = majority(ledger);

    if (reached(ledger->acked_call, ledger->acked_step, held.call, held.step))
        return;
    ledger->acked_call = held.call;
    ledger->acked_step = held.step;
    event.u.records_mark.job = ledger->job->id;
    event.u.records_mark.call = held.call;
    event.u.records_mark.step = held.step;
    agent_host_event(ledger->agent, &event);
}

static void on_pushed(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct ledger_source *source = arg;
    struct ledger *ledger = source->ledger;
    struct shoal_reader r = shoal_reader_init(answer);
    uint32_t call = shoal_get_u32(&r);
    uint64_t step = shoal_get_u64(&r);

    (void)msg;
    source->asking = false;
    if (ledger->closing) {
        maybe_free(ledger);
        return;
    }
    if (err == SHOAL_OK && shoal_reader_done(&r)) {
        if (!source->known || call != source->call || step != source->step)
            source->offset = ledger_file_after(&ledger->file, call, step);
        source->known = true;
        source->call = call;
        source->step = step;
        acknowledge(ledger);
    } else {
        source->known = false;
        source->again_ns = agent_now_ns() + PUSH_AGAIN_MS * SHOAL_MS;
    }
    push(ledger);
}

/* False: what it lacks cannot be read here. The job may have cut its ledger short, or the disk fails: later, perhaps. */
static bool push_to(struct ledger *ledger, struct ledger_source *source)
{
    static uint8_t args[10 + PUSH_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    uint64_t from = source->known ? source->offset : ledger->file.bytes, at = from;

    shoal_put_job_id(&w, ledger->job->id);
    while (at < ledger->file.bytes) {
        uint32_t len = ledger_file_length(&ledger->file, at);
        uint8_t *space;

        if (len == 0 || w.len + len > w.cap)
            break;
        space = shoal_put_space(&w, len);
        if (space == NULL || pread(ledger->file.fd, space, len, (off_t)(at + 4)) != (ssize_t)len) {
            w.len -= space == NULL ? 0 : len;
            break;
        }
        at += 4 + len;
    }
    if (source->known && at == from) {
        source->again_ns = agent_now_ns() + PUSH_AGAIN_MS * SHOAL_MS;
        return false;
    }
    source->asking = true;
    source->offset = at; /* if it takes them all; its answer says */
    peer_ask(ledger->agent->calls, source->node, PEER_RECORDS, shoal_writer_view(&w), PUSH_TIMEOUT_NS, on_pushed,
             source);
    return true;
}

/* Found, or in a free place, or in that of a former guardian that owes no answer; NULL: full. */
static struct ledger_source *source_of(struct ledger *ledger, struct shoal_node_id node)
{
    struct ledger_source *place = NULL;

    for (size_t i = 0; i < ledger->source_count; i++) {
        struct ledger_source *source = &ledger->sources[i];

        if (shoal_node_id_equal(source->node, node))
            return source;
        if (!source->guards && !source->asked && !source->asking && place == NULL && ledger->source_count == PEERS_MAX)
            place = source;
    }
    if (place == NULL && ledger->source_count < PEERS_MAX)
        place = &ledger->sources[ledger->source_count++];
    if (place != NULL)
        *place = (struct ledger_source){ .node = node, .ledger = ledger };
    return place;
}

static void sources_update(struct ledger *ledger)
{
    struct shoal_node_id nodes[16];
    size_t guardians = 0;

    (void)agent_job_nodes(ledger->agent, ledger->job->id, nodes, 16, &guardians);
    if (guardians > PEERS_MAX)
        guardians = PEERS_MAX;
    for (size_t i = 0; i < ledger->source_count; i++)
        ledger->sources[i].guards = false;
    for (size_t i = 0; i < guardians; i++) {
        struct ledger_source *source = source_of(ledger, nodes[i]);

        if (source != NULL)
            source->guards = true;
    }
}

static void push(struct ledger *ledger)
{
    bool waits = false;

    if (ledger->closing || ledger->agent->stopping || ledger->state == LEDGER_OPENING)
        return;
    if (ledger->state == LEDGER_UNREAD) {
        open_start(ledger);
        return;
    }
    sources_update(ledger);
    for (size_t i = 0; i < ledger->source_count; i++) {
        struct ledger_source *source = &ledger->sources[i];

        bool up = shoal_link_is_up(ledger->agent->link, source->node);

        source->asked = source->asked && up;
        if ((!source->guards && !source->asked) || (!behind(source, ledger) && source->known))
            continue;
        if (!source->asking)
            waits = !up || agent_now_ns() < source->again_ns || !push_to(ledger, source) || waits;
    }
    flush_start(ledger);
    if (waits && !uv_is_active((uv_handle_t *)&ledger->timer))
        (void)uv_timer_start(&ledger->timer, on_timer, PUSH_AGAIN_MS, 0);
    acknowledge(ledger); /* the last, as above */
}

/* ---- from workers and from others ---- */

void agent_ledger_records(struct agent *agent, struct agent_job *job, uint64_t worker_id,
                          const struct shoal_worker_records *records)
{
    struct ledger *ledger = ledger_need(agent, job);

    if (ledger == NULL || ledger->state == LEDGER_FAILED)
        return;
    ledger->source_worker = worker_id;
    if (ledger->state != LEDGER_OPEN) {
        keep_early(ledger, records->records);
        return;
    }
    if (take(ledger, records->records) != SHOAL_OK)
        agent_log(agent, "%s: step records of worker %llu were not kept", job->text, (unsigned long long)worker_id);
    flush_start(ledger);
    if (!uv_is_active((uv_handle_t *)&ledger->timer))
        (void)uv_timer_start(&ledger->timer, on_timer, PUSH_MS / 5, 0);
}

/* A host that pushes has at least what it pushes. The records that it lacks are pushed back (G2). */
static void asker_note(struct ledger *ledger, struct shoal_node_id from, struct shoal_view view)
{
    struct ledger_source *source = source_of(ledger, from);
    struct shoal_step_head head;
    struct shoal_reader tuples;
    size_t len;

    if (source == NULL)
        return;
    source->asked = true;
    while (view.len > 0 && (len = shoal_step_record_len(view, &head, &tuples)) > 0) {
        if (!reached(source->call, source->step, head.call, head.step)) {
            source->call = head.call;
            source->step = head.step;
        }
        view = shoal_view_of(view.bytes + len, view.len - len);
    }
}

/* ---- what waits for the ledger (G3) ---- */

struct settling {
    uv_timer_t timer;
    struct agent *agent;
    struct shoal_job_id job;
    struct position until;
    bool all; /* that are here, which is not known until the ledger is open */
    uint64_t by_ns;
    ledger_settled_fn *done;
    void *arg;
};

static bool settle_look(struct settling *s)
{
    const struct agent_job *job = agent_job_find(s->agent, s->job);
    const struct ledger *ledger = job == NULL ? NULL : job->ledger;

    if (ledger == NULL)
        return true;
    if (s->all && ledger->state == LEDGER_OPEN) {
        s->until = (struct position){ ledger->file.call, ledger->file.step };
        s->all = false;
    }
    return !s->all && reached(ledger->acked_call, ledger->acked_step, s->until.call, s->until.step);
}

static void settled(uv_handle_t *handle)
{
    struct settling *s = handle->data;

    s->done(s->arg, settle_look(s));
    free(s);
}

static void on_settle(uv_timer_t *timer)
{
    struct settling *s = timer->data;

    if (settle_look(s) || agent_now_ns() >= s->by_ns)
        uv_close((uv_handle_t *)timer, settled);
}

void agent_ledger_settle(struct agent *agent, struct agent_job *job, uint32_t call, uint64_t step, uint64_t wait_ns,
                         ledger_settled_fn *done, void *arg)
{
    struct settling *s;

    if (job->ledger == NULL) {
        done(arg, true);
        return;
    }
    s = calloc(1, sizeof(*s));
    SHOAL_ASSERT(s != NULL);
    s->agent = agent;
    s->job = job->id;
    s->until = (struct position){ call, step };
    s->all = call == 0;
    (void)settle_look(s); /* what comes from now on is not waited for */
    s->by_ns = agent_now_ns() + wait_ns;
    s->done = done;
    s->arg = arg;
    (void)uv_timer_init(&agent->loop, &s->timer);
    s->timer.data = s;
    (void)uv_timer_start(&s->timer, on_settle, 0, SETTLE_MS);
}

static void serve_records(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    struct agent_job *job = r.failed || !agent_job_known(agent, id) ? NULL : agent_job_need(agent, id);
    struct ledger *ledger = job == NULL ? NULL : ledger_need(agent, job);
    struct shoal_view view = shoal_view_of(r.bytes + r.at, r.len - r.at);

    if (ledger == NULL || ledger->state == LEDGER_FAILED || ledger->state == LEDGER_UNREAD ||
        ledger->waiting_count == WAITING_MAX || (ledger->state == LEDGER_OPEN && take(ledger, view) != SHOAL_OK)) {
        peer_answer(question, SHOAL_ERR_STORAGE, "the step records were not kept", (struct shoal_view){ 0 });
        return;
    }
    asker_note(ledger, from, view);
    ledger->waiting[ledger->waiting_count++] = question;
    if (ledger->state == LEDGER_OPENING)
        return; /* the answer will say what is here, and the rest is pushed again */
    if (reached(ledger->flushed_call, ledger->flushed_step, ledger->file.call, ledger->file.step))
        answer_waiting(ledger, true);
    else
        flush_start(ledger);
    if (!uv_is_active((uv_handle_t *)&ledger->timer))
        (void)uv_timer_start(&ledger->timer, on_timer, PUSH_MS, 0);
}

bool agent_ledger_progress(const struct agent_job *job, struct ledger_progress *progress)
{
    const struct ledger *ledger = job->ledger;

    if (ledger == NULL || ledger->state == LEDGER_OPENING || ledger->state == LEDGER_UNREAD)
        return false;
    *progress = ledger->file.progress;
    if (ledger_file_rests(&ledger->file, agent_now_ns()))
        progress->rate_milli = 0;
    return true;
}

/* The progress that was read last of a file of which nothing runs here: such a file has not changed, as a rule. */
struct ledger_seen {
    struct shoal_job_id job;
    uint64_t bytes; /* of the file; 0: the place is free */
    struct ledger_progress progress;
};

struct ledger_looks {
    struct ledger_seen seen[LOOKS_MAX];
    unsigned next; /* the oldest one */
    /* One that a thread reads. */
    uv_work_t work;
    bool looking;
    struct ledger_seen now;
    struct ledger_file file;
    enum shoal_err err;
};

static struct ledger_looks *looks_need(struct agent *agent)
{
    if (agent->ledger_looks == NULL)
        agent->ledger_looks = calloc(1, sizeof(*agent->ledger_looks));
    return agent->ledger_looks;
}

static void look_run(uv_work_t *work)
{
    struct ledger_looks *looks = work->data;
    struct shoal_msg msg;

    looks->err = ledger_file_scan(&looks->file, &msg); /* if not, the next look tries again */
}

static bool look_end(struct ledger_looks *looks)
{
    (void)close(looks->file.fd);
    ledger_file_deinit(&looks->file);
    looks->looking = false;
    if (looks->err != SHOAL_OK)
        return false;
    looks->now.progress = looks->file.progress;
    looks->seen[looks->next] = looks->now;
    looks->next = (looks->next + 1) % LOOKS_MAX;
    return true;
}

static void look_done(uv_work_t *work, int status)
{
    struct ledger_looks *looks = work->data;

    if (status != 0)
        looks->err = SHOAL_ERR_UNREACHABLE;
    (void)look_end(looks);
}

/* False: not now. */
static bool look_read(struct agent *agent, struct ledger_looks *looks, struct shoal_job_id id, int fd, off_t bytes)
{
    if (looks->looking) {
        (void)close(fd);
        return false;
    }
    looks->now = (struct ledger_seen){ .job = id, .bytes = (uint64_t)bytes };
    looks->file = (struct ledger_file){ .fd = fd };
    looks->work.data = looks;
    looks->looking = bytes > LOOK_NOW_BYTES;
    if (looks->looking && uv_queue_work(&agent->loop, &looks->work, look_run, look_done) == 0)
        return false;
    look_run(&looks->work);
    return look_end(looks);
}

bool agent_ledger_look(struct agent *agent, struct shoal_job_id id, struct ledger_progress *progress)
{
    const struct agent_job *job = agent_job_find(agent, id);
    struct ledger_looks *looks = looks_need(agent);
    char folder[AGENT_PATH_BYTES];
    struct stat facts;
    int fd;

    if (job != NULL && job->ledger != NULL)
        return agent_ledger_progress(job, progress);
    agent_job_folder(agent, id, folder, sizeof(folder));
    fd = shoal_open_below(folder, "ledger", O_RDONLY);
    if (fd < 0)
        return false;
    if (looks == NULL || fstat(fd, &facts) != 0 || facts.st_size <= 0) {
        (void)close(fd);
        return false;
    }
    for (unsigned i = 0; i < LOOKS_MAX; i++)
        if (looks->seen[i].bytes == (uint64_t)facts.st_size && shoal_job_id_equal(looks->seen[i].job, id)) {
            (void)close(fd);
            *progress = looks->seen[i].progress;
            return true;
        }
    if (!look_read(agent, looks, id, fd, facts.st_size))
        return false;
    *progress = looks->now.progress;
    return true;
}

/* Records after (call, step), as many as fit; for a driver's loggers. */
size_t agent_ledger_read(struct agent *agent, struct agent_job *job, uint32_t call, uint64_t step, uint8_t *bytes,
                         size_t cap, uint64_t *first, uint32_t *count)
{
    struct ledger *ledger = ledger_need(agent, job);
    size_t used = 0;
    uint64_t at;

    *count = 0;
    *first = step + 1;
    if (ledger == NULL || reached(call, step, ledger->file.call, ledger->file.step))
        return 0;
    at = ledger->read_call == call && ledger->read_step == step ? ledger->read_offset
                                                                : ledger_file_after(&ledger->file, call, step);
    while (at < ledger->file.bytes) {
        uint32_t len = ledger_file_length(&ledger->file, at);
        struct shoal_step_head head;
        struct shoal_reader tuples;

        if (len == 0 || used + len > cap ||
            pread(ledger->file.fd, bytes + used, len, (off_t)(at + 4)) != (ssize_t)len ||
            shoal_step_record_len(shoal_view_of(bytes + used, len), &head, &tuples) != len || head.call != call)
            break;
        used += len;
        at += 4 + len;
        (*count)++;
        ledger->read_step = head.step;
    }
    ledger->read_call = call;
    ledger->read_offset = at;
    return used;
}

bool agent_ledger_is_idle(struct agent_job *job)
{
    struct ledger *ledger = job->ledger;

    if (ledger == NULL)
        return true;
    if (ledger->state != LEDGER_OPEN)
        return false; /* G4: who opens it again would take more; G5: what is here is not known */
    flush_start(ledger); /* of what was taken before a record that is damaged */
    if (ledger->flushing || ledger->waiting_count > 0 || ledger->early.len > 0 || uv_is_active((uv_handle_t *)&ledger->timer))
        return false;
    for (size_t i = 0; i < ledger->source_count; i++) {
        const struct ledger_source *source = &ledger->sources[i];

        if (source->asking || ((source->guards || source->asked) && behind(source, ledger)))
            return false;
    }
    return true;
}

void agent_ledger_create(struct agent *agent) { peer_serve(agent->calls, PEER_RECORDS, serve_records, agent); }
