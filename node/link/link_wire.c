#include "link_wire.h"

#include "node/format.h"

#include "shoal/banned.h"

size_t link_hello_encode(const struct link_hello *hello, uint8_t *bytes)
{
    struct shoal_writer w = shoal_writer_init(bytes, LINK_HELLO_BYTES_MAX);

    format_put_header(&w, FORMAT_HELLO, LINK_VERSION, LINK_OLDEST);
    shoal_put_raw(&w, hello->key.bytes, sizeof(hello->key.bytes));
    shoal_put_u8(&w, (uint8_t)hello->lane);
    shoal_put_u64(&w, hello->session);
    shoal_put_store_id(&w, hello->store);
    shoal_put_incarnation(&w, hello->incarnation);
    shoal_put_u16(&w, hello->listen_port);
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

enum shoal_err link_hello_decode(struct shoal_view view, struct link_hello *hello)
{
    struct shoal_reader r = shoal_reader_init(view);
    struct link_hello decoded = { 0 };

    (void)format_get_header(&r, FORMAT_HELLO, LINK_VERSION);
    shoal_get_raw(&r, decoded.key.bytes, sizeof(decoded.key.bytes));
    decoded.lane = (enum shoal_lane)shoal_get_enum(&r, SHOAL_LANES);
    decoded.session = shoal_get_u64(&r);
    decoded.store = shoal_get_store_id(&r);
    decoded.incarnation = shoal_get_incarnation(&r);
    decoded.listen_port = shoal_get_u16(&r);
    if (!shoal_reader_done(&r))
        return SHOAL_ERR_MALFORMED;
    *hello = decoded;
    return SHOAL_OK;
}

void link_stream_encode(uint8_t bytes[3])
{
    struct shoal_writer w = shoal_writer_init(bytes, FORMAT_HEADER_BYTES);

    format_put_header(&w, FORMAT_STREAM, LINK_VERSION, LINK_OLDEST);
}

enum shoal_err link_stream_decode(struct shoal_view view)
{
    struct shoal_reader r = shoal_reader_init(view);
    uint8_t kind = shoal_get_u8(&r), version = shoal_get_u8(&r), oldest = shoal_get_u8(&r);

    if (!shoal_reader_done(&r) || kind != FORMAT_STREAM || oldest == 0 || oldest > version)
        return SHOAL_ERR_MALFORMED;
    return version < LINK_OLDEST || oldest > LINK_VERSION ? SHOAL_ERR_UNSUPPORTED : SHOAL_OK;
}
