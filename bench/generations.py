#!/usr/bin/env python3
"""Changes buckets under load and measures what the streams notice.

Runs `lockstep serve` twice with the same 64 clients, each streaming one request after the other:
once undisturbed, once while buckets go 32 -> 96 -> 16 -> 96 (stage, flip, watch 1,000 steps,
retire). Prints, for each generation, the longest time between two steps that it took, and for both
runs the longest and usual time between two tokens of a stream; fails where a request failed, or
where a text or a log-probability of one is not that of the undisturbed run.

With `--cycles N` it looks at memory instead: N times stage, flip and retire under the same load,
the ceiling 96 and 16 in turns, and the process's memory after each.

With `--start SECONDS` it looks at the start instead: servers that come up under the load, with
`generations.verify-first` and without it in turns, and how many tokens each made from the moment at
which canary steps begin.

Only the standard library is used.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import urllib.request

CEILINGS = (96, 16, 96)


def body(client, turn, tokens):
    """A request whose text depends on nothing but itself."""
    return {
        "prompt": f"Story {client} of day {turn}: there was once a",
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": 1000 * client + turn,
        "stream": True,
        "logprobs": 1,
    }


async def stream(address, request):
    """Pieces (text and log-probabilities) and the times at which they came."""
    host, port = address
    reader, writer = await asyncio.open_connection(host, port)
    payload = json.dumps(request).encode()
    head = (
        "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    await writer.drain()
    pieces, times, done = [], [], False
    while line := await asyncio.wait_for(reader.readline(), 300):
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            done = True
            break
        piece = json.loads(line[6:])
        if "error" in piece:
            raise RuntimeError(f"a stream failed: {piece}")
        choice = piece["choices"][0]
        pieces.append((choice["text"], json.dumps(choice.get("logprobs"))))
        times.append(asyncio.get_running_loop().time())
    writer.close()
    if not done:
        raise RuntimeError(f"a stream broke off after {len(pieces)} pieces")
    return pieces, times


def same(a, b):
    """True where two streams gave the same text and the same log-probabilities."""
    join = lambda pieces: ("".join(t for t, _ in pieces), [l for _, l in pieces])
    return join(a[0]) == join(b[0])


async def client(address, number, stop, tokens, results):
    """One request after the other until told to stop."""
    turn = 0
    while not stop.is_set():
        # Streams of different lengths, so that they do not all end in the same step.
        request = body(number, turn, tokens + 3 * number)
        results[number, turn] = await stream(address, request)
        turn += 1


def ask(url, path, data=None):
    """An operator's request."""
    headers = {"Content-Type": "application/json"}
    payload = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url + path, payload, headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def resident_mib(pid):
    """`VmRSS` of a process in MiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


async def change(url, pid, steps, cycles):
    """32 -> 96 -> 16 -> 96, or so many cycles."""
    loop = asyncio.get_running_loop()
    call = lambda *args: loop.run_in_executor(None, ask, url, *args)

    async def served(number):
        while (await call(f"/admin/generations/{number}"))["steps"] < steps:
            await asyncio.sleep(0.5)

    async def arenas():
        return (await call("/server_info"))["lockstep"]["engine"]["arenas"]

    await served(1)
    print(f"  before: {resident_mib(pid):.1f} MiB resident, arenas {await arenas()}", flush=True)
    ceilings = CEILINGS if cycles == 0 else [CEILINGS[i % 2] for i in range(cycles)]
    for ceiling in ceilings:
        begun = loop.time()
        knobs = {"decode.graph-max-bs": ceiling}
        staged = await call("/admin/generations", {"knobs": knobs, "wait": True})
        number = staged["generation"]
        took = loop.time() - begun
        await call(f"/admin/generations/{number}/flip", {"watch_seconds": 0})
        both = resident_mib(pid)
        await served(number)
        await call(f"/admin/generations/{number - 1}/retire", {})
        # The arena is unmapped on a thread of its own.
        await asyncio.sleep(1)
        print(
            f"  to {ceiling}: staged and verified in {took:.1f} s; {both:.1f} MiB resident beside"
            f" the one before, {resident_mib(pid):.1f} without it, arenas {await arenas()}",
            flush=True,
        )
    return await call("/admin/generations"), await call("/server_info")


async def run(child, url, args, disturbed, turns=None):
    """All clients; with `turns`, exactly the requests of another run."""
    host, port = url.removeprefix("http://").split(":")
    address, results, stop = (host, int(port)), {}, asyncio.Event()
    if turns is not None:
        async def again(number, count):
            for turn in range(count):
                request = body(number, turn, args.tokens + 3 * number)
                results[number, turn] = await stream(address, request)
        await asyncio.gather(*(again(n, count) for n, count in turns.items()))
        return results, None
    clients = [
        asyncio.create_task(client(address, n, stop, args.tokens, results))
        for n in range(args.clients)
    ]
    change_ = change(url, child.pid, args.steps, args.cycles) if disturbed else asyncio.sleep(3)
    changing = asyncio.ensure_future(change_)
    # A client that fails ends the run at once.
    await asyncio.wait([changing, *clients], return_when=asyncio.FIRST_COMPLETED)
    if not changing.done():
        changing.cancel()
        await asyncio.gather(*clients)
    found = await changing
    stop.set()
    await asyncio.gather(*clients)
    return results, found


async def begin(url, args):
    """Loads a server that has just come up; tokens a second, and what was verified beside them."""
    host, port = url.removeprefix("http://").split(":")
    address, results, stop = (host, int(port)), {}, asyncio.Event()
    loop = asyncio.get_running_loop()
    clients = [
        asyncio.create_task(client(address, n, stop, args.tokens, results))
        for n in range(args.clients)
    ]
    tokens, at = [], []
    # Canary steps begin two seconds after the start.
    for wait in (2.5, args.start):
        await asyncio.sleep(wait)
        at.append(loop.time())
        info = await loop.run_in_executor(None, ask, url, "/server_info")
        tokens.append(info["lockstep"]["engine"]["counters"]["generated_tokens"])
    # A stream that has just got a line may not notice that it is cancelled: it ends by itself then.
    stop.set()
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    first = ask(url, "/admin/generations/1")
    done = sum(bucket["verified"] for bucket in first["buckets"])
    gap = first["gap"]
    return (tokens[1] - tokens[0]) / (at[1] - at[0]), (
        f"{done} of {len(first['buckets'])} buckets verified, {gap['canary_steps']} canary steps, "
        f"the longest {gap['longest_canary_step_ms']:.1f} ms"
    )


def starts(args):
    """Pairs of starts, with and without the first generation's verification."""
    ratios = []
    for turn in range(args.pairs):
        rates = {}
        for verify in ("true", "false") if turn % 2 == 0 else ("false", "true"):
            child, url = serve(args, ["--verify-first", verify])
            try:
                rates[verify], words = asyncio.run(begin(url, args))
            finally:
                child.kill()
                child.wait(60)
            print(f"  verify-first {verify}: {rates[verify]:.1f} tokens/s, {words}", flush=True)
        ratios.append(rates["true"] / rates["false"])
    print(f"with it, of the tokens without it: {', '.join(f'{100 * r:.1f}%' for r in ratios)}")


