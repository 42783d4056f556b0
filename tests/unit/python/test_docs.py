"""The documents are whole: each page is in the index, each path that a page names is there, and the references name
everything that there is. What is generated is as `make reference` makes it."""

import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from test_manual import conf_names, help_options, verbs

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("*/*.md"), ROOT / "README.md"])


def paths_in(page):
    """Links, and words in backticks that look like a path to a document or a source of ours."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    found = re.findall(r"\]\(([^)#:]+)\)", text)
    found += [word for word in re.findall(r"`([\w./-]+\.(?:md|c|h|py|json))`", text) if "/" in word]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there(page):
    folders = (page.parent, ROOT, DOCS)
    gone = [path for path in paths_in(page) if not any((folder / path).exists() for folder in folders)
            and path.split("/")[0] in ("docs", "api", "node", "sched", "gossip", "collective", "include", "sim", "tests", "..", ".",
                                       "tutorial", "how-to", "reference", "explanation", "decisions")]
    assert not gone


def test_every_page_is_in_the_index():
    index = set(paths_in(DOCS / "README.md"))
    pages = {str(page.relative_to(DOCS)) for kind in (".", "tutorial", "how-to", "reference", "explanation") for page in (DOCS / kind).glob("*.md")}
    assert pages - {"README.md"} <= index


def test_every_argument_and_callback_of_fabric_model_is_in_its_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "collective" / "python"))
    monkeypatch.setenv("FABRIC_BACKEND", "pytorch")
    from pyedt import callbacks, fabric_model

    page = (DOCS / "reference" / "fabric-model.md").read_text()
    tables = page.split("\n## ")
    parts = {part.split("\n")[0]: part for part in tables}
    wanted = {"The constructor": inspect.signature(fabric_model.FabricModel.__init__).parameters,
              "train()": inspect.signature(fabric_model.FabricModel.train).parameters}
    for part, names in wanted.items():
        rows = "\n".join(line.split("|")[1] for line in parts[part].splitlines() if line.startswith("| `"))
        said = set(re.findall(r"`(\w+)`", rows))
        assert said == set(names) - {"self", "unknown"}, part
    for base in (callbacks.Callback, callbacks.LoggerCallback):
        said = set(re.findall(r"`(\w+)[(`]", "\n".join(line.split("|")[1] for line in parts[base.__name__].splitlines() if line.startswith("| `"))))
        assert said == {name for name in vars(base) if not name.startswith("_") and callable(getattr(base, name))}, base.__name__
    defaults = {name: p.default for name, p in wanted["train()"].items() if p.default is not inspect.Parameter.empty and p.default is not None}
    for name, default in defaults.items():
        assert re.search(r"^\| `%s` \| %s \|" % (name, default), page, flags=re.M), name


def blocks(page, *kinds):
    return [body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.S | re.M) if kind in kinds]


@pytest.mark.parametrize("page", ["c-workers.md", "kernels.md"])
def test_what_a_page_builds_is_built_as_it_is_typed(page, tmp_path):
    """In the source tree: here a folder of the same look, which may be written to."""
    for name in ("docs", "include"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "release").symlink_to(pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")).resolve())
    if page == "kernels.md":
        (tmp_path / "kernel.c").write_text(blocks(DOCS / "how-to" / page, "c")[0])
    typed = next(block for block in blocks(DOCS / "how-to" / page, "", "sh") if re.search(r"^cc ", block, flags=re.M))
    typed = "".join(line for line in typed.splitlines(keepends=True) if not line.startswith("shoal "))  # these want a mesh
    env = {name: value for name, value in os.environ.items() if name not in ("RESULT_DIR", "DLI_IS_DRIVER")}  # of other tests
    done = subprocess.run(["sh", "-euc", typed], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    made = "my_model/fit"
    if page == "kernels.md":
        made = "upper/" + json.loads((tmp_path / "upper" / "model.json").read_text())["kernel_path"]
    assert (tmp_path / made).is_file()


def test_the_script_that_a_page_moves_from_ddp_trains(tmp_path):
    home = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")).resolve() / "fabric"
    (script,) = [block for block in blocks(DOCS / "how-to" / "your-own-script.md", "python") if "was: DDP" in block]
    env = {name: value for name, value in os.environ.items() if name not in ("RESULT_DIR", "DLI_IS_DRIVER")}  # of other tests
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**env, "FABRIC_HOME": str(home), "RESULT_DIR": str(tmp_path),
                               "PYTHONPATH": ":".join(str(home / part) for part in ("tools", "libs/fabric.zip", "site"))})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "train" / "model_epoch_final.pth").is_file(), list(tmp_path.rglob("*"))


def test_every_request_that_a_page_shows_has_what_nodes_ask_for():
    for page in PAGES:
        text = blocks(page, "", "sh")
        assert not any(re.search(r"^ask ", block, flags=re.M) for block in text) or any("\nask() { curl " in block for block in text)
        for block in text:
            for line in block.replace("\\\n", " ").splitlines():
                assert "curl " not in line or ("--cacert" in line and "Authorization" in line), "%s: %s" % (page.name, line)


# ---- the references that are made: `make reference` ----

REMEDY = "run `make reference`, and commit what it writes"


def reference(name):
    return (DOCS / "reference" / name).read_text()


def test_every_verb_and_option_is_in_the_reference():
    parts = re.split(r"^## ", reference("cli.md"), flags=re.M)
    said = {part.split("\n")[0].removeprefix("shoal "): set(re.findall(r"^\| `--([a-z-]+)`", part, flags=re.M)) for part in parts}
    table = set(re.findall(r"^\| `shoal ((?:[a-z]+ ?)+)", parts[0], flags=re.M))
    assert {verb.strip() for verb in table} == set(verbs()), REMEDY
    agent = set(help_options("agent")[0])
    for verb in verbs():
        wanted = set(help_options(verb)[0])
        assert said.get(verb, set()) == (wanted - agent if verb in ("init", "join", "doctor") else wanted), "%s: %s" % (verb, REMEDY)
    assert said["Options of every command"] == set(help_options("top")[1]), REMEDY


def test_every_setting_and_limit_is_in_the_reference():
    settings, _, limits = reference("configuration.md").partition("## Limits")
    assert re.findall(r"^\| `([a-z-]+)`", settings, flags=re.M) and set(re.findall(r"^\| `([a-z-]+)`", settings, flags=re.M)) == set(conf_names()), REMEDY
    header = (ROOT / "include" / "shoal" / "limits.h").read_text()
    named = set(re.findall(r"^#define (SHOAL_\w+) ", header, flags=re.M)) - {"SHOAL_KIB", "SHOAL_MIB", "SHOAL_MS", "SHOAL_S", "SHOAL_LIMITS_H"}
    assert set(re.findall(r"^\| `(SHOAL_\w+)`", limits, flags=re.M)) == named, REMEDY
    reasons = re.findall(r"^\| `(SHOAL_\w+)` \| .* \| (.*) \|$", limits, flags=re.M)
    assert len(reasons) == len(named) and not [name for name, reason in reasons if not reason]


def test_every_address_is_in_the_reference():
    said, prefix = set(), ""
    for line in reference("rest.md").splitlines():
        head = re.match(r"## (?:Below `(.*)`|At the root)", line)
        prefix = (head.group(1) or "") if head else prefix
        row = re.match(r"\| `([A-Z]+) (\S+)` \|", line)
        said |= {(row.group(1), prefix + row.group(2))} if row else set()
    document = json.loads((DOCS / "openapi.json").read_text())
    assert said == {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}, REMEDY


def test_every_family_of_metrics_is_in_the_reference():
    """With a word on what it means; a counter's name ends in _total."""
    served = set()
    for folder in ("api", "node"):
        for source in (ROOT / folder).rglob("*.c"):
            served |= set(re.findall(r'"(shoal_[a-z0-9_]+)[ {"]', source.read_text()))
    rows = re.findall(r"^\| `(shoal_\w+)` \| (\w+) \| (.+) \|$", reference("metrics.md"), flags=re.M)
    assert {name for name, _, _ in rows} == served, "docs/reference/metrics.md has a row for each family"
    assert not [name for name, kind, _ in rows if (kind == "counter") != name.endswith("_total") and kind != "histogram"]
