/* An answer in JSON as MessagePack, for clients that ask for application/msgpack: the same values in the same order.
 * Integers stay integers, other numbers become 64-bit floats, texts strings. */
#ifndef API_JSON_TO_PACK_H
#define API_JSON_TO_PACK_H

#include "shoal/buf.h"

/* Appended to `pack`. MALFORMED: it is no JSON, or deeper than JSON_TO_PACK_DEPTH_MAX. FULL: no memory. */
#define JSON_TO_PACK_DEPTH_MAX 10u
SHOAL_MUST_CHECK enum shoal_err json_to_pack(struct shoal_view json, struct shoal_buf *pack);

#endif
