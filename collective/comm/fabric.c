/* Between the hosts of an epoch: greetings with tokens, the leaders' exchange of tuples and completions, and the result
 * of the decided step for members that lack it. Built on transport.h; inactive while an epoch lies on one host.
 *
 *   every member --greeting (token, epoch, what I need)--> every member of another host
 *   leader of a host --tuples of its host--> leaders of the others        (world block)
 *   leader of a host --all of mine have completed s--> leaders of the others
 *   source --commit block, result of D--> a member that said it needs D
 *   library thread --beat, each SHOAL_BEAT_NS--> every member of another host; who falls silent is named to the agent
 *
 * I1. Nothing of a peer is used before its greeting has shown the token that the EPOCH lists for it.
 * I2. A broken connection marks the fabric broken; the next wait closes the epoch, which tells the agent, and with whom
 *     (CLOSED.broken). So does one that does not come up, or says nothing for long; who was silent for half of that
 *     when somebody else ended the epoch is named, too. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

#include "shoal/fabric_address.h"
#include "shoal/step_record.h"

#include "shoal/banned.h"

#define SMALL_RANKS 64u /* members of an epoch whose tags are as they always were */
_Static_assert(SHOAL_RANKS_MAX <= 1024, "a rank fits the 10 bits of a tag");
#define SERVE_WINDOW 4u
#define BEAT_LOOK_NS (25 * SHOAL_MS)
#define PATH_LOOK_NS (250 * SHOAL_MS)
#define SILENT_AGAIN_NS (10 * SHOAL_S)
#define BEATS_A_LOOK 16u
#define FETCH_CHUNK_BYTES (1024ull * SHOAL_KIB)
#define FETCH_CHUNKS_MAX 8192u

struct greeting {
    uint8_t token[16];
    uint64_t worker_id;
    uint64_t epoch;
    uint64_t need; /* the step whose result I lack, or 0 */
};

struct serving {
    bool on;
    uint32_t next; /* 0: the commit block, then chunks of the vector */
    struct transport_request *requests[SERVE_WINDOW];
};

struct leader_round {
    uint64_t step;
    bool said;
    struct transport_request *sends[SHOAL_RANKS_MAX];
    struct transport_request *receives[SHOAL_RANKS_MAX];
    bool in[SHOAL_RANKS_MAX];
};

/* The heartbeats between me and one member on another host. */
struct beat {
    uint64_t heard_ns;
    uint64_t word; /* received; its value says nothing */
    struct transport_request *send;
    struct transport_request *receive;
};

struct fabric {
    struct transport *tcp; /* always there */
    struct transport *ucx; /* NULL: none, why is in no_ucx */
    struct shoal_msg no_ucx;
    bool said_why;
    bool active;
    atomic_bool broken; /* set under the lock, also by turns within a wait's condition; read without it */
    uint32_t greeted_count;
    bool greeted[SHOAL_RANKS_MAX];
    struct greeting out[SHOAL_RANKS_MAX];
    struct greeting in[SHOAL_RANKS_MAX];
    struct transport_request *greet_sends[SHOAL_RANKS_MAX];
    struct transport_request *greet_receives[SHOAL_RANKS_MAX];
    struct serving serving[SHOAL_RANKS_MAX];
    struct leader_round world;
    struct leader_round completed;
    uint64_t completed_out;
    uint64_t completed_in[SHOAL_RANKS_MAX];
    struct beat beats[SHOAL_RANKS_MAX];
    uint64_t beat_word;                  /* sent */
    struct shoal_ranks unheard;          /* as said */
    uint64_t beat_look_ns, beat_send_ns; /* the last ones */
    uint64_t path_look_ns;               /* whether what was sent arrives */
    uint64_t silent_ns; /* a link that had stood said nothing for long; 0: none did. Kept over epochs */
    uint8_t *blocks;    /* mine to send, then one of each host */
    size_t blocks_cap;
    uint8_t *slab;
    size_t slab_cap;
};

/* UCX beside our own TCP, on networks that the operator trusts. Without it nothing fails, unless it was asked for by name. On
 * loopback alone it has to be: there our TCP is faster, and every user of the host reaches UCX's port (decision 0004). */
