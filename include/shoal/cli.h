/* The command line: one binary, verbs in words. Verbs that talk to a mesh use its public REST alone; verbs that are
 * about this machine are hooks, given by main(). */
#ifndef SHOAL_CLI_H
#define SHOAL_CLI_H

#include <stdbool.h>
#include <stdint.h>

/* services 3.4: what a script can rely on. */
enum shoal_exit {
    SHOAL_EXIT_OK = 0,
    SHOAL_EXIT_FAILED = 1,
    SHOAL_EXIT_USAGE = 2,
    SHOAL_EXIT_NOT_FOUND = 3,
    SHOAL_EXIT_DENIED = 4,
    SHOAL_EXIT_UNREACHABLE = 5,
    SHOAL_EXIT_TIMEOUT = 6,
    SHOAL_EXIT_CONFLICT = 7,
};

/* shoal init, join and agent. Texts are "" and numbers 0 where not given. */
struct shoal_cli_agent {
    const char *data; /* data folder */
    const char *name; /* node name */
    const char *host; /* address to bind and advertise */
    uint16_t port;    /* gossip and links */
    const char *api_host;
    uint16_t api_port; /* HTTPS */
    bool api_plain;
    const char *join;                /* host:port of any member */
    const char *secret_file;         /* holds the mesh secret, "-": standard input */
    const char *mesh_name;           /* init */
    const char *admin_user;          /* init */
    const char *admin_password_file; /* init; "" : make one and print it */
    unsigned slots;                  /* 0: from the inventory */
    const char *inventory;           /* simulated inventory for tests: "cpu:2", "gpu:4" */
    const char *fabric_trusted;
    const char *transport;
    const char *domain; /* failure domain */
    /* Its first line opens /metrics to a scraper; "": nobody but users. */
    const char *metrics_token_file;
    uint64_t prefill_mib;     /* UINT64_MAX: not given */
    uint64_t store_map_mib;   /* 0: not given */
    uint32_t log_max_mib;     /* of one job's logs on this host; 0: not given */
    uint32_t files_max;       /* of one job's result folder on this host; 0: not given */
    uint32_t files_gib;       /* 0: not given */
    uint32_t archive_s;       /* from a job's end to its archive; 0: not given */
    uint64_t warm_memory_mib; /* of interpreters that wait with a framework loaded; UINT64_MAX: not given */
    const char *python;       /* interpreter of workers */
    bool setup_python;        /* init, join: make it, where it lacks torch */
    const char *libs;         /* FABRIC_HOME */
    const char *log_level;
    bool foreground;
    bool json;    /* doctor */
    bool verbose; /* doctor */
};

struct shoal_cli_hooks {
    int (*init)(const struct shoal_cli_agent *agent); /* founds a mesh in the data folder, prints its secret's place */
    int (*join)(
        const struct shoal_cli_agent *agent); /* prepares the data folder to join; with `foreground` also runs */
    int (*agent)(const struct shoal_cli_agent *agent); /* runs until stopped */
    int (*sim)(int argc, char **argv);                 /* argv[0] is "sim" */
    int (*doctor)(const struct shoal_cli_agent *agent);
    /* Any further verb of the binary that is not for people (the runner's own entry): NULL if there is none. Returns
     * false if `argv[1]` is not one of them. */
    bool (*internal)(int argc, char **argv, int *exit_code);
    const char *version;
};

/* Runs one command; returns the process's exit code. A hook that is NULL is answered "not built in". */
int shoal_cli_main(int argc, char **argv, const struct shoal_cli_hooks *hooks);

#endif
