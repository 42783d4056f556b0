/* An IP address and port: IPv4 is kept as ::ffff:a.b.c.d, so that equal addresses are equal bytes. */
#ifndef SHOAL_ADDRESS_H
#define SHOAL_ADDRESS_H

#include "shoal/error.h"
#include "shoal/wire.h"

struct sockaddr;
struct sockaddr_storage;

struct shoal_address {
    uint8_t ip[16];
    uint16_t port;
};

#define SHOAL_ADDRESS_TEXT_BYTES 56 /* "[ip6]:port" and NUL */

static inline bool shoal_address_equal(struct shoal_address a, struct shoal_address b)
{
    return a.port == b.port && memcmp(a.ip, b.ip, sizeof(a.ip)) == 0;
}

/* 127.0.0.0/8 or ::1. */
static inline bool shoal_address_is_loopback(struct shoal_address a)
{
    static const uint8_t v4[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };
    static const uint8_t v6[16] = { [15] = 1 };

    return (memcmp(a.ip, v4, 12) == 0 && a.ip[12] == 127) || memcmp(a.ip, v6, 16) == 0;
}

static inline void shoal_put_address(struct shoal_writer *w, struct shoal_address a)
{
    shoal_put_raw(w, a.ip, sizeof(a.ip));
    shoal_put_u16(w, a.port);
}

static inline struct shoal_address shoal_get_address(struct shoal_reader *r)
{
    struct shoal_address a;

    shoal_get_raw(r, a.ip, sizeof(a.ip));
    a.port = shoal_get_u16(r);
    return a;
}

/* "1.2.3.4:5", "[::1]:5", or without a port where `port_default` is not 0. Numeric only: names are resolved by the
 * caller, outside the loop's thread. INVALID: the message says what is wrong. */
SHOAL_MUST_CHECK enum shoal_err shoal_address_parse(const char *text, uint16_t port_default,
                                                    struct shoal_address *address, struct shoal_msg *msg);
void shoal_address_text(struct shoal_address address, char text[SHOAL_ADDRESS_TEXT_BYTES]);
/* Tells what to do where a socket cannot be bound, for an errno of bind or listen. Static. */
const char *shoal_address_remedy(int error);
void shoal_address_to_sockaddr(struct shoal_address address, struct sockaddr_storage *to);
/* INVALID: neither IPv4 nor IPv6. */
SHOAL_MUST_CHECK enum shoal_err shoal_address_of_sockaddr(const struct sockaddr *from, struct shoal_address *address);

#endif
