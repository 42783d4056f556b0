/* One TCP connection between two agents (Noise spec, revision 34; PROTOCOLS section 9).
 *
 *   dialler                                        responder
 *     kind version oldest | len e                    -->
 *     <--   kind version oldest | len e, ee, s, es {Ed25519 key}
 *     len s, se, psk {hello}                         -->      node id, lane, session: decide
 *     <--   len {WELCOME, hello}  or  {REFUSE, why}, close
 *     len {LAST or MORE, piece of a frame}           <->
 *
 * `len` is a u16; everything behind it is one Noise message. A frame is its channel and its bytes, cut into pieces.
 *
 * I1. A connection is OPEN only when both sides proved an Ed25519 key whose X25519 form is their Noise static key, and
 *     the mesh secret: the dialler by the third message, the responder by the WELCOME, which needs it to be sealed.
 * I2. Bytes are sealed in the order in which they are sent; `writing` holds what libuv has, `out` what comes after.
 * I3. A CLOSED connection is touched by its close callback alone. */
#include "link_conn_uv.h"

#include "node/format.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/banned.h"

#define LEN_BYTES 2
#define NARROW_SEGMENT 1024   /* bytes; what Linux itself probes such a path with */
#define STALLED_RETRANSMITS 5 /* in a row: 6 s; one loss of three packets comes to it once in 200 */
#define STALLED_PROBES 6      /* in a row, 3 s: any word of the other side begins the count anew */
#define STALLED_HEARD_NS (8 * SHOAL_S)
#define PIECE_MAX (SHOAL_NOISE_PLAIN_MAX - 2) /* behind the record's kind and, in the first piece, the channel */
#define READ_BYTES (64 * SHOAL_KIB)
/* A buffer that grew beyond this for a burst is given back when it is empty. */
#define KEEP_BYTES (256 * SHOAL_KIB)
/* A handshake message with its length and the stream's header. */
#define SHAKE_BYTES_MAX 512

static void conn_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buf);
static void conn_flush(struct conn *conn);

uint64_t conn_now_ns(void) { return uv_hrtime(); }

static size_t conn_queue_max(enum shoal_lane lane)
{
    return lane == SHOAL_LANE_CONTROL ? SHOAL_LINK_CONTROL_QUEUE_MAX : SHOAL_LINK_BULK_QUEUE_MAX;
}

struct conn *conn_create(struct shoal_link *link, bool dialled)
{
    struct conn *conn = calloc(1, sizeof(*conn));

    if (conn == NULL)
        return NULL;
    if (uv_tcp_init(link->loop, &conn->tcp) != 0) {
        free(conn);
        return NULL;
    }
    link->handles_open++;
    conn->tcp.data = conn;
    conn->link = link;
    conn->dialled = dialled;
    conn->started_ns = conn_now_ns();
    conn->heard_ns = conn->started_ns;
    conn->next = link->conns;
    conn->at = &link->conns;
    if (link->conns != NULL)
        link->conns->at = &conn->next;
    link->conns = conn;
    link->stats.handshakes_open++;
    return conn;
}

static void on_close(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    struct shoal_link *link = conn->link;

    shoal_noise_destroy(conn->noise);
    shoal_buf_deinit(&conn->in);
    shoal_buf_deinit(&conn->frame);
    shoal_buf_deinit(&conn->out);
    shoal_buf_deinit(&conn->writing);
    free(conn);
    link_on_closed(link);
}

/* Take it from the list of what is due. True: it was in it. */
static bool due_remove(struct conn *conn)
{
    struct conn **at = &conn->link->due;

    if (!conn->is_due)
        return false;
    while (*at != conn) {
        SHOAL_ASSERT(*at != NULL); /* is_due says that it is in the list */
        at = &(*at)->next_due;
    }
    *at = conn->next_due;
    conn->is_due = false;
    return true;
}

void conn_close(struct conn *conn)
{
    SHOAL_ASSERT(conn->state != CONN_CLOSED);
    if (due_remove(conn))
        conn_flush(conn); /* what was sent before the close reaches the kernel first */
    if (conn->state != CONN_OPEN)
        conn->link->stats.handshakes_open--;
    conn->state = CONN_CLOSED;
    conn->peer = NULL;
    *conn->at = conn->next;
    if (conn->next != NULL)
        conn->next->at = conn->at;
    uv_close((uv_handle_t *)&conn->tcp, on_close);
}

