"""The kernel host of services, driven over its socket as an agent does it: spec 5 and 6, and models by file."""

import contextlib
import functools
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap

import msgpack
import numpy
import pytest
import torch

from pyedt import _kernel_link, _kernel_memory, _kernel_runtime, _oip

WAIT_S = 120  # for whatever comes at once on a quiet machine

ECHO = """
    import redhareapiversion
    from redhareapi import Kernel

    class Echo(Kernel):
        def __init__(self, model):  # without the base's
            self.model = model

        def on_task_invoke(self, task_context):
            while task_context is not None:
                task_context.set_output_data(task_context.get_input_data())
                task_context = task_context.next()

        def on_kernel_shutdown(self):
            print("shutdown")

    if __name__ == "__main__":
        Echo(None).run()
"""
HEAD = """
    import json, os, sys, time
    from redhareapi import Kernel
    class K(Kernel):
"""


def kernel_of(methods):
    return textwrap.dedent(HEAD) + textwrap.indent(textwrap.dedent(methods), "    ") + "\nif __name__ == '__main__':\n    K().run()\n"


class Host:
    """A kernel host, and the agent's end of its link."""

    def __init__(self, folder, files, profile=None, **environment):
        self.folder = folder / "package"
        self.folder.mkdir()
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
        if "model.json" not in files and "kernel.py" in files:
            (self.folder / "model.json").write_text(json.dumps(
                {"name": "echo", "kernel_path": "kernel.py", "weight_path": "./", "runtime": "python", "schema_version": "1"}))
        self.socket = str(folder / "kernel.sock")
        self.out, self.err = folder / "stdout", folder / "stderr"
        environment = dict(os.environ, SHOAL_KERNEL_SOCKET=self.socket, SHOAL_SERVICE_PROFILE=json.dumps(profile or {}),
                           TASK_JOB_ID="edi-echo-1", **environment)
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen([sys.executable, "-m", "pyedt.kernel_host"], cwd=self.folder, env=environment,
                                            stdout=out, stderr=err, start_new_session=True)
        self.frames, self.link = _kernel_link.Frames(), None

    def connect(self):
        """As soon as the socket is there; the process has not ended before."""
        while not os.path.exists(self.socket):
            assert self.process.poll() is None, self.errors()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(WAIT_S)
        self.link.connect(self.socket)
        self.frames = _kernel_link.Frames()
        return self

    def ready(self):
        self.connect()
        said = self.hear()
        assert said and said[0] == "ready", (said, self.errors())
        return said[1]

    def say(self, *fields):
        data = msgpack.packb(list(fields), use_bin_type=True)
        self.link.sendall(struct.pack("<I", len(data)) + data)

    def hear(self):
        """The next frame; None where the kernel has closed."""
        frame = self.frames.next()
        while frame is None:
            try:
                data = self.link.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.frames.feed(data)
            frame = self.frames.next()
        return frame

    def infer(self, number, body, **meta):
        self.say("infer", number, dict({"path": "/v2/models/echo/infer", "method": "POST", "deadline_ms": 0}, **meta), body)

    def answer(self, number, body, **meta):
        """(status, headers, body) of one request."""
        self.infer(number, body, **meta)
        said = self.hear()
        assert said and said[:2] == ["done", number], (said, self.errors())
        return tuple(said[2:])

    def oip(self, body, **meta):
        status, headers, answer = self.answer(7, json.dumps(body).encode(), **meta)
        return status, json.loads(answer) if headers["content_type"] == _oip.JSON_TYPE else (headers, answer)

    def go(self):
        """What a kernel waits for."""
        (self.folder / "go").touch()

    def end(self):
        return self.process.wait(WAIT_S)

    def errors(self):
        return self.err.read_text()


@pytest.fixture
def host(tmp_path):
    made = []

    def make(files, profile=None, **environment):
        folder = tmp_path / ("host%d" % len(made))
        folder.mkdir()
        made.append(Host(folder, files, profile, **environment))
        return made[-1]

    yield make
    for one in made:
        if one.link is not None:
            one.link.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


def refusal_of(one):
    """What its agent hears of a kernel that cannot serve; its log says it, too."""
    kind, text = one.connect().hear()
    assert kind == "failed" and one.end() == 1 and text in one.errors(), one.errors()
    return text


# ---- the link --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [
    None, True, False, 0, 127, 128, 255, 256, 65535, 65536, 1 << 32, (1 << 64) - 1, -1, -32, -33, -129, -(1 << 63), 1.5, "",
    "a" * 31, "a" * 32, "\u00e4" * 300, "x" * 70000, b"", b"b" * 255, b"b" * 256, b"b" * 70000, [], list(range(15)), list(range(16)),
    list(range(70000)), {}, {"k%d" % i: i for i in range(15)}, {"k%d" % i: [i, {"x": None}] for i in range(16)}])
def test_our_messagepack_is_that_of_the_library(value):
    assert msgpack.unpackb(_kernel_link.pack(value), raw=False, strict_map_key=False) == value
    assert _kernel_link.unpack(msgpack.packb(value, use_bin_type=True)) == value


def framed(data):
    return struct.pack("<I", len(data)) + data