static enum shoal_err add_ucx(struct shoal_comm *comm, const char *devices, bool sealed)
{
    const char *wanted = getenv(SHOAL_ENV_TRANSPORT);
    bool demanded = wanted != NULL && strcmp(wanted, "ucx") == 0;
    uint8_t address[SHOAL_FABRIC_UCX_MAX];
    struct shoal_msg *why = &comm->fabric->no_ucx;
    size_t len = 0;
    enum shoal_err err;

    if (wanted != NULL && strcmp(wanted, "tcp") == 0)
        return SHOAL_OK;
    if ((sealed || strcmp(devices, "lo") == 0) && !demanded)
        return SHOAL_OK;
    err = transport_ucx.create(&comm->fabric->ucx, devices, sealed, why);
    if (err == SHOAL_OK)
        err = transport_ucx.address(comm->fabric->ucx, address, sizeof(address) - 2, &len);
    if (err != SHOAL_OK)
        return demanded ? comm_fail(comm, err, "%s", why->text) : SHOAL_OK;
    comm->address_len = shoal_fabric_address_add(comm->address, sizeof(comm->address), comm->address_len, address, len);
    return SHOAL_OK;
}

enum shoal_err fabric_create(struct shoal_comm *comm)
{
    const char *sealed = getenv(SHOAL_ENV_FABRIC_SEALED);
    const char *devices = sealed != NULL ? sealed : getenv(SHOAL_ENV_FABRIC);
    enum shoal_err err;

    if (comm->transport != NULL)
        return SHOAL_OK;
    if (comm->fabric == NULL)
        comm->fabric = calloc(1, sizeof(*comm->fabric));
    if (comm->fabric == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for a fabric");
    if (devices == NULL || *devices == '\0')
        devices = "lo";
    err = transport_tcp.create(&comm->fabric->tcp, devices, sealed != NULL, &comm->msg);
    if (err == SHOAL_OK)
        err = transport_tcp.address(comm->fabric->tcp, comm->address, sizeof(comm->address), &comm->address_len);
    if (err == SHOAL_OK)
        err = add_ucx(comm, devices, sealed != NULL);
    comm->transport_ops = &transport_tcp;
    comm->transport = comm->fabric->tcp;
    return err;
}

void fabric_destroy(struct shoal_comm *comm)
{
    fabric_leave(comm);
    comm->transport = NULL;
    if (comm->fabric == NULL)
        return;
    if (comm->fabric->ucx != NULL)
        transport_ucx.destroy(comm->fabric->ucx);
    if (comm->fabric->tcp != NULL)
        transport_tcp.destroy(comm->fabric->tcp);
    free(comm->fabric->blocks);
    free(comm->fabric->slab);
    free(comm->fabric);
    comm->fabric = NULL;
}

uint64_t fabric_tag(const struct shoal_comm *comm, enum fabric_kind kind, uint32_t source, uint64_t op, uint32_t chunk)
{
    uint64_t epoch = (uint64_t)(comm->epoch.id.e & 0x3ff) << 6 | (comm->epoch.id.k & 0x3f);

    if (comm->epoch.size > SMALL_RANKS) /* every member counts the same */
        return epoch << 48 | (uint64_t)(source & 0x3ff) << 38 | (uint64_t)kind << 34 | (op & 0xfffff) << 14 |
               (chunk & 0x3fff);
    return epoch << 48 | (uint64_t)(source & 0x3f) << 42 | (uint64_t)kind << 38 | (op & 0xffffff) << 14 |
           (chunk & 0x3fff);
}

struct transport_request *fabric_send(struct shoal_comm *comm, uint32_t rank, uint64_t tag, const void *bytes,
                                      size_t len)
{
    struct transport_request *request;

    (void)pthread_mutex_lock(&comm->fabric_lock);
    request = comm->fabric->broken ? NULL : comm->transport_ops->send(comm->transport, rank, tag, bytes, len);
    if (request == NULL)
        comm->fabric->broken = true;
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    return request;
}

struct transport_request *fabric_recv(struct shoal_comm *comm, uint64_t tag, void *bytes, size_t len)
{
    struct transport_request *request;

    (void)pthread_mutex_lock(&comm->fabric_lock);
    request = comm->fabric->broken ? NULL : comm->transport_ops->recv(comm->transport, tag, bytes, len);
    if (request == NULL)
        comm->fabric->broken = true;
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    return request;
}

enum transport_state fabric_test(struct shoal_comm *comm, struct transport_request **request)
{
    enum transport_state state = TRANSPORT_DONE;

