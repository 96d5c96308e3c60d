"""`lockstep check` against llama-server: clean as it is, and with answers damaged on their way.

The default model calls no tools, and cannot keep records; it can repeat a code and, mostly, a list.
So the gate has to find out by itself what it can prove with this model.
"""

import json
import os
import subprocess
import unittest
import urllib.request
from pathlib import Path

from harness import servers

SIZES = ["--sessions", "16", "--rounds", "2", "--context", "64", "--max-tokens", "64"]
# One answer in so many is damaged.
ONE_IN = 4
# Damage by what is done to an answer: the classes that it may be found in, and which share of it
# shows at least. A swap shows where the two answers differ; a piece that is dropped or doubled,
# where it is one of a code's.
DAMAGES = {
    "alter": ({"altered"}, 0.6),
    "swap": ({"swapped", "altered"}, 0.3),
    "leak": ({"structural"}, 0.8),
    "drop": ({"altered", "structural"}, 0.4),
    "duplicate": ({"altered", "structural"}, 0.4),
}
# What takes an answer away, with the count that it belongs in.
LOSSES = {"error": "errors", "cut": "errors", "stall": "timeouts"}


def check(url, *flags, timeout_s=240):
    """Exit code and report."""
    flags = [*flags, "--timeout", str(timeout_s)]
    argv = [servers.need("LOCKSTEP_BIN", "the lockstep binary"), "check", url, "--json", *SIZES, *flags]
    done = subprocess.run(argv, capture_output=True, timeout=900, check=False)
    if done.returncode > 2:
        raise AssertionError(f"exit {done.returncode}: {done.stdout!r} {done.stderr!r}")
    return done.returncode, json.loads(done.stdout)


class Faults:
    """The proxy that damages answers. Use as a context manager; gives its address."""

    def __init__(self, port, fault, one_in, after):
        binary = Path(servers.need("LOCKSTEP_BIN", "the lockstep binary")).parent / "examples" / "fault_proxy"
        if not binary.exists():
            raise RuntimeError(
                f"{binary} is missing: cargo build --release -p lockstep-check --example fault_proxy"
            )
        self.argv = [binary, f"127.0.0.1:{port}", fault, str(one_in), str(after)]

    def __enter__(self):
        self.process = subprocess.Popen(self.argv, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        return self

    def put_in(self):
        """How many answers it has damaged."""
        with urllib.request.urlopen(f"{self.url}/faults", timeout=30) as answer:
            return json.load(answer)["faults"]

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Gate(unittest.TestCase):
    def test_llama_server_is_clean_and_damage_is_told_apart(self):
        with servers.llama("--parallel", 4, "-c", 8192, "--slots") as peer:
            url = f"http://127.0.0.1:{peer.port}"
            code, clean = check(url)
            self.assertEqual(clean["server"]["kind"], "llama.cpp")
            self.assertEqual(clean["coverage"]["source"], "inferred")
            self.assertEqual(clean["corrupted"]["classes"], {}, clean["evidence"])
            self.assertEqual((code, clean["conclusion"]), (0, "clean"), clean["why"])
            self.assertGreaterEqual(clean["answers"]["judged"], 20)
            used = [k["kind"] for k in clean["kinds"] if k["used"]]
            calibrated = 2 * clean["calibration"]["requests"]
            flags = ["--kinds", ",".join(used), "--accept-partial-coverage"]
            # Each takes a minute; the room's own tests have every class beside an exact server.
            every = os.environ.get("LOCKSTEP_TEST_FAULTS") == "all"
            for fault in DAMAGES if every else ["alter"]:
                with Faults(peer.port, fault, ONE_IN, calibrated) as proxy:
                    code, report = check(proxy.url, *flags)
                    put_in = proxy.put_in()
                with self.subTest(fault=fault, evidence=report["evidence"][:3]):
                    self.judge_damage(fault, code, report, put_in)
            for fault in LOSSES if every else []:
                patience = 60 if fault == "stall" else 240
                with Faults(peer.port, fault, ONE_IN, calibrated) as proxy:
                    _, report = check(proxy.url, *flags, timeout_s=patience)
                    put_in = proxy.put_in()
                with self.subTest(fault=fault, answers=report["answers"]):
                    self.judge_loss(fault, report, put_in)

            if every:
                with Faults(peer.port, "leak", ONE_IN, calibrated) as proxy:
                    code, report = check(proxy.url, *flags, "--isolate")
                with self.subTest(ladder=report["ladder"]):
                    self.judge_ladder(code, report["ladder"])

    def judge_ladder(self, code, ladder):
        """The proxy damages chats alone: /v1/completions is the change that removes it."""
        self.assertEqual(code, 1)
        for rung in ladder:
            print(f"note: {rung['change']}: {rung['words']}", flush=True)
        removing = [rung["change"] for rung in ladder if rung["removes"]]
        self.assertEqual(len(removing), 1, removing)
        self.assertIn("/v1/completions in place of chat (as text of the server's own", removing[0])
        words = {rung["change"]: rung["words"] for rung in ladder}
        self.assertIn("GGML_CUDA_DISABLE_GRAPHS=1", words["every step op by op (eager)"])

    def judge_damage(self, fault, code, report, put_in):
        """Found, in its class, and as often as it was put in."""
        classes, shown = DAMAGES[fault]
        self.assertEqual((code, report["conclusion"]), (1, "corrupted"))
        self.assertLessEqual(set(report["corrupted"]["classes"]), classes)
        self.assertLessEqual(report["answers"]["corrupted"], put_in)
        low, high = report["corrupted"]["interval_95"]
        self.assertLessEqual(low, 1 / ONE_IN)
        self.assertGreaterEqual(high, shown / ONE_IN)
        print(f"note: {fault}: {report['answers']['corrupted']} of {report['answers']['judged']} "
              f"corrupted, {put_in} put in: {report['corrupted']['classes']}", flush=True)

    def judge_loss(self, fault, report, put_in):
        """Counted for what it is, each time that it was not put into an aborted answer."""
        answers = report["answers"]
        self.assertEqual(answers["corrupted"], 0)
        lost = answers[LOSSES[fault]]
        self.assertGreater(lost, 0)
        self.assertGreaterEqual(lost, put_in - answers["aborted_on_purpose"])
        if fault != "stall":
            # An answer may be late by itself.
            self.assertLessEqual(lost, put_in)
        print(f"note: {fault}: {lost} {LOSSES[fault]}, {put_in} put in", flush=True)


if __name__ == "__main__":
    unittest.main()
