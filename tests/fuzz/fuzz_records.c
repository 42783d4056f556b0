/* libFuzzer: what a node hears of others by gossip, as the control plane takes it: facts, load and slots records, a
 * job's summary, and a ticket. What decodes must encode and decode again to the same. The first byte chooses. */
#include "shoal/control_record.h"
#include "shoal/job.h"
#include "shoal/job_facts.h"
#include "shoal/slots.h"
#include "shoal/sched_ticket.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void facts(struct shoal_view view)
{
    struct shoal_facts_record heard, again;
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len;

    if (shoal_facts_record_decode(view, &heard) != SHOAL_OK)
        return;
    SHOAL_ASSERT(shoal_facts_record_encode(&heard, bytes, sizeof(bytes), &len) == SHOAL_OK);
    SHOAL_ASSERT(shoal_facts_record_decode(shoal_view_of(bytes, len), &again) == SHOAL_OK);
    SHOAL_ASSERT(heard.cpus == again.cpus && strcmp(heard.domain, again.domain) == 0 &&
                 strcmp(heard.numeric_class, again.numeric_class) == 0 && strcmp(heard.api_url, again.api_url) == 0);
}

static void load(struct shoal_view view)
{
    struct shoal_load_record heard, again;
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len;

    if (shoal_load_record_decode(view, &heard) != SHOAL_OK)
        return;
    SHOAL_ASSERT(shoal_load_record_encode(&heard, bytes, sizeof(bytes), &len) == SHOAL_OK);
    SHOAL_ASSERT(shoal_load_record_decode(shoal_view_of(bytes, len), &again) == SHOAL_OK);
    SHOAL_ASSERT(heard.count == again.count && heard.load_milli == again.load_milli);
}

static void node(struct shoal_view view, enum shoal_record_kind kind)
{
    struct shoal_record record = { .kind = kind, .payload = view };
    struct shoal_member member = { .state = SHOAL_MEMBER_ALIVE };
    struct shoal_sched_event event;

    shoal_control_node(&member, kind == SHOAL_RECORD_NODE_SLOTS ? &record : NULL,
                       kind == SHOAL_RECORD_NODE_FACTS ? &record : NULL, &event);
    SHOAL_ASSERT(event.u.node.slots <= SHOAL_SLOTS_MAX);
    SHOAL_ASSERT(memchr(event.u.node.domain, 0, sizeof(event.u.node.domain)) != NULL);
}

static void ticket(struct shoal_view view)
{
    struct shoal_sched_ticket heard;
    uint8_t bytes[SHOAL_SCHED_TICKET_BYTES_MAX];
    size_t len;

    if (shoal_sched_ticket_decode(view, &heard) != SHOAL_OK)
        return;
    SHOAL_ASSERT(shoal_sched_ticket_encode(&heard, bytes, sizeof(bytes), &len) == SHOAL_OK);
    SHOAL_ASSERT(len == view.len && memcmp(bytes + 3, view.bytes + 3, len - 3) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct shoal_job_summary summary;
    struct shoal_view view;

    if (len == 0)
        return 0;
    view = shoal_view_of(bytes + 1, len - 1);
    switch (bytes[0] % 6) {
    case 0: facts(view); break;
    case 1: load(view); break;
    case 2: node(view, SHOAL_RECORD_NODE_FACTS); break;
    case 3: node(view, SHOAL_RECORD_NODE_SLOTS); break;
    case 4: ticket(view); break;
    default: (void)!shoal_job_summary_decode(view, &summary); break;
    }
    return 0;
}
