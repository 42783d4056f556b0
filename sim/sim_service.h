/* Services of the simulator: see sim_service.c. */
#ifndef SHOAL_SIM_SERVICE_H
#define SHOAL_SIM_SERVICE_H

#include "sim.h"

/* A document, as hosts read it. */
struct sim_knobs {
    uint32_t min, max, batch, edit;
    bool started;
};
size_t sim_document(const struct sim_job *job, bool started, uint32_t edit, char *text, size_t cap);
/* Whether its document says that it is started. */
bool sim_service_runs(const struct shoal_job *replica);
bool sim_document_read(struct shoal_view view, struct sim_knobs *knobs);

void sim_service_event(struct sim_host *host, const struct sim_event *event);
void sim_service_start(struct sim_host *host);
void sim_service_end(struct sim_host *host);
void sim_service_deinit(struct sim_host *host);
void sim_service_made(struct sim *sim);
/* Clients that edit, start and stop services, and what linearizable answers say of their documents. */
void sim_service_client(struct sim *sim, uint32_t at);
void sim_service_edited(struct sim *sim, const struct sim_request *request);
struct shoal_job_facts;
void sim_service_shown(struct sim *sim, const struct sim_request *request, const struct shoal_job_facts *facts);
void sim_burst(struct sim *sim, uint32_t at, uint32_t job, uint64_t count);
void sim_infer_facts(struct sim *sim, const struct sim_request *request, const struct shoal_sched_action *action);
bool sim_services_done(struct sim *sim, char *why, size_t cap);

/* True: it is a kernel. */
bool sim_kernel_connected(struct sim_host *host, struct sim_worker *worker);
/* True: it ends when it has answered what it has. */
bool sim_kernel_drain(struct sim_host *host, struct sim_worker *worker, uint64_t grace_ns);
void sim_kernel_ended(struct sim_host *host, const struct sim_worker *worker);

#endif