def test_a_request_with_the_fields_of_the_one_before_is_read_as_any_other():
    """Fields that are the same bytes are not read again: nothing of it shows, whatever came before."""
    frames, fields = _kernel_link.Frames(), {"deadline_ms": 60000, "model": "echo", "user": "ann"}
    others = ({"deadline_ms": 60000, "model": "echo", "user": "bob"}, {**fields, "window": 7}, {}, {"odd": [1, {"a": 2}]})
    for number, (asked, body) in enumerate([(fields, b"a"), (fields, b"a" * 300), (others[0], b""), *((one, b"b") for one in others * 2),
                                            (fields, b"c"), (fields, None)]):
        frames.feed(framed(msgpack.packb(["infer", number * 100, asked, body], use_bin_type=True)))
        frame = frames.next()
        assert frame == ["infer", number * 100, asked, body]
        frame[2]["user"] = "changed by whoever has it"
        if isinstance(frame[2].get("odd"), list):
            frame[2]["odd"].append(3)
    whole = _kernel_link.pack(["infer", 7, fields, b"body"])
    for end in range(8, len(whole)):
        for data in (whole[:end], whole + whole[:end]):
            known = _kernel_link.Frames()
            known.feed(framed(whole) + framed(data))
            assert known.next()[3] == b"body"
            with pytest.raises(_kernel_link.Malformed):
                while known.next():
                    pass


def test_headers_of_answers_are_packed_as_they_are():
    for headers in ({}, {"content_type": "a"}, {"content_type": "b", "batch": 1}, {"content_type": "b", "batch": True}, {"content_type": None},
                    *({"batch": n} for n in range(200))):
        for _ in range(2):
            assert msgpack.unpackb(_kernel_link.pack_headers(headers), raw=False) == headers
            assert _kernel_link.pack_headers(headers) == _kernel_link.pack(headers)


def test_each_prefix_of_a_frame_is_refused_and_no_byte_makes_it_raise_otherwise():
    whole = msgpack.packb(["infer", 1 << 40, {"path": "/x", "deadline_ms": 1.5, "n": [-1, None, True]}, b"abc" * 30], use_bin_type=True)
    for end in range(len(whole)):
        with pytest.raises(_kernel_link.Malformed):
            _kernel_link.unpack(whole[:end])
    for at in range(len(whole)):
        for byte in (0x00, 0x80, 0xc1, 0xc6, 0xdb, 0xdd, 0xdf, 0xff):
            with contextlib.suppress(_kernel_link.Malformed):
                _kernel_link.unpack(whole[:at] + bytes((byte,)) + whole[at + 1:])
    with pytest.raises(_kernel_link.Malformed):
        _kernel_link.unpack(b"\x91" * 40 + b"\xc0")


def test_frames_come_out_whole_however_they_come_in():
    frames, out = _kernel_link.Frames(), []
    data = b"".join(struct.pack("<I", len(one)) + one for one in (_kernel_link.pack(["k", n, b"x" * n]) for n in (0, 5, 300, 70000)))
    for at in range(0, len(data), 1009):
        frames.feed(data[at:at + 1009])
        frame = frames.next()
        while frame is not None:
            out.append(frame)
            frame = frames.next()
    assert [(frame[1], len(frame[2])) for frame in out] == [(0, 0), (5, 5), (300, 300), (70000, 70000)]
    frames.feed(struct.pack("<I", _kernel_link.FRAME_BYTES_MAX + 1))
    with pytest.raises(_kernel_link.Malformed):
        frames.next()


# ---- kernels ---------------------------------------------------------------------------------------------------------


def test_a_ping_pong_kernel_starts_answers_and_stops(host):
    one = host({"ping-pong.py": ECHO, "model.json": json.dumps({"name": "pp", "kernel_path": "ping-pong.py"})})
    ready = one.ready()
    assert (ready["name"], ready["batch"], ready["platform"]) == ("pp", 1, "wmla_python")
    assert one.answer(1, b'{"a": NaN}') == (200, {"content_type": "application/json"}, b'{"a": NaN}')
    assert one.answer(2, b"a b\xff\x00") == (200, {"content_type": "text/plain; charset=utf-8"}, b"a b\xff\x00")
    big = os.urandom(5 << 20)
    assert one.answer(1 << 60, big)[2] == big
    one.say("stop")
    assert one.end() == 0 and one.out.read_text() == "shutdown\n"


