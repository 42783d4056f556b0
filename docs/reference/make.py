"""Writes the pages of this folder that say what the program says:  make.py SHOAL   (make reference)

    cli.md             from `shoal help`
    configuration.md   from `shoal help agent`, docs/man/shoal-agent.8 and include/shoal/limits.h
    rest.md            from docs/openapi.json
"""

import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MADE = "<!-- made by `make reference`; change the help text, the manual page or the header instead -->\n"
sys.path.insert(0, str(ROOT / "packaging"))

from completion import commands  # noqa: E402


def cell(text):
    return text.replace("|", "\\|")


def option_rows(options):
    lines = ["| option | value | |", "|---|---|---|"]
    for letter, name, value, tells in options:
        lines.append("| `--%s`%s | %s | %s |" % (name, ", `-%s`" % letter if letter else "", value, cell(tells)))
    return lines


def cli(shoal):
    verbs, every = commands(shoal)
    out = ["# Command line", "", MADE, "Every verb works on every node, with the same answer. `shoal(1)` says more about each.", ""]
    out += ["| command | |", "|---|---|"]
    out += ["| `shoal %s` | %s |" % (cell(verb + (" " + arguments if arguments else "")), cell(tells))
            for verb, (arguments, tells, _) in verbs.items()]
    out += ["", "## Options of every command", "", *option_rows(every), ""]
    for verb, (arguments, tells, own) in verbs.items():
        if own and verb not in ("join", "doctor", "init"):
            out += ["## shoal %s" % verb, "", tells + ".", "", *option_rows(own), ""]
        elif own:
            agent = {option[1] for option in verbs["agent"][2]}
            extra = [option for option in own if option[1] not in agent]
            out += ["## shoal %s" % verb, "", tells + ". It takes the options of `shoal agent`%s" % (", and:" if extra else "."), ""]
            out += [*option_rows(extra), ""] if extra else []
    help_text = subprocess.run([shoal, "help"], capture_output=True, text=True, check=True).stdout
    codes = re.search(r"Exit codes: (.*)\.", help_text, flags=re.S).group(1).replace("\n", " ")
    out += ["## Exit codes", "", codes + ".", ""]
    return "\n".join(out)


def settings():
    """{name: what the manual page says of its values} of the page's section on agent.conf."""
    page = (ROOT / "docs" / "man" / "shoal-agent.8").read_text()
    text = page[page.index(".Ss agent.conf"):]
    text = text[:text.index("\n.Sh ")]
    parts = re.split(r"^\.It Cm ([a-z-]+) Ar (\w+)$", text, flags=re.M)
    rows = {}
    for name, value, tells in zip(parts[1::3], parts[2::3], parts[3::3]):
        words = re.sub(r"^\.(?:Cm|Pa) (.*?) ?(\.?)$", lambda m: "`%s`%s" % (m.group(1).replace(" , ", "`, `"), m.group(2)), tells, flags=re.M)
        rows[name] = (value, " ".join(line for line in words.splitlines() if line and not line.startswith(".")).replace("` .", "`."))
    return rows


def at_once():
    """The settings that a reload puts in force, as the page's paragraph on SIGHUP lists them."""
    page = (ROOT / "docs" / "man" / "shoal-agent.8").read_text()
    return re.search(r"^\.Pq Cm (.*)$", page[page.index(".It Dv SIGHUP"):], flags=re.M).group(1).split(" , ")


def sentence(names):
    names = ["`%s`" % name for name in names]
    return ", ".join(names[:-1]) + " and " + names[-1]


