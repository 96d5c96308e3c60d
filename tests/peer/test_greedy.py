"""Greedy continuations agree with llama.cpp up to its first close call.

Both engines round activations to eight bits, in different places, and each is about 0.07 nat away
from the same model in plain f32. So now and then a margin above the bound is noise of the peer's
own. Such a fork is excused only by the peer itself: with attention in f32 (`-fa off`, f32 KV) it
must choose our token there, or call it close. At least 20 prompts, 5 of them long, must need no
excuse.
"""

import unittest

from harness import corpus, gguf, servers, tokens

CLOSE_CALL_NATS = 0.15
PROMPTS, LONG_PROMPTS, LONG_TOKENS = 20, 5, 500
PRECISE = ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]


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

    def test_tokens_agree_up_to_the_first_close_call(self):
        to_the_end, bound, strict, forks, early = 0, 0, [], [], []
        for (name, prompt), ours, theirs in zip(self.prompts, self.alone, self.theirs):
            ids = self.ids_with_end(ours)
            fork = first_disagreement(ids, theirs)
            limit = first_close_call(theirs)
            bound += limit
            to_the_end += fork is None
            if fork is not None:
                at, m = fork
                forks.append(f"{name}@{at}:{'?' if m is None else f'{m:.2f}'}")
            if fork is None or fork[0] >= limit:
                strict.append(len(prompt))
            else:
                early.append((name, prompt + theirs.ids[: fork[0]], ids[fork[0] : fork[0] + 1]))
        print(
            f"note: greedy: {len(strict)} of {len(self.prompts)} agree up to llama.cpp's first "
            f"close call ({bound} tokens bound), {to_the_end} to the end, "
            f"{len(early)} excused by its own f32 attention", flush=True,
        )
        print(f"forks (prompt@position:llama.cpp's margin): {' '.join(forks)}", flush=True)
        self.excuse(early)
        self.assertGreaterEqual(len(strict), PROMPTS)
        self.assertGreaterEqual(sum(n > LONG_TOKENS for n in strict), LONG_PROMPTS)

    def excuse(self, early):
        """Fails for every early fork that llama.cpp with f32 attention decides clearly against
        our token."""
        if not early:
            return
        with servers.llama("--parallel", 1, "-c", 8192, *PRECISE) as peer:
            for name, history, ours in early:
                tops = tokens.theirs(peer.client, history, 1, tops=2).tops[0]
                with self.subTest(prompt=name, ours=ours, peer=tops):
                    close = tops[0][1] - tops[1][1] < CLOSE_CALL_NATS
                    self.assertTrue(ours == [tops[0][0]] or (close and ours == [tops[1][0]]))

    def test_no_fork_is_a_clear_choice_of_the_peer(self):
        """Past the first close call nothing binds token for token, but as long as both have the
        same history, the first token that differs is one that llama.cpp nearly chose."""
        for (name, _), ours, theirs in zip(self.prompts, self.alone, self.theirs):
            fork = first_disagreement(self.ids_with_end(ours), theirs)
            if fork is not None and fork[1] is not None:
                with self.subTest(prompt=name):
                    self.assertLess(fork[1], 1.0, f"fork at {fork[0]}")

    def test_the_same_bits_alone_and_all_together(self):
        for (name, _), alone, together in zip(self.prompts, self.alone, self.together):
            with self.subTest(prompt=name):
                self.assertEqual(alone, together)


if __name__ == "__main__":
    unittest.main()
