#!/usr/bin/env python3
"""How well `lockstep check` sees each drill of a lab build, and how soon.

    (build the package lockstep-cli with its feature `lab`)
    bench/gate_drills.py --lockstep target/release/lockstep --model models/recall

For every drill that a server can serve (`serve --lab-drill list`) a server with the audit off is
started afresh for each seed and checked; for each seed its clean twin, the same server without the
drill, is checked too. Prints a table in Markdown: runs in which the gate found damage, its classes,
corrupted answers of those judged, and the medians of answers and seconds to the first of them.

Only the standard library is used.
"""

import argparse
import json
import statistics
import subprocess
import sys


def serve(args, flags):
    """A server and its address."""
    argv = [args.lockstep, "serve", "--json", "--port", "0", "--model", args.model,
            "--kv-memory", "512MiB", "--graph-max-bs", "8", "--max-running-requests", "8", *flags]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = process.stdout.readline()
    if not line:
        process.wait()
        return process, None
    return process, json.loads(line).get("url")


def check(args, flags, seed):
    """The report of one check of one server; None where the server did not come up."""
    process, url = serve(args, flags)
    try:
        if url is None:
            return None
        argv = [args.check or args.lockstep, "check", url, "--json", "--kinds", "report", "--max-tokens", "200",
                "--timeout", "60", "--sessions", str(args.sessions), "--rounds", "2",
                "--seed", str(seed)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
        return {**json.loads(done.stdout), "exit": done.returncode}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def drills(args):
    """Names of the drills that a server can serve."""
    argv = [args.lockstep, "serve", "--lab-drill", "list"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in listed.splitlines()
             if line.strip() and "not in a server" not in line]
    return [name for name in names if not args.only or name in args.only]


def row(name, reports):
    """A line of the table."""
    unable = sum(not r or "conclusion" not in r for r in reports)
    reports = [r for r in reports if r and "conclusion" in r]
    if not reports:
        return f"| `{name}` | {unable} servers answered nothing, even alone | | | | |"
    found = [r for r in reports if r["conclusion"] == "corrupted"]
    classes = sorted({c for r in found for c in r["corrupted"]["classes"]})
    bad = sum(r["answers"]["corrupted"] for r in reports)
    judged = sum(r["answers"]["judged"] for r in reports)
    first = [r["corrupted"]["first"] for r in found if r["corrupted"]["first"]]
    answers = statistics.median(f["answers"] for f in first) if first else ""
    seconds = f"{statistics.median(f['seconds'] for f in first):.1f}" if first else ""
    return (f"| `{name}` | {len(found)}/{len(reports)} | {', '.join(classes)} | {bad} of {judged} "
            f"| {answers} | {seconds} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lockstep", required=True, help="a binary with the feature lab")
    parser.add_argument("--check", help="another binary to check with")
    parser.add_argument("--model", default="models/recall")
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rate", default="1", help="the probability with which a step is hit")
    parser.add_argument("--only", action="append")
    args = parser.parse_args()
    print("| drill | found | classes | corrupted answers | answers to the first | seconds |")
    print("|---|---|---|---|---|---|")
    for name in drills(args):
        flags = ["--lab-drill", name, "--lab-audit", "off", "--lab-rate", args.rate]
        runs = [check(args, [*flags, "--lab-seed", str(s)], s) for s in range(1, args.seeds + 1)]
        print(row(name, runs), flush=True)
    twins = [check(args, ["--audit-rate", "0"], s) for s in range(1, args.seeds + 1)]
    print(row("clean twin", twins), flush=True)
    return 1 if any(t and t["conclusion"] == "corrupted" for t in twins) else 0


if __name__ == "__main__":
    sys.exit(main())
