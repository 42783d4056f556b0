/* Calls of gRPC, for the two files that answer them: what they share. */
#ifndef API_ROUTES_GRPC_H
#define API_ROUTES_GRPC_H

#include "api/http/grpc.h"
#include "routes.h"

/* Messages of everything but tensors: names and numbers. */
#define GRPC_SMALL_BYTES_MAX (64 * SHOAL_KIB)

/* The end of a call whose body gives way (http_room.h). */
#define ROUTES_GRPC_GAVE_WAY                                                                                                 \
    "this node holds as many request bodies as it may, most of them yours, and this one came most slowly: it gave way to "   \
    "another user's; send it again in a second"

/* The end that an error of the backend is. */
enum grpc_code routes_grpc_code(enum shoal_err err);
/* "/v2/models/NAME/infer": what a kernel hears of where it was asked. False: the name is too long. */
bool routes_grpc_path(const char *before, const char *model, const char *after, char *path, size_t cap);
/* The text of a kernel's refusal. */
void routes_grpc_refusal(const struct shoal_inferred *inferred, char *text, size_t cap);

/* routes_grpc_stream.c */
void routes_grpc_stream_begin(struct http_request *request);
void routes_grpc_stream_data(struct http_request *request, struct shoal_view content);
void routes_grpc_stream_ended(struct http_request *request);

#endif
