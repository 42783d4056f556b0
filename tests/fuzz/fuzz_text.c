/* libFuzzer: texts of people and clients. The first byte chooses: agent.conf, an address, a mesh key, ids, a token (as
 * it comes, and signed by the mesh), JSON, the end of a log. What is taken must read back as the same; what is refused must say why. */
#include "api/http/json_input.h"
#include "shoal/token.h"
#include "node/agent/agent_conf.h"
#include "node/agent/agent_words.h"

#include <sodium.h>

#include "shoal/address.h"
#include "shoal/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void conf(char *text)
{
    struct shoal_cli_agent options = { .name = "",
                                       .host = "",
                                       .api_host = "",
                                       .inventory = "",
                                       .fabric_trusted = "",
                                     .transport = "",
                                       .domain = "",
                                       .python = "",
                                       .libs = "",
                                       .prefill_mib = UINT64_MAX,
                                       .warm_memory_mib = UINT64_MAX };
    static struct agent_settings settings;
    struct shoal_msg msg = { "" };

    if (agent_conf_parse(&options, text, "agent.conf", &msg) != SHOAL_OK)
        SHOAL_ASSERT(msg.text[0] != '\0');
    SHOAL_ASSERT(options.slots <= SHOAL_SLOTS_MAX);
    if (agent_inventory(&settings, options.inventory, options.slots, &msg) == SHOAL_OK)
        SHOAL_ASSERT(settings.slots >= 1 && settings.slots <= SHOAL_SLOTS_MAX);
}

static void address(const char *text)
{
    struct shoal_address parsed, again;
    char shown[SHOAL_ADDRESS_TEXT_BYTES];
    struct shoal_msg msg = { "" };

    if (shoal_address_parse(text, 7410, &parsed, &msg) != SHOAL_OK) {
        SHOAL_ASSERT(msg.text[0] != '\0');
        return;
    }
    shoal_address_text(parsed, shown);
    SHOAL_ASSERT(shoal_address_parse(shown, 0, &again, &msg) == SHOAL_OK && shoal_address_equal(parsed, again));
}

static void mesh_key(const char *text)
{
    struct shoal_identity identity = { 0 };
    char shown[SHOAL_MESH_KEY_TEXT_BYTES], name[SHOAL_MESH_NAME_MAX + 1];
    struct shoal_secret secret;
    struct shoal_msg msg = { "" };

    if (shoal_mesh_key_parse(text, identity.mesh_name, &identity.mesh_secret, &msg) != SHOAL_OK) {
        SHOAL_ASSERT(msg.text[0] != '\0');
        return;
    }
    shoal_mesh_key_text(&identity, shown);
    SHOAL_ASSERT(shoal_mesh_key_parse(shown, name, &secret, &msg) == SHOAL_OK);
    SHOAL_ASSERT(strcmp(name, identity.mesh_name) == 0);
    SHOAL_ASSERT(memcmp(secret.bytes, identity.mesh_secret.bytes, sizeof(secret.bytes)) == 0);
}

static void ids(const char *text)
{
    struct shoal_job_id id, again;
    char shown[SHOAL_JOB_ID_TEXT_BYTES];
    uint8_t hex[16];

    (void)shoal_hex_parse(text, hex, sizeof(hex));
    if (!shoal_job_id_parse(text, &id))
        return;
    shoal_job_id_text(id, shown);
    SHOAL_ASSERT(shoal_job_id_parse(shown, &again) && shoal_job_id_equal(id, again));
}

/* The first bytes of a good token, the fuzzer's bytes as its payload, and a signature that fits them. */
static size_t sign_token(struct shoal_view view, const uint8_t key[SHOAL_TOKEN_KEY_BYTES], char *text)
{
    static const struct token_claims claims = { .user = "ada", .exp_s = 2, .issued_s = 1 };
    uint8_t payload[TOKEN_PAYLOAD_BYTES], mac[crypto_auth_hmacsha256_BYTES];
    struct shoal_msg msg;
    char *dot;
    size_t at;

    SHOAL_ASSERT(token_make(&claims, key, text, &msg) == SHOAL_OK);
    dot = strchr(text, '.') + 1;
    memset(payload, ' ', sizeof(payload));
    memcpy(payload, view.bytes, view.len < sizeof(payload) ? view.len : sizeof(payload));
    (void)sodium_bin2base64(dot, sizeof(payload) / 3 * 4 + 1, payload, sizeof(payload),
                            sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    at = strlen(text);
    (void)crypto_auth_hmacsha256(mac, (const uint8_t *)text, at, key);
    text[at++] = '.';
    (void)sodium_bin2base64(text + at, TOKEN_TEXT_BYTES + 1 - at, mac, sizeof(mac),
                            sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    return strlen(text);
}

static void token(struct shoal_view view)
{
    static const struct shoal_token_keys keys = { .keys = { { 1 } }, .count = 1 };
    char text[TOKEN_TEXT_BYTES + 1];
    struct token_claims claims;
    struct shoal_msg msg = { "" };
    size_t len;

    SHOAL_ASSERT(token_check(view, &keys, 1, &claims, &msg) != SHOAL_OK && msg.text[0] != '\0');
    len = sign_token(view, keys.keys[0], text);
    if (token_check(shoal_view_of(text, len), &keys, 1, &claims, &msg) == SHOAL_OK)
        SHOAL_ASSERT(claims.exp_s > 1 && memchr(claims.user, 0, sizeof(claims.user)) != NULL);
}

static void json(struct shoal_view view)
{
    struct json_input *input, *again;
    struct shoal_msg msg = { "" };
    char *dump;

    if (json_input_parse(view, &input, &msg) != SHOAL_OK) {
        SHOAL_ASSERT(msg.text[0] != '\0');
        return;
    }
    dump = json_input_dump(json_input_root(input));
    if (dump != NULL && json_input_parse(shoal_view_text(dump), &again, &msg) == SHOAL_OK)
        json_input_free(again);
    free(dump);
    json_input_free(input);
}

static void words(const char *text)
{
    char shown[200];

    agent_words(text, shown, sizeof(shown));
    SHOAL_ASSERT(memchr(shown, 0, sizeof(shown)) != NULL && strchr(shown, '\n') == NULL);
}

#define WORDS 'w' /* the corpus is older than this kind */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct shoal_view view;
    char *text;

    if (len == 0 || sodium_init() < 0)
        return 0;
    view = shoal_view_of(bytes + 1, len - 1);
    text = malloc(len); /* NUL at the memory's end */
    SHOAL_ASSERT(text != NULL);
    memcpy(text, bytes + 1, len - 1);
    text[len - 1] = '\0';
    switch (bytes[0] == WORDS ? WORDS : bytes[0] % 6) {
    case WORDS: words(text); break;
    case 0: conf(text); break;
    case 1: address(text); break;
    case 2: mesh_key(text); break;
    case 3: ids(text); break;
    case 4: token(view); break;
    default: json(view); break;
    }
    free(text);
    return 0;
}
