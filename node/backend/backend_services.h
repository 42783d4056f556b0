/* Services: names, verbs, requests. */
#ifndef SHOAL_NODE_BACKEND_SERVICES_H
#define SHOAL_NODE_BACKEND_SERVICES_H

#include "shoal/mesh.h"
#include "shoal/service_doc.h"

#include "agent_backend.h"

/* `service` lives for the callback; NULL unless OK. */
typedef void backend_service_fn(void *arg, enum shoal_err err, const char *text,
                                const struct shoal_mesh_service *service);
/* backend_service_settle.c: whether the deployment of a canary was interrupted there. */
bool backend_service_is_half(const struct service_knobs *knobs, const struct shoal_mesh_service *service);
/* `settled`: it had been, and the name stands for the current version again. `service` as above. */
typedef void backend_settled_fn(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service,
                                bool settled);
/* The mesh group is asked for the name in any case. NOT_FOUND, UNREACHABLE, DENIED. */
void backend_service_settle(struct agent *agent, const struct shoal_user *caller, const char *name, backend_settled_fn *done,
                            void *arg);
/* By this node's copy of the mesh; where it has no such name, and with `fresh` in any case, the mesh group is asked first.
 * NOT_FOUND, UNREACHABLE. */
void backend_service_find(struct agent *agent, const char *name, bool fresh, backend_service_fn *done, void *arg);
/* The service that has `job` as its version now or before, by this node's copy of the mesh; NULL: it is none's. */
const struct shoal_mesh_service *backend_service_of(struct agent *agent, struct shoal_job_id job);
/* backend_versions.c: the number of a service's version; 0: this node does not know it. */
uint32_t backend_version_number(struct agent *agent, const struct shoal_mesh_service *service, bool current);
/* A version's canary, as its summary tells it. */
uint8_t backend_canary_part(struct agent *agent, struct shoal_job_id job);
struct backend_version {
    const struct shoal_mesh_service *service;
    struct shoal_job_id job;
    bool current; /* the service's name stands for it; else it is the other one that is kept */
};
/* `found` lives for the callback; NULL unless OK. NOT_FOUND: the text says which versions there are. */
typedef void backend_version_fn(void *arg, enum shoal_err err, const char *text, const struct backend_version *found);
void backend_version_find(struct agent *agent, const char *name, const char *version, bool fresh,
                          backend_version_fn *done, void *arg);
/* By the word of the hosts. */
struct backend_tally {
    uint32_t ready, open;
    uint32_t held; /* of those that are open: where they came in, until a kernel is ready */
    uint64_t answered, failed;
};
void backend_version_tally(struct agent *agent, struct shoal_job_id job, struct backend_tally *tally);
bool backend_host_serves(struct agent *agent, const struct shoal_record *record, struct shoal_serving_record *serving);
/* backend_serving.c: what all hosts say, in order of jobs and nodes. */
struct backend_serving_row {
    struct shoal_node_id node;
    struct shoal_serving serving;
};
struct backend_serving {
    struct backend_serving_row *rows;
    size_t count;
};
/* False: no memory; nothing to free. */
bool backend_serving_read(struct agent *agent, struct backend_serving *all);
void backend_serving_free(struct backend_serving *all);
const struct backend_serving_row *backend_serving_of(const struct backend_serving *all, struct shoal_job_id job,
                                                     size_t *count);
void backend_serving_tally(const struct backend_serving *all, struct shoal_job_id job, struct backend_tally *tally);
/* ,"versions":[{"version","role","job","weight","replicas","ready","open","answered","failed"}, ...] */
bool backend_versions_put(struct agent *agent, const struct backend_serving *all, const struct shoal_mesh_service *service,
                          struct shoal_buf *json);
/* A change of the mesh group, by a user. */
void backend_change_mesh(struct agent *agent, const struct shoal_user *caller, enum shoal_mesh_command_kind kind,
                         const struct shoal_mesh_service *service, agent_reply_fn *done, void *arg);
/* How many kernels of a job are ready and how many requests they have in hand, by the word of their hosts. */
void backend_service_count(struct agent *agent, struct shoal_job_id job, uint32_t *ready, uint32_t *open);
/* A submit, of a service or of any other job. */
void backend_service_submit(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg);

/* As in shoal/backend.h. */
void backend_infer(void *ctx, struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg);
void backend_infer_more(void *ctx, uint64_t number, size_t bytes);
void backend_infer_cancel(void *ctx, uint64_t number);
void backend_services(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                      void *arg);
void backend_service_change(void *ctx, const struct shoal_user *caller, const char *name, enum shoal_service_verb verb,
                            unsigned replicas, shoal_backend_done_fn *done, void *arg);

void backend_service_look(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_service_fn *done,
                          void *arg);
void backend_service_edit(void *ctx, const struct shoal_user *caller, const char *name,
                          const struct service_doc_edit *edit, shoal_backend_done_fn *done, void *arg);
void backend_service_canary(void *ctx, const struct shoal_user *caller, const char *name, const char *version,
                            unsigned percent, shoal_backend_done_fn *done, void *arg);
void backend_service_kernels(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                             void *arg);
void backend_runtimes(void *ctx, const struct shoal_user *caller, shoal_backend_text_fn *done, void *arg);
void backend_runtime_set(void *ctx, const struct shoal_user *caller, const char *name, struct shoal_view json,
                         shoal_backend_done_fn *done, void *arg);
/* Of questions between hosts about requests (backend_infer.c): which kernels are there? */
#define BACKEND_INFER_LOOK 3
/* The local part of it: {"id",...},{...} */
bool backend_kernels_here(struct agent *agent, struct shoal_job_id job, struct shoal_buf *json);

/* Each tick: requests that are held, and how many kernels the services led here are to have (backend_scale.c). */
void backend_infer_look(struct agent *agent);
size_t backend_infer_held(struct agent *agent, struct shoal_serving *held, size_t cap);
void backend_scale_look(struct agent *agent);
void backend_scale_end(struct agent *agent);

/* A link broke: what that node asked for is dropped. */
void backend_infer_down(struct agent *agent, struct shoal_node_id node);
void backend_serve_infer(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question);

#endif
