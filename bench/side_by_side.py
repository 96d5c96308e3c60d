#!/usr/bin/env python3
"""Lockstep and llama.cpp side by side: the same GGUF, the same threads, the same client, in turns.

    cargo xtask bench                      builds both sides and runs everything
    cargo xtask bench --parts one,prefill  some parts only
    cargo xtask bench --rounds 7 --json target/bench.json --markdown target/bench.md

Each round starts each server afresh, in the order A B, then B A, and so on, asks both for the
same work, and ends it. The figures are medians over rounds. Prompts are token ids, each of them
used once, so that no tokenizer and no prefix cache is in the figures.

Parts: one (decode of one row), rows (decode of 16 rows), prefill (512 tokens), and with each of
them the time from start to first token and the resident memory after the same load.
"""

import argparse
import json
import mmap
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import load, servers  # noqa: E402

CONTEXT_TOKENS = 8192
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2
ROWS = 16
WARM_BYTES = 1 << 30
BARS = {
    "decode of one row": 1.5, "decode of 16 rows": 2.5, "prefill of 512 tokens": 1.5,
}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", help="the lockstep binary; without it only the peer is run")
    parser.add_argument("--llama-bin", help="folder of llama.cpp's binaries; without it only ours")
    parser.add_argument("--model", help="GGUF file; by default what `lockstep pull` names")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="one,prefill,rows")
    parser.add_argument("--limits", help="the gemm_bench example, which measures the limits")
    parser.add_argument("--cross-check", action="store_true",
                        help="also run llama.cpp's own llama-bench and llama-batched-bench")
    parser.add_argument("--json", type=Path, default=Path("target/bench/side_by_side.json"))
    parser.add_argument("--markdown", type=Path, default=Path("target/bench/side_by_side.md"))
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    unknown = set(args.parts) - {"one", "prefill", "rows"}
    if unknown or not (args.lockstep or args.llama_bin):
        parser.error(f"--parts takes one, prefill, rows, not {', '.join(unknown)}" if unknown
                     else "give --lockstep, --llama-bin or both")
    return args


def default_model(lockstep):
    out = subprocess.run([lockstep, "pull", "--json"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout.strip().splitlines()[-1])["path"]


def sides(args, rows):
    """Name -> a function that makes a fresh server for `rows` rows."""
    made = {}
    if args.lockstep:
        kv = CONTEXT_TOKENS * KV_BYTES_PER_TOKEN
        made["lockstep"] = lambda: servers.lockstep(
            "--threads", args.threads, "--kv-memory", kv, model=args.model, binary=args.lockstep)
    if args.llama_bin:
        made["llama.cpp"] = lambda: servers.llama(
            "--parallel", rows, "-c", CONTEXT_TOKENS, "--cache-ram", 0,
            model=args.model, folder=args.llama_bin, threads=args.threads, spin=True)
    return made


class Prompts:
    """Random token ids, never the same prompt twice in a run."""

    def __init__(self, seed=1):
        self.rng = random.Random(seed)

    def take(self, tokens):
        return [self.rng.randint(100, 40000) for _ in range(tokens)]


def warm_memory():
    """Touches and frees 1 GiB, so that a server does not start on cold memory.

    A virtual machine with free page reporting gives memory that was free for two seconds back to
    its host, and the next process pays for getting it again: about 3 ms for each MiB, ten times
    what a page that is still there costs. Whoever starts after a pause would pay, and the other not.
    """
    with mmap.mmap(-1, WARM_BYTES) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, WARM_BYTES, 4096):
            memory[at] = 1


