/* Inline bundles on their way into the blob store.
 *
 * The founding record holds the bundle already, durable on a majority, so the store's copy is not urgent: it costs
 * several files and flushes, and a burst of submits shares its disk and cores with them. Hence a bundle that comes
 * alone is put at once, and of those that follow each other closely all but the first wait here until no more come.
 *
 * B1. Whoever asks for a bundle that waits gets it: it is put at once, and the asker goes on when that is done.
 * B2. A bundle that waits is put before its group's log is cut behind a snapshot, and dropped with the group.
 * B3. When too many wait, the store gets them at once; what the store refuses waits and is tried again.
 * B4. After a restart the core asks for all of it again.
 * B5. A burst of submits fills the table: what waits is found by its job or its hash, never by a walk.
 * B6. Of a job that is gone nothing is held: a put that is under way ends in a hold, which is let go of then. */
#include "agent.h"

#include "shoal/banned.h"

#define LATE_MAX 16384
#define LATE_BYTES_MAX (16 * SHOAL_MIB)
#define BUSY_REQUESTS 4 /* of the store: from then on bundles wait */
#define ALONE_MS 50     /* so long after the one before, while none waits, a bundle comes alone */
#define TURN_MS 100
#define QUIET_MS 1000 /* after the last bundle that came */
#define PUTS_A_TURN 32
#define BUCKETS 4096 /* LATE_MAX fills each with four */

struct waiter {
    struct waiter *next;
    agent_bundle_fn *done;
    void *arg;
};

struct late {
    struct late *next;
    struct late **at;                  /* what points to this one */
    struct late *job_next, *hash_next; /* in its two buckets */
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_hash hash;
    struct shoal_buf bytes;
    struct waiter *waiters;
    bool putting;
    bool let_go; /* B6 */
    bool said; /* that it failed */
};

static struct {
    struct late *first; /* of this process's one agent; owned by its loop */
    struct late **end;
    size_t count;
    size_t waiting; /* of them: not being put */
    uint64_t bytes;
    uint64_t came_ms; /* by the loop's clock; 0: none came yet */
    uv_timer_t timer;
    bool running;
    struct late *by_job[BUCKETS], *by_hash[BUCKETS];
} bundles = { .end = &bundles.first };

/* The last bytes of an id are its hash, and any bytes of a hash are as good as others. */
static size_t bucket_of(const uint8_t *bytes) { return ((size_t)bytes[0] << 8 | bytes[1]) % BUCKETS; }

static struct late **job_bucket(struct shoal_job_id job) { return &bundles.by_job[bucket_of(job.bytes + 8)]; }

static struct late **hash_bucket(struct shoal_hash hash) { return &bundles.by_hash[bucket_of(hash.bytes)]; }

static void unlink_late(struct late *late)
{
    struct late **at = job_bucket(late->job);

    while (*at != late)
        at = &(*at)->job_next;
    *at = late->job_next;
    at = hash_bucket(late->hash);
    while (*at != late)
        at = &(*at)->hash_next;
    *at = late->hash_next;
    *late->at = late->next;
    if (late->next != NULL)
        late->next->at = late->at;
    else
        bundles.end = late->at;
    bundles.count--;
    bundles.waiting -= late->putting ? 0 : 1;
    bundles.bytes -= late->bytes.len;
    shoal_buf_deinit(&late->bytes);
    free(late);
}

static void tell_waiters(struct waiter *waiter, enum shoal_err err, const char *text)
{
    while (waiter != NULL) {
        struct waiter *next = waiter->next;

        waiter->done(waiter->arg, err, text);
        free(waiter);
        waiter = next;
    }
}

/* It may be gone after that. */
static void put_ended(struct late *late, enum shoal_err err, const char *text)
{
    late->putting = false;
    bundles.waiting++;
    if (late->let_go && err == SHOAL_OK &&
        shoal_blobs_release(late->agent->blobs, late->job, late->hash, NULL, NULL) != SHOAL_OK) {
        bundles.came_ms = uv_now(&late->agent->loop);
        return; /* the store is busy: a turn puts it again, and lets go again */
    }
    if (err == SHOAL_OK || late->let_go) {
        unlink_late(late);
        return;
    }
    bundles.came_ms = uv_now(&late->agent->loop); /* not again at once */
    if (!late->said)
        agent_log(late->agent, "an inline bundle is not in the blob store yet: %s", text);
    late->said = true;
}