/* ---- writing ---- */

static void buf_empty(struct shoal_buf *buf)
{
    buf->len = 0;
    if (buf->cap > KEEP_BYTES)
        shoal_buf_deinit(buf);
}

static void on_write(uv_write_t *write, int status)
{
    struct conn *conn = write->data;
    size_t waiting;

    conn->is_writing = false;
    buf_empty(&conn->writing);
    if (conn->state == CONN_CLOSED)
        return;
    if (status < 0) {
        link_on_broken(conn, SHOAL_ERR_UNREACHABLE, false, uv_strerror(status));
        return;
    }
    conn_flush(conn);
    if (conn->state == CONN_CLOSED)
        return;
    waiting = conn->out.len + conn->writing.len;
    if (conn->was_full && waiting <= conn_queue_max(conn->lane) / 2) {
        conn->was_full = false;
        link_on_writable(conn);
    }
}

static void conn_flush(struct conn *conn)
{
    struct shoal_buf swap = conn->writing;
    uv_buf_t buf;
    int written;
    int rc;

    if (conn->is_writing || conn->out.len == 0)
        return;
    conn->writing = conn->out;
    conn->out = swap;
    conn->out.len = 0;
    conn->link->stats.bytes_out += conn->writing.len;
    conn->unsure = true;
    conn->link->stats.writes++;
    buf = uv_buf_init((char *)conn->writing.bytes, (unsigned)conn->writing.len);
    /* Most often all of it fits, and who is not waited for needs no callback, which would cost the loop a turn. */
    written = conn->was_full ? 0 : uv_try_write((uv_stream_t *)&conn->tcp, &buf, 1);
    if (written == (int)conn->writing.len) {
        buf_empty(&conn->writing);
        return;
    }
    if (written > 0)
        buf = uv_buf_init(buf.base + written, (unsigned)(buf.len - (size_t)written));
    conn->write.data = conn;
    conn->is_writing = true;
    rc = uv_write(&conn->write, (uv_stream_t *)&conn->tcp, &buf, 1, on_write);
    /* A broken stream tells its reader too; what is broken there is closed there, on its own turn. */
    if (rc != 0)
        conn->is_writing = false;
}

static void on_writer(uv_prepare_t *writer)
{
    struct shoal_link *link = writer->data;
    struct conn *due = link->due;

    link->due = NULL;
    (void)uv_prepare_stop(writer);
    while (due != NULL) {
        struct conn *conn = due;

        due = conn->next_due;
        conn->is_due = false;
        conn_flush(conn); /* calls nobody: what breaks is told later, by on_write or the reader */
    }
}

/* Write before the loop waits again: one turn's frames to a peer are one system call, and none of them waits for it. */
static void conn_flush_soon(struct conn *conn)
{
    int rc;

    if (conn->is_due || conn->is_writing)
        return;
    conn->is_due = true;
    conn->next_due = conn->link->due;
    conn->link->due = conn;
    rc = uv_prepare_start(&conn->link->writer, on_writer);
    SHOAL_ASSERT(rc == 0); /* fails only without a callback */
}

/* One sealed message, a kind and up to two parts, appended to `out`. */
static enum shoal_err seal_record(struct conn *conn, enum link_record kind, struct shoal_view head,
                                  struct shoal_view body)
{
    size_t len = 1 + head.len + body.len;
    size_t sealed = len + SHOAL_NOISE_TAG_BYTES;
    enum shoal_err err = shoal_buf_reserve(&conn->out, LEN_BYTES + sealed);
    uint8_t *at;

    if (err != SHOAL_OK)
        return err;
    SHOAL_ASSERT(len <= SHOAL_NOISE_PLAIN_MAX);
    at = conn->out.bytes + conn->out.len;
    at[0] = (uint8_t)sealed;
    at[1] = (uint8_t)(sealed >> 8);
    at += LEN_BYTES;
    at[0] = (uint8_t)kind;
    if (head.len > 0)
        memcpy(at + 1, head.bytes, head.len);
    if (body.len > 0)
        memcpy(at + 1 + head.len, body.bytes, body.len);
    err = shoal_noise_seal(conn->noise, shoal_view_of(at, len), at);
    if (err == SHOAL_OK)
        conn->out.len += LEN_BYTES + sealed;
    return err;
}

