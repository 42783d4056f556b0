"""The manual pages say what the program says: each verb, option, setting, variable and exit code, and nothing else."""

import functools
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"
PAGES = {name: (ROOT / "docs" / "man" / name).read_text() for name in ("shoal.1", "shoal-agent.8")}


def shoal(*words):
    return subprocess.run([str(SHOAL), *words], capture_output=True, text=True, timeout=30)


@functools.cache
def verbs():
    """{"job run": "[-- WORD...]"...} as `shoal help` lists them."""
    text = shoal("help").stdout
    lines = re.findall(r"^  [a-z].*", text[text.index("Commands:\n") + 10:text.index("\n\n`shoal help COMMAND`")], re.M)
    return [re.match(r"  ((?:[a-z]+ ?)+)", line).group(1).strip() for line in lines]


@functools.cache
def help_options(verb):
    """(own, of every command): {"workers": "w"...}"""
    text = shoal("help", *verb.split()).stdout
    own, _, every = text.partition("\nOptions of every command:\n")
    found = []
    for part in (own.partition("\nOptions:\n")[2], every):
        lines = [re.match(r"  (?:-(\w), |    )--([a-z-]+)", line) for line in part.splitlines()]
        found.append({line.group(2): line.group(1) or "" for line in lines if line})
    return found


def sections(page, macro):
    """{heading: text} of one page's .Sh or .Ss parts; what a heading says is cut off at its first macro."""
    parts = re.split(r"^\.%s (.*)$" % macro, PAGES[page], flags=re.M)
    return {parts[i]: re.split(r"^\.S[hs] ", parts[i + 1], flags=re.M)[0] for i in range(1, len(parts), 2)}


def page_options(text):
    return {long: short for short, long in re.findall(r"^\.It (?:Fl (\w) , )?Fl -([a-z-]+)", text, flags=re.M)}


AGENT_OPTIONS = page_options(sections("shoal-agent.8", "Sh")["OPTIONS"])


def test_every_verb_has_a_section_with_its_options():
    commands = {re.match(r"shoal ((?:[a-z]+ ?)+)", heading).group(1).strip(): text
                for heading, text in sections("shoal.1", "Ss").items() if heading.startswith("shoal ")}
    assert sorted(commands) == sorted(verbs())
    for verb, text in commands.items():
        said = page_options(text)
        if verb in ("init", "join", "agent", "doctor"):
            said.update({name: short for name, short in AGENT_OPTIONS.items() if name != "join" or verb != "init"})
        assert said == help_options(verb)[0], verb


def test_help_fits_a_terminal_of_80_columns():
    words = [(), *([group] for group in sorted({verb.split()[0] for verb in verbs()})), *(verb.split() for verb in verbs())]
    wide = [(group, line) for group in words for line in shoal("help", *group).stdout.splitlines() if len(line) > 80]
    assert not wide, "\n".join("shoal help %s: %s" % (" ".join(group), line) for group, line in wide)


def test_options_of_every_command():
    assert page_options(sections("shoal.1", "Ss")["Options of every command"]) == help_options("top")[1]


def test_what_a_reload_puts_in_force_is_the_same_everywhere():
    """The agent, its page, the reference and the manual."""
    said = re.search(r"at_once\[\] = \{ (.*?) \}", (ROOT / "node/agent/agent_service.c").read_text()).group(1)
    names = re.findall(r'"([a-z-]+)"', said)
    page = PAGES["shoal-agent.8"]
    assert re.search(r"^\.Pq Cm (.*)$", page[page.index(".It Dv SIGHUP"):], flags=re.M).group(1).split(" , ") == names
    for text in ("reference/configuration.md", "MANUAL.md"):
        listed = re.search(r"again:((?:[,\s]+(?:and )?`[a-z-]+`)+)\s+are in force at once", (ROOT / "docs" / text).read_text())
        assert listed and re.findall(r"`([a-z-]+)`", listed.group(1)) == names, text


def test_no_word_of_a_page_becomes_an_option():
    """Behind a comma mdoc goes on with the macro before it: "Fl -python , or" prints an option -or."""
    for name, text in PAGES.items():
        wrong = [line for line in text.splitlines() if re.match(r"\.", line) and re.search(r"\bFl -?\S+ [,;:] [a-z]", line)]
        assert not wrong, (name, wrong)


def test_exit_codes():
    line = re.search(r"Exit codes: (.*)\.", shoal("help").stdout, flags=re.S).group(1)
    wanted = re.findall(r"(\d) \w", line.replace("\n", " "))
    assert re.findall(r"^\.It (\d)$", sections("shoal.1", "Sh")["EXIT STATUS"], flags=re.M) == wanted


def test_environment():
    read = set()
    for source in (ROOT / "api").rglob("*.c"):
        read |= set(re.findall(r'getenv\("([A-Z_]+)"\)', source.read_text()))
    page = set()
    for names in re.findall(r"^\.It Ev (.*)$", sections("shoal.1", "Sh")["ENVIRONMENT"], flags=re.M):
        page |= set(names.split(" , "))
    assert page == read


def conf_names():
    source = (ROOT / "node" / "agent" / "agent_conf.c").read_text()
    names = []
    for table in ("text_options[] = {", "number_options[] = {"):
        body = source[source.index(table) + len(table):]
        names += re.findall(r'\{ "([a-z-]+)"', body[:body.index("};")])
    return names


def test_settings_of_agent_conf(tmp_path):
    text = sections("shoal-agent.8", "Ss")["agent.conf"]
    entries = re.split(r"^\.It Cm ([a-z-]+) Ar \w+$", text, flags=re.M)
    page = dict(zip(entries[1::2], entries[2::2]))
    assert sorted(page) == sorted(conf_names())
    for name, entry in page.items():
        assert "Default:" in entry, name
        (tmp_path / "agent.conf").write_text(name + " x y\n")
        bounds = re.search(r"is not a number from (\d+ to \d+)", shoal("doctor", "--data", str(tmp_path)).stdout)
        if bounds:
            assert bounds.group(1) in entry, name
        else:
            assert not re.search(r"\d+ to \d+", entry), name


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_pages_are_well_formed(page):
    path = str(ROOT / "docs" / "man" / page)
    if shutil.which("mandoc"):
        said = subprocess.run(["mandoc", "-Tlint", path], capture_output=True, text=True).stdout
        left = [line for line in said.splitlines() if "referenced manual not found" not in line]
        assert not left
    elif shutil.which("man"):
        done = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, env=dict(os.environ, MANPAGER="cat"))
        assert done.returncode == 0 and not done.stderr
    else:
        pytest.skip("neither mandoc nor man is here")
