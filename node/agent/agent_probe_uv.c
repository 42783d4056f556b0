#include "agent_probe.h"

#include <uv.h>

#include "shoal/banned.h"

struct probing {
    struct agent_probe *probes;
    size_t count, left;
    struct shoal_link *link;
};

static void on_probed(void *arg, const struct shoal_link_probe *found)
{
    struct probing *p = arg;
    struct agent_probe *probe = p->probes;

    while (probe->text[0] != '\0' || !shoal_address_equal(probe->address, found->address)) {
        probe++;
        SHOAL_ASSERT(probe < p->probes + p->count); /* each is asked for once, and ends once */
    }
    probe->node = found->node;
    probe->err = found->err;
    (void)snprintf(probe->text, sizeof(probe->text), "%s", found->text);
    if (--p->left == 0)
        shoal_link_stop(p->link, NULL, NULL);
}

static void ask(struct probing *p, struct agent_probe *probe)
{
    probe->text[0] = '\0';
    probe->node = (struct shoal_node_id){ { 0 } };
    probe->err = shoal_link_probe(p->link, probe->address);
    if (probe->err == SHOAL_OK)
        p->left++;
    else
        (void)snprintf(probe->text, sizeof(probe->text), "it could not be asked: %s", shoal_err_name(probe->err));
}

void agent_probe_all(const struct shoal_identity *identity, struct agent_probe *probes, size_t count,
                     unsigned timeout_ms)
{
    struct probing p = { .probes = probes, .count = count };
    struct shoal_link_options options = { .identity = identity,
                                          .probes_only = true,
                                          .handshake_timeout_ns = timeout_ms * SHOAL_MS,
                                          .handlers = { .arg = &p, .on_probed = on_probed } };
    struct shoal_msg msg = { "" };
    uv_loop_t loop;
    int rc = uv_loop_init(&loop);

    SHOAL_ASSERT(rc == 0 && count > 0);
    options.loop = &loop;
    if (shoal_link_create(&p.link, &options, &msg) != SHOAL_OK) {
        for (size_t i = 0; i < count; i++) {
            probes[i].err = SHOAL_ERR_FULL;
            (void)snprintf(probes[i].text, sizeof(probes[i].text), "it could not be asked: %.200s", msg.text);
        }
    } else {
        for (size_t i = 0; i < count; i++)
            ask(&p, &probes[i]);
        if (p.left == 0)
            shoal_link_stop(p.link, NULL, NULL);
    }
    rc = uv_run(&loop, UV_RUN_DEFAULT);
    SHOAL_ASSERT(rc == 0); /* each probe ends, by its timeout at the latest, and then the link closes */
    rc = uv_loop_close(&loop);
    SHOAL_ASSERT(rc == 0);
}