    (void)pthread_mutex_lock(&comm->fabric_lock);
    if (comm->fabric->broken)
        state = TRANSPORT_PENDING; /* nothing ends any more; the wait does */
    else if (*request != NULL)
        state = comm->transport_ops->test(comm->transport, *request);
    if (state == TRANSPORT_FAILED) {
        comm->fabric->broken = true;
        *request = NULL;
        state = TRANSPORT_PENDING;
    } else if (state == TRANSPORT_DONE) {
        *request = NULL;
    }
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    return state;
}

static bool all_done(struct shoal_comm *comm, struct transport_request **requests, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (fabric_test(comm, &requests[i]) != TRANSPORT_DONE)
            return false;
    return true;
}

struct finish {
    struct transport_request **requests;
    uint32_t count;
};

static bool finish_ready(struct shoal_comm *comm, uint64_t arg)
{
    const struct finish *finish = (const struct finish *)(uintptr_t)arg;

    return fabric_turn(comm) && all_done(comm, finish->requests, finish->count);
}

enum shoal_err fabric_finish(struct shoal_comm *comm, struct transport_request **requests, uint32_t count)
{
    struct finish finish = { requests, count };

    return comm_wait(comm, finish_ready, (uint64_t)(uintptr_t)&finish);
}

uint8_t *fabric_slab(struct shoal_comm *comm, size_t bytes)
{
    struct fabric *fabric = comm->fabric;

    if (fabric->slab_cap >= bytes)
        return fabric->slab;
    free(fabric->slab); /* no request is under way between two exchanges */
    fabric->slab_cap = 0;
    fabric->slab = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (fabric->slab != NULL)
        fabric->slab_cap = bytes;
    return fabric->slab;
}

static bool lacks_result(const struct shoal_comm *comm)
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t decided = epoch->decided_step;

    return epoch->peers[epoch->rank].has_state && !comm->stateless && epoch->source >= 0 &&
           atomic_load(&comm->applied) + 1 == decided && atomic_load(&comm->complete) != decided;
}

static void beat_receive(struct shoal_comm *comm, uint32_t rank)
{
    struct beat *beat = &comm->fabric->beats[rank];

    beat->receive = fabric_recv(comm, fabric_tag(comm, FABRIC_BEAT, rank, 0, 0), &beat->word, sizeof(beat->word));
}

static void lost_add(struct shoal_comm *comm, uint32_t rank)
{
    (void)atomic_fetch_or(&comm->lost_links.words[rank / 64], 1ull << rank % 64);
}

struct shoal_ranks fabric_lost(const struct shoal_comm *comm)
{
    struct shoal_ranks lost;

    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        lost.words[i] = atomic_load(&comm->lost_links.words[i]);
    return lost;
}

static enum shoal_err greet(struct shoal_comm *comm, uint32_t rank)
{
    struct fabric *fabric = comm->fabric;
    const struct epoch *epoch = &comm->epoch;
    const struct peer *peer = &epoch->peers[rank];
    struct transport_peer to = { .epoch = fabric_tag(comm, FABRIC_HELLO, 0, 0, 0) & TRANSPORT_EPOCH_MASK,
                                 .rank = rank,
                                 .my_rank = epoch->rank,
                                 .token = peer->token,
                                 .my_token = comm->hello.token };
    struct shoal_fabric_address address;
    enum shoal_err err;

    shoal_fabric_address_get(peer->address, peer->address_len, &address);
    to.address = comm->transport == fabric->ucx ? address.ucx : peer->address;
    to.address_len = comm->transport == fabric->ucx ? address.ucx_len : address.tcp_len;
    err = comm->transport_ops->connect(comm->transport, &to);