enum shoal_err conn_send(struct conn *conn, uint8_t channel, struct shoal_view start, struct shoal_view rest)
{
    size_t bytes = start.len + rest.len;
    size_t cost = 1 + bytes + (bytes / PIECE_MAX + 1) * (LEN_BYTES + 1 + SHOAL_NOISE_TAG_BYTES);
    uint8_t head[1 + SHOAL_LINK_START_MAX] = { channel };
    size_t head_len = 1 + start.len;
    enum shoal_err err = SHOAL_OK;
    bool last;

    SHOAL_ASSERT(conn->state == CONN_OPEN);
    SHOAL_ASSERT(start.len <= SHOAL_LINK_START_MAX);
    if (conn->out.len + conn->writing.len + cost > conn_queue_max(conn->lane)) {
        conn->was_full = true;
        conn->link->stats.send_full++;
        return SHOAL_ERR_FULL;
    }
    err = shoal_buf_reserve(&conn->out, cost); /* so that a frame is sent whole or not at all */
    if (err != SHOAL_OK)
        return err;
    if (start.len > 0)
        memcpy(head + 1, start.bytes, start.len);
    do { /* the first piece has the channel beyond PIECE_MAX */
        size_t room = PIECE_MAX - (head_len > 0 ? head_len - 1 : 0);
        size_t piece = rest.len < room ? rest.len : room;

        last = piece == rest.len;
        err = seal_record(conn, last ? LINK_RECORD_LAST : LINK_RECORD_MORE, shoal_view_of(head, head_len),
                          shoal_view_of(rest.bytes, piece));
        if (err != SHOAL_OK)
            return err;
        head_len = 0;
        rest.bytes = last ? rest.bytes : rest.bytes + piece;
        rest.len -= piece;
    } while (!last);
    conn->link->stats.frames_out++;
    conn_flush_soon(conn);
    return SHOAL_OK;
}

void conn_ping(struct conn *conn)
{
    conn->pinged_ns = conn_now_ns();
    if (seal_record(conn, LINK_RECORD_PING, (struct shoal_view){ 0 }, (struct shoal_view){ 0 }) == SHOAL_OK)
        conn_flush(conn);
}

/* ---- handshake ---- */

static enum shoal_err noise_start(struct conn *conn, const uint8_t preamble[3])
{
    uint8_t prologue[16];
    struct shoal_writer w = shoal_writer_init(prologue, sizeof(prologue));
    struct shoal_noise_options options = { .initiator = conn->dialled };
    enum shoal_err err;

    shoal_put_raw(&w, "shoal link", 10);
    shoal_put_raw(&w, preamble, FORMAT_HEADER_BYTES);
    options.prologue = shoal_writer_view(&w);
    memcpy(options.static_secret, conn->link->static_secret, sizeof(options.static_secret));
    memcpy(options.psk, conn->link->psk, sizeof(options.psk));
    err = shoal_noise_create(&conn->noise, &options);
    shoal_wipe(&options, sizeof(options));
    return err;
}

static enum shoal_err write_shake(struct conn *conn, struct shoal_view payload)
{
    uint8_t message[SHAKE_BYTES_MAX];
    uint8_t len_bytes[LEN_BYTES];
    size_t len;
    enum shoal_err err = shoal_noise_write(conn->noise, payload, message, sizeof(message), &len);

    if (err != SHOAL_OK)
        return err;
    len_bytes[0] = (uint8_t)len;
    len_bytes[1] = (uint8_t)(len >> 8);
    err = shoal_buf_append(&conn->out, len_bytes, sizeof(len_bytes));
    if (err == SHOAL_OK)
        err = shoal_buf_append(&conn->out, message, len);
    conn->shaken++;
    if (err == SHOAL_OK)
        conn_flush(conn);
    return err;
}

static enum shoal_err write_preamble(struct conn *conn)
{
    uint8_t preamble[FORMAT_HEADER_BYTES];

    link_stream_encode(preamble);
    return shoal_buf_append(&conn->out, preamble, sizeof(preamble));
}

static struct link_hello own_hello(const struct conn *conn)
{
    const struct shoal_link *link = conn->link;

    return (struct link_hello){ .key = link->identity.public_key,
                                .lane = conn->lane,
                                .session = conn->session,
                                .store = link->identity.store,
                                .incarnation = link->identity.incarnation,
                                .listen_port = link->port };
}

