#!/usr/bin/env bash
# The command gearman: see README.md. It supports no exceptions, and its workers send no progress.
set -euo pipefail

port=$1 role=$2
shift 2
at=(-h 127.0.0.1 -p "$port")

client() {
    local mode=$1 job function payload result
    shift
    for job in "$@"; do
        function=${job%%=*}
        payload=$(sed 's/../\\x&/g' <<<"${job#*=}")
        if [[ $mode == background ]]; then
            printf "$payload" | gearman "${at[@]}" -b -f "$function"
            echo "$function created"
        elif result=$(printf "$payload" | gearman "${at[@]}" -t 20000 -f "$function" | od -An -v -tx1 | tr -d ' \n'); then
            echo "$function complete $result"
        else
            echo "$function failed"
        fi
    done
}

worker() {
    gearman -w "${at[@]}" -f "$1-fail" -- false &
    exec gearman -w "${at[@]}" -f "$1-upper" -- tr a-z A-Z
}

"$role" "$@"
