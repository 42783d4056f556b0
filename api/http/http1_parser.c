/* HTTP/1 on http_parser (Debian 12 has no llhttp). Its author has archived it; it is used for the one thing that it
 * does well, the grammar of a complete head. Bodies are framed here, since it lets bare LF pass inside chunk
 * extensions.
 *
 * Refused here, because http_parser accepts it: more blanks in the request line, white space before the colon, folded lines, bare CR or LF, missing,
 * double or odd Host, more than SHOAL_HTTP_HEADERS_MAX headers, "Transfer-Encoding: gzip, chunked", chunk extensions
 * with control characters. Source: RFC 9112, sections 2.2, 3.2, 5.1, 6.3, 7.1. */
#include "http1_parser.h"
#include "hex.h"

#include <http_parser.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "shoal/banned.h"

#define CHUNK_LINE_MAX 256u
#define TRAILERS_MAX (4u * SHOAL_KIB)

size_t http1_head_find(const uint8_t *bytes, size_t len, size_t from)
{
    size_t at = from < 3 ? 0 : from - 3;

    /* A lone LF LF ends a head too: the parse then refuses it by name instead of waiting for a CRLF that never comes.
     */
    for (; at < len; at++) {
        const uint8_t *lf = memchr(bytes + at, '\n', len - at);

        if (lf == NULL)
            return 0;
        at = (size_t)(lf - bytes);
        if (at + 1 < len && bytes[at + 1] == '\n')
            return at + 2;
        if (at + 2 < len && bytes[at + 1] == '\r' && bytes[at + 2] == '\n')
            return at + 3;
    }
    return 0;
}

static bool is_token_char(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static enum shoal_err refuse(struct shoal_msg *msg, int *status, int code, const char *text)
{
    *status = code;
    return shoal_fail(msg, SHOAL_ERR_MALFORMED, "%s", text);
}

static unsigned blanks(const uint8_t *line, size_t len)
{
    unsigned count = 0;

    for (size_t i = 0; i < len; i++)
        count += line[i] == ' ' ? 1u : 0u;
    return count;
}

/* Looks at what only the raw lines show. `line` is without its CRLF. */
static enum shoal_err check_line(const uint8_t *line, size_t len, bool first, int *status, struct shoal_msg *msg)
{
    size_t name = 0;

    if (memchr(line, '\r', len) != NULL)
        return refuse(msg, status, 400, "a bare carriage return in the request head");
    if (memchr(line, 0, len) != NULL)
        return refuse(msg, status, 400, "a NUL byte in the request head");
    if (first)
        return blanks(line, len) <= 2 ? SHOAL_OK
                                      : refuse(msg, status, 400, "a blank in the request line beside the two that part it");
    if (line[0] == ' ' || line[0] == '\t')
        return refuse(msg, status, 400, "a folded header line; send each header on one line");
    while (name < len && is_token_char(line[name]))
        name++;
    if (name == len || name == 0)
        return refuse(msg, status, 400, "a header line without a name and a colon");
    if (line[name] == ' ' || line[name] == '\t')
        return refuse(msg, status, 400, "white space between a header's name and its colon");
    if (line[name] != ':')
        return refuse(msg, status, 400, "a character that is not allowed in a header's name");
    for (size_t i = name; i < len; i++)
        if ((line[i] < 0x20 && line[i] != '\t') || line[i] == 0x7f)
            return refuse(msg, status, 400, "a control character in a header's value");
    return SHOAL_OK;
}

static enum shoal_err check_lines(const uint8_t *bytes, size_t len, int *status, struct shoal_msg *msg)
{
    size_t at = 0;
    unsigned lines = 0;

    while (at < len) {
        const uint8_t *lf = memchr(bytes + at, '\n', len - at);
        size_t end = lf == NULL ? 0 : (size_t)(lf - bytes);
        enum shoal_err err;

        if (end == 0 || bytes[end - 1] != '\r')
            return refuse(msg, status, 400, "a line that ends without carriage return and line feed");
        if (end - 1 == at)
            return end + 1 == len ? SHOAL_OK : refuse(msg, status, 400, "an empty line inside the request head");
        err = check_line(bytes + at, end - 1 - at, lines == 0, status, msg);
        if (err != SHOAL_OK)
            return err;
        if (++lines > SHOAL_HTTP_HEADERS_MAX + 1)
            return refuse(msg, status, 431, "too many headers; 100 are allowed");
        at = end + 1;
    }
    return refuse(msg, status, 400, "a request head without its empty line");
}

struct parse {
    struct http1_head *head;
    struct shoal_view target;
    bool value_seen; /* of the header that is now read */
};

static void extend(struct shoal_view *view, const char *at, size_t len)
{
    if (view->len == 0)
        view->bytes = (const uint8_t *)at;
    view->len += len;
}

static int on_url(http_parser *parser, const char *at, size_t len)
{
    struct parse *parse = parser->data;

    extend(&parse->target, at, len);
    return 0;
}

static int on_field(http_parser *parser, const char *at, size_t len)
{
    struct parse *parse = parser->data;
    struct http1_head *head = parse->head;

    if (head->header_count == 0 || parse->value_seen) {
        if (head->header_count == SHOAL_HTTP_HEADERS_MAX)
            return 1;
        head->headers[head->header_count++] = (struct http1_header){ .value = { 0 } };
        parse->value_seen = false;
    }
    extend(&head->headers[head->header_count - 1].name, at, len);
    return 0;
}

static int on_value(http_parser *parser, const char *at, size_t len)
{
    struct parse *parse = parser->data;

    parse->value_seen = true;
    extend(&parse->head->headers[parse->head->header_count - 1].value, at, len);
    return 0;
}

/* 1: no body follows, as far as this parser is concerned. */
static int on_head(http_parser *parser)
{
    struct parse *parse = parser->data;

    parse->head->keep_alive = http_should_keep_alive(parser) != 0;
    return 1;
}

static bool name_is(struct shoal_view view, const char *name)
{
    return view.len == strlen(name) && strncasecmp((const char *)view.bytes, name, view.len) == 0;
}

bool http1_header_find(const struct http1_head *head, const char *name, struct shoal_view *value)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (name_is(head->headers[i].name, name)) {
            *value = head->headers[i].value;
            return true;
        }
    }
    return false;
}

