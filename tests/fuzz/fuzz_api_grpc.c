/* libFuzzer: what a client of gRPC sends, and what a kernel answers it: the framing of messages, cut where the first byte says;
 * each message as a ModelInferRequest and, where it is one, its twin's JSON is JSON and its tensors are where that says; and the
 * whole input as a kernel's answer, whose message decodes to its end. */
#include <stdlib.h>
#include <string.h>

#include "api/http/grpc.h"
#include "api/http/json_input.h"
#include "api/rest/oip_proto.h"
#include "api/rest/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void as_request(struct shoal_view message)
{
    struct oip_request request;
    struct json_input *input = NULL;
    struct shoal_msg msg;

    if (oip_request_decode(message, &request, &msg) != SHOAL_OK)
        return;
    SHOAL_ASSERT(request.model[0] != '\0' && request.header_len <= request.body.len);
    /* Our own JSON is strict but for its size; names come twice only where the client's do. */
    if (json_input_parse(shoal_view_of(request.body.bytes, request.header_len), &input, &msg) == SHOAL_OK)
        SHOAL_ASSERT(json_input_is_array(json_input_get(json_input_root(input), "inputs")));
    json_input_free(input);
    shoal_buf_deinit(&request.body);
}

static void as_answer(struct shoal_view bytes, uint32_t header_len, bool raw)
{
    const struct shoal_inferred inferred = {
        .status = 200, .header_len = header_len, .content_type = "", .body = bytes
    };
    struct shoal_buf out = { 0 };
    struct shoal_msg msg;

    if (oip_answer_encode(&inferred, raw, &out, &msg) == SHOAL_OK) {
        struct proto_reader reader = proto_reader_init(shoal_buf_view(&out));
        struct proto_field field;

        while (proto_next(&reader, &field))
            SHOAL_ASSERT(field.number >= 1 && field.number <= 6);
        SHOAL_ASSERT(!reader.failed);
    } else {
        SHOAL_ASSERT(out.len == 0);
    }
    shoal_buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct grpc_frames frames = { .most = 4096 };
    struct shoal_msg msg;
    size_t piece, used = 0;
    bool whole = false;

    if (len < 2)
        return 0;
    piece = bytes[0] % 64 + 1u;
    for (size_t at = 2; at < len; at += used) {
        size_t part = len - at < piece ? len - at : piece;

        used = 0;
        if (grpc_frames_step(&frames, bytes + at, part, &used, &whole, &msg) != SHOAL_OK)
            break;
        SHOAL_ASSERT(used > 0 && used <= part && frames.message.len <= frames.most);
        if (whole) {
            SHOAL_ASSERT(grpc_frames_is_between(&frames));
            as_request(shoal_buf_view(&frames.message));
        }
    }
    shoal_buf_deinit(&frames.message);
    as_request(shoal_view_of(bytes + 2, len - 2));
    as_answer(shoal_view_of(bytes + 2, len - 2), bytes[1] < len - 2 ? bytes[1] : 0, bytes[0] % 2 == 0);
    return 0;
}
