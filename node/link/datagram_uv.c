/* Sealed datagrams (datagram.h).
 *
 *   DATA  kind version oldest 0 | sender's Ed25519 key 32 | start 8 | salt 8 | sequence 8 | sealed payload, tag 16
 *   WHO   kind version oldest 0 | sender's Ed25519 key 32 | nonce 24 | sealed node id asked for 16, tag 16
 *   IAM   as WHO, with the asker's node id sealed
 *
 * DATA is sealed by XChaCha20-Poly1305 under the pair's key; the nonce is (start, salt, sequence) and everything before
 * the payload is authenticated. start = (host epoch, incarnation), which rises durably with each start of the agent;
 * salt is random, so that a data folder that was rolled back does not repeat a nonce. WHO and IAM are sealed under a
 * key of the whole mesh: they say no more than "a member of the mesh answers here, with this key".
 *
 * I1. A pair's key is BLAKE2b-256, keyed by a derivation of the mesh secret, of (X25519 of both static keys, sender's
 *     key, receiver's key): each direction has its own.
 * I2. Nothing of a datagram is believed, and no record of its sender made, before it has been opened.
 * I3. A (start, sequence) is delivered once: sequences at or below the window are dropped, and so are earlier starts.
 *     What a restarted receiver has forgotten, the layers above name by incarnations. */
#include "shoal/datagram.h"

#include "shoal/noise.h"

#include "node/format.h"

#include <sodium.h>
#include <uv.h>

#include "shoal/banned.h"

#define VERSION 1
#define HEAD_BYTES 4
#define DATA_HEAD_BYTES (HEAD_BYTES + 32 + 8 + 8 + 8)
#define TAG_BYTES 16
#define NONCE_BYTES 24
#define WHO_HEAD_BYTES (HEAD_BYTES + 32 + NONCE_BYTES)
#define WHO_BYTES (WHO_HEAD_BYTES + 16 + TAG_BYTES)
_Static_assert(DATA_HEAD_BYTES + TAG_BYTES == SHOAL_DATAGRAM_SEAL_BYTES, "the limit counts every byte of the seal");
_Static_assert(crypto_aead_xchacha20poly1305_ietf_NPUBBYTES == NONCE_BYTES, "start, salt and sequence fill a nonce");

#define PEERS_DEFAULT 4096
#define BUCKETS 4096
#define WINDOW 1024 /* sequences that may arrive late */
#define CONTACTS 64
#define ASK_PAUSE_NS (100 * SHOAL_MS)
#define ASK_AGAIN_NS SHOAL_S /* another node may have come to the address */
#define NOTE_PAUSE_NS (10 * SHOAL_S)

/* A node whose key is known. */
struct known {
    struct known *next_in_bucket;
    struct known *newer, *older; /* by use */
    struct shoal_node_id node;
    struct shoal_public_key key;
    uint8_t send_key[32], receive_key[32];
    uint64_t start, salt; /* of the sender's current life; 0: not heard */
    uint64_t newest;      /* highest sequence seen */
    uint64_t seen[WINDOW / 64];
};

/* The node that answered at an address: for datagrams to "whoever is there". */
struct contact {
    struct shoal_address address;
    struct shoal_node_id node; /* zero: asked, no answer yet */
    uint64_t asked_ns;
};

struct shoal_datagram {
    uv_udp_t udp;
    struct shoal_identity identity;
    struct shoal_datagram_handlers handlers;
    uint8_t static_secret[32];
    struct shoal_secret pair_secret, mesh_key;
    uint64_t start, salt, sequence;
    uint16_t port;
    unsigned peers_max, peers_count;
    struct known *buckets[BUCKETS];
    struct known *newest, *oldest;
    struct contact contacts[CONTACTS];
    unsigned contact_next;
    uint64_t second_started_ns;
    unsigned unknown_in_second;
    uint64_t noted_ns;
    bool stopping;
    void (*stopped)(void *arg);
    void *stopped_arg;
    struct shoal_datagram_stats stats;
    uint8_t input[SHOAL_DATAGRAM_BYTES_MAX + 1]; /* one more, so that a longer one is seen to be longer */
    uint8_t plain[SHOAL_DATAGRAM_BYTES_MAX];
};

/* ---- keys ---- */