def limits():
    """[(names and values, reason)] of include/shoal/limits.h; a comment speaks of the lines behind it."""
    text = (ROOT / "include" / "shoal" / "limits.h").read_text()
    text = re.sub(r"\\\n\s*", " ", text[text.index("\n", text.index("#define SHOAL_S ")):])
    rows, reason, names = [], "", []
    for part in re.findall(r"/\*.*?\*/|^#define [^\n]*(?:\n|$)|^_Static_assert.*?;", text, flags=re.S | re.M):
        if part.startswith("/*"):
            if names:
                rows.append((names, reason))
            reason, names = " ".join(re.sub(r"^ ?\* ?", "", line.strip()) for line in part[2:-2].strip().split("\n")), []
        elif part.startswith("#define"):
            name, value = re.match(r"#define (\w+)\s+(.*?)\s*(?:/\*.*)?$", part.strip()).groups()
            names.append((name, re.sub(r"\b(\d+)(?:u|ull)\b", r"\1", value.strip("() "))))
            note = re.search(r"/\* *(.*?) *\*/", part)
            reason = reason or (note.group(1) if note else "")
    return rows + ([(names, reason)] if names else [])


def configuration(shoal):
    verbs, _ = commands(shoal)
    agent = {name: tells for _, name, _, tells in verbs["agent"][2]}
    out = ["# Configuration", "", MADE,
           "`DATA/agent.conf` has one setting a line: a name, one blank, its value to the line's end. `shoal init` and `shoal join`",
           "write it from the options of the same name; an option that is given to `shoal agent` stands above the file. SIGHUP",
           "(`systemctl reload shoal-agent`) has it read again: %s" % sentence(at_once()),
           "are in force at once, the others take a restart, and the agent's log says which have changed. A name that is not listed",
           "here, or a value beyond its bounds, stops the start, and a reload changes nothing.", "", "| setting | value | | bounds and default |", "|---|---|---|---|"]
    for name, (value, tells) in settings().items():
        out.append("| `%s` | %s | %s | %s |" % (name, value, cell(re.sub(r" \[.*\]", "", agent.get(name, ""))), cell(tells)))
    out += ["", "Variables of the command line: `SHOAL_NODE`, `SHOAL_USER`, `SHOAL_PASSWORD`, `SHOAL_TOKEN_FILE`, `SHOAL_CA`; see `shoal(1)`.",
            "", "## Limits", "",
            "What is not a setting is fixed when Shoal is built, in `include/shoal/limits.h`. What happens at a limit is said where it is",
            "used: refused, dropped and counted, or pushed back. Times are nanoseconds where a name ends in `_NS`.", "",
            "| limit | value | why |", "|---|---|---|"]
    for names, reason in limits():
        for i, (name, value) in enumerate(names):
            out.append("| `%s` | `%s` | %s |" % (name, cell(value), cell(reason) if i == 0 else "the same"))
    return "\n".join(out) + "\n"


def resolve(doc, node):
    while "$ref" in node:
        part = doc
        for key in node["$ref"].lstrip("#/").split("/"):
            part = part[key]
        node = part
    return node


def rest(_):
    doc = json.loads((ROOT / "docs" / "openapi.json").read_text())
    out = ["# Addresses of the API", "", MADE, "Every node answers each of them alike. How the API is used is in `API.md`; shapes and error texts are in",
           "`openapi.json`. Every address may also answer 401 (who asks?) and 503 (no majority, or busy: try again).", ""]
    groups = {}
    for path, methods in doc["paths"].items():
        prefix = next((p for p in ("/platform/rest/deeplearning/v1", "/v1") if path.startswith(p + "/")), "")
        groups.setdefault(prefix, []).append((path, methods))
    for prefix, paths in groups.items():
        out += ["## %s" % ("Below `%s`" % prefix if prefix else "At the root"), "", "| request | | parameters | answers |", "|---|---|---|---|"]
        for path, methods in paths:
            for method, operation in methods.items():
                parameters = [resolve(doc, p) for p in operation.get("parameters", ())]
                codes = [code for code in operation["responses"] if code not in ("401", "503", "default")]
                out.append("| `%s %s` | %s | %s | %s |" % (
                    method.upper(), path[len(prefix):], cell(operation.get("summary", "")),
                    ", ".join("`%s`" % p["name"] for p in parameters if p["in"] != "path"), ", ".join(codes)))
        out.append("")
    return "\n".join(out)


PAGES = {"cli.md": cli, "configuration.md": configuration, "rest.md": rest}


def main():
    for name, make in PAGES.items():
        (HERE / name).write_text(make(sys.argv[1]))


if __name__ == "__main__":
    main()
