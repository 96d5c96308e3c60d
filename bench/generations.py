#!/usr/bin/env python3
"""Changes buckets under load and measures what the streams notice.

Runs `lockstep serve` twice with the same 64 clients, each streaming one request after the other:
once undisturbed, once while buckets go 32 -> 96 -> 16 -> 96 (stage, flip, watch 1,000 steps,
retire). Prints, for each generation, the longest time between two steps that it took, and for both
runs the longest and usual time between two tokens of a stream; fails where a request failed or its
text is not the one of the undisturbed run.

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
    }


async def stream(address, request):
    """Text and the times of its pieces."""
    host, port = address
    reader, writer = await asyncio.open_connection(host, port)
    payload = json.dumps(request).encode()
    head = (
        "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    await writer.drain()
    text, times, done = [], [], False
    while line := await asyncio.wait_for(reader.readline(), 300):
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            done = True
            break
        piece = json.loads(line[6:])
        if "error" in piece:
            raise RuntimeError(f"a stream failed: {piece}")
        text.append(piece["choices"][0]["text"])
        times.append(asyncio.get_running_loop().time())
    writer.close()
    if not done:
        raise RuntimeError(f"a stream broke off after {len(text)} pieces")
    return "".join(text), times


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


async def change(url, steps):
    """32 -> 96 -> 16 -> 96."""
    loop = asyncio.get_running_loop()
    call = lambda *args: loop.run_in_executor(None, ask, url, *args)
    for ceiling in CEILINGS:
        begun = loop.time()
        knobs = {"decode.graph-max-bs": ceiling}
        staged = await call("/admin/generations", {"knobs": knobs, "wait": True})
        number = staged["generation"]
        took = loop.time() - begun
        await call(f"/admin/generations/{number}/flip", {"watch_seconds": 0})
        while True:
            report = await call(f"/admin/generations/{number}")
            if report["steps"] >= steps:
                break
            await asyncio.sleep(0.5)
        await call(f"/admin/generations/{number - 1}/retire", {})
        print(f"  to {ceiling}: staged and verified in {took:.1f} s", flush=True)
    return await call("/admin/generations"), await call("/server_info")


async def run(url, args, disturbed, turns=None):
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
    await asyncio.sleep(3)
    found = await change(url, args.steps) if disturbed else None
    stop.set()
    await asyncio.gather(*clients)
    return results, found


def serve(args):
    """A server and its address."""
    command = [
        args.lockstep, "serve", "--json", "--port", "0", "--graph-max-bs", "32",
        "--max-running-requests", "96", "--log-interval", "0",
    ]
    command += ["--model", args.model] if args.model else []
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
        return asyncio.run(run(url, args, disturbed, turns))
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
    parser.add_argument("--once", action="store_true", help="leave the undisturbed run out")
    args = parser.parse_args()
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
    wrong = [key for key in plain if changed[key][0] != plain[key][0]]
    if plain:
        print(f"streams whose text differs: {len(wrong)} of {len(plain)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
