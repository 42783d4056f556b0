/* Inside `dlim`, the client of Elastic Distributed Inference that WMLA's scripts call. Its words, options, output and exit
 * codes are the original's (the inference contract, section 9): 0 done, 1 anything else. */
#ifndef API_CLI_DLIM_H
#define API_CLI_DLIM_H

#include "cli_internal.h"

#define DLIM_WORDS_MAX 8
#define DLIM_URL_BYTES_MAX 1024u
#define DLIM_TOKEN_BYTES_MAX 4096u

struct dlim {
    struct cli cli; /* what requests need of the command line */
    const char *words[DLIM_WORDS_MAX];
    unsigned word_count;
    const char *server, *token; /* --rest-server, --jwt-token; NULL: the stored ones */
    const char *new_server;     /* -c */
    const char *user, *password, *api_key;
    const char *dir, *file;    /* -p DIR; -f FILE where a file is wanted */
    bool force, status, all, as_json, user_token, service_token;
    bool help, version;
    char base[DLIM_URL_BYTES_MAX]; /* of the server, without /dlim/v1 */
    char bearer[DLIM_TOKEN_BYTES_MAX];
};

/* dlim_show.c: what is printed of the server's answers. */
void dlim_show_list(const struct json_value *models, const char *first, const char *second, const char *left,
                    const char *right);
void dlim_show_model(const struct json_value *model);
void dlim_show_instance(const struct json_value *model, const struct json_value *instance, bool kernels);
void dlim_show_profile(const struct json_value *profile);

#endif
