/* The last words of a process on its standard error, as one line for people (`shoal why`). Pure; the text is a stranger's. */
#ifndef AGENT_WORDS_H
#define AGENT_WORDS_H

#include <stddef.h>

/* So much of the end of a log is looked at: a deep traceback. */
#define AGENT_WORDS_TAIL_BYTES 8192

/* `tail`: the end of the log, terminated; may begin within a line. The last line; where that is what a Python traceback ends
 * with, the innermost line of the user's script behind it, in parentheses, as engines say it:
 *
 *     KeyError: 'width' (main.py, line 12, in area: return box["width"] * 2)
 *
 * Of a process that a fatal signal has ended, which, and the innermost line of the user's that its thread was in.
 * Warnings are left out, with the line of source below each: where nothing else is there, so is the answer.
 * Lines that are indented go on with a message: the first and the last are shown. Where others follow the traceback, the script
 * went on after it, and the last line stands alone. */
void agent_words(const char *tail, char *text, size_t cap);

#endif
