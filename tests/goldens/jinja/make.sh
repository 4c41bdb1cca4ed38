#!/bin/bash
# Makes cases.jsonl of this folder anew: Jinja2 in a virtual environment of its own (build/jinja-venv), then make.py.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/../../../build/jinja-venv
if [ ! -e "$venv/done" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q 'jinja2==3.1.6'
    touch "$venv/done"
fi
exec "$venv/bin/python" "$here/make.py"
