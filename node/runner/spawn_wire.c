/* The one message of spawn.h, byte for byte, and how it is sent. */
#include "spawn.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

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

int spawn_send(int socket, const struct spawn_order *order, const struct spawn_fds *fds)
{
    uint8_t bytes[SPAWN_MESSAGE_MAX];
    struct iovec part = { .iov_base = bytes };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = { 0 };
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)
    };
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    const int both[2] = { fds->listener, fds->lock };

    if (spawn_encode(order, bytes, sizeof(bytes), &part.iov_len) != SHOAL_OK)
        return EMSGSIZE;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(both));
    memcpy(CMSG_DATA(c), both, sizeof(both));
    return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}
