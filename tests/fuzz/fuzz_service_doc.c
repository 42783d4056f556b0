/* libFuzzer: the bytes are two texts of JSON, the length of the first before them. As a document of a service that came from
 * another host, and what a user sends to change it; or, the first byte says so, as a model.json and what a user sends then. */
#include "shoal/service_doc.h"

#include <string.h>

#include "shoal/limits.h"
#include "shoal/submit.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void look(struct shoal_view doc)
{
    const struct service_doc_facts facts = { .name = "fish", .creator = "ada", .service_uri = "https://a/b" };
    struct service_knobs knobs;
    struct shoal_buf out = { 0 };
    char text[SHOAL_RUNTIME_NAME_BYTES];

    service_doc_knobs(doc, 3, &knobs);
    SHOAL_ASSERT(knobs.kernels_min <= knobs.kernels_max && knobs.kernels_max <= SHOAL_SERVICE_REPLICAS_MAX);
    SHOAL_ASSERT(knobs.timeout_s <= SHOAL_INFER_TIMEOUT_MS_MAX / 1000 && knobs.canary <= SHOAL_SERVICE_CANARY_MAX);
    (void)service_doc_stops(&knobs, 1);
    service_doc_runtime(doc, text, sizeof(text));
    SHOAL_ASSERT(strlen(text) < sizeof(text));
    service_doc_gpu(doc, text, sizeof(text));
    SHOAL_ASSERT(strcmp(text, "no") == 0 || strcmp(text, "shared") == 0 || strcmp(text, "exclusive") == 0);
    service_doc_pack(doc, "fish", text, sizeof(text));
    SHOAL_ASSERT(strlen(text) < sizeof(text));
    shoal_ignore(service_doc_model(doc, &facts, &out));
    shoal_ignore(service_doc_profile(doc, &facts, &out));
    shoal_ignore(service_doc_readme(doc, &out));
    shoal_buf_deinit(&out);
}

static void change(struct shoal_view doc, enum service_doc_edit_kind kind, struct shoal_view body)
{
    const struct service_doc_edit edit = { .kind = kind, .body = body, .replicas = 2, .name = "fish", .now_s = 1000, .canary_version = 2, .canary = 11, .canary_at = 5 };
    struct shoal_buf after = { 0 }, out = { 0 }, notes = { 0 }, carried = { 0 };
    struct shoal_msg msg = { .text = "" };
    enum shoal_err err = service_doc_edit(doc, &edit, &after, &msg);

    if (err != SHOAL_OK)
        SHOAL_ASSERT(msg.text[0] != '\0' && after.len == 0);
    if (err == SHOAL_OK) {
        SHOAL_ASSERT(after.len <= SHOAL_SERVICE_DOCUMENT_BYTES_MAX);
        look(shoal_buf_view(&after));
        SHOAL_ASSERT(service_doc_changes(doc, shoal_buf_view(&after), &out, &notes) == SHOAL_OK);
        SHOAL_ASSERT(service_doc_carry(shoal_buf_view(&after), doc, &carried, &msg) == SHOAL_OK || msg.text[0] != '\0');
        look(shoal_buf_view(&carried));
    }
    shoal_ignore(service_doc_changes(doc, body, &out, &notes));
    shoal_buf_deinit(&after);
    shoal_buf_deinit(&carried);
    shoal_buf_deinit(&out);
    shoal_buf_deinit(&notes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct service_doc_new made = { .name = "fish", .content_bytes = 9, .now_s = 999, .replicas = 2 };
    struct shoal_buf doc = { 0 };
    struct shoal_view first, second;
    struct shoal_msg msg = { .text = "" };
    size_t at;

    if (len < 3)
        return 0;
    at = bytes[1] + 256u * bytes[2];
    at = at > len - 3 ? len - 3 : at;
    first = shoal_view_of(bytes + 3, at);
    second = shoal_view_of(bytes + 3 + at, len - 3 - at);
    if (bytes[0] % 2 == 0) {
        look(first);
        change(first, bytes[0] / 2 % (SERVICE_DOC_CANARY_NEXT + 1), second);
        return 0;
    }
    made.model_json = first;
    made.readme = bytes[0] % 4 == 1 ? second : shoal_view_text("fish");
    if (service_doc_make(&made, &doc, &msg) == SHOAL_OK) {
        look(shoal_buf_view(&doc));
        for (unsigned i = 0; i <= SERVICE_DOC_CANARY_NEXT; i++)
            change(shoal_buf_view(&doc), i, second);
    } else {
        SHOAL_ASSERT(msg.text[0] != '\0');
    }
    shoal_buf_deinit(&doc);
    return 0;
}
