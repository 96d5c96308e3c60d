#!/usr/bin/env python3
"""How well `lockstep check` sees each drill of a lab build, and how soon.

    (build the package lockstep-cli with its feature `lab`)
    bench/gate_drills.py --lockstep target/release/lockstep --results gate.jsonl
    bench/gate_drills.py --results gate.jsonl --page docs/drills-gate.md

For every drill that a server can serve (`serve --lab-drill list`) a server with the audit off is
started afresh for each seed and rate and checked, and its clean twin, the same server without the
drill. Seeds are the outer loop, so that a run that is ended early has as many seeds of every drill.
Each check adds a line to the file of results, and what is in it already is not done again;
the page is made from that file alone, or with --amend from an earlier page and the file: a drill
that is in the file has its row from there, and the page says which those are.

Only the standard library is used.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

TWIN = "clean twin"
# What a check of this load takes is 15 s to 60 s; one that takes this long is stuck.
CHECK_S = 420


def serve(args, flags):
    """A server and its address; None where it did not come up."""
    argv = [args.lockstep, "serve", "--json", "--port", "0", "--model", args.model,
            "--kv-memory", "512MiB", "--graph-max-bs", "8", "--max-running-requests", "8", *flags]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = process.stdout.readline()
    if not line:
        process.wait()
        return process, None
    return process, json.loads(line).get("url")


def strikes(url):
    """Steps that a server's drill has hit, of how many."""
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=20) as answer:
            lab = json.load(answer)["lockstep"]["engine"].get("lab") or {}
    except (OSError, KeyError, ValueError):
        return None
    return [lab.get("strikes"), lab.get("replays")]


def command(args, seed):
    return ["check", "--json", "--kinds", "report", "--max-tokens", "200", "--timeout", "60",
            "--sessions", str(args.sessions), "--rounds", str(args.rounds),
            "--context", str(args.context), "--seed", str(seed), "--accept-partial-coverage"]