static void pair_key(const struct shoal_datagram *d, const uint8_t shared[32], const struct shoal_public_key *from,
                     const struct shoal_public_key *to, uint8_t key[32])
{
    crypto_generichash_blake2b_state state;
    int failed = crypto_generichash_blake2b_init(&state, d->pair_secret.bytes, 32, 32);

    SHOAL_ASSERT(failed == 0);
    failed = crypto_generichash_blake2b_update(&state, shared, 32);
    SHOAL_ASSERT(failed == 0);
    failed = crypto_generichash_blake2b_update(&state, from->bytes, 32);
    SHOAL_ASSERT(failed == 0);
    failed = crypto_generichash_blake2b_update(&state, to->bytes, 32);
    SHOAL_ASSERT(failed == 0);
    failed = crypto_generichash_blake2b_final(&state, key, 32);
    SHOAL_ASSERT(failed == 0);
}

/* I1. DENIED: not a key of the curve's main subgroup. */
static enum shoal_err known_init(struct shoal_datagram *d, const struct shoal_public_key *key, struct known *known)
{
    uint8_t theirs[32], shared[32];

    if (shoal_noise_public_of(key, theirs) != SHOAL_OK || crypto_scalarmult(shared, d->static_secret, theirs) != 0)
        return SHOAL_ERR_DENIED;
    *known = (struct known){ .node = shoal_node_id_of(key), .key = *key };
    pair_key(d, shared, &d->identity.public_key, key, known->send_key);
    pair_key(d, shared, key, &d->identity.public_key, known->receive_key);
    shoal_wipe(shared, sizeof(shared));
    d->stats.keys_derived++;
    return SHOAL_OK;
}

static struct known **bucket_of(struct shoal_datagram *d, struct shoal_node_id node)
{
    return &d->buckets[(node.bytes[0] | (unsigned)node.bytes[1] << 8) % BUCKETS];
}

static void use_unlink(struct shoal_datagram *d, struct known *known)
{
    *(known->newer != NULL ? &known->newer->older : &d->newest) = known->older;
    *(known->older != NULL ? &known->older->newer : &d->oldest) = known->newer;
    known->newer = NULL;
    known->older = NULL;
}

static void use_link(struct shoal_datagram *d, struct known *known)
{
    known->older = d->newest;
    if (d->newest != NULL)
        d->newest->newer = known;
    else
        d->oldest = known;
    d->newest = known;
}

static struct known *known_find(struct shoal_datagram *d, struct shoal_node_id node)
{
    struct known *known = *bucket_of(d, node);

    while (known != NULL && !shoal_node_id_equal(known->node, node))
        known = known->next_in_bucket;
    if (known != NULL && d->newest != known) {
        use_unlink(d, known);
        use_link(d, known);
    }
    return known;
}

static void known_forget(struct shoal_datagram *d, struct known *known)
{
    struct known **at = bucket_of(d, known->node);

    while (*at != known)
        at = &(*at)->next_in_bucket;
    *at = known->next_in_bucket;
    use_unlink(d, known);
    d->peers_count--;
    shoal_wipe(known, sizeof(*known));
    free(known);
}

/* Keep a copy. NULL: no memory. */
static struct known *known_keep(struct shoal_datagram *d, const struct known *from)
{
    struct known *known;
    struct known **bucket = bucket_of(d, from->node);

    if (d->peers_count == d->peers_max) {
        known_forget(d, d->oldest);
        d->stats.keys_forgotten++;
    }
    known = malloc(sizeof(*known));
    if (known == NULL)
        return NULL;
    *known = *from;
    known->newer = NULL;
    known->next_in_bucket = *bucket;
    *bucket = known;
    use_link(d, known);
    d->peers_count++;
    return known;
}

enum shoal_err shoal_datagram_learn(struct shoal_datagram *d, const struct shoal_public_key *key)
{
    struct known known;
    enum shoal_err err;

    if (known_find(d, shoal_node_id_of(key)) != NULL)
        return SHOAL_OK;
    err = known_init(d, key, &known);
    if (err == SHOAL_OK && known_keep(d, &known) == NULL)
        err = SHOAL_ERR_FULL;
    shoal_wipe(&known, sizeof(known));
    return err;
}