def test_what_a_kernel_sees_of_its_task_its_model_and_its_environment(host):
    one = host({"kernel.py": kernel_of("""
        def on_kernel_start(self, kernel_context):
            self.said = json.loads(kernel_context.get_model_description())
            self.names = [kernel_context.get_id(), kernel_context.get_instance_id()]
        def on_task_invoke(self, task):
            again = task.get_input_data() == task.get_input_data() and task.get_input_data_extend() == b"in"
            self.said.update(again=again, ids=[task.get_id(), task.get_uuid(), task.get_session_id(), task.get_job_id()],
                             model=task.get_model_name(), version=task.get_version(), names=self.names, argv=sys.argv,
                             cwd=os.getcwd(), path=sys.path[0], env=dict(os.environ), bool=bool(task), prev=task.prev())
            task.report_ready("x")
            task.set_output_data(json.dumps(self.said))
        """), "model.json": json.dumps({"name": "m", "kernel_path": "kernel.py", "weight_path": "w.h5", "model_path": "./", "extra": [1],
                                        "mk_environments": [{"name": "A", "value": "1"}, {"name": "REDHARE_TOP", "value": "no"}]})},
        profile={"kernel": {"envs": [{"name": "A", "value": "2"}, {"name": "MSD_POD_NAME", "value": "no"}]}},
        SHOAL_SERVICE="named", SHOAL_MODEL_DESCRIPTION='{"creator": "ann"}')
    one.ready()
    said = json.loads(one.answer(3, b"in")[2])
    folder = str(one.folder)
    assert said["again"] and said["bool"] and said["prev"] is None
    assert (said["name"], said["model_path"], said["weight_path"], said["extra"], said["attributes"], said["creator"]) == (
        "named", folder, "w.h5", [1], [], "ann")
    assert said["argv"] == [folder + "/kernel.py"] and said["path"] == folder and said["cwd"] == folder
    pod = said["env"]["MSD_POD_NAME"]
    assert pod.startswith("edi-echo-1-task12n-") and said["names"] == [pod, pod] and said["ids"][0].startswith(pod)
    assert said["ids"][3] == "edi-echo-1" == said["env"]["TASK_JOB_ID"] and said["model"] == "named"
    assert said["env"]["A"] == "2" and said["env"]["REDHARE_TOP"] == "/opt/wml-edi" and said["env"]["REDHARE_MODEL_PATH"] == folder
    assert said["env"]["REDHARE_MODEL_CREATOR"] == "ann" and not [name for name in said["env"] if name.startswith("SHOAL_KERNEL_L")]


def test_the_description_is_the_package_with_the_models_object_over_it(host, tmp_path):
    """Inference-api 6.5: the object lies beside the service's document; where the package is, this host alone knows."""
    (tmp_path / "service.json").write_text(json.dumps({"model": {"name": "m", "uid": "u-1", "weight_path": "edited"}}))
    (tmp_path / "model.json").write_text(json.dumps({"name": "m", "uid": "u-1", "weight_path": "edited", "creator": "ann", "started_at": 7,
                                                     "create_time": 5, "last_updated_time": 6, "service_uri": "https://h/x",
                                                     "model_path": "${REDHARE_TOP}/repo/m/m-1", "attributes": [], "mk_environments": []}))
    one = host({"kernel.py": kernel_of("""
        def on_kernel_start(self, kernel_context):
            self.said = kernel_context.get_model_description()
        def on_task_invoke(self, task):
            task.set_output_data(self.said)
        """), "model.json": json.dumps({"name": "m", "kernel_path": "kernel.py", "weight_path": "w", "extra": [1]})},
        SHOAL_SERVICE="m", SHOAL_SERVICE_DOCUMENT=str(tmp_path / "service.json"))
    one.ready()
    assert json.loads(one.answer(3, b"in")[2]) == {
        "name": "m", "kernel_path": "kernel.py", "weight_path": "edited", "extra": [1], "uid": "u-1", "creator": "ann", "started_at": 7,
        "create_time": 5, "last_updated_time": 6, "service_uri": "https://h/x", "model_path": str(one.folder), "attributes": [],
        "mk_environments": []}


def test_what_the_profile_says_of_folder_umask_and_environment(host, tmp_path):
    kernel = kernel_of("""
        def on_task_invoke(self, task):
            open("made", "w").close()
            task.set_output_data(json.dumps([os.getcwd(), os.environ["PWD"], os.environ["WHERE"], os.environ["REDHARE_MODEL_PATH"],
                                             os.stat("made").st_mode & 0o777, os.path.dirname(os.path.abspath(sys.argv[0]))]))
    """)
    top, profile = tmp_path / "top", {"kernel": {"umask": "077", "envs": [{"name": "WHERE", "value": "${REDHARE_TOP}/${REDHARE_VERSION}"}]}}
    one = host({"kernel.py": kernel}, profile=profile, REDHARE_TOP=str(top))
    one.ready()  # no such top: it begins in its package
    package = str(one.folder)
    assert json.loads(one.answer(1, b"")[2]) == [package, package, "%s/2.3.7" % top, package, 0o600, package]
    (top / "work").mkdir(parents=True)
    one = host({"kernel.py": kernel}, profile=profile, REDHARE_TOP=str(top))
    one.ready()
    assert json.loads(one.answer(1, b"")[2])[:2] == [str(top / "work")] * 2
    profile["kernel"]["working_directory"] = "${REDHARE_TOP}/other/place"
    one = host({"kernel.py": kernel}, profile=profile, REDHARE_TOP=str(top))
    one.ready()
    assert json.loads(one.answer(1, b"")[2])[:4:3] == [str(top / "other/place"), str(one.folder)]
    (top / "file").touch()
    profile["kernel"]["working_directory"] = "${REDHARE_TOP}/file/x"
    assert "kernel.working_directory %s/file/x cannot be used: " % top in refusal_of(host({"kernel.py": kernel}, profile=profile,
                                                                                          REDHARE_TOP=str(top)))


