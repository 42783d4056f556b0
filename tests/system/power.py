"""Hosts whose power can be cut: all processes die at once, and what was never flushed is gone (disk_shim.c)."""

import os
import pathlib
import shutil
import signal
import uuid

import mesh


class PowerHost(mesh.Host):
    def prepare(self, seed=None):
        self.flushed = self.mesh.folder / (self.name + ".flushed")
        self.flushed.mkdir()
        self.boot_id = self.mesh.folder / (self.name + ".boot_id")
        self.boot_id.write_text("%s\n" % uuid.uuid4())
        self.stalled = self.mesh.folder / (self.name + ".stalled")
        self.within = ["env", "LD_PRELOAD=%s" % (self.mesh.binary.parent / "tests/system/disk_shim.so"),
                       "SHOAL_SHIM_FLUSHED=%s" % self.flushed, "SHOAL_SHIM_STALL=%s" % self.stalled,
                       "SHOAL_SHIM_BOOT_ID=%s" % self.boot_id, "SHOAL_SHIM_DATA=%s" % self.data]
        environment = dict(word.split("=", 1) for word in self.within[1:])
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)  # what init writes is flushed too
        try:
            super().prepare(seed)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def power_off(self):
        """Every process at once. The disk keeps what was flushed, under the names that there were."""
        for pid in self.everything():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def forget(self):
        """After power_off: files have the bytes of their last flush. How many had others."""
        self.boot_id.write_text("%s\n" % uuid.uuid4())
        changed = []
        for path in sorted(self.data.rglob("*")):
            if path.is_symlink() or not path.is_file() or self.data / "store" in path.parents:
                continue
            kept = self.flushed / str(path.stat().st_ino)
            data = kept.read_bytes() if kept.exists() else b""
            if data != path.read_bytes():
                changed.append(path)
                with open(path, "r+b") as file:  # the same inode
                    file.truncate(0)
                    file.write(data)
        for name in ("cache", "index"):  # what can be built anew may be gone altogether
            shutil.rmtree(self.data / name, ignore_errors=True)
        return changed


class PowerMesh(mesh.Mesh):
    host_class = PowerHost

    def cut_power(self, *hosts):
        """Of all hosts by default, then they start again. {host name: files that lost bytes}"""
        for host in hosts or self.hosts:
            host.power_off()
        lost = {host.name: host.forget() for host in hosts or self.hosts}
        for host in hosts or self.hosts:
            host.start()
        return lost

    def kill_all(self):
        """Every process of every host at once; the kernels run on, so the disks lose nothing."""
        for host in self.hosts:
            host.power_off()
        for host in self.hosts:
            host.start()
