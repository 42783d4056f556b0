/* A request says who asks: by Bearer, then X-Auth-Token, then Basic (execs-api 2.1).
 *
 * A password check costs tens of milliseconds by intent. Clients that send Basic on each request are remembered for a
 * minute by a keyed digest of user and password, with a key of this process; the password itself is never kept. */
#include "http_server.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "shoal/banned.h"

#define BASIC_TRUST_MS 60000u

static void refuse(struct http_request *request, const char *text)
{
    request->http->stats.refused_auth++;
    http_respond_error(request, 401, "%s", text);
}

/* Whether `value` begins with the scheme; then only its credentials are left in it. */
static bool take_scheme(struct shoal_view *value, const char *scheme)
{
    size_t len = strlen(scheme);

    if (value->len <= len || strncasecmp((const char *)value->bytes, scheme, len) != 0 || value->bytes[len] != ' ')
        return false;
    while (len < value->len && value->bytes[len] == ' ')
        len++;
    value->bytes += len;
    value->len -= len;
    return true;
}

/* Of gRPC: all but what starts and stops models. */
static bool is_harmless_call(struct shoal_view path)
{
    static const char oip[] = "/inference.GRPCInferenceService/", changes[] = "RepositoryModel", dlim[] = "/dlim.v1.";
    size_t len = sizeof(oip) - 1;

    if (path.len > len && memcmp(path.bytes, oip, len) == 0)
        return path.len < len + sizeof(changes) - 1 || memcmp(path.bytes + len, changes, sizeof(changes) - 1) != 0;
    return path.len > sizeof(dlim) - 1 && memcmp(path.bytes, dlim, sizeof(dlim) - 1) == 0;
}

/* Whether it only asks a model or reads. */
static bool is_harmless(const struct http_request *request)
{
    static const char asks[] = "/dlim/v1/inference/";
    struct shoal_view path = request->head.path;

    return request->head.method == HTTP1_GET || request->head.method == HTTP1_HEAD ||
           (path.len >= sizeof(asks) - 1 && memcmp(path.bytes, asks, sizeof(asks) - 1) == 0) ||
           is_harmless_call(path) ||
           (path.len > 6 && memcmp(path.bytes, "/v2/", 4) == 0 && memcmp(path.bytes + path.len - 6, "/infer", 6) == 0);
}

/* Sets the user, or says why not. Keys, revocation and the user are those of now. */
static bool token_is_good(struct http_request *request, struct shoal_view text, struct shoal_msg *why)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_token_keys keys = { .count = 0 };
    enum shoal_err err;

    backend->token_keys(backend->ctx, &keys);
    err = token_check_known(&request->http->tokens, text, &keys, (uint64_t)time(NULL), &request->token, why);
    sodium_memzero(&keys, sizeof(keys));
    request->has_token = false;
    if (err != SHOAL_OK)
        return false;
    if (backend->token_revoked(backend->ctx, request->token.id))
        return shoal_fail(why, SHOAL_ERR_DENIED, "the token was logged off; log on again") == SHOAL_OK;
    if (!backend->user_find(backend->ctx, request->token.user, &request->user) ||
        request->token.issued_s < request->user.tokens_from_s)
        return shoal_fail(why, SHOAL_ERR_DENIED, "the token's user was changed or removed; log on again") == SHOAL_OK;
    request->has_token = true;
    (void)snprintf(request->user.token, sizeof(request->user.token), "%.*s", (int)TOKEN_TEXT_BYTES,
                   (const char *)text.bytes);
    return true;
}

static void take_token(struct http_request *request, http_request_fn *ok)
{
    if (request->token.service && !is_harmless(request))
        http_respond_error(request, 403, "a service token is for asking models and for reading; use a user's token");
    else
        ok(request);
}

static void check_token(struct http_request *request, struct shoal_view text, http_request_fn *ok)
{
    struct shoal_msg why;

    if (token_is_good(request, text, &why))
        take_token(request, ok);
    else
        refuse(request, why.text);
}

/* A check takes a thread and much memory for a tenth of a second, and anyone may ask for one. */
bool auth_logon_begin(struct http_request *request)
{
    struct shoal_http *http = request->http;
    struct logon_place *place = NULL;
    const uint8_t *address = http_conn_address(request->conn);
    unsigned there = 0;

    for (unsigned i = 0; i < SHOAL_LOGONS_MAX; i++) {
        if (http->logons[i].request == NULL)
            place = &http->logons[i];
        else
            there += memcmp(http->logons[i].address, address, sizeof(place->address)) == 0;
    }
    if (place == NULL || there >= SHOAL_LOGONS_ADDRESS_MAX) {
        http->stats.refused_busy++;
        http_header_add(request, "Retry-After", "1");
        http_respond_error(request, 503, "too many logons at once; try again in a second, or use a token");
        return false;
    }
    place->request = request;
    memcpy(place->address, address, sizeof(place->address));
    return true;
}