    if (err != SHOAL_OK) {
        lost_add(comm, rank);
        return err;
    }
    fabric->out[rank] =
        (struct greeting){ .worker_id = comm->hello.worker_id,
                           .epoch = epoch->word,
                           .need = lacks_result(comm) && epoch->source == (int)rank ? epoch->decided_step : 0 };
    memcpy(fabric->out[rank].token, comm->hello.token, 16);
    fabric->greet_receives[rank] =
        fabric_recv(comm, fabric_tag(comm, FABRIC_HELLO, rank, 0, 0), &fabric->in[rank], sizeof(fabric->in[rank]));
    fabric->greet_sends[rank] = fabric_send(comm, rank, fabric_tag(comm, FABRIC_HELLO, epoch->rank, 0, 0),
                                            &fabric->out[rank], sizeof(fabric->out[rank]));
    fabric->beats[rank].heard_ns = comm_now_ns();
    beat_receive(comm, rank);
    return SHOAL_OK;
}

/* One line in the log of the first member of each host, once: why it is not UCX. */
static void say_why(struct shoal_comm *comm)
{
    struct fabric *fabric = comm->fabric;
    const char *wanted = getenv(SHOAL_ENV_TRANSPORT);

    if (fabric->said_why || comm->epoch.local_index != 0 || (wanted != NULL && strcmp(wanted, "tcp") == 0) ||
        (fabric->ucx == NULL && fabric->no_ucx.text[0] == '\0')) /* it was not tried */
        return;
    fabric->said_why = true;
    (void)fprintf(stderr, "shoal: between hosts training data goes over TCP, not UCX: %s\n",
                  fabric->ucx == NULL ? fabric->no_ucx.text : "not every host of this job has it in the same version");
}

/* UCX where all members have it, in one version; every member sees the same list. */
static void choose_transport(struct shoal_comm *comm)
{
    struct fabric *fabric = comm->fabric;
    struct shoal_fabric_common common = { 0 };

    for (uint32_t rank = 0; rank < comm->epoch.size; rank++)
        shoal_fabric_common_add(&common, comm->epoch.peers[rank].address, comm->epoch.peers[rank].address_len);
    if (fabric->ucx != NULL && common.ucx) {
        comm->transport_ops = &transport_ucx;
        comm->transport = fabric->ucx;
        return;
    }
    comm->transport_ops = &transport_tcp;
    comm->transport = fabric->tcp;
    if (!common.sealed)
        say_why(comm);
}

enum shoal_err fabric_enter(struct shoal_comm *comm)
{
    struct fabric *fabric = comm->fabric;
    enum shoal_err err = SHOAL_OK;

    if (comm->epoch.hosts < 2)
        return SHOAL_OK;
    if (fabric == NULL || comm->transport == NULL)
        return comm_fail(comm, SHOAL_ERR_UNSUPPORTED, "an epoch of several hosts needs a fabric");
    (void)pthread_mutex_lock(&comm->fabric_lock);
    choose_transport(comm);
    fabric->active = true;
    for (uint32_t rank = 0; rank < comm->epoch.size && err == SHOAL_OK; rank++)
        if (comm->epoch.peers[rank].host != comm->epoch.host)
            err = greet(comm, rank);
    if (err != SHOAL_OK)
        fabric->broken = true; /* a stale address: the first wait says so to the agent */
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    return SHOAL_OK;
}

void fabric_leave(struct shoal_comm *comm)
{
    struct fabric *fabric = comm->fabric;

    if (fabric == NULL || !fabric->active)
        return;
    (void)pthread_mutex_lock(&comm->fabric_lock);
    comm->transport_ops->reset(comm->transport, fabric_tag(comm, FABRIC_HELLO, 0, 0, 0), TRANSPORT_EPOCH_MASK);
    fabric->active = false;
    fabric->broken = false;
    fabric->greeted_count = 0;
    memset(fabric->greeted, 0, sizeof(fabric->greeted));
    memset(fabric->greet_sends, 0, sizeof(fabric->greet_sends));
    memset(fabric->greet_receives, 0, sizeof(fabric->greet_receives));
    memset(fabric->serving, 0, sizeof(fabric->serving));
    memset(fabric->beats, 0, sizeof(fabric->beats));
    fabric->beat_look_ns = fabric->beat_send_ns = 0;
    fabric->unheard = (struct shoal_ranks){ 0 };
    memset(&fabric->world, 0, sizeof(fabric->world));
    memset(&fabric->completed, 0, sizeof(fabric->completed));
    (void)pthread_mutex_unlock(&comm->fabric_lock);
}