bool shoal_datagram_knows(const struct shoal_datagram *d, struct shoal_node_id node)
{
    const struct known *known = d->buckets[(node.bytes[0] | (unsigned)node.bytes[1] << 8) % BUCKETS];

    while (known != NULL && !shoal_node_id_equal(known->node, node))
        known = known->next_in_bucket;
    return known != NULL;
}

/* Deriving a stranger's key costs 50 us: so many in a second, and no more. */
static bool stranger_allowed(struct shoal_datagram *d)
{
    uint64_t now_ns = uv_hrtime();

    if (now_ns - d->second_started_ns >= SHOAL_S) {
        d->second_started_ns = now_ns;
        d->unknown_in_second = 0;
    }
    return d->unknown_in_second++ < SHOAL_DATAGRAM_UNKNOWN_PER_S;
}

/* ---- sending ---- */

static enum shoal_err transmit(struct shoal_datagram *d, struct shoal_address address, uint8_t *bytes, size_t len)
{
    struct sockaddr_storage to;
    uv_buf_t buf = uv_buf_init((char *)bytes, (unsigned)len);

    if (d->stopping)
        return SHOAL_ERR_FULL;
    shoal_address_to_sockaddr(address, &to);
    if (uv_udp_try_send(&d->udp, &buf, 1, (const struct sockaddr *)&to) < 0) {
        d->stats.drop_unsent++;
        return SHOAL_ERR_FULL;
    }
    d->stats.out++;
    d->stats.bytes_out += len;
    return SHOAL_OK;
}

static void put_data_nonce(struct shoal_writer *w, uint64_t start, uint64_t salt, uint64_t sequence)
{
    shoal_put_u64(w, start);
    shoal_put_u64(w, salt);
    shoal_put_u64(w, sequence);
}

static enum shoal_err send_data(struct shoal_datagram *d, struct known *to, struct shoal_address address,
                                struct shoal_view payload)
{
    uint8_t bytes[SHOAL_DATAGRAM_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    unsigned long long sealed;
    int failed;

    format_put_header(&w, FORMAT_DATAGRAM, VERSION, 1);
    shoal_put_u8(&w, 0);
    shoal_put_raw(&w, d->identity.public_key.bytes, 32);
    put_data_nonce(&w, d->start, d->salt, ++d->sequence);
    SHOAL_ASSERT(!w.failed && w.len == DATA_HEAD_BYTES);
    failed = crypto_aead_xchacha20poly1305_ietf_encrypt(bytes + DATA_HEAD_BYTES, &sealed, payload.bytes, payload.len,
                                                        bytes, DATA_HEAD_BYTES, NULL,
                                                        bytes + DATA_HEAD_BYTES - NONCE_BYTES, to->send_key);
    SHOAL_ASSERT(failed == 0);
    return transmit(d, address, bytes, DATA_HEAD_BYTES + (size_t)sealed);
}

static void send_who(struct shoal_datagram *d, enum format_kind kind, struct shoal_address address,
                     struct shoal_node_id about)
{
    uint8_t bytes[WHO_BYTES];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    uint8_t nonce[NONCE_BYTES];
    unsigned long long sealed;
    int failed;

    shoal_random(nonce, sizeof(nonce));
    format_put_header(&w, kind, VERSION, 1);
    shoal_put_u8(&w, 0);
    shoal_put_raw(&w, d->identity.public_key.bytes, 32);
    shoal_put_raw(&w, nonce, sizeof(nonce));
    SHOAL_ASSERT(!w.failed && w.len == WHO_HEAD_BYTES);
    failed =
        crypto_aead_xchacha20poly1305_ietf_encrypt(bytes + WHO_HEAD_BYTES, &sealed, about.bytes, sizeof(about.bytes),
                                                   bytes, WHO_HEAD_BYTES, NULL, nonce, d->mesh_key.bytes);
    SHOAL_ASSERT(failed == 0);
    if (transmit(d, address, bytes, sizeof(bytes)) == SHOAL_OK && kind == FORMAT_WHO)
        d->stats.keys_asked++;
}

static struct contact *contact_find(struct shoal_datagram *d, struct shoal_address address)
{
    for (unsigned i = 0; i < CONTACTS; i++)
        if (shoal_address_equal(d->contacts[i].address, address))
            return &d->contacts[i];
    return NULL;
}

/* Ask who is at the address, unless that was just asked. */
static void ask(struct shoal_datagram *d, struct shoal_address address, struct shoal_node_id node)
{
    struct contact *contact = contact_find(d, address);
    uint64_t now_ns = uv_hrtime();

    if (contact == NULL) {
        contact = &d->contacts[d->contact_next++ % CONTACTS];
        *contact = (struct contact){ .address = address };
    } else if (now_ns - contact->asked_ns < ASK_PAUSE_NS) {
        return;
    }
    contact->asked_ns = now_ns;
    send_who(d, FORMAT_WHO, address, node);
}

enum shoal_err shoal_datagram_send(struct shoal_datagram *d, struct shoal_node_id to, struct shoal_address address,
                                   struct shoal_view payload)
{
    struct known *known;