/* I1: the key must be the one that Noise has authenticated. */
static bool key_is_proven(struct conn *conn, const struct shoal_public_key *key)
{
    uint8_t proven[32], said[32];

    shoal_noise_remote_static(conn->noise, proven);
    if (shoal_noise_public_of(key, said) != SHOAL_OK || !shoal_secret_equal(proven, said, sizeof(said)))
        return false;
    conn->hello.key = *key;
    conn->node = shoal_node_id_of(key);
    return true;
}

static void shake_broken(struct conn *conn, const char *text)
{
    conn->link->stats.drop_malformed++;
    link_on_broken(conn, SHOAL_ERR_MALFORMED, false, text);
}

static void answer_first(struct conn *conn)
{
    enum shoal_err err = write_preamble(conn);

    if (err == SHOAL_OK)
        err = write_shake(conn, shoal_view_of(conn->link->identity.public_key.bytes, 32));
    if (err != SHOAL_OK)
        link_on_broken(conn, err, false, "no memory for a handshake");
}

static void answer_second(struct conn *conn, struct shoal_view payload)
{
    struct shoal_public_key key;
    uint8_t hello_bytes[LINK_HELLO_BYTES_MAX];
    struct link_hello hello;

    if (payload.len != sizeof(key.bytes)) {
        shake_broken(conn, "the handshake's second message has another size");
        return;
    }
    memcpy(key.bytes, payload.bytes, sizeof(key.bytes));
    if (!key_is_proven(conn, &key)) {
        conn->link->stats.drop_refused++;
        link_on_broken(conn, SHOAL_ERR_DENIED, false, "the node there shows a key that is not its own");
        return;
    }
    link_on_key(conn);
    if (conn->state == CONN_CLOSED)
        return;
    hello = own_hello(conn);
    if (write_shake(conn, shoal_view_of(hello_bytes, link_hello_encode(&hello, hello_bytes))) != SHOAL_OK)
        link_on_broken(conn, SHOAL_ERR_FULL, false, "no memory for a handshake");
}

static void answer_third(struct conn *conn, struct shoal_view payload)
{
    struct link_hello hello;

    if (link_hello_decode(payload, &hello) != SHOAL_OK) {
        shake_broken(conn, "the hello does not decode; is one of the two agents too old?");
        return;
    }
    if (!key_is_proven(conn, &hello.key)) {
        conn->link->stats.drop_refused++;
        link_on_broken(conn, SHOAL_ERR_DENIED, false, "the node there shows a key that is not its own");
        return;
    }
    conn->hello = hello;
    conn->lane = hello.lane;
    conn->session = hello.session;
    link_on_hello(conn);
}

static void read_shake(struct conn *conn, struct shoal_view message)
{
    uint8_t payload[SHAKE_BYTES_MAX];
    size_t len;
    enum shoal_err err = shoal_noise_read(conn->noise, message, payload, sizeof(payload), &len);

    if (err != SHOAL_OK && conn->shaken == 2) {
        conn->link->stats.drop_refused++;
        link_on_broken(conn, SHOAL_ERR_DENIED, false, "it has another mesh secret; join it with this mesh's key");
        return;
    }
    if (err != SHOAL_OK) {
        shake_broken(conn, "a handshake message does not authenticate");
        return;
    }
    conn->shaken++;
    if (conn->shaken == 1)
        answer_first(conn);
    else if (conn->shaken == 2)
        answer_second(conn, shoal_view_of(payload, len));
    else
        answer_third(conn, shoal_view_of(payload, len));
}

static void open_now(struct conn *conn)
{
    conn->state = CONN_OPEN;
    conn->opened_ns = conn_now_ns();
    conn->link->stats.handshakes_open--;
}

void conn_welcome(struct conn *conn)
{
    struct link_hello hello = own_hello(conn);
    uint8_t bytes[LINK_HELLO_BYTES_MAX];
    struct shoal_view body = shoal_view_of(bytes, link_hello_encode(&hello, bytes));

    open_now(conn);
    /* Without memory the dialler runs into its timeout; nothing else depends on this message. */
    if (seal_record(conn, LINK_RECORD_WELCOME, (struct shoal_view){ 0 }, body) == SHOAL_OK)
        conn_flush(conn);
}

