#!/usr/bin/env bash
# The GPU suite: right answers, equal bits, drills, speed, a server, on a machine with a GPU and no
# Rust toolchain.
#
#   bench/gpu_suite.sh pack DIR          where Rust is: compiles kernels, suite and binary, packs them
#   bench/gpu_suite.sh run DIR [ARGS]    where the GPU is (driver 580 or newer, glibc 2.34 or newer)
#
# ARGS: --only products,right,quantised,bits,lanes,kernels,endurance,ahead,speed,served
#       --shapes qwen3-0.6b,qwen3-8b   --rows 1,8,32,64,96
#       --peer FILES                   what the peer's script wrote in the same run, for speed
#       --pipelined on,off             speed with a step launched ahead, and one at a time
#       --chunks 1952,4000             prompt tokens of a step at most, for speed and prefill
#       --model FILE                   a real model: chats over HTTP, answers beside the CPU device
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
what=${1:?pack or run}
dir=${2:?a folder}
shift 2
case $what in
pack)
    cd "$root"
    cargo xtask cuda
    # The suite's own laboratory captures what the prover refuses; the binary has none.
    cargo build --release -p lockstep-cuda --example gpu_suite --features lab
    cargo build --release -p lockstep-cli --features cuda
    out=${CARGO_TARGET_DIR:-$root/target}/release
    mkdir -p "$dir"
    cp "$out/examples/gpu_suite" "$out/lockstep" "$dir/"
    rm -rf "$dir/fixtures"
    mkdir "$dir/fixtures"
    cp -r "$root/fixtures/tiny" "$dir/fixtures/tiny"
    ;;
run)
    "$dir/lockstep" doctor || echo "doctor ended with $?"
    "$dir/gpu_suite" "$dir/fixtures" "$@"
    ;;
*)
    echo "usage: gpu_suite.sh pack|run DIR [ARGS]" >&2
    exit 2
    ;;
esac
