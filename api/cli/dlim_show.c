/* dlim prints models, their instances and profiles here: labels, tabs and columns stay as scripts compare them. */
#include "dlim.h"

#include <inttypes.h>
#include <string.h>

#include "shoal/banned.h"

#define RULE_COLUMNS 60

static const char *dash(const char *text) { return text[0] == '\0' ? "-" : text; }

void dlim_show_list(const struct json_value *models, const char *first, const char *second, const char *left,
                    const char *right)
{
    size_t width = strlen(left);

    for (size_t i = 0; i < json_input_count(models); i++) {
        size_t len = strlen(cli_text_at(json_input_at(models, i), first));

        width = len > width ? len : width;
    }
    (void)printf("%-*s%s\n", (int)width + 2, left, right);
    for (size_t i = 0; i < json_input_count(models); i++) {
        const struct json_value *model = json_input_at(models, i);

        (void)printf("%-*s%s\n", (int)width + 2, cli_shown(cli_text_at(model, first)),
                     cli_shown(dash(cli_text_at(model, second))));
    }
}

static void print_size(int64_t bytes)
{
    static const char *const units[] = { "B", "KB", "MB", "GB", "TB" };
    double size = (double)bytes;
    size_t unit = 0;

    while (size >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        size /= 1024;
        unit++;
    }
    (void)printf("Size:\t\t%.2f%s\n", size, units[unit]);
}

/* As `date` prints it, in the local zone. */
static void print_time(const char *label, int64_t seconds)
{
    time_t when = (time_t)seconds;
    struct tm local;
    char text[64];

    if (localtime_r(&when, &local) == NULL || strftime(text, sizeof(text), "%a %b %e %H:%M:%S %Z %Y", &local) == 0)
        (void)snprintf(text, sizeof(text), "-");
    (void)printf("%s:\t%s\n", label, text);
}

static void print_pairs(const char *label, const struct json_value *pairs, const char *key, const char *none)
{
    (void)printf("%s:\t", label);
    if (json_input_count(pairs) == 0) {
        (void)printf("%s\n", none);
        return;
    }
    for (size_t i = 0; i < json_input_count(pairs); i++) {
        const struct json_value *pair = json_input_at(pairs, i);

        (void)printf("%s%s=%s\n", i > 0 ? "\t\t" : "", cli_shown(cli_text_at(pair, key)),
                     cli_shown(cli_text_at(pair, "value")));
    }
}

static void print_text(const struct json_value *model, const char *label, const char *tabs, const char *key)
{
    (void)printf("%s:%s%s\n", label, tabs, cli_shown(cli_text_at(model, key)));
}

void dlim_show_model(const struct json_value *model)
{
    print_text(model, "Name", "\t\t", "name");
    (void)printf("Tag:\t\t%s\n", cli_shown(dash(cli_text_at(model, "tag"))));
    print_text(model, "Model path", "\t", "model_path");
    print_size(cli_int_at(model, "size"));
    print_text(model, "Weight path", "\t", "weight_path");
    print_text(model, "Runtime", "\t", "runtime");
    print_text(model, "Kernel path", "\t", "kernel_path");
    print_text(model, "Creator", "\t", "creator");
    print_time("Create time", cli_int_at(model, "create_time"));
    print_time("Update time", cli_int_at(model, "last_updated_time"));
    (void)printf("REST URI:\t%s\n", cli_shown(dash(cli_text_at(model, "service_uri"))));
    print_pairs("Attributes", json_input_get(model, "attributes"), "key", "No attribute defined");
    print_pairs("Environments", json_input_get(model, "mk_environments"), "name", "No environment variable defined");
    print_text(model, "Schema version", "\t", "schema_version");
}

static void print_rule(char of)
{
    for (unsigned i = 0; i < RULE_COLUMNS; i++)
        (void)putchar(of);
    (void)putchar('\n');
}

static void print_padded(const char *label, const char *text) { (void)printf("%-22s%s\n", label, cli_shown(text)); }

static void print_count(const char *label, int64_t count) { (void)printf("%-22s%" PRId64 "\n", label, count); }

static void print_rate(const struct json_value *service, const char *label, const char *key)
{
    double rate = 0;

    (void)json_input_number(service, key, &rate);
    (void)printf("%-22s%.2f\n", label, rate);
}