def block(make, rows, parts, prompts):
    """One server from start to end; its figures."""
    warm_memory()
    spawn = time.perf_counter()
    with make() as server:
        load.completion(server, prompts.take(8), 1)
        found = {"start to first token, s": time.perf_counter() - spawn}
        load.completion(server, prompts.take(64), 8)
        if rows == 1:
            if "one" in parts:
                timing = load.completion(server, prompts.take(64), 129)
                found["decode of one row"] = timing.decode_rate()
            if "prefill" in parts:
                timing = load.completion(server, prompts.take(512), 1)
                found["prefill of 512 tokens"] = 512 / timing.first_s
        else:
            timings, wall_s = load.together(server, [prompts.take(320) for _ in range(rows)], 64)
            found[f"decode of {rows} rows"] = load.steady_rate(timings)
            found[f"whole job of {rows} rows of 320+64, s"] = wall_s
            found["resident memory, MiB"] = server.resident() / 2**20
            found["resident memory at most, MiB"] = server.resident("VmHWM") / 2**20
    return found


def measure(args):
    """Name of side -> figure -> list over rounds."""
    results = {}
    shapes = [1] * bool({"one", "prefill"} & set(args.parts)) + [ROWS] * ("rows" in args.parts)
    for round_ in range(args.rounds):
        for rows in shapes:
            made = list(sides(args, rows).items())
            for name, make in made if round_ % 2 == 0 else reversed(made):
                # The same prompts for both sides, other ones in every round.
                figures = block(make, rows, args.parts, Prompts(seed=100 * round_ + rows))
                for figure, value in figures.items():
                    if figure.startswith("start") and rows != shapes[0]:
                        continue
                    results.setdefault(name, {}).setdefault(figure, []).append(value)
                shown = ", ".join(f"{k} {v:.2f}" for k, v in figures.items())
                print(f"round {round_ + 1}/{args.rounds} {name}: {shown}", flush=True)
    return results


def system_info(args):
    """The peer's own line about the instruction sets that it uses."""
    port = servers.free_port()
    argv = [Path(args.llama_bin) / "llama-server", "-m", args.model, "--port", port, "-lv", 4,
            "-t", args.threads]
    with servers.Server("llama-info", argv, port) as server:
        pass
    lines = [line for line in server.log().splitlines() if "system_info" in line]
    if not lines:
        raise RuntimeError("llama-server printed no system_info line")
    return "system_info" + lines[0].split("system_info", 1)[1]


def cross_check(args):
    """llama.cpp measured by its own tools, to see that our client is fair to it."""
    folder, model, threads = Path(args.llama_bin), args.model, str(args.threads)
    bench = subprocess.run(
        [folder / "llama-bench", "-m", model, "-t", threads, "-p", "512", "-n", "128", "-r", "5",
         "-o", "json"], check=True, capture_output=True, text=True)
    found = {}
    for row in json.loads(bench.stdout):
        kind = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        found[f"llama-bench {kind}, tok/s"] = row["avg_ts"]
    batched = subprocess.run(
        [folder / "llama-batched-bench", "-m", model, "-t", threads, "-tb", threads, "-c",
         str(CONTEXT_TOKENS), "-npp", "320", "-ntg", "64", "-npl", f"1,{ROWS}"],
        check=True, capture_output=True, text=True)
    for line in batched.stdout.splitlines():
        cells = [c.strip() for c in line.strip("| \n").split("|")]
        if len(cells) == 10 and cells[0] == "320":
            found[f"llama-batched-bench {cells[2]} rows, decode tok/s"] = float(cells[7])
    return found


def machine_limits(args):
    """Read bandwidth and int8 peak as the device room's example measures them."""
    run = subprocess.run([args.limits, "no-such-matrix"], capture_output=True, text=True)
    text = run.stdout + run.stderr
    row = rf"^{args.threads} threads: read ([\d.]+) GB/s, int8 dot products ([\d.]+) GOP/s"
    found = re.search(row, text, re.M)
    if not found:
        raise RuntimeError(f"{args.limits} printed no limits: {text[:400]}")
    return {"read_gb_s": float(found.group(1)), "int8_gop_s": float(found.group(2))}


