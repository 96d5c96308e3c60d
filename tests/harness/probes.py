"""Requests whose answers must be the same bits on every server, whatever else it does."""

from . import corpus


def text(server, words):
    """Token ids of a text, from the server itself."""
    body = {"content": words, "parse_special": True}
    return server.client.post("/tokenize", body)["tokens"]


def probes(server, most_prompt_tokens=640, max_tokens=24):
    """(name, body) of each probe: prompts from a word to beyond two attention splits, greedy and
    sampled, with penalties, bias, and the log-probabilities of the prompt itself."""
    ids = text(server, corpus.passage())[:most_prompt_tokens]
    common = {
        "max_tokens": max_tokens, "logprobs": 5, "return_tokens_as_token_ids": True,
        "ignore_eos": True,
    }
    greedy = {**common, "temperature": 0}
    sampled = {**common, "temperature": 0.9, "top_p": 0.95, "top_k": 200, "seed": 20261129}
    found = [
        ("one token", {**greedy, "prompt": ids[:1]}),
        ("a line", {**greedy, "prompt": ids[3:20]}),
        ("one page and one token", {**greedy, "prompt": ids[:33]}),
        ("sampled", {**sampled, "prompt": ids[40:90]}),
        ("sampled, another seed", {**sampled, "prompt": ids[40:90], "seed": 7}),
        ("three choices", {**sampled, "prompt": ids[7:60], "n": 3}),
        ("penalties and bias", {
            **sampled, "prompt": ids[10:140], "repetition_penalty": 1.3, "presence_penalty": 0.5,
            "frequency_penalty": 0.4, "min_p": 0.02, "logit_bias": {str(ids[5]): 4.0},
        }),
        ("a split and one token", {**greedy, "prompt": ids[:257]}),
        ("prompt log-probabilities", {**greedy, "prompt": ids[:150], "echo": True}),
        ("long", {**greedy, "prompt": ids[:600]}),
        ("long, sampled", {**sampled, "prompt": ids[20:600]}),
    ]
    return [(n, b) for n, b in found if len(b["prompt"]) <= most_prompt_tokens]


def bits(answer):
    """What must not change: every choice with its text, tokens and log-probabilities. JSON carries
    each number in full, so equal values here are equal bits there."""
    return [
        (c["index"], c["text"], c["finish_reason"], c["logprobs"])
        for c in sorted(answer["choices"], key=lambda c: c["index"])
    ]


def ask_alone(server, wanted):
    """Each probe by itself, one after the other."""
    return {name: bits(server.client.post("/v1/completions", body)) for name, body in wanted}


def ask_together(server, wanted, copies=1, noise=()):
    """All probes at once, `copies` times each, among `noise`. Returns the answers of each copy."""
    bodies = list(noise)
    where = []
    for copy in range(copies):
        for name, body in wanted:
            where.append((copy, name, len(bodies)))
            bodies.append(body)
    answers = server.client.all("/v1/completions", bodies, at_once=len(bodies))
    found = [{} for _ in range(copies)]
    for copy, name, at in where:
        found[copy][name] = bits(answers[at])
    return found


def noise(server, count=12):
    """Other requests to share the batch with: other prompts, lengths and parameters."""
    ids = text(server, corpus.passage())
    return [
        {
            "prompt": ids[at * 37 : at * 37 + 5 + at * 29], "max_tokens": 8 + 5 * at,
            "temperature": 0.5 + at / 10, "seed": at, "ignore_eos": True,
        }
        for at in range(count)
    ]


def status(server):
    """The engine's own account: counters, buckets, device."""
    return server.client.get("/server_info")["lockstep"]["engine"]