void auth_logon_end(struct http_request *request)
{
    unsigned i = 0;

    while (i < SHOAL_LOGONS_MAX && request->http->logons[i].request != request)
        i++;
    SHOAL_ASSERT(i < SHOAL_LOGONS_MAX);
    request->http->logons[i].request = NULL;
}

struct basic {
    struct http_request *request;
    http_request_fn *ok;
    uint8_t digest[32];
};

static void basic_digest(const struct shoal_http *http, const char *user, const char *password, uint8_t digest[32])
{
    crypto_generichash_state state;

    (void)crypto_generichash_init(&state, http->basic_key, sizeof(http->basic_key), 32);
    (void)crypto_generichash_update(&state, (const uint8_t *)user, strlen(user) + 1);
    (void)crypto_generichash_update(&state, (const uint8_t *)password, strlen(password));
    (void)crypto_generichash_final(&state, digest, 32);
    sodium_memzero(&state, sizeof(state));
}

void auth_user_key(const struct shoal_http *http, const char *name, uint8_t key[16])
{
    (void)crypto_generichash(key, 16, (const uint8_t *)name, strlen(name), http->basic_key, sizeof(http->basic_key));
}

static void on_logon(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_user *user)
{
    struct basic *basic = arg;
    struct http_request *request = basic->request;
    struct shoal_http *http = request->http;
    http_request_fn *ok = basic->ok;

    auth_logon_end(request);
    if (err == SHOAL_OK) {
        struct basic_entry *entry = &http->basic[http->basic_next++ % HTTP_BASIC_CACHE];

        memcpy(entry->digest, basic->digest, sizeof(entry->digest));
        entry->until_ms = http_now_ms(http) + BASIC_TRUST_MS;
        entry->user = *user;
        request->user = *user;
        ok(request);
    } else if (err == SHOAL_ERR_DENIED || err == SHOAL_ERR_NOT_FOUND) {
        refuse(request, msg->text[0] == '\0' ? "wrong user or password" : msg->text);
    } else {
        http_respond_failure(request, err, msg, 401);
    }
    http_request_release(request);
}

static struct basic_entry *find_trusted(struct shoal_http *http, const uint8_t digest[32])
{
    for (unsigned i = 0; i < HTTP_BASIC_CACHE; i++)
        if (http->basic[i].until_ms > http_now_ms(http) && sodium_memcmp(http->basic[i].digest, digest, 32) == 0)
            return &http->basic[i];
    return NULL;
}

/* Whether a page of another origin had its browser send this: by what browsers say about it, or else by Origin and Host. Who sends
 * neither is no browser. */
static bool is_of_another_page(const struct http1_head *head)
{
    struct shoal_view site, origin, host = { 0 };
    const char *mark;
    size_t before;

    if (http1_header_find(head, "sec-fetch-site", &site))
        return !shoal_view_equal(site, shoal_view_text("same-origin")) && !shoal_view_equal(site, shoal_view_text("none"));
    if (!http1_header_find(head, "origin", &origin))
        return false;
    mark = memmem(origin.bytes, origin.len, "://", 3);
    if (mark == NULL || !http1_header_find(head, "host", &host)) /* "null": a file, or a page in a box */
        return true;
    before = (size_t)(mark - (const char *)origin.bytes) + 3;
    return origin.len - before != host.len || strncasecmp(mark + 3, (const char *)host.bytes, host.len) != 0;
}

/* Browsers remember Basic credentials, and send them with whatever any page asks: such a page changes nothing by it. A token is
 * sent by who has it. False: refused. */
static bool basic_may(struct http_request *request)
{
    switch (request->head.method) {
    case HTTP1_GET:
    case HTTP1_HEAD:
    case HTTP1_OPTIONS: return true;
    case HTTP1_POST:
    case HTTP1_PUT:
    case HTTP1_DELETE:
    case HTTP1_OTHER: break;
    }
    if (!is_of_another_page(&request->head))
        return true;
    request->http->stats.refused_auth++;
    http_respond_error(request, 403,
                       "a page of another site changes nothing with Basic credentials; log on, and send the token as "
                       "\"Authorization: Bearer\"");
    return false;
}

