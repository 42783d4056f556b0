"""Lay out the fabric home:  build_fabric.py OUTDIR LIBSHOAL [LIBWARM]

    OUTDIR/libs/fabric.zip       fabric_model, callbacks, pyedt; redhareapi, which kernels of services import
    OUTDIR/native/libshoal.so    zips hold no libraries
    OUTDIR/native/libshoal.so.0  the same, by the name that programs in C are linked to
    OUTDIR/native/warm.py        a warm interpreter, and libshoal-warm.so, which it loads
    OUTDIR/native/warm_engine.py what it becomes as an engine server
    OUTDIR/site/cloudpickle      from this interpreter's environment; last on the path of a job
    OUTDIR/site/msgpack          the same; without its compiled part, which belongs to one version of Python
    OUTDIR/tools                 emetrics, elog: on the path, never in the zip, where they would shadow the user's own
    OUTDIR/build.version         a hash of all of it

Files change only if their content does, and by rename: jobs that run go on with what they loaded. Equal sources give equal
bytes."""

import hashlib
import importlib
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
    names = ["fabric_model.py", "callbacks.py", "redhareapi.py", "redhareapiversion.py"] + [os.path.join("pyedt", n) for n in sources(os.path.join(HERE, "pyedt"))]
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


def copy_package(name, site):
    """The package's Python files as this interpreter has them, and its version."""
    try:
        package = importlib.import_module(name)
    except ImportError:
        sys.exit("build_fabric: this Python (%s) has no %s; run `make setup`, or pip install %s" % (sys.executable, name, name))
    folder = os.path.dirname(os.path.abspath(package.__file__))
    for file in sources(folder):
        with open(os.path.join(folder, file), "rb") as source:
            replace(os.path.join(site, name, file), source.read())
    return str(getattr(package, "__version__", None) or package.version)


SONAME = "libshoal.so.0"  # as in the Makefile


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: build_fabric.py OUTDIR LIBSHOAL [LIBWARM]")
    out, library = sys.argv[1:3]
    content = hashlib.blake2b(make_zip(os.path.join(out, "libs", "fabric.zip")), digest_size=8)
    natives = [("libshoal.so", library), *((name, os.path.join(HERE, "native", name)) for name in ("warm.py", "warm_engine.py"))]
    natives += [("libshoal-warm.so", warm) for warm in sys.argv[3:]]
    for name, path in natives:
        with open(path, "rb") as source:
            binary = source.read()
        replace(os.path.join(out, "native", name), binary)
        content.update(binary)
    if not os.path.islink(os.path.join(out, "native", SONAME)):
        os.symlink("libshoal.so", os.path.join(out, "native", SONAME))
    for name in ("cloudpickle", "msgpack"):
        content.update(copy_package(name, os.path.join(out, "site")).encode())
    for name in sources(os.path.join(HERE, "tools")):
        with open(os.path.join(HERE, "tools", name), "rb") as source:
            text = source.read()
        replace(os.path.join(out, "tools", name), text)
        content.update(text)
    replace(os.path.join(out, "build.version"), content.hexdigest().encode() + b"\n")


if __name__ == "__main__":
    main()