static uint64_t fetch_chunk_bytes(uint64_t vector)
{
    uint64_t share = (vector / FETCH_CHUNKS_MAX + ARENA_PAGE) / ARENA_PAGE * ARENA_PAGE;

    return share > FETCH_CHUNK_BYTES ? share : FETCH_CHUNK_BYTES;
}

static void on_greeting(struct shoal_comm *comm, uint32_t rank)
{
    struct fabric *fabric = comm->fabric;
    const struct epoch *epoch = &comm->epoch;
    const struct greeting *in = &fabric->in[rank];

    if (in->worker_id != epoch->peers[rank].worker_id || in->epoch != epoch->word ||
        memcmp(in->token, epoch->peers[rank].token, 16) != 0) {
        (void)comm_fail(comm, SHOAL_ERR_DENIED, "who connected as worker %llu does not have its token",
                        (unsigned long long)epoch->peers[rank].worker_id);
        fabric->broken = true;
        return;
    }
    fabric->greeted[rank] = true;
    fabric->greeted_count++;
    if (in->need != 0 && epoch->source == (int)epoch->rank && in->need == epoch->decided_step &&
        arena_my_words(&comm->arena)->committed_step == in->need)
        fabric->serving[rank].on = true;
}

/* The commit block and the result map stand until the needy member has contributed the next step. */
static void serve_turn(struct shoal_comm *comm, uint32_t rank)
{
    struct serving *serving = &comm->fabric->serving[rank];
    const struct arena_layout *layout = &comm->arena.layout;
    struct arena_block *commit = arena_block_at(arena_mine(&comm->arena), layout->commit_at);
    uint64_t vector = commit->head.kind == SHOAL_STEP_TRAIN ? layout->sum_elems * sizeof(float) : 0;
    uint64_t chunk = fetch_chunk_bytes(vector);
    struct transport_request **request = &serving->requests[serving->next % SERVE_WINDOW];
    uint64_t at = serving->next == 0 ? 0 : (serving->next - 1) * chunk;
    uint64_t tag = fabric_tag(comm, FABRIC_FETCH, comm->epoch.rank, commit->head.step, serving->next);

    if (fabric_test(comm, request) != TRANSPORT_DONE)
        return;
    if (serving->next == 0)
        *request = fabric_send(comm, rank, tag, commit, (size_t)layout->block_bytes);
    else if (at < vector)
        *request =
            fabric_send(comm, rank, tag, comm->arena.map + at, (size_t)(vector - at < chunk ? vector - at : chunk));
    else
        serving->on = !all_done(comm, serving->requests, SERVE_WINDOW);
    serving->next += serving->next == 0 || at < vector ? 1 : 0;
}

static void beat_one(struct shoal_comm *comm, uint32_t rank, uint64_t now, bool send)
{
    struct beat *beat = &comm->fabric->beats[rank];

    for (unsigned i = 0; i < BEATS_A_LOOK && fabric_test(comm, &beat->receive) == TRANSPORT_DONE; i++) {
        beat->heard_ns = now;
        beat_receive(comm, rank);
    }
    if (send && fabric_test(comm, &beat->send) == TRANSPORT_DONE)
        beat->send = fabric_send(comm, rank, fabric_tag(comm, FABRIC_BEAT, comm->epoch.rank, 0, 0),
                                 &comm->fabric->beat_word, sizeof(comm->fabric->beat_word));
}

static void say_unheard(struct shoal_comm *comm, struct shoal_ranks ranks)
{
    if (shoal_ranks_equal(&ranks, &comm->fabric->unheard))
        return;
    comm->fabric->unheard = ranks;
    (void)pthread_mutex_lock(&comm->lock);
    if (atomic_load(&comm->open)) {
        comm->unheard = (struct shoal_worker_unheard){ .epoch = comm->epoch.id, .ranks = ranks };
        agent_tell(comm, FACT_UNHEARD);
    }
    (void)pthread_mutex_unlock(&comm->lock);
}

/* After how long without a word the data link to `rank` counts as broken. One that stands may wait for the first word:
 * its member may still be computing for the epoch before. A link that falls silent soon after another did is given less
 * time, so that the third time comes within the 10 s of PROTOCOLS 12 however long the first one took. */
