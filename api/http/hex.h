/* The value of a hexadecimal digit of a URL, a chunk's size or a JSON escape. */
#ifndef API_HEX_H
#define API_HEX_H

/* -1: it is none. */
static inline int hex_digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

#endif
