/* agent.conf: what it may say, what it may not, and what stands above it. */
#include "node/agent/agent_conf.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "shoal/banned.h"

static struct shoal_cli_agent nothing_given(void)
{
    return (struct shoal_cli_agent){ .name = "",
                                     .host = "",
                                     .api_host = "",
                                     .inventory = "",
                                     .fabric_trusted = "",
                                     .transport = "",
                                     .domain = "",
                                     .python = "",
                                     .libs = "",
                                     .log_level = "",
                                     .prefill_mib = UINT64_MAX,
                                     .warm_memory_mib = UINT64_MAX };
}

static void settings_are_taken_where_nothing_was_given(void **state)
{
    char text[] = "# a comment\n\nname ada\nhost 10.0.0.1\nport 7411\napi-port 9244\napi-plain 1\nslots 4\nprefill 0\n"
                  "archive-after 90\ndomain rack 7\npython /usr/bin/python3";
    struct shoal_cli_agent options = nothing_given();
    struct shoal_msg msg = { "" };

    (void)state;
    options.host = "10.0.0.9";
    options.port = 7000;
    if (agent_conf_parse(&options, text, "agent.conf", &msg) != SHOAL_OK)
        fail_msg("%s", msg.text);
    assert_string_equal(options.name, "ada");
    assert_string_equal(options.host, "10.0.0.9"); /* given at the start */
    assert_int_equal(options.port, 7000);
    assert_int_equal(options.api_port, 9244);
    assert_true(options.api_plain);
    assert_int_equal(options.slots, 4);
    assert_int_equal(options.prefill_mib, 0);
    assert_int_equal(options.archive_s, 90);
    assert_string_equal(options.domain, "rack 7");
    assert_string_equal(options.python, "/usr/bin/python3"); /* no line's end at the end */
}

static void what_it_may_not_say_is_named_with_its_line(void **state)
{
    static const struct {
        const char *text;
        const char *want;
    } cases[] = {
        { "port 99999\n", "agent.conf:1: port: \"99999\" is not a number from 1 to 65535" },
        { "name a\nport 0\n", "agent.conf:2: port: \"0\"" },
        { "port 74x0\n", "\"74x0\" is not a number" },
        { "port\n", "port: \"\" is not a number" },
        { "port  7410\n", "\" 7410\" is not a number" },
        { "slots 65\n", "a number from 1 to 64" },
        { "archive-after 0\n", "a number from 1 to 2592000" },
        { "slots 18446744073709551617\n", "is not a number" },
        { "api-plain yes\n", "a number from 0 to 1" },
        { "prefill 1048577\n", "a number from 0 to 1048576" },
        { "\n\nprot 7410\n", "agent.conf:3: there is no setting \"prot\"" },
        { " port 7410\n", "there is no setting \"\"" },
        { "join 10.0.0.1:7410\n", "there is no setting \"join\"" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_cli_agent options = nothing_given();
        struct shoal_msg msg = { "" };
        char text[128];

        (void)snprintf(text, sizeof(text), "%s", cases[i].text);
        assert_int_equal(agent_conf_parse(&options, text, "agent.conf", &msg), SHOAL_ERR_INVALID);
        if (strstr(msg.text, cases[i].want) == NULL)
            fail_msg("want \"%s\" got \"%s\"", cases[i].want, msg.text);
    }
}

static void a_declared_inventory_is_checked(void **state)
{
    static const char *const bad[] = { "cpu", "cpu:", "cpu:0", "cpu:65", "cpu:2x", "tpu:2", "gpu: 2", "gpu:-1", "2" };
    static struct agent_settings settings;
    struct shoal_msg msg = { "" };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(agent_inventory(&settings, bad[i], 0, &msg), SHOAL_ERR_INVALID);
        assert_non_null(strstr(msg.text, "cpu:N or gpu:N"));
    }
    assert_int_equal(agent_inventory(&settings, "gpu:64", 0, &msg), SHOAL_OK);
    assert_int_equal(settings.slots, 64);
    assert_int_equal(settings.device, SHOAL_SCHED_GPU);
    assert_int_equal(agent_inventory(&settings, "cpu:4", 3, &msg), SHOAL_OK);
    assert_int_equal(settings.slots, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_are_taken_where_nothing_was_given),
        cmocka_unit_test(what_it_may_not_say_is_named_with_its_line),
        cmocka_unit_test(a_declared_inventory_is_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
