"""Contract 1 from outside: a request's tokens and log-probabilities are the same bits alone, in
any company, in any bucket, captured or eager, in chunks of any size, after a prefix-cache hit,
after a preemption, on any number of threads and on every instruction set."""

import unittest
from pathlib import Path

from harness import probes, servers

OFF = ["--prefix-cache", "false"]


def cpu_flags():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


class LockstepNumerics(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        with servers.lockstep(*OFF, name="reference") as server:
            cls.probes = probes.probes(server)
            cls.few = probes.probes(server, most_prompt_tokens=150, max_tokens=8)
            cls.noise = probes.noise(server)
            cls.reference = probes.ask_alone(server, cls.probes)
            cls.few_reference = probes.ask_alone(server, cls.few)
            status = probes.status(server)
        if status["counters"]["cached_tokens"] != 0:
            raise AssertionError("the reference must be computed without the prefix cache")

    def same(self, found, reference=None):
        reference = reference or self.reference
        for name, wanted in reference.items():
            with self.subTest(probe=name):
                self.assertEqual(found[name], wanted)

    def alone_with(self, *flags):
        with servers.lockstep(*OFF, *flags) as server:
            self.same(probes.ask_alone(server, self.probes))
            return probes.status(server)

    def test_the_probes_can_tell_a_difference(self):
        """Two seeds of one prompt differ, so that equality above is not equality of nothing."""
        self.assertNotEqual(self.reference["sampled"], self.reference["sampled, another seed"])
        choices = self.reference["three choices"]
        self.assertGreater(len({c[1] for c in choices}), 1)
        for name, answer in self.reference.items():
            self.assertTrue(answer[0][3]["token_logprobs"], name)

    def test_in_company(self):
        with servers.lockstep(*OFF) as server:
            for found in probes.ask_together(server, self.probes, copies=2, noise=self.noise):
                self.same(found)
            status = probes.status(server)
        used = [b for b in status["buckets"] if b["replays"] + b["eager_steps"] > 0]
        self.assertGreater(max(b["seqs"] for b in used), 8, "the load never made a batch")
        self.assertGreater(len(used), 3, "the load stayed in a few buckets")

    def test_captured_and_eager(self):
        with servers.lockstep(*OFF, "--graph-max-bs", 1, name="eager") as server:
            for found in probes.ask_together(server, self.probes, noise=self.noise):
                self.same(found)
            eager = probes.status(server)
        self.assertGreater(eager["eager_steps"].get("above_graph_max_bs", 0), 0)
        with servers.lockstep(*OFF, "--graph-max-bs", 64, name="captured") as server:
            for found in probes.ask_together(server, self.probes, noise=self.noise):
                self.same(found)
            captured = probes.status(server)
        self.assertEqual(captured["eager_steps"].get("above_graph_max_bs", 0), 0)
        self.assertGreater(captured["counters"]["decode_steps_captured"], 0)

    def test_chunks_of_any_size(self):
        for size in (16, 50):
            with self.subTest(chunked_prefill_size=size):
                status = self.alone_with("--chunked-prefill-size", size)
                self.assertGreater(status["counters"]["prefill_steps"], 0)

    def test_smaller_chunks_make_more_steps(self):
        """The chunk size takes effect, so that the test above compares different runs."""
        steps = []
        for size in (16, 512):
            with servers.lockstep(*OFF, "--chunked-prefill-size", size) as server:
                probes.ask_alone(server, self.probes[-1:])
                steps.append(probes.status(server)["counters"]["prefill_steps"])
        self.assertGreater(steps[0], 4 * steps[1])

    def test_after_a_prefix_cache_hit(self):
        with servers.lockstep() as server:
            self.same(probes.ask_alone(server, self.probes))
            before = probes.status(server)["counters"]["cached_tokens"]
            self.same(probes.ask_alone(server, self.probes))
            for found in probes.ask_together(server, self.probes, noise=self.noise):
                self.same(found)
            after = probes.status(server)["counters"]["cached_tokens"]
        self.assertGreater(after - before, 1000, "the second round must come from the cache")

    def test_after_a_preemption(self):
        """A pool too small for all that run: some are put back and resumed."""
        with servers.lockstep(*OFF, name="roomy") as server:
            ids = probes.text(server, "word " * 4 + "Bread rises when yeast eats sugar. " * 3)
            wanted = [
                (f"row {row}", {
                    "prompt": ids[row : row + 24], "max_tokens": 200, "temperature": 0.7,
                    "seed": row, "logprobs": 2, "ignore_eos": True,
                    "return_tokens_as_token_ids": True,
                })
                for row in range(8)
            ]
            reference = probes.ask_alone(server, wanted)
        with servers.lockstep(*OFF, "--kv-memory", "24MiB", name="cramped") as server:
            found = probes.ask_together(server, wanted)[0]
            status = probes.status(server)
        self.assertGreater(status["counters"]["preemptions"], 0, status["pools"])
        self.same(found, reference)

    def test_one_thread_and_two(self):
        for threads in (1, 2):
            with self.subTest(threads=threads):
                status = self.alone_with("--threads", threads)
                self.assertEqual(status["device"]["threads"], threads)

    def test_one_lane(self):
        self.alone_with("--lanes", 1)

    def isa(self, flag, needs):
        if not needs <= cpu_flags():
            self.skipTest(f"this machine lacks {', '.join(sorted(needs - cpu_flags()))}")
        with servers.lockstep(*OFF, "--isa", flag, name=flag) as server:
            status = probes.status(server)
            self.assertTrue(status["device"]["isa"].startswith(flag), status["device"])
            if flag == "portable":
                self.same(probes.ask_alone(server, self.few), self.few_reference)
            else:
                self.same(probes.ask_alone(server, self.probes))

    def test_on_avx512(self):
        self.isa("avx512", {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"})

    def test_on_avx2(self):
        self.isa("avx2", {"avx2", "fma", "f16c"})

    def test_on_the_portable_path(self):
        self.isa("portable", set())


if __name__ == "__main__":
    unittest.main()
