/* The messages inside a link's connections (link_conn_uv.c draws it). Pure: decoders are fuzzed. */
#ifndef NODE_LINK_WIRE_H
#define NODE_LINK_WIRE_H

#include "shoal/crypto.h"
#include "shoal/link.h"

/* Raised when agents of two versions no longer understand what lies inside frames either. 2: specifications, records and
 * what jobs say of themselves are MessagePack (decision 0013). */
#define LINK_VERSION 2
#define LINK_OLDEST 2
#define LINK_HELLO_BYTES_MAX 128

/* First byte of each sealed message once the handshake is done. */
enum link_record {
    LINK_RECORD_LAST, /* the last, or only, piece of a frame; its first piece begins with the channel */
    LINK_RECORD_MORE,
    LINK_RECORD_PING,
    LINK_RECORD_PONG,
    LINK_RECORD_WELCOME,
    LINK_RECORD_REFUSE,
    LINK_RECORDS,
};

enum link_refusal {
    LINK_REFUSE_DUPLICATE, /* the other dial of the two wins */
    LINK_REFUSE_SELF,
    LINK_REFUSE_CROWDED,
    LINK_REFUSE_SESSION, /* a bulk connection without its control connection */
    LINK_REFUSE_REMOVED, /* the dialler was removed from the mesh */
    LINK_REFUSALS,
};

/* In the third handshake message (with key, lane and session), and back in WELCOME. */
struct link_hello {
    struct shoal_public_key key;
    enum shoal_lane lane;
    uint64_t session; /* the dialler's, the same for both lanes of a link */
    struct shoal_store_id store;
    struct shoal_incarnation incarnation;
    uint16_t listen_port;
};

/* Bytes set in `bytes`, which holds LINK_HELLO_BYTES_MAX. */
size_t link_hello_encode(const struct link_hello *hello, uint8_t *bytes);
SHOAL_MUST_CHECK enum shoal_err link_hello_decode(struct shoal_view view, struct link_hello *hello);

/* The three bytes that begin each direction of a stream. */
void link_stream_encode(uint8_t bytes[3]);
SHOAL_MUST_CHECK enum shoal_err link_stream_decode(struct shoal_view view);

#endif
