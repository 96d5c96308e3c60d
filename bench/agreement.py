#!/usr/bin/env python3
"""Does `lockstep bench` measure what llama.cpp says of itself and what another client measures?

    python3 bench/agreement.py --lockstep target/release/lockstep --llama-bin DIR --model FILE

One llama-server. `lockstep bench` and a Python client (threads over http.client) send the same
load in the order A B B A; printed are tokens a second, TTFT and TPOT of both with their ratios.
These are two loads: with more than one request at once, how they fall together in the server
differs. So the bench's own requests are also timed by llama.cpp (its `timings`) and, after each
A B B A, by a witness, a relay in between; the ratios to both are of the same requests. Those are
what this holds to 3% (--close): it ends with 1 where one is further off.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import agreement, servers  # noqa: E402
from harness.witness import Witness  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--llama-bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=1, help="of the server, so that a core is left")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2, help="times A B B A")
    parser.add_argument("--close", type=float, default=0.03, help="largest distance of a ratio from 1")
    return parser.parse_args()


def main():
    args = parse()
    shape = (args.at_once, args.requests, args.input, args.output)
    flags = ["--min-repeats", 1, "--max-repeats", 1, "--no-warmup"]
    ours, other, own, others_own, witnessed = [], [], [], [], []

    def a(peer, seed):
        point = agreement.bench(peer.port, *shape, *flags, "--seed", seed, binary=args.lockstep)
        ours.append(
            (point["output_throughput"], point["mean_ttft_ms"], point["mean_tpot_ms"]))
        extra = point["lockstep"]
        own.append(
            extra["client_request_tokens_per_s"] / extra["server_request_tokens_per_s"])

    def b(peer, seed):
        seen = agreement.independent(peer, *shape, seed=seed)
        other.append(
            (seen.tokens_per_s, statistics.mean(seen.ttft_ms), statistics.mean(seen.tpot_ms)))
        others_own.append(seen.own_ratio)

    def c(peer, seed):
        with Witness(peer.port) as witness:
            point = agreement.bench(
                witness.port, *shape, *flags, "--seed", seed, binary=args.lockstep)
        witnessed.append(agreement.ratios(point, witness.answers(args.output)))

    with servers.llama("--parallel", args.at_once, "-c", 1024 * args.at_once, "--cache-ram", 0,
                       model=args.model, folder=args.llama_bin, threads=args.threads,
                       spin=True) as peer:
        agreement.independent(peer, *shape, seed=99)
        for block in range(args.blocks):
            # The witness comes last: it takes time on the cores that the server computes on.
            for turn, side in enumerate([a, b, b, a, c]):
                side(peer, 10 * block + turn + 1)
    print(f"{shape[0]} at once, {shape[1]} requests of {shape[2]} + {shape[3]} tokens, "
          f"{args.blocks} blocks of A B B A, {args.threads} threads of the server")
    for at, name in enumerate(["tokens/s", "mean TTFT, ms", "mean TPOT, ms"]):
        mine, theirs = (statistics.mean(x[at] for x in side) for side in (ours, other))
        print(f"{name}: bench {mine:.2f}, independent client {theirs:.2f}, "
              f"ratio {mine / theirs:.4f}")
    for name, found in [("bench", own), ("independent client", others_own)]:
        print(f"tokens/s after the first, {name} over llama.cpp's timings of the same requests: "
              f"{statistics.mean(found):.4f} ({min(found):.4f} to {max(found):.4f})")
    held = {"llama.cpp's timings": statistics.mean(own)}
    for name in witnessed[0]:
        found = [ratios[name] for ratios in witnessed]
        held[f"the witness's {name}"] = statistics.mean(found)
        print(f"mean {name}, bench over the witness of the same requests: "
              f"{statistics.mean(found):.4f} ({min(found):.4f} to {max(found):.4f})")
    apart = [f"{name} ({ratio:.4f})" for name, ratio in held.items() if abs(ratio - 1) > args.close]
    if apart:
        print(f"bench is more than {args.close:.1%} from {', '.join(apart)}")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
