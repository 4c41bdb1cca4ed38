#!/bin/bash
# lorad and packaged llama-server (Vulkan) over HTTP on the same GPU in one run: 32 clients, 128 tokens in, 64 out, without
# adapters and with 8 rank-16 adapters dealt over the requests; prints both and the ratio.
# usage: compare_http.sh LORAD_DIR PEER_DIR WORK_DIR [SHAPE] [DTYPE] [CLIENTS]
#   as compare.sh, whose model and adapter folders in WORK_DIR are used again
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
lorad=${1:?usage: compare_http.sh LORAD_DIR PEER_DIR WORK_DIR [SHAPE] [DTYPE] [CLIENTS]}; peer=$2; work=$3; shape=${4:-7b}; dtype=${5:-f16}
clients=${6:-32}
mkdir -p "$work"
model=$work/$shape-$dtype
[ -e "$model/generation_config.json" ] || python3 "$here/../make_model.py" model "$model" "$shape" "$dtype"
[ -e "$model.gguf" ] || python3 "$here/make_gguf.py" model "$model.gguf" "$shape" "$dtype"
names=base; loras=(); peer_loras=()
for seed in 1 2 3 4 5 6 7 8; do
    [ -e "$work/$shape-lora$seed/adapter_config.json" ] || python3 "$here/../make_model.py" adapter "$work/$shape-lora$seed" "$shape" 16 "$seed"
    [ -e "$work/$shape-lora$seed.gguf" ] || python3 "$here/make_gguf.py" lora "$work/$shape-lora$seed.gguf" "$shape" 16 "$seed"
    loras+=(--lora "lora$seed=$work/$shape-lora$seed")
    peer_loras+=(--lora "$work/$shape-lora$seed.gguf")
    names=$names,lora$seed
done
adapters=${names#base,}
bench=(python3 "$here/../http_bench.py" --prompt-tokens 128 --max-tokens 64 --json)

wait_for() {  # URL of a health route, log
    for _ in $(seq 600); do
        if python3 -c "import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=2)" "$1" 2>/dev/null; then return; fi
        sleep 0.2
    done
    echo "no answer from $1" >&2; tail -n 5 "$2" >&2; exit 1
}
"$lorad/run" lorad serve --model "$model" --served-model-name base --port 8181 --max-model-len 4096 --no-prefix-cache --state-dir none "${loras[@]}" >"$work/lorad.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
wait_for http://127.0.0.1:8181/health/ready "$work/lorad.log"
"${bench[@]}" --url http://127.0.0.1:8181 --models base --streams "$clients" >"$work/http-warm.jsonl"
"${bench[@]}" --url http://127.0.0.1:8181 --models base --streams "1,$clients" --requests $((4 * clients)) >"$work/http-lorad-base.jsonl"
"${bench[@]}" --url http://127.0.0.1:8181 --models "$adapters" --streams "1,$clients" --requests $((4 * clients)) >"$work/http-lorad-lora.jsonl"
kill -TERM $server; wait $server || true

"$peer/run" llama-server -m "$model.gguf" "${peer_loras[@]}" --lora-init-without-apply --parallel "$clients" -c $((256 * clients)) -ngl 99 -fa on \
    --no-webui --port 8182 >"$work/llama-server.log" 2>&1 &
server=$!
wait_for http://127.0.0.1:8182/health "$work/llama-server.log"
"${bench[@]}" --url http://127.0.0.1:8182 --streams "$clients" --requests "$clients" >"$work/http-warm.jsonl"
"${bench[@]}" --url http://127.0.0.1:8182 --streams "$clients" --requests $((2 * clients)) >"$work/http-llama-base.jsonl"
"${bench[@]}" --url http://127.0.0.1:8182 --llama-loras 8 --streams "$clients" --requests "$clients" >"$work/http-llama-lora.jsonl"
python3 - "$work" "$clients" <<'PY'
import json, pathlib, sys
work, clients = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for case in ("base", "lora"):
    rows = {name: {row["streams"]: row for row in map(json.loads, (work / f"http-{name}-{case}.jsonl").read_text().splitlines())}
            for name in ("lorad", "llama")}
    for name, by_streams in rows.items():
        for streams, row in by_streams.items():
            ratio = row["tokens_per_s"] / rows["llama"][clients]["tokens_per_s"] if streams == clients else None
            print(f"{case:<6}{name:<7}{streams:4d} clients {row['tokens_per_s']:9.1f} tok/s   first token {row['ttft_ms_median']:8.1f} ms"
                  f" (p99 {row['ttft_ms_p99']:8.1f})   between {row['itl_ms_median']:7.2f} ms   errors {row['errors']} {row['first_error'] or ''}"
                  + (f"   x{ratio:.2f}" if ratio else ""))
PY
