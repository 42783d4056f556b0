"""The rules of the tree that a program can check: what core objects import, what names they export, which room includes
which, where a `default:` stands, who sleeps, how long functions are, what durations are called, how much is asserted.

Each rule has a table of what is allowed today. Such a table may only shrink: a new entry needs a reason beside it."""

import collections
import importlib.util
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
OUT = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release"))
FOLDERS = ("api", "collective", "gossip", "include", "node", "sched", "sim")
CORES = ("gossip", "sched")
LINES_MAX = 70
FILE_LINES_MAX = 1000

# ---- What is allowed ---------------------------------------------------------------------------------------------------

# What a core may take from outside: memory and strings, the message of an assertion, what the compiler itself adds.
PURE = set("""memcpy memmove memset memcmp memchr strlen strnlen strcmp strncmp strchr strrchr strspn strcspn strstr
    snprintf vsnprintf qsort bsearch abort fprintf stderr _GLOBAL_OFFSET_TABLE_ __stack_chk_fail __popcountdi2
    __divti3 __udivti3 __modti3 __umodti3 __memcpy_chk __memset_chk __snprintf_chk __vsnprintf_chk __fprintf_chk __errno_location""".split())
ALLOCATION = {"malloc", "calloc", "realloc", "free"}
# Rooms whose files may allocate: when something is made or admitted, never within a step (docs/ARCHITECTURE.md, Memory).
ALLOCATING_FILES = 26

# The first words of the names that a room exports, beside shoal_: its own name, and those of its files in the shells
# (node/link/peer_call_uv.c exports peer_). Here are the others.
PREFIXES = {
    "gossip": {"swim", "gossip"},
    "sched/raft": {"raft", "support"},
    "sched/job": {"job"},
    "sched/lead": {"lead"},
    "sched/host": {"slots"},
    "sched/node": {"sched"},
    "sim": {"sim"},
    "node": {"main"},
    "node/blob": {"blob", "blobs", "chunk", "hold", "request"},
    "node/link": {"link", "peer", "conn"},
    "node/runner": {"runner", "workers", "spawn", "spawner", "deaths", "child", "PyInit"},  # the last: what Python looks for
    "node/agent": {"agent", "archive", "membership"},
    "node/backend": {"backend", "list", "agent"},
    "api/rest": {"args", "http", "job", "oip", "package", "proto", "page", "result", "routes", "service", "submit"},
    "api/http": {"arena", "auth", "grpc", "http", "http1", "http2", "json", "multipart", "tls", "token"},
    "collective/comm": {"agent", "comm", "epoch", "exchange", "fabric", "op", "record", "records", "solo", "step", "wait"},
    "collective/device": {"cuda", "device", "nccl"},
    "collective/memory": {"arena", "fault", "kernels", "tree"},
    "collective/transport": {"transport", "seal", "tcp"},
    "node/store": {"store", "writer", "index"},
    "node/serve": {"serve", "kernel"},
}

# Arrows between folders: who includes a header of another room by its path. None of them may be turned round.
ARROWS = {
    ("api/cli", "api/http"), ("api/rest", "api/http"),
    ("collective/comm", "collective/device"), ("collective/comm", "collective/memory"), ("collective/comm", "collective/transport"),
    ("node", "node/agent"), ("node", "node/runner"), ("node/agent", "node/link"), ("node/agent", "node/runner"), ("node/backend", "node/agent"),
    ("node/blob", "node"), ("node/identity", "node"), ("node/link", "node"), ("node/store", "node"),
    ("node/agent", "node/blob"), ("node/agent", "node/serve"), ("node/agent", "node/store"), ("node/blob", "node/store"),
    ("sched/lead", "sched/job"), ("sched/host", "sched/job"), ("sched/host", "sched/lead"),
}

