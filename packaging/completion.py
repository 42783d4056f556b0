"""Completion for a shell, made from what `shoal help` says:  completion.py SHOAL bash|zsh|fish > FILE

A verb is one word or two. Options that take a value are known by the word in capitals behind them: FILE and DIR complete
to files; where the help's first words name choices ("cpu or gpu", "out, err, outerr"), these are offered."""

import re
import subprocess
import sys


def said(shoal, *words):
    """A help text; what goes on in a next line is joined."""
    text = subprocess.run([shoal, "help", *words], capture_output=True, text=True, check=True).stdout
    return re.sub(r"\n {20,}(?=\S)", " ", text)


def choices(text):
    """The words that a help text begins with, when they are a list of values."""
    two = re.match(r"([\w-]+) or ([\w-]+)\b(?! )|([\w-]+) or ([\w-]+) [\[(]", text + " [")
    if two:
        return [word for word in two.groups() if word]
    many = re.match(r"((?:[A-Za-z][\w-]*, )+[A-Za-z][\w-]*)(?: \[|;|$)", text)
    return many.group(1).split(", ") if many else []


def options(text):
    """[(letter, name, value, help)] of one part of a help text."""
    lines = [re.match(r"  (?:-(\w), |    )--([a-z-]+)(?: ([A-Z]\S*))? +(.*)", line) for line in text.splitlines()]
    return [(m.group(1) or "", m.group(2), m.group(3) or "", m.group(4)) for m in lines if m]


def commands(shoal):
    """({verb: (arguments, help, own options)}, options of every command)."""
    text = said(shoal)
    found, every = {}, []
    for line in text[text.index("Commands:\n") + 10:].split("\n\n")[0].splitlines():
        verb, arguments, tells = re.match(r"  ((?:[a-z]+ ?)+?)((?: [^a-z ]\S*)*)  +(.*)", line).groups()
        verb = verb.strip()
        own, _, common = said(shoal, *verb.split()).partition("\nOptions of every command:\n")
        found[verb] = (arguments.strip(), tells, options(own.partition("\nOptions:\n")[2]))
        every = options(common) or every
    return found, every


def spellings(option):
    return ["--" + option[1]] + (["-" + option[0]] if option[0] else [])


def quoted(text):
    return "'%s'" % text.replace("'", "'\\''")


def shared(verbs, every):
    """(first words, {first word: second words}, options that take a value, those that take a file, [(words, choices)])."""
    firsts, seconds = [], {}
    for verb in verbs:
        first, _, second = verb.partition(" ")
        if first not in firsts:
            firsts.append(first)
        if second:
            seconds.setdefault(first, []).append(second)
    valued, files, chosen = {}, {}, {}
    for option in [o for _, _, own in verbs.values() for o in own] + every:
        for word in spellings(option) if option[2] else ():
            valued[word] = True
            if option[2] in ("FILE", "DIR", "PATH"):
                files[word] = True
            if choices(option[3]):
                chosen[word] = choices(option[3])
    return firsts, seconds, list(valued), list(files), chosen


# The verb is what stands before the word at the cursor, without options and their values.
BASH = """# Completion of shoal for bash. Made from `shoal help`.
_shoal() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word i
    # "--data=x" comes as three words
    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
        --) compopt -o default 2>/dev/null; return ;;
        %(valued)s) ((i++)); [[ ${COMP_WORDS[i]} == = ]] && ((i++)) ;;
        -*) ;;
        *)
            case "$verb $word" in
            " help") ;; # what stands behind it is completed as without it
            %(verbs)s) verb="${verb:+$verb }$word" ;;
            esac ;;
        esac
    done
    case $prev in
%(chosen)s
    %(files)s) compopt -o default -o filenames 2>/dev/null; return ;;
    %(valued)s) return ;;
    esac
    case $cur in
    -*)
        case $verb in
%(options)s
        esac
        COMPREPLY=($(compgen -W "$word %(every)s" -- "$cur")) ;;
    *)
        case $verb in
        "") COMPREPLY=($(compgen -W "%(firsts)s" -- "$cur")) ;;
%(seconds)s
        %(file_verbs)s) compopt -o default -o filenames 2>/dev/null ;;
        esac ;;
    esac
}
complete -F _shoal shoal
"""

ZSH = """#compdef shoal
# Completion of shoal for zsh. Made from `shoal help`.
_shoal() {
    local verb= word i prev=${words[CURRENT-1]}
    local -a found
    for ((i = 2; i < CURRENT; i++)); do
        word=${words[i]}
        case $word in
        --) _files; return ;;
        (%(valued)s) ((i++)) ;;
        -*) ;;
        *)
            case "$verb $word" in
            (%(verbs)s) verb="${verb:+$verb }$word" ;;
            esac ;;
        esac
    done
    case $prev in
%(chosen)s
    (%(files)s) _files; return ;;
    (%(valued)s) return ;;
    esac
    if [[ ${words[CURRENT]} == -* ]]; then
        found=()
        case $verb in
%(options)s
        esac
        found+=(%(every)s)
        _describe -o option found
        return
    fi
    case $verb in
    "") found=(%(firsts)s); _describe command found ;;
%(seconds)s
    (%(file_verbs)s) _files ;;
    esac
}
_shoal "$@"
"""

