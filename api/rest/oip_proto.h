/* The Open Inference Protocol's gRPC messages to the bodies of its REST twin and back, so that a kernel sees one protocol.
 *
 *     ModelInferRequest --> JSON, then the tensors as raw bytes (the binary extension) --> kernel --> JSON [, raw] --> ModelInferResponse
 *
 * Pure. A request whose tensors are typed (`contents`) is answered so; one with raw_input_contents, or an answer with FP16,
 * which has no typed field, with raw_output_contents.
 * Source: github.com/kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto; parameters of double and
 * uint64, RepositoryIndex and ModelStreamInfer as Triton and MLServer have them. */
#ifndef API_OIP_PROTO_H
#define API_OIP_PROTO_H

#include "shoal/backend.h"

#define OIP_MODEL_BYTES 256
#define OIP_VERSION_BYTES 64
#define OIP_ID_BYTES 256

struct oip_request {
    char model[OIP_MODEL_BYTES];
    char version[OIP_VERSION_BYTES];
    char id[OIP_ID_BYTES];
    bool raw;
    struct shoal_buf body;
    uint32_t header_len; /* of the JSON that it begins with */
};

/* INVALID, TOO_BIG, FULL: nothing is to be freed. */
SHOAL_MUST_CHECK enum shoal_err oip_request_decode(struct shoal_view message, struct oip_request *request,
                                                   struct shoal_msg *msg);
/* Appends a ModelInferResponse. MALFORMED: it is no answer of the protocol; then what `out` had is still there. */
SHOAL_MUST_CHECK enum shoal_err oip_answer_encode(const struct shoal_inferred *inferred, bool raw,
                                                  struct shoal_buf *out, struct shoal_msg *msg);

#endif
