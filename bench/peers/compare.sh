#!/bin/bash
# Decode and prefill of lorad and of packaged llama.cpp (Vulkan) on the same GPU, same shape, in one run; prints ratios.
# usage: compare.sh LORAD_DIR PEER_DIR WORK_DIR [SHAPE] [DTYPE]
#   LORAD_DIR  holds engine_bench and its run wrapper (deploy/bundle.sh makes it)
#   PEER_DIR   from get_llama_cpp.sh, or its unpacked archive
#   WORK_DIR   room for two copies of the model (7b: 31 GB); kept between runs
# LORAD_PEER_LIBS and VK_DRIVER_FILES as in get_llama_cpp.sh, where the GPU's driver lies in its own folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
lorad=${1:?usage: compare.sh LORAD_DIR PEER_DIR WORK_DIR [SHAPE] [DTYPE]}; peer=$2; work=$3; shape=${4:-7b}; dtype=${5:-f16}
mkdir -p "$work"
model=$work/$shape-$dtype
[ -e "$model/generation_config.json" ] || python3 "$here/../make_model.py" model "$model" "$shape" "$dtype"
[ -e "$model.gguf" ] || python3 "$here/make_gguf.py" model "$model.gguf" "$shape" "$dtype"
for seed in 1 2 3 4 5 6 7 8; do
    [ -e "$work/$shape-lora$seed/adapter_config.json" ] ||
        python3 "$here/../make_model.py" adapter "$work/$shape-lora$seed" "$shape" 16 "$seed"
done
adapters=(); for seed in 1 2 3 4 5 6 7 8; do adapters+=(--adapter "$work/$shape-lora$seed"); done

echo "# llama.cpp"
"$peer/run" llama-bench -m "$model.gguf" -p 2048 -n 128 -ngl 99 -fa 1 -r 3 -o json 2>/dev/null >"$work/llama-bench.json"
"$peer/run" llama-batched-bench -m "$model.gguf" -npp 128 -ntg 64 -npl 1,8,32,64 -ngl 99 -c 16000 -fa on -b 2048 -ub 2048 \
    >"$work/llama-batched.txt" 2>"$work/llama-batched.log" || tail -n 3 "$work/llama-batched.log"
echo "# lorad"
"$lorad/run" engine_bench --model "$model" --decode 1,8,32,64 --prefill 512,2048 --context 160 --json >"$work/lorad.jsonl"
"$lorad/run" engine_bench --model "$model" --decode 1,8,32,64 --prefill 2048 --context 160 --json "${adapters[@]}" \
    >"$work/lorad-lora.jsonl"
python3 - "$work" <<'PY'
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
peer = {}
for row in json.loads((work / "llama-bench.json").read_text()):
    peer["prefill %d" % row["n_prompt"] if row["n_prompt"] else "decode 1"] = (row["avg_ts"], row["stddev_ts"])
# Columns: PP TG B N_KV T_PP S_PP T_TG S_TG T S
for line in (work / "llama-batched.txt").read_text().splitlines():
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if len(cells) == 10 and cells[2].isdigit():
        peer.setdefault("decode %s" % cells[2], (float(cells[7]), 0.0))
for name in ("lorad.jsonl", "lorad-lora.jsonl"):
    print(f"{name}\n{'case':<14}{'lorad tok/s':>14}{'ms (p10..p90)':>26}{'llama.cpp':>12}{'ratio':>8}")
    for line in (work / name).read_text().splitlines():
        if not line.startswith("{"):
            print(line)
            continue
        row = json.loads(line)
        case = f"{row['bench']} {row['size']}"
        theirs = peer.get(case, (None, 0))[0]
        spread = f"{row['ms_median']:.3f} ({row['ms_p10']:.3f}..{row['ms_p90']:.3f})"
        print(f"{case:<14}{row['tokens_per_s']:14.1f}{spread:>26}" +
              (f"{theirs:12.1f}{row['tokens_per_s'] / theirs:8.2f}" if theirs else ""))
PY
