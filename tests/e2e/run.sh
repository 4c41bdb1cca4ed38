#!/bin/bash
# The end-to-end checks, with the official openai client where pip can bring it (once, into build/e2e-venv).
#
#   tests/e2e/run.sh --lorad build/dev/lorad [--only NAME] [--without NAME]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/../../build/e2e-venv
python=python3
if [ ! -e "$venv/done" ]; then
    rm -rf "$venv"
    if python3 -m venv "$venv" >/dev/null 2>&1 && timeout 180 "$venv/bin/pip" install -q 'openai>=1,<3' >"$venv/pip.log" 2>&1; then
        touch "$venv/done"
    else
        echo "e2e: the openai client could not be installed; going on without it"
    fi
fi
[ -e "$venv/done" ] && python=$venv/bin/python
exec "$python" "$here/e2e.py" "$@"
