"""A little agent and runner for system tests of Python engines: real processes, real libshoal, one test process that
decides epochs by PROTOCOLS 7 the simple way. Hosts are told apart by node id, control page and arena, so that what goes
between them goes through UCX on loopback.

    EngineMesh --engine server, worker socket--> engines      --worker socket--> driver (a script)"""

import atexit
import ctypes
import functools
import mmap
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JOB = "shoal-0123456789abcdef"
(HELLO, CALL, READY, EPOCH, CLOSED, RECORDS, RECORDS_ACKED, DONE, WRITE_FINAL, FILES, RELEASE, STOP, FAILED, SNAPSHOT, TRAIN,
 TRAIN_STATE, TRAIN_RECORDS, TRAIN_ACKED, UNHEARD) = range(19)
WAITING, RUNNING, FINISHED, FAILED_STATE = range(4)
PAGE_BYTES = 128 + 64 * 128
REVOKED_AT, PUBLISHED_AT, FUTEX_AT = 48, 40, 56
MAGIC = 0x6C6F72746E6F6353
FUTEX_SYSCALL, FUTEX_WAKE = 202, 1
PR_SET_CHILD_SUBREAPER = 36
sys.path.insert(0, str(ROOT / "collective" / "python"))

import engine_forks  # noqa: E402
from pyedt import engine_server  # noqa: E402


def library():
    """The release library: Python loads no sanitizer."""
    out = pathlib.Path(os.environ.get("SHOAL_OUT") or ROOT / "build" / "release")
    if out.name.startswith("asan"):
        out = out.parent / "release"
    return out / "libshoal.so"


@functools.cache
def fabric():
    """FABRIC_HOME, made once."""
    folder = tempfile.TemporaryDirectory(prefix="shoal-fabric-")
    atexit.register(folder.cleanup)
    build = ROOT / "collective" / "python" / "build_fabric.py"
    subprocess.run([sys.executable, str(build), folder.name, str(library())], check=True)
    return folder.name


def base_environment():
    """What programs of all meshes have."""
    return {"PATH": os.environ["PATH"], "FABRIC_HOME": fabric(), "FABRIC_BACKEND": "pytorch", "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1", "PYTHONPATH": "%s/tools:%s/libs/fabric.zip" % (fabric(), fabric())}


@functools.cache
def forks():
    made = engine_forks.Forks(dict(base_environment(), HOME=fabric()))
    atexit.register(made.close)
    return made


class Bytes:
    """Reads a message."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, shape):
        values = struct.unpack_from("<" + shape, self.data, self.at)
        self.at += struct.calcsize("<" + shape)
        return values if len(values) > 1 else values[0]

    def bytes(self):
        length = self.take("I")
        self.at += length
        return self.data[self.at - length:self.at]


def text(value):
    raw = os.fsencode(value)
    return struct.pack("<I", len(raw)) + raw


def message(kind, body=b""):
    return bytes([kind, 1, 1]) + body


class Host:
    """One host's runner: control page, arena, engine server."""

    def __init__(self, number):
        self.node = bytes([number + 1]) * 16
        self.page_fd = os.memfd_create("page", 0)
        os.ftruncate(self.page_fd, PAGE_BYTES)
        self.page = mmap.mmap(self.page_fd, PAGE_BYTES)
        struct.pack_into("<QII", self.page, 0, MAGIC, 1, 1)
        struct.pack_into("<II", self.page, 32, 0, 64)
        self.arena_fd = os.memfd_create("arena", 0)
        self.server = None
        self.slots = 0

    def start_server(self, environment):
        self.server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.settimeout(120)
        fds = (theirs.fileno(), self.page_fd, self.arena_fd)
        self.process = forks().start("pyedt.engine_server", environment["PWD"], dict(environment, SHOAL_SERVER_FD=str(theirs.fileno())),
                                     {fd: fd for fd in fds})
        theirs.close()

    def revoke(self, word):
        struct.pack_into("<Q", self.page, REVOKED_AT, word)
        self.wake()

    def publish(self, word):
        struct.pack_into("<Q", self.page, PUBLISHED_AT, word)
        self.wake()

    def wake(self):
        count = struct.unpack_from("<I", self.page, FUTEX_AT)[0]
        struct.pack_into("<I", self.page, FUTEX_AT, count + 1 & 0xFFFFFFFF)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.page)) + FUTEX_AT
        ctypes.CDLL(None).syscall(FUTEX_SYSCALL, ctypes.c_void_p(address), FUTEX_WAKE, 1 << 30, None, None, 0)