def test_a_batch_is_what_waits_and_each_caller_gets_his_own_answer(host):
    one = host({"kernel.py": kernel_of("""
        def on_kernel_start(self, _):
            self.sizes = []
        def on_task_invoke(self, task):
            tasks = []
            while task != None:
                tasks.append(task)
                task = task.next()
            self.sizes.append(len(tasks))
            while tasks[0].get_input_data() == "wait" and not os.path.exists("go"):
                time.sleep(0.01)
            for one in reversed(tasks):
                one.set_output_data("%s %s" % (one.get_input_data(), self.sizes))
        """)}, profile={"policy": {"task_batch_size": 4}})
    assert one.ready()["batch"] == 4
    one.infer(0, b"wait")
    for number in range(1, 10):
        one.infer(number, b"n%d" % number)
    one.go()
    answers = {frame[1]: frame[4].decode() for frame in (one.hear() for _ in range(10))}
    assert sorted(answers) == list(range(10))
    assert all(answers[number].split()[0] == ("n%d" % number if number else "wait") for number in answers)
    sizes = json.loads(answers[9].split(" ", 1)[1])
    assert sum(sizes) == 10 and max(sizes) == 4 and len(sizes) <= 4


def test_a_kernel_that_answers_only_the_first_task_answers_all(host):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            task.set_output_data(task.get_input_data())
        """)}, profile={"batch": 8})
    one.ready()
    for number in range(40):
        one.infer(number, b"%d" % number)
    assert sorted((frame[1], frame[4]) for frame in (one.hear() for _ in range(40))) == [(n, b"%d" % n) for n in range(40)]
    assert one.errors().count("they are given again") <= 7  # once for each number of tasks


def test_an_exception_costs_its_own_batch_and_a_task_is_answered_once(host):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            asked = task.get_input_data()
            if asked == "raise":
                raise ValueError("no good")
            if asked == "twice":
                assert task.set_output_data("first") is True and task.set_output_data("second") is False
            if asked == "number":
                task.set_output_data({"not": "text"})
            if asked == "late":
                self.kept = task
            if asked == "again":
                task.set_output_data(str(self.kept.set_output_data("too late")))
        """)})
    one.ready()
    text = "text/plain; charset=utf-8"
    assert one.answer(1, b"raise") == (500, {"content_type": text}, b"ValueError: no good")
    assert one.answer(2, b"twice")[::2] == (200, b"first")
    status, _, body = one.answer(3, b"number")
    assert status == 500 and body.startswith(b"TypeError: set_output_data takes str or bytes, not dict")
    assert one.answer(4, b"late") == (500, {"content_type": text}, b"the kernel returned without an answer to this request")
    assert one.answer(5, b"again")[2] == b"False"
    assert "ValueError: no good" in one.errors() and "the first answer stands" in one.errors()


def test_a_cancelled_request_and_one_whose_deadline_passed_are_answered_without_the_kernel(host):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            print(task.get_input_data())
            time.sleep(0.01)
            while not os.path.exists("go"):
                time.sleep(0.01)
            task.set_output_data("done")
        """)}, profile={"batch": 1})
    one.ready()
    one.infer(1, b"one")
    one.infer(2, b"two")
    one.infer(4, b"four")
    one.infer(3, b"three", deadline_ms=1)  # over when the fourth has been served
    one.say("cancel", 2)
    one.say("unknown", 5)
    one.go()
    assert {frame[1]: frame[2] for frame in (one.hear() for _ in range(4))} in ({1: 200, 2: 499, 3: 504, 4: 200},)
    assert one.out.read_text() == "one\nfour\n"


def test_print_and_forks_never_reach_the_link(host):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            print('["done", 1]', flush=True)
            os.system("echo from a shell")
            child = os.fork()
            if child == 0:
                task.set_output_data("of the child")
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
            os.write(1, b"raw\\n")
            task.set_output_data("of the parent")
        """)})
    one.ready()
    assert one.answer(1, b"")[2] == b"of the parent"
    one.say("stop")
    assert one.end() == 0 and one.hear() is None
    assert "from a shell" in one.out.read_text() and "raw" in one.out.read_text()


def test_a_kernel_that_overwrites_the_page_of_its_watcher_is_watched_on(host):
    """It finds it as any memory that it has; the numbers there are no phases, and no times."""
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            for line in open("/proc/self/maps"):
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                if " rw-s " in line and end - begin == 4096:
                    with open("/proc/self/mem", "r+b", 0) as memory:
                        memory.seek(begin)
                        memory.write(b"\\xa5" * 4096)
            time.sleep(5)  # longer than its watcher sleeps
            task.set_output_data("overwritten")
        """)}, {"kernel": {"hang_timeout": 3}})
    one.ready()
    assert one.answer(1, b"")[2] == b"overwritten"
    one.say("stop")
    assert one.end() == 0 and "Traceback" not in one.errors()


def test_a_child_that_a_kernel_left_behind_does_not_hold_the_link(host):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            if os.fork() == 0:
                time.sleep(600)
            os._exit(3)
        """)})
    one.ready()
    one.infer(1, b"")
    assert one.hear() is None and one.end() == 1
    assert one.errors().splitlines()[-1] == "kernel: the kernel's process ended with code 3"


