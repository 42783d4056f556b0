/* Hosts and jobs in one view: summaries, news, allocation, and the support that jobs want. */
#ifndef SCHED_VIEW_H
#define SCHED_VIEW_H

#include "shoal/job.h"
#include "shoal/job_facts.h"
#include "shoal/lead.h"
#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;

/* A job as gossip, or its leader's news, told of it last. */
struct sched_heard {
    struct shoal_job_summary summary;
    struct shoal_sched_version version;
    bool news;         /* its demand is from news: gossip of the same version may be older */
    uint64_t first_ns; /* when news told of it, and gossip has not yet; 0: it has (Y4) */
};

/* Jobs as gossip knows them: sched_summary.c. */
struct sched_summaries {
    struct sched_heard *list; /* in order of ids */
    size_t count, cap;
};

/* A change of free slots or of a demand is told directly to so many nodes; beyond it gossip does. */
#define SCHED_NEWS_NODES 8

/* Working memory of the allocation, grown where nodes and summaries are admitted: sched_view.c. */
struct sched_view {
    struct shoal_allocate *work;
    struct shoal_allocate_host *hosts;
    int32_t *slots, *given;
    uint8_t *numbers; /* of the slots, on their hosts; SCHED_NO_SLOT: shown elsewhere */
    struct shoal_allocate_job *jobs;
    struct shoal_allocate_grant *grants;
    struct shoal_lead_slot *list;
    uint32_t hosts_max, slots_max, jobs_max;
    uint32_t host_count, slot_count, job_count;
    uint64_t due_ns; /* evaluate then; SCHED_NEVER: nothing changed */
    uint64_t done_ns;
    /* The leaders of the first jobs that wait for slots, this node left out: sched_news.c. */
    uint32_t waiting_count;
    struct shoal_node_id waiting[SCHED_NEWS_NODES];
};

/* Nodes whose support jobs want: sched_interest.c. */
#define SCHED_INTEREST_MAX 256
struct sched_interest {
    struct shoal_node_id nodes[SCHED_INTEREST_MAX];
    size_t count;
    uint64_t due_ns; /* worked out anew then; SCHED_NEVER: nothing changed */
};

#define SCHED_NO_SLOT UINT8_MAX

/* sched_view_cards.c: cards that services share, each a host of its own in the view. */
/* Room that a node takes for them, beyond a host and its slots. */
uint32_t sched_view_cards_hosts(const struct shoal_cards *cards);
uint32_t sched_view_cards_slots(const struct shoal_cards *cards);
/* After the node's own host, which is the last of the view. */
void sched_view_cards(struct sched_view *view, const struct shoal_cards *cards);
/* The time from which it is known who holds what. */
void sched_view_cards_held(struct sched_view *view);

/* sched_summary.c */
void sched_on_summary(struct shoal_sched *s, const struct shoal_sched_event *event);
/* `news`: from the job's leader itself, ahead of gossip. */
/* Y5. */
void sched_summary_bury(struct shoal_sched *s, struct sched_group *g, bool archived);
/* Y4. When it is due again; SCHED_NEVER: no news waits for gossip. */
uint64_t sched_summaries_expire(struct shoal_sched *s);
void sched_summary_hear(struct shoal_sched *s, const struct shoal_job_summary *summary,
                        struct shoal_sched_version version, bool news);
void sched_summary_publish(struct shoal_sched *s, struct sched_group *g, struct shoal_view payload, bool demand_new);
/* The version of what is told of the job now: not below what was told before. */
struct shoal_sched_version sched_summary_version(const struct sched_group *g);
void sched_summary_gone(struct shoal_sched *s, struct sched_group *g, bool archived); /* its tombstone into gossip */
const struct shoal_job_summary *sched_summary_find(const struct shoal_sched *s, struct shoal_job_id job);

/* sched_news.c */
void sched_news_slots(struct shoal_sched *s, struct shoal_view payload);
void sched_news_summary(struct shoal_sched *s, const struct sched_group *g, struct shoal_view payload);
SHOAL_MUST_CHECK enum shoal_err sched_on_news(struct shoal_sched *s, struct shoal_node_id from,
                                              const struct frame *frame);

/* sched_view.c */
void sched_view_changed(struct shoal_sched *s);
void sched_view_due(struct shoal_sched *s);
void sched_view_free(struct sched_view *view);

/* sched_interest.c */
void sched_interest_later(struct shoal_sched *s); /* slots or leads have changed */
void sched_interest_due(struct shoal_sched *s);

#endif
