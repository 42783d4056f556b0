/* shoal node remove, readmit, drain, undrain, leave; shoal mesh recover. */
#include "cli_internal.h"

#include <string.h>

#include "shoal/banned.h"

/* POST, and say what the answer's text says. */
static int change(struct cli *cli, const char *path, const char *mesh_key)
{
    struct cli_call call = { .method = "POST", .path = path, .mesh_key = mesh_key };
    struct cli_answer answer;
    struct json_input *input;
    int code = cli_call(cli, &call, &answer, false);

    if (code == SHOAL_EXIT_OK && cli->json)
        cli_print_json(cli_answer_text(&answer));
    if (code == SHOAL_EXIT_OK && !cli->json && (code = cli_parse(&answer, &input)) == SHOAL_EXIT_OK) {
        (void)printf("%s\n", cli_text_at(json_input_root(input), "text"));
        json_input_free(input);
    }
    cli_answer_free(&answer);
    return code;
}

static int change_node(struct cli *cli, const char *verb)
{
    char node[300];
    char path[400];

    cli_encode(cli->words[0], node, sizeof(node));
    (void)snprintf(path, sizeof(path), "/v1/nodes/%s/%s", node, verb);
    return change(cli, path, NULL);
}

int cli_node_remove(struct cli *cli)
{
    return change_node(cli, cli_flag(cli, "force") ? "remove?force=true" : "remove");
}

int cli_node_readmit(struct cli *cli) { return change_node(cli, "readmit"); }

int cli_node_drain(struct cli *cli) { return change_node(cli, "drain"); }

int cli_node_undrain(struct cli *cli) { return change_node(cli, "undrain"); }

int cli_node_leave(struct cli *cli) { return change_node(cli, cli_flag(cli, "force") ? "leave?force=true" : "leave"); }

int cli_mesh_recover(struct cli *cli)
{
    const char *file = cli_value(cli, "key");
    char key[200];

    if (!cli_flag(cli, "yes"))
        return change(cli, "/v1/mesh/recover", NULL);
    if (file == NULL)
        return cli_fail(SHOAL_EXIT_USAGE,
                        "shoal mesh recover --yes wants --key FILE: what `shoal init` wrote into mesh.key");
    if (!cli_read_line(file, key, sizeof(key)))
        return cli_fail(SHOAL_EXIT_USAGE, "--key %s: cannot be read, or is empty", file);
    return change(cli, "/v1/mesh/recover?confirm=true", key);
}
