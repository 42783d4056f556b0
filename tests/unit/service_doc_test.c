/* The document of a service: what it says of a canary, whose eyes the values of environments are for, what of a GPU. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "shoal/job_spec.h"
#include "shoal/limits.h"
#include "shoal/service_doc.h"

#include "shoal/banned.h"

static void make(struct shoal_buf *doc)
{
    const struct service_doc_new made = { .name = "echo", .now_s = 100, .replicas = 2 };
    struct shoal_msg msg;

    assert_int_equal(service_doc_make(&made, doc, &msg), SHOAL_OK);
}

static void edit(struct shoal_buf *doc, struct service_doc_edit change)
{
    struct shoal_buf next = { 0 };
    struct shoal_msg msg;

    change.name = "echo";
    change.now_s = change.now_s > 0 ? change.now_s : 200;
    assert_int_equal(service_doc_edit(shoal_buf_view(doc), &change, &next, &msg), SHOAL_OK);
    shoal_buf_deinit(doc);
    *doc = next;
}

static void expect_canary(const struct shoal_buf *doc, uint32_t canary, uint32_t at)
{
    struct service_knobs knobs;

    service_doc_knobs(shoal_buf_view(doc), 1, &knobs);
    assert_int_equal(knobs.canary, canary);
    assert_int_equal(knobs.canary_at, at);
}

static bool holds(const struct shoal_buf *doc, const char *text)
{
    return memmem(doc->bytes, doc->len, text, strlen(text)) != NULL;
}

static void test_a_canary_is_said_kept_and_ended(void **state)
{
    struct shoal_buf doc = { 0 }, next = { 0 }, carried = { 0 };
    struct service_knobs knobs;
    struct shoal_msg msg;

    (void)state;
    make(&doc);
    expect_canary(&doc, 0, 0);
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_STOP });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_CANARY, .canary = 1, .canary_at = 7 }); /* of nothing */
    expect_canary(&doc, 1, 7);
    service_doc_knobs(shoal_buf_view(&doc), 0, &knobs);
    assert_true(knobs.started); /* it is to have kernels */
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_CANARY, .canary = 26, .canary_at = 8 });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_PROFILE,
                                          .body = shoal_view_text("{\"policy\":{\"kernel_max\":9}}") });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_SCALE, .replicas = 3 });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_STOP });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_START });
    expect_canary(&doc, 26, 8); /* other edits leave it */
    make(&next);
    assert_int_equal(service_doc_carry(shoal_buf_view(&next), shoal_buf_view(&doc), &carried, &msg), SHOAL_OK);
    expect_canary(&carried, 0, 0); /* the next version has its profile, and no canary */
    assert_false(holds(&carried, "canary"));
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_CANARY });
    expect_canary(&doc, 0, 0);
    assert_false(holds(&doc, "canary"));
    shoal_buf_deinit(&doc);
    shoal_buf_deinit(&next);
    shoal_buf_deinit(&carried);
}

static void test_a_canary_that_makes_no_sense_is_none(void **state)
{
    static const struct {
        const char *name, *text;
        uint32_t canary, at;
    } rows[] = {
        { "the largest part is all requests", "{\"profile\":{},\"canary\":{\"part\":101,\"at\":3}}", 101, 3 },
        { "more than all", "{\"profile\":{},\"canary\":{\"part\":102,\"at\":3}}", 0, 0 },
        { "less than none", "{\"profile\":{},\"canary\":{\"part\":-1,\"at\":3}}", 0, 0 },
        { "a text", "{\"profile\":{},\"canary\":{\"part\":\"50\",\"at\":3}}", 0, 0 },
        { "no object", "{\"profile\":{},\"canary\":50}", 0, 0 },
        { "no change of the name: it counts at none", "{\"profile\":{},\"canary\":{\"part\":50}}", 50, 0 },
        { "a key of a later version beside it", "{\"profile\":{},\"canary\":{\"part\":50,\"at\":3,\"by\":\"user\"}}", 50, 3 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct service_knobs knobs;

        service_doc_knobs(shoal_view_text(rows[i].text), 1, &knobs);
        if (knobs.canary != rows[i].canary || knobs.canary_at != rows[i].at)
            fail_msg("%s: %u at %u", rows[i].name, knobs.canary, knobs.canary_at);
    }
    assert_int_equal(SHOAL_SERVICE_CANARY_MAX, 101);
}

static void test_values_of_environments_are_hidden_unless_said(void **state)
{
    struct service_doc_facts facts = { .name = "echo", .creator = "ada", .service_uri = "" };
    static const char pairs[] = "{\"kernel\":{\"envs\":[{\"name\":\"KEY\",\"value\":\"deep\",\"note\":\"deep\"}]}}";
    static const char model[] = "{\"mk_environments\":[{\"name\":\"KEY\",\"value\":\"deep\"}]}";
    struct shoal_buf doc = { 0 };

    (void)state;
    make(&doc);
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_PROFILE, .body = shoal_view_text(pairs) });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_MODEL, .body = shoal_view_text(model) });
    for (unsigned i = 0; i < 4; i++) {
        struct shoal_buf shown = { 0 };

        facts.values = i >= 2;
        assert_int_equal((i % 2 == 0 ? service_doc_model : service_doc_profile)(shoal_buf_view(&doc), &facts, &shown),
                         SHOAL_OK);
        assert_int_equal(holds(&shown, "deep"), facts.values);
        assert_int_equal(holds(&shown, SERVICE_DOC_HIDDEN), !facts.values);
        assert_true(holds(&shown, "\"KEY\""));
        shoal_buf_deinit(&shown);
    }
    shoal_buf_deinit(&doc);
}

