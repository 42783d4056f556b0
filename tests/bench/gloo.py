"""The rival's all-reduce: torch.distributed with gloo, two processes on loopback, float32 sums in place. Prints one line a
size: KiB, median microseconds of the slower rank. Usage: gloo.py ITERATIONS KIB[,KIB...]"""

import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


def work(rank, port, iterations, sizes, answers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for kib in sizes:
        values = torch.zeros(kib * 256)
        times = []
        for _ in range(iterations):
            values.fill_(rank + 1)
            dist.barrier()
            begin = time.monotonic()
            dist.all_reduce(values)
            times.append((time.monotonic() - begin) * 1e6)
            assert values[-1] == 3
        answers.put((kib, times))
        dist.barrier()
    dist.destroy_process_group()


def main():
    iterations, sizes = int(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = processes.get_context("fork")
    answers = context.SimpleQueue()
    ranks = [context.Process(target=work, args=(rank, port, iterations, sizes, answers)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    found = {}
    for _ in range(2 * len(sizes)):
        kib, times = answers.get()
        found.setdefault(kib, []).append(times)
    for rank in ranks:
        rank.join()
    for kib in sizes:
        slower = [max(pair) for pair in zip(*found[kib])]
        print("gloo %d KiB median %.1f us best %.1f us" % (kib, statistics.median(slower), min(slower)))


if __name__ == "__main__":
    main()
