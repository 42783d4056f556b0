#!/bin/sh
# tests/fuzz/run.sh SECONDS NAME...: each target for so long, from what it found before. `make fuzz` builds and calls this.
# It begins with tests/fuzz/corpus/NAME, where there is one; corpus and findings stay in build/fuzz/.
set -eu
seconds=$1
shift
for name in "$@"; do
    mkdir -p "build/fuzz/corpus/$name"
    seeds="tests/fuzz/corpus/$name"
    [ -d "$seeds" ] || seeds=""
    echo "fuzz/$name"
    build/fuzz/fuzz_"$name" -max_total_time="$seconds" -max_len=8192 -rss_limit_mb=2048 -verbosity=0 -close_fd_mask=1 \
        -artifact_prefix=build/fuzz/"$name"- "build/fuzz/corpus/$name" $seeds 2>"build/fuzz/$name.log" || {
        tail -n 60 "build/fuzz/$name.log"
        echo "again: build/fuzz/fuzz_$name on the file that it names"
        exit 1
    }
done
echo "$# fuzzed"
