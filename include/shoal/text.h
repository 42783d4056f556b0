/* Text of strangers on its way to a person: which characters are only shown, and which tell a terminal what to do. */
#ifndef SHOAL_TEXT_H
#define SHOAL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a character by its first one, which may be wrong. */
static inline size_t shoal_utf8_want(uint8_t first)
{
    if (first < 0xc2 || first > 0xf4)
        return 1;
    if (first < 0xe0)
        return 2;
    return first < 0xf0 ? 3 : 4;
}

/* Bytes of the UTF-8 character at `at`, where `have` bytes are (of a text with a NUL at its end: 4, since none is read behind it).
 * 0: it is none, or `have` ends within it. */
static inline size_t shoal_utf8_len(const uint8_t *at, size_t have)
{
    uint8_t low = 0x80, high = 0xbf; /* of the second byte */
    size_t len = shoal_utf8_want(at[0]);

    if (have < len || (len == 1 && at[0] >= 0x80))
        return 0;
    switch (at[0]) {
    case 0xe0: low = 0xa0; break; /* below are longer forms of other characters */
    case 0xed: high = 0x9f; break; /* above are surrogates */
    case 0xf0: low = 0x90; break;
    case 0xf4: high = 0x8f; break; /* above is nothing */
    }
    for (size_t i = 1; i < len; i++) {
        if (at[i] < low || at[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return len;
}

/* The code point of a character of so many bytes. */
static inline uint32_t shoal_utf8_code(const uint8_t *at, size_t len)
{
    uint32_t code = len == 1 ? at[0] : at[0] & (0xffu >> (len + 1));

    for (size_t i = 1; i < len; i++)
        code = code << 6 | (at[i] & 0x3fu);
    return code;
}

/* C0 (with ends of lines and tabs), DEL, C1, and the marks that turn the order in which other characters are read
 * (UAX 9: embeddings, overrides and isolates). */
static inline bool shoal_code_is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

/* Makes `text` one line that is only shown: each byte of a control character, or of no character, becomes `instead`. */
static inline void shoal_text_plain(char *text, char instead)
{
    for (uint8_t *at = (uint8_t *)text; *at != 0;) {
        size_t len = shoal_utf8_len(at, 4);

        if (len > 0 && !shoal_code_is_control(shoal_utf8_code(at, len))) {
            at += len;
            continue;
        }
        for (size_t i = len == 0 ? 1 : len; i > 0; i--)
            *at++ = (uint8_t)instead;
    }
}

#endif
