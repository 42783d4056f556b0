"""Kernels in C, as a user builds them: the header alone, and the kernel host that an agent starts."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import ROOT
from test_kernel_host import host, refusal_of  # noqa: F401  a fixture

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang-14")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler: set-up installs gcc")
INCLUDE = pathlib.Path(ROOT) / "include"
HEAD = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "shoal/kernel.h"
"""
# Each word of a body is something that a kernel does.
KERNEL = HEAD + """
struct state {
    char started[200];
    unsigned batches;
};

static int start(void **state, const struct shoal_kernel_start *s, char *error, size_t error_bytes)
{
    struct state *made = calloc(1, sizeof(*made));

    (void)error, (void)error_bytes;
    snprintf(made->started, sizeof(made->started), "%s|%u|%d|%d", s->name, s->batch_max, strstr(s->description, "\\"tag\\"") != NULL,
             access(s->model_path, R_OK));
    s->host->log(SHOAL_KERNEL_DEBUG, "not seen");
    s->host->log(SHOAL_KERNEL_WARN, "starts");
    *state = made;
    return 0;
}

static void *answer_it(void *arg)
{
    const struct shoal_kernel_task *task = arg;

    task->host->answer(task, 201, "text/x", "of a thread", 11);
    return NULL;
}

static int is(const struct shoal_kernel_task *task, const char *word)
{
    return task->body_bytes == strlen(word) && memcmp(task->body, word, task->body_bytes) == 0;
}

static int run(void *arg, const struct shoal_kernel_task *tasks, size_t count, char *error, size_t error_bytes)
{
    struct state *state = arg;
    int status = 0;

    state->batches++;
    for (size_t i = 0; i < count; i++) {
        const struct shoal_kernel_task *t = &tasks[i];
        char text[600];

        if (is(t, "started"))
            t->host->answer(t, 200, "text/plain", state->started, strlen(state->started));
        else if (is(t, "facts")) {
            snprintf(text, sizeof(text), "{\\"path\\": \\"%s\\", \\"type\\": \\"%s\\", \\"head\\": %u, \\"left\\": %d, \\"id\\": %d, \\"wanted\\": %d, \\"count\\": %zu}",
                     t->path, t->content_type, t->header_bytes, t->deadline_ms > 0 && t->deadline_ms <= 60000, strlen(t->id) > 0,
                     t->host->is_wanted(t), count);
            t->host->answer(t, 200, NULL, text, strlen(text));
        } else if (is(t, "twice")) {
            t->host->answer(t, 200, NULL, "first", 5);
            printf("second: %d\\n", t->host->answer(t, 200, NULL, "second", 6));
        } else if (is(t, "thread")) {
            pthread_t thread;
            pthread_create(&thread, NULL, answer_it, (void *)t);
            pthread_join(thread, NULL);
        } else if (is(t, "pieces")) {
            int sent = 0;
            for (int p = 0; p < 3; p++)
                sent += t->host->part(t, "piece", 5);
            t->host->answer(t, 200, "text/plain", sent == 0 ? "end" : "whole", sent == 0 ? 3 : 5);
        } else if (is(t, "status"))
            t->host->answer(t, 77, NULL, "", 0);
        else if (is(t, "empty"))
            t->host->answer(t, 200, NULL, NULL, 0);
        else if (is(t, "crash"))
            *(volatile int *)8 = 1;
        else if (is(t, "hang"))
            for (;;)
                pause();
        else if (is(t, "fail")) {
            snprintf(error, error_bytes, "no good");
            status = 7;
        } else if (is(t, "code"))
            status = 7;
        else if (!is(t, "nothing"))
            t->host->answer(t, 200, "text/plain", t->body, t->body_bytes);
    }
    return status;
}

static void stop(void *state)
{
    printf("stops after %u\\n", ((struct state *)state)->batches);
    fflush(stdout);
    free(state);
}

SHOAL_KERNEL_EXPORT const struct shoal_kernel shoal_kernel = { .abi = SHOAL_KERNEL_ABI, .start = start, .run = run, .stop = stop };
"""
MODEL = json.dumps({"name": "c", "kernel_path": "kernel.so", "tag": "t"})


def built(tmp_path, text):
    (tmp_path / "kernel.c").write_text(text)
    subprocess.run([CC, "-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC", "-I",
                    str(INCLUDE), "-o", str(tmp_path / "kernel.so"), str(tmp_path / "kernel.c"), "-lpthread"], check=True)
    return {"kernel.so": (tmp_path / "kernel.so").read_bytes(), "model.json": MODEL}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return built(tmp_path_factory.mktemp("c"), KERNEL)


