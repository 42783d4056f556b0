/* The address at which workers of other hosts reach a worker: what READY says, and the EPOCH tells its members.
 *
 *   [1]  ip port  ip port ...  |  ip xx  ip xx  ip xx ...
 *    |   ours, one entry of 6     UCX's: the first ip again, and two of the bytes of  u16 length, major, minor, address
 *    a byte before the entries: sealed connections only, or some of IPv6 (collective/transport/tcp_address.h); and no UCX
 *
 * A version that knows no UCX takes the entries on the right for more addresses, of which none is nearer than the first
 * one: it goes on to choose that. All members of an epoch see the same list, so all choose the same transport. */
#ifndef SHOAL_FABRIC_ADDRESS_H
#define SHOAL_FABRIC_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shoal/error.h"
#include "shoal/limits.h"

#define SHOAL_FABRIC_ENTRY_BYTES 6u
#define SHOAL_FABRIC_OPEN_6 3u /* the byte before: some of IPv6, in the open; each other one is of sealed connections */
#define SHOAL_FABRIC_UCX_MAX ((SHOAL_TRANSPORT_ADDRESS_MAX / SHOAL_FABRIC_ENTRY_BYTES - 1u) * 2u) /* with its length */

struct shoal_fabric_address {
    bool sealed;
    size_t tcp_len; /* from the first byte on */
    size_t ucx_len; /* 0: none. Major and minor version, then what its worker_get_address gave */
    uint8_t ucx[SHOAL_FABRIC_UCX_MAX];
};

/* Puts `ucx` behind the `tcp_len` bytes of TCP's own address; the length of both. Without room or without an address of
 * TCP in the open it stays at `tcp_len`. */
static inline size_t shoal_fabric_address_add(uint8_t *address, size_t cap, size_t tcp_len, const uint8_t *ucx,
                                              size_t ucx_len)
{
    size_t entries = (2 + ucx_len + 1) / 2;
    uint8_t first[4];

    if (tcp_len < SHOAL_FABRIC_ENTRY_BYTES || tcp_len % SHOAL_FABRIC_ENTRY_BYTES != 0 || ucx_len < 2 ||
        2 + ucx_len > SHOAL_FABRIC_UCX_MAX || tcp_len + entries * SHOAL_FABRIC_ENTRY_BYTES > cap)
        return tcp_len;
    memcpy(first, address, sizeof(first));
    for (size_t i = 0; i < entries; i++) {
        uint8_t *entry = address + tcp_len + i * SHOAL_FABRIC_ENTRY_BYTES;

        memcpy(entry, first, sizeof(first));
        for (size_t k = 0; k < 2; k++) {
            size_t at = 2 * i + k;

            entry[4 + k] = at == 0            ? (uint8_t)(ucx_len >> 8)
                           : at == 1          ? (uint8_t)ucx_len
                           : at - 2 < ucx_len ? ucx[at - 2]
                                              : 0;
        }
    }
    return tcp_len + entries * SHOAL_FABRIC_ENTRY_BYTES;
}

/* Foreign bytes: whatever does not hold together has no UCX. */
static inline void shoal_fabric_address_get(const uint8_t *address, size_t len, struct shoal_fabric_address *out)
{
    size_t at = SHOAL_FABRIC_ENTRY_BYTES;
    size_t entries, ucx_len;

    *out = (struct shoal_fabric_address){ .tcp_len = len };
    if (len % SHOAL_FABRIC_ENTRY_BYTES != 0) {
        out->sealed = address[0] != SHOAL_FABRIC_OPEN_6;
        return;
    }
    while (at < len && memcmp(address + at, address, 4) != 0)
        at += SHOAL_FABRIC_ENTRY_BYTES;
    if (at >= len)
        return;
    entries = (len - at) / SHOAL_FABRIC_ENTRY_BYTES;
    ucx_len = (size_t)address[at + 4] << 8 | address[at + 5];
    if (ucx_len < 2 || 2 + ucx_len > SHOAL_FABRIC_UCX_MAX || (2 + ucx_len + 1) / 2 != entries)
        return;
    for (size_t i = 1; i < entries; i++)
        if (memcmp(address + at + i * SHOAL_FABRIC_ENTRY_BYTES, address, 4) != 0)
            return;
    out->tcp_len = at;
    out->ucx_len = ucx_len;
    for (size_t i = 0; i < ucx_len; i++)
        out->ucx[i] = address[at + (i + 2) / 2 * SHOAL_FABRIC_ENTRY_BYTES + 4 + i % 2];
}

/* The part that all members of an epoch have in common. */
struct shoal_fabric_common {
    uint32_t members;
    bool sealed; /* somebody */
    bool ucx;    /* everybody, of one version */
    uint8_t major, minor;
};

static inline void shoal_fabric_common_add(struct shoal_fabric_common *common, const uint8_t *address, size_t len)
{
    struct shoal_fabric_address one;

    shoal_fabric_address_get(address, len, &one);
    if (common->members++ == 0) {
        common->ucx = one.ucx_len != 0;
        common->major = one.ucx[0];
        common->minor = one.ucx[1];
    }
    common->sealed = common->sealed || one.sealed;
    common->ucx = common->ucx && one.ucx_len != 0 && one.ucx[0] == common->major && one.ucx[1] == common->minor;
}

#endif
