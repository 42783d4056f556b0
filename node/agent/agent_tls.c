/* The mesh's CA from its secret (decision 0020). */
#include "agent.h"

#include "shoal/http.h"

#include "shoal/banned.h"

void agent_tls_names(const struct shoal_identity *identity, struct shoal_tls_names *names)
{
    static const char *const purposes[2] = { "shoal mesh CA key, first half", "shoal mesh CA key, second half" };

    *names = (struct shoal_tls_names){ .mesh = identity->mesh_name };
    for (unsigned i = 0; i < 2; i++) {
        struct shoal_secret half = shoal_secret_derive(&identity->mesh_secret, purposes[i]);

        _Static_assert(2 * sizeof(half) == SHOAL_TLS_SEED_BYTES, "two secrets are a seed");
        memcpy(names->seed + i * sizeof(half), half.bytes, sizeof(half));
        shoal_wipe(&half, sizeof(half));
    }
}

enum shoal_err agent_tls_ready(const char *data, const struct shoal_identity *identity,
                               char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES], struct shoal_msg *msg)
{
    struct shoal_tls_names names;
    char dir[AGENT_PATH_BYTES + 16];
    enum shoal_err err;

    (void)snprintf(dir, sizeof(dir), "%s/tls", data == NULL ? "" : data);
    agent_tls_names(identity, &names);
    err = shoal_tls_ca_ready(data == NULL ? NULL : dir, &names, fingerprint, msg);
    shoal_wipe(&names, sizeof(names));
    return err;
}
