/* A request for a model over HTTP, whichever of the protocols it came by: its body, the answer in one piece or in several, and
 * the errors in the protocol's own form.
 *
 *     asking_begin --> asking_data* --> asking_run --> the backend --> one answer
 *                                                            '-----> server-sent events, one a piece of the kernel's
 *
 * A1. Pieces go out as events where the client asks for them: by "Accept: text/event-stream", or by "stream" of OpenAI's. The
 *     next ones are asked for when the last ones are in the client's socket.
 * A2. A client that goes takes its request along: what waits is dropped, a kernel that gives pieces stops. */
#ifndef API_ASKING_H
#define API_ASKING_H

#include "api/http/http_server.h"

enum asker { ASKER_OIP, ASKER_DLIM, ASKER_OPENAI, ASKER_EDI };

/* Of a route with HTTP_BODY_STREAM. */
void asking_begin(struct http_request *request);
void asking_data(struct http_request *request, struct shoal_view content);
/* The answer so far; lives as long as the request. */
struct shoal_view asking_body(const struct http_request *request);
/* Pieces are wanted whatever the client accepts. */
void asking_stream(struct http_request *request);
/* Of ASKER_EDI: what answers with a kernel's output. */
typedef void asking_answer_fn(struct http_request *request, struct shoal_view output);
void asking_answer_by(struct http_request *request, asking_answer_fn *answer);
/* `model` and `version` live as long as the request. */
void asking_run(struct http_request *request, enum asker asker, const char *model, const char *version);
/* An error in the protocol's own form. */
void asking_refuse(struct http_request *request, enum asker asker, int status, const char *text);

#endif