static uint64_t broken_ns(const struct shoal_comm *comm, uint32_t rank)
{
    bool again = comm->fabric->silent_ns != 0 && comm_now_ns() < comm->fabric->silent_ns + SILENT_AGAIN_NS;

    if (comm->fabric->greeted[rank])
        return again ? SHOAL_LINK_CONNECT_NS : SHOAL_BEAT_BROKEN_NS;
    return comm->transport_ops->connected(comm->transport, rank) ? UINT64_MAX / 2 : SHOAL_LINK_CONNECT_NS;
}

/* A thread that was itself late must not call others silent: their words may wait unread. */
static void beat_turn(struct shoal_comm *comm)
{
    struct fabric *fabric = comm->fabric;
    uint64_t now = comm_now_ns();
    bool late = now >= fabric->beat_look_ns + 4 * BEAT_LOOK_NS;
    bool send = now >= fabric->beat_send_ns + SHOAL_BEAT_NS;
    bool look = comm->transport_ops->look != NULL && now >= fabric->path_look_ns + PATH_LOOK_NS;
    struct shoal_ranks unheard = { 0 }, lost = { 0 };

    if (now < fabric->beat_look_ns + BEAT_LOOK_NS)
        return;
    if (look)
        fabric->path_look_ns = now;
    for (uint32_t rank = 0; rank < comm->epoch.size && !fabric->broken; rank++) {
        struct beat *beat = &fabric->beats[rank];
        uint64_t limit = fabric->greeted[rank] ? SHOAL_BEAT_UNHEARD_NS : SHOAL_BEAT_FIRST_NS;

        if (comm->epoch.peers[rank].host == comm->epoch.host)
            continue;
        if (late && fabric->beat_look_ns != 0)
            beat->heard_ns += now - fabric->beat_look_ns;
        beat_one(comm, rank, now, send);
        if (now > beat->heard_ns + limit)
            shoal_ranks_add(&unheard, rank);
        if (now > beat->heard_ns + broken_ns(comm, rank) / 2)
            shoal_ranks_add(&lost, rank);
        if (look)
            comm->transport_ops->look(comm->transport, rank, shoal_ranks_has(&lost, rank));
        if (now > beat->heard_ns + broken_ns(comm, rank)) {
            (void)comm_fail(comm, SHOAL_ERR_UNREACHABLE, "connection with rank %u: nothing came for %u s", rank,
                            (unsigned)(broken_ns(comm, rank) / SHOAL_S));
            fabric->broken = true;
            fabric->silent_ns = fabric->greeted[rank] ? now : fabric->silent_ns;
        }
    }
    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        atomic_store(&comm->lost_links.words[i], lost.words[i]);
    fabric->beat_look_ns = now;
    if (send)
        fabric->beat_send_ns = now;
    say_unheard(comm, unheard);
}

bool fabric_turn(struct shoal_comm *comm)
{
    struct fabric *fabric = comm->fabric;
    bool whole;

    if (fabric == NULL || !fabric->active)
        return true;
    (void)pthread_mutex_lock(&comm->fabric_lock);
    if (comm->transport_ops->progress(comm->transport) > 0)
        atomic_store(&comm->fabric_moved, true);
    if (comm->transport_ops->failed(comm->transport, &comm->msg)) {
        struct shoal_ranks lost = comm->transport_ops->lost(comm->transport);

        for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
            (void)atomic_fetch_or(&comm->lost_links.words[i], lost.words[i]);
        fabric->broken = true;
    }
    for (uint32_t rank = 0; rank < comm->epoch.size && !fabric->broken; rank++) {
        if (comm->epoch.peers[rank].host == comm->epoch.host)
            continue;
        if (!fabric->greeted[rank] && fabric_test(comm, &fabric->greet_receives[rank]) == TRANSPORT_DONE)
            on_greeting(comm, rank);
        if (fabric->greet_sends[rank] != NULL)
            (void)fabric_test(comm, &fabric->greet_sends[rank]);
        if (fabric->serving[rank].on)
            serve_turn(comm, rank);
    }
    if (!fabric->broken)
        beat_turn(comm);
    whole = !fabric->broken;
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    return whole;
}

bool fabric_is_broken(const struct shoal_comm *comm) { return comm->fabric != NULL && comm->fabric->broken; }

