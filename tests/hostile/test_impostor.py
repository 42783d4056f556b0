"""An impostor before the command line: it has the address and the port of a node, and a certificate of a mesh of its own."""

import hashlib
import os
import pty
import shutil
import signal
import socket
import ssl
import subprocess
import threading

import pytest
from mesh import PASSWORD, Mesh
from system_conftest import OUT


@pytest.fixture(scope="module")
def mesh():
    with Mesh(OUT / "shoal") as made:
        made.grow(("alpha", "beta"))
        yield made


class Impostor:
    """Takes connections, makes the TLS handshake and notes what comes."""

    def __init__(self, folder, encrypted=True):
        self.heard, self.context = [], ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if encrypted else None
        if encrypted:
            self.context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "https://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            try:
                raw, _ = self.listener.accept()
            except OSError:
                return
            raw.settimeout(10)
            try:
                with self.context.wrap_socket(raw, server_side=True) as sock:
                    self.heard.append(sock.recv(1 << 16).decode())
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            except OSError:
                pass

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(20)


@pytest.fixture(scope="module")
def impostor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("impostor")
    with Mesh(OUT / "shoal") as other:  # of the same name, with a secret of its own
        other.grow(("alpha",))
        for name in ("tls.crt", "tls.key"):
            shutil.copy(other.hosts[0].data / "tls" / name, folder)
    made = Impostor(folder)
    yield made
    made.stop()


@pytest.fixture
def shoal(mesh, tmp_path, impostor):
    """shoal(words..., code=0, NAME=value...) as a user with a home of its own."""
    impostor.heard.clear()

    def run(*words, code=0, **env):
        done = subprocess.run([str(mesh.binary), *map(str, words)], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                              start_new_session=True, env={"HOME": str(tmp_path), "SHOAL_PASSWORD": PASSWORD, **env})
        assert done.returncode == code, (words, done)
        return done.stdout + done.stderr

    return run


KEY_OF_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200")  # how such a public key begins, in 91 bytes


def fingerprint(host):
    der = ssl.PEM_cert_to_DER_cert((host.data / "tls/ca.crt").read_text())
    at = der.index(KEY_OF_P256)
    return "sha256:" + hashlib.sha256(der[at:at + 91]).hexdigest()


def test_who_has_logged_on_tells_an_impostor_nothing(mesh, impostor, shoal):
    first, second = mesh.hosts
    assert fingerprint(first) == fingerprint(second), "one for all nodes"
    assert "--fingerprint " + fingerprint(first) in " ".join(mesh.shoal("doctor", "--data", first.data, check=False).stdout.split())
    shoal("logon", "admin", "--node", first.url, "--fingerprint", fingerprint(first))
    for host in mesh.hosts:
        assert "alpha" in shoal("node", "list", "--node", host.url)
    for words in (("node", "list"), ("node", "list", "--user", "admin"), ("logon", "admin"), ("logon", "admin", "--yes")):
        said = shoal(*words, "--node", impostor.url, code=4)
        assert "somebody stands before it" in said or words[-1] == "--yes", said
    assert not impostor.heard


def test_nothing_is_sent_to_a_stranger(mesh, impostor, shoal):
    """Only a logon asks a stranger for its certificate; neither a password nor a token goes there."""
    assert "log on first" in shoal("node", "list", "--user", "admin", "--node", impostor.url, code=4)
    assert not impostor.heard
    assert "nobody has said" in shoal("logon", "admin", "--node", impostor.url, code=4)
    right = fingerprint(mesh.hosts[0])
    assert "not the one that was given" in shoal("logon", "admin", "--fingerprint", right, "--node", impostor.url, code=4)
    assert all(head.startswith("HEAD / ") and "uthorization" not in head for head in impostor.heard), impostor.heard
    shoal("node", "list", "--user", "admin", "--insecure", "--node", impostor.url)
    assert "Authorization: Basic" in impostor.heard[-1]  # as was asked for


def test_one_file_is_for_all_nodes(mesh, impostor, shoal):
    for host in mesh.hosts:
        for other in mesh.hosts:
            assert "alpha" in shoal("node", "list", "--user", "admin", "--node", other.url, "--ca", host.data / "tls/ca.crt")
    assert "somebody stands" in shoal("node", "list", "--user", "admin", "--ca", mesh.ca, "--node", impostor.url, code=4)
    assert "cannot be read" in shoal("node", "list", "--user", "admin", "--ca", "nowhere.crt", "--node", impostor.url, code=2)
    for host in mesh.hosts:  # as other clients do it: names and addresses are in the certificates
        context = ssl.create_default_context(cafile=mesh.ca)
        for name in (host.address, "localhost", host.name):
            with socket.create_connection((host.address, host.api_port), timeout=20) as raw:
                assert context.wrap_socket(raw, server_hostname=name).version() == "TLSv1.3"
    assert not impostor.heard


@pytest.mark.parametrize("answer, code", [("no", 4), ("yes", 0)])
def test_a_person_at_a_terminal_is_asked(mesh, tmp_path, answer, code):
    host = mesh.hosts[0]
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(HOME=str(tmp_path), SHOAL_PASSWORD=PASSWORD)
        os.execv(str(mesh.binary), [str(mesh.binary), "logon", "admin", "--node", host.url])
    said = b""
    try:
        while b"(yes/no)?" not in said:
            said += os.read(terminal, 4096)
        os.write(terminal, answer.encode() + b"\n")
        while True:
            said += os.read(terminal, 4096)
    except OSError:  # its end
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, said
    os.close(terminal)
    assert fingerprint(host).encode() in said and b"the mesh demo" in said
    assert (tmp_path / ".config/shoal/ca.crt").exists() == (tmp_path / ".config/shoal/token").exists() == (code == 0)


def test_a_folder_without_a_ca_gets_one_and_an_operators_certificate_stays(mesh, tmp_path):
    """As the previous version left it: a certificate of the node's own, signed by itself."""
    host = mesh.hosts[1]
    fake = subprocess.Popen([str(OUT / "tests/system/api_fake"), "0", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    fake.stdout.readline()
    fake.send_signal(signal.SIGTERM)
    fake.wait(20)
    fake.stdout.close()
    host.kill(signal.SIGTERM)
    (host.data / "tls/ca.crt").unlink()
    for name in ("tls.crt", "tls.key"):
        shutil.copy(tmp_path / name, host.data / "tls" / name)
    host.start()
    mesh.until(lambda: mesh.knows(host, 2), 30, "the host is back")
    assert mesh.shoal("node", "list", "--node", host.url).returncode == 0  # with alpha's ca.crt
    if shutil.which("openssl") is None:
        return
    host.kill(signal.SIGTERM)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/O=Lab/CN=beta",
                    "-keyout", host.data / "tls/tls.key", "-out", host.data / "tls/tls.crt", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    own = (host.data / "tls/tls.crt").read_text()
    host.start()
    mesh.until(lambda: mesh.knows(host, 2), 30, "the host is back")
    assert (host.data / "tls/tls.crt").read_text() == own
    assert mesh.shoal("node", "list", "--node", host.url, check=False).returncode == 4  # it is not of the mesh's CA
    assert mesh.shoal("node", "list", "--node", host.url, "--ca", host.data / "tls/tls.crt").returncode == 0
