"""`lockstep bench` against llama-server: what it counts is what the server counts, what a witness
between the two saw of the very same requests, and what another client gets of the same load.

Times are printed and asserted nowhere: `python3 bench/agreement.py` holds them together, by hand, on
a quiet machine.
"""

import unittest

from harness import agreement, servers
from harness.witness import Witness


class Agreement(unittest.TestCase):
    def test_counts_agree_with_llama_cpp_and_a_witness(self):
        slots, requests, prompt, output = 4, 8, 48, 48
        with servers.llama("--parallel", slots, "-c", 4096) as peer, Witness(peer.port) as witness:
            point = agreement.bench(
                witness.port, slots, requests, prompt, output, "--min-repeats", 2,
                "--max-repeats", 2, "--ci", "99%")
            other = agreement.independent(peer, slots, requests, prompt, output)
        own = point["lockstep"]
        self.assertEqual(point["completed"], 2 * requests)
        self.assertEqual(point["total_input_tokens"], 2 * requests * prompt)
        self.assertEqual(point["total_output_tokens"], 2 * requests * output)
        self.assertEqual(point["max_concurrent_requests"], slots)
        counted = [own[k] for k in ("refused", "timeouts", "errors", "output_unlike")]
        self.assertEqual(counted, [0, 0, 0, 0])
        self.assertEqual(other.output_tokens, requests * output)
        self.assertIsNotNone(own["server_request_tokens_per_s"], "llama.cpp's timings were read")
        seen = witness.answers(output)
        self.assertEqual(len(seen), 2 * requests)
        self.assertEqual(sum(s.tokens for s in seen), point["total_output_tokens"])
        self.assertTrue(all(s.sent < s.outputs[0] <= s.ended for s in seen))
        of_all = agreement.ratios(point, seen)
        of_all["tokens/s"] = own["client_request_tokens_per_s"] / own["server_request_tokens_per_s"]
        self.assertTrue(all(ratio > 0 for ratio in of_all.values()), of_all)
        said = ", ".join(f"{name} {ratio:.3f}" for name, ratio in of_all.items())
        print(f"note: bench over the witness (tokens/s: over llama.cpp): {said}", flush=True)


if __name__ == "__main__":
    unittest.main()