static void on_refuse_written(uv_write_t *write, int status)
{
    struct conn *conn = write->data;

    (void)status;
    if (conn->state != CONN_CLOSED)
        conn_close(conn);
}

void conn_refuse(struct conn *conn, enum link_refusal why)
{
    uint8_t code = (uint8_t)why;
    uv_buf_t buf;

    conn->peer = NULL;
    conn->ending = true;
    (void)uv_read_stop((uv_stream_t *)&conn->tcp);
    if (conn->is_writing || conn->out.len > 0 ||
        seal_record(conn, LINK_RECORD_REFUSE, shoal_view_of(&code, 1), (struct shoal_view){ 0 }) != SHOAL_OK) {
        conn_close(conn);
        return;
    }
    buf = uv_buf_init((char *)conn->out.bytes, (unsigned)conn->out.len);
    conn->write.data = conn;
    if (uv_write(&conn->write, (uv_stream_t *)&conn->tcp, &buf, 1, on_refuse_written) != 0)
        conn_close(conn);
}

/* ---- records ---- */

static void read_welcome(struct conn *conn, struct shoal_view body)
{
    struct link_hello hello;

    if (link_hello_decode(body, &hello) != SHOAL_OK ||
        !shoal_secret_equal(&hello.key, &conn->hello.key, sizeof(hello.key))) {
        shake_broken(conn, "the welcome does not decode; is one of the two agents too old?");
        return;
    }
    conn->hello = hello;
    open_now(conn);
    link_on_open(conn);
}

static void read_piece(struct conn *conn, struct shoal_view piece, bool last)
{
    struct shoal_view frame = piece;
    bool was_cut = conn->in_frame;

    if (!conn->in_frame && last) {
        if (piece.len == 0) {
            shake_broken(conn, "a frame has no channel");
            return;
        }
    } else {
        if (conn->frame.len + piece.len > 1 + SHOAL_FRAME_BYTES_MAX || piece.len == 0) {
            shake_broken(conn, "a frame is larger than allowed");
            return;
        }
        conn->in_frame = true;
        if (shoal_buf_append(&conn->frame, piece.bytes, piece.len) != SHOAL_OK) {
            link_on_broken(conn, SHOAL_ERR_FULL, false, "no memory for a frame");
            return;
        }
        if (!last)
            return;
        frame = shoal_buf_view(&conn->frame);
    }
    conn->in_frame = false;
    conn->link->stats.frames_in++;
    link_on_frame(conn, frame.bytes[0], shoal_view_of(frame.bytes + 1, frame.len - 1));
    if (was_cut)
        buf_empty(&conn->frame); /* the connection's memory stays until its close callback, whatever the owner did */
}

static void read_record(struct conn *conn, struct shoal_view plain)
{
    struct shoal_view body = shoal_view_of(plain.bytes + 1, plain.len - (plain.len > 0));
    unsigned kind = plain.len == 0 ? LINK_RECORDS : plain.bytes[0];
    bool is_open = conn->state == CONN_OPEN;

    if (kind == LINK_RECORD_WELCOME && !is_open && conn->dialled) {
        read_welcome(conn, body);
    } else if (kind == LINK_RECORD_REFUSE && !is_open && conn->dialled && body.len == 1 &&
               body.bytes[0] < LINK_REFUSALS) {
        link_on_refused(conn, (enum link_refusal)body.bytes[0]);
    } else if ((kind == LINK_RECORD_LAST || kind == LINK_RECORD_MORE) && is_open) {
        read_piece(conn, body, kind == LINK_RECORD_LAST);
    } else if (kind == LINK_RECORD_PING && is_open) {
        /* What waits already is as good an answer: a word of life for each question of who reads none would pile up. */
        if (!conn->is_writing &&
            seal_record(conn, LINK_RECORD_PONG, (struct shoal_view){ 0 }, (struct shoal_view){ 0 }) == SHOAL_OK)
            conn_flush(conn);
    } else if (kind != LINK_RECORD_PONG || !is_open) {
        shake_broken(conn, "a message of an unknown kind");
    }
}

