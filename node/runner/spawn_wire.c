/* The one message of spawn.h, byte for byte. */
#include "spawn.h"

#include <string.h>

#include "shoal/wire.h"

#include "shoal/banned.h"

enum shoal_err spawn_encode(const struct spawn_order *order, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    shoal_put_u8(&w, SPAWN_RUNNER);
    shoal_put_u8(&w, SPAWN_VERSION);
    shoal_put_u8(&w, SPAWN_VERSION);
    shoal_put_text(&w, order->dir);
    shoal_put_text(&w, order->job);
    shoal_put_u32(&w, order->generation);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err spawn_decode(struct shoal_view datagram, struct spawn_order *order)
{
    struct shoal_reader r = shoal_reader_init(datagram);
    struct spawn_order read = { .generation = 0 };
    struct shoal_job_id job;
    uint8_t kind = shoal_get_u8(&r);
    uint8_t oldest;

    (void)shoal_get_u8(&r); /* the version that wrote it */
    oldest = shoal_get_u8(&r);
    if (r.failed || kind != SPAWN_RUNNER || oldest > SPAWN_VERSION)
        return SHOAL_ERR_MALFORMED;
    shoal_get_text(&r, read.dir, sizeof(read.dir));
    shoal_get_text(&r, read.job, sizeof(read.job));
    read.generation = shoal_get_u32(&r);
    if (!shoal_reader_done(&r) || read.dir[0] != '/' || !shoal_job_id_parse(read.job, &job))
        return SHOAL_ERR_MALFORMED;
    *order = read;
    return SHOAL_OK;
}