class Engine:
    def __init__(self, mesh, host, worker_id, slot, pid):
        self.mesh, self.host, self.worker_id, self.slot, self.pid = mesh, host, worker_id, slot, pid
        self.connection = None
        self.ready = self.has_state = self.done = self.dead = self.member = False
        self.closed = None  # (applied, complete) of the epoch that is being left
        self.address = b""
        self.failed = None
        self.digest = None
        self.status = None

    def words(self):
        """(started, complete, applied, mini-batches, activity, updates) of the control page."""
        at = 128 + 128 * self.slot
        started, complete, applied, minibatches = struct.unpack_from("<4Q", self.host.page, at + 24)
        return started, complete, applied, minibatches

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)

    def log(self, name="stdout"):
        return (self.mesh.folder / "log" / str(self.worker_id) / name).read_text()


class EngineMesh:
    def __init__(self, folder, hosts=1, seed=7):
        self.folder = pathlib.Path(folder)
        self.work = self.folder / "work"
        self.result = self.folder / "result"
        for path in (self.work, self.result):
            path.mkdir(exist_ok=True)
        self.environment = dict(
            base_environment(), HOME=str(self.folder), PWD=str(self.work), RESULT_DIR=str(self.result), WMLA_NWORKER="16",
            SHOAL_JOB_ID=JOB, SHOAL_GENERATION="1", SHOAL_FABRIC_TRUSTED="lo")
        self.environment["PYTHONPATH"] += ":%s" % self.work
        self.hosts = [Host(i) for i in range(hosts)]
        self.socket_folder = tempfile.mkdtemp(prefix="mesh")  # a short path: socket names are bounded
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.socket_folder + "/agent")
        self.listener.listen(64)
        self.environment["SHOAL_AGENT_SOCKET"] = self.socket_folder + "/agent"
        self.engines, self.connections = [], {}
        self.call = None  # (number, seed, path, engines_max)
        self.seed = seed
        self.e = 0
        self.open = False  # an epoch is running
        self.records = {}  # step -> bytes
        self.driver, self.driver_process, self.driver_acked, self.driver_sent = None, None, 0, 0
        self.train, self.finished = None, None
        self.epochs = []  # (e, decided, worker ids)
        self.snapshots = []
        self.final_writer = None
        self.kill_final_writers = 0  # so many die instead of writing
        self.wanted = 1  # engines that must be ready before the first epoch
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    # ---- processes ----

    def start_engine(self, host=0, fault=None):
        """`fault`: SHOAL_FAULT of libshoal, point:step:action."""
        where = self.hosts[host]
        if where.server is None:
            where.start_server(self.environment)
        worker_id, slot = 1001 + len(self.engines), where.slots
        where.slots += 1
        at = 128 + 128 * slot
        where.page[at:at + 128] = bytes(128)
        struct.pack_into("<Q", where.page, at, worker_id)
        log = self.folder / "log" / str(worker_id)
        environment = dict(self.environment, SHOAL_WORKER_ID=str(worker_id), SHOAL_SLOT=str(slot),
                           SHOAL_NODE_ID=where.node.hex(), SHOAL_TOKEN=("%032x" % worker_id),
                           SHOAL_CONTROL_FD=str(where.page_fd), SHOAL_ARENA_FD=str(where.arena_fd))
        if fault:
            environment["SHOAL_FAULT"] = fault
        command = {"fork": slot, "worker": worker_id, "nice": 0, "cwd": str(self.work), "env": environment,
                   "stdout": str(log / "stdout"), "stderr": str(log / "stderr")}
        where.server.send(engine_server.pack(command))
        answer = engine_server.unpack(where.server.recv(65536))
        engine = Engine(self, where, worker_id, slot, answer["pid"])
        self.engines.append(engine)
        return engine

    def start_driver(self, script):
        """Run a script as the job's driver."""
        path = self.work / "main.py"
        path.write_text(script)
        with open(self.folder / "driver.log", "ab") as log, open(os.devnull) as none:
            self.driver_process = forks().start(
                path, self.work, dict(self.environment, DLI_IS_DRIVER="true", SHOAL_WORKER_ID="1", LOG_DIR=str(self.folder / "driver")),
                {0: none.fileno(), 1: log.fileno(), 2: log.fileno()})

    def driver_log(self):
        return (self.folder / "driver.log").read_text()

    def close(self):
        for engine in self.engines:
            if not engine.dead:
                engine.kill()
        if self.driver_process is not None:
            self.driver_process.kill()
            self.driver_process.wait()
        for host in self.hosts:
            if host.server is not None:
                host.server.close()
                host.process.wait(20)
        self.reap()
        for connection in self.connections.values():
            connection.close()
        self.listener.close()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def reap(self):
        """Notice who ended: what a runner does by SIGCHLD."""
        for engine in self.engines:
            if engine.dead:
                continue
            try:
                pid, status = os.waitpid(engine.pid, os.WNOHANG)
            except ChildProcessError:
                continue
            if pid:
                engine.dead, engine.status = True, os.waitstatus_to_exitcode(status)
                if engine.member and not engine.done:
                    self.revoke()

    # ---- the loop ----

    def turn(self, timeout=0.02):
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        for fd in self.connections:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(int(timeout * 1000)):
            if fd == self.listener.fileno():
                connection = self.listener.accept()[0]
                self.connections[connection.fileno()] = connection
            else:
                self.receive(fd)
        self.reap()
        self.decide()

    def until(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("nothing came of it in %d s: %s" % (seconds, self.describe()))
            self.turn()

    def describe(self):
        rows = ["epoch %d open %s, records %d" % (self.e, self.open, len(self.records))]
        for n in self.engines:
            rows.append("%d pid %d ready %s member %s state %s dead %s (%s) closed %s done %s words %s failed %s" % (
                n.worker_id, n.pid, n.ready, n.member, n.has_state, n.dead, n.status, n.closed, n.done, n.words(), n.failed))
        return "\n".join(rows)

    def receive(self, fd):
        connection = self.connections[fd]
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            connection.close()
            del self.connections[fd]
            if self.driver is connection:
                self.driver = None
            return
        body = Bytes(data[3:])
        kind = data[0]
        if kind == HELLO:
            self.on_hello(connection, body)
            return
        if connection is self.driver:
            self.on_driver(kind, body)
            return
        engine = next(e for e in self.engines if e.connection is connection)
        self.on_engine(engine, kind, body)

    def on_hello(self, connection, body):
        body.at += 10
        _, role, worker_id = body.take("IBQ")
        if role == 1:
            self.driver, self.train = connection, None
            self.driver_sent = self.driver_acked  # what a killed one had acknowledged may be heard after its death
            return
        engine = next(e for e in self.engines if e.worker_id == worker_id)
        engine.connection = connection
        self.send_call(engine)

    def send_call(self, engine):
        if self.call is not None and engine.connection is not None:
            number, seed, path = self.call
            engine.connection.send(message(CALL, struct.pack("<IQ", number, seed) + text(path)))

    def start_call(self, path, number=1, seed=None):
        self.call = (number, self.seed if seed is None else seed, str(path))
        for engine in self.living():
            self.send_call(engine)

    def on_engine(self, engine, kind, body):
        if kind == READY:
            (_, _, _, _, _, _, _, _, count) = body.take("IIQQQIIQB")
            engine.names = [body.bytes().decode() for _ in range(count)]
            engine.address, engine.ready = body.bytes(), True
        elif kind == CLOSED:
            e, _, applied, complete = body.take("IIQQ")
            if e == self.e:
                engine.closed = (applied, complete)
                self.revoke()  # it left by itself: a broken data link, say
        elif kind == RECORDS:
            call, first, count = body.take("IQI")
            self.on_records(engine, call, first, count, body.bytes())
        elif kind == DONE:
            _, _, engine.digest = body.take("IQQ")
            engine.done = True
        elif kind == FILES:
            self.finished = True
        elif kind == FAILED:
            body.take("I")
            user_code = body.take("B")
            engine.failed = (bool(user_code), body.bytes().decode())
        elif kind == SNAPSHOT:
            _, step = body.take("IQ")
            self.snapshots.append((step, os.fsdecode(body.bytes())))

    def on_records(self, engine, call, first, count, data):
        from pyedt import _records

        offset = 0
        for i in range(count):
            _, end = _records.decode(data, offset)
            known = self.records.setdefault(first + i, data[offset:end])
            assert known[41:] == data[offset:end][41:], "step %d has two records" % (first + i)
            offset = end
        engine.connection.send(message(RECORDS_ACKED, struct.pack("<IQ", call, first + count - 1)))

    # ---- epochs ----

    def living(self):
        return [e for e in self.engines if not e.dead]

    def revoke(self):
        if self.open:
            self.open = False
            for host in self.hosts:
                host.revoke(self.e << 32)

    def decide(self):
        if self.call is None or self.finished:
            self.finish()
            return
        members = [e for e in self.living() if e.member and e.has_state]
        newcomers = [e for e in self.living() if e.ready and not e.member and not e.done]
        if self.open and newcomers and not any(e.done for e in members):
            self.revoke()
        if self.open or (not members and len(newcomers) < self.wanted):
            self.finish()
            return
        if all(e.closed is not None for e in members):
            self.next_epoch(members, newcomers)

    def next_epoch(self, members, newcomers):
        # A joiner that lost its donor half way reports that it applied nothing: it is a newcomer still.
        young = [e for e in members if self.epochs and e.closed[0] < self.epochs[-1][1]]
        members = [e for e in members if e not in young]
        newcomers = young + newcomers
        for engine in young:
            engine.has_state = False
        applied = max([e.closed[0] for e in members], default=0)
        complete = min([e.closed[1] for e in members], default=0)
        decided = max(applied, complete)
        holder = next((e.worker_id for e in members if e.closed[1] >= decided), 0) if decided else 0
        donor = members[-1].worker_id if members and newcomers else 0
        self.e += 1
        ranks = members + newcomers
        body = struct.pack("<IIIQQQQ", self.e, 0, self.call[0], decided, holder, donor, max(self.records, default=0))
        body += text("") + struct.pack("<I", len(ranks))
        share, more = divmod(self.virtual_workers, len(ranks))
        begin = 0
        for i, engine in enumerate(ranks):
            end = begin + share + (i < more)
            body += struct.pack("<Q", engine.worker_id) + engine.host.node + struct.pack("<III", engine.slot, begin, end)
            body += bytes([engine.has_state]) + bytes.fromhex("%032x" % engine.worker_id)
            body += struct.pack("<H", len(engine.address)) + engine.address
            begin = end
        for engine in ranks:
            engine.member, engine.closed = True, None
            engine.connection.send(message(EPOCH, body))
        for host in self.hosts:
            host.publish(self.e << 32)
        self.epochs.append((self.e, decided, [e.worker_id for e in ranks]))
        self.open = True
        for engine in ranks:
            engine.has_state = True  # until its report says otherwise

    virtual_workers = 8

    def finish(self):
        alive = [e for e in self.living() if e.member]
        if self.finished:
            for engine in alive:
                if engine.connection is not None and not getattr(engine, "released", False):
                    engine.released = True
                    try:
                        engine.connection.send(message(RELEASE, b"\0" + text("")))
                    except OSError:
                        pass
            return
        if alive and all(e.done for e in alive) and self.final_writer not in alive:
            self.final_writer = alive[0]
            last = max(self.records, default=0)
            if self.kill_final_writers > 0:
                self.kill_final_writers -= 1
                self.final_writer.kill()
            self.final_writer.connection.send(message(WRITE_FINAL, struct.pack("<IQ", self.call[0], last)))

    # ---- the driver ----

    def on_driver(self, kind, body):
        if kind == TRAIN:
            call, seed, engines_max = body.take("IQI")
            path, self.signature = os.fsdecode(body.bytes()), body.bytes().decode()
            self.train = (call, seed, engines_max, path)
            if self.call is None:
                copy = self.folder / ("call-%d.bundle" % call)
                copy.write_bytes(pathlib.Path(path).read_bytes())
                self.start_call(copy, call, seed)
            self.tell_driver(RUNNING)
        elif kind == TRAIN_ACKED:
            _, self.driver_acked = body.take("IQ")

    def tell_driver(self, state, why=""):
        final = max(self.records, default=0)
        self.driver.send(message(TRAIN_STATE, struct.pack("<IBIQQ", self.call[0], state, len(self.living()),
                                                          self.driver_acked, final)
                                 + text(self.result / "model" / "train") + text(why)))

    def feed_driver(self):
        """Records in order, some at a time; after the last one, that the call has finished."""
        if self.driver is None or self.train is None:
            return
        step = self.driver_sent + 1
        batch = []
        while step in self.records and len(batch) < 20:
            batch.append(self.records[step])
            step += 1
        if batch:
            try:
                self.driver.send(message(TRAIN_RECORDS, struct.pack("<IQI", self.call[0], self.driver_sent + 1, len(batch))
                                         + struct.pack("<I", sum(map(len, batch))) + b"".join(batch)))
            except BrokenPipeError:
                return  # it was killed: its last words come first, then the end of its connection
            self.driver_sent += len(batch)
        elif self.finished and not getattr(self, "told", False):
            self.told = True
            self.tell_driver(FINISHED)