bool auth_basic_decode(struct shoal_view text, char pair[AUTH_PAIR_BYTES], char **password)
{
    size_t len = 0;
    char *colon;

    while (text.len > 0 && text.bytes[text.len - 1] == '=')
        text.len--;
    if (sodium_base642bin((uint8_t *)pair, AUTH_PAIR_BYTES - 1, (const char *)text.bytes, text.len, NULL, &len, NULL,
                          sodium_base64_VARIANT_ORIGINAL_NO_PADDING) != 0 ||
        memchr(pair, 0, len) != NULL || (colon = memchr(pair, ':', len)) == NULL)
        return false;
    pair[len] = '\0';
    *colon = '\0';
    *password = colon + 1;
    (*password)[strcspn(*password, "\r\n")] = '\0'; /* of `echo user:password | base64` */
    return true;
}

static void check_basic(struct http_request *request, struct shoal_view text, int malformed, http_request_fn *ok)
{
    struct shoal_http *http = request->http;
    char pair[AUTH_PAIR_BYTES];
    char *password;
    struct basic *basic;
    struct basic_entry *entry;
    struct shoal_user user;

    if (!auth_basic_decode(text, pair, &password)) {
        http->stats.refused_auth++;
        http_respond_error(
            request, malformed,
            "the Authorization header is not Basic base64(user:password); log on with a user's name and password");
        return;
    }
    basic = arena_alloc(&request->arena, sizeof(*basic));
    if (basic == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *basic = (struct basic){ .request = request, .ok = ok };
    basic_digest(http, pair, password, basic->digest);
    entry = find_trusted(http, basic->digest);
    if (entry != NULL && http->backend.user_find(http->backend.ctx, pair, &user) &&
        user.tokens_from_s == entry->user.tokens_from_s) {
        request->user = user;
        sodium_memzero(pair, sizeof(pair));
        ok(request);
        return;
    }
    /* The texts must outlive this frame: the backend has them until its callback. */
    {
        char *kept_user = arena_text(&request->arena, pair);
        char *kept_password = arena_text(&request->arena, password);

        sodium_memzero(pair, sizeof(pair));
        if (kept_user == NULL || kept_password == NULL) {
            http_respond_error(request, 503, "out of memory; try again later");
            return;
        }
        if (!auth_logon_begin(request))
            return;
        http_request_hold(request);
        http->backend.logon(http->backend.ctx, kept_user, kept_password, on_logon, basic);
    }
}

/* The first valid one of X-Auth-Token, X-User-Token and Bearer; else Basic. */
static void auth_dlim(struct http_request *request, http_request_fn *ok)
{
    static const char *const names[] = { "x-auth-token", "x-user-token", "authorization" };
    struct shoal_msg why = { "no credentials: send a token as X-Auth-Token, or as \"Authorization: Bearer\"" };
    struct shoal_view text;

    for (unsigned i = 0; i < 3; i++) {
        if (!http1_header_find(&request->head, names[i], &text) || text.len == 0)
            continue;
        if (i == 2 && take_scheme(&text, "Basic")) {
            if (basic_may(request))
                check_basic(request, text, 401, ok);
            return;
        }
        if ((i < 2 || take_scheme(&text, "Bearer")) && token_is_good(request, text, &why)) {
            take_token(request, ok);
            return;
        }
    }
    refuse(request, why.text);
}

void auth_pair(struct http_request *request, struct shoal_view text, http_request_fn *ok)
{
    check_basic(request, text, 401, ok);
}

void auth_request(struct http_request *request, http_request_fn *ok)
{
    struct shoal_view authorization = { 0 };
    struct shoal_view other;
    bool has = http1_header_find(&request->head, "authorization", &authorization);

    if (http_is_dlim(request)) { /* its contract has another order */
        auth_dlim(request, ok);
        return;
    }
    if (has && take_scheme(&authorization, "Bearer")) {
        check_token(request, authorization, ok);
    } else if (http1_header_find(&request->head, "x-auth-token", &other) && other.len > 0) {
        check_token(request, other, ok);
    } else if (has && take_scheme(&authorization, "Basic")) {
        if (basic_may(request))
            check_basic(request, authorization, 401, ok);
    } else {
        refuse(
            request,
            "no credentials; log on at /auth/v1/logon (shoal logon) and send the token as \"Authorization: Bearer\"");
    }
}

void auth_basic(struct http_request *request, http_request_fn *ok)
{
    struct shoal_view authorization;

    if (!http1_header_find(&request->head, "authorization", &authorization) || !take_scheme(&authorization, "Basic"))
        http_respond_error(request, 401, "log on with the header \"Authorization: Basic base64(user:password)\"");
    else if (basic_may(request))
        check_basic(request, authorization, 400, ok);
}