def test_a_kernel_that_is_killed_is_told_by_the_end_of_the_link(host):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            os.kill(os.getpid(), 11)
        """)})
    one.ready()
    one.infer(1, b"")
    assert one.hear() is None and one.end() == 1
    assert one.errors().splitlines()[-1] == "kernel: the kernel's process ended by signal 11 (SIGSEGV)"


def test_a_batch_that_hangs_is_ended_by_its_time_out(host):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            while task.get_input_data() == "hang":
                pass
            task.set_output_data("fine")
        """)}, profile={"hang_timeout": 3})
    one.ready()
    assert one.answer(1, b"no")[2] == b"fine"
    one.infer(2, b"hang")
    assert one.hear() is None and one.end() == 1
    assert one.errors().splitlines()[-1] == "kernel: a batch ran longer than 3 s: it hangs"


MEMORY = {"resource_allocation": {"kernel": {"resources": "mem=1,mem_limit=300"}}}


@pytest.mark.parametrize("forks", [False, True])
def test_a_kernel_that_grows_without_end_is_ended_by_its_limit_of_memory(host, forks):
    one = host({"kernel.py": kernel_of("""
        def on_task_invoke(self, task):
            held = [b"x" * (80 << 20)]
            if task.get_input_data() == "grow":
                if %r and os.fork() != 0:
                    os.wait()
                for _ in range(40):
                    held.append(b"x" * (16 << 20))
                    time.sleep(0.01)
                time.sleep(600)
            task.set_output_data("fine")
        """ % forks)}, profile=MEMORY)
    one.ready()
    assert one.answer(1, b"no")[2] == b"fine"
    one.infer(2, b"grow")
    assert one.hear() is None and one.end() == 1
    assert re.fullmatch(r"kernel: it used \d{3} MB of memory; mem_limit of the profile's resources allows 300", one.errors().splitlines()[-1])


def test_memory_that_forked_processes_share_counts_once(host):
    one = host({"kernel.py": kernel_of("""
        def on_kernel_start(self, context):
            self.held = b"x" * (120 << 20)
            for _ in range(4):
                if os.fork() == 0:
                    time.sleep(600)
        def on_task_invoke(self, task):
            time.sleep(1.5)  # several looks
            task.set_output_data("fine")
        """)}, profile=MEMORY)
    one.ready()
    assert one.answer(1, b"")[2] == b"fine", one.errors()


@pytest.mark.parametrize("said, limit", [("", 4096), ("mem=1", 4096), ("mem_limit=0,mem=0", None), (" mem = 1 , mem_limit = 1.5", 1.5)])
def test_the_limit_of_memory_that_a_profile_gives(said, limit):
    found = _kernel_memory.limit_of({"resource_allocation": {"kernel": {"resources": said}}})
    assert found == (None if limit is None else limit * (1 << 20))
    assert _kernel_memory.limit_of({}) is None


def test_the_agent_may_go_and_come_again(host):
    one = host({"kernel.py": ECHO})
    for number in range(3):
        one.ready()
        assert one.answer(number, b"x")[0] == 200
        one.infer(9, b"never heard")
        one.link.close()
    one.ready()
    one.link.sendall(struct.pack("<I", 3) + b"\xc1\xc1\xc1")
    assert one.hear() is None  # what is no frame ends the link, not the kernel
    one.ready()
    assert one.answer(1, b"x")[0] == 200
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 0 and "shutdown" in one.out.read_text(), one.errors()


@pytest.mark.parametrize("own", [False, True], ids=["pipe", "no pipe"])
def test_a_signal_that_interrupts_no_system_call_ends_the_kernel_too(host, own):
    """Another thread takes it: as for one that comes just before the main thread waits, the handler runs after the wait."""
    one = host({"kernel.py": kernel_of("""
        def on_kernel_start(self, context):
            import signal, threading
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            if %r:
                self.ends = os.pipe()
                os.set_blocking(self.ends[1], False)
                signal.set_wakeup_fd(self.ends[1])
        def on_task_invoke(self, task):
            task.set_output_data("fine")
        def on_kernel_shutdown(self):
            print("shutdown")
        """ % own)})
    one.ready()
    assert one.answer(1, b"")[2] == b"fine"
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 0 and "shutdown" in one.out.read_text(), one.errors()


