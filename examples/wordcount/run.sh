#!/bin/sh
# Run the demo with the checkout's Python environment, which `make demo` makes: run.sh [DIR]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=$here/../../.venv/bin/python
[ -x "$python" ] || { echo "start it with: make demo [DIR=…]" >&2; exit 2; }
exec "$python" "$here/demo.py" "$@"