    if (payload.len > SHOAL_DATAGRAM_PAYLOAD_MAX)
        return SHOAL_ERR_TOO_BIG;
    if (shoal_node_id_is_zero(to)) {
        const struct contact *contact = contact_find(d, address);

        if (contact != NULL)
            to = contact->node;
        if (contact != NULL && uv_hrtime() - contact->asked_ns >= ASK_AGAIN_NS)
            ask(d, address, to);
    }
    known = known_find(d, to);
    if (known != NULL)
        return send_data(d, known, address, payload);
    ask(d, address, to);
    return SHOAL_ERR_NOT_FOUND;
}

/* ---- receiving ---- */

static void note_unopened(struct shoal_datagram *d, struct shoal_address from)
{
    char line[400], where[SHOAL_ADDRESS_TEXT_BYTES];
    uint64_t now_ns = uv_hrtime();

    d->stats.drop_unopened++;
    if (d->handlers.on_note == NULL || (d->noted_ns != 0 && now_ns - d->noted_ns < NOTE_PAUSE_NS))
        return;
    d->noted_ns = now_ns;
    shoal_address_text(from, where);
    (void)snprintf(
        line, sizeof(line),
        "datagrams from %s do not open (%llu so far): it has another mesh secret, or sends to a node that was "
        "here before; join it again with this mesh's key",
        where, (unsigned long long)d->stats.drop_unopened);
    d->handlers.on_note(d->handlers.arg, line);
}

/* One start has one salt, so a second one is of a folder that was put back to where it had been, or of a copy. A replay of
 * what this node has said cannot look like it. */
static void note_twin(struct shoal_datagram *d, struct shoal_address from)
{
    char at[SHOAL_ADDRESS_TEXT_BYTES], line[320];
    uint64_t now_ns = uv_hrtime();

    if (d->handlers.on_note == NULL || (d->noted_ns != 0 && now_ns - d->noted_ns < NOTE_PAUSE_NS))
        return;
    d->noted_ns = now_ns;
    shoal_address_text(from, at);
    (void)snprintf(line, sizeof(line),
                   "what %s sends is dropped: its agent has made this very start before, so its data folder was put back from a "
                   "backup, or is there twice; remove that folder and join anew",
                   at);
    d->handlers.on_note(d->handlers.arg, line);
}

/* I3: true when (start, sequence) is new; then it is not any more. */
static bool window_take(struct shoal_datagram *d, struct known *known, uint64_t start, uint64_t salt, uint64_t sequence)
{
    if (start < known->start || (start == known->start && salt != known->salt)) {
        d->stats.drop_stale++;
        return false;
    }
    if (start > known->start) {
        known->start = start;
        known->salt = salt;
        known->newest = sequence;
        memset(known->seen, 0, sizeof(known->seen));
        known->seen[sequence % WINDOW / 64] |= 1ull << sequence % 64;
        return true;
    }
    if (sequence + WINDOW <= known->newest && known->newest >= WINDOW) {
        d->stats.drop_replayed++;
        return false;
    }
    if (sequence > known->newest) {
        uint64_t steps = sequence - known->newest < WINDOW ? sequence - known->newest : WINDOW;

        for (uint64_t i = 1; i <= steps; i++)
            known->seen[(known->newest + i) % WINDOW / 64] &= ~(1ull << (known->newest + i) % 64);
        known->newest = sequence;
    } else if (known->seen[sequence % WINDOW / 64] >> sequence % 64 & 1) {
        d->stats.drop_replayed++;
        return false;
    }
    known->seen[sequence % WINDOW / 64] |= 1ull << sequence % 64;
    return true;
}

static bool open_data(const struct known *known, struct shoal_view bytes, uint8_t *plain)
{
    return crypto_aead_xchacha20poly1305_ietf_decrypt(
               plain, NULL, NULL, bytes.bytes + DATA_HEAD_BYTES, bytes.len - DATA_HEAD_BYTES, bytes.bytes,
               DATA_HEAD_BYTES, bytes.bytes + DATA_HEAD_BYTES - NONCE_BYTES, known->receive_key) == 0;
}

static void receive_data(struct shoal_datagram *d, struct shoal_address from, struct shoal_view bytes,
                         const struct shoal_public_key *key, struct shoal_reader *r)
{
    uint64_t start = shoal_get_u64(r), salt = shoal_get_u64(r), sequence = shoal_get_u64(r);
    struct known *known = known_find(d, shoal_node_id_of(key));
    struct known stranger;

    if (r->failed || shoal_reader_left(r) < TAG_BYTES) {
        d->stats.drop_malformed++;
        return;
    }
    if (known == NULL) {
        if (!stranger_allowed(d)) {
            d->stats.drop_busy++;
            return;
        }
        if (known_init(d, key, &stranger) != SHOAL_OK || !open_data(&stranger, bytes, d->plain)) {
            note_unopened(d, from);
            return;
        }
        known = known_keep(d, &stranger); /* I2 */
        shoal_wipe(&stranger, sizeof(stranger));
        if (known == NULL)
            return;
    } else if (!open_data(known, bytes, d->plain)) {
        note_unopened(d, from);
        return;
    }
    if (start == known->start && salt != known->salt)
        note_twin(d, from);
    if (!window_take(d, known, start, salt, sequence))
        return;
    d->handlers.on_datagram(d->handlers.arg, known->node, from,
                            shoal_view_of(d->plain, bytes.len - DATA_HEAD_BYTES - TAG_BYTES));
}

static void receive_who(struct shoal_datagram *d, struct shoal_address from, struct shoal_view bytes,
                        const struct shoal_public_key *key, bool is_question)
{
    struct shoal_node_id about;
    struct contact *contact;

    if (bytes.len != WHO_BYTES) {
        d->stats.drop_malformed++;
        return;
    }
    if (crypto_aead_xchacha20poly1305_ietf_decrypt(
            about.bytes, NULL, NULL, bytes.bytes + WHO_HEAD_BYTES, bytes.len - WHO_HEAD_BYTES, bytes.bytes,
            WHO_HEAD_BYTES, bytes.bytes + WHO_HEAD_BYTES - NONCE_BYTES, d->mesh_key.bytes) != 0) {
        note_unopened(d, from);
        return;
    }
    if (is_question) {
        send_who(d, FORMAT_IAM, from, shoal_node_id_of(key));
        return;
    }
    contact = contact_find(d, from);
    if (contact == NULL || !shoal_node_id_equal(about, d->identity.node)) {
        d->stats.drop_replayed++; /* nobody asked */
        return;
    }
    if (!stranger_allowed(d) || shoal_datagram_learn(d, key) != SHOAL_OK)
        return;
    contact->node = shoal_node_id_of(key);
}

void shoal_datagram_receive(struct shoal_datagram *d, struct shoal_address from, struct shoal_view bytes)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    uint8_t kind = bytes.len > 0 ? bytes.bytes[0] : 0;
    struct shoal_public_key key;