# `default:` where a switch is over foreign bytes, characters or another library's numbers. Elsewhere the compiler is to
# name every switch that a new value breaks.
DEFAULTS = {
    "api/cli/cli_http_curl.c": 2,  # curl's codes, HTTP's
    "api/http/http1_parser.c": 2,  # characters
    "api/http/http_request.c": 1,  # HTTP's codes
    "api/http/json_writer.c": 1,  # characters
    "api/http/json_to_pack.c": 1,  # characters
    "api/http/multipart.c": 1,  # characters
    "api/rest/bundle_archive.c": 1,  # libarchive's types
    "gossip/swim.c": 1,  # the kind of a statement off the wire
    "node/agent/agent_control.c": 1,
    "node/agent/agent_workers.c": 1,  # a worker's message
    "node/runner/spawn_helper.c": 1,  # what fork() returns
    "node/store/cache_lmdb.c": 1,  # LMDB's codes
    "sched/node/sched_archive_ask.c": 1,
    "sim/sim.c": 1, "sim/sim_host.c": 1, "sim/sim_script.c": 2, "sim/sim_worker.c": 1,
}

# A library's headers, and the suffix of the files that may include them: `ls` shows where a library can leak.
SUFFIXES = {
    "uv": "uv", "lmdb": "lmdb", "msgpack": "msgpack", "jansson": "jansson", "sodium": "sodium", "curl": "curl", "curses": "ncurses",
    "archive": "archive", "archive_entry": "archive", "zlib": "zlib", "openssl": "openssl", "http_parser": "parser", "nghttp2": "nghttp2", "ucp": "ucx", "ucs": "ucx",
}
# More than one library in a file: what the second one does there.
SECOND = {
    "api/rest/bundle_archive.c": {"sodium"},  # hashes what it reads
    "api/rest/submit_uv.c": {"sodium"},  # hashes and base64 of one request
    "node/agent/agent.h": {"uv"},  # the agent is one loop
    "node/link/datagram_uv.c": {"sodium"},  # seals what it sends
    "node/store/store_write_lmdb.c": {"uv"},  # uv_hrtime
}

# Functions over the length, each with its reason.
LONG = {"w_told", "w_advance", "w_worker_event"}  # the host that tests play: a case for each order

# Files over the length: one duty each that has many parts.
LONG_FILES = {
    "sim/sim_script.c",  # the language of scripts
    "node/serve/serve_host_uv.c",  # the queues and kernels of one host
}

# Tests that wait for a time instead of an event. Text that a test gives to others to run is not counted.
SLEEPS = {
    "tests/unit/runner_test.c": 1, "tests/unit/python/test_engine_server.py": 1,
    "tests/system/comm_harness.c": 2, "tests/system/disk_shim.c": 1, "tests/system/cworker.c": 1, "tests/system/training.py": 2,
    "tests/system/test_jobs.py": 1, "tests/system/test_engines.py": 1, "tests/system/test_http_api.py": 2, "tests/system/test_http2.py": 1,
    "tests/system/preload/slow_logs.c": 1,
}

# Files that are opened as they are: none that a job can touch, but for those of a process of its own. Everything in jobs/ and
# results/ goes through shoal/below.h, shoal_disk_read_below() or tree_disk.c: a pipe that a job lays there stops a thread.
OPENS = {
    "node/agent/agent.c": 3,  # the boot, the operator's secret, the order of a recovery
    "node/agent/agent_blob_store.c": 1,  # a descriptor of ours
    "node/agent/agent_conf.c": 1, "node/agent/agent_settings.c": 2, "node/agent/agent_fault.c": 1,  # the operator's
    "node/agent/agent_control.c": 2, "node/agent/agent_copy.c": 1, "node/agent/agent_doctor.c": 1, "node/agent/agent_drain.c": 1,  # of the data folder
    "node/backend/agent_peers.c": 1,  # of the data folder
    "node/agent/agent_jobs.c": 1,  # results/ itself
    "node/blob/below.c": 1,  # it looks at what it has opened
    "node/blob/blob_disk.c": 8,  # blobs/
    "node/runner/ended.c": 3, "node/runner/leftovers.c": 1, "node/runner/runner_peer.c": 1, "node/runner/spawn_helper.c": 1, "node/runner/warm_start.c": 1,  # /proc
    "node/runner/runner_child.c": 5, "node/runner/runner_log.c": 1, "node/runner/runner_start.c": 2, "node/runner/warm_python.c": 4,  # the job's own runner
    "node/runner/workers_uv.c": 2,  # slots/, jobs/ itself
}
# With these flags nothing is waited for, and nothing is followed.
OPENS_NOTHING = r"O_NOFOLLOW[^;]*(?:O_DIRECTORY|O_PATH)|(?:O_DIRECTORY|O_PATH)[^;]*O_NOFOLLOW"