static unsigned header_count(const struct http1_head *head, const char *name)
{
    unsigned count = 0;

    for (size_t i = 0; i < head->header_count; i++)
        count += name_is(head->headers[i].name, name) ? 1u : 0u;
    return count;
}

static bool host_is_sane(struct shoal_view host)
{
    for (size_t i = 0; i < host.len; i++) {
        uint8_t c = host.bytes[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              (c != 0 && strchr(".-_:[]%~", c) != NULL)))
            return false;
    }
    return host.len > 0 && host.len < 256;
}

static enum shoal_err check_host(const struct http1_head *head, int *status, struct shoal_msg *msg)
{
    struct shoal_view value;
    unsigned hosts = header_count(head, "host");

    if (hosts > 1)
        return refuse(msg, status, 400, "more than one Host header");
    if (hosts == 0 && !head->http10)
        return refuse(msg, status, 400, "no Host header");
    if (http1_header_find(head, "host", &value) && !host_is_sane(value))
        return refuse(msg, status, 400, "a Host header that is not a host name");
    return SHOAL_OK;
}

/* Of these a request says one thing: which of two counts, two readers could see in two ways. */
static enum shoal_err check_singles(const struct http1_head *head, int *status, struct shoal_msg *msg)
{
    static const char *const names[] = { "authorization", "x-auth-token", "x-user-token", "content-type",
                                         "inference-header-content-length" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (header_count(head, names[i]) < 2)
            continue;
        *status = 400;
        return shoal_fail(msg, SHOAL_ERR_MALFORMED, "more than one header %s", names[i]);
    }
    return SHOAL_OK;
}

static enum shoal_err check_framing(struct http1_head *head, int *status, struct shoal_msg *msg)
{
    struct shoal_view value;
    unsigned lengths = header_count(head, "content-length");
    unsigned codings = header_count(head, "transfer-encoding");

