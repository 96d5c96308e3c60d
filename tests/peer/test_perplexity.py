"""The perplexity of one fixed text of 2,000 tokens agrees with llama.cpp's."""

import math
import unittest

from harness import corpus, servers, tokens

TOKENS = 2000
TOLERANCE = 0.005


def perplexity(logprobs):
    return math.exp(-sum(logprobs) / len(logprobs))


class Perplexity(unittest.TestCase):
    def test_both_give_the_same_within_half_a_percent(self):
        with servers.llama("--parallel", 1, "-c", 4096) as peer:
            body = {"content": corpus.passage()}
            prompt = peer.client.post("/tokenize", body)["tokens"][:TOKENS]
            self.assertEqual(len(prompt), TOKENS)
            theirs = tokens.their_prompt_logprobs(peer.client, prompt)
        with servers.lockstep() as server:
            ours = tokens.prompt_logprobs(server.client, prompt)
        self.assertEqual(len(ours), len(theirs))
        mine, other = perplexity(ours), perplexity(theirs)
        ratio = mine / other
        apart = sum(abs(a - b) for a, b in zip(ours, theirs)) / len(ours)
        print(
            f"note: perplexity of {TOKENS} tokens: ours {mine:.4f}, llama.cpp {other:.4f}, "
            f"ratio {ratio:.5f}, mean |difference| {apart:.4f} nat", flush=True,
        )
        self.assertLess(abs(ratio - 1), TOLERANCE)


if __name__ == "__main__":
    unittest.main()
