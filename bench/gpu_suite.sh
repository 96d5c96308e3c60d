#!/usr/bin/env bash
# The GPU suite: right answers, equal bits, speed, on a machine with a GPU and no Rust toolchain.
#
#   bench/gpu_suite.sh pack DIR          where Rust is: compiles kernels and suite, packs both
#   bench/gpu_suite.sh run DIR [ARGS]    where the GPU is (driver 580 or newer, glibc 2.34 or newer)
#
# ARGS: --only right,bits,speed   --shapes qwen3-0.6b,qwen3-8b   --rows 1,8,32,64,96
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
what=${1:?pack or run}
dir=${2:?a folder}
shift 2
case $what in
pack)
    (cd "$root" && cargo xtask cuda && cargo build --release -p lockstep-cuda --example gpu_suite)
    mkdir -p "$dir"
    cp "${CARGO_TARGET_DIR:-$root/target}/release/examples/gpu_suite" "$dir/"
    rm -rf "$dir/fixtures"
    cp -r "$root/fixtures" "$dir/fixtures"
    ;;
run)
    "$dir/gpu_suite" "$dir/fixtures" "$@"
    ;;
*)
    echo "usage: gpu_suite.sh pack|run DIR [ARGS]" >&2
    exit 2
    ;;
esac
