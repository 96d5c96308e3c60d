"""What tests of `lockstep change` share: a folder with targets, gates of some seconds, the command."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from . import servers


def gates(sessions, tokens, load=(8, 4), tolerance=90, p99=1000, concurrency=None, sure=True):
    """Seconds of load, in requests of `load` tokens in and out, and a check of `sessions` of `tokens`:
    what tests show are the states of a change. Times of a shared machine are noise, so the tolerance
    is wide where a test does not lower it, and where a few answers prove too little the check may
    say so (`sure` is false)."""
    at = "" if concurrency is None else f"concurrency = [{concurrency}]\n"
    unsure = "" if sure else "accept-inconclusive = true\n"
    return f"""
[gates]
{at}rounds = 1
repeats = 1
input = {load[0]}
tokens = {load[1]}
tolerance-percent = {tolerance}
p99-factor-max = {p99}
[check]
sessions = {sessions}
rounds = 1
context = 16
tokens = {tokens}
{unsure}kinds = ["echo"]
[watch]
seconds = 0
"""


def folder(test):
    """A folder with targets that ends with the test."""
    made = tempfile.TemporaryDirectory(prefix="lockstep-change-")
    test.addCleanup(made.cleanup)
    path = Path(made.name)
    (path / "targets").mkdir()
    return path


def run(cwd, *arguments, yes=True, wrapper=(), env=None):
    """`lockstep change`: its exit code, its JSON, what it said."""
    argv = [*wrapper, servers.need("LOCKSTEP_BIN", "the lockstep binary"), "change", *arguments, "--json"]
    ran = subprocess.run(argv + ["--yes"] * yes, cwd=cwd, env={**os.environ, **(env or {})},
                         capture_output=True, text=True, timeout=900, check=False)
    if not ran.stdout:
        raise AssertionError(ran.stderr)
    return ran.returncode, json.loads(ran.stdout), ran.stderr


def journal(record):
    """The lines of a record's journal."""
    return [json.loads(line) for line in (Path(record) / "journal.jsonl").read_text().splitlines()]