def serve(args, more=()):
    """A server and its address."""
    command = [
        args.lockstep, "serve", "--json", "--port", "0", "--graph-max-bs", "32",
        "--max-running-requests", "96", "--log-interval", "0",
    ]
    command += ["--model", args.model] if args.model else []
    command += [*more, *args.more]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return child, json.loads(child.stdout.readline())["url"]


def gaps(results):
    """Times between two tokens of a stream, in ms, ascending."""
    all_ = []
    for _, times in results.values():
        all_ += [1e3 * (b - a) for a, b in zip(times, times[1:])]
    return sorted(all_)


def one(args, disturbed, turns=None):
    """One server's life."""
    child, url = serve(args)
    try:
        return asyncio.run(run(child, url, args, disturbed, turns))
    finally:
        child.terminate()
        child.wait(60)


def main():
    """Both runs, and the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lockstep", required=True, help="the binary")
    parser.add_argument("--model", help="a file or a known model's name; the default model if none")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=150, help="of the shortest stream")
    parser.add_argument("--steps", type=int, default=1000, help="that each generation serves")
    parser.add_argument("--cycles", type=int, default=0, help="look at memory over so many flips")
    parser.add_argument("--start", type=float, help="seconds to look at a start under load")
    parser.add_argument("--pairs", type=int, default=1, help="of starts")
    parser.add_argument("--once", action="store_true", help="leave the undisturbed run out")
    parser.add_argument("more", nargs="*", help="of `lockstep serve`, after --")
    args = parser.parse_args()
    if args.start:
        return starts(args)
    args.once |= args.cycles > 0
    print(f"changing buckets under {args.clients} streams", flush=True)
    changed, (generations, info) = one(args, True)
    turns = {}
    for number, turn in changed:
        turns[number] = max(turns.get(number, 0), turn + 1)
    plain = {}
    if not args.once:
        print("the same requests, undisturbed", flush=True)
        plain, _ = one(args, False, turns)
    print("generation  state     steps   captured  gap ms  canary step ms  canary steps")
    for g in generations["data"]:
        gap = g["gap"]
        print(
            f"{g['generation']:>10}  {g['state']:<8}  {g['steps']:>6}  {g['captured_steps']:>8}"
            f"  {gap['longest_ms']:>6.2f}  {gap['longest_canary_step_ms']:>14.1f}"
            f"  {gap['canary_steps']:>12}"
        )
    for name, results in (("changed", changed), ("undisturbed", plain)):
        ms = gaps(results)
        if not ms:
            continue
        print(
            f"{name}: {len(results)} streams, {len(ms)} gaps between tokens: median"
            f" {ms[len(ms) // 2]:.1f} ms, p99 {ms[len(ms) * 99 // 100]:.1f}, longest {ms[-1]:.1f}"
        )
    print(f"arenas now: {info['lockstep']['engine']['arenas']}")
    wrong = [key for key in plain if not same(changed[key], plain[key])]
    if plain:
        tokens = sum(len(times) for _, times in plain.values())
        print(
            f"streams whose text or log-probabilities differ: {len(wrong)} of {len(plain)}"
            f" ({tokens} pieces)"
        )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
