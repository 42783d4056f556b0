/* A table of ends of logs, and what `why` shows of each. */
#include "node/agent/agent_words.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TOP "Traceback (most recent call last):\n"
#define MAIN "  File \"/r/ana/batchworkdir/shoal-1/_submitted_code/m/main.py\", line 12, in area\n    return box[\"width\"] * 2\n"
#define TORCH "  File \"/usr/lib/python3/dist-packages/torch/nn.py\", line 900, in forward\n    return F.linear(x)\n"

#define DUMP "Fatal Python error: Segmentation fault\n\nThread 0x00007fe6842fe6c0 (most recent call first):\n  File \"/r/_submitted_code/m/other.py\", line 6 in wait\n\n" \
    "Current thread 0x00007fe68c9f4b80 (most recent call first):\n  File \"/usr/lib/python3.11/ctypes/__init__.py\", line 519 in string_at\n"
#define USED "  File \"/r/_submitted_code/m/main.py\", line 7 in __getitem__\n  File \"/r/_submitted_code/m/main.py\", line 9 in <module>\n"

static const struct row {
    const char *name, *tail, *want;
} rows[] = {
    { "nothing", "", "" },
    { "an empty log", "\n  \n", "" },
    { "the last line", "one\ntwo  \n\n", "two" },
    { "the user's line", TOP MAIN "KeyError: 'width'\n", "KeyError: 'width' (main.py, line 12, in area: return box[\"width\"] * 2)" },
    { "the innermost of the user's", TOP "  File \"/r/_submitted_code/first.py\", line 1, in <module>\n    area()\n" MAIN TORCH "ValueError: no\n",
      "ValueError: no (main.py, line 12, in area: return box[\"width\"] * 2)" },
    { "marks below the source are none", TOP "  File \"/r/_submitted_code/a.py\", line 3, in f\n    ~~~^^\nE: 1\n", "E: 1 (a.py, line 3, in f)" },
    { "no frame of the user's", TOP TORCH "ValueError: no\n", "ValueError: no" },
    { "the last of two tracebacks", TOP TORCH "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n" TOP MAIN "ValueError: 2\n",
      "ValueError: 2 (main.py, line 12, in area: return box[\"width\"] * 2)" },
    { "a message goes on", TOP MAIN "RuntimeError: cannot load:\n\tMissing: a\n\tMissing: b\n",
      "RuntimeError: cannot load: Missing: b (main.py, line 12, in area: return box[\"width\"] * 2)" },
    { "a long message leaves no room for the source",
      TOP MAIN "RuntimeError: train() of fabric_model wants an elastic job, and this one is not: submit it with --framework edtPyTorch, not as a plain script of PyTorch or the like\n",
      "RuntimeError: train() of fabric_model wants an elastic job, and this one is not: submit it with --framework edtPyTorch, not as a plain script of PyTorch or the like (main.py, line 12, in area)" },
    { "a message that is as long as all of it", TOP MAIN
      "pyedt._driver.TrainingFailed: training failed: its bundle cannot be kept on this host: /var/lib/shoal-of-gamma/jobs/shoal-38gkce4pge8mc9jv/driver/call-1.bundle: No such file or directory\n",
      "pyedt._driver.TrainingFailed: training failed: its bundle cannot be kept on this host: /var/lib/shoal-of-gamma/jobs/shoal-38gkce4pge8mc9jv/driver/call-1.bundle: No such file or directory (main.py)" },
    { "the script went on", TOP MAIN "KeyError: 'width'\nstill here\ngives up\n", "gives up" },
    { "cut off within a frame", "area\n    return box\nKeyError: 'width'\n", "KeyError: 'width'" },
    { "a traceback without an end", TOP MAIN, "    return box[\"width\"] * 2" },
    { "a warning is no reason", "/r/_submitted_code/m/main.py:2: UserWarning: just a hint\n  warnings.warn(\"just a hint\")\n", "" },
    { "a warning and its source, at the end of what was said", "gives up\n/r/m/main.py:12: DeprecationWarning: old\n  f(1,\n", "gives up" },
    { "a warning without its source", "<string>:1: torch.jit.TracerWarning: x\ngives up\n", "gives up" },
    { "a warning of torch's native code", "gives up\n[W1128 04:26:57.120394 socket.cpp:460] [c10d] cannot\n", "gives up" },
    { "a warning of logging", "gives up\nWARNING:root:slow\n", "gives up" },
    { "a warning after a traceback", TOP MAIN "KeyError: 1\n/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: leaked\n  warnings.warn('leaked')\n",
      "KeyError: 1 (main.py, line 12, in area: return box[\"width\"] * 2)" },
    { "a warning that was raised", TOP MAIN "UserWarning: just a hint\n", "UserWarning: just a hint (main.py, line 12, in area: return box[\"width\"] * 2)" },
    { "what only looks like a warning", "main.py:12: Warning\n12: a Warning: no\n", "12: a Warning: no" },
    { "a fatal signal", DUMP USED "  File \"/usr/lib/python3.11/threading.py\", line 982 in run\n\nExtension modules: numpy.core, torch._C (total: 2)\n",
      "Fatal Python error: Segmentation fault (main.py, line 7 in __getitem__)" },
    { "a fatal signal without a frame of the user's", DUMP "\nExtension modules: torch._C (total: 1)\n", "Fatal Python error: Segmentation fault" },
    { "a fatal signal of a thread of a library's", "Fatal Python error: Aborted\n\nCurrent thread 0x0000 (most recent call first):\n  <no Python frame>\n\nThread 0x0001 (most recent call first):\n" USED,
      "Fatal Python error: Aborted" },
    { "a fatal signal after a traceback that was printed", TOP MAIN "KeyError: 1\n" DUMP USED, "Fatal Python error: Segmentation fault (main.py, line 7 in __getitem__)" },
    { "the script went on after what looks like a fatal signal", DUMP USED "gives up\n", "gives up" },
    { "a frame without its quote", TOP "  File \"/r/_submitted_code/a.py\nE: 1\n", "E: 1" },
};

static void ends_of_logs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[200];

        agent_words(rows[i].tail, text, sizeof(text));
        if (strcmp(text, rows[i].want) != 0)
            fail_msg("%s: \"%s\"", rows[i].name, text);
    }
}

/* Of any length, and every end of it: what is shown fits, and is terminated. */
static void any_length_fits(void **state)
{
    static const char pieces[][160] = { TOP, MAIN, TORCH, "  File \"", "E: ", "\n", "\t", "/_submitted_code/", "a.py:1: UserWarning: b\n  " };
    char tail[AGENT_WORDS_TAIL_BYTES];

    (void)state;
    for (unsigned seed = 1; seed < 20000; seed++) {
        size_t len = 0;
        char text[200];

        for (unsigned n = seed; n > 0; n /= 9)
            for (const char *c = pieces[n % 9]; *c != '\0' && len + 1 < sizeof(tail); c++)
                tail[len++] = *c;
        for (size_t pad = seed % 300; pad > 0 && len + 1 < sizeof(tail); pad--)
            tail[len++] = 'x';
        tail[len] = '\0';
        memset(text, 'y', sizeof(text));
        agent_words(tail, text, sizeof(text));
        assert_non_null(memchr(text, 0, sizeof(text)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(ends_of_logs), cmocka_unit_test(any_length_fits) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
