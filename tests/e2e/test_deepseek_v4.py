"""DeepSeek-V4 from outside: a folder without a tokenizer is served for token ids, and what
`/v1/completions` says with `echo` and `logprobs` is the reference's."""

import json
import math
import struct
import unittest
from pathlib import Path

from harness import servers
from harness.client import Refused

FOLDER = Path(__file__).parents[2] / "fixtures" / "dsv4-tiny"
LENGTHS = (24, 97, 300, 700)
# The bar on logits; a log-probability is a logit less a mean over logits, so twice that.
LOGPROB_MAX = 2 * 5e-5
TOP = 5


def tensors(path):
    """The tensors of a safetensors file of 32-bit words, by name: shape and words."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8 : 8 + length])
    head.pop("__metadata__", None)
    out = {}
    for name, facts in head.items():
        first, last = facts["data_offsets"]
        kind = {"F32": "f", "I32": "i", "U32": "I"}[facts["dtype"]]
        data = raw[8 + length + first : 8 + length + last]
        out[name] = (facts["shape"], struct.unpack(f"<{len(data) // 4}{kind}", data))
    return out


def reference(tokens):
    """Ids, and for every position the log-probabilities of what follows."""
    found = tensors(FOLDER / f"reference-{tokens}.safetensors")
    (rows, vocab), logits = found["logits"]
    scores = []
    for row in range(rows):
        values = logits[row * vocab : (row + 1) * vocab]
        most = max(values)
        norm = most + math.log(math.fsum(math.exp(v - most) for v in values))
        scores.append([v - norm for v in values])
    return list(found["ids"][1]), scores


def token(name):
    return int(name.removeprefix("token_id:"))


class TokenIds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.references = {n: reference(n) for n in LENGTHS}
        cls.server = servers.lockstep("--kv-memory", 256 << 20, model=FOLDER)
        cls.server.__enter__()
        cls.client = cls.server.client

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def body(self, ids):
        return {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": TOP, "temperature": 0}

    def check(self, answer, ids, scores):
        """Every echoed token, the alternatives at every position, and the token that follows."""
        lists = answer["choices"][0]["logprobs"]
        self.assertEqual([token(t) for t in lists["tokens"]][: len(ids)], ids)
        self.assertEqual(len(lists["tokens"]), len(ids) + 1)
        worst = 0.0
        for at in range(1, len(ids) + 1):
            row = scores[at - 1]
            said = token(lists["tokens"][at])
            worst = max(worst, abs(lists["token_logprobs"][at] - row[said]))
            top = lists["top_logprobs"][at]
            for name, value in top.items():
                worst = max(worst, abs(value - row[token(name)]))
            best = max(range(len(row)), key=row.__getitem__)
            self.assertIn(best, [token(name) for name in top])
        self.assertLess(worst, LOGPROB_MAX)
        return worst

    def test_echoed_log_probabilities_are_the_reference_s_alone_and_together(self):
        for n, (ids, scores) in self.references.items():
            worst = self.check(self.client.post("/v1/completions", self.body(ids)), ids, scores)
            print(f"note: {n} tokens: log-probabilities within {worst:.1e}", flush=True)
        bodies = [self.body(ids) for ids, _ in self.references.values()] * 2
        answers = self.client.all("/v1/completions", bodies, len(bodies))
        for answer, (ids, scores) in zip(answers, list(self.references.values()) * 2):
            self.check(answer, ids, scores)

    def test_the_greedy_continuation_is_the_reference_s(self):
        case = json.loads((FOLDER / "generate.json").read_text())
        wanted = case["greedy40"]
        body = {"prompt": case["prompt"], "max_tokens": len(wanted), "temperature": 0,
                "logprobs": 0, "ignore_eos": True}
        lists = self.client.post("/v1/completions", body)["choices"][0]["logprobs"]
        self.assertEqual([token(t) for t in lists["tokens"]], wanted)

    def test_what_needs_a_tokenizer_is_refused_with_the_reason(self):
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        stopped = {"prompt": [5, 6], "stop": ["x"], "max_tokens": 1}
        asked = (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "hi"}),
                 ("/v1/completions", stopped))
        for path, body in asked:
            with self.subTest(body=body), self.assertRaises(Refused) as refused:
                self.client.post(path, body)
            self.assertEqual(refused.exception.status, 422)
            self.assertIn("has no tokenizer.json", refused.exception.body)
            self.assertIn("token ids", refused.exception.body)
        self.assertIn("served for token ids alone", self.server.log())


if __name__ == "__main__":
    unittest.main()
