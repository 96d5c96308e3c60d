"""`lockstep check` against llama-server: clean as it is, and with answers damaged on their way.

The default model calls no tools, and cannot keep records; it can repeat a code and, mostly, a list.
So the gate has to find out by itself what it can prove with this model.
"""

import json
import os
import subprocess
import unittest
from pathlib import Path

from harness import servers

SIZES = ["--sessions", "16", "--rounds", "2", "--context", "64", "--max-tokens", "64", "--timeout", "240"]


def check(url, *flags):
    """Exit code and report."""
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
        return self.process.stdout.readline().strip()

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
            damages = {"alter": {"altered"}}
            if os.environ.get("LOCKSTEP_TEST_FAULTS") == "all":
                damages |= {"swap": {"swapped", "altered"}, "leak": {"structural"}}
            for fault, classes in damages.items():
                with Faults(peer.port, fault, 4, calibrated) as proxy:
                    code, report = check(proxy, *flags)
                found = set(report["corrupted"]["classes"])
                with self.subTest(fault=fault, evidence=report["evidence"][:3]):
                    self.assertEqual((code, report["conclusion"]), (1, "corrupted"))
                    self.assertLessEqual(found, classes)
            if len(damages) > 1:
                with Faults(peer.port, "error", 4, calibrated) as proxy:
                    code, report = check(proxy, *flags)
                self.assertGreater(report["answers"]["errors"], 0)
                self.assertEqual(report["answers"]["corrupted"], 0)


if __name__ == "__main__":
    unittest.main()