# The least assertions a function, in hundredths, that a room of a core may have.
ASSERTIONS = {
    "gossip": 105, "sched/raft": 115, "sched/share": 120, "sched/host": 100, "sched/lead": 100, "sched/job": 100,
    "sched/node": 100,
}

# ---- Reading the tree --------------------------------------------------------------------------------------------------


def sources(*folders, kinds=(".c", ".h")):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds)


def name_of(path):
    return str(path.relative_to(ROOT))


def room_of(path):
    return str(path.parent.relative_to(ROOT))


def without_comments(text):
    """The same text, the same lines, comments blank. Strings stay: no C string of ours holds a comment's start."""
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def functions(path):
    """(name, first line, lines, body) of each function; the formatter puts the braces of a function into column 0."""
    found, head, lines = [], None, without_comments(path.read_text()).split("\n")
    for number, line in enumerate(lines):
        if re.match(r"[A-Za-z_].*\b\w+\(", line) and not line.startswith(("#", "typedef", "_Static_assert")):
            head = number
            one = re.match(r"[^{;=]*?\b(\w+)\([^{;]*\)\s*\{.*\}\s*$", line)
            if one:
                found.append((one.group(1), number + 1, 1, line))
        elif line == "{" and head is not None:
            end = next((i for i in range(number, len(lines)) if lines[i].startswith("}")), len(lines) - 1)
            names = re.findall(r"(\w+)\(", "\n".join(lines[head:number]).replace("__attribute__", ""))
            names = [n for n in names if n not in ("format", "unused", "noreturn")]
            found.append((names[0] if names else "?", head + 1, end - head + 1, "\n".join(lines[number:end])))
            head = None
    return found


def counts(pattern, paths, text_of=lambda path: without_comments(path.read_text())):
    found = {name_of(path): len(re.findall(pattern, text_of(path), re.M)) for path in paths}
    return {name: count for name, count in found.items() if count}


def over(found, allowed):
    return ["%s: %d, allowed %d" % (name, count, allowed.get(name, 0)) for name, count in sorted(found.items())
            if count > allowed.get(name, 0)]


def nm(path, *options):
    done = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines() if line.strip() and not line.endswith(":")}


@pytest.fixture(scope="module")
def objects():
    """Room to its objects, of the sources that are there now: an object of a file that was moved stays behind."""
    rooms = collections.defaultdict(list)
    for source in sources(*FOLDERS, kinds=(".c",)):
        built = OUT / source.relative_to(ROOT).with_suffix(".o")
        if built.exists():
            rooms[room_of(source)].append(built)
    if not rooms:
        pytest.skip("nothing is built in %s" % OUT)
    return rooms


# ---- The rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", CORES)
def test_core_objects_import_nothing_impure(objects, core):
    own = [built for room, list_of in objects.items() if room.split("/")[0] == core for built in list_of]
    defined = set().union(*(nm(built, "-g", "--defined-only") for built in own))
    impure, allocating = [], []
    for built in own:
        taken = nm(built, "-u") - PURE - defined
        if taken & ALLOCATION:
            allocating.append(built.name)
        impure += ["%s: %s" % (built.relative_to(OUT), name) for name in sorted(taken - ALLOCATION)]
    assert not impure, "a core takes time, chance and the world as arguments:\n" + "\n".join(impure)
    assert len(allocating) <= ALLOCATING_FILES, "more files allocate: " + " ".join(sorted(allocating))


