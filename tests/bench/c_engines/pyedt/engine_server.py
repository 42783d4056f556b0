"""Put beside a bench job's main.py, this shadows Shoal's own engine server: same words with the runner, but the engines are
C workers (tests/system/cworker.c), so that the real agent is measured without a framework.

    runner --{"fork": slot, "worker": id, "env": ...} and the slot's lock--> this --fork--> child --fork, exec--> cworker
    runner <--{"forked": slot, "worker": id, "pid": n}-------------------------'"""

import array
import ctypes
import json
import os
import signal
import socket

COMMAND_BYTES_MAX = 256 * 1024
PR_SET_PDEATHSIG = 1


def receive(connection):
    data, ancillary, _, _ = connection.recvmsg(COMMAND_BYTES_MAX, socket.CMSG_SPACE(4))
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    return (json.loads(data) if data else None), list(descriptors)


def become_worker(command, locks):
    """Never returns."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for name, target in (("stdout", 1), ("stderr", 2)):
            os.makedirs(os.path.dirname(command[name]), exist_ok=True)
            os.dup2(os.open(command[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), target)
        os.chdir(command["cwd"])
        for lock in locks:
            os.set_inheritable(lock, True)
        os.setpriority(os.PRIO_PROCESS, 0, command.get("nice", 5))
        os.execve(command["env"]["BENCH_CWORKER"], ["cworker"], command["env"])
    finally:
        os._exit(1)


def fork_worker(command, locks):
    """(pid, descriptor to close when the runner knows it). Forked twice, so that the worker falls to the runner."""
    pid_out, pid_in = os.pipe()
    go_out, go_in = os.pipe()
    child = os.fork()
    if child == 0:
        worker = os.fork()
        if worker:
            os.write(pid_in, b"%d" % worker)
            os._exit(0)
        os.close(go_in)
        os.read(go_out, 1)
        become_worker(command, locks)
    os.close(pid_in)
    os.close(go_out)
    text = os.read(pid_out, 32)
    os.close(pid_out)
    os.waitpid(child, 0)
    return int(text), go_in


def main():
    connection = socket.socket(fileno=int(os.environ["SHOAL_SERVER_FD"]))
    connection.set_inheritable(False)
    while True:
        command, locks = receive(connection)
        if command is None:
            return
        pid, go = fork_worker(command, locks)
        for lock in locks:
            os.close(lock)
        answer = {"worker": command["worker"], "forked": command["fork"], "pid": pid}
        connection.send(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        os.close(go)


if __name__ == "__main__":
    main()
