"""A request's life as a client sees it: streamed and whole, left early, and a server that stops."""

import http.client
import json
import tempfile
import time
import unittest
from pathlib import Path

from harness import client, probes, servers
from harness.streams import Streams


def until(check, limit_s=300):
    """Waits for a condition; the limit is a bound on a broken run, not a measurement."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("the awaited state did not come")


class Life(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = servers.lockstep("--prefix-cache", "false").__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_a_stream_spells_the_same_text_as_a_whole_answer(self):
        for name, body in probes.probes(self.server):
            if body.get("n", 1) == 1 and not body.get("echo"):
                with self.subTest(probe=name):
                    whole = self.server.client.post("/v1/completions", body)["choices"][0]
                    events = self.server.client.stream(
                        "/v1/completions", {**body, "stream": True})
                    parts = [e["choices"][0] for _, e in events if e["choices"]]
                    self.assertEqual("".join(p["text"] for p in parts), whole["text"])
                    ends = [p["finish_reason"] for p in parts if p["finish_reason"]]
                    self.assertEqual(ends, [whole["finish_reason"]])

    def test_a_client_that_leaves_frees_its_pages(self):
        before = probes.status(self.server)
        conn = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        conn.request("POST", "/v1/completions", json.dumps(body),
                     {"content-type": "application/json"})
        answer = conn.getresponse()
        for _ in range(4):
            answer.readline()
        self.assertEqual(probes.status(self.server)["running"], 1)
        answer.close()
        conn.close()
        until(lambda: probes.status(self.server)["running"] == 0)
        after = probes.status(self.server)
        self.assertEqual(after["counters"]["cancelled"], before["counters"]["cancelled"] + 1)
        # Canary steps of the first generation have pages of their own as long as they run.
        until(lambda: probes.status(self.server)["pools"][0]["pages_used"] == 0)

    def test_refusals_say_what_would_work(self):
        for body, status, word in [
            ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
            ({"prompt": "x", "temperature": "hot"}, 400, "temperature"),
            ({"prompt": [99999999]}, 400, "prompt"),
            ({"prompt": ""}, 400, "prompt"),
            ({"prompt": "x", "max_tokens": 100000}, 400, "max_tokens"),
            ({"prompt": "x", "model": "no-such-model"}, 404, "no-such-model"),
        ]:
            with self.subTest(body=body), self.assertRaises(client.Refused) as caught:
                self.server.client.post("/v1/completions", body)
            self.assertIn(caught.exception.status, (status, 422))
            error = json.loads(caught.exception.body)["error"]
            self.assertIn(word, error["message"] + str(error.get("param")))


class Stopping(unittest.TestCase):
    def test_sigterm_drains_and_exits_with_0(self):
        body = {"prompt": "Count:", "max_tokens": 150, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        with servers.lockstep("--drain-timeout", 240, name="draining") as server:
            events = server.client.stream("/v1/completions", body)
            # It runs: its first token is here.
            next(events)
            self.assertEqual(server.stop(), 0, server.tail())
            rest = [event for _, event in events]
        self.assertEqual(rest[-1]["usage"]["completion_tokens"], 150)

    def test_a_full_queue_answers_429_with_a_time_to_wait(self):
        flags = ["--max-running-requests", 1, "--max-queued-requests", 1]
        with servers.lockstep(*flags, name="full") as server:
            body = {"prompt": "Count:", "max_tokens": 300}
            with server.client.held("/v1/completions", body, 2):
                until(lambda: probes.status(server)["queued"] == 1)
                with self.assertRaises(client.Refused) as caught:
                    server.client.post("/v1/completions", body)
        self.assertEqual(caught.exception.status, 429)
        names = {k.lower() for k in caught.exception.headers}
        self.assertIn("retry-after", names)


class Killed(unittest.TestCase):
    """SIGKILL amid streams: the next start has the port of the last one, its settings, its verified
    model and the same answers."""

    def files(self):
        """What is on the disk, with the time of the last write of each."""
        found = {}
        for path in sorted(self.dir.rglob("*")):
            about = path.stat()
            small = path.is_file() and about.st_size < 1 << 20
            found[path.name] = (about.st_mtime_ns, about.st_size, small and path.read_bytes())
        return found

    def serve(self, **more):
        return servers.lockstep("--config", self.dir / "lockstep.toml", model="smollm2-135m-instruct",
                                env={"LOCKSTEP_MODELS": str(self.dir)}, **more)

    def test_killed_under_load_it_comes_back_as_it_was(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-killed-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        model = Path(servers.model_path()).resolve()
        (self.dir / model.name).symlink_to(model)
        (self.dir / "lockstep.toml").write_text("[decode]\ngraph-max-bs = 8\n")
        (self.dir / "lockstep.toml.change-pending").write_text('{"what": "a change was being watched"}')

        def body(i):
            return {"prompt": f"Tell the story of house number {i}, in which"}
        with self.serve(name="killed") as first, Streams(
                first.client, "/v1/completions", body, streams=3, tokens=24) as streams:
            before = self.files()
            self.assertIn(f".{model.name}.verified", before)
            first.kill()
            self.assertEqual(self.files(), before)
            until(lambda: len(streams.failures) >= 3)
            with self.serve(name="killed-again", port=first.port) as again:
                answered = len(streams.answers)
                until(lambda: len(set(streams.answers[answered:])) == 3)
                self.assertEqual(self.files(), before)
                info = again.client.get("/server_info")
                self.assertEqual(info["internal_states"][0]["decode_cuda_graph_bs"], [1, 2, 4, 8])
                self.assertIn("a change was being watched", again.log())
        # Cut off or refused a connection; none was given another text than at first.
        self.assertEqual([f for f in streams.failures if " gave " in f], [])


if __name__ == "__main__":
    unittest.main()
