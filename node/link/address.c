#include "shoal/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "shoal/banned.h"

static const uint8_t v4_prefix[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

static bool parse_port(const char *text, uint16_t *port)
{
    unsigned value = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value * 10 + (unsigned)(*text - '0');
        if (value > 65535)
            return false;
    }
    *port = (uint16_t)value;
    return true;
}

static bool parse_ip(const char *text, uint8_t ip[16])
{
    if (inet_pton(AF_INET, text, ip + 12) == 1) {
        memcpy(ip, v4_prefix, sizeof(v4_prefix));
        return true;
    }
    return inet_pton(AF_INET6, text, ip) == 1;
}

enum shoal_err shoal_address_parse(const char *text, uint16_t port_default, struct shoal_address *address,
                                   struct shoal_msg *msg)
{
    struct shoal_address parsed = { .port = port_default };
    char host[SHOAL_ADDRESS_TEXT_BYTES];
    const char *colon = strrchr(text, ':');
    const char *start = text;
    size_t len = strlen(text);
    bool is_plain_v6 = colon != NULL && text[0] != '[' && strchr(text, ':') != colon;

    if (len >= sizeof(host))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "an address has at most %zu characters", sizeof(host) - 1);
    if (is_plain_v6)
        colon = NULL;
    if (text[0] == '[') {
        const char *end = strchr(text, ']');

        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "\"%s\": write an IPv6 address as [address]:port", text);
        colon = end[1] == ':' ? end + 1 : NULL;
        start = text + 1;
        len = (size_t)(end - start);
    } else if (colon != NULL) {
        len = (size_t)(colon - text);
    }
    memcpy(host, start, len);
    host[len] = '\0';
    if (colon != NULL && !parse_port(colon + 1, &parsed.port))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "\"%s\": the port is not a number from 0 to 65535", text);
    if (colon == NULL && port_default == 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "\"%s\" names no port; write address:port", text);
    if (!parse_ip(host, parsed.ip))
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "\"%s\" is no numeric IP address, such as 10.0.0.1; of a host's name "
                          "`getent hosts NAME` shows it",
                          host);
    *address = parsed;
    return SHOAL_OK;
}

void shoal_address_text(struct shoal_address address, char text[SHOAL_ADDRESS_TEXT_BYTES])
{
    char ip[INET6_ADDRSTRLEN] = "?";

    if (memcmp(address.ip, v4_prefix, sizeof(v4_prefix)) == 0) {
        (void)inet_ntop(AF_INET, address.ip + 12, ip, sizeof(ip));
        (void)snprintf(text, SHOAL_ADDRESS_TEXT_BYTES, "%s:%u", ip, address.port);
        return;
    }
    (void)inet_ntop(AF_INET6, address.ip, ip, sizeof(ip));
    (void)snprintf(text, SHOAL_ADDRESS_TEXT_BYTES, "[%s]:%u", ip, address.port);
}

const char *shoal_address_remedy(int error)
{
    if (error == EADDRINUSE)
        return "another process has the port (`ss -lntup` lists them); end it, or choose another port";
    if (error == EADDRNOTAVAIL)
        return "no interface of this host has that address; `ip addr` lists those that there are";
    if (error == EACCES)
        return "ports below 1024 want CAP_NET_BIND_SERVICE; choose a higher one";
    return "choose another address or port";
}

enum shoal_err shoal_address_of_sockaddr(const struct sockaddr *from, struct shoal_address *address)
{
    if (from->sa_family == AF_INET) {
        struct sockaddr_in in;

        memcpy(&in, from, sizeof(in));
        memcpy(address->ip, v4_prefix, sizeof(v4_prefix));
        memcpy(address->ip + 12, &in.sin_addr, 4);
        address->port = ntohs(in.sin_port);
        return SHOAL_OK;
    }
    if (from->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;

        memcpy(&in6, from, sizeof(in6));
        memcpy(address->ip, &in6.sin6_addr, 16);
        address->port = ntohs(in6.sin6_port);
        return SHOAL_OK;
    }
    return SHOAL_ERR_INVALID;
}

void shoal_address_to_sockaddr(struct shoal_address address, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof(*to));
    if (memcmp(address.ip, v4_prefix, sizeof(v4_prefix)) == 0) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(address.port) };

        memcpy(&in.sin_addr, address.ip + 12, 4);
        memcpy(to, &in, sizeof(in));
    } else {
        struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(address.port) };

        memcpy(&in6.sin6_addr, address.ip, 16);
        memcpy(to, &in6, sizeof(in6));
    }
}
