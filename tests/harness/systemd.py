"""systemd where no system runs under it: a user's manager in a mount namespace of its own."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

MANAGERS = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"]


def skip(why):
    """Says in the table of stages and in the count of skipped tests that, and why."""
    print(f"note: systemd skipped: {why}", flush=True)
    raise unittest.SkipTest(why)


def have(program):
    """The path of one of systemd's programs; Debian's systemd is installed where it is missing and
    this process may. Skips the test where it cannot be had."""
    path = next((m for m in MANAGERS if Path(m).exists()), None) if program == "systemd" else None
    path = path or shutil.which(program)
    if path:
        return path
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        skip(f"{program} is not here, and this is not root with apt-get")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "systemd"]
    for command in (["apt-get", "update"], install):
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
        if ran.returncode != 0:
            skip(f"{program} is not here, and {' '.join(command)} failed: {ran.stderr[-300:]}")
    path = shutil.which(program) or next((m for m in MANAGERS if Path(m).exists()), None)
    return path or skip(f"{program} is not in Debian's systemd")


class UserManager:
    """`systemd --user` with a runtime folder and units of its own. Use as a context manager.

    A user's manager starts only where the system was booted with systemd, which it tells by a folder
    in /run: that folder is made in a mount namespace that it alone sees.
    """

    def __enter__(self):
        self.binary = have("systemd")
        have("systemctl")
        if os.geteuid() != 0 or not shutil.which("unshare"):
            skip("a mount namespace needs root and unshare")
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-systemd-")
        home = Path(self.folder.name)
        self.units = home / "config/systemd/user"
        self.units.mkdir(parents=True)
        runtime = home / "run"
        runtime.mkdir(mode=0o700)
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(home),
                    "XDG_CONFIG_HOME": str(home / "config"), "SYSTEMD_LOG_TARGET": "console"}
        self.env.pop("DBUS_SESSION_BUS_ADDRESS", None)
        booted = "mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system && exec \"$0\" --user"
        with open(home / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", booted, self.binary],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while self.ctl("show", "--property=Version").returncode != 0:
            if self.process.poll() is not None or time.monotonic() > end:
                words = " ".join((home / "log").read_text(errors="replace").split())[-300:]
                self.__exit__()
                skip(f"systemd --user does not start here: {words}")
            time.sleep(0.05)
        return self

    def ctl(self, *arguments):
        """`systemctl --user`, whatever comes of it."""
        return subprocess.run(["systemctl", "--user", *arguments], env=self.env, text=True,
                              capture_output=True, timeout=120, check=False)

    def show(self, unit, name):
        return self.ctl("show", "--value", f"--property={name}", unit).stdout.strip()

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.ctl("exit")
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.folder.cleanup()
