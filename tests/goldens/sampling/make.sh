#!/bin/bash
# Makes the expected data of this folder anew: torch and transformers in a virtual environment of their own (build/sampling-venv), then make.py.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/../../../build/sampling-venv
if [ ! -e "$venv/done" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q 'torch>=2.8' 'transformers>=5,<6' numpy
    touch "$venv/done"
fi
exec "$venv/bin/python" "$here/make.py"