static void test_a_model_says_where_it_streams_while_it_is_started(void **state)
{
    struct service_doc_facts facts = { .name = "echo", .creator = "ada", .service_uri = "https://a:9/dlim/v1/inference/echo" };
    struct shoal_buf doc = { 0 }, shown = { 0 };

    (void)state;
    make(&doc);
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_MODEL, .body = shoal_view_text("{\"stream_uri\":\"mine\"}") });
    assert_int_equal(service_doc_model(shoal_buf_view(&doc), &facts, &shown), SHOAL_OK);
    assert_true(holds(&shown, "\"schema_version\":\"1\",\"stream_uri\":\"a:9\""));
    shoal_buf_deinit(&shown);
    facts.service_uri = "";
    assert_int_equal(service_doc_model(shoal_buf_view(&doc), &facts, &shown), SHOAL_OK);
    assert_false(holds(&shown, "stream_uri"));
    shoal_buf_deinit(&shown);
    shoal_buf_deinit(&doc);
}

/* Of what is written: that a model is started or stopped has its own times. */
static void test_an_update_is_an_edit_of_model_profile_or_readme(void **state)
{
    static const struct {
        enum service_doc_edit_kind kind;
        const char *body;
        bool updates;
    } rows[] = { { SERVICE_DOC_START, "", false },       { SERVICE_DOC_STOP, "", false },   { SERVICE_DOC_CANARY, "", false },
                 { SERVICE_DOC_PROFILE, "{}", true },    { SERVICE_DOC_MODEL, "{}", true }, { SERVICE_DOC_README, "{\"readme\":\"x\"}", true },
                 { SERVICE_DOC_SCALE, "", true } };
    struct shoal_buf doc = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make(&doc);
        edit(&doc, (struct service_doc_edit){ .kind = rows[i].kind, .body = shoal_view_text(rows[i].body), .now_s = 777, .replicas = 1 });
        assert_int_equal(holds(&doc, "\"updated_at\":777"), rows[i].updates);
        shoal_buf_deinit(&doc);
    }
}

/* A profile's words of GPUs: device, MiB, a pack or none; NULL: it is refused. */
static void test_what_a_profile_needs_of_a_gpu(void **state)
{
    static const char refused[] = "gpu_mem must be a whole number of MiB of a GPU";
    static const struct {
        const char *name, *gpu, *pack, *resources, *wrong;
        uint8_t device;
        uint32_t mib;
    } rows[] = {
        { "none", "no", "", "", NULL, SHOAL_JOB_DEVICE_AUTO, 0 },
        { "none, whatever else is said", "no", "p", "gpu_mem=5", NULL, SHOAL_JOB_DEVICE_AUTO, 0 },
        { "a whole one", "exclusive", "p", "gpu_mem=5", NULL, SHOAL_JOB_DEVICE_GPU, 0 },
        { "a part, not said how large", "shared", "", "", NULL, SHOAL_JOB_DEVICE_GPU, SERVICE_DOC_GPU_MIB },
        { "a part", "shared", "", "gpu_mem=5", NULL, SHOAL_JOB_DEVICE_GPU, 5 },
        { "a part among others' words", "shared", "", "nvidia.com/mig-1g.5gb=1, gpu_mem=12345,x", NULL, SHOAL_JOB_DEVICE_GPU, 12345 },
        { "a key that begins alike", "shared", "", "gpu_memory=7", NULL, SHOAL_JOB_DEVICE_GPU, SERVICE_DOC_GPU_MIB },
        { "a unit", "shared", "", "gpu_mem=8GB", refused, 0, 0 },
        { "nothing", "shared", "", "gpu_mem=0", refused, 0, 0 },
        { "less than nothing", "shared", "", "gpu_mem=-5", refused, 0, 0 },
        { "no number", "shared", "", "gpu_mem=", refused, 0, 0 },
        { "no value", "shared", "", "gpu_mem", refused, 0, 0 },
        { "too large for any", "shared", "", "gpu_mem=99999999999", refused, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct shoal_buf doc = { 0 }, next = { 0 };
        struct service_knobs knobs;
        struct shoal_msg msg = { "" };
        char profile[400], pack[200];
        enum shoal_err err;

        make(&doc);
        (void)snprintf(profile, sizeof(profile),
                       "{\"kernel\":{\"gpu\":\"%s\"},\"resource_allocation\":{\"kernel\":{\"gpu_pack_id\":\"%s\","
                       "\"accelerator_resources\":\"%s\"}}}", rows[i].gpu, rows[i].pack, rows[i].resources);
        err = service_doc_edit(shoal_buf_view(&doc),
                               &(struct service_doc_edit){ .kind = SERVICE_DOC_PROFILE, .body = shoal_view_text(profile), .name = "echo" },
                               &next, &msg);
        if (rows[i].wrong != NULL && (err != SHOAL_ERR_INVALID || strstr(msg.text, rows[i].wrong) == NULL))
            fail_msg("%s: %d \"%s\"", rows[i].name, (int)err, msg.text);
        if (rows[i].wrong == NULL) {
            assert_int_equal(err, SHOAL_OK);
            service_doc_knobs(shoal_buf_view(&next), 1, &knobs);
            if (knobs.need.device != rows[i].device || knobs.need.mib != rows[i].mib ||
                (knobs.need.pack != 0) != (rows[i].mib != 0))
                fail_msg("%s: device %u, %u MiB", rows[i].name, knobs.need.device, knobs.need.mib);
            service_doc_pack(shoal_buf_view(&next), "echo", pack, sizeof(pack));
            assert_string_equal(pack, rows[i].mib == 0 ? "" : "edi-echo");
        }
        shoal_buf_deinit(&doc);
        shoal_buf_deinit(&next);
    }
}

static void test_the_next_canary_is_stopped_and_says_of_which_change_it_is(void **state)
{
    struct shoal_buf doc = { 0 };
    struct service_knobs knobs;

    (void)state;
    make(&doc);
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_CANARY_NEXT, .canary = 51, .canary_at = 9 });
    expect_canary(&doc, 51, 9);
    service_doc_knobs(shoal_buf_view(&doc), 0, &knobs);
    assert_false(knobs.started);
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_CANARY, .canary = 51, .canary_at = 9 });
    service_doc_knobs(shoal_buf_view(&doc), 0, &knobs);
    assert_true(knobs.started);
    shoal_buf_deinit(&doc);
}