FISH = """# Completion of shoal for fish. Made from `shoal help`.
function __shoal_verb_is
    set -l verb ""
    set -l skip 0
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
            continue
        end
        switch $word
            case --
                return 1
            case %(valued)s
                set skip 1
            case '-*'
            case '*'
                if contains -- (string trim "$verb $word") %(verbs)s
                    set verb (string trim "$verb $word")
                end
        end
    end
    test "$verb" = "$argv[1]"
end
complete -c shoal -f
"""


def either(words):
    return "|".join(words) if words else "''"


def name_and_help(name, tells):
    return quoted(name.replace(":", "\\:") + ":" + tells)


def bash_or_zsh(shell, verbs, every):
    firsts, seconds, valued, files, chosen = shared(verbs, every)
    bash = shell == "bash"
    known = ['" %s"' % first for first in firsts] + ['"%s"' % verb for verb in verbs if " " in verb]
    lines = {"valued": either(valued), "files": either(files), "verbs": either(known)}
    lines["file_verbs"] = either(['"%s"' % verb for verb, (arguments, _, _) in verbs.items() if "FILE" in arguments])
    if bash:
        lines["firsts"] = " ".join(firsts)
        lines["every"] = " ".join(word for option in every for word in spellings(option))
        lines["chosen"] = "\n".join('    %s) COMPREPLY=($(compgen -W "%s" -- "$cur")); return ;;' % (word, " ".join(values))
                                    for word, values in chosen.items())
        lines["options"] = "\n".join('        "%s") word="%s" ;;' % (verb, " ".join(w for o in own for w in spellings(o)))
                                     for verb, (_, _, own) in verbs.items()) + '\n        *) word= ;;'
        lines["seconds"] = "\n".join('        %s) COMPREPLY=($(compgen -W "%s" -- "$cur")) ;;' % (first, " ".join(words))
                                     for first, words in seconds.items())
        return BASH % lines

    def described(own):
        return " ".join(name_and_help(word, option[3]) for option in own for word in spellings(option))

    tells = {verb: about for verb, (_, about, _) in verbs.items()}
    lines["firsts"] = " ".join(name_and_help(first, tells.get(first, "..." if first in seconds else "")) for first in firsts)
    lines["every"] = described(every)
    lines["chosen"] = "\n".join("    (%s) found=(%s); _describe value found; return ;;" % (word, " ".join(map(quoted, values)))
                                for word, values in chosen.items())
    lines["options"] = "\n".join('        ("%s") found=(%s) ;;' % (verb, described(own)) for verb, (_, _, own) in verbs.items())
    lines["seconds"] = "\n".join("    (%s) found=(%s); _describe command found ;;" % (
        first, " ".join(name_and_help(word, tells[first + " " + word]) for word in words)) for first, words in seconds.items())
    return ZSH % lines


def fish(verbs, every):
    firsts, seconds, valued, _, _ = shared(verbs, every)
    known = firsts + [verb for verb in verbs if " " in verb]
    out = [FISH % {"valued": " ".join(valued), "verbs": " ".join(map(quoted, known))}]

    def option_line(condition, option):
        letter, name, value, tells = option
        files = value in ("FILE", "DIR", "PATH")
        out.append("complete -c shoal %s-l %s %s%s%s-d %s" % (
            condition, name, "-s %s " % letter if letter else "", "-r -F " if files else "-x " if value else "",
            "-a %s " % quoted(" ".join(choices(tells))) if value and choices(tells) else "", quoted(tells)))

    for first in firsts:
        tells = verbs[first][1] if first in verbs else "..."
        out.append("complete -c shoal -n \"__shoal_verb_is ''\" -a %s -d %s" % (first, quoted(tells)))
    for first, words in seconds.items():
        for word in words:
            out.append("complete -c shoal -n '__shoal_verb_is %s' -a %s -d %s" % (first, word, quoted(verbs[first + " " + word][1])))
    for verb, (arguments, _, own) in verbs.items():
        condition = "-n '__shoal_verb_is \"%s\"' " % verb
        for option in own:
            option_line(condition, option)
        if "FILE" in arguments:
            out.append("complete -c shoal %s-F" % condition)
    for option in every:
        option_line("", option)
    return "\n".join(out) + "\n"


def main():
    shoal, shell = sys.argv[1:3]
    verbs, every = commands(shoal)
    sys.stdout.write(fish(verbs, every) if shell == "fish" else bash_or_zsh(shell, verbs, every))


if __name__ == "__main__":
    main()