@pytest.mark.parametrize("name, files, text", [
    ("raises at import", {"kernel.py": "import no_such_module\n"}, "ModuleNotFoundError: No module named 'no_such_module'"),
    ("has a syntax error", {"kernel.py": "def x(:\n"}, "SyntaxError: invalid syntax"),
    ("raises at start", {"kernel.py": kernel_of("def on_kernel_start(self, c):\n    raise RuntimeError('no weights')")},
     "RuntimeError: no weights"),
    ("ends at start", {"kernel.py": kernel_of("def on_kernel_start(self, c):\n    os._exit(9)")},
     "the kernel's process ended with code 9"),
    ("never calls run", {"kernel.py": "print('hello')\n"}, "the kernel's process ended with code 0 before run() was called"),
    ("is missing", {"model.json": '{"name": "a", "kernel_path": "k.py"}'}, "Kernel file k.py does not exist."),
    ("lies outside", {"model.json": '{"name": "a", "kernel_path": "../k.py"}'}, "Kernel file ../k.py does not exist."),
    ("has a bad model.json", {"model.json": "[]"}, "model.json is invalid: it is no object"),
    ("has a bad key", {"model.json": '{"name": 3}'}, "model.json is invalid: name"),
    ("has a bad pair", {"model.json": '{"attributes": [{"key": 1}]}'}, "model.json is invalid: attributes"),
    ("has no model", {"model.json": '{"name": "a"}'}, "the package has no kernel_path, and no file of a model"),
    ("has two models", {"a.onnx": "", "b.pt": ""}, "the package has no kernel_path, and more than one file of a model: a.onnx, b.pt"),
    ("has a pickle", {"m.pkl": b"\x80\x04."}, "m.pkl is a pickle, which can run any code"),
    ("has a broken model", {"m.pt": b"not a model"}, "m.pt is a pickle that holds more than tensors"),
])
def test_a_kernel_that_does_not_start_says_why(host, name, files, text):
    one = host(files)
    one.connect()
    said = one.hear()
    assert said and said[0] == "failed" and said[1].startswith(text), (said, one.errors())
    assert one.end() == 1 and one.errors().splitlines()[-1].startswith("kernel: " + text)


@pytest.mark.parametrize("profile, text", [
    ({"connection_timeout": 1}, "it did not call run() within 1 s (connection_timeout)"),
    ({"policy": {"task_batch_size": 0}}, "the profile's task_batch_size is 0"),
    ({"policy": {"task_batch_size": "8"}}, "the profile's policy.task_batch_size is no number")])
def test_a_start_that_takes_too_long_and_a_profile_that_is_wrong(host, profile, text):
    one = host({"kernel.py": "import time\ntime.sleep(600)\n"}, profile=profile)
    one.connect()
    assert one.hear()[1].startswith(text) and one.end() == 1


def test_a_start_that_hangs_is_ended_where_a_time_out_is_set(host):
    one = host({"kernel.py": kernel_of("def on_kernel_start(self, c):\n    time.sleep(600)")}, profile={"kernel_start_timeout": 1})
    one.connect()
    assert one.hear()[1].startswith("on_kernel_start did not return within 1 s") and one.end() == 1


def test_a_package_in_one_folder_with_modules_that_have_the_names_of_pythons_own(host):
    one = host({"mnist/model.json": '{"name": "mnist", "kernel_path": "src/kernel.py"}', "signal.py": "1/0", "mnist/socket.py": "1/0",
                "mnist/src/helper.py": "TEXT = 'helped'", "mnist/src/redhareapi.py": "1/0",
                "mnist/src/kernel.py": "from helper import TEXT\n" + kernel_of("""
                    def on_task_invoke(self, task):
                        task.set_output_data(TEXT)
                    """)})
    one.ready()
    assert one.answer(1, b"")[2] == b"helped"


def test_outside_a_service_a_kernel_runs_five_tasks_on_the_files_beside_it(tmp_path):
    (tmp_path / "kernel.py").write_text(kernel_of("""
        def on_kernel_start(self, c):
            print(c.get_id(), json.loads(c.get_model_description())["model_path"])
        def on_task_invoke(self, task):
            while task is not None:
                task.set_output_data(json.loads(task.get_input_data())["x"])
                task = task.next()
        def on_kernel_shutdown(self):
            print("end")
        """))
    (tmp_path / "model.json").write_text('{"name": "m"}')
    (tmp_path / "input.json").write_text('{"x": 5}')
    done = subprocess.run([sys.executable, "kernel.py"], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.splitlines() == ["local %s" % tmp_path] + ["Response data: 5"] * 5 + ["end"]


# ---- models by file --------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.line(x)


def tensor(rows, name="x", datatype="FP32"):
    rows = numpy.asarray(rows)
    return {"name": name, "datatype": datatype, "shape": list(rows.shape), "data": rows.reshape(-1).tolist()}


@functools.lru_cache(maxsize=None)
def saved(kind):
    torch.manual_seed(7)
    with tempfile.TemporaryDirectory() as folder:
        return save(Net().eval(), os.path.join(folder, "made"), kind)


def save(net, path, kind):
    if kind == "script":
        torch.jit.script(net).save(path)
    elif kind == "export":
        torch.export.save(torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes=({0: torch.export.Dim("rows")},)), path + ".pt2")
        path += ".pt2"
    else:
        torch.save({"state_dict": net.state_dict()}, path)
    with open(path, "rb") as file:
        return net, file.read()