def test_exported_names_have_their_rooms_prefix(objects):
    wrong = []
    for room, list_of in sorted(objects.items()):
        for built in list_of:
            allowed = PREFIXES.get(room, {room.split("/")[-1]}) | {"shoal"}
            if room.split("/")[0] not in (*CORES, "sim"):
                allowed |= {built.stem.split("_")[0]}
            wrong += ["%s: %s" % (built.relative_to(OUT), name) for name in sorted(nm(built, "-g", "--defined-only"))
                      if name.split("_")[0] not in allowed]
    assert not wrong, "static, or the prefix of its room (PREFIXES):\n" + "\n".join(wrong)


def test_arrows_between_rooms_are_known_and_run_one_way():
    arrows = collections.defaultdict(list)
    for path in sources(*FOLDERS):
        for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            assert ".." not in included, "%s includes %s: by its path from the root" % (name_of(path), included)
            if "/" in included and not included.startswith("shoal/"):
                arrows[room_of(path), str(pathlib.Path(included).parent)].append("%s: %s" % (name_of(path), included))
    new = ["%s -> %s (%s)" % (*arrow, users[0]) for arrow, users in sorted(arrows.items()) if arrow not in ARROWS]
    assert not new, "an arrow that ARROWS does not know:\n" + "\n".join(new)
    back = {frozenset(arrow) for arrow in arrows if (arrow[1], arrow[0]) in arrows}
    assert not back, "arrows that run both ways: %s" % [sorted(pair) for pair in back]
    siblings = [arrow for arrow in arrows if arrow[0].split("/")[0] != arrow[1].split("/")[0]]
    assert not siblings, "parts meet in include/shoal only: %s" % siblings
    print("\n%d arrows between rooms" % len(arrows))


def test_a_library_is_included_in_files_of_its_suffix():
    wrong = []
    for path in sources(*FOLDERS):
        for header in re.findall(r"^#include <(\w+)[/.]", path.read_text(), re.M):
            suffix = SUFFIXES.get(header)
            if suffix and not path.stem.endswith("_" + suffix) and header not in SECOND.get(name_of(path), ()):
                wrong.append("%s: <%s>" % (name_of(path), header))
    assert not wrong, "one library, one suffix (SUFFIXES):\n" + "\n".join(wrong)


def test_an_enum_is_switched_without_a_default():
    wrong = over(counts(r"^\s*default:", sources(*FOLDERS)), DEFAULTS)
    assert not wrong, "name the values, or add the file to DEFAULTS with its reason:\n" + "\n".join(wrong)


