"""Greedy continuations agree with llama.cpp up to its first close call."""

import unittest

from harness import corpus, gguf, servers, tokens

CLOSE_CALL_NATS = 0.15


def first_disagreement(ours, theirs):
    """(position, margin) of the first token that differs, None where none does. The margin is
    None where llama.cpp reports no alternatives there."""
    for at in range(max(len(ours), len(theirs.ids))):
        mine = ours[at] if at < len(ours) else None
        other = theirs.ids[at] if at < len(theirs.ids) else None
        if mine != other:
            return at, margin(theirs, at)
    return None


def margin(theirs, at):
    if at >= len(theirs.tops) or len(theirs.tops[at]) < 2:
        return None
    return theirs.tops[at][0][1] - theirs.tops[at][1][1]


def first_close_call(theirs):
    """The first position that does not bind: a small margin, or alternatives not reported."""
    for at in range(len(theirs.ids)):
        m = margin(theirs, at)
        if m is None or m < CLOSE_CALL_NATS:
            return at
    return len(theirs.ids)


class Greedy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.limit = corpus.max_tokens()
        cls.end = gguf.metadata(servers.model_path())["tokenizer.ggml.eos_token_id"]
        cls.prompts = []
        cls.theirs = []
        with servers.llama("--parallel", 1, "-c", 8192) as peer:
            for name, messages in corpus.prompts():
                text = peer.client.post("/apply-template", {"messages": messages})["prompt"]
                body = {"content": text, "parse_special": True}
                ids = peer.client.post("/tokenize", body)["tokens"]
                cls.prompts.append((name, ids))
                cls.theirs.append(tokens.theirs(peer.client, ids, cls.limit))
        bodies = [tokens.ours_body(ids, cls.limit) for _, ids in cls.prompts]
        with servers.lockstep() as server:
            alone = server.client.all("/v1/completions", bodies, at_once=1)
            together = server.client.all("/v1/completions", bodies, at_once=len(bodies))
        cls.alone = [tokens.read_ours(a) for a in alone]
        cls.together = [tokens.read_ours(a) for a in together]

    def ids_with_end(self, ours):
        """Ours with an end-of-text token where llama.cpp would list it."""
        if ours.finish == "stop" and ours.ids[-1:] != [self.end]:
            return ours.ids + [self.end]
        return ours.ids

    def test_the_prompts_are_what_the_comparison_asks_for(self):
        self.assertGreaterEqual(len(self.prompts), 20)
        self.assertGreaterEqual(sum(len(ids) > 500 for _, ids in self.prompts), 5)

    def test_tokens_agree_up_to_the_first_close_call(self):
        to_the_end, bound, close_calls = 0, 0, []
        for (name, _), ours, theirs in zip(self.prompts, self.alone, self.theirs):
            fork = first_disagreement(self.ids_with_end(ours), theirs)
            limit = first_close_call(theirs)
            bound += limit
            to_the_end += fork is None
            if fork is not None:
                at, m = fork
                close_calls.append(f"{name}@{at}:{'?' if m is None else f'{m:.2f}'}")
            with self.subTest(prompt=name):
                self.assertTrue(
                    fork is None or fork[0] >= limit,
                    f"differs at {fork}, before the first close call at {limit}: "
                    f"ours {ours.ids}, llama.cpp's {theirs.ids}",
                )
        print(
            f"note: greedy: {to_the_end} of {len(self.prompts)} agree to the end, "
            f"{bound} tokens bound", flush=True,
        )
        print(f"forks (prompt@position:llama.cpp's margin): {' '.join(close_calls)}", flush=True)

    def test_most_forks_are_close_calls_of_the_peer(self):
        """Past the first close call nothing binds token for token, but wherever both still have
        the same history, the first token that differs is one that llama.cpp itself nearly chose."""
        for (name, _), ours, theirs in zip(self.prompts, self.alone, self.theirs):
            fork = first_disagreement(self.ids_with_end(ours), theirs)
            if fork is not None and fork[1] is not None:
                with self.subTest(prompt=name):
                    self.assertLess(fork[1], 0.5, f"fork at {fork[0]}")

    def test_the_same_bits_alone_and_all_together(self):
        for (name, _), alone, together in zip(self.prompts, self.alone, self.together):
            with self.subTest(prompt=name):
                self.assertEqual(alone, together)


if __name__ == "__main__":
    unittest.main()
