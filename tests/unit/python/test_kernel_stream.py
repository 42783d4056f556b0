"""Kernels that answer in pieces, driven over their socket as an agent does it: K6 of pyedt/_kernel_serve, G1 to G4 of _kernel_stream."""

import json
import os
import subprocess
import sys

import pytest
from test_kernel_host import Host, kernel_of

WINDOW = 1 << 10

WORDS = """
    def on_task_invoke(self, task):
        asked = task.get_input_data()
        if asked == "raise":
            yield "one"
            raise ValueError("no good")
        if asked == "forever":
            try:
                while True:
                    yield "x" * 100
            finally:
                open("closed", "a").write("closed\\n")
        for word in asked.split():
            yield word
        if asked == "json":
            yield {"a": 1}
            return "the end"
"""
READY = """
    def on_task_invoke(self, task):
        while task is not None:
            sent = 0
            while sent < int(task.get_input_data()) and task.is_wanted():
                assert task.report_ready("p" * 100) is True
                sent += 1
            task.set_output_data("sent %d" % sent)
            task = task.next()
"""


@pytest.fixture
def host(tmp_path):
    made = []

    def make(methods, batch=4):
        made.append(Host(tmp_path, {"kernel.py": kernel_of(methods).encode()}, {"policy": {"task_batch_size": batch}}))
        made[-1].ready()
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()


def ask(host, number, body, window=WINDOW, **head):
    host.say("infer", number, dict(head, window=window) if window else head, body.encode())


def answer(host, pass_on=True):
    """(parts, status, body) of the one request in hand; what comes is passed on at once."""
    parts = []
    while (said := host.hear())[0] == "part":
        parts.append(said[2].decode())
        if pass_on:
            host.say("more", said[1], len(said[2]))
    return parts, said[2], said[4].decode()


def test_a_generator_gives_its_pieces(host):
    kernel = host(WORDS)
    ask(kernel, 1, "to be or")
    assert answer(kernel) == (["to", "be", "or"], 200, "")
    ask(kernel, 2, "json")
    assert answer(kernel) == (["json", '{"a": 1}'], 200, "the end")
    ask(kernel, 3, "json", window=0)  # G4
    assert answer(kernel) == ([], 200, 'json{"a": 1}the end')
    ask(kernel, 4, "raise")
    assert answer(kernel) == (["one"], 500, "ValueError: no good")
    ask(kernel, 5, "raise", window=0)
    assert answer(kernel) == ([], 500, "ValueError: no good")


def parts_until(kernel, number, wanted):
    """How many bytes of parts of a request came, when `wanted` of another has."""
    came = 0
    while (said := kernel.hear())[:2] != wanted:
        assert said[:2] == ["part", number], said
        came += len(said[2])
    return came


def test_it_waits_until_its_client_reads_and_others_go_on_meanwhile(host):
    kernel = host(WORDS)
    ask(kernel, 1, "forever")
    came = 0
    while came < WINDOW:
        came += len(kernel.hear()[2])
    ask(kernel, 2, "a b", window=1 << 20)  # G2: it joins
    assert kernel.hear() == ["part", 2, b"a"] and kernel.hear() == ["part", 2, b"b"] and kernel.hear()[:3] == ["done", 2, 200]
    kernel.say("more", 1, 500)
    assert [kernel.hear()[1] for _ in range(5)] == [1] * 5
    kernel.say("cancel", 1)
    assert kernel.hear()[:3] == ["done", 1, 499]
    assert (kernel.folder / "closed").read_text() == "closed\n"


def test_a_generator_is_closed_when_its_time_is_over(host):
    kernel = host(WORDS)
    ask(kernel, 1, "forever", window=WINDOW, deadline_ms=300)
    parts, status, body = answer(kernel, pass_on=False)
    assert status == 504 and "deadline" in body and len(parts) <= 11  # at most what its window has, and the one beyond


def test_report_ready_waits_for_its_client_too(host):
    kernel = host(READY)
    ask(kernel, 1, "50")
    parts, status, body = answer(kernel)
    assert (len(parts), status, body) == (50, 200, "sent 50")
    ask(kernel, 2, "50", window=0)
    assert answer(kernel) == ([], 200, "sent 50")
    ask(kernel, 3, "1000000")
    for _ in range(11):
        assert kernel.hear()[0] == "part"
    kernel.say("cancel", 3)
    assert kernel.hear()[:3] == ["done", 3, 200]  # it asked whether anybody waits; a client that has gone hears nothing


def test_a_piece_that_is_too_large_costs_its_own_request(host):
    kernel = host("""
    def on_task_invoke(self, task):
        yield "x" * int(task.get_input_data())
""")
    ask(kernel, 1, str((256 << 10) + 1), window=1 << 20)
    parts, status, body = answer(kernel)
    assert status == 500 and "at most 262144" in body and not parts
    ask(kernel, 2, str(256 << 10), window=1 << 20)
    assert [len(part) for part in answer(kernel)[0]] == [256 << 10]


def test_on_a_laptop_pieces_are_printed(tmp_path):
    (tmp_path / "kernel.py").write_text(kernel_of(WORDS))
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "input.json").write_text("to be")
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    said = subprocess.run([sys.executable, "kernel.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert said.stdout == "Response piece: to\nResponse piece: be\n", said.stderr
    assert json.loads((tmp_path / "model.json").read_text()) == {}
