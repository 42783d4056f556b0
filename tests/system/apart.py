"""Hosts that share nothing but a wire: each has its own network and mount namespace with its own /sys, /tmp and /dev/shm, its
own user and a folder that nobody else may enter.

    test --+-- bridge --+-- veth | alpha's namespaces: lo, sX, its folder, nothing of the others
           |            +-- veth | beta's ..."""

import itertools
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
import threading

import mesh

HOLE_BYTES = 1300  # of a path behind a tunnel, say; datagrams of agents pass
_numbers = itertools.count(os.getpid() % 199)


def why_not():
    """Why hosts cannot be apart here, or ''."""
    if os.geteuid() != 0:
        return "only root may make namespaces"
    if not shutil.which("ip") or not shutil.which("setpriv"):
        return "needs ip (iproute2) and setpriv (util-linux)"
    probe = "shoal%d" % os.getpid()
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if done.returncode == 0:
        done = subprocess.run(["ip", "link", "add", probe, "type", "bridge"], capture_output=True, text=True)
        subprocess.run(["ip", "link", "del", probe], capture_output=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return "" if done.returncode == 0 else "this kernel makes no namespace or bridge: " + done.stderr.strip()


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def traversable(folder):
    return all(parent.stat().st_mode & 0o001 for parent in [folder, *folder.parents])


class Wire:
    """Looks for words in all that passes a host's wire, either way: `with Wire(host, words) as wire: ...; wire.seen`."""

    def __init__(self, host, words):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((host.outer, 0))
        self.socket.settimeout(0.2)
        self.words, self.seen, self.packets, self.ended = words, set(), 0, False
        self.thread = threading.Thread(target=self._listen)

    def _listen(self):
        while not self.ended:
            try:
                packet = self.socket.recv(65536)
            except socket.timeout:
                continue
            self.packets += 1
            self.seen |= {word for word in self.words if word in packet}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
        self.socket.close()


class ApartHost(mesh.Host):
    def __init__(self, owner, name):
        super().__init__(owner, name)
        owner.every.append(self)
        self.number = len(owner.namespaces) + 2
        self.namespace = "%s%d" % (owner.bridge, self.number)
        self.inner, self.outer = self.namespace + "i", self.namespace + "o"
        self.address = "%s.%d" % (owner.subnet, self.number)
        self.user = 61000 + self.number
        self._wire()

    def _wire(self):
        ip("netns", "add", self.namespace)
        self.mesh.namespaces.append(self.namespace)
        ip("link", "add", self.outer, "type", "veth", "peer", "name", self.inner)
        ip("link", "set", self.inner, "netns", self.namespace)
        ip("link", "set", self.outer, "master", self.mesh.bridge, "up")
        ip("-n", self.namespace, "link", "set", "lo", "up")
        ip("-n", self.namespace, "addr", "add", self.address + "/24", "dev", self.inner)
        ip("-n", self.namespace, "link", "set", self.inner, "gso_max_segs", "1", "up")  # packets as a wire has them

    def prepare(self, seed=None):
        super().prepare(seed)
        self.log.touch()
        subprocess.run(["chown", "-R", "%d:%d" % (self.user, self.user), str(self.data)], check=True)
        self.data.chmod(0o700)
        self.within = ["ip", "netns", "exec", self.namespace, "sh", "-ec", self._world(), "host"]

    def _world(self):
        """A shell's words: hide what hosts must not share, keep the programs and this host's folder, become the user."""
        programs = {pathlib.Path(path).resolve() for path in (
            mesh.ROOT, self.mesh.binary.parent, sys.base_prefix, pathlib.Path(self.mesh.python).parent.parent)}
        keep = [self.data, *sorted(programs)]
        hidden = [pathlib.Path("/tmp"), pathlib.Path("/dev/shm")]
        for folder in programs:
            hidden += [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
        hidden = sorted(set(hidden))
        kept = [folder for folder in keep if any(above in folder.parents for above in hidden)]
        kept = [folder for folder in kept if not any(above in folder.parents for above in kept)]
        words = ["mount -t tmpfs none /mnt"]
        for i, folder in enumerate(kept):
            words += ["mkdir /mnt/%d" % i, "mount --bind %s /mnt/%d" % (shlex.quote(str(folder)), i)]
        for folder in hidden:
            mode = 1777 if str(folder) in ("/tmp", "/dev/shm") else 755
            words.append("mount -t tmpfs -o mode=%d none %s" % (mode, shlex.quote(str(folder))))
        for i, folder in enumerate(kept):
            place = shlex.quote(str(folder))
            words += ["mkdir -p %s" % place, "mount --bind /mnt/%d %s" % (i, place), "umount /mnt/%d" % i]
        words += ["umount /mnt", "cd /", "exec setpriv --reuid %d --regid %d --clear-groups --inh-caps=-all,+sys_nice "
                  "--ambient-caps=-all,+sys_nice --bounding-set=-all,+sys_nice --no-new-privs -- \"$@\"" % (self.user, self.user)]
        return "; ".join(words)

    def start(self, *options):
        trusted = ("--fabric-trusted", self.inner) if self.mesh.trusted else ()
        return super().start(*trusted, *options)

    def inside(self, path):
        """A path of this host's own world, as the test may reach it."""
        return pathlib.Path("/proc/%d/root%s" % (self.process.pid, path))

    def cut(self, off=True):
        """The wire is unplugged: packets are lost in silence, nobody is told."""
        ip("link", "set", self.outer, "down" if off else "up")

    def black_hole(self, off=True):
        """What is larger than an address's usual path takes is lost on this host's wire, either way, and no router says so."""
        ip("link", "set", self.outer, "mtu", str(HOLE_BYTES if off else 1500))

    def cut_data(self, peer, off=True):
        """What this host's workers send to the peer's is lost in silence; agents go on talking."""
        verb, nowhere = "add" if off else "del", self.mesh.subnet + ".250"  # a neighbour whose hardware address nobody has
        inside = lambda *words: ip("-n", self.namespace, *words)  # noqa: E731
        rule = lambda *words: inside("rule", verb, "to", peer.address, "ipproto", "tcp", *words)  # noqa: E731
        inside("neigh", "replace", nowhere, "lladdr", "02:00:00:00:00:fa", "dev", self.inner, "nud", "permanent")
        inside("route", "replace", "default", "via", nowhere, "dev", self.inner, "table", "77")
        for end, host in itertools.product(("sport", "dport"), (self, peer)):
            for port in (host.port, host.api_port):
                rule(end, str(port), "lookup", "main", "priority", "100")
        rule("lookup", "77", "priority", "200")

    def run(self, *words, timeout=30):
        """A command in this host's network."""
        return subprocess.run(["ip", "netns", "exec", self.namespace, *map(str, words)], capture_output=True, text=True, timeout=timeout)

    def as_user(self, *words):
        """A command as this host's user, outside of its namespaces."""
        return subprocess.run(["setpriv", "--reuid", str(self.user), "--regid", str(self.user), "--clear-groups", "--inh-caps=-all",
                               "--bounding-set=-all", "--", *map(str, words)], capture_output=True, text=True)


class ApartMesh(mesh.Mesh):
    host_class = ApartHost

    def __init__(self, *arguments, trusted=False, **options):
        """`trusted`: the wire between the hosts carries training data in the open."""
        super().__init__(*arguments, **options)
        self.trusted = trusted
        self.folder.chmod(0o711)
        self.namespaces, self.every = [], []
        number = next(_numbers)
        self.bridge = "s%xn%d" % (os.getpid(), number % 100)  # with what hosts add, at most 15 characters
        self.subnet = "10.%d.%d" % (60 + os.getpid() // 250 % 100, number % 250)
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", self.subnet + ".1/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def __exit__(self, kind, error, trace):
        self.hosts = self.every  # those that a test had set apart, too
        super().__exit__(kind, error, trace)
        for namespace in self.namespaces:  # the wire first: a namespace goes when its last process has gone
            subprocess.run(["ip", "link", "del", namespace + "o"], capture_output=True)
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)