    d->stats.in++;
    d->stats.bytes_in += bytes.len;
    if (bytes.len > SHOAL_DATAGRAM_BYTES_MAX || (kind != FORMAT_DATAGRAM && kind != FORMAT_WHO && kind != FORMAT_IAM)) {
        d->stats.drop_malformed++;
        return;
    }
    (void)format_get_header(&r, (enum format_kind)kind, VERSION);
    (void)shoal_get_u8(&r);
    shoal_get_raw(&r, key.bytes, sizeof(key.bytes));
    if (r.failed || shoal_secret_equal(&key, &d->identity.public_key, sizeof(key))) {
        d->stats.drop_malformed++;
        return;
    }
    if (kind == FORMAT_DATAGRAM)
        receive_data(d, from, bytes, &key, &r);
    else
        receive_who(d, from, bytes, &key, kind == FORMAT_WHO);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct shoal_datagram *d = handle->data;

    (void)suggested;
    *buf = uv_buf_init((char *)d->input, sizeof(d->input));
}

static void on_receive(uv_udp_t *udp, ssize_t got, const uv_buf_t *buf, const struct sockaddr *from, unsigned flags)
{
    struct shoal_datagram *d = udp->data;
    struct shoal_address address;

    if (got < 0 || from == NULL || d->stopping)
        return; /* libuv says "no more for now", or an error of the host's that the next datagram will not have */
    if ((flags & UV_UDP_PARTIAL) != 0 || shoal_address_of_sockaddr(from, &address) != SHOAL_OK) {
        d->stats.drop_malformed++;
        return;
    }
    shoal_datagram_receive(d, address, shoal_view_of(buf->base, (size_t)got));
}

