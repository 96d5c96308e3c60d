"""`lockstep bench` beside vLLM's own `vllm bench serve`, A B B A at each concurrency.

usage: vllm_agreement.py LOCKSTEP URL MODEL_FOLDER OUT
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

INPUT, OUTPUT = 320, 128


def ours(lockstep, url, at_once, requests, seed, out):
    """One run: tokens a second, mean TTFT and TPOT in ms."""
    file = out / f"agreement-lockstep-{at_once}-{seed}.jsonl"
    subprocess.run(
        [lockstep, "bench", url, "-c", str(at_once), "--input", str(INPUT), "--output", str(OUTPUT),
         "--requests", str(requests), "--min-repeats", "1", "--max-repeats", "1", "--ci", "99%",
         "--seed", str(seed), "--json", file], check=False, stdout=subprocess.DEVNULL)
    point = json.loads(file.read_text().splitlines()[-1])
    return [point[k] for k in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")]


def theirs(url, model, at_once, requests, seed, out):
    """The same, as vLLM's client says."""
    name = f"agreement-vllm-{at_once}-{seed}.json"
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    args = parser.parse_args([
        "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
        "--model", "smollm2", "--tokenizer", model, "--dataset-name", "random",
        "--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--ignore-eos",
        "--num-prompts", str(requests), "--max-concurrency", str(at_once),
        "--num-warmups", str(at_once), "--seed", str(seed), "--disable-tqdm", "--save-result",
        "--result-dir", str(out), "--result-filename", name])
    serve.main(args)
    found = json.loads((out / name).read_text())
    return [found[k] for k in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")]


def main():
    lockstep, url, model, out = sys.argv[1:5]
    out = Path(out)
    lines = []
    for at_once in (1, 8, 32):
        requests = max(16, 6 * at_once)
        seen = {"a": [], "b": []}
        for seed, side in enumerate("abba", 1):
            run = (lambda s: ours(lockstep, url, at_once, requests, s, out)) if side == "a" else (
                lambda s: theirs(url, model, at_once, requests, s, out))
            seen[side].append(run(seed))
        for at, name in enumerate(["tokens/s", "mean TTFT, ms", "mean TPOT, ms"]):
            mine, other = (statistics.mean(run[at] for run in seen[s]) for s in "ab")
            lines.append(f"{at_once} at once, {requests} requests of {INPUT} + {OUTPUT}, {name}: "
                         f"lockstep bench {mine:.2f}, vllm bench serve {other:.2f}, "
                         f"ratio {mine / other:.4f}; runs {seen['a'][0][at]:.2f} {seen['b'][0][at]:.2f} "
                         f"{seen['b'][1][at]:.2f} {seen['a'][1][at]:.2f}")
    print("\n".join(lines))
    (out / "agreement.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
