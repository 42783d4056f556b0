/* A control plane that is made and not stepped needs its environment named; these do nothing. */
#ifndef TESTS_NO_ENV_H
#define TESTS_NO_ENV_H

#include "shoal/sched.h"

static inline struct shoal_hash no_hash(void *arg, struct shoal_view bytes)
{
    (void)arg;
    (void)bytes;
    return (struct shoal_hash){ { 1 } };
}

static inline bool no_verify(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                             const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    (void)arg;
    (void)key;
    (void)bytes;
    (void)signature;
    return false;
}

#endif