void fabric_try_turn(struct shoal_comm *comm)
{
    if (comm->fabric == NULL || pthread_mutex_trylock(&comm->fabric_lock) != 0)
        return;
    if (!fabric_turn(comm)) {
        if (!comm->finished) {
            epoch_close(comm);
        } else { /* peers that were released close their connections; one whose host is lost ships no records any more */
            struct shoal_ranks ranks = fabric_lost(comm);

            shoal_ranks_join(&ranks, &comm->fabric->unheard);
            say_unheard(comm, ranks);
        }
    }
    (void)pthread_mutex_unlock(&comm->fabric_lock);
}

void fabric_sleep(struct shoal_comm *comm, int ms)
{
    struct pollfd p = { .events = POLLIN };
    bool armed;

    (void)pthread_mutex_lock(&comm->fabric_lock);
    armed = comm->transport_ops->arm(comm->transport);
    p.fd = comm->transport_ops->wait_fd(comm->transport);
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    if (armed)
        (void)ppoll(&p, 1, &(struct timespec){ .tv_nsec = ms * (long)SHOAL_MS }, NULL);
}

static bool everyone_greeted(struct shoal_comm *comm, uint64_t arg)
{
    (void)arg;
    return fabric_turn(comm) && comm->fabric->greeted_count == comm->epoch.size - comm->epoch.local_count;
}

enum shoal_err fabric_greeted(struct shoal_comm *comm)
{
    return everyone_greeted(comm, 0) ? SHOAL_OK : comm_wait(comm, everyone_greeted, 0);
}

static bool source_greeted(struct shoal_comm *comm, uint64_t rank)
{
    return fabric_turn(comm) && comm->fabric->greeted[rank];
}

enum shoal_err fabric_fetch(struct shoal_comm *comm)
{
    struct arena *arena = &comm->arena;
    const struct arena_layout *layout = &arena->layout;
    struct arena_block *commit = arena_block_at(arena_mine(arena), layout->commit_at);
    struct arena_part whole = { 0, layout->vector_bytes, arena->slot, 0 };
    uint32_t source = (uint32_t)comm->epoch.source;
    uint64_t step = comm->epoch.decided_step;
    uint64_t vector = layout->sum_elems * sizeof(float);
    uint64_t chunk = fetch_chunk_bytes(vector);
    struct transport_request *request;
    enum shoal_err err = comm_wait(comm, source_greeted, source);

    if (err != SHOAL_OK)
        return err;
    request = fabric_recv(comm, fabric_tag(comm, FABRIC_FETCH, source, step, 0), commit, (size_t)layout->block_bytes);
    err = fabric_finish(comm, &request, 1);
    if (err == SHOAL_OK && commit->head.step != step)
        err = comm_fail(comm, SHOAL_ERR_MALFORMED, "the source sent step %llu, not %llu",
                        (unsigned long long)commit->head.step, (unsigned long long)step);
    if (err != SHOAL_OK || commit->head.kind != SHOAL_STEP_TRAIN || vector == 0)
        return err;
    for (uint64_t at = 0; at < vector && err == SHOAL_OK; at += chunk) {
        request = fabric_recv(comm, fabric_tag(comm, FABRIC_FETCH, source, step, (uint32_t)(at / chunk) + 1),
                              arena_mine(arena) + layout->result_at + at,
                              (size_t)(vector - at < chunk ? vector - at : chunk));
        err = fabric_finish(comm, &request, 1);
    }
    return err == SHOAL_OK ? arena_compose(arena, &whole, 1, &comm->msg) : err;
}

/* ---- the leaders ---- */

static bool is_leader(const struct epoch *epoch) { return epoch->leaders[epoch->host] == epoch->rank; }

static bool blocks_reserve(struct shoal_comm *comm)
{
    struct fabric *fabric = comm->fabric;
    size_t bytes = (size_t)(comm->arena.layout.block_bytes + 63) / 64 * 64 * (comm->epoch.hosts + 1u);

    if (fabric->blocks_cap >= bytes)
        return true;
    free(fabric->blocks);
    fabric->blocks = aligned_alloc(64, bytes);
    fabric->blocks_cap = fabric->blocks == NULL ? 0 : bytes;
    return fabric->blocks != NULL;
}

static struct arena_block *block_slab(const struct shoal_comm *comm, uint32_t i)
{
    return (struct arena_block *)(void *)(comm->fabric->blocks +
                                          i * ((size_t)(comm->arena.layout.block_bytes + 63) / 64 * 64));
}

