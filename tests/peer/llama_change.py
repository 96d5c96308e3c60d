"""What tests of `lockstep change` on llama.cpp's server share."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from harness import servers
from harness.client import Refused

QUIET = {"OMP_WAIT_POLICY": "passive"}


def end(port):
    """Ends whatever llama-server listens at this port."""
    pattern = f"llama-server.*--port.*{port}"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False)
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def words(port):
    """The command line of a server with slots, whose number is to follow."""
    folder = Path(servers.need("LOCKSTEP_LLAMA_BIN", "the folder of llama.cpp's binaries"))
    return [str(folder / "llama-server"), "-m", servers.model_path(), "--port", str(port),
            "-c", "8192", "-t", "2", "-tb", "2", "--slots", "--parallel"]


def start(test, argv, client):
    """The server of a test with a folder, ended with it. Waits until it is healthy."""
    with open(test.dir / "server.log", "ab") as log:
        process = subprocess.Popen(argv, cwd=test.dir, stdout=log, stderr=log,
                                   env={**os.environ, **QUIET})
    test.addCleanup(process.wait, 60)
    test.addCleanup(process.kill)
    begun = time.perf_counter()
    while True:
        try:
            return client.get("/health")
        except (OSError, Refused):
            test.assertLess(time.perf_counter() - begun, 300, "llama-server does not come up")
            time.sleep(0.05)
