/* Inside the command line. */
#ifndef API_CLI_INTERNAL_H
#define API_CLI_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "api/http/json_input.h"

#include "shoal/buf.h"
#include "shoal/cli.h"
#include "shoal/error.h"
#include "shoal/http.h"

#define CLI_GIVEN_MAX 64
#define CLI_WORDS_MAX 1024

struct cli_option {
    const char *name;  /* without dashes */
    const char *value; /* what stands for its value in help; NULL: a flag */
    const char *help;
    char letter; /* 0: none */
};

struct cli;

struct cli_command {
    const char *words;                /* "job run" */
    const char *args;                 /* "ID [FILE]": as help shows it; [] may be left out, "..." any number */
    const char *help;                 /* one line */
    const char *more;                 /* examples; NULL */
    const struct cli_option *options; /* up to one with a NULL name; NULL: none */
    int (*run)(struct cli *cli);
    bool rest; /* takes words after a lone -- */
};

struct cli {
    const struct shoal_cli_hooks *hooks;
    const struct cli_command *command;
    int argc;
    char **argv;
    struct {
        const struct cli_option *option;
        const char *value;
    } given[CLI_GIVEN_MAX];
    unsigned given_count;
    const char *words[CLI_WORDS_MAX]; /* the command's own arguments */
    unsigned word_count;
    const char *const *rest; /* after "--" */
    unsigned rest_count;
    bool json;
    bool quiet;
    long timeout_s; /* 0: the command's own */
    char ca[1024];  /* whose certificates are believed; "": not decided yet, or insecure */
    bool ca_names;  /* ... where they say the node's name */
    bool insecure;  /* none is checked */
};

/* The last value given for an option; NULL if none. A flag's value is "". */
const char *cli_value(const struct cli *cli, const char *name);
bool cli_flag(const struct cli *cli, const char *name);
bool cli_number(const struct cli *cli, const char *name, uint64_t min, uint64_t max,
                uint64_t *value); /* false: said so */
const char *cli_home_file(const char *name, char *path,
                          size_t cap); /* in the user's configuration folder; NULL: no home */

/* "shoal: <text>" on stderr; hands `code` back. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *format, ...);
/* A message for people, on stderr, unless --quiet. */
__attribute__((format(printf, 2, 3))) void cli_say(const struct cli *cli, const char *format, ...);

struct timespec cli_monotonic(void);
/* False: --timeout has passed since `start`. */
bool cli_time_is_left(const struct cli *cli, struct timespec start);
void cli_pause_ms(long ms);

/* ---- trust ---- */

#define CLI_CHAIN_MAX 8

/* A certificate to believe in: the mesh CA's that comes behind a node's own, else the node's own. */
struct cli_trust {
    char pem[8192];
    char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES];
    char name[64]; /* of the mesh, or of the host */
    bool is_mesh;
    unsigned count; /* certificates that were read */
};

/* cli_trust_openssl.c. False: there is no certificate in it. */
bool cli_trust_read(const char *pem, size_t len, struct cli_trust *trust);
/* cli_trust.c: decides what is believed of `node`, once; what speaks against it has been said. */
int cli_trust_ready(struct cli *cli, const char *node);
/* cli_http_curl.c: what the node shows, whoever it is. Nothing is sent to it. */
bool cli_chain(struct cli *cli, const char *node, struct cli_trust *trust);
/* Whole or not at all, and for its owner alone. */
int cli_keep_file(const char *path, const char *text);

/* ---- requests ---- */

struct cli_call {
    const char *method;
    const char *path;
    const char *data;      /* the form field `data`, or NULL */
    const char *file;      /* a file to send as the form field `file`, or NULL */
    const char *file_name; /* its name there */
    const char *ticket;    /* NULL: none */
    const char *mesh_key;  /* the mesh's, for its recovery; NULL: none */
    const char *node;      /* a URL that is asked instead of the node; NULL: the node */
    const char *body;      /* JSON to send, or NULL */
    size_t body_bytes;     /* of a body that is no text, and may have a NUL in it; 0: it ends as texts do */
    const char *upload;    /* a file to send as it is, or NULL */
    const char *bearer;    /* a token to show instead of the kept one; NULL: none */
    const char *basic[2];  /* a name and its password instead; NULL: none */
    FILE *sink;            /* the body of a success goes there instead of into the answer; stdout: by cli_put_log() */
    const char *accept;
    long timeout_s; /* 0: 30 s; without progress for uploads and downloads */
    bool anonymous;
};

struct cli_answer {
    long status;
    char node[256];        /* the URL of who was asked last */
    struct shoal_buf body; /* NUL-terminated beyond its length */
    char disposition[512];
    char log_next[32];
    char ticket[1600];
    char survives[400];
    bool log_ended;
    bool incomplete; /* something is not in it */
    char fault[640]; /* why there is no status, cause and remedy; "" otherwise */
    bool unsent;     /* ... and nothing of the request has reached a node */
};

/* SHOAL_EXIT_OK: a success came. Otherwise what went wrong has been said, unless `hush`, and `answer` may hold a
 * body. */
