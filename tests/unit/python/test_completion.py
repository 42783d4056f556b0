"""Completion for bash, zsh and fish offers what `shoal help` says: each verb, and each verb's options."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from test_manual import help_options, verbs

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"
# What each shell prints for a line whose last word is being completed: a candidate a line.
ASK = {
    "bash": 'source "$1"; shift; compopt() { echo "<files>"; }; for line; do read -ra COMP_WORDS <<<"$line"; '
            '[[ $line == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _shoal; '
            'printf "%s\\n" "${COMPREPLY[@]}" "==="; done',
    "zsh": 'compdef() { }; _files() { print "<files>"; }; _describe() { print -rl -- "${(@P)@[-1]}"; }; file=$1; shift; '
           'for line; do words=("${(@s: :)line}"); CURRENT=$#words; functions[ask]="$(<$file)"; ask; print "==="; done',
    "fish": 'source $argv[1]; for line in $argv[2..-1]; complete -C $line; echo "==="; end',
}


@pytest.fixture(scope="module", params=sorted(ASK))
def complete(request, tmp_path_factory):
    """complete(lines): the candidates of each line, as one shell gives them."""
    shell = request.param
    if not shutil.which(shell):
        pytest.skip("%s is not installed" % shell)
    path = tmp_path_factory.mktemp("completion") / shell
    made = subprocess.run([sys.executable, str(ROOT / "packaging" / "completion.py"), str(SHOAL), shell], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    path.write_text(made.stdout)

    def ask(lines):
        command = {"bash": ["bash", "-c", ASK[shell], "-"], "zsh": ["zsh", "-f", "-c", ASK[shell], "-"], "fish": ["fish", "-N", "-c", ASK[shell]]}
        done = subprocess.run([*command[shell], str(path), *lines], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, HOME=str(path.parent), XDG_CONFIG_HOME=str(path.parent)), cwd=path.parent)
        assert not done.stderr, done.stderr
        answers = [part.split("\n") for part in done.stdout.split("===\n")[:-1]]
        assert len(answers) == len(lines)
        return [{word.split("\t")[0].split(":")[0] for word in answer if word} for answer in answers]

    ask.shell = shell
    return ask


def test_every_verb(complete):
    firsts = {verb.split()[0] for verb in verbs()}
    found, after = complete(["shoal ", "shoal --output json -q "])
    assert found == firsts == after
    two = sorted({verb.split()[0] for verb in verbs() if " " in verb})
    for first, words in zip(two, complete(["shoal %s " % first for first in two])):
        assert words == {verb.split()[1] for verb in verbs() if verb.startswith(first + " ")}, first


def test_every_option(complete):
    for verb, words in zip(verbs(), complete(["shoal %s -" % verb for verb in verbs()])):
        own, every = help_options(verb)
        said = {**own, **every}
        assert words - {"--"} == {"--" + name for name in said} | {"-" + letter for letter in said.values() if letter}, verb


def test_values(complete):
    lines = ["shoal job logs 41z --which ", "shoal job run --framework ", "shoal -o ", "shoal job run --workers "]
    which, framework, output, workers = complete(lines)
    assert {"outerr", "task-launcher"} <= which and len(which) == 9
    assert framework == set(re.findall(r'\.name = "(\w+)"', (ROOT / "api/rest/frameworks.c").read_text())) and output == {"text", "json"} and not workers
    if complete.shell != "fish":  # which lists the files themselves
        assert complete(["shoal job run --model-dir ", "shoal job result 41z "]) == [{"<files>"}, {"<files>"}]


def test_bash_knows_paths_behind_an_equals_sign_and_verbs_behind_help(complete):
    """It parts words at "=", too."""
    if complete.shell != "bash":
        pytest.skip("of bash only")
    lines = ["shoal agent --data = ", "shoal agent --data = x", "shoal service deploy x --package ", "shoal help ", "shoal help job ",
             "shoal -o = json job "]
    equals, begun, package, helped, jobs, after = complete(lines)
    assert equals == begun == package == {"<files>"}
    assert helped == {verb.split()[0] for verb in verbs()}
    assert jobs == after == {verb.split()[1] for verb in verbs() if verb.startswith("job ")}
