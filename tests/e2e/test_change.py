"""`lockstep change` on the default model, live, with streams beside it that never notice: the ceiling
from 32 to 96 to the very end, a change that is slower, and one that memory does not hold.

The streams are greedy and the same all the time, so each of their answers has to be the first one's,
letter for letter, through every generation.
"""

import json
import os
import shutil
import time
import unittest
from pathlib import Path

from harness import browser, change, servers
from harness.streams import Streams

STREAMS = 3
TOKENS = 24
SETTINGS = """# ours
[decode]
graph-max-bs = 32 # as in the story
[sched]
max-running-requests = 96
[pool]
kv-memory = "512MiB"
"""
NEW = [40, 48, 56, 64, 72, 80, 88, 96]


def load(server):
    return Streams(server.client, "/v1/completions", lambda i: {
        "prompt": f"Tell the story of house number {i}, in which"}, STREAMS, TOKENS)


class Change(unittest.TestCase):
    def setUp(self):
        self.dir = change.folder(self)
        self.settings = self.dir / "lockstep.toml"
        self.settings.write_text(SETTINGS)
        self.wrapper = []

    def target(self, server, gates):
        (self.dir / "targets/ours.toml").write_text(
            f'kind = "lockstep"\nurl = "http://127.0.0.1:{server.port}"\n[launch]\nmethod = "live"\n{gates}')

    def change(self, *arguments):
        return change.run(self.dir, *arguments, wrapper=self.wrapper)

    def test_32_to_96_under_load_is_kept_and_what_is_slower_is_not(self):
        # The load's prompts are the same before and after: nothing of them is to be there already.
        flags = ["--config", self.settings, "--prefix-cache", "false"]
        with servers.lockstep(*flags, name="change") as server:
            self.target(server, change.gates(sessions=96, tokens=32))
            with load(server) as streams:
                began = time.monotonic()
                code, done, said = self.change("--set", "decode.graph-max-bs=96", "--why", "the story")
                kept_s = time.monotonic() - began
                self.assertEqual((code, done["state"]), (0, "kept"), (done, said))
                answers = len(streams.answers)
                record = Path(done["record"])
                self.assert_kept(server, record)
                self.assert_slower_is_rolled_back(server)
            self.assertEqual(streams.failures, [])
            engine = server.client.get("/server_info")["lockstep"]["engine"]
            counters = engine["counters"]
            self.assertEqual((counters["failed"], counters["flips"], counters["rollbacks"]), (0, 2, 1), counters)
        gap = change.journal(record)[7]["facts"]["gap"]
        print(f"note: 32 -> 96 kept in {kept_s:.0f} s beside {answers} streamed answers, none failed; "
              f"between two steps: {gap}", flush=True)

    def assert_kept(self, server, record):
        info = server.client.get("/server_info")
        buckets = info["internal_states"][0]["decode_cuda_graph_bs"]
        self.assertEqual((buckets[-8:], len(buckets)), (NEW, 16))
        states = [g["state"] for g in info["lockstep"]["engine"]["generations"]]
        self.assertEqual(states, ["retired", "live"])
        self.assertEqual(self.settings.read_text(), SETTINGS.replace("= 32 #", "= 96 #"))
        decision = (record / "decision.md").read_text()
        for words in ("Kept.", "the story", "change undo 1", f"each of {NEW} was reached under load"):
            self.assertIn(words, decision)
        gate = json.loads((record / "check.json").read_text())
        self.assertEqual((gate["conclusion"], gate["corrupted"]["classes"]), ("clean", {}))
        journal = [line["word"] for line in change.journal(record)]
        self.assertEqual(journal, ["proposed", "checked", "backed_up", "stage", "staged", "proven", "flip",
                                   "flipped", "watched", "keep", "kept"])
        self.assert_page(record)

    def assert_page(self, record):
        """The record as a person sees it: plots of before and after at each concurrency, nothing
        fetched, nothing wider than a phone."""
        with browser.Browser() as page:
            page.open((record / "index.html").as_uri())
            self.assertEqual(page.eval("document.querySelector('h1').textContent"),
                             "Change 1: decode.graph-max-bs=96")
            bars = page.eval("[...document.querySelectorAll('svg')].map(s => "
                             "[s.querySelectorAll('.b').length, s.querySelectorAll('.a').length])")
            self.assertEqual(bars, [[3, 3]] * 3)
            page.screenshot(servers.out_dir() / "change-record.png")
            page.resize(390, 800, mobile=True)
            self.assertLessEqual(page.eval("document.documentElement.scrollWidth"), 390)
            links = page.eval("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
            self.assertTrue(all((record / link).is_file() for link in links), links)
            self.assertGreaterEqual(len(links), 3)
            page.screenshot(servers.out_dir() / "change-record-phone.png")
            page.theme(dark=True)
            page.screenshot(servers.out_dir() / "change-record-dark.png")
            self.assertEqual(page.console, [])
            fetched = [url for url in page.requests if not url.startswith(("file:", "about:"))]
            self.assertEqual(fetched, [])

    def assert_slower_is_rolled_back(self, server):
        """One row a step where there were sixteen: a fraction of the output, which the noise of a machine
        does not make up for."""
        self.target(server, change.gates(sessions=2, tokens=16, load=(8, 24), tolerance=10,
                                         concurrency=16, sure=False))
        before = self.settings.read_text()
        code, done, said = self.change("--set", "sched.max-running-requests=1")
        self.assertEqual((code, done["state"]), (11, "rolled_back"), (done, said))
        self.assertTrue(done["reasons"][0].startswith("throughput: at 16: "), done)
        self.assertEqual(self.settings.read_text(), before)
        knobs = {k["name"]: k["value"] for k in server.client.get("/server_info")["lockstep"]["knobs"]}
        self.assertEqual(knobs["sched.max-running-requests"], 96)
        print(f"note: {done['reasons'][0]}", flush=True)

    def test_what_memory_does_not_hold_is_rolled_back(self):
        flags = ["--config", self.settings, "--generation-memory", "1MiB"]
        with servers.lockstep(*flags, name="change-memory") as server:
            gates = change.gates(sessions=96, tokens=32, concurrency=1)
            self.target(server, gates)
            with load(server) as streams:
                code, done, said = self.change("--set", "decode.graph-max-bs=96")
            self.assertEqual((code, done["state"]), (11, "rolled_back"), (done, said))
            self.assertIn("generations.memory is 1048576", done["reasons"][0])
            self.assertEqual(streams.failures, [])
            self.assertEqual(self.settings.read_text(), SETTINGS)
            # Less would be free than has to stay: not even begun.
            self.target(server, f"{gates}[limits]\nreserve-bytes = {1 << 49}\n")
            code, done, said = self.change("--set", "decode.graph-max-bs=96")
            self.assertEqual(code, 12, (done, said))
            self.assertIn("must stay free", done["error"]["message"])
            self.target(server, gates)
            self.assert_a_full_disk_touches_nothing(server)

    def assert_a_full_disk_touches_nothing(self, server):
        """Records on a file system that is full before the settings file is copied."""
        if os.geteuid() != 0 or not shutil.which("unshare"):
            print("note: full disk skipped: a file system of its own needs root and unshare", flush=True)
            return
        padded = SETTINGS + "# a line of this file\n" * 40_000
        self.settings.write_text(padded)
        full = 'mount -t tmpfs -o size=512k tmpfs records && exec "$@"'
        self.wrapper = ["unshare", "--mount", "sh", "-c", full, "sh"]
        code, done, said = self.change("--set", "decode.graph-max-bs=96")
        self.assertEqual((code, done["state"]), (11, "rolled_back"), (done, said))
        self.assertRegex(done["reasons"][0], "cannot be copied before it is changed .No space left")
        self.assertEqual(self.settings.read_text(), padded)
        counters = server.client.get("/server_info")["lockstep"]["engine"]["counters"]
        # The one that memory did not hold.
        self.assertLessEqual(counters["generations_staged"], 1)


if __name__ == "__main__":
    unittest.main()