/* ---- start and stop ---- */

static void on_close(uv_handle_t *handle)
{
    struct shoal_datagram *d = handle->data;
    void (*stopped)(void *arg) = d->stopped;
    void *arg = d->stopped_arg;

    for (struct known *known = d->oldest, *next; known != NULL; known = next) {
        next = known->newer;
        known_forget(d, known);
    }
    shoal_wipe(d, sizeof(*d));
    free(d);
    if (stopped != NULL)
        stopped(arg);
}

void shoal_datagram_stop(struct shoal_datagram *d, void (*stopped)(void *arg), void *arg)
{
    SHOAL_ASSERT(!d->stopping);
    d->stopping = true;
    d->stopped = stopped;
    d->stopped_arg = arg;
    uv_close((uv_handle_t *)&d->udp, on_close);
}

static enum shoal_err socket_start(struct shoal_datagram *d, struct shoal_address listen, struct shoal_msg *msg)
{
    struct sockaddr_storage at;
    struct shoal_address bound;
    char text[SHOAL_ADDRESS_TEXT_BYTES];
    int len = sizeof(at);
    int rc;

    shoal_address_text(listen, text);
    shoal_address_to_sockaddr(listen, &at);
    rc = uv_udp_bind(&d->udp, (const struct sockaddr *)&at, 0);
    if (rc == 0)
        rc = uv_udp_recv_start(&d->udp, on_alloc, on_receive);
    if (rc == 0)
        rc = uv_udp_getsockname(&d->udp, (struct sockaddr *)&at, &len);
    if (rc != 0)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "cannot bind %s (UDP): %s; %s", text, uv_strerror(rc),
                          shoal_address_remedy(-rc));
    if (shoal_address_of_sockaddr((const struct sockaddr *)&at, &bound) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "binding %s gave no IP address", text);
    d->port = bound.port;
    return SHOAL_OK;
}

enum shoal_err shoal_datagram_create(struct shoal_datagram **datagram, const struct shoal_datagram_options *options,
                                     struct shoal_msg *msg)
{
    struct shoal_datagram *d = calloc(1, sizeof(*d));
    enum shoal_err err;
    int rc;

    if (d == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for datagrams");
    d->identity = *options->identity;
    d->handlers = options->handlers;
    d->peers_max = options->peers_max == 0 ? PEERS_DEFAULT : options->peers_max;
    shoal_noise_secret_of(&d->identity.secret_key, d->static_secret);
    d->pair_secret = shoal_secret_derive(&d->identity.mesh_secret, "shoal datagram pair");
    d->mesh_key = shoal_secret_derive(&d->identity.mesh_secret, "shoal datagram who");
    d->start = (uint64_t)d->identity.incarnation.host_epoch << 32 | d->identity.incarnation.agent;
    SHOAL_ASSERT(d->start > 0); /* the folder was loaded with a raise */
    shoal_random(&d->salt, sizeof(d->salt));
    rc = uv_udp_init(options->loop, &d->udp);
    SHOAL_ASSERT(rc == 0); /* without flags it takes nothing from the system */
    d->udp.data = d;
    err = socket_start(d, options->listen, msg);
    if (err != SHOAL_OK) {
        shoal_datagram_stop(d, NULL, NULL);
        return err;
    }
    *datagram = d;
    return SHOAL_OK;
}

uint16_t shoal_datagram_port(const struct shoal_datagram *d) { return d->port; }

const struct shoal_datagram_stats *shoal_datagram_stats(const struct shoal_datagram *d) { return &d->stats; }