static void world_start(struct shoal_comm *comm, uint64_t step, struct arena_block *world)
{
    struct fabric *fabric = comm->fabric;
    const struct epoch *epoch = &comm->epoch;
    size_t bytes = (size_t)comm->arena.layout.block_bytes;

    fabric->world = (struct leader_round){ .step = step };
    if (!blocks_reserve(comm)) {
        fabric->broken = true;
        return;
    }
    step_merge_local(comm, world);
    memcpy(block_slab(comm, 0), world, bytes);
    for (uint32_t host = 0; host < epoch->hosts; host++) {
        if (host == epoch->host)
            continue;
        fabric->world.receives[host] = fabric_recv(comm, fabric_tag(comm, FABRIC_BLOCK, epoch->leaders[host], step, 0),
                                                   block_slab(comm, host + 1), bytes);
        fabric->world.sends[host] =
            fabric_send(comm, epoch->leaders[host], fabric_tag(comm, FABRIC_BLOCK, epoch->rank, step, 0),
                        block_slab(comm, 0), bytes);
    }
}

bool fabric_world_turn(struct shoal_comm *comm, uint64_t step)
{
    struct fabric *fabric = comm->fabric;
    const struct epoch *epoch = &comm->epoch;
    struct peer *leader = &comm->epoch.peers[epoch->leaders[epoch->host]];
    struct arena_block *world = arena_block_at(leader->region, comm->arena.layout.world_at);
    bool all = true;

    if (!is_leader(epoch) || (fabric->world.step == step && fabric->world.said))
        return atomic_load(&leader->words->epoch) == epoch->word && atomic_load(&leader->words->world_in) >= step;
    if (fabric->world.step != step)
        world_start(comm, step, world);
    for (uint32_t host = 0; host < epoch->hosts && !fabric->broken; host++) {
        if (host == epoch->host || fabric->world.in[host])
            continue;
        if (fabric_test(comm, &fabric->world.receives[host]) == TRANSPORT_DONE) {
            step_merge_block(comm, world, block_slab(comm, host + 1));
            fabric->world.in[host] = true;
        } else {
            all = false;
        }
    }
    if (!all || fabric->broken || !all_done(comm, fabric->world.sends, epoch->hosts))
        return false;
    fabric->world.said = comm_say(comm, &arena_my_words(&comm->arena)->world_in, step, NULL) == SHOAL_OK;
    return fabric->world.said;
}

static void completed_start(struct shoal_comm *comm, uint64_t step)
{
    struct fabric *fabric = comm->fabric;
    const struct epoch *epoch = &comm->epoch;

    fabric->completed = (struct leader_round){ .step = step };
    fabric->completed_out = step;
    for (uint32_t host = 0; host < epoch->hosts; host++) {
        if (host == epoch->host)
            continue;
        fabric->completed.receives[host] =
            fabric_recv(comm, fabric_tag(comm, FABRIC_COMPLETE, epoch->leaders[host], step, 0),
                        &fabric->completed_in[host], sizeof(uint64_t));
        fabric->completed.sends[host] =
            fabric_send(comm, epoch->leaders[host], fabric_tag(comm, FABRIC_COMPLETE, epoch->rank, step, 0),
                        &fabric->completed_out, sizeof(uint64_t));
    }
}

bool fabric_completed_turn(struct shoal_comm *comm, uint64_t step, bool local)
{
    struct fabric *fabric = comm->fabric;
    const struct epoch *epoch = &comm->epoch;
    struct peer *leader = &comm->epoch.peers[epoch->leaders[epoch->host]];

    if (!is_leader(epoch) || (fabric->completed.step == step && fabric->completed.said))
        return atomic_load(&leader->words->epoch) == epoch->word &&
               atomic_load(&leader->words->world_completed) >= step;
    if (!fabric_turn(comm) || !local)
        return false;
    if (fabric->completed.step != step)
        completed_start(comm, step);
    if (!all_done(comm, fabric->completed.receives, epoch->hosts) ||
        !all_done(comm, fabric->completed.sends, epoch->hosts))
        return false;
    fabric->completed.said = comm_say(comm, &arena_my_words(&comm->arena)->world_completed, step, NULL) == SHOAL_OK;
    return fabric->completed.said;
}