@pytest.mark.parametrize("kind", ["script", "export", "state", "trained"])
def test_a_torch_model_answers_as_it_does_itself_alone_and_in_batches(host, kind):
    net, content = saved(kind)
    files = {"model.pt2" if kind == "export" else "model.pt": content}
    if kind in ("state", "trained"):
        files["net.py"] = "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n" \
                          "        self.line = torch.nn.Linear(3, 2)\n    def forward(self, x):\n        return self.line(x)\n"
        files["model.json"] = json.dumps({"name": "n", "weight_path": "model.pt", "attributes": [
            {"key": "model_file", "value": "net.py"}, {"key": "model_class", "value": "Net"}]})
    if kind == "trained":  # its script says what it gives to FabricModel, and comes no further
        files["main.py"] = "import sys\nimport net\nfrom fabric_model import FabricModel\nif __name__ == '__main__':\n" \
                           "    assert sys.argv[1:] == ['--wide', 'a b']\n" \
                           "    FabricModel(model=net.Net(), datasets_function=None)\n    raise AssertionError('it went on')\n"
        files["model.json"] = json.dumps({"name": "n", "weight_path": "model.pt", "attributes": [
            {"key": "model_script", "value": "main.py"}, {"key": "model_argv", "value": '["--wide", "a b"]'}]})
    one = host(files, profile={"batch": 16}, OMP_NUM_THREADS="1")
    ready = one.ready()
    assert ready["platform"] == {"script": "pytorch_torchscript", "export": "pytorch_export", "state": "pytorch", "trained": "pytorch"}[kind]
    if kind == "export":
        assert ready["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    generator = numpy.random.default_rng(7)
    wanted = {}
    for number in range(30):
        rows = generator.normal(size=(1 + number % 3, 3)).astype("f4")
        wanted[number] = net(torch.from_numpy(rows)).detach().numpy()
        one.infer(number, json.dumps({"id": "r%d" % number, "inputs": [tensor(rows)]}).encode())
    for _ in range(30):
        _, number, status, _, body = one.hear()
        said = json.loads(body)
        assert status == 200 and said["id"] == "r%d" % number and said["outputs"][0]["datatype"] == "FP32"
        assert said["outputs"][0]["shape"] == list(wanted[number].shape)
        numpy.testing.assert_allclose(said["outputs"][0]["data"], wanted[number].reshape(-1), rtol=1e-5, atol=1e-6)


def test_binary_tensors_go_in_and_come_out(host):
    net, content = saved("export")
    one = host({"m.pt2": content}, OMP_NUM_THREADS="1")
    one.ready()
    rows = numpy.arange(6, dtype="f4").reshape(2, 3)
    said = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}],
                       "outputs": [{"name": "output_0", "parameters": {"binary_data": True}}]}).encode()
    status, headers, body = one.answer(1, said + rows.tobytes(), header_len=len(said))
    assert status == 200 and headers["content_type"] == "application/octet-stream", body
    length = headers["header_len"]
    answer = json.loads(body[:length])
    assert answer["outputs"][0]["parameters"] == {"binary_data_size": 16} and answer["outputs"][0]["shape"] == [2, 2]
    numpy.testing.assert_allclose(numpy.frombuffer(body[length:], "<f4").reshape(2, 2), net(torch.from_numpy(rows)).detach().numpy(),
                                  rtol=1e-5)


def test_a_request_that_the_model_does_not_want_is_told_what_is_wrong_and_others_are_answered(host):
    one = host({"m.pt2": saved("export")[1]}, profile={"batch": 8}, OMP_NUM_THREADS="1")
    one.ready()
    good = tensor([[1.0, 2.0, 3.0]])
    for body, text in [
        ({}, "inputs is missing"), ([], "the body is no JSON object"), ({"inputs": []}, "inputs is empty"),
        ({"inputs": [good, good]}, "input x is there twice"), ({"inputs": [dict(good, shape=[2, 3])]}, "input x: data has 3 elements"),
        ({"inputs": [dict(good, datatype="FP8")]}, "input x: datatype FP8 is not one of"),
        ({"inputs": [dict(good, datatype="INT32")]}, "input x: data has a value that is no INT32"),
        ({"inputs": [dict(good, datatype="INT32", data=[1, 2, 3])]}, "input x is INT32; the model wants FP32"),
        ({"inputs": [dict(good, data=[1, 2, "3"])]}, "input x: data has a value that is no FP32"),
        ({"inputs": [dict(good, shape=[3, 1])]}, "input x has shape [3, 1]; the model wants [-1, 3]"),
        ({"inputs": [dict(good, shape=[-1, 3])]}, "input x: shape is missing or no list of dimensions"),
        ({"inputs": [good, dict(good, name="y")]}, "the model's inputs are x; the request has x, y"),
        ({"inputs": [dict(good, parameters={"binary_data_size": 12})]}, "input x: binary_data_size is 12, and 0 bytes are there"),
        ({"inputs": [dict(good, datatype=[])]}, "the request cannot be read: "),
        ({"inputs": [dict(good, shape=[0, 1 << 39, 1 << 39], data=[])]}, "the request cannot be read: "),
        ({"inputs": [good], "outputs": [{"name": "no"}]}, "the model has no output no; it has output_0"),
    ]:
        status, said = one.oip(body)
        assert status == 400 and said["error"].startswith(text), (body, said)
    assert one.oip({"inputs": [good]}, header_len=4000)[0] == 400
    status, said = one.oip({"inputs": [dict(good, datatype="FP64", data=[[1, 2, 3]])]})  # nested, and a wider float
    assert status == 200 and said["outputs"][0]["shape"] == [1, 2] and said["model_name"] == "model"


