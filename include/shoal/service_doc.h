/* The document of a service: what is written of it, as JSON that its group keeps. Pure: text in, text out.
 *
 *     { "model":   what model.json says, and uid, size, model_path (WMLA's model object)
 *       "profile": how it is run and scaled (WMLA's appprofile, schema 1.2), whole, defaults written out
 *       "readme":  text
 *       "started_at": seconds since 1970; 0: it is stopped      "updated_at": of the newest edit of these three
 *       "stopped_at": seconds since 1970 when it was stopped, while it is; an older agent leaves it out
 *       "canary":  {"part": ..., "at": ...} as in struct service_knobs; an older agent keeps it and does nothing by it }
 *
 * D1. A profile holds what its table of rows allows, or it is refused with the path of what is wrong, and nothing changes.
 * D2. Keys that nobody here knows are kept and given back.
 * D3. Name, uid, size and model_path are the server's own: what a client says of them changes nothing.
 * D4. Values of environments (kernel.envs, mk_environments) are shown to whom the caller says they may be: to nobody else. */
#ifndef SHOAL_SERVICE_DOC_H
#define SHOAL_SERVICE_DOC_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/cards.h"
#include "shoal/error.h"

/* The profile's bounds of scaling, over all replicas of the service. */
struct service_knobs {
    bool started;
    uint64_t stopped_s; /* since 1970, when it was stopped; 0: it has not been since it was deployed, or is not */
    uint32_t kernels_min, kernels_max; /* 0 to SHOAL_SERVICE_REPLICAS_MAX */
    uint32_t batch;
    uint32_t interval_s, release_s;
    uint32_t timeout_s; /* of one request, at most SHOAL_INFER_TIMEOUT_MS_MAX, which is what no limit is */
    uint32_t canary;    /* a percentage of the requests, and one; 0: no other version gets a part of them */
    uint32_t canary_at; /* the change of the service's name at which that was said: it counts until the next one */
    struct shoal_gpu_need need;
};

/* A new deployment. Texts are borrowed. */
struct service_doc_new {
    const char *name;
    struct shoal_view model_json; /* empty: the package has none */
    struct shoal_view readme;
    uint64_t content_bytes;
    uint64_t now_s;
    uint8_t chance[16]; /* of the uid */
    int replicas;       /* that it begins with; -1: stopped, as WMLA's are */
};

enum service_doc_edit_kind {
    SERVICE_DOC_START,
    SERVICE_DOC_STOP,
    SERVICE_DOC_SCALE,   /* to `replicas`, fixed */
    SERVICE_DOC_PROFILE, /* `body`: a profile, whole or in part */
    SERVICE_DOC_MODEL,   /* `body`: a model object */
    SERVICE_DOC_README,  /* `body`: {"readme": text} */
    SERVICE_DOC_CANARY,  /* `canary`, `canary_at` */
    SERVICE_DOC_CANARY_NEXT, /* it is stopped, and is to be the canary of `canary_at`, which is yet to come */
};

struct service_doc_edit {
    enum service_doc_edit_kind kind;
    struct shoal_view body;
    uint32_t replicas;
    const char *name; /* of the service: a profile must not have another */
    uint64_t now_s;
    uint32_t canary_version;    /* that is to get a part of the requests; 0: the canary ends */
    uint32_t canary, canary_at; /* as in struct service_knobs */
};

/* Each appends to `out` on success only. INVALID: the message names the key. MALFORMED: `doc` is no document. */
SHOAL_MUST_CHECK enum shoal_err service_doc_make(const struct service_doc_new *made, struct shoal_buf *out,
                                                 struct shoal_msg *msg);
SHOAL_MUST_CHECK enum shoal_err service_doc_edit(struct shoal_view doc, const struct service_doc_edit *edit,
                                                 struct shoal_buf *out, struct shoal_msg *msg);

/* The differences between two documents' profiles, as JSON: [{"path": "policy.kernel_max", "from": 100, "to": 4}]; a value
 * that is not there is null. `notes`: a list of texts, one for each new field that no part of Shoal reads. MALFORMED: one of
 * them is no document. */
SHOAL_MUST_CHECK enum shoal_err service_doc_changes(struct shoal_view before, struct shoal_view after,
                                                    struct shoal_buf *out, struct shoal_buf *notes);
/* Whether Shoal reads or keeps for a purpose the field of a profile at `path`, such as policy.kernel_max. */
bool service_doc_knows(const char *path);

/* The document of a version that takes the place of another one's: uid, profile and whether it is started stay. */
SHOAL_MUST_CHECK enum shoal_err service_doc_carry(struct shoal_view doc, struct shoal_view before,
                                                  struct shoal_buf *out, struct shoal_msg *msg);

/* Facts that do not ride in the document. */
struct service_doc_facts {
    const char *name, *creator, *service_uri;
    uint64_t created_s, updated_s;
    bool values; /* of environments are shown; else their names only, with SERVICE_DOC_HIDDEN for each value */
};
#define SERVICE_DOC_HIDDEN "(hidden)"
/* WMLA's model object, its profile, its readme ({"readme": ...}). A document that is empty has the defaults. */
SHOAL_MUST_CHECK enum shoal_err service_doc_model(struct shoal_view doc, const struct service_doc_facts *facts,
                                                  struct shoal_buf *out);
SHOAL_MUST_CHECK enum shoal_err service_doc_profile(struct shoal_view doc, const struct service_doc_facts *facts,
                                                    struct shoal_buf *out);
SHOAL_MUST_CHECK enum shoal_err service_doc_readme(struct shoal_view doc, struct shoal_buf *out);
/* Every node has the runtime of that name, and what it is on that node, the node says. */
bool service_doc_runtime_is_ours(const char *name);
/* The name of the runtime that the model's kernels need, or "". Cut at `cap`. */
void service_doc_runtime(struct shoal_view doc, char *name, size_t cap);
/* "no", "shared" or "exclusive". */
void service_doc_gpu(struct shoal_view doc, char *gpu, size_t cap);
/* The name under which kernels share cards: gpu_pack_id of its profile, else its own (edi-NAME); "": none. */
void service_doc_pack(struct shoal_view doc, const char *name, char *pack, size_t cap);
/* MiB of a card that a kernel which shares one has, where its profile says nothing. */
#define SERVICE_DOC_GPU_MIB 4096u
/* Of an empty or broken document: a fixed number of replicas is all there is, `started` says whether there are any. */
void service_doc_knobs(struct shoal_view doc, uint32_t replicas, struct service_knobs *knobs);
/* A model that is stopped is shown as started for one to two seconds, whatever its kernels do: what a script asks right after it
 * has stopped it is refused on a fast mesh as on a slow one (acceptance A8). Of a clock that is behind the stop it is not. */
#define SERVICE_DOC_STOP_SECONDS 2u
bool service_doc_stops(const struct service_knobs *knobs, uint64_t now_s);

#endif
