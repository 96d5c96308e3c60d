"""`lockstep change` on llama.cpp's server, by restart: through a script and through a supervised
command. 4 slots become 16 and are kept; one slot is slower where 16 requests come at once, and that
change is rolled back, file and process. Answers are long enough that nearly all of the time is
decoding, sixteen rows a step or one."""

import json
import unittest
from pathlib import Path

from harness import change, servers
from harness.client import Client
from peer import llama_change

GATES = '[ready]\nseconds = 300\nlog = "server.log"' + change.gates(
    sessions=6, tokens=24, load=(8, 32), tolerance=5, p99=100, concurrency=16, sure=False)



class Change(unittest.TestCase):
    def setUp(self):
        self.dir = change.folder(self)
        self.port = servers.free_port()
        self.words = llama_change.words(self.port)
        self.addCleanup(llama_change.end, self.port)

    def start(self, argv):
        return llama_change.start(self, argv, Client(self.port))

    def change(self, *arguments):
        return change.run(self.dir, "--target", "llama", *arguments, env=llama_change.QUIET)

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
