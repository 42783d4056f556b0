/* Decides which certificates the command line believes.
 *
 *     --insecure            none is checked               http://               there is none
 *     --ca FILE, SHOAL_CA   what FILE vouches for         ca.crt, of a logon    that mesh's nodes
 *     none of these         a logon learns it (T1); other verbs believe the system's list (T3)
 *
 * T1. A mesh is believed once a person, or --fingerprint, or --yes, has said so; it is kept beside the token. Until then
 *     nothing is sent to the node but a question for its certificate.
 * T2. A mesh's CA signs for the nodes of one mesh: whatever address leads to one of them is right. So its certificates are
 *     not compared with names; those of any other CA are.
 * T3. Where no mesh is known, the system's list and the node's name decide: no mesh's CA is in that list. */
#include "cli_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shoal/banned.h"

#define CA_BYTES_MAX (256u << 10)

/* The file in which a logon keeps what it has learned, beside the token. */
static const char *kept_path(struct cli *cli, char *path, size_t cap)
{
    const char *token = cli_value(cli, "token-file");

    if (token == NULL)
        token = getenv("SHOAL_TOKEN_FILE");
    if (token == NULL)
        return cli_home_file("ca.crt", path, cap);
    return (size_t)snprintf(path, cap, "%s.ca", token) < cap ? path : NULL;
}

static bool read_file(const char *path, struct cli_trust *trust)
{
    FILE *file = fopen(path, "re");
    char *text = file == NULL ? NULL : malloc(CA_BYTES_MAX);
    size_t len = text == NULL ? 0 : fread(text, 1, CA_BYTES_MAX, file);
    bool ok = len > 0 && len < CA_BYTES_MAX && cli_trust_read(text, len, trust);

    free(text);
    if (file != NULL)
        (void)fclose(file);
    return ok;
}

static int use_file(struct cli *cli, const char *path)
{
    struct cli_trust trust;

    if (strlen(path) >= sizeof(cli->ca) || access(path, R_OK) != 0)
        return cli_fail(SHOAL_EXIT_USAGE, "--ca: %s cannot be read", path);
    /* Of a bundle, too, the file is libcurl's to read: only a mesh's CA, alone in it, is ours to know. */
    cli->ca_names = !(read_file(path, &trust) && trust.is_mesh && trust.count == 1);
    (void)snprintf(cli->ca, sizeof(cli->ca), "%s", path);
    return SHOAL_EXIT_OK;
}

static bool same_fingerprint(const char *given, const char *own)
{
    if (strncasecmp(given, "sha256:", 7) == 0)
        given += 7;
    return strcasecmp(given, own + 7) == 0;
}

/* A person at a terminal says whether it is the right mesh. */
static bool ask(const char *node, const struct cli_trust *trust)
{
    FILE *terminal = fopen("/dev/tty", "r+e");
    char answer[16] = "";

    if (terminal == NULL)
        return false;
    (void)fprintf(
        terminal,
        "%s is not known here. It says that it is of %s %s, with the fingerprint\n  %s\n`shoal init` printed it, and "
        "`shoal doctor` prints it on every host of the mesh. Is it the same (yes/no)? ",
        node, trust->is_mesh ? "the mesh" : "the host", trust->name, trust->fingerprint);
    (void)fflush(terminal);
    if (fgets(answer, sizeof(answer), terminal) == NULL)
        answer[0] = '\0';
    (void)fclose(terminal);
    return strcasecmp(answer, "yes\n") == 0 || strcasecmp(answer, "y\n") == 0;
}

/* T1. */
static int learn(struct cli *cli, const char *node, const char *path, const struct cli_trust *trust)
{
    const char *given = cli_value(cli, "fingerprint");
    int code;

    if (given != NULL && !same_fingerprint(given, trust->fingerprint))
        return cli_fail(
            SHOAL_EXIT_DENIED,
            "%s shows the fingerprint %s, not the one that was given: it is of another mesh, or somebody stands "
            "before it; nothing was sent",
            node, trust->fingerprint);
    if (given == NULL && !cli_flag(cli, "yes") && !ask(node, trust))
        return cli_fail(
            SHOAL_EXIT_DENIED,
            "%s is not known here, and nobody has said that its fingerprint %s is right; nothing was sent. Give "
            "--fingerprint (`shoal doctor` prints it on a host of the mesh), --yes, or --ca FILE",
            node, trust->fingerprint);
    if (path == NULL)
        return cli_fail(SHOAL_EXIT_FAILED, "no place for the mesh's certificate: set HOME, or give --token-file");
    code = cli_keep_file(path, trust->pem);
    if (code != SHOAL_EXIT_OK)
        return code;
    cli_say(cli, "knows %s %s from now on, fingerprint %s", trust->is_mesh ? "the mesh" : "the host", trust->name,
            trust->fingerprint);
    (void)snprintf(cli->ca, sizeof(cli->ca), "%s", path);
    return SHOAL_EXIT_OK;
}

int cli_trust_ready(struct cli *cli, const char *node)
{
    const char *ca = cli_value(cli, "ca");
    const char *insecure = getenv("SHOAL_INSECURE");
    const char *given = cli->command == NULL ? NULL : cli_value(cli, "fingerprint");
    char own[1024];
    const char *path = kept_path(cli, own, sizeof(own));
    struct cli_trust trust;

    if (cli->ca[0] != '\0' || cli->insecure || strncmp(node, "http://", 7) == 0)
        return SHOAL_EXIT_OK;
    if (ca == NULL)
        ca = getenv("SHOAL_CA");
    cli->insecure = cli_flag(cli, "insecure") || (insecure != NULL && strcmp(insecure, "1") == 0);
    if (cli->insecure)
        return SHOAL_EXIT_OK;
    if (ca != NULL && ca[0] != '\0')
        return use_file(cli, ca);
    if (path != NULL && read_file(path, &trust) && (given == NULL || same_fingerprint(given, trust.fingerprint))) {
        (void)snprintf(cli->ca, sizeof(cli->ca), "%s", path);
        return SHOAL_EXIT_OK;
    }
    if (cli->command == NULL || strcmp(cli->command->words, "logon") != 0 || !cli_chain(cli, node, &trust))
        return SHOAL_EXIT_OK; /* T3; or it shows no certificate, and the request itself says why */
    return learn(cli, node, path, &trust);
}
