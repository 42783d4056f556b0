/* Shared by the routes of both APIs. */
#ifndef API_ROUTES_H
#define API_ROUTES_H

#include "api/http/http_server.h"

#define ROUTES_BASE "/platform/rest/deeplearning/v1"

/* "2031-05-01T09:30:00Z" */
void routes_time_text(uint64_t ms, char text[32]);

/* Streams a log: asks the backend for piece after piece until nothing more is there now. `as_json`: one JSON string. */
void routes_log_stream(struct http_request *request, enum shoal_log_kind kind, unsigned task, unsigned last_lines,
                       bool as_json, int not_found);

/* submit_uv.c: a multipart, form or empty body into a job (or, for POST /v1/tickets, into a ticket). */
void submit_begin(struct http_request *request);
void submit_data(struct http_request *request, struct shoal_view content);
void submit_handle(struct http_request *request);
void submit_ticket_handle(struct http_request *request);

/* routes_nodes.c */
void routes_node_remove(struct http_request *request);
void routes_node_readmit(struct http_request *request);
void routes_node_drain(struct http_request *request);
void routes_node_undrain(struct http_request *request);
void routes_node_leave(struct http_request *request);
void routes_mesh_recover(struct http_request *request);
/* Of a recovery, a job's or the mesh group's: who is lost, as the beginning of its text; and the whole answer (`id` NULL: of
 * the mesh group). */
void routes_recovery_begin(const struct shoal_recovery_info *recovery, const char *of, char *text, size_t cap);
void routes_recovery_answer(struct http_request *request, const struct shoal_recovery_info *recovery, const char *id,
                            const char *text);
/* `confirm`, or another flag of the query. False: it is neither true nor false, which has been answered. */
bool routes_flag(struct http_request *request, const char *key, bool *value);

/* A number of the query, `min` to `max`; absent: `*value` stays. False: it is none, which has been answered. */
bool routes_number(struct http_request *request, const char *key, uint64_t min, uint64_t max, uint64_t *value);

/* routes_execs.c: notebooks loop while an exec's state is one of three, and are shown no other active one; the end of a job */
const char *routes_exec_state(const struct shoal_http *http, const char *state);
void routes_exec_stop(struct http_request *request);

/* routes_curve.c: the loss curve, as JSON or CSV */
void routes_curve(struct http_request *request);

void routes_metrics(struct http_request *request);

#define ROUTES_FILE_BYTES 384u /* about as much is kept of a file of a list, and written */

/* routes_files.c */
void routes_files_list(struct http_request *request);
void routes_file_get(struct http_request *request);

/* routes_services.c: what a deployment is answered. */
void routes_service_answer(struct http_request *request, const struct shoal_job_info *job);

/* routes_oip.c: for its twin, gRPC. params[0] is the model, params[1] the version or NULL. */
void routes_oip_server(struct http_request *request);
void routes_oip_live(struct http_request *request);
void routes_oip_ready(struct http_request *request);
void routes_oip_model(struct http_request *request);
void routes_oip_model_ready(struct http_request *request);
void routes_oip_index(struct http_request *request);

/* routes_profile.c: the same of WMLA's address */
void routes_profile_put_dlim(struct http_request *request);

/* routes_dlim.c: answers with the model object. */
void routes_dlim_model(struct http_request *request, const char *name);

/* routes_dlim.c: models, for both of WMLA's addresses of them. What is wanted of one, once it has been read. */
typedef void routes_model_fn(struct http_request *request, const struct shoal_service_info *info);
void routes_model_look(struct http_request *request, const char *name, routes_model_fn *then);
bool routes_model_enabled(const struct shoal_service_info *info);
/* The caller is the owner of the service, or an administrator: it may see the values of its environments. */
bool routes_model_is_own(const struct http_request *request, const struct shoal_service_info *info);
/* `uri` is what service_uri points to. */
struct service_doc_facts routes_model_facts(struct http_request *request, const struct shoal_service_info *info,
                                            char uri[512]);
/* Answers with `json` and frees it; an error says that the document does not decode. */
void routes_model_respond(struct http_request *request, int status, enum shoal_err err, struct shoal_buf *json);
void routes_model_uid(const struct shoal_service_info *info, char text[40]);
/* "isd_container", of what backend.service_kernels says; returns how many requests are in kernels. */
int64_t routes_model_kernels(struct json_writer *w, struct shoal_view json, const char *finished);
/* The sum of its kernels' answers of late. */
void routes_model_rates(struct shoal_view json, int64_t *milli_requests_per_s, int64_t *bytes_per_s);
/* All models, by name: `begin`, what `put` says of each with commas between them, `end`. */
struct routes_models {
    const char *begin, *end;
    enum shoal_err (*put)(struct http_request *request, const struct shoal_service_info *info, struct shoal_buf *out);
};
void routes_model_list(struct http_request *request, const struct routes_models *shown);
/* Of the model params[0]; they answer {}, or {"readme": text}. */
void routes_model_start(struct http_request *request);
void routes_model_stop(struct http_request *request);
void routes_model_delete(struct http_request *request);
void routes_model_readme(struct http_request *request);
void routes_model_edit(struct http_request *request, enum service_doc_edit_kind kind);

/* routes_runtimes.c: `then` goes on where the model's runtime is there; else 400. */
void routes_runtime_needed(struct http_request *request, const struct shoal_service_info *info,
                           void (*then)(struct http_request *request));

/* routes_edimodels.c: answers 201 with the model that was made. */
void routes_edi_made(struct http_request *request, const char *name);

/* result_zip.c */
void result_handle_execs(struct http_request *request);
void result_handle_native(struct http_request *request);

/* The exec object (execs-api 4.9). */
void routes_exec_json(struct json_writer *w, struct http_request *request, const struct shoal_job_info *job);

#endif
