"""Token-level requests to both servers, in one shape: ids and log-probabilities."""

from dataclasses import dataclass


@dataclass
class Continuation:
    """What a greedy request gave: ids, and for each the alternatives (id, logprob), best first."""

    ids: list
    tops: list
    finish: str


def token_id(text):
    """The id in `token_id:123`."""
    head, _, number = text.partition(":")
    if head != "token_id":
        raise ValueError(f"'{text}' is not token_id:N: return_tokens_as_token_ids had no effect")
    return int(number)


def ours_body(prompt, max_tokens, tops=2, **more):
    """A greedy /v1/completions request by token ids."""
    return {
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": tops,
        "return_tokens_as_token_ids": True, **more,
    }


def read_ours(answer, choice=0):
    """A Continuation out of a /v1/completions answer."""
    choice = answer["choices"][choice]
    logprobs = choice["logprobs"]
    tops = []
    for top in logprobs["top_logprobs"]:
        entries = [(token_id(k), v) for k, v in (top or {}).items()]
        tops.append(sorted(entries, key=lambda e: (-e[1], e[0])))
    return Continuation([token_id(t) for t in logprobs["tokens"]], tops, choice["finish_reason"])


def ours(client, prompt, max_tokens, tops=2, **more):
    return read_ours(client.post("/v1/completions", ours_body(prompt, max_tokens, tops, **more)))


def theirs(client, prompt, max_tokens, tops=2):
    """llama.cpp's greedy continuation; logprobs are those of the plain softmax."""
    answer = client.post("/completion", {
        "prompt": prompt, "n_predict": max_tokens, "temperature": -1, "samplers": ["temperature"],
        "n_probs": tops, "return_tokens": True, "cache_prompt": False,
    })
    # A token that ends inside a UTF-8 character has no row of its own there, so rows are taken as
    # far as they follow the raw ids; an end-of-text token has a row and no raw id.
    rows, raw = answer["completion_probabilities"], answer["tokens"]
    known = 0
    while known < len(rows) and (known >= len(raw) or rows[known]["id"] == raw[known]):
        known += 1
    ids = [row["id"] for row in rows[:known]] + raw[known:]
    tops = [[(t["id"], t["logprob"]) for t in row["top_logprobs"]] for row in rows[:known]]
    return Continuation(ids, tops, "stop" if answer["stop_type"] == "eos" else "length")


def prompt_logprobs(client, prompt):
    """Ours: the log-probability of every prompt token but the first, from echo."""
    answer = client.post("/v1/completions", {
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True,
        "return_tokens_as_token_ids": True,
    })
    logprobs = answer["choices"][0]["logprobs"]
    ids = [token_id(t) for t in logprobs["tokens"]][: len(prompt)]
    if ids != list(prompt):
        raise ValueError("echo gave back other tokens than the prompt's")
    return logprobs["token_logprobs"][1 : len(prompt)]


def their_prompt_logprobs(client, prompt, few=1000, vocab=49152):
    """llama.cpp's: one request a position, the next token looked up among the most likely `few`,
    and among all where it is not there. Its prompt cache makes each request one step."""
    found = []
    for at in range(1, len(prompt)):
        for tops in (few, vocab):
            answer = client.post("/completion", {
                "prompt": prompt[:at], "n_predict": 1, "temperature": -1,
                "samplers": ["temperature"], "n_probs": tops, "cache_prompt": True, "id_slot": 0,
            })
            row = answer["completion_probabilities"][0]["top_logprobs"]
            hit = [t["logprob"] for t in row if t["id"] == prompt[at]]
            if hit:
                found.append(hit[0])
                break
        else:
            raise ValueError(f"token {prompt[at]} at {at} is in no answer")
    return found