def check(args, flags, seed):
    """What one check of one server came to."""
    process, url = serve(args, flags)
    try:
        if url is None:
            return {"failed": f"the server ended with {process.returncode} before it was ready"}
        argv = [args.check or args.lockstep, *command(args, seed), url]
        begun = time.monotonic()
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=CHECK_S, check=False)
        except subprocess.TimeoutExpired:
            return {"failed": f"the check was not done in {CHECK_S} s", "strikes": strikes(url)}
        report = json.loads(done.stdout)
        if "conclusion" not in report:
            return {"failed": report["error"]["message"], "strikes": strikes(url)}
        kept = {name: report[name] for name in ("conclusion", "why", "answers", "calibration")}
        kept["corrupted"] = {n: report["corrupted"][n] for n in ("classes", "first")}
        return {**kept, "load_s": report["load"]["seconds"], "strikes": strikes(url),
                "seconds": round(time.monotonic() - begun, 1)}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def drills(args):
    """Names of the drills that a server can serve, and why the others cannot be."""
    argv = [args.lockstep, "serve", "--lab-drill", "list"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    names, absent = [], {}
    for line in filter(str.strip, listed.splitlines()):
        name, words = line.split(None, 1)
        if words.startswith("not in a server: "):
            absent[name] = words.removeprefix("not in a server: ")
        else:
            names.append(name)
    return [n for n in names if not args.only or n in args.only], absent


def read(path):
    """The results so far: a head and the runs."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if "head" in line], [line for line in lines if "drill" in line]


def measure(args):
    """Adds what is missing to the file of results."""
    names, absent = drills(args)
    heads, runs = read(args.results)
    done = {(run["drill"], run["seed"], run["rate"]) for run in runs}
    with open(args.results, "a", encoding="utf-8") as out:
        def add(line):
            out.write(json.dumps(line) + "\n")
            out.flush()
        if not heads:
            asked = " ".join(command(args, 1)).replace("--seed 1", "--seed S")
            add({"head": {"check": asked, "absent": absent, "cores": os.cpu_count()}})
        every = itertools.product(range(1, args.seeds + 1), args.rates.split(","), [TWIN, *names])
        for seed, rate, name in every:
            if (name, seed, rate) in done:
                continue
            flags = ["--lab-audit", "off"]
            if name != TWIN:
                flags += ["--lab-drill", name, "--lab-rate", rate, "--lab-seed", str(seed)]
            found = check(args, flags, seed)
            add({"drill": name, "seed": seed, "rate": rate, **found})
            print(f"{name} {seed} {rate}: {found.get('conclusion') or found['failed']}", flush=True)


def row(name, runs):
    """A line of the table."""
    judged = [run for run in runs if "failed" not in run]
    found = [run for run in judged if run["conclusion"] == "corrupted"]
    unable = len(runs) - len(judged)
    classes = sorted({c for run in found for c in run["corrupted"]["classes"]})
    bad = sum(run["answers"]["corrupted"] for run in judged)
    all_judged = sum(run["answers"]["judged"] for run in judged)
    first = [run["corrupted"]["first"] for run in found if run["corrupted"]["first"]]
    answers = f"{statistics.median(f['answers'] for f in first):g}" if first else ""
    seconds = f"{statistics.median(f['seconds'] for f in first):.1f}" if first else ""
    rate = f"{len(found)}/{len(judged)}" if judged else ""
    rate = f"**{rate}**" if found else rate
    lost = sum(run["answers"]["errors"] + run["answers"]["timeouts"] for run in judged)
    alone = sum(run["calibration"]["reliable"] for run in judged)
    asked = sum(run["calibration"]["requests"] for run in judged)
    counted = f"{bad} of {all_judged}" if judged else ""
    struck = [run["strikes"] for run in runs if run.get("strikes") and run["strikes"][1]]
    hit = f"{sum(s[0] for s in struck)} of {sum(s[1] for s in struck)}" if struck else ""
    return (f"| `{name}` | {hit} | {rate} | {', '.join(classes)} | {counted} | {answers} | {seconds} "
            f"| {lost or ''} | {f'{alone} of {asked}' if judged else ''} | {unable or ''} |")


HEAD = ("| drill | steps hit | found | classes | corrupted answers | answers to the first "
        "| seconds of load to the first | errors | right alone | nothing to judge |")


def quoted(names):
    return ", ".join(f"`{name}`" for name in names)


def often(rate):
    return "every step" if float(rate) == 1 else f"one step in {1 / float(rate):g}"


def tables(runs):
    """Rows by rate and drill, as cells, the twin last."""
    made = {}
    for rate in sorted({run["rate"] for run in runs}, key=float, reverse=True):
        of = {}
        for run in runs:
            if run["rate"] == rate:
                of.setdefault(run["drill"], []).append(run)
        live = sorted(name for name in of if name != TWIN)
        made[rate] = {name: cells(row(name, of[name])) for name in [*live, *(n for n in of if n == TWIN)]}
    return made


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def earlier(path):
    """Rows by rate and drill of a page that was written before, and why nothing could be judged."""
    made, failed, rows = {}, {}, {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## In "):
            words = line.removeprefix("## In ")
            rate = "1" if words == "every step" else f"{1 / float(words.split()[-1]):g}"
            rows = made.setdefault(rate, {})
        elif line.startswith("| `"):
            row_cells = cells(line)
            rows[row_cells[0].strip("`")] = row_cells
        elif line.startswith("- `") and ": error: " in line:
            names, why = line.removeprefix("- ").split(": ", 1)
            failed.setdefault(why, set()).update(n.strip("`") for n in names.split(", "))
    return made, failed


def section(rows, rate):
    """A rate's table."""
    live = [name for name in rows if name != TWIN]
    each = sorted({runs_of(rows[name]) for name in live})
    found = sum("**" in rows[name][2] for name in live)
    lines = [f"| {' | '.join(row)} |" for row in rows.values()]
    return [f"## In {often(rate)}", "", f"{found} of {len(live)} found in at least one of "
            f"{'-'.join(map(str, each))} runs.", "", HEAD, "|---" * 10 + "|", *lines, ""]


def runs_of(row_cells):
    """How many runs a row is of: those that could be judged and the others."""
    judged = row_cells[2].strip("*").partition("/")[2]
    return int(judged or 0) + int(row_cells[9] or 0)


def merged(args, runs):
    """All rows, why nothing could be judged, and which drills were measured later than the rest."""
    made, failed = tables(runs), {}
    for run in runs:
        if "failed" in run:
            failed.setdefault(run["failed"].split("; the first: ")[-1], set()).add(run["drill"])
    if not args.amend:
        return made, failed, []
    old, old_failed = earlier(args.amend)
    later = sorted({run["drill"] for run in runs} - {TWIN})
    for rate, rows in made.items():
        twin = old[rate].pop(TWIN)
        kept = {**old[rate], **{name: row_cells for name, row_cells in rows.items() if name != TWIN}}
        old[rate] = {name: kept[name] for name in sorted(kept)} | {TWIN: twin}
    for why, names in failed.items():
        old_failed.setdefault(why, set()).update(names)
    return old, old_failed, later


def page(args):
    """The results as a page."""
    heads, runs = read(args.results)
    if not heads or not runs:
        sys.exit(f"{args.results} holds no results")
    head = heads[0]["head"]
    made, failed, later = merged(args, runs)
    every = [(name, row_cells) for rows in made.values() for name, row_cells in rows.items() if name != TWIN]
    live = {name for name, _ in every}
    found = {name for name, row_cells in every if "**" in row_cells[2]}
    loud = {name for name, row_cells in every if row_cells[7] or row_cells[9]} - found
    hit = {name for name, row_cells in every if not row_cells[1].startswith("0 ")}
    silent, idle = sorted((live & hit) - found - loud), sorted(live - hit)
    twins = [rows[TWIN][2].strip("*").split("/") for rows in made.values()]
    if later:
        twins += [rows[TWIN][2].strip("*").split("/") for rows in tables(runs).values()]
    alarms, of = (sum(int(twin[at]) for twin in twins) for at in (0, 1))
    own = [run["seed"] for run in runs]
    seeds = own
    if later:
        known = re.search(r"\(S from (\d+) to (\d+)\)", args.amend.read_text(encoding="utf-8"))
        seeds = [int(n) for n in known.groups()]
    lines = [
        "# Drills, seen by the gate",
        "",
        f"What [`lockstep check`](check.md) notices, over HTTP alone, of each fault of "
        f"[drills.md](drills.md) that a server can serve: {len(found)} of {len(live)} are found as "
        f"corruption, {len(loud)} more end in errors or no answer at all, and clean twins raised "
        f"{alarms} alarms in {of} runs.",
        "",
        f"Not seen: {quoted(silent) or 'none'}, whose strikes changed no answer of these sessions; and "
        f"{quoted(idle) or 'none'}, which found nothing to hit in this model's steps.",
        "",
        f"Each run is a fresh `serve --model recall --lab-drill NAME --lab-audit off --lab-rate P "
        f"--lab-seed S` of a lab build, with every watcher of its own turned off, and `lockstep "
        f"{head['check']}` (S from {min(seeds)} to {max(seeds)}), on {head['cores']} cores that other "
        "jobs used too, so that seconds are upper bounds. `bench/gate_drills.py` measured it and wrote "
        "this page.",
        "",
    ]
    if later:
        lines += [f"Measured later than the others, beside clean twins of their own and with seeds up to "
                  f"{max(own)}: {quoted(later)}.", ""]
    for rate, rows in made.items():
        lines += section(rows, rate)
    lines += [
        "*found*: runs whose conclusion was corruption, of those that could be judged. *Right alone*: "
        "requests that were right one at a time, before the load. A fault that hits those too leaves "
        "less to hold answers against; what is left is that this server claims to answer alike alone "
        "and in a crowd. *Errors*: under load, answers that were an error instead; the engine stops at "
        "a logit that is no number. *Nothing to judge*: runs in which not one answer came alone.",
    ]
    if failed:
        lines += ["", "Why nothing could be judged:", ""]
        for why, of_drills in sorted(failed.items()):
            lines.append(f"- {quoted(sorted(of_drills))}: {why}")
    if head["absent"]:
        lines += ["", "Not in a server:", ""]
        lines += [f"- `{n}`: {why}" for n, why in sorted(head["absent"].items())]
    Path(args.page).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lockstep", help="a binary with the feature lab")
    parser.add_argument("--check", help="another binary to check with")
    parser.add_argument("--model", default="models/recall")
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--context", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rates", default="1,0.02", help="probabilities with which a step is hit")
    parser.add_argument("--only", action="append")
    parser.add_argument("--results", type=Path, required=True, help="a file of JSON lines, added to")
    parser.add_argument("--page", help="write the page from the results to this file")
    parser.add_argument("--amend", type=Path,
                        help="keep the rows of this earlier page for drills that the results lack")
    args = parser.parse_args()
    if args.lockstep:
        measure(args)
    if args.page:
        page(args)


if __name__ == "__main__":
    main()
