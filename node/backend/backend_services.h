/* Services: names, verbs, requests. */
#ifndef SHOAL_NODE_BACKEND_SERVICES_H
#define SHOAL_NODE_BACKEND_SERVICES_H

#include "shoal/mesh.h"

#include "agent_backend.h"

/* `service` lives for the callback; NULL unless OK. */
typedef void backend_service_fn(void *arg, enum shoal_err err, const char *text,
                                const struct shoal_mesh_service *service);
/* By this node's copy of the mesh; where it has no such name, the mesh group is asked first. NOT_FOUND, UNREACHABLE. */
/* `fresh`: the mesh group is asked in any case. */
void backend_service_find(struct agent *agent, const char *name, bool fresh, backend_service_fn *done, void *arg);
/* A submit, of a service or of any other job. */
void backend_service_submit(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg);

/* As in shoal/backend.h. */
void backend_infer(void *ctx, const struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg);
void backend_services(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                      void *arg);
void backend_service_change(void *ctx, const struct shoal_user *caller, const char *name, enum shoal_service_verb verb,
                            unsigned replicas, shoal_backend_done_fn *done, void *arg);

void backend_serve_infer(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question);

#endif
