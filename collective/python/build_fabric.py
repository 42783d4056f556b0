"""Lay out the fabric home:  build_fabric.py OUTDIR LIBSHOAL

    OUTDIR/libs/fabric.zip       fabric_model, callbacks, pyedt
    OUTDIR/native/libshoal.so    zips hold no libraries
    OUTDIR/site/cloudpickle      from this interpreter's environment; last on the path of a job
    OUTDIR/tools                 emetrics, elog: on the path, never in the zip, where they would shadow the user's own
    OUTDIR/build.version         a hash of all of it

Files change only if their content does, and by rename: jobs that run go on with what they loaded. Equal sources give equal
bytes."""

import hashlib
import os
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
FORBIDDEN = ("edtcallback", "elog", "emetrics", "mycallback")


def sources(folder):
    """Python files below a folder, relative, sorted."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        found += [os.path.relpath(os.path.join(root, n), folder) for n in names if n.endswith(".py")]
    return sorted(found)


def replace(path, content):
    """Write a file if it differs, whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        with open(path, "rb") as old:
            if old.read() == content:
                return
    with open(path + ".tmp", "wb") as out:
        out.write(content)
    os.rename(path + ".tmp", path)


def make_zip(path):
    names = ["fabric_model.py", "callbacks.py"] + [os.path.join("pyedt", n) for n in sources(os.path.join(HERE, "pyedt"))]
    for name in names:
        if os.path.splitext(os.path.basename(name))[0] in FORBIDDEN:
            sys.exit("build_fabric: %s must not be in the zip: it would shadow the user's own" % name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = path + ".making"
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as out:
        for name in names:
            with open(os.path.join(HERE, name), "rb") as source:
                out.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), source.read())
    with open(temporary, "rb") as made:
        content = made.read()
    os.unlink(temporary)
    replace(path, content)
    return content


def copy_cloudpickle(site):
    """The package as this interpreter has it, with its licence beside it where there is one."""
    try:
        import cloudpickle
    except ImportError:
        sys.exit("build_fabric: this Python (%s) has no cloudpickle; run `make setup`, or pip install cloudpickle"
                 % sys.executable)
    package = os.path.dirname(os.path.abspath(cloudpickle.__file__))
    for name in sources(package):
        with open(os.path.join(package, name), "rb") as source:
            replace(os.path.join(site, "cloudpickle", name), source.read())
    return cloudpickle.__version__


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: build_fabric.py OUTDIR LIBSHOAL")
    out, library = sys.argv[1:]
    content = hashlib.blake2b(make_zip(os.path.join(out, "libs", "fabric.zip")), digest_size=8)
    with open(library, "rb") as source:
        binary = source.read()
    replace(os.path.join(out, "native", "libshoal.so"), binary)
    content.update(binary)
    content.update(copy_cloudpickle(os.path.join(out, "site")).encode())
    for name in sources(os.path.join(HERE, "tools")):
        with open(os.path.join(HERE, "tools", name), "rb") as source:
            text = source.read()
        replace(os.path.join(out, "tools", name), text)
        content.update(text)
    replace(os.path.join(out, "build.version"), content.hexdigest().encode() + b"\n")


if __name__ == "__main__":
    main()