static void read_message(struct conn *conn, struct shoal_view message)
{
    uint8_t *plain = conn->link->plain;

    if (!shoal_noise_is_ready(conn->noise)) {
        read_shake(conn, message);
        return;
    }
    if (shoal_noise_open(conn->noise, message, plain) != SHOAL_OK) {
        conn->link->stats.drop_malformed++;
        link_on_broken(conn, SHOAL_ERR_MALFORMED, false, "a message was altered, replayed or cut short");
        return;
    }
    read_record(conn, shoal_view_of(plain, message.len - SHOAL_NOISE_TAG_BYTES));
}

/* An operator has exchanged agents that are more than a step apart: one of the two must follow. */
static void wrong_version(struct conn *conn, const uint8_t *head)
{
    char text[200];

    (void)snprintf(
        text, sizeof(text),
        "it speaks version %u of the link, readable from version %u on, and this agent speaks %u, readable from %u "
        "on; upgrade the older of the two, one version at a time",
        head[1], head[2], (unsigned)LINK_VERSION, (unsigned)LINK_OLDEST);
    conn->link->stats.drop_malformed++;
    link_on_broken(conn, SHOAL_ERR_UNSUPPORTED, false, text);
}

/* Returns how many bytes it used; 0: more are needed, or the connection is over. */
static size_t read_preamble(struct conn *conn, struct shoal_view view)
{
    enum shoal_err err;

    if (view.len < FORMAT_HEADER_BYTES)
        return 0;
    view.len = FORMAT_HEADER_BYTES;
    err = link_stream_decode(view);
    if (err == SHOAL_ERR_UNSUPPORTED)
        wrong_version(conn, view.bytes);
    else if (err != SHOAL_OK)
        shake_broken(conn, "it does not speak as an agent does; does another program listen there?");
    if (err != SHOAL_OK)
        return 0;
    conn->preamble_read = true;
    if (!conn->dialled && noise_start(conn, view.bytes) != SHOAL_OK) {
        link_on_broken(conn, SHOAL_ERR_FULL, false, "no memory for a handshake");
        return 0;
    }
    return FORMAT_HEADER_BYTES;
}

static void read_all(struct conn *conn)
{
    size_t at = 0;

    if (!conn->preamble_read)
        at = read_preamble(conn, shoal_buf_view(&conn->in));
    while (conn->state != CONN_CLOSED && conn->preamble_read && conn->in.len - at >= LEN_BYTES) {
        size_t len = conn->in.bytes[at] | (size_t)conn->in.bytes[at + 1] << 8;

        if (!shoal_noise_is_ready(conn->noise) && len > SHAKE_BYTES_MAX) {
            shake_broken(conn, "a handshake message is too long");
            return;
        }
        if (conn->in.len - at - LEN_BYTES < len)
            break;
        read_message(conn, shoal_view_of(conn->in.bytes + at + LEN_BYTES, len));
        at += LEN_BYTES + len;
        if (conn->ending)
            return;
    }
    if (conn->state == CONN_CLOSED)
        return;
    memmove(conn->in.bytes, conn->in.bytes + at, conn->in.len - at);
    conn->in.len -= at;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct conn *conn = handle->data;

    (void)suggested;
    if (shoal_buf_reserve(&conn->in, READ_BYTES) != SHOAL_OK) {
        *buf = uv_buf_init(NULL, 0); /* libuv reports ENOBUFS */
        return;
    }
    *buf = uv_buf_init((char *)conn->in.bytes + conn->in.len, (unsigned)(conn->in.cap - conn->in.len));
}

static void read_ended(struct conn *conn, ssize_t got)
{
    bool in_handshake = conn->state != CONN_OPEN;

    if (conn->in.len > 0 || conn->in_frame)
        conn->link->stats.drop_truncated++;
    if (in_handshake && conn->dialled && conn->shaken == 3)
        link_on_broken(conn, SHOAL_ERR_DENIED, false,
                       "it closed the connection when it had seen our key; has this node another mesh secret?");
    else if (in_handshake)
        link_on_broken(conn, SHOAL_ERR_UNREACHABLE, false, "it closed the connection during the handshake");
    else
        link_on_broken(conn, SHOAL_ERR_UNREACHABLE, false,
                       got == UV_EOF ? "closed by the peer" : uv_strerror((int)got));
}

static void conn_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buf)
{
    struct conn *conn = stream->data;

    (void)buf;
    if (conn->state == CONN_CLOSED || got == 0)
        return;
    if (got < 0) {
        read_ended(conn, got);
        return;
    }
    conn->heard_ns = conn_now_ns();
    conn->link->stats.bytes_in += (uint64_t)got;
    conn->in.len += (size_t)got;
    read_all(conn);
}

