/* Addresses as the TCP transport keeps them: 16 bytes, those of IPv4 mapped (::ffff:10.0.0.1); and as members tell them.
 *
 *   [1]  ip4 port  ip4 port ...         all are of IPv4; the byte: sealed connections only
 *   2|3  ip16 port  ip16 port ...       some are of IPv6; 2: sealed connections only, 3: in the open
 *
 * An earlier version takes the second for no address, and reaches nobody there. Ports are in network order. */
#ifndef COLLECTIVE_TCP_ADDRESS_H
#define COLLECTIVE_TCP_ADDRESS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "shoal/error.h"
#include "shoal/fabric_address.h"

#define TCP_ADDRESS_SEALED 1u
#define TCP_ADDRESS_SEALED_6 2u
#define TCP_ADDRESS_OPEN_6 SHOAL_FABRIC_OPEN_6
#define TCP_ENTRY_BYTES SHOAL_FABRIC_ENTRY_BYTES
#define TCP_ENTRY_BYTES_6 18u

struct tcp_address {
    struct in6_addr ip;
    uint16_t port; /* of this host's order */
};

static inline struct in6_addr tcp_ip4(const void *four_bytes)
{
    struct in6_addr ip = { .s6_addr = { [10] = 0xff, [11] = 0xff } };

    memcpy(ip.s6_addr + 12, four_bytes, 4);
    return ip;
}

static inline bool tcp_ip_is4(const struct in6_addr *ip) { return IN6_IS_ADDR_V4MAPPED(ip) != 0; }

static inline bool tcp_ip_is_loopback(const struct in6_addr *ip)
{
    return tcp_ip_is4(ip) ? ip->s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(ip) != 0;
}

static inline bool tcp_ip_equal(const struct in6_addr *a, const struct in6_addr *b) { return memcmp(a, b, sizeof(*a)) == 0; }

/* False: neither of IPv4 nor of IPv6. */
static inline bool tcp_address_of(const struct sockaddr *from, struct tcp_address *address)
{
    if (from->sa_family == AF_INET) {
        struct sockaddr_in four;

        memcpy(&four, from, sizeof(four));
        *address = (struct tcp_address){ .ip = tcp_ip4(&four.sin_addr), .port = ntohs(four.sin_port) };
    } else if (from->sa_family == AF_INET6) {
        struct sockaddr_in6 six;

        memcpy(&six, from, sizeof(six));
        *address = (struct tcp_address){ .ip = six.sin6_addr, .port = ntohs(six.sin6_port) };
    }
    return from->sa_family == AF_INET || from->sa_family == AF_INET6;
}

/* The length of what is in `to`. */
static inline socklen_t tcp_address_to(const struct tcp_address *address, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof(*to));
    if (tcp_ip_is4(&address->ip)) {
        struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(address->port) };

        memcpy(&four.sin_addr, address->ip.s6_addr + 12, 4);
        memcpy(to, &four, sizeof(four));
        return sizeof(four);
    }
    memcpy(to, &(struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(address->port), .sin6_addr = address->ip },
           sizeof(struct sockaddr_in6));
    return sizeof(struct sockaddr_in6);
}

static inline void tcp_ip_text(const struct in6_addr *ip, char text[INET6_ADDRSTRLEN])
{
    if (inet_ntop(tcp_ip_is4(ip) ? AF_INET : AF_INET6, ip->s6_addr + (tcp_ip_is4(ip) ? 12 : 0), text, INET6_ADDRSTRLEN) == NULL)
        text[0] = '\0';
}

static inline enum shoal_err tcp_addresses_put(const struct tcp_address *list, uint32_t count, bool sealed, uint8_t *bytes,
                                               size_t cap, size_t *len)
{
    bool six = false;
    size_t at = 0;

    for (uint32_t i = 0; i < count; i++)
        six = six || !tcp_ip_is4(&list[i].ip);
    if (cap < 1 + count * (six ? TCP_ENTRY_BYTES_6 : TCP_ENTRY_BYTES))
        return SHOAL_ERR_TOO_BIG;
    if (six)
        bytes[at++] = sealed ? TCP_ADDRESS_SEALED_6 : TCP_ADDRESS_OPEN_6;
    else if (sealed)
        bytes[at++] = TCP_ADDRESS_SEALED;
    for (uint32_t i = 0; i < count; i++) {
        size_t ip_bytes = six ? 16 : 4;
        uint16_t port = htons(list[i].port);

        memcpy(bytes + at, list[i].ip.s6_addr + 16 - ip_bytes, ip_bytes);
        memcpy(bytes + at + ip_bytes, &port, 2);
        at += ip_bytes + 2;
    }
    *len = at;
    return SHOAL_OK;
}

/* Foreign bytes: how many of them are addresses, up to `max`; 0: they do not hold together. */
static inline uint32_t tcp_addresses_get(const uint8_t *bytes, size_t len, struct tcp_address *list, uint32_t max, bool *sealed)
{
    size_t first = len % TCP_ENTRY_BYTES, entry = TCP_ENTRY_BYTES;
    uint32_t count = 0;

    if (first > 1 || len == first || (first == 1 && (bytes[0] == 0 || bytes[0] > TCP_ADDRESS_OPEN_6)))
        return 0;
    if (first == 1 && bytes[0] != TCP_ADDRESS_SEALED)
        entry = TCP_ENTRY_BYTES_6;
    if ((len - first) % entry != 0)
        return 0;
    *sealed = first == 1 && bytes[0] != TCP_ADDRESS_OPEN_6;
    for (size_t at = first; at < len && count < max; at += entry) {
        struct tcp_address *one = &list[count++];
        uint16_t port;

        if (entry == TCP_ENTRY_BYTES)
            one->ip = tcp_ip4(bytes + at);
        else
            memcpy(&one->ip, bytes + at, 16);
        memcpy(&port, bytes + at + entry - 2, 2);
        one->port = ntohs(port);
    }
    return count;
}

#endif