    if (lengths > 1)
        return refuse(msg, status, 400, "more than one Content-Length header");
    if (codings > 0 && lengths > 0)
        return refuse(msg, status, 400, "both Content-Length and Transfer-Encoding");
    if (codings > 1)
        return refuse(msg, status, 400, "more than one Transfer-Encoding header");
    if (codings == 1 && head->http10)
        return refuse(msg, status, 400, "Transfer-Encoding in an HTTP/1.0 request");
    if (codings == 1 && (!http1_header_find(head, "transfer-encoding", &value) || !name_is(value, "chunked")))
        return refuse(msg, status, 501, "a Transfer-Encoding other than chunked");
    head->chunked = codings == 1;
    return SHOAL_OK;
}

static void trim(struct shoal_view *view)
{
    while (view->len > 0 && (view->bytes[0] == ' ' || view->bytes[0] == '\t')) {
        view->bytes++;
        view->len--;
    }
    while (view->len > 0 && (view->bytes[view->len - 1] == ' ' || view->bytes[view->len - 1] == '\t'))
        view->len--;
}

static enum shoal_err split_target(struct shoal_view target, struct http1_head *head, int *status,
                                   struct shoal_msg *msg)
{
    const uint8_t *mark;

    for (size_t i = 0; i < target.len; i++)
        if (target.bytes[i] <= 0x20 || target.bytes[i] == 0x7f)
            return refuse(msg, status, 400, "a control character in the request target");
    mark = memchr(target.bytes, '#', target.len);
    if (mark != NULL)
        return refuse(msg, status, 400, "a fragment in the request target");
    if (target.len > 7 && (strncasecmp((const char *)target.bytes, "http://", 7) == 0 ||
                           strncasecmp((const char *)target.bytes, "https://", 8) == 0)) {
        const uint8_t *host = (const uint8_t *)memchr(target.bytes, ':', target.len) + 3;
        const uint8_t *slash = memchr(host, '/', target.len - (size_t)(host - target.bytes));

        if (slash == NULL)
            return refuse(msg, status, 400, "a request target without a path");
        target.len -= (size_t)(slash - target.bytes);
        target.bytes = slash;
    }
    if (target.len == 0 || target.bytes[0] != '/')
        return refuse(msg, status, 400, "a request target that is not a path");
    mark = memchr(target.bytes, '?', target.len);
    head->path = target;
    if (mark != NULL) {
        head->path.len = (size_t)(mark - target.bytes);
        head->query = shoal_view_of(mark + 1, target.len - head->path.len - 1);
    }
    return SHOAL_OK;
}

enum shoal_err http1_head_finish(struct http1_head *head, struct shoal_view target, int *status, struct shoal_msg *msg)
{
    enum shoal_err err = check_host(head, status, msg);
    struct shoal_view value;

    if (err == SHOAL_OK)
        err = check_singles(head, status, msg);
    if (err != SHOAL_OK)
        return err;
    if (http1_header_find(head, "expect", &value)) {
        if (!name_is(value, "100-continue"))
            return refuse(msg, status, 417, "an Expect header other than 100-continue");
        head->expect_continue = !head->http10;
    }
    return split_target(target, head, status, msg);
}

static enum http1_method method_of(unsigned method)
{
    switch (method) {
    case HTTP_GET: return HTTP1_GET;
    case HTTP_POST: return HTTP1_POST;
    case HTTP_PUT: return HTTP1_PUT;
    case HTTP_DELETE: return HTTP1_DELETE;
    case HTTP_HEAD: return HTTP1_HEAD;
    case HTTP_OPTIONS: return HTTP1_OPTIONS;
    default: return HTTP1_OTHER;
    }
}

/* Length of the word that a request line begins with; 0: it begins otherwise. */
static size_t method_len(const uint8_t *bytes, size_t len)
{
    size_t at = 0;

    while (at < len && at < 32 && is_token_char(bytes[at]))
        at++;
    return at < len && bytes[at] == ' ' ? at : 0;
}

