/* The deployment of a service adds to a submit: which versions there may be, and the document that is made of its package
 * (shoal/service_doc.h). */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shoal/crypto.h"
#include "shoal/service_doc.h"

#include "submit_uv.h"

#include "shoal/banned.h"

bool submit_is_dlim(const struct http_request *request) { return strncmp(request->route->pattern, "/dlim/", 6) == 0; }

bool submit_is_service(const struct http_request *request)
{
    return strncmp(request->route->pattern, "/v1/services/", 13) == 0 || submit_is_dlim(request) || submit_is_exec(request);
}

bool submit_is_edi(const struct http_request *request)
{
    return strncmp(request->route->pattern, ROUTES_BASE "/edimodels/", strlen(ROUTES_BASE "/edimodels/")) == 0;
}

bool submit_is_exec(const struct http_request *request)
{
    return strcmp(request->route->pattern, ROUTES_BASE "/execs/{}/deploy") == 0 || submit_is_edi(request);
}

const char *submit_job_of(struct http_request *request)
{
    const struct submit *s = request->state;

    if (submit_is_edi(request))
        return s == NULL || s->from_job == NULL ? "" : s->from_job; /* the body is JSON in any case */
    if (submit_is_exec(request))
        return request->params[0];
    return strncmp(request->route->pattern, "/v1/services/", 13) == 0 ? http_query(request, "from_job") : NULL;
}

/* A canary is the next version of a service that goes on: the one percentage, and one. */
static enum shoal_err read_canary(struct submit *s, bool update, struct shoal_msg *msg)
{
    const char *text = http_query(s->request, "canary");
    char *end = NULL;
    unsigned long percent = text == NULL ? 0 : strtoul(text, &end, 10);

    if (text == NULL)
        return SHOAL_OK;
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || percent > 100)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "canary: \"%.40s\" is no percentage of the requests; say a whole number, 0 to 100", text);
    if (update)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "update and canary: the new version takes over, or it gets a part of the requests; say one of them");
    s->args.options.service_canary = (unsigned)percent + 1;
    s->args.options.service_new = false;
    return SHOAL_OK;
}

/* Sets which versions there may be, and how many replicas it begins with: WMLA's models begin stopped. */
enum shoal_err submit_read_service(struct submit *s, bool no_words, struct shoal_msg *msg)
{
    struct shoal_job_options *o = &s->args.options;
    bool of_wmla = submit_is_dlim(s->request) || submit_is_exec(s->request);
    const char *name = submit_is_exec(s->request) ? s->name : s->request->params[0];
    const char *text = of_wmla ? "0" : http_query(s->request, "replicas");
    struct http_request *request = s->request;
    const char *again = of_wmla ? http_query(request, "force") : http_query(request, "update");
    char *end = NULL;
    unsigned long replicas = text == NULL ? 1 : strtoul(text, &end, 10);

    if (text != NULL && (text[0] < '0' || text[0] > '9' || *end != '\0' || replicas > SHOAL_SERVICE_REPLICAS_MAX))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "replicas: \"%.40s\" is not a number up to %u", text,
                          SHOAL_SERVICE_REPLICAS_MAX);
    if (!of_wmla && again != NULL && strcmp(again, "true") != 0 && strcmp(again, "false") != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "update: \"%.40s\" is not true or false", again);
    if (!o->user_cmd || o->elastic || o->array[0] != '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "a service runs its package, or a command of it: no script, no elastic framework, no array");
    o->service = name == NULL ? "" : name;
    o->app_name = o->service;
    o->replicas = (unsigned)replicas;
    o->service_version = 1;
    o->service_new = again == NULL || strcmp(again, "true") != 0;
    o->service_known = of_wmla;
    if (submit_is_dlim(request) && name != NULL)
        o->service_new = false;
    else if (of_wmla && !o->service_new)
        o->service_known = false;
    o->warm = false;
    if (no_words)
        o->script_argv.count = 0;
    return of_wmla ? SHOAL_OK : read_canary(s, !o->service_new, msg);
}

/* ---- a service's document, in the same thread ---- */

static enum shoal_err read_place(int fd, struct shoal_bundle_place place, size_t bytes_max, struct shoal_buf *out)
{
    size_t len = place.bytes < bytes_max ? (size_t)place.bytes : bytes_max;

    if (len == 0)
        return SHOAL_OK;
    if (shoal_buf_reserve(out, len) != SHOAL_OK)
        return SHOAL_ERR_FULL;
    if (pread(fd, out->bytes, len, (off_t)place.offset) != (ssize_t)len)
        return SHOAL_ERR_STORAGE;
    out->len = len;
    return SHOAL_OK;
}

enum shoal_err submit_check_archive(struct submit *s)
{
    uint8_t head[512];
    ssize_t len = s->upload.fd < 0 ? 0 : pread(s->upload.fd, head, sizeof(head), 0);

    if (len <= 0 || !shoal_bundle_is_archive(head, (size_t)len))
        return shoal_fail(&s->msg, SHOAL_ERR_INVALID, "The package is not a tar archive.");
    return SHOAL_OK;
}

static enum shoal_err settle_name(struct submit *s, const struct package *package)
{
    struct shoal_job_options *o = &s->args.options;

    if (submit_is_dlim(s->request) && o->service[0] != '\0' && strcmp(o->service, package->name) != 0)
        return shoal_fail(&s->msg, SHOAL_ERR_INVALID,
                          "model.json is invalid: name (it is \"%.100s\", the address says \"%.100s\")", package->name,
                          o->service);
    if (o->service[0] == '\0') {
        memcpy(s->service, package->name, sizeof(s->service));
        o->service = s->service;
        o->app_name = o->service;
    }
    return SHOAL_OK;
}

enum shoal_err submit_make_document(struct submit *s)
{
    struct shoal_job_options *o = &s->args.options;
    struct service_doc_new made = { .replicas = submit_is_dlim(s->request) || submit_is_exec(s->request) ? -1 : (int)o->replicas,
                                    .now_s = (uint64_t)time(NULL) };
    struct shoal_buf model = { 0 }, readme = { 0 };
    struct package package;
    enum package_kind kind = submit_is_dlim(s->request)      ? PACKAGE_WMLA
                             : o->script_argv.count > 0 ? PACKAGE_WORDS
                                                        : PACKAGE_OURS;
    enum shoal_err err = package_check_bundle(s->bundle_fd, kind, &package, &s->msg);

    if (err == SHOAL_OK)
        err = settle_name(s, &package);
    if (err != SHOAL_OK)
        return err;
    err = read_place(s->bundle_fd, package.model_json, SIZE_MAX, &model);
    if (err == SHOAL_OK)
        err = read_place(s->bundle_fd, package.readme, SHOAL_SERVICE_DOCUMENT_BYTES_MAX, &readme);
    if (err != SHOAL_OK)
        (void)shoal_fail(&s->msg, err, "the package cannot be read back");
    made.name = o->service;
    made.model_json = shoal_buf_view(&model);
    made.readme = shoal_buf_view(&readme);
    made.content_bytes = package.content_bytes;
    shoal_random(made.chance, sizeof(made.chance));
    if (err == SHOAL_OK)
        err = service_doc_make(&made, &s->document, &s->msg);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&s->document, "", 1);
    if (err == SHOAL_OK)
        o->profile = (const char *)s->document.bytes;
    shoal_buf_deinit(&model);
    shoal_buf_deinit(&readme);
    return err;
}

