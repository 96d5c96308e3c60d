"""`lockstep bench` against llama-server: it counts what the server counts, and its figures are
those of llama.cpp itself and of a witness between the two, of the very same requests.

How fast the machine is today is asserted nowhere: only that two who measure the same events say
the same of them. `python3 bench/agreement.py` publishes the ratios from a quiet machine, those to
an independent client's own load among them.
"""

import unittest

from harness import agreement, servers
from harness.witness import Witness

CLOSE = 0.03


class Agreement(unittest.TestCase):
    def test_counts_and_figures_agree_with_llama_cpp_and_a_witness(self):
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
        ratio = own["client_request_tokens_per_s"] / own["server_request_tokens_per_s"]
        self.assertLess(abs(ratio - 1), CLOSE, "bench over llama.cpp's own tokens/s")
        seen = witness.answers(output)
        self.assertEqual(len(seen), 2 * requests)
        for name, ratio in agreement.ratios(point, seen).items():
            with self.subTest(figure=name):
                self.assertLess(abs(ratio - 1), CLOSE, "bench over the witness")


if __name__ == "__main__":
    unittest.main()
