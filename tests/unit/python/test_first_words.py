"""What a newcomer types first: half a command, `--help` in every place, no token. Each answer says what to do, once."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"


@pytest.fixture
def shoal(tmp_path):
    def run(*words):
        env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        return subprocess.run([str(SHOAL), *words], capture_output=True, text=True, timeout=20, env={**env, "HOME": str(tmp_path)})

    return run


@pytest.mark.parametrize("words,remedy", [
    ("node remove", "`shoal node list`"), ("service show", "`shoal service list`"), ("service scale", "`shoal service list`"),
    ("service deploy", "`shoal help service deploy`"), ("job show", "`shoal job list`"), ("why", "`shoal job list`"),
])
def test_a_missing_word_is_looked_up_where_it_is_shown(shoal, words, remedy):
    done = shoal(*words.split())
    assert done.returncode == 2 and remedy in done.stderr, done.stderr


@pytest.mark.parametrize("group", ["job", "node", "service", "mesh"])
def test_a_group_has_help_of_its_own_however_it_is_asked(shoal, group):
    asked = [shoal("help", group), shoal(group, "--help"), shoal(group, "-h")]
    assert [done.returncode for done in asked] == [0, 0, 0], asked
    assert asked[0].stdout == asked[1].stdout == asked[2].stdout and asked[0].stdout.startswith("  shoal %s " % group)


@pytest.mark.parametrize("words", ["why x", "job show x", "top", "service list"])
def test_who_has_no_token_is_told_so_once(shoal, words):
    done = shoal(*words.split())
    assert done.returncode == 4 and done.stderr.count("shoal logon USER") == 1, done.stderr
