"""What a kernel of Elastic Distributed Inference imports: Kernel, KernelContext, TaskContext, LEVEL.

Inside a service, `Kernel.run()` serves the requests that the agent hands over (pyedt._kernel_serve). Anywhere else it runs one
batch of five tasks on ./input.json with the description in ./model.json, and prints the answers: `python kernel.py` works on a
laptop. Nothing but the standard library is needed."""

import datetime
import inspect
import json
import os
import sys
import uuid

LEVEL = {-1: "D", 0: "I", 1: "W", 2: "E"}

_LEAST = {"DEBUG": -1, "INFO": 0, "WARN": 1, "WARNING": 1, "ERROR": 2}
_LOCAL_TASKS = 5


def _server():
    """The server of this process, or None outside a service."""
    return getattr(sys.modules.get("pyedt._kernel_serve"), "served", None)


class KernelContext(object):
    def __init__(self, name="local", description=None):
        self._name, self._description = name, description

    def get_instance_id(self):
        return self._name

    def get_id(self):
        return self._name

    def get_model_description(self):
        if self._description is not None:
            return json.dumps(self._description)
        with open("./model.json") as file:
            description = json.load(file)
        description["model_path"] = description.get("model_path") or os.getcwd()
        for key in ("attributes", "mk_environments"):
            description[key] = description.get(key) or []
        return json.dumps(description)


class TaskContext(object):
    """One request of a batch: an object of its own, which may be kept and answered later, from any thread."""

    def __init__(self, task, contexts=None):
        self._task, self._contexts, self._uuid, self._text = task, contexts, None, None

    def get_id(self):
        return "%s-%d" % (_server().name, self._task.serial)

    def get_uuid(self):
        if self._uuid is None:
            self._uuid = str(uuid.uuid4())
        return self._uuid

    def get_session_id(self):
        """Of a stream that of the stream; else one a request."""
        return str(self._task.meta.get("session") or str(self._task.meta.get("path")).partition("?session=")[2] or self.get_id())

    def get_job_id(self):
        return os.environ.get("TASK_JOB_ID", "")

    def get_model_name(self):
        return str(self._task.meta.get("model") or os.environ.get("REDHARE_MODEL_NAME", ""))

    def get_version(self):
        return str(self._task.meta.get("version") or "1")

    def get_input_data(self):
        if self._text is None:
            self._text = self._task.body.decode("utf-8", "surrogateescape")
        return self._text

    def get_input_data_extend(self):
        return self._task.body

    def set_output_data(self, data):
        if isinstance(data, str):
            try:
                data = data.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                data = data.encode("utf-8", "replace")
        elif not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError("set_output_data takes str or bytes, not %s; json.dumps makes a str" % type(data).__name__)
        from pyedt import _kernel_serve

        data = bytes(data)
        if self._task.answer(200, {"content_type": _kernel_serve.content_type_of(data)}, data):
            return True
        _server().say_once("set_output_data was called again, or too late: the first answer stands")
        return False

    def set_output_data_extend(self, data):
        return self.set_output_data(data)

    def report_ready(self, data):
        _server().send_part(self._task, data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data or b""))
        return True

    def is_wanted(self):
        """Whether somebody still waits for the answer: False once a client of a stream has gone. (Not WMLA's.)"""
        return not (self._task.cancelled or self._task.connection.lost)

    def streams(self):
        """Whether the client takes an answer in pieces. (Not WMLA's.)"""
        return self._task.streams()

    def get_path(self):
        """The address that was asked: "/v1/chat/completions". (Not WMLA's.)"""
        return str(self._task.meta.get("path") or "")

    def _at(self, place):
        if self._contexts is None or not 0 <= place < len(self._contexts):
            return None
        found = self._contexts[place]
        found._task.reached = True
        return found

    def next(self):
        return self._at(self._task.place + 1)

    def prev(self):
        return self._at(self._task.place - 1)


class _LocalTask(TaskContext):
    """A task outside a service: its input is ./input.json, its answer is printed."""

    def __init__(self, contexts, place):
        self._contexts, self._place = contexts, place

    def _local(self):
        return "local"

    get_id = get_uuid = get_session_id = get_job_id = get_model_name = get_version = _local

    def get_input_data(self):
        with open("./input.json") as file:
            return file.read()

    def get_input_data_extend(self):
        return self.get_input_data().encode("utf-8", "surrogateescape")

    def set_output_data(self, data):
        print("Response data: {}".format(data))
        return True

    set_output_data_extend = set_output_data

    def report_ready(self, data):
        print("Response piece: {}".format(data))
        return True

    def is_wanted(self):
        return True

    streams = is_wanted

    def get_path(self):
        return ""

    def next(self):
        return self._contexts[self._place + 1] if self._place + 1 < len(self._contexts) else None

    def prev(self):
        return self._contexts[self._place - 1] if self._place > 0 else None


class Kernel(object):
    """The base of a user's kernel. Nothing here depends on its __init__, which subclasses leave out."""

    def on_kernel_start(self, kernel_context):
        pass

    def on_task_invoke(self, task_context):
        pass

    def on_kernel_shutdown(self):
        pass

    def run(self):
        server = _server()
        if server is None:
            self._run_here()
            return
        server.start(lambda: self.on_kernel_start(KernelContext(server.name, server.description)))
        server.run(server.ready_as("wmla_python"), self._invoke)
        self.on_kernel_shutdown()

    def _invoke(self, batch):
        if inspect.isgeneratorfunction(self.on_task_invoke):
            from pyedt import _kernel_stream

            _kernel_stream.run(_server(), batch, lambda task: self.on_task_invoke(TaskContext(task)))
            return
        contexts = []
        contexts.extend(TaskContext(task, contexts) for task in batch)
        self.on_task_invoke(contexts[0])

    def _run_here(self):
        self.on_kernel_start(KernelContext())
        contexts = []
        contexts.extend(_LocalTask(contexts, place) for place in range(_LOCAL_TASKS))
        made = self.on_task_invoke(contexts[0])
        for piece in made if inspect.isgenerator(made) else ():
            print("Response piece: {}".format(piece))
        self.on_kernel_shutdown()

    @staticmethod
    def log(level, msg):
        if level >= _LEAST.get(os.environ.get("DLIM_MK_LOG_LEVEL", "INFO").strip().upper(), 0):
            now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")
            sys.stderr.write("%s: %s %s\n" % (now, LEVEL.get(level, "I"), msg))
            sys.stderr.flush()

    @staticmethod
    def log_debug(msg):
        Kernel.log(-1, msg)

    @staticmethod
    def log_info(msg):
        Kernel.log(0, msg)

    @staticmethod
    def log_warn(msg):
        Kernel.log(1, msg)

    @staticmethod
    def log_error(msg):
        Kernel.log(2, msg)