int cli_call(struct cli *cli, const struct cli_call *call, struct cli_answer *answer, bool hush);
/* Says what the node's refusal says, without "Error 400: " and the line's end. */
void cli_refused(const struct cli_answer *answer);
void cli_answer_free(struct cli_answer *answer);
const char *cli_answer_text(const struct cli_answer *answer);
/* Says of the node that its answer leads nowhere: it came with `what`, and whoever read on there would never end. */
int cli_leads_nowhere(const struct cli_answer *answer, const char *what);
/* GET, and print the body as it is. */
int cli_print(struct cli *cli, const char *path);
/* The answer says this in JSON; "" and 0 where it does not. */
int cli_parse(const struct cli_answer *answer, struct json_input **input);
/* A text of an object, or of an array, as cli_shown() makes it; "" where there is none. */
const char *cli_text_at(const struct json_value *object, const char *key);
const char *cli_text_item(const struct json_value *array, size_t index);
/* cli_text.c. Makes a text of a job or a stranger one line that is safe for a terminal: control characters and ends of lines as
 * \x1b, tabs kept. The text itself, or a copy (of its first 4,000 bytes) that lives until some more have been made. */
const char *cli_shown(const char *text);
/* Prints one, with an end of a line; the lines within it begin `indent` columns to the right, so that they are none of ours. */
void cli_put_lines(const char *text, unsigned indent);
/* Prints JSON that a node has made. */
void cli_put_json(FILE *out, const char *json);
/* ... to standard output, with an end of a line. */
void cli_print_json(const char *json);
/* Prints what comes of a log or a model, as it is into a file or a pipe. On a terminal what a script prints changes no title, asks for
 * no answer and hides no line: its control characters are shown, but for the ends of lines and what progress bars use. */
struct cli_log_text {
    uint8_t held[4]; /* may be the beginning of a character */
    unsigned held_len;
};
void cli_put_log(struct cli_log_text *text, const char *bytes, size_t len);
int64_t cli_int_at(const struct json_value *object, const char *key);
/* The workers that a job has, and may have: "2/6". The tasks of an array have one each; a service has no such bound. */
void cli_workers_text(const struct json_value *job, char *text, size_t cap);
/* GET of JSON. `*input` is the caller's to free, NULL where it failed; so is `answer`, always. */
int cli_get(struct cli *cli, const char *path, struct cli_answer *answer, struct json_input **input);
/* GET, and print the body: as it is with --output json, else by `print`. */
int cli_show(struct cli *cli, const char *path, void (*print)(const struct cli *cli, const struct json_value *root));
/* The first line of a file, without its end. False: it cannot be read, is empty, or does not fit. */
bool cli_read_line(const char *path, char *out, size_t cap);
/* The size of the terminal, else COLUMNS; where neither says it, both stay as they are. */
void cli_terminal_size(unsigned *width, unsigned *lines);
/* Percent-encodes one path segment. What does not fit would name something else: it makes an address that cli_call() refuses. */
void cli_encode(const char *text, char *out, size_t cap);

/* Packs a directory as tar.gz with its base name on top, into a new temporary file; the caller removes it. */
enum shoal_err cli_pack(const char *dir, const char *top, char *path, size_t cap, struct shoal_msg *msg);

/* The args of a submit, as text. */
struct cli_args {
    struct shoal_buf text;
    bool failed;
};
/* A token; white space in it is kept by _QUOTE_ marks. */
void cli_args_add(struct cli_args *args, const char *text);

/* cli_commands.c: in the order of help. */
extern const struct cli_command cli_commands[];
extern const unsigned cli_command_count;

int cli_run_init(struct cli *cli);
int cli_run_join(struct cli *cli);
int cli_run_agent(struct cli *cli);
int cli_run_doctor(struct cli *cli);
int cli_run_help(struct cli *cli);
int cli_run_sim(struct cli *cli);
int cli_run_version(struct cli *cli);
int cli_run_dlim(struct cli *cli);
int cli_job_run(struct cli *cli);
int cli_job_list(struct cli *cli);
int cli_job_show(struct cli *cli);
int cli_job_logs(struct cli *cli);
/* Prints the output of a job that was just submitted, until the job has ended. */
int cli_follow(struct cli *cli, const char *id);
int cli_job_stop(struct cli *cli);
int cli_job_result(struct cli *cli);
int cli_job_files(struct cli *cli);
int cli_job_get(struct cli *cli);
int cli_job_metrics(struct cli *cli);
int cli_job_delete(struct cli *cli);
int cli_job_recover(struct cli *cli);
int cli_job_ledger(struct cli *cli);
int cli_job_tasks(struct cli *cli);
int cli_job_wait(struct cli *cli);
int cli_service_deploy(struct cli *cli);
int cli_service_list(struct cli *cli);
int cli_service_show(struct cli *cli);
/* OK: the verb's first word names one. `said`: what stands in the way of any request has been told. */
int cli_find_service(struct cli *cli, bool *said);
int cli_service_start(struct cli *cli);
int cli_service_stop(struct cli *cli);
int cli_service_scale(struct cli *cli);
int cli_service_rollback(struct cli *cli);
int cli_service_canary(struct cli *cli);
int cli_service_promote(struct cli *cli);
int cli_service_delete(struct cli *cli);
int cli_service_logs(struct cli *cli);
int cli_service_edit(struct cli *cli);
int cli_service_test(struct cli *cli);
int cli_job_deploy(struct cli *cli);
int cli_node_list(struct cli *cli);
int cli_node_remove(struct cli *cli);
int cli_node_readmit(struct cli *cli);
int cli_node_drain(struct cli *cli);
int cli_node_undrain(struct cli *cli);
int cli_node_leave(struct cli *cli);
int cli_mesh_recover(struct cli *cli);
int cli_frameworks(struct cli *cli);
int cli_logon(struct cli *cli);
int cli_logoff(struct cli *cli);
/* `dlim`: the words are after the program's name, or after `shoal dlim`. */
int dlim_main(int argc, char **argv, const char *version);
int cli_top(struct cli *cli);
int cli_why(struct cli *cli);
int cli_status(struct cli *cli);

#endif