def nested_conditions(text):
    """The lines on which a ?: stands within another one. A column of them, a case a line, is a table, and counts not."""
    blank = re.sub(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", "0", without_comments(text))
    lines, line, asked = [], 1, [set()]
    for c in blank:
        if c == "\n":
            line += 1
        elif c in "([":
            asked.append(set(asked[-1]))
        elif c in ")]" and len(asked) > 1:
            asked.pop()
        elif c in ";{}":
            asked = [set()]
        elif c == ",":
            asked[-1] = set(asked[-2]) if len(asked) > 1 else set()
        elif c == "?":
            if line in asked[-1]:
                lines.append(line)
            asked[-1].add(line)
    return lines


def test_no_condition_stands_within_another_on_a_line():
    wrong = ["%s:%d" % (name_of(path), line) for path in sources(*FOLDERS) for line in nested_conditions(path.read_text())]
    assert not wrong, "an if, or a case a line:\n" + "\n".join(wrong)
    assert nested_conditions("a = b ? c : d ? e : f;\n(b ? c : d) + (e ? f : g);\nx(b ? 1 : 2, c ? 1 : 2);") == [1]


def test_no_test_waits_for_a_time():
    def python(path):
        return re.sub(r"\"\"\".*?\"\"\"|\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*", "", path.read_text(), flags=re.S)

    here = [path for path in sources("tests", "sim", kinds=(".c", ".h")) if "bench" not in path.parts]
    found = counts(r"\b(?:sleep|usleep|nanosleep)\s*\(", here)
    scripts = [path for path in sources("tests", kinds=(".py",)) if "bench" not in path.parts]
    found.update(counts(r"\btime\.sleep\s*\(", scripts, python))
    wrong = over(found, SLEEPS)
    assert not wrong, "wait for the event, not for a time (SLEEPS):\n" + "\n".join(wrong)


def test_a_timer_that_starts_itself_again_leaves_the_turn():
    """libuv 1.44 runs a timer of no time that a timer has started in the same turn, again and again."""
    wrong = [(name, name_of(path)) for path in sources("node", "api", kinds=(".c",)) for name, _, _, body in functions(path)
             if re.search(r"uv_timer_start\([^;]*\b%s, 0, 0\)" % re.escape(name), body)]
    assert not wrong, "give it a millisecond: %s" % wrong


def test_what_a_job_can_touch_is_opened_by_whoever_looks_first():
    found = collections.Counter()
    for path in sources("node/agent", "node/backend", "node/blob", "node/runner", "node/serve", kinds=(".c",)):
        calls = re.findall(r"(?<![\w.>])(?:open|fopen|opendir|shoal_disk_read)\([^;]*;", without_comments(path.read_text()))
        found[name_of(path)] = sum(re.search(OPENS_NOTHING, call) is None for call in calls)
    wrong = over({name: count for name, count in found.items() if count}, OPENS)
    assert not wrong, "shoal_open_below(), shoal_disk_read_below(), or OPENS with its reason:\n" + "\n".join(wrong)


def test_no_program_that_is_started_gets_a_copy_of_a_descriptor():
    """What dup() makes is handed to every program that a thread starts meanwhile: an interpreter that waits would keep it."""
    wrong = over(counts(r"(?<![\w.>])dup\(", sources(*FOLDERS, kinds=(".c",))), {})
    assert not wrong, "fcntl(fd, F_DUPFD_CLOEXEC, 0):\n" + "\n".join(wrong)


def test_a_function_fits_a_screen():
    lengths = [(lines, name, name_of(path)) for path in sources(*FOLDERS, "tests") for name, _, lines, _ in functions(path)]
    long = sorted(one for one in lengths if one[0] > LINES_MAX and one[1] not in LONG)
    assert not long, "over %d lines: %s" % (LINES_MAX, long)
    print("\n%d functions, %.1f %% up to 40 lines" % (len(lengths), 100 * sum(n <= 40 for n, _, _ in lengths) / len(lengths)))


def test_a_file_has_one_duty_and_no_more_lines_than_that_takes():
    long = {name_of(path): len(path.read_text().split("\n")) for path in sources(*FOLDERS)}
    long = {name: lines for name, lines in long.items() if lines > FILE_LINES_MAX and name not in LONG_FILES}
    assert not long, "over %d lines: move one of its duties out (LONG_FILES): %s" % (FILE_LINES_MAX, long)


def test_a_time_says_its_unit():
    word = r"timeout|interval|delay|period|deadline|lag|wait|until|after"
    field = r"^ {4,}(?:u?int(?:32|64)_t|size_t) (?:\w+, )*\w*(?:%s)(?:, \w+)*;|^ {4,}uint64_t \w+_at;" % word
    found = collections.Counter()
    for name, count in counts(field, sources("gossip", "sched", "include", kinds=(".h", ".c"))).items():
        found[str(pathlib.Path(name).parent)] += count
    assert not found, "a field that holds a time ends in its unit: %s" % dict(found)


def test_cores_assert_what_they_rely_on():
    rooms = collections.defaultdict(lambda: [0, 0])
    for path in sources(*CORES, kinds=(".c",)):
        room = rooms[room_of(path)]
        for _, _, _, body in functions(path):
            room[0] += 1
            room[1] += len(re.findall(r"\bSHOAL_ASSERT\(", body))
    print()
    for room, (count, asserted) in sorted(rooms.items()):
        print("%-14s %4d functions, %4d assertions, %.2f a function" % (room, count, asserted, asserted / max(count, 1)))
    low = ["%s: %.2f" % (room, rooms[room][1] / rooms[room][0]) for room, least in ASSERTIONS.items()
           if room in rooms and rooms[room][1] * 100 < least * rooms[room][0]]
    assert not low, "fewer assertions a function than ASSERTIONS asks for: " + ", ".join(low)


# The last words of functions that do something: their result is kept, then asserted.
DOING = """append encode body create init update final join keypair detached encrypt base curve25519 blake2b hmacsha256
    reserve push remove add set start stop step move take""".split()


def test_an_assertion_has_no_side_effect():
    wrong = []
    for path in sources(*FOLDERS):
        for fact in re.findall(r"SHOAL_ASSERT\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)", without_comments(path.read_text())):
            if re.search(r"\+\+|--|(?<![=!<>])=(?!=)|\b(?!is_|has_)\w+_(?:%s)\(" % "|".join(DOING), fact):
                wrong.append("%s: %s" % (name_of(path), fact))
    assert not wrong, "an assertion only looks:\n" + "\n".join(wrong)


def test_files_that_documents_name_are_there():
    here = [name_of(path) for path in ROOT.rglob("*.*") if not {"build", ".git", ".venv"} & set(path.relative_to(ROOT).parts[:1])]
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for name in re.findall(r"`([\w/.-]+\.(?:c|h|py|md|json))`", page.read_text()):
            if not any(path == name or path.endswith("/" + name) for path in here):
                wrong.append("%s: %s" % (name_of(page), name))
    assert not wrong, "no such file:\n" + "\n".join(wrong)


def test_sections_of_the_protocols_that_are_named_are_there():
    """"PROTOCOLS 7 and 12" in a comment, a test or a document: both are headings of that page."""
    there = set(re.findall(r"^## (\d+)\. ", (ROOT / "docs" / "PROTOCOLS.md").read_text(), re.M))
    pages = [*sources(*FOLDERS, "tests", kinds=(".c", ".h", ".py")), ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {(name_of(page), number) for page in pages
             for cited in re.findall(r"PROTOCOLS,?(?: sections?)? (\d+(?:(?:,| and) \d+)*)", page.read_text())
             for number in re.findall(r"\d+", cited)}
    assert len(named) > 50, "the pattern finds few: %d" % len(named)
    assert not {one for one in named if one[1] not in there}, "no such section of docs/PROTOCOLS.md"


def test_a_decision_says_what_was_asked_chosen_refused_and_what_would_change_it():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    parts = ("**Question.**", "**Choice.**", "**Refused.**", "**What would change it.**")
    wrong = ["%s: no %s" % (page.name, part) for page in pages for part in parts if part not in page.read_text()]
    assert not wrong, "\n".join(wrong)
    numbers = [page.name[:4] for page in pages]  # a gap is a decision that is being written elsewhere
    assert len(set(numbers)) == len(numbers), "each number once"


def test_what_a_planted_fault_changes_stands_in_the_tree_once():
    """Else `make mutants` plants nothing there, and its score is that of another tree."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests" / "mutants" / "run.py")
    mutants = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutants)
    wrong, count = [], 0
    for name, _, file, pairs in mutants.read_mutants():
        text = (ROOT / file).read_text()
        try:
            same = mutants.planted(text, pairs) == text
        except LookupError as error:
            wrong.append("%s, %s: %s" % (name, file, error))
            continue
        count += 1
        if same:
            wrong.append("%s changes nothing" % name)
    assert not wrong, "\n".join(wrong)
    assert count > 250, "the list is read: %d" % count


def test_the_reader_of_functions_reads_functions(tmp_path):
    """The rules above are worth what their reader is worth."""
    sample = tmp_path / "sample.c"
    sample.write_text("/* int not_this(void)\n{\n} */\nint one(int a) { return a; }\n\nstatic int two(int a,\n"
                      "               int b)\n{\n    if (a)\n        SHOAL_ASSERT(b > 0);\n    return a;\n}\n"
                      "int only_declared(void);\nstatic const int table[] = {\n    1,\n};\n")
    assert [(name, first, lines) for name, first, lines, _ in functions(sample)] == [("one", 4, 1), ("two", 6, 7)]
    assert "SHOAL_ASSERT(b > 0)" in functions(sample)[1][3]
