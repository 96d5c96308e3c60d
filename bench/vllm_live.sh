#!/usr/bin/env bash
# `check`, `bench`, `change` and `status` against a live vLLM on a GPU machine.
#
#   OUT=DIR MODEL=FILE.gguf bash bench/vllm_live.sh
#
# python3 is one that has vLLM (VLLM_PYTHON names another), LOCKSTEP the release binary (by default
# target/release/lockstep), FAULT_PROXY `cargo build --release -p lockstep-check --example fault_proxy`.
# The model is written as transformers has it (bench/hf_from_gguf.py) and served with decode graphs
# and without the compiler, which starts in half the time. What was seen is left in OUT.
set -uo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
OUT=${OUT:?a folder for the results}; MODEL=${MODEL:?a GGUF file}
LOCKSTEP=$(realpath "${LOCKSTEP:-target/release/lockstep}")
FAULT_PROXY=$(realpath "${FAULT_PROXY:-target/release/examples/fault_proxy}")
PY=${VLLM_PYTHON:-python3}; PORT=${PORT:-8123}; URL=http://127.0.0.1:$PORT
WORK=$(mktemp -d); mkdir -p "$OUT"; OUT=$(realpath "$OUT")
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_SERVER_DEV_MODE=1 VLLM_LOG_STATS_INTERVAL=2
begun=$(date +%s)

# What is run, for how long, and how it ended; a step that fails does not end the others.
step() {
  local name=$1 limit=$2; shift 2
  local at; at=$(date +%s)
  timeout "$limit" "$@"; local code=$?
  echo "== $name: exit $code, $(($(date +%s) - at)) s, at $(($(date +%s) - begun)) s" | tee -a "$OUT/steps.txt"
  return $code
}
finish() {
  tail -c 400000 "$WORK/vllm.log" > "$OUT/vllm.log"
  [ -d "$WORK/records" ] && tar -C "$WORK" -czf "$OUT/records.tgz" records targets serve.sh
  # The one that was started here, and the one that a change started, each with its group.
  for pid in $(cat "$WORK"/*.pid; grep -oh '"pid":[0-9]*' "$WORK"/records/*/journal.jsonl | cut -d: -f2); do
    kill -- "-$pid" || kill "$pid"
  done 2> /dev/null
}
trap finish EXIT

step convert 120 "$PY" "$here/hf_from_gguf.py" "$MODEL" "$WORK/model" || exit 1
cat > "$WORK/serve.sh" <<S
#!/bin/sh
exec $PY -m vllm.entrypoints.cli.main serve $WORK/model --served-model-name smollm2 \\
  --host 127.0.0.1 --port $PORT --max-model-len 8192 --gpu-memory-utilization 0.5 \\
  --max-num-seqs 32 --enable-auto-tool-choice --tool-call-parser hermes --cudagraph-metrics \\
  --compilation-config '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,2,4,8,16,24,32]}'
S
(cd "$WORK" && setsid sh serve.sh > vllm.log 2>&1 & echo $! > "$WORK/vllm.pid")
ready() { until curl -sf -m 2 -o /dev/null "$URL/health"; do
  kill -0 "$(cat "$WORK/vllm.pid")" 2>/dev/null || return 1; sleep 0.5; done; }
export -f ready; export URL WORK
step ready "${READY_S:-150}" bash -c ready || { tail -40 "$WORK/vllm.log"; exit 1; }

for path in version v1/models metrics "server_info?config_format=json" server_info load openapi.json; do
  curl -s -m 20 "$URL/$path" > "$OUT/surface-$(echo "$path" | tr '/?=' '---')"
done
step status 20 "$LOCKSTEP" status "$URL" > "$OUT/status.txt" 2>&1
check() {  # NAME URL FLAGS...: the report, the page, and what a person reads
  local name=$1 url=$2; shift 2
  step "check-$name" 150 "$LOCKSTEP" check "$url" --profile quick --max-tokens 128 --timeout 60 \
    --save "$OUT/check-$name.json" --html "$OUT/check-$name.html" "$@" > "$OUT/check-$name.txt" 2>&1
  tail -30 "$OUT/check-$name.txt"
}
check clean "$URL" --sessions 32
check log "$URL" --sessions 32 --decode-log "$WORK/vllm.log"
read -r KINDS CALIBRATED < <("$PY" - "$OUT/check-clean.json" <<'P'
import json, sys
report = json.load(open(sys.argv[1]))
print(",".join(k["kind"] for k in report["kinds"] if k["used"]), 2 * report["calibration"]["requests"])
P
)
for fault in alter swap; do
  coproc PROXY { exec "$FAULT_PROXY" "127.0.0.1:$PORT" $fault 8 "$CALIBRATED"; }
  read -r address <&"${PROXY[0]}"; pid=$PROXY_PID; echo "$pid" > "$WORK/proxy.pid"
  check "$fault" "$address" --sessions 32 --kinds "$KINDS" --accept-partial-coverage
  curl -s -m 5 "$address/faults" | tee "$OUT/faults-$fault.json"; echo
  kill "$pid"; wait "$pid" 2>/dev/null
done
step bench 150 "$LOCKSTEP" bench "$URL" -c 1,8,32 --input 320 --output 128 --max-repeats 4 \
  --json "$OUT/bench.jsonl" --html "$OUT/bench.html" > "$OUT/bench.txt" 2>&1
cat "$OUT/bench.txt"
step agreement 200 "$PY" "$here/vllm_agreement.py" "$LOCKSTEP" "$URL" "$WORK/model" "$OUT" 2> "$OUT/agreement.err"

cd "$WORK" || exit 1
step init 30 "$LOCKSTEP" change init --url "$URL" --script serve.sh > "$OUT/init.txt" 2>&1
cp targets/*.toml "$OUT/target.toml"; target=$(basename targets/*.toml .toml)
sed -i 's|^# *log = .*||; s|^\[ready\]|[ready]\nlog = "vllm.log"|' "targets/$target.toml"
step dry-run 60 "$LOCKSTEP" change --target "$target" --set max-num-seqs=64 --dry-run > "$OUT/dry-run.txt" 2>&1
cat "$OUT/dry-run.txt"
step dry-run-json 60 "$LOCKSTEP" change --target "$target" --set max-num-seqs=64 --dry-run --json > "$OUT/dry-run.json" 2>&1
if [ "${CHANGE:-yes}" = yes ]; then
  step change 280 "$LOCKSTEP" change --target "$target" --set max-num-seqs=64 --concurrency 32 \
    --repeats 1 --sessions 32 --rounds 1 --answer-tokens 96 --watch 2 --tolerance 50 --p99-factor 10 \
    --accept-inconclusive --yes --json > "$OUT/change.json" 2> "$OUT/change.err"
  tail -c 1500 "$OUT/change.json"
fi
cat "$OUT/steps.txt"
