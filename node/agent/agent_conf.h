/* The options of an agent, kept in its data folder (agent_conf.c). */
#ifndef SHOAL_NODE_AGENT_CONF_H
#define SHOAL_NODE_AGENT_CONF_H

#include "agent.h"

/* INVALID: a text that is no line of the file. */
SHOAL_MUST_CHECK enum shoal_err agent_conf_check(const struct shoal_cli_agent *options, struct shoal_msg *msg);
/* STORAGE: the data folder cannot be written. Paths are kept whole: the agent may be started in another folder. */
SHOAL_MUST_CHECK enum shoal_err agent_conf_write(const struct shoal_cli_agent *options, struct shoal_msg *msg);
/* Fills what was not given from `text`, which is cut into its lines and must live as long as `options`. `path` is for
 * messages. INVALID: no such setting, or beyond its bounds; the message names file and line. */
SHOAL_MUST_CHECK enum shoal_err agent_conf_parse(struct shoal_cli_agent *options, char *text, const char *path,
                                                 struct shoal_msg *msg);
/* The same from the data folder's file, into `file`, in which the texts live then: the caller's, after an error too. No
 * file is no error. Waits for the disk. */
SHOAL_MUST_CHECK enum shoal_err agent_conf_read(struct shoal_cli_agent *options, struct shoal_buf *file,
                                                struct shoal_msg *msg);

/* The value that is shown of a setting that was not given. */
#define AGENT_CONF_DEFAULT "its default"
typedef void agent_conf_change_fn(void *arg, const char *name, const char *was, const char *is);
/* Tells every setting in which the two differ. */
void agent_conf_changes(const struct shoal_cli_agent *was, const struct shoal_cli_agent *is, agent_conf_change_fn *tell,
                        void *arg);

#endif