/* ---- opening ---- */

static enum shoal_err stream_start(struct conn *conn)
{
    conn->state = CONN_SHAKE;
    (void)uv_tcp_nodelay(&conn->tcp, 1); /* only speed depends on it */
    return uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, conn_read) == 0 ? SHOAL_OK : SHOAL_ERR_UNREACHABLE;
}

static void on_connect(uv_connect_t *connect, int status)
{
    struct conn *conn = connect->data;
    uint8_t preamble[FORMAT_HEADER_BYTES];
    enum shoal_err err;

    if (conn->state == CONN_CLOSED)
        return;
    if (status < 0) {
        link_on_broken(conn, SHOAL_ERR_UNREACHABLE, status == UV_ECONNREFUSED, uv_strerror(status));
        return;
    }
    link_stream_encode(preamble);
    err = stream_start(conn);
    if (err == SHOAL_OK)
        err = noise_start(conn, preamble);
    if (err == SHOAL_OK)
        err = write_preamble(conn);
    if (err == SHOAL_OK)
        err = write_shake(conn, (struct shoal_view){ 0 });
    if (err != SHOAL_OK)
        link_on_broken(conn, err, false, "no memory, or no socket, for a handshake");
}

/* A path may swallow large packets and say nothing (a tunnel whose router is silent); the kernel sends them for ever. The
 * one who dials says how large segments may be, its own and, in its SYN, the other's. */
static void narrow(struct conn *conn, const struct sockaddr_storage *to)
{
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int segment = NARROW_SEGMENT;

    if (fd < 0)
        return; /* dialled as it is */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
    if (uv_tcp_open(&conn->tcp, fd) != 0)
        (void)close(fd);
}

/* A connection that nothing can be learned of is taken as it is. */
bool conn_is_narrow(const struct conn *conn)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);
    uv_os_fd_t fd;

    return uv_fileno((const uv_handle_t *)&conn->tcp, &fd) != 0 ||
           getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || info.tcpi_snd_mss <= NARROW_SEGMENT;
}

/* Where the first hop drops a packet at once, as a container's own interface does, the kernel counts it as never sent: it
 * probes, twice a second. A probe that only found a full window is answered, and is not counted. */
bool conn_is_stalled(struct conn *conn, uint64_t now_ns)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);
    uv_os_fd_t fd;
    int queued = 0;

    if (conn->state != CONN_OPEN || !conn->unsure || now_ns - conn->looked_ns < SHOAL_S)
        return false;
    conn->looked_ns = now_ns;
    if (uv_fileno((const uv_handle_t *)&conn->tcp, &fd) != 0 ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || ioctl(fd, TIOCOUTQ, &queued) != 0)
        return false;
    conn->unsure = queued > 0 || conn->is_writing;
    return queued > 0 && (info.tcpi_retransmits >= STALLED_RETRANSMITS || info.tcpi_probes >= STALLED_PROBES) &&
           now_ns - conn->heard_ns < STALLED_HEARD_NS;
}

enum shoal_err conn_dial(struct conn *conn)
{
    struct sockaddr_storage to;

    shoal_address_to_sockaddr(conn->address, &to);
    if (conn->narrow)
        narrow(conn, &to);
    conn->state = CONN_CONNECT;
    conn->started_ns = conn_now_ns();
    conn->connect.data = conn;
    conn->link->stats.dials++;
    return uv_tcp_connect(&conn->connect, &conn->tcp, (const struct sockaddr *)&to, on_connect) == 0
               ? SHOAL_OK
               : SHOAL_ERR_UNREACHABLE;
}

enum shoal_err conn_accept(struct conn *conn, uv_stream_t *server)
{
    struct sockaddr_storage from;
    int len = sizeof(from);

    if (uv_accept(server, (uv_stream_t *)&conn->tcp) != 0)
        return SHOAL_ERR_UNREACHABLE;
    if (uv_tcp_getpeername(&conn->tcp, (struct sockaddr *)&from, &len) != 0 ||
        shoal_address_of_sockaddr((const struct sockaddr *)&from, &conn->address) != SHOAL_OK)
        return SHOAL_ERR_UNREACHABLE;
    return stream_start(conn);
}