def physical(limits, model_bytes):
    """Tokens a second that the limits allow, for SmolLM2-135M: every byte of the file is read once
    a step, and each row costs two operations a weight (KV and attention left out)."""
    linear, head = 106.168e6, 28.312e6
    step = lambda rows: max(  # noqa: E731
        model_bytes / (limits["read_gb_s"] * 1e9),
        rows * 2 * (linear + head) / (limits["int8_gop_s"] * 1e9))
    return {
        "decode of one row": 1 / step(1),
        f"decode of {ROWS} rows": ROWS / step(ROWS),
        "prefill of 512 tokens": limits["int8_gop_s"] * 1e9 / (2 * linear),
    }


def report(args, results, limits):
    """The Markdown table: medians, spread, ratio, limit."""
    possible = physical(limits, Path(args.model).stat().st_size) if limits else {}
    medians = {
        name: {figure: statistics.median(v) for figure, v in figures.items()}
        for name, figures in results.items()
    }
    lines = [
        "| figure | Lockstep | llama.cpp | ratio | bar | physical limit |",
        "|---|---|---|---|---|---|",
    ]
    figures = list(dict.fromkeys(f for side in results.values() for f in side))
    for figure in figures:
        ours = medians.get("lockstep", {}).get(figure)
        theirs = medians.get("llama.cpp", {}).get(figure)
        cell = lambda name, m: "-" if m is None else (  # noqa: E731
            f"{m:.4g} ({min(results[name][figure]):.4g}-{max(results[name][figure]):.4g})")
        ratio = f"{ours / theirs:.2f}" if ours and theirs else "-"
        unit = "" if figure.endswith((", s", "MiB")) else ", tok/s"
        bar = BARS.get(figure)
        bar = (f">= {bar}" if bar else "<= 1.3" if figure == "resident memory, MiB" else
               "<= 1.0" if figure.startswith("start") else "")
        limit = f"{possible[figure]:.0f}" if figure in possible else ""
        lines.append(f"| {figure}{unit} | {cell('lockstep', ours)} | {cell('llama.cpp', theirs)} "
                     f"| {ratio} | {bar} | {limit} |")
    return "\n".join(lines) + "\n", medians


def main():
    args = parse()
    args.model = args.model or default_model(args.lockstep)
    Path(args.model).read_bytes()  # files warm
    facts = {
        "machine": next((line.split(":", 1)[1].strip() for line in
                         Path("/proc/cpuinfo").read_text().splitlines()
                         if line.startswith("model name")), platform.processor()),
        "threads": args.threads, "rounds": args.rounds, "context_tokens": CONTEXT_TOKENS,
        "load_before": Path("/proc/loadavg").read_text().split()[0],
    }
    if args.llama_bin:
        facts["system_info"] = system_info(args)
        print(f"llama.cpp {facts['system_info']}", flush=True)
    limits = machine_limits(args) if args.limits else None
    if limits:
        print(f"limits: read {limits['read_gb_s']} GB/s, int8 {limits['int8_gop_s']} GOP/s")
    results = measure(args)
    facts["load_after"] = Path("/proc/loadavg").read_text().split()[0]
    if args.cross_check and args.llama_bin:
        facts["cross_check"] = cross_check(args)
    table, medians = report(args, results, limits)
    head = [f"{facts['machine']}, {args.threads} threads, medians of {args.rounds} rounds "
            f"(lowest-highest), load average {facts['load_before']} before."]
    if args.llama_bin:
        head.append(f"llama.cpp: `{facts['system_info']}`")
    if limits:
        head.append(f"Limits: read bandwidth {limits['read_gb_s']} GB/s, int8 dot products "
                    f"{limits['int8_gop_s']} GOP/s, both measured in this run.")
    for name, value in facts.get("cross_check", {}).items():
        head.append(f"{name}: {value:.1f}")
    page = "\n\n".join(head) + "\n\n" + table
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(
        {"facts": facts, "limits": limits, "medians": medians, "rounds": results}, indent=1))
    args.markdown.write_text(page)
    print("\n" + page)


if __name__ == "__main__":
    main()
