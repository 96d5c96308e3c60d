"""systemd: the shipped unit as systemd reads it, and a server that is changed through a unit of a
manager that really runs. Where systemd cannot be had, each test is skipped and says why."""

import json
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from harness import change, servers, systemd
from harness.client import Client
from harness.gateway import Gateway

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/systemd/lockstep.service"
# At a limit of 16 it comes up as a process that never says that it is ready.
PROGRAM = """#!/bin/sh
[ "$2" = 16 ] && exec sleep 1000
exec '{lockstep}' serve --port {port} --kv-memory 64MiB --drain-timeout 240 --model '{model}' "$@"
"""
SERVICE = """# A unit of this test.
[Service]
Type=notify
NotifyAccess=main
# The limit: --max-running-requests 99 here is a comment.
ExecStart={program} \\
    --max-running-requests 4
KillMode=mixed
TimeoutStartSec=15min
TimeoutStopSec=300
Restart=on-failure
"""


def lockstep():
    return servers.need("LOCKSTEP_BIN", "the lockstep binary")


class Shipped(unittest.TestCase):
    def test_systemd_takes_the_unit_and_finds_it_hardened(self):
        analyze = systemd.have("systemd-analyze")
        text = UNIT.read_text()
        for needed in ("Type=notify", "NoNewPrivileges=yes", "ProtectSystem=strict", "TimeoutStopSec="):
            self.assertIn(needed, text)
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / UNIT.name
            unit.write_text(text.replace("/usr/local/bin/lockstep", lockstep()))
            verify = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
            self.assertEqual(verify.returncode, 0, verify.stderr)
            self.assertNotIn("lockstep.service:", verify.stderr)
            offline = [analyze, "security", "--offline=true", "--threshold=25", "--no-pager", unit]
            security = subprocess.run(offline, capture_output=True, text=True, check=False)
            self.assertEqual(security.returncode, 0, f"its exposure is above 2.5: {security.stdout}")
            exposure = security.stdout.strip().splitlines()[-1]
            print(f"note: {' '.join(exposure.split())}", flush=True)


class Unit(unittest.TestCase):
    def setUp(self):
        self.manager = systemd.UserManager().__enter__()
        self.addCleanup(self.manager.__exit__)
        self.dir = change.folder(self)
        self.port = servers.free_port()
        self.client = Client(self.port)
        program = self.dir / "program"
        program.write_text(PROGRAM.format(lockstep=lockstep(), port=self.port, model=servers.model_path()))
        program.chmod(0o755)
        self.unit = self.manager.units / "ours.service"
        self.unit.write_text(SERVICE.format(program=program))
        self.manager.ctl("daemon-reload")
        started = self.manager.ctl("start", "ours.service")
        self.assertEqual(started.returncode, 0, started.stderr)

    def change(self, *arguments, yes=True):
        return change.run(self.dir, *arguments, yes=yes, env=self.manager.env)

    def limit(self):
        return self.client.get("/server_info")["max_running_requests"]

    def test_a_server_is_changed_through_its_unit(self):
        # `start` came back: requests are taken, without another look.
        self.client.post("/v1/completions", {"prompt": "Once", "max_tokens": 1})
        main, before = self.manager.show("ours.service", "MainPID"), self.unit.read_text()
        init = ["init", "--url", f"http://127.0.0.1:{self.port}", "--unit", "ours.service", "--user"]
        code, done, said = self.change(*init, yes=False)
        self.assertEqual((code, done["launch"]), (0, "systemd"), said)
        target = self.dir / "targets/lockstep.toml"
        head = target.read_text().split("[ready]")[0]
        gates = change.gates(sessions=24, tokens=24, tolerance=99, concurrency=4)
        target.write_text(f"{head}[ready]\nseconds = 300\n{gates}")

        code, done, said = self.change("--set", "sched.max-running-requests=8")
        self.assertEqual((code, done["state"]), (0, "kept"), (done, said))
        self.assertEqual(self.limit(), 8)
        self.assertEqual(self.unit.read_text(), before.replace("requests 4", "requests 8"))
        now = self.manager.show("ours.service", "MainPID")
        self.assertNotEqual(now, main)
        self.assertEqual(self.manager.show("ours.service", "ActiveState"), "active")

        # One that never becomes ready: systemd itself would wait for 15 minutes. The way back has as long,
        # which a slow machine needs.
        target.write_text(f"{head}[ready]\nseconds = 20\n{gates}")
        kept = self.unit.read_text()
        code, done, said = self.change("--set", "sched.max-running-requests=16")
        self.assertEqual((code, done["state"]), (11, "rolled_back"), (done, said))
        self.assertIn("was not ready after 20 s", str(done["reasons"]))
        self.assertEqual((self.unit.read_text(), self.limit()), (kept, 8))
        self.assertEqual(self.manager.show("ours.service", "ActiveState"), "active")
        self.assert_stop_drains()
        print(f"note: {subprocess.check_output(['systemctl', '--version'], text=True).splitlines()[0]}: "
              "a user's unit changed, rolled back and drained", flush=True)

    def assert_stop_drains(self):
        """`systemctl stop` lets an answer that was begun end."""
        body = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        events = self.client.stream("/v1/completions", body)
        # It runs: its first token is here.
        next(events)
        stopped = self.manager.ctl("stop", "ours.service")
        rest = [event for _, event in events]
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        self.assertEqual(rest[-1]["usage"]["completion_tokens"], 300)
        self.assertEqual(self.manager.show("ours.service", "Result"), "success")
        self.assertEqual(self.manager.show("ours.service", "ExecMainStatus"), "0")


