"""`lockstep change` behind a router that nobody here wrote: Shepherd Model Gateway (smg, what SGLang's
gateway became) before two llama-servers, with streams through it that never notice. A worker is
drained through the gateway, restarted with a single slot in place of eight, put back, found to be
slower, drained again, restarted as it was, and put back. With LOCKSTEP_TEST_ROUTER=all both workers
begin with 4 slots, and one after the other get and keep 8 before that."""

import os
import subprocess
import sys
import time
import unittest

from harness import change, servers
from harness.client import Client, Refused
from harness.streams import Streams
from peer import llama_change

STREAMS = 2
TOKENS = 24
# Between a stream's answers: the gates measure beside them, on the same two cores.
PAUSE_S = 0.5
# Nearly all of the time is decoding, eight rows a step or one.
GATES = "[ready]\nseconds = 300" + change.gates(
    sessions=3, tokens=16, load=(8, 32), concurrency=8, sure=False)
EVERY = os.environ.get("LOCKSTEP_TEST_ROUTER") == "all"
SLOTS = 4 if EVERY else 8


class Routed(unittest.TestCase):
    def setUp(self):
        self.dir = change.folder(self)
        self.ports = {}
        self.gateway = Client(servers.free_port())
        for name in "ab":
            self.worker(name)
        self.route()

    def worker(self, name):
        """A llama-server with its slots, its script and its target."""
        port = self.ports[name] = servers.free_port()
        line = " ".join(f"'{w}'" for w in llama_change.words(port))
        (self.dir / f"{name}.sh").write_text(f"#!/bin/sh\nexec {line} {SLOTS}\n")
        (self.dir / "targets" / f"{name}.toml").write_text(
            f'kind = "llama.cpp"\nurl = "http://127.0.0.1:{port}"\n'
            f'router = "http://127.0.0.1:{self.gateway.port}"\n[launch]\nmethod = "script"\n'
            f'path = "{name}.sh"\nprogram = "llama-server"\n{GATES}')
        self.addCleanup(llama_change.end, port)
        llama_change.start(self, ["sh", f"{name}.sh"], Client(port))

    def route(self):
        """The gateway, with both workers. A retry would hide a request that a drain lost."""
        urls = [f"http://127.0.0.1:{port}" for port in self.ports.values()]
        argv = [sys.executable, "-m", "smg.launch_router", "--host", "127.0.0.1",
                "--port", str(self.gateway.port), "--prometheus-host", "127.0.0.1",
                "--prometheus-port", str(servers.free_port()), "--policy", "round_robin",
                "--disable-retries", "--log-level", "warn", "--worker-urls", *urls]
        with open(self.dir / "gateway.log", "wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.kill)
        begun = time.perf_counter()
        while self.rotation() != sorted(urls):
            self.assertIsNone(process.poll(), (self.dir / "gateway.log").read_text())
            self.assertLess(time.perf_counter() - begun, 300, (self.dir / "gateway.log").read_text())
            time.sleep(0.1)

    def rotation(self):
        """The workers that get requests."""
        try:
            all_workers = self.gateway.get("/workers")["workers"]
        except (OSError, Refused):
            return []
        return sorted(w["url"] for w in all_workers if w["status"] == "ready" and w["is_healthy"])

    def change(self, *arguments):
        return change.run(self.dir, *arguments, env=llama_change.QUIET)

    def drained(self, record, times):
        """Out of rotation and idle before each restart."""
        lines = change.journal(self.dir / record)
        found = [line["facts"]["idle"] for line in lines if line["word"] == "drained"]
        self.assertEqual(found, [True] * times)

    def slots(self):
        return [Client(port).get("/props")["total_slots"] for port in self.ports.values()]

    def test_a_worker_is_drained_changed_and_put_back_and_streams_never_notice(self):
        both = self.rotation()
        model = self.gateway.get("/v1/models")["data"][0]["id"]
        stories = Streams(self.gateway, "/v1/chat/completions", lambda i: {
            "model": model, "messages": [{"role": "user", "content": f"Tell the story of house {i}."}],
        }, STREAMS, TOKENS, PAUSE_S, same=False)
        with stories as streams:
            # Each change takes half a minute or more. What goes back is drained and put back twice.
            for name in "ab" if EVERY else "":
                before = len(streams.answers)
                code, done, said = self.change("--target", name, "--set", "parallel=8")
                self.assertEqual((code, done["state"]), (0, "kept"), (done, said))
                self.drained(done["record"], 1)
                self.assertEqual(self.rotation(), both)
                self.assertGreater(len(streams.answers), before)
            slots = self.slots()
            self.assertEqual(slots, [8, 8])
            code, done, said = self.change("--target", "b", "--set", "parallel=1",
                                           "--tolerance", "5")
            self.assertEqual((code, done["state"]), (11, "rolled_back"), (done, said))
            self.assertTrue(done["reasons"][0].startswith("throughput: at 8: "), done)
            self.drained(done["record"], 2)
            self.assertEqual((self.slots(), self.rotation()), (slots, both))
        self.assertEqual(streams.failures, [])
        kept = "parallel 4 -> 8 kept on both, then " if EVERY else "parallel "
        print(f"note: smg before two llama-servers: {kept}{slots[1]} -> 1 rolled back; "
              f"{len(streams.answers)} streamed answers beside it, none failed", flush=True)


if __name__ == "__main__":
    unittest.main()
