"""Servers as child processes on a free port, ended by SIGTERM."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

from .client import Client, Refused


def free_port():
    """A port for a server that starts later. It is none of those that the system gives to connections
    by itself, where that leaves any: one of them could have it before the server does."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, given) if given > 10_000 else 0
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return s.getsockname()[1]


def need(name, what):
    """An environment variable that `cargo xtask test` sets."""
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"{name} is not set: it names {what}; `cargo xtask test` sets it")
    return value


def model_path():
    return need("LOCKSTEP_TEST_MODEL", "the default model's GGUF file")


def out_dir():
    path = Path(os.environ.get("LOCKSTEP_TEST_OUT", "target/test-out"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def resident_bytes(pid, field="VmRSS"):
    """A field of /proc/<pid>/status, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.M).group(1)) * 1024


class Server:
    """A child process that serves HTTP. Use as a context manager."""

    def __init__(self, name, argv, port, ready_path="/health", ready_s=180, env=None):
        self.name, self.argv, self.port = name, [str(a) for a in argv], port
        self.ready_path, self.ready_s = ready_path, ready_s
        self.env = {**os.environ, **(env or {})}
        self.log_path = out_dir() / f"{name}-{port}.log"
        self.process = None
        self.client = Client(port)
        self.ready_after_s = None

    def __enter__(self):
        start = time.perf_counter()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, env=self.env)
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended before it was ready: {self.tail()}")
            if time.perf_counter() - start > self.ready_s:
                self.process.kill()
                raise RuntimeError(f"{self.name} not ready in {self.ready_s} s: {self.tail()}")
            try:
                self.client.get(self.ready_path)
                break
            except (OSError, Refused):
                time.sleep(0.01)
        self.ready_after_s = time.perf_counter() - start
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self, wait_s=300):
        """SIGTERM, then the exit status; killed where it does not end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise RuntimeError(f"{self.name} did not end in {wait_s} s after SIGTERM") from None
        return self.process.returncode

    def kill(self):
        """SIGKILL, and its end."""
        self.process.kill()
        self.process.wait()

    def resident(self, field="VmRSS"):
        return resident_bytes(self.process.pid, field)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_log(self, words, wait_s=60):
        """Waits for words in the log: of a change of its state the server tells a second later."""
        end = time.monotonic() + wait_s
        while words not in self.log():
            if time.monotonic() > end:
                raise AssertionError(f"after {wait_s} s the log has no '{words}': {self.tail()}")
            time.sleep(0.05)

    def tail(self, lines=12):
        return "\n".join(self.log().splitlines()[-lines:])


def lockstep(*flags, name="lockstep", model=None, binary=None, port=None, env=None):
    """`lockstep serve` with these flags."""
    port = port or free_port()
    binary = binary or need("LOCKSTEP_BIN", "the lockstep binary")
    argv = [binary, "serve", "--port", port, "--model", model or model_path(), *flags]
    return Server(name, argv, port, env=env)


def llama(*flags, name="llama-server", model=None, folder=None, threads=2, spin=False):
    """llama-server with these flags. Its threads spin at barriers, which is fast on a quiet machine
    and ten times too slow on a busy one; tests let them sleep, measurements do not."""
    port = free_port()
    folder = folder or need("LOCKSTEP_LLAMA_BIN", "the folder of llama.cpp's binaries")
    argv = [
        Path(folder) / "llama-server", "--port", port, "--host", "127.0.0.1",
        "-m", model or model_path(), "-t", threads, "-tb", threads, *flags,
    ]
    return Server(name, argv, port, env=None if spin else {"OMP_WAIT_POLICY": "passive"})