/* The grammar, by http_parser. */
static enum shoal_err run_parser(const uint8_t *bytes, size_t len, struct parse *parse, int *status,
                                 struct shoal_msg *msg)
{
    static const http_parser_settings settings = {
        .on_url = on_url, .on_header_field = on_field, .on_header_value = on_value, .on_headers_complete = on_head
    };
    struct http1_head *head = parse->head;
    http_parser parser;
    size_t taken;
    bool other = false;

    http_parser_init(&parser, HTTP_REQUEST);
    parser.data = parse;
    taken = http_parser_execute(&parser, &settings, (const char *)bytes, len);
    if (HTTP_PARSER_ERRNO(&parser) == HPE_INVALID_METHOD && method_len(bytes, len) > 0) {
        size_t skip = method_len(bytes, len);

        other =
            true; /* QUERY or get, say: the parser knows only its list, so it reads the rest behind a method of that list */
        http_parser_init(&parser, HTTP_REQUEST);
        parser.data = parse;
        (void)http_parser_execute(&parser, &settings, "GET", 3);
        taken = skip + http_parser_execute(&parser, &settings, (const char *)bytes + skip, len - skip);
    }
    if (HTTP_PARSER_ERRNO(&parser) != HPE_OK) {
        *status = 400;
        return shoal_fail(msg, SHOAL_ERR_MALFORMED, "not a valid HTTP/1.1 request: %s",
                          http_errno_description(HTTP_PARSER_ERRNO(&parser)));
    }
    if (taken != len)
        return refuse(msg, status, 400, "not a valid HTTP/1.1 request: bytes are left over");
    if (parser.http_major != 1 || parser.http_minor > 1)
        return refuse(msg, status, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    head->http10 = parser.http_minor == 0;
    head->method = other ? HTTP1_OTHER : method_of(parser.method);
    if (header_count(head, "content-length") > 0)
        head->content_length = parser.content_length;
    return SHOAL_OK;
}

enum shoal_err http1_head_parse(const uint8_t *bytes, size_t len, struct http1_head *head, int *status,
                                struct shoal_msg *msg)
{
    struct parse parse = { .head = head };
    enum shoal_err err;

    *head = (struct http1_head){ .header_count = 0 };
    err = check_lines(bytes, len, status, msg);
    if (err != SHOAL_OK)
        return err;
    err = run_parser(bytes, len, &parse, status, msg);
    if (err != SHOAL_OK)
        return err;
    for (size_t i = 0; i < head->header_count; i++)
        trim(&head->headers[i].value);
    err = check_framing(head, status, msg);
    if (err != SHOAL_OK)
        return err;
    return http1_head_finish(head, parse.target, status, msg);
}

/* ---- bodies ---- */

enum {
    BODY_LENGTH,
    CHUNK_SIZE, /* hex digits */
    CHUNK_EXT,  /* after ';', ignored */
    CHUNK_LF,   /* of the size line */
    CHUNK_DATA,
    CHUNK_END_CR,
    CHUNK_END_LF,
    TRAILER_START,
    TRAILER_NAME,
    TRAILER_LINE, /* behind its colon */
    TRAILER_LF,
    TRAILER_LAST_LF,
};

void http1_body_init(struct http1_body *body, const struct http1_head *head)
{
    *body = (struct http1_body){ .state = head->chunked ? CHUNK_SIZE : BODY_LENGTH, .left = head->content_length };
    if (!head->chunked && body->left == 0)
        body->done = true;
}

static enum shoal_err bad_chunk(struct shoal_msg *msg, const char *what)
{
    return shoal_fail(msg, SHOAL_ERR_MALFORMED, "broken chunked body: %s", what);
}

static enum shoal_err size_byte(struct http1_body *body, uint8_t c, struct shoal_msg *msg)
{
    int digit = hex_digit(c);

