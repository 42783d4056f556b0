/* Whether what gzip has packed comes out as it went in: libarchive reads no CRC. All that knows zlib. */
#include "bundle_file_sodium.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "shoal/banned.h"

#define GZIP_WINDOW (15 + 16) /* zlib's word for "with gzip's head and end": CRC and length are compared */

struct unpacking {
    z_stream stream;
    uint8_t in[32 * SHOAL_KIB];
    uint8_t out[BUNDLE_BLOCK_BYTES];
};

static enum shoal_err damaged(struct shoal_msg *msg, const char *why)
{
    return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                      "upload: the archive cannot be read (gzip: %.80s); it is damaged or cut short, pack and send it again", why);
}

/* What stands behind a member is another one, or nobody's. False: the latter. */
static bool next_member(z_stream *stream)
{
    return stream->avail_in > 0 && stream->next_in[0] == 0x1f && inflateReset(stream) == Z_OK;
}

/* Of what unpacks to more than `bytes_max` the rest is not looked at: it is refused for that. */
static enum shoal_err inflate_all(struct unpacking *u, int fd, uint64_t bytes, uint64_t bytes_max, struct shoal_msg *msg)
{
    uint64_t unpacked = 0;
    int got = Z_OK;

    for (uint64_t at = 0; at < bytes && unpacked <= bytes_max;) {
        size_t piece = bytes - at < sizeof(u->in) ? (size_t)(bytes - at) : sizeof(u->in);
        enum shoal_err err = bundle_read_all(fd, u->in, piece, at, msg);

        if (err != SHOAL_OK)
            return err;
        at += piece;
        u->stream.next_in = u->in;
        u->stream.avail_in = (uInt)piece;
        if (got == Z_STREAM_END && !next_member(&u->stream))
            return SHOAL_OK;
        do {
            u->stream.next_out = u->out;
            u->stream.avail_out = sizeof(u->out);
            got = inflate(&u->stream, Z_NO_FLUSH);
            unpacked += sizeof(u->out) - u->stream.avail_out;
            if (got != Z_OK && got != Z_STREAM_END && got != Z_BUF_ERROR)
                return damaged(msg, u->stream.msg == NULL ? "not its format" : u->stream.msg);
            if (got == Z_STREAM_END && u->stream.avail_in > 0 && !next_member(&u->stream))
                return SHOAL_OK;
        } while (unpacked <= bytes_max && (u->stream.avail_in > 0 || u->stream.avail_out == 0) && got != Z_BUF_ERROR);
    }
    return got == Z_STREAM_END || unpacked > bytes_max ? SHOAL_OK : damaged(msg, "its end is missing");
}

enum shoal_err bundle_gzip_check(int fd, uint64_t bytes, uint64_t bytes_max, struct shoal_msg *msg)
{
    struct unpacking *u = calloc(1, sizeof(*u));
    enum shoal_err err;

    if (u == NULL || inflateInit2(&u->stream, GZIP_WINDOW) != Z_OK) {
        free(u);
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory");
    }
    err = inflate_all(u, fd, bytes, bytes_max, msg);
    (void)inflateEnd(&u->stream);
    free(u);
    return err;
}