if __name__ == "__main__":
    unittest.main()


SETTINGS = """[server]
port = {port}
log-interval = 1
drain-timeout = 20
[model]
path = "/var/lib/lockstep/models/recall"
[decode]
graph-max-bs = 2
[sched]
max-running-requests = 2
[pool]
kv-memory = "64MiB"
"""


class System(unittest.TestCase):
    """The shipped unit, as it is, under a system's manager."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-content-")
        self.addCleanup(folder.cleanup)
        content, self.port = Path(folder.name), servers.free_port()
        for made in ("usr/local/bin", "etc/lockstep", "etc/lockstep-test/units", "var/lib/private/lockstep/models"):
            (content / made).mkdir(parents=True)
        shutil.copy(lockstep(), content / "usr/local/bin/lockstep")
        shutil.copy(UNIT, content / "etc/lockstep-test/units")
        shutil.copytree(ROOT / "models/recall", content / "var/lib/private/lockstep/models/recall",
                        ignore=shutil.ignore_patterns("train", "reference*"))
        (content / "etc/lockstep/lockstep.toml").write_text(SETTINGS.format(port=self.port))
        self.manager = systemd.SystemManager(content).__enter__()
        self.addCleanup(self.manager.__exit__)
        self.client = Client(self.port)
        started = self.manager.ctl("start", "lockstep.service")
        self.assertEqual(started.returncode, 0, (started.stderr, self.journal()))

    def journal(self):
        return self.manager.run("journalctl", "--no-pager", "--output=cat", "-u", "lockstep.service").stdout[-2000:]

    def test_the_shipped_unit_serves_restarts_and_drains_and_its_journal_tells_batches(self):
        # `start` came back: requests are taken, by a user that exists only as long.
        self.client.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2})
        main = self.manager.show("lockstep.service", "MainPID")
        user = self.manager.run("stat", "-c", "%U", f"/proc/{main}").stdout.strip()
        self.assertEqual(user, "lockstep")
        told = self.assert_check_follows_the_journal()

        # A kill is a failure, after which it is started again.
        self.assertEqual(self.manager.ctl("kill", "--signal=KILL", "lockstep.service").returncode, 0)
        end = time.monotonic() + 300
        while self.manager.show("lockstep.service", "MainPID") in (main, "0") or \
                self.manager.show("lockstep.service", "ActiveState") != "active":
            self.assertLess(time.monotonic(), end, self.journal())
            time.sleep(0.2)
        self.assertEqual(self.manager.show("lockstep.service", "NRestarts"), "1")
        self.client.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2})

        self.assertEqual(self.manager.ctl("stop", "lockstep.service").returncode, 0)
        self.assertEqual(self.manager.show("lockstep.service", "Result"), "success", self.journal())
        print(f"note: the shipped unit under systemd --system; check behind a gateway by its journal: {told}", flush=True)

    def assert_check_follows_the_journal(self):
        """A gateway passes no counts on: the unit's journal is what tells the sizes of batches."""
        with Gateway(self.port) as gateway:
            command = ["/usr/local/bin/lockstep", "check", f"http://127.0.0.1:{gateway.port}", "--kinds", "report",
                       "--sessions", "8", "--rounds", "2", "--max-tokens", "200", "--context", "64", "--deterministic", "yes",
                       "--accept-partial-coverage", "--json"]
            done = self.manager.run(*command, "--decode-log", "journal:lockstep.service")
            unknown = self.manager.run(*command, "--decode-log", "journal:lockstepp.service")
        found = json.loads(done.stdout or "{}")
        self.assertEqual((done.returncode, found.get("conclusion")), (0, "clean"), (done.stderr, found.get("why")))
        coverage = found["coverage"]
        self.assertEqual(coverage["source"], "inferred")
        required = {b["rows"]: b["seen"] for b in coverage["buckets"] if b["required"]}
        self.assertEqual(set(required), {1, 2})
        # A line a second, of one step: a short load need not show every size, but has one line.
        self.assertGreater(sum(required.values()), 0, required)
        self.assertEqual(unknown.returncode, 3, unknown.stdout)
        self.assertIn("the journal has no line of lockstepp.service", unknown.stdout + unknown.stderr)
        return f"{found['answers']['judged']} answers, steps by rows {required}"
