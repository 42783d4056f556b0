"""What several system tests do."""

import json
import zipfile

from mesh import job_id


# An elastic script that takes minutes, with as many engines as it is given.
SLOW_TRAINING = """
import time
import torch
from fabric_model import FabricModel

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        time.sleep(0.05)
        return torch.zeros(2), 0

model = torch.nn.Linear(2, 2)
FabricModel(model, lambda: (Rows(), None), torch.nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())).train(9, 4, %d)
"""


def submit(mesh, host, folder, *options, framework="PyTorch", script=()):
    words = ["job", "run", "--framework", framework, "--model-main", "main.py", "--model-dir", folder, *options]
    return job_id(json.dumps(mesh.cli(host, *words, *(["--", *script] if script else []))))


def ended(mesh, job, seconds=60, hosts=None):
    """The job's last facts."""
    return mesh.until(lambda: (facts := mesh.job(job, *(hosts or mesh.hosts))) and facts["hasEnded"] and facts, seconds,
                      "the end of %s" % job, pause=0.1)


def log_of(mesh, host, job, *options):
    """What it printed on stdout, or what the options name."""
    options = options if "--which" in options else ("--which", "out", *options)
    return mesh.shoal("job", "logs", job, "--node", host.url, *options).stdout


def result_of(mesh, host, job, folder):
    """{name: bytes} of the fetched archive."""
    archive = folder / ("result-%s.zip" % host.name)
    mesh.shoal("job", "result", job, archive, "--node", host.url)
    with zipfile.ZipFile(archive) as content:
        return {name: content.read(name) for name in content.namelist() if not name.endswith("/")}


def groups(host):
    """{group: status} of the groups that the host holds."""
    return {group["group"]: group for group in host.get("/v1/debug/groups")}


def hello(group, share=b""):
    """A ClientHello of TLS 1.3 that offers one group (0x0104: ffdhe8192), with or without its share."""
    def extension(kind, data):
        return kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data

    code = group.to_bytes(2, "big")
    share = code + len(share).to_bytes(2, "big") + share if share else b""
    extensions = (extension(43, b"\x02\x03\x04") + extension(10, b"\x00\x02" + code) + extension(13, b"\x00\x04\x04\x03\x08\x04") +
                  extension(51, len(share).to_bytes(2, "big") + share))
    body = b"\x03\x03" + b"r" * 32 + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00" + len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message
