/* libFuzzer: an HTTP/1 connection's bytes, cut where the first byte says: heads and bodies as the server takes them. */
#include "api/http/http1_parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void feed_body(const struct http1_head *head, const uint8_t *bytes, size_t len, size_t piece)
{
    struct http1_body body;
    struct shoal_msg msg;
    size_t at = 0;
    uint64_t got = 0;

    http1_body_init(&body, head);
    while (at < len && !body.done) {
        struct shoal_view content;
        size_t used = 0;
        size_t part = len - at < piece ? len - at : piece;

        if (http1_body_step(&body, bytes + at, part, &used, &content, &msg) != SHOAL_OK)
            return;
        SHOAL_ASSERT(used > 0 && used <= part);
        SHOAL_ASSERT(content.len == 0 ||
                     (content.bytes >= bytes + at && content.bytes + content.len <= bytes + at + used));
        got += content.len;
        at += used;
    }
    SHOAL_ASSERT(head->chunked || got <= head->content_length);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct http1_head head;
    struct shoal_msg msg;
    int status = 0;
    size_t end;
    size_t piece;

    if (len < 1)
        return 0;
    piece = bytes[0] % 32 + 1;
    bytes++;
    len--;
    end = http1_head_find(bytes, len, 0);
    if (end == 0)
        return 0;
    if (http1_head_parse(bytes, end, &head, &status, &msg) != SHOAL_OK) {
        SHOAL_ASSERT(status >= 400 && msg.text[0] != '\0');
        return 0;
    }
    SHOAL_ASSERT(head.path.len > 0 && head.path.bytes[0] == '/' && head.header_count <= SHOAL_HTTP_HEADERS_MAX);
    SHOAL_ASSERT(!head.chunked || head.content_length == 0);
    feed_body(&head, bytes + end, len - end, piece);
    return 0;
}