    if (digit >= 0) {
        if (++body->digits > 15)
            return bad_chunk(msg, "a chunk size of more than 15 digits");
        body->left = body->left * 16 + (uint64_t)digit;
        return SHOAL_OK;
    }
    if (body->digits == 0)
        return bad_chunk(msg, "a chunk without a size");
    if (c == '\r')
        body->state = CHUNK_LF;
    else if (c == ';')
        body->state = CHUNK_EXT;
    else
        return bad_chunk(msg, "a chunk size that is not hexadecimal");
    return SHOAL_OK;
}

/* A trailer is a line as a header is. */
static enum shoal_err trailer_byte(struct http1_body *body, uint8_t c, struct shoal_msg *msg)
{
    if (++body->trailer_bytes > TRAILERS_MAX)
        return bad_chunk(msg, "more than 4 KiB of trailers");
    if (body->state == TRAILER_START && c == '\r')
        body->state = TRAILER_LAST_LF;
    else if (body->state == TRAILER_NAME && c == ':')
        body->state = TRAILER_LINE;
    else if (body->state != TRAILER_LINE && !is_token_char(c))
        return bad_chunk(msg, "a trailer without a name and a colon");
    else if (body->state == TRAILER_START)
        body->state = TRAILER_NAME;
    else if (body->state == TRAILER_LINE && c == '\r')
        body->state = TRAILER_LF;
    else if ((c < 0x20 && c != '\t') || c == 0x7f)
        return bad_chunk(msg, "a control character in a trailer");
    return SHOAL_OK;
}

/* One byte of framing. */
static enum shoal_err frame_byte(struct http1_body *body, uint8_t c, struct shoal_msg *msg)
{
    if (++body->line_bytes > CHUNK_LINE_MAX && body->state <= CHUNK_LF)
        return bad_chunk(msg, "a chunk line of more than 256 bytes");
    switch (body->state) {
    case CHUNK_SIZE: return size_byte(body, c, msg);
    case CHUNK_EXT:
        if (c == '\r')
            body->state = CHUNK_LF;
        else if ((c < 0x20 && c != '\t') || c == 0x7f)
            return bad_chunk(msg, "a control character in a chunk extension");
        return SHOAL_OK;
    case CHUNK_LF:
        if (c != '\n')
            return bad_chunk(msg, "a chunk line that ends without a line feed");
        body->state = body->left == 0 ? TRAILER_START : CHUNK_DATA;
        return SHOAL_OK;
    case CHUNK_END_CR:
        body->state = CHUNK_END_LF;
        return c == '\r' ? SHOAL_OK : bad_chunk(msg, "a chunk longer than its size");
    case CHUNK_END_LF:
        body->state = CHUNK_SIZE;
        body->left = 0;
        body->digits = 0;
        body->line_bytes = 0;
        return c == '\n' ? SHOAL_OK : bad_chunk(msg, "a chunk longer than its size");
    case TRAILER_START:
    case TRAILER_NAME:
    case TRAILER_LINE: return trailer_byte(body, c, msg);
    case TRAILER_LF:
        body->state = TRAILER_START;
        return c == '\n' ? SHOAL_OK : bad_chunk(msg, "a trailer that ends without a line feed");
    default: body->done = true; return c == '\n' ? SHOAL_OK : bad_chunk(msg, "an end without a line feed");
    }
}

enum shoal_err http1_body_step(struct http1_body *body, const uint8_t *bytes, size_t len, size_t *used,
                               struct shoal_view *content, struct shoal_msg *msg)
{
    size_t at = 0;

    *content = (struct shoal_view){ 0 };
    while (at < len && !body->done) {
        if (body->state == BODY_LENGTH || body->state == CHUNK_DATA) {
            size_t take = body->left < len - at ? (size_t)body->left : len - at;

            *content = shoal_view_of(bytes + at, take);
            body->left -= take;
            *used = at + take;
            if (body->left == 0 && body->state == BODY_LENGTH)
                body->done = true;
            else if (body->left == 0)
                body->state = CHUNK_END_CR;
            return SHOAL_OK;
        }
        enum shoal_err err = frame_byte(body, bytes[at++], msg);

        if (err != SHOAL_OK)
            return err;
    }
    *used = at;
    return SHOAL_OK;
}
