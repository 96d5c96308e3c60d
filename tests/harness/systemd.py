"""systemd where no system runs under it: a user's manager in a mount namespace of its own, and a
system's manager as the first process of namespaces of its own."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from .servers import out_dir

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


def alone():
    """Waits for its turn: the managers of two suites on one machine would have their units in the same
    cgroups, and kill each other's. Closed, what this gives ends the turn."""
    turn = open(Path(tempfile.gettempdir()) / "lockstep-systemd.lock", "w")
    fcntl.flock(turn, fcntl.LOCK_EX)
    return turn


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
        self.turn = alone()
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
        end = time.monotonic() + 180
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
                              capture_output=True, timeout=400, check=False)

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
        self.turn.close()


# Of the system's own units only what a service stands on: sysctls, devices, temporary files and
# clocks of this machine are none of a test's business.
NEEDED = ["basic.target", "sysinit.target", "sockets.target", "shutdown.target", "network-online.target",
          "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket"]
# $0 systemd, $1 an empty folder, $2 a folder whose content goes to /, $3 where temporary files go, and the
# rest units for it to have.
# What is written to /etc and /var goes to memory, and is gone with the last process.
BOOT = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
for d in etc var; do
    mkdir -p "$1/$d/over" "$1/$d/work"
    mount -t overlay overlay -o "lowerdir=/$d,upperdir=$1/$d/over,workdir=$1/$d/work" "/$d"
done
content="$1/content"; cp -r "$2" "$content"
for d in run usr/local/bin; do mount -t tmpfs -o mode=755 tmpfs "/$d"; done
case "$1" in "$3"/*) ;; *) mount -t tmpfs -o mode=1777 tmpfs "$3" ;; esac
mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys
mount --bind /sys /sys; mount -o remount,bind,ro /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cp -r "$content/." /
shift 3
mkdir -p /run/units/sysinit.target.wants
for unit in "$@"; do cp "/lib/systemd/system/$unit" /run/units/; done
ln -s /run/units/systemd-journald* /run/units/sysinit.target.wants/
exec env container=test SYSTEMD_UNIT_PATH=/run/units:/etc/lockstep-test/units \
    "$0" --system --unit=basic.target --log-target=console --show-status=no
"""


class SystemManager:
    """`systemd --system` with a journal, where a unit is run as on a machine of its own: users that
    it makes up, its own /etc, /var, /run, /usr/local/bin and temporary files. The network is this machine's.
    Use as a context manager.

    content: a folder of what is in it from the start, by paths from /; units in
    etc/lockstep-test/units.
    """

    def __init__(self, content):
        self.content = Path(content)

    def __enter__(self):
        binary = have("systemd")
        have("journalctl")
        if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("nsenter")):
            skip("namespaces need root, unshare and nsenter")
        self.turn = alone()
        self.folder = tempfile.TemporaryDirectory(prefix="system-", dir=out_dir())
        home = Path(self.folder.name).resolve()
        (home / "memory").mkdir()
        unshare = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--uts", "--cgroup",
                   "--kill-child"]
        with open(home / "log", "wb") as log:
            self.process = subprocess.Popen(
                [*unshare, "sh", "-c", BOOT, binary, home / "memory", self.content,
                 tempfile.gettempdir(), *NEEDED],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 180
        while self.ctl("is-system-running").stdout.strip() != "running":
            if self.process.poll() is not None or time.monotonic() > end:
                words = " ".join((home / "log").read_text(errors="replace").split())[-300:]
                self.__exit__()
                skip(f"systemd --system does not start here: {words}")
            time.sleep(0.1)
        return self

    def run(self, *command, timeout_s=600):
        """A command inside, whatever comes of it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        first = children.read_text().split() if children.exists() else []
        if not first:
            return subprocess.CompletedProcess(command, 1, "", "no process yet")
        inside = ["nsenter", "--target", first[0], "--all", "--wd=/", *map(str, command)]
        return subprocess.run(inside, stdin=subprocess.DEVNULL, text=True, capture_output=True,
                              timeout=timeout_s, check=False)

    def ctl(self, *arguments):
        """`systemctl`, whatever comes of it."""
        return self.run("systemctl", *arguments, timeout_s=400)

    def show(self, unit, name):
        return self.ctl("show", "--value", f"--property={name}", unit).stdout.strip()

    def __exit__(self, *exc):
        # The first process goes with its parent, and all others with the first.
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()
        self.turn.close()
