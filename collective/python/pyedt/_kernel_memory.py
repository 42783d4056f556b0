"""How much memory a kernel and the processes that it forked have: what the watcher (kernel_host) holds against `mem_limit`.

Counted is what no file stands behind (anonymous and shared memory, and what of it is swapped): the host must have it. A page that
several of these processes have in common counts once."""

import os

from pyedt._kernel_serve import Unusable

LOOK_S = 0.25
PROCESSES_MAX = 1000  # of one look: more are not followed
CHEAP, EXACT = ("RssAnon", "RssShmem", "VmSwap"), ("Pss_Anon", "Pss_Shmem", "SwapPss")


def limit_of(profile):
    """In bytes, None where the profile says nothing, or 0."""
    value = profile
    for key in ("resource_allocation", "kernel", "resources"):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        return None
    said = dict(one.split("=", 1) for one in value.replace(" ", "").split(",") if "=" in one)
    try:
        megabytes = float(said.get("mem_limit", 4096))
    except ValueError:
        raise Unusable("the profile's mem_limit is no number") from None
    return int(megabytes * (1 << 20)) if 0 < megabytes < 1e12 else None


def read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:  # it has ended, or may not be looked at
        return ""


def sum_of(text, keys):
    """Of lines such as "RssAnon:   1234 kB", in bytes."""
    found = 0
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in keys:
            found += int(rest.split()[0]) << 10
    return found


def tree_of(pid):
    """The process and all that it forked, and these."""
    found, at = [pid], 0
    while at < len(found) and len(found) < PROCESSES_MAX:
        folder = "/proc/%d/task" % found[at]
        try:
            threads = os.listdir(folder)
        except OSError:
            threads = []
        for thread in threads:
            found.extend(int(one) for one in read("%s/%s/children" % (folder, thread)).split())
        at += 1
    return found


def used_by(pid, enough):
    """In bytes; exactly only where it may be above `enough`, for that takes the kernel of the host longer."""
    processes = tree_of(pid)
    used = sum(sum_of(read("/proc/%d/status" % one), CHEAP) for one in processes)
    if used <= enough or len(processes) == 1:
        return used
    return sum(sum_of(read("/proc/%d/smaps_rollup" % one), EXACT) for one in processes)
