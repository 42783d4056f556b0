/* libFuzzer: what follows "Basic " in a header of a client that nobody knows. */
#include "api/http/http_server.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char pair[AUTH_PAIR_BYTES];
    char *password = NULL;

    if (auth_basic_decode(shoal_view_of(bytes, len), pair, &password)) {
        size_t user_len = strlen(pair);

        SHOAL_ASSERT(password == pair + user_len + 1 && memchr(pair, ':', user_len) == NULL);
        SHOAL_ASSERT(user_len + strlen(password) + 1 < AUTH_PAIR_BYTES);
    }
    return 0;
}