static bool stops(const struct shoal_buf *doc, uint64_t now_s)
{
    struct service_knobs knobs;

    service_doc_knobs(shoal_buf_view(doc), 0, &knobs);
    return service_doc_stops(&knobs, now_s);
}

static void test_a_stop_is_seen_for_a_second_at_least(void **state)
{
    struct shoal_buf doc = { 0 };

    (void)state;
    make(&doc);
    assert_false(stops(&doc, 1000));
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_STOP, .now_s = 2000 });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_STOP, .now_s = 2001 }); /* once more: it is stopped */
    assert_true(stops(&doc, 2000) && stops(&doc, 2001));
    assert_false(stops(&doc, 2002));
    assert_false(stops(&doc, 1999)); /* of a host whose clock is behind: it does not wait for it */
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_START, .now_s = 2001 });
    assert_false(stops(&doc, 2001) || holds(&doc, "stopped_at"));
    shoal_buf_deinit(&doc);
}

/* No edit takes them, but they may come in the document of another host. */
static void test_numbers_that_no_profile_may_have_are_bounded(void **state)
{
    static const char foreign[] =
        "{\"profile\":{\"replica\":4611686018427387904,\"policy\":{\"kernel_min\":5,\"kernel_max\":-4611686018427387904,"
        "\"schedule_interval\":-1,\"task_batch_size\":-1,\"kernel_delay_release_time\":99999999999}},\"started_at\":1}";
    struct service_knobs knobs;

    (void)state;
    service_doc_knobs(shoal_view_text(foreign), 1, &knobs);
    assert_true(knobs.kernels_min <= knobs.kernels_max && knobs.kernels_max <= SHOAL_SERVICE_REPLICAS_MAX);
    assert_true(knobs.batch >= 1 && knobs.interval_s == 1 && knobs.release_s == UINT32_MAX);
}

static void test_a_readme_is_replaced(void **state)
{
    struct shoal_buf doc = { 0 };

    (void)state;
    make(&doc);
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_README, .body = shoal_view_text("{\"readme\":\"first\"}") });
    edit(&doc, (struct service_doc_edit){ .kind = SERVICE_DOC_README, .body = shoal_view_text("{\"readme\":\"second\"}") });
    assert_true(holds(&doc, "second") && !holds(&doc, "first"));
    shoal_buf_deinit(&doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_canary_is_said_kept_and_ended),
        cmocka_unit_test(test_a_canary_that_makes_no_sense_is_none),
        cmocka_unit_test(test_a_model_says_where_it_streams_while_it_is_started),
        cmocka_unit_test(test_an_update_is_an_edit_of_model_profile_or_readme),
        cmocka_unit_test(test_what_a_profile_needs_of_a_gpu),
        cmocka_unit_test(test_the_next_canary_is_stopped_and_says_of_which_change_it_is),
        cmocka_unit_test(test_a_stop_is_seen_for_a_second_at_least),
        cmocka_unit_test(test_values_of_environments_are_hidden_unless_said),
        cmocka_unit_test(test_numbers_that_no_profile_may_have_are_bounded),
        cmocka_unit_test(test_a_readme_is_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
