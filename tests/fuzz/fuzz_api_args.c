/* libFuzzer: a raw query string, then the args in it, then the lenient JSON of `data` (what follows the first NUL). */
#include "api/rest/args.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const struct shoal_user user = { .name = "ada" };
    const uint8_t *nul = memchr(bytes, 0, len);
    size_t query_len = nul == NULL ? len : (size_t)(nul - bytes);
    struct arena arena = { 0 };
    struct args_input input = { .caller = &user };
    struct args_result result;
    struct json_input *json = NULL;
    struct shoal_msg msg = { "" };

    if (len > 8192)
        return 0;
    input.frameworks = shoal_frameworks_builtin(&input.framework_count);
    if (nul != NULL && json_input_parse_lenient(shoal_view_of(nul + 1, len - query_len - 1), &json, &msg) == SHOAL_OK &&
        json_input_is_object(json_input_root(json)))
        input.data = json_input_root(json);
    if (args_from_query(&arena, shoal_view_of(bytes, query_len), &input.args, &msg) == SHOAL_OK && input.args != NULL) {
        enum shoal_err err = args_parse(&arena, &input, &result, &msg);

        if (err == SHOAL_OK) {
            SHOAL_ASSERT(result.options.workers_min >= 1 && result.options.workers_min <= result.options.workers_max);
            SHOAL_ASSERT(result.options.workers_max <= SHOAL_JOB_WORKERS_MAX && result.options.framework != NULL);
        } else {
            SHOAL_ASSERT(msg.text[0] != '\0');
        }
    }
    if (json != NULL)
        json_input_free(json);
    arena_deinit(&arena);
    return 0;
}