def test_the_header_stands_alone():
    subprocess.run([CC, "-x", "c", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
                    str(INCLUDE / "shoal/kernel.h")], check=True)


def test_what_it_is_told_and_what_it_answers(host, files):  # noqa: F811
    one = host(files, profile={"batch": 4})
    assert one.ready()["platform"] == "shoal_c"
    name, batch, tag, folder = one.answer(1, b"started")[2].decode().split("|")
    assert name.startswith("edi-echo-1-task12n-") and (batch, tag, folder) == ("4", "1", "0")
    status, headers, body = one.answer(2, b"facts", content_type="text/x", deadline_ms=60000, header_len=3)
    assert status == 200 and headers["content_type"] == "application/json"
    assert json.loads(body) == {"path": "/v2/models/echo/infer", "type": "text/x", "head": 3, "left": 1, "id": 1, "wanted": 1, "count": 1}
    assert one.answer(3, b"\x00\xff plain") == (200, {"content_type": "text/plain"}, b"\x00\xff plain")
    assert one.answer(4, b"twice")[2] == b"first"
    assert one.answer(5, b"thread") == (201, {"content_type": "text/x"}, b"of a thread")
    assert one.answer(6, b"empty")[::2] == (200, b"") and one.answer(6, b"pieces")[2] == b"whole"
    assert one.answer(7, b"status")[0] == 500 and one.answer(7, b"nothing")[0] == 500
    assert one.answer(8, b"fail")[::2] == (500, b"no good")
    assert one.answer(8, b"code")[::2] == (500, b"run of the kernel's library returned 7")
    one.infer(9, b"pieces", window=1 << 16)
    assert [one.hear()[:3] for _ in range(4)] == [["part", 9, b"piece"]] * 3 + [["done", 9, 200]]
    one.say("stop")
    assert one.end() == 0
    assert "second: -1\n" in one.out.read_text() and "stops after 12\n" in one.out.read_text()
    assert ": W starts\n" in one.errors() and "not seen" not in one.errors()


def test_a_batch_has_what_waits_and_each_its_own_answer(host, files):  # noqa: F811
    one = host(files, profile={"batch": 8})
    one.ready()
    for number in range(200):
        one.infer(number, b"fail" if number == 150 else b"body %d" % number)
    for _ in range(200):
        _, number, status, _, body = one.hear()
        assert (status, body) == ((500, b"no good") if number == 150 else (200, b"body %d" % number))


@pytest.mark.parametrize("body, profile, text", [
    (b"crash", {}, "ended by signal 11 (SIGSEGV)"), (b"hang", {"kernel": {"hang_timeout": 1}}, "a batch ran longer than 1 s: it hangs")])
def test_a_crash_and_a_hang_end_the_kernel_and_say_so(host, files, body, profile, text):  # noqa: F811
    one = host(files, profile=profile)
    one.ready()
    one.infer(1, body)
    assert one.hear() is None and one.end() == 1 and text in one.errors()


@pytest.mark.parametrize("text, why", [
    (HEAD + "int other;", "kernel.so exports no shoal_kernel"),
    (HEAD + "SHOAL_KERNEL_EXPORT const struct shoal_kernel shoal_kernel = { .abi = 9 };", "was built for version 9"),
    (HEAD + "SHOAL_KERNEL_EXPORT const struct shoal_kernel shoal_kernel = { .abi = SHOAL_KERNEL_ABI };", "shoal_kernel has no run"),
    (KERNEL.replace('"%s|%u|%d|%d", s->name', '"%s|%u|%d|%d", (snprintf(error, error_bytes, "no\\nweights"), s->name)')
     .replace("*state = made;\n    return 0;", "*state = made;\n    return 2;").replace("(void)error, (void)error_bytes;", "", 1),
     "no weights")])
def test_a_library_that_cannot_serve_says_why(host, tmp_path, text, why):  # noqa: F811
    assert why in refusal_of(host(built(tmp_path, text)))


def test_what_is_no_library(host):  # noqa: F811
    assert "the kernel cannot be loaded: " in refusal_of(host({"kernel.so": b"garbage", "model.json": MODEL}))


def test_the_example_of_the_guide(host, tmp_path):  # noqa: F811
    page = (pathlib.Path(ROOT) / "docs/how-to/kernels.md").read_text()
    one = host(built(tmp_path, re.search(r"^```c\n(.*?)^```$", page, re.M | re.S).group(1)))
    one.ready()
    assert one.answer(1, b"to be")[::2] == (200, b"TO BE")