/* "Status:" begins a line nowhere else: scripts wait for the first line that begins so. */
static void print_kernel(const struct json_value *kernel)
{
    print_rule('-');
    print_padded("Kernel ID:", cli_text_at(kernel, "container_uid"));
    print_padded("Host:", cli_text_at(kernel, "container_host"));
    print_padded("Status:", cli_text_at(kernel, "container_status"));
    print_count("Total tasks:", cli_int_at(kernel, "total_task"));
    print_count("Running tasks:", cli_int_at(kernel, "running_task"));
    print_count("Finished tasks:", cli_int_at(kernel, "finished_task"));
    print_count("Failed tasks:", cli_int_at(kernel, "failed_task"));
}

static void print_service(const struct json_value *service, bool kernels)
{
    const struct json_value *containers = json_input_get(service, "isd_container");

    print_rule('=');
    print_padded("Serving service ID:", cli_text_at(service, "isd_uid"));
    print_padded("Service JobID:", cli_text_at(service, "pj_jobid"));
    print_padded("GPU Mode:", cli_text_at(service, "gpu_mode"));
    print_count("Served clients:", cli_int_at(service, "client_number"));
    print_count("Pending requests:", cli_int_at(service, "pending_tasks"));
    print_rate(service, "Requests per second:", "request_per_sec");
    print_rate(service, "Data per second:", "data_size_per_sec");
    print_count("Kernel started:", (int64_t)json_input_count(containers));
    for (size_t i = 0; kernels && i < json_input_count(containers); i++)
        print_kernel(json_input_at(containers, i));
}

void dlim_show_instance(const struct json_value *model, const struct json_value *instance, bool kernels)
{
    const struct json_value *services = json_input_get(instance, "instances");
    const char *state = cli_text_at(instance, "state");
    bool started = strcmp(state, "enabled") == 0;

    (void)printf("%-18s%s\n", "Name:", cli_shown(cli_text_at(model, "name")));
    (void)printf("%-18s%s\n", "State:",
                 started                               ? "Started"
                 : strcmp(state, "not-available") == 0 ? "Not available"
                                                       : "Stopped");
    if (!started)
        return;
    (void)printf("%-18s%zu\n", "Serving replica:", json_input_count(services));
    for (size_t i = 0; i < json_input_count(services); i++)
        print_service(json_input_at(services, i), kernels);
}

void dlim_show_profile(const struct json_value *profile)
{
    static const struct {
        const char *label, *part, *inner, *key;
    } rows[] = {
        { "Name", NULL, NULL, "name" },
        { "Create time", NULL, NULL, "create_time" },
        { "Update time", NULL, NULL, "last_update_time" },
        { "Replica", NULL, NULL, "replica" },
        { "Schedule interval", "policy", NULL, "schedule_interval" },
        { "Kernel Min", "policy", NULL, "kernel_min" },
        { "Kernel Max", "policy", NULL, "kernel_max" },
        { "Kernel delay release time", "policy", NULL, "kernel_delay_release_time" },
        { "Task Execution Timeout", "policy", NULL, "task_execution_timeout" },
        { "Task Batch Size", "policy", NULL, "task_batch_size" },
        { "Stream number per group", "policy", NULL, "stream_number_per_group" },
        { "Stream discard slow tasks", "policy", NULL, "stream_discard_slow_tasks" },
        { "Namespace", "resource_allocation", "kernel", "namespace" },
        { "Image name", "resource_allocation", "kernel", "image_name" },
        { "Resource plan", "resource_allocation", "kernel", "resource_plan" },
        { "Resources", "resource_allocation", "kernel", "resources" },
        { "Connection timeout", "kernel", NULL, "connection_timeout" },
        { "GPU", "kernel", NULL, "gpu" },
    };
    char number[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct json_value *at = rows[i].part == NULL ? profile : json_input_get(profile, rows[i].part);
        const char *text;
        bool yes = false;

        if (rows[i].inner != NULL)
            at = json_input_get(at, rows[i].inner);
        text = json_input_scalar(json_input_get(at, rows[i].key), number, sizeof(number));
        if (text == NULL && json_input_bool(at, rows[i].key, &yes))
            text = yes ? "true" : "false";
        (void)printf("%s:\t%s\n", rows[i].label, text == NULL ? "-" : cli_shown(dash(text)));
    }
}
