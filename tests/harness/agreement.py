"""The same load by `lockstep bench` and by a client that shares nothing with it, and the same
requests as a witness saw them."""

import json
import random
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass

from . import load, servers


@dataclass
class Independent:
    """What the other client saw of one closed load."""

    output_tokens: int
    wall_s: float
    ttft_ms: list
    tpot_ms: list
    # Its milliseconds from first to last tokens over llama.cpp's of the same requests.
    own_ratio: float

    @property
    def tokens_per_s(self):
        return self.output_tokens / self.wall_s


def bench(port, at_once, requests, prompt_tokens, output_tokens, *flags, binary=None):
    """One point of `lockstep bench`, as it writes it."""
    binary = binary or servers.need("LOCKSTEP_BIN", "the lockstep binary")
    url = f"http://127.0.0.1:{port}"
    argv = [
        binary, "bench", url, "-c", at_once, "--requests", requests, "--input", prompt_tokens,
        "--output", output_tokens, "--json", "-", *flags,
    ]
    ran = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=600)
    if ran.returncode not in (0, 2):
        raise RuntimeError(f"bench ended with {ran.returncode}: {ran.stderr}")
    return json.loads(ran.stdout.splitlines()[0])


def ratios(point, seen):
    """Means of `lockstep bench` over those of a witness (harness.witness) of the same requests."""
    figures = {"ttft_ms": "mean_ttft_ms", "tpot_ms": "mean_tpot_ms", "e2e_ms": "mean_e2e_latency_ms"}
    return {name: point[own] / statistics.mean(getattr(s, name) for s in seen)
            for name, own in figures.items()}


def independent(server, at_once, requests, prompt_tokens, output_tokens, seed=7):
    """`requests` completions by `at_once` threads over http.client."""
    rng = random.Random(seed)
    prompts = [[rng.randint(4000, 31000) for _ in range(prompt_tokens)] for _ in range(requests)]
    timings, lock = [], threading.Lock()

    def work():
        while True:
            with lock:
                if not prompts:
                    return
                prompt = prompts.pop()
            timing = load.completion(server, prompt, output_tokens)
            with lock:
                timings.append(timing)

    start = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - start
    if len(timings) != requests:
        raise RuntimeError(f"{len(timings)} of {requests} requests were answered")
    return Independent(
        output_tokens=sum(t.tokens for t in timings),
        wall_s=wall_s,
        ttft_ms=[1e3 * t.first_s for t in timings],
        tpot_ms=[1e3 * (t.last_s - t.first_s) / (t.tokens - 1) for t in timings],
        own_ratio=sum(t.server_ms for t in timings)
        / sum(1e3 * (t.last_s - t.first_s) for t in timings),
    )
