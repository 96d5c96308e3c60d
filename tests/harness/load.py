"""Timed completions: when the first token came, when the last, and how many there were."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass
class Timing:
    """Seconds since the request was sent, except `sent`, which is on the clock of perf_counter, and
    `server_ms`, llama.cpp's own milliseconds from the first token to the last."""

    sent: float
    arrivals: list
    tokens: int
    server_ms: float = 0.0

    @property
    def first_s(self):
        return self.arrivals[0]

    @property
    def last_s(self):
        return self.arrivals[-1]

    def decode_rate(self):
        """Tokens a second after the first one."""
        return (self.tokens - 1) / (self.last_s - self.first_s)


def completion(server, prompt, max_tokens):
    """One streamed greedy completion by token ids, of exactly `max_tokens` tokens."""
    body = {
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }
    if server.name.startswith("llama"):
        body["cache_prompt"] = False
    sent = time.perf_counter()
    arrivals, tokens, server_ms = [], 0, 0.0
    for at, event in server.client.stream("/v1/completions", body):
        if event.get("choices"):
            arrivals.append(at)
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        if event.get("timings"):
            server_ms = event["timings"]["predicted_ms"]
    if tokens != max_tokens or not arrivals:
        raise RuntimeError(f"{server.name} gave {tokens} tokens of {max_tokens}")
    return Timing(sent, arrivals, tokens, server_ms)


def together(server, prompts, max_tokens):
    """All prompts at once; their timings and the seconds until the last one ended."""
    start = time.perf_counter()
    with ThreadPoolExecutor(max_workers=len(prompts)) as pool:
        jobs = [pool.submit(completion, server, prompt, max_tokens) for prompt in prompts]
        timings = [job.result() for job in jobs]
    return timings, time.perf_counter() - start


def steady_rate(timings):
    """Tokens a second of all rows together while every one of them decodes: from the moment when
    the last row has its first token to the moment when the first row has its last."""
    start = max(t.sent + t.first_s for t in timings)
    end = min(t.sent + t.last_s for t in timings)
    if end <= start:
        raise RuntimeError("the rows never all decoded at once: ask for more tokens")
    arrived = sum(sum(start < t.sent + a <= end for a in t.arrivals) for t in timings)
    return arrived / (end - start)
