/* libFuzzer: certificates that a node shows to the command line before anybody believes it. */
#include "api/cli/cli_internal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct cli_trust trust;

    if (cli_trust_read((const char *)bytes, len, &trust)) {
        SHOAL_ASSERT(trust.count >= 1 && trust.count <= CLI_CHAIN_MAX);
        SHOAL_ASSERT(strlen(trust.fingerprint) == SHOAL_FINGERPRINT_TEXT_BYTES - 1);
        for (const char *at = trust.name; *at != '\0'; at++) /* it goes to a terminal */
            SHOAL_ASSERT(*at >= 0x20 && *at <= 0x7e);
    }
    return 0;
}