def test_one_request_at_fault_costs_no_other_of_its_batch(host, tmp_path):
    class Picky(torch.nn.Module):
        def forward(self, x):
            if bool((x < 0).any()):
                raise ValueError("negative")
            return x + 1

    path = str(tmp_path / "picky.pt")
    torch.jit.script(Picky()).save(path)
    with open(path, "rb") as file:
        one = host({"m.pt": file.read(), "sample.json": "{}"}, profile={"batch": 8}, OMP_NUM_THREADS="1")
    one.ready()
    for number in range(16):
        one.infer(number, json.dumps({"inputs": [tensor([[-1.0 if number == 9 else float(number)]])]}).encode())
    frames = {frame[1]: frame for frame in (one.hear() for _ in range(16))}
    assert {number for number, frame in frames.items() if frame[2] != 200} == {9} and frames[9][2] == 500
    assert all(json.loads(frames[n][4])["outputs"][0]["data"] == [n + 1] for n in frames if n != 9)


def test_a_scikit_learn_model_where_the_operator_allows_it(host, tmp_path):
    joblib = pytest.importorskip("joblib")
    linear = pytest.importorskip("sklearn.linear_model")
    model = linear.LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
    joblib.dump(model, tmp_path / "m")
    one = host({"m.joblib": (tmp_path / "m").read_bytes()}, SHOAL_KERNEL_ALLOW_PICKLE="1", OMP_NUM_THREADS="1")
    assert one.ready()["inputs"] == [{"name": "input_0", "datatype": "", "shape": [-1, 1]}]
    status, said = one.oip({"inputs": [tensor([[0.0], [3.0]], name="anything", datatype="FP64")]})
    assert status == 200 and said["outputs"][0]["data"] == [0, 1] and said["outputs"][1]["shape"] == [2, 2]


def test_texts_as_tensors_both_ways():
    raw = b"".join(len(one).to_bytes(4, "little") + one for one in (b"a", b"", b"\xff\xfe"))
    said = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [
        {"name": "t", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(raw)}}]}).encode()
    request = _oip.read(said + raw, len(said))
    assert request.inputs["t"].tolist() == [b"a", b"", b"\xff\xfe"]
    headers, body = _oip.write(request, "m", "1", {"t": request.inputs["t"]})
    assert body[headers["header_len"]:] == raw
    plain = _oip.read(json.dumps({"inputs": [{"name": "t", "datatype": "BYTES", "shape": [2], "data": ["\u00e4", "b"]}]}).encode())
    assert json.loads(_oip.write(plain, "m", "1", plain.inputs)[1])["outputs"][0]["data"] == ["\u00e4", "b"]
    with pytest.raises(_oip.Wrong):
        _oip.read(said + raw[:-1], len(said))


def test_an_answer_that_json_has_no_number_for_is_refused_by_name():
    """NaN and Infinity are Python's, not JSON's: a client could not read the answer. Binary tensors hold them."""
    asked = {"inputs": [tensor([[1.0, 2.0]], name="x")]}
    found = {"fine": numpy.ones((1, 2), "f4"), "y": numpy.array([[1.0, float("nan")]], "f4")}
    for value in float("nan"), float("inf"), -float("inf"):
        found["y"][0, 1] = value
        with pytest.raises(ValueError, match="output y .*binary_data"):
            _oip.write(_oip.read(json.dumps(asked).encode()), "m", "1", found)
    binary = dict(asked, outputs=[{"name": "y", "parameters": {"binary_data": True}}])
    headers, body = _oip.write(_oip.read(json.dumps(binary).encode()), "m", "1", found)
    assert numpy.frombuffer(body[headers["header_len"]:], "<f4").tolist() == [1.0, -float("inf")]


# ---- runtimes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said, why", [
    ({"conda_home": "/no/conda", "conda_env_name": "x"}, "Runtime own: this host has no /no/conda/envs/x/bin/python; install it, "),
    ({"conda_home": "/no/conda", "conda_env_name": "base"}, "Runtime own: this host has no /no/conda/bin/python; "),
    ({"machine_type": "ppc64le,s390x"}, "Runtime own is for ppc64le, s390x, and this host is ")])
def test_a_host_says_what_it_lacks_of_a_runtime(said, why):
    with pytest.raises(_kernel_runtime.Unusable) as error:
        _kernel_runtime.Runtime("own", said).command("python", ["-m", "x"], {})
    assert str(error.value).startswith(why)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"type": "other"}'])
def test_a_runtime_that_is_not_there(tmp_path, text):
    if text is not None:
        (tmp_path / "runtime.json").write_text(text)
    with pytest.raises(_kernel_runtime.Unusable, match="Runtime <own> does not exists."):
        _kernel_runtime.find("own", str(tmp_path / "service.json"))
    for name in ("", "python", "dlipy36-wmlce170"):
        assert _kernel_runtime.find(name, None).command("python", ["-m", "x"], {}) == ["python", "-m", "x"]
