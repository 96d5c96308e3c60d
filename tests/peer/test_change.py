"""`lockstep change` on llama.cpp's server, by restart: through a script and through a supervised
command. 4 slots become 16 and are kept; one slot is slower where 16 requests come at once, and that
change is rolled back, file and process."""

import json
import tempfile
import unittest
from pathlib import Path

from harness import servers
from harness.client import Client
from peer import llama_change

# Seconds of load: six answers prove little, and the states are what is shown.
GATES = """
[ready]
seconds = 120
log = "server.log"
[gates]
concurrency = [16]
rounds = 1
repeats = 1
input = 8
tokens = 8
tolerance-percent = 5
p99-factor-max = 100
[check]
sessions = 6
rounds = 1
context = 16
tokens = 24
accept-inconclusive = true
kinds = ["echo"]
[watch]
seconds = 0
"""


class Change(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-change-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        (self.dir / "targets").mkdir()
        self.port = servers.free_port()
        llama = Path(servers.need("LOCKSTEP_LLAMA_BIN", "the folder of llama.cpp's binaries"))
        self.words = [
            str(llama / "llama-server"), "-m", servers.model_path(), "--port", str(self.port),
            "-c", "8192", "-t", "2", "-tb", "2", "--slots", "--parallel",
        ]
        self.addCleanup(llama_change.end, self.port)

    def start(self, argv):
        return llama_change.start(self, argv, Client(self.port))

    def change(self, *arguments):
        return llama_change.change(self.dir, "--target", "llama", *arguments)

    def slots(self):
        return Client(self.port).get("/props")["total_slots"]

    def kept(self, path):
        """4 -> 16; the file before and after."""
        before = path.read_text()
        code, done, said = self.change("--set", "parallel=16", "--tolerance", "90")
        self.assertEqual((code, done["state"]), (0, "kept"), (done, said))
        self.assertEqual(self.slots(), 16)
        record = Path(done["record"])
        gate = json.loads((record / "check.json").read_text())
        self.assertEqual(gate["corrupted"]["classes"], {}, gate["evidence"])
        self.assertGreaterEqual(gate["answers"]["judged"], 3)
        self.assertEqual((record / "backup" / path.name).read_text(), before)
        decision = (record / "decision.md").read_text()
        self.assertIn("Downtime: ", decision)
        self.assertIn("llama-slots-share-the-context", (record / "prediction.json").read_text())
        # The last is the measured one.
        downtime = [line for line in decision.splitlines() if line.startswith("- Downtime: ")][-1]
        print(f"note: llama-server {path.name}: parallel 4 -> 16 kept; {downtime[2:]}", flush=True)
        return before, path.read_text()

    def test_through_a_script(self):
        script = self.dir / "serve.sh"
        line = " ".join(f"'{w}'" for w in self.words)
        script.write_text(f"#!/bin/sh\n# four slots: --parallel 4\nexec {line} \\\n  4 # few\n")
        (self.dir / "targets" / "llama.toml").write_text(
            f'kind = "llama.cpp"\nurl = "http://127.0.0.1:{self.port}"\n[launch]\n'
            f'method = "script"\npath = "serve.sh"\nprogram = "llama-server"\n{GATES}')
        self.start(["sh", "serve.sh"])
        before, kept = self.kept(script)
        self.assertEqual(kept, before.replace("  4 # few", "  16 # few"))
        code, done, said = self.change("--set", "parallel=1")
        self.assertEqual((code, done["state"]), (11, "rolled_back"), (done, said))
        self.assertTrue(done["reasons"][0].startswith("throughput: at 16: "), done)
        self.assertEqual((script.read_text(), self.slots()), (kept, 16))
        print(f"note: llama-server parallel 16 -> 1: {done['reasons'][0]}", flush=True)

    def test_through_a_supervised_command(self):
        target = self.dir / "targets" / "llama.toml"
        words = ",\n  ".join(json.dumps(w) for w in [*self.words, "4"])
        target.write_text(
            f'kind = "llama.cpp"\nurl = "http://127.0.0.1:{self.port}"\n[launch]\n'
            f'method = "command"\ncommand = [\n  {words}, # few\n]\n{GATES}')
        self.start([*self.words, "4"])
        before, kept = self.kept(target)
        self.assertEqual(kept, before.replace('"4", # few', '"16", # few'))


if __name__ == "__main__":
    unittest.main()
