#!/bin/bash
# Tests with other people's programs: the interface against its own description, answers against their schemas, other clients. What each
# needs is installed once, into a folder of its own below build/.
#
#   tests/http/run.sh schemathesis --lorad build/dev/lorad [--cases N] [--seed N]     Schemathesis over /openapi.json
#   tests/http/run.sh schemas --lorad build/dev/lorad [--n N] [--seed N]              random JSON schemas
#   tests/http/run.sh calls --lorad build/dev/lorad [--seed N]                        calls in answers with chosen borders of tokens
#   tests/http/run.sh langchain --lorad build/dev/lorad                               LangChain
#   tests/http/run.sh openai_js --lorad build/dev/lorad                               openai for JavaScript (needs node and npm)
#   tests/http/run.sh fine_tuning --lorad build/dev/lorad                               openai for Python: trains an adapter and asks it
#   tests/http/run.sh tinker --lorad build/dev/lorad                                  Tinker's client: trains by calls and samples
#   tests/http/run.sh recipe_CLIENT --lorad build/dev/lorad                           a recipe of docs/CLIENTS.md
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
test=${1:?which test: schemathesis, schemas, calls, langchain, openai_js, fine_tuning, tinker or recipe_CLIENT}
shift
place=$here/../../build/http-$test
case $test in
    schemathesis) packages=('schemathesis>=4.32,<5') ;;
    schemas) packages=('jsonschema[format]>=4.20,<5') ;;
    calls) packages=('numpy>=1.24' 'safetensors>=0.4') ;;
    langchain) packages=('langchain-openai>=0.3' 'openai>=1,<3') ;;
    openai_js) packages=('openai@^6') ;;
    fine_tuning) packages=('openai>=3,<4') ;;
    tinker) packages=('tinker>=0.38,<0.39') ;;
    recipe_openai) packages=('openai>=3,<4') ;;
    recipe_anthropic) packages=('anthropic>=2,<3') ;;
    recipe_langchain) packages=('langchain-openai>=1,<2') ;;
    recipe_litellm) packages=('litellm>=1.80,<2') ;;
    recipe_instructor) packages=('instructor>=1.17,<2') ;;
    recipe_pydantic_ai) packages=('pydantic-ai-slim[openai]>=2,<3') ;;
    recipe_lm_eval) packages=('lm_eval[api]>=0.4.13,<0.6') ;;
    recipe_guidellm) packages=('guidellm>=0.8,<0.9') ;;
    recipe_vercel) packages=('ai@^6' '@ai-sdk/openai-compatible@^2' '@ai-sdk/anthropic@^3') ;;
    *) echo "tests/http/run.sh: no test is called $test" >&2; exit 2 ;;
esac
if [ ! -e "$place/done" ]; then
    rm -rf "$place"
    mkdir -p "$place"
    if [ "$test" = openai_js ] || [ "$test" = recipe_vercel ]; then
        npm install --prefix "$place" --no-audit --no-fund "${packages[@]}" >"$place/install.log" 2>&1 || { tail -n 20 "$place/install.log"; exit 1; }
    else
        python3 -m venv "$place"
        "$place/bin/pip" install -q "${packages[@]}" >"$place/install.log" 2>&1 || { tail -n 20 "$place/install.log"; exit 1; }
    fi
    touch "$place/done"
fi
if [[ $test == recipe_* ]]; then
    client=${test#recipe_}
    exec python3 "$here/recipe_test.py" "${client//_/-}" --packages "$place" "$@"
fi
if [ "$test" = openai_js ]; then exec python3 "$here/openai_js_test.py" --packages "$place" "$@"; fi
exec "$place/bin/python" "$here/${test}_test.py" "$@"