/* Who waits is told last: it may ask for the bundle anew, or end its job. */
static void on_put(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_hash hash, uint64_t bytes)
{
    struct late *late = arg;
    struct waiter *waiters = late->waiters;
    const char *text = err == SHOAL_OK ? "" : msg->text;

    (void)hash;
    (void)bytes;
    late->waiters = NULL;
    put_ended(late, err, text);
    tell_waiters(waiters, err, text);
}

static enum shoal_err put_now(struct late *late)
{
    enum shoal_err err;

    if (late->putting)
        return SHOAL_OK;
    late->putting = true;
    bundles.waiting--;
    err = shoal_blobs_put(late->agent->blobs, late->job, shoal_buf_view(&late->bytes), on_put, late);
    if (err != SHOAL_OK) {
        late->putting = false;
        bundles.waiting++;
    }
    return err;
}

static void on_turn(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    unsigned puts = 0;

    if (bundles.first == NULL) {
        (void)uv_timer_stop(timer);
        bundles.running = false;
        bundles.came_ms = 0;
        return;
    }
    if (shoal_blobs_stats(agent->blobs)->queued > 0 || uv_now(&agent->loop) - bundles.came_ms < QUIET_MS)
        return;
    for (struct late *late = bundles.first; late != NULL && puts < PUTS_A_TURN; late = late->next, puts++)
        if (put_now(late) != SHOAL_OK)
            return;
}

void agent_bundle_put(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, struct shoal_view bytes)
{
    uint64_t now_ms = uv_now(&agent->loop);
    bool alone = bundles.waiting == 0 && (bundles.came_ms == 0 || now_ms - bundles.came_ms >= ALONE_MS) &&
                 shoal_blobs_stats(agent->blobs)->queued < BUSY_REQUESTS;
    struct late *late = calloc(1, sizeof(*late));
    enum shoal_err err;

    SHOAL_ASSERT(late != NULL);
    err = shoal_buf_append(&late->bytes, bytes.bytes, bytes.len);
    SHOAL_ASSERT(err == SHOAL_OK); /* out of memory: the shell goes no further */
    late->agent = agent;
    late->job = job;
    late->hash = hash;
    late->at = bundles.end;
    late->job_next = *job_bucket(job);
    *job_bucket(job) = late;
    late->hash_next = *hash_bucket(hash);
    *hash_bucket(hash) = late;
    *bundles.end = late;
    bundles.end = &late->next;
    bundles.count++;
    bundles.waiting++;
    bundles.bytes += bytes.len;
    bundles.came_ms = now_ms;
    if (alone || bundles.count > LATE_MAX || bundles.bytes > LATE_BYTES_MAX)
        shoal_ignore(put_now(late)); /* refused: it waits */
    if (bundles.running)
        return;
    bundles.running = true;
    bundles.timer.data = agent;
    (void)uv_timer_init(&agent->loop, &bundles.timer);
    (void)uv_timer_start(&bundles.timer, on_turn, TURN_MS, TURN_MS);
}

bool agent_bundle_now(struct shoal_hash hash, agent_bundle_fn *done, void *arg)
{
    struct late *late = *hash_bucket(hash);
    struct waiter *waiter;

    while (late != NULL && !shoal_hash_equal(late->hash, hash))
        late = late->hash_next;
    if (late == NULL || put_now(late) != SHOAL_OK)
        return false;
    waiter = calloc(1, sizeof(*waiter));
    SHOAL_ASSERT(waiter != NULL);
    *waiter = (struct waiter){ .next = late->waiters, .done = done, .arg = arg };
    late->waiters = waiter;
    return true;
}

void agent_bundle_cut(struct shoal_job_id job)
{
    for (struct late *late = *job_bucket(job); late != NULL; late = late->job_next)
        if (shoal_job_id_equal(late->job, job))
            shoal_ignore(put_now(late));
}

void agent_bundle_drop(struct shoal_job_id job)
{
    struct late *next;

    for (struct late *late = *job_bucket(job); late != NULL; late = next) {
        next = late->job_next;
        if (shoal_job_id_equal(late->job, job) && !late->putting)
            unlink_late(late);
    }
}

void agent_bundle_let_go(struct agent *agent, struct shoal_job_id job)
{
    agent_bundle_drop(job);
    for (struct late *late = *job_bucket(job); late != NULL; late = late->job_next)
        late->let_go = late->let_go || shoal_job_id_equal(late->job, job);
    shoal_ignore(shoal_blobs_release(agent->blobs, job, (struct shoal_hash){ { 0 } }, NULL, NULL));
}
