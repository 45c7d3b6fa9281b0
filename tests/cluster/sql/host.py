# SPDX-License-Identifier: MIT
"""host.py: one host of the cluster: a namespace of the network, a folder, a PostgreSQL server that
listens on the host's address with password authentication, and a cnnd."""
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import time

import net
import proc

LAB = "/run/lab"
BUILD = os.environ["BUILD"]
PG_CONFIG = os.environ.get("PG_CONFIG") or "pg_config"
PASSWORD = "not-a-secret"
USER = "postgres"
MERGE_PORTS = (7000, 7199)


def pg_config(what):
    return subprocess.check_output([PG_CONFIG, what], text=True).strip()


def is_mapped(uid):
    """Whether this user namespace has that user."""
    for line in proc.read("/proc/self/uid_map").splitlines():
        first, _, count = (int(w) for w in line.split())
        if first <= uid < first + count:
            return True
    return False


def as_user():
    """Words in front of a command that the unprivileged user runs. In a user namespace of one identity
    that is another name for it, as PostgreSQL refuses to run as root."""
    u = pwd.getpwnam(USER)
    if is_mapped(u.pw_uid):
        return ["setpriv", f"--reuid={u.pw_uid}", f"--regid={u.pw_gid}", "--init-groups", "--"]
    return ["unshare", "--user", f"--map-user={u.pw_uid}", f"--map-group={u.pw_gid}", "--"]


def give(path):
    u = pwd.getpwnam(USER)
    if not is_mapped(u.pw_uid):
        return
    for folder, _, files in os.walk(path):
        for name in [folder, *(os.path.join(folder, f) for f in files)]:
            os.chown(name, u.pw_uid, u.pw_gid)


def copy_program():
    """What was built, to where the unprivileged user can read it."""
    shutil.copytree(f"{BUILD}/stage", f"{LAB}/stage", symlinks=True)
    os.makedirs(f"{LAB}/bin")
    for name in ("cnnd", "cnnctl"):
        shutil.copy(f"{BUILD}/bin/{name}", f"{LAB}/bin/{name}")


class Host:
    def __init__(self, i, network):
        self.i = i
        self.net = network
        self.name = f"node{i}"
        self.dir = f"{LAB}/{self.name}"
        self.socket = f"{self.dir}/cnnd.sock"
        self.pg = None
        self.cnnd = None
        self.baseline = None
        self.bin = pg_config("--bindir")
        self.address = network.address(i)
        self.more_conf = {}
        self.marks = {"cnnd.log": 0, "postgres.log": 0}

    # ---- PostgreSQL

    def make(self, template):
        """template: a data folder that is copied."""
        os.makedirs(f"{self.dir}/state")
        shutil.copytree(template, f"{self.dir}/data", symlinks=True)
        with open(f"{self.dir}/data/postgresql.conf", "a") as f:
            f.write(f"listen_addresses = '{self.address}'\nunix_socket_directories = '{self.dir}'\n"
                    f"gpu_cnn.socket = '{self.socket}'\n")
        self.write_conf()
        give(self.dir)
        os.chmod(f"{self.dir}/data", 0o700)

    def _start(self, log, words):
        with open(f"{self.dir}/{log}", "a") as out:
            return subprocess.Popen(net.Net.enter(self.i) + as_user() + words, stdin=subprocess.DEVNULL,
                                    stdout=out, stderr=out, start_new_session=True, cwd=self.dir,
                                    env={"PATH": os.environ["PATH"], "HOME": self.dir, "LC_ALL": "C.UTF-8"})

    def start_pg(self, wait=True):
        self.pg = self._start("postgres.log", [f"{self.bin}/postgres", "-D", f"{self.dir}/data"])
        return not wait or self.wait_pg()

    def wait_pg(self, seconds=30):
        return until(lambda: self.sql("SELECT 1", check=False) == "1", seconds)

    def end_pg(self, sig=signal.SIGQUIT):
        if self.pg and self.pg.poll() is None:
            self.pg.send_signal(sig)
            try:
                self.pg.wait(20)
            except subprocess.TimeoutExpired:
                self.pg.kill()
                self.pg.wait()

    def psql(self, *more, role="postgres", app="lab", database="postgres"):
        """A command line; over the unix socket, so that no fault of the network is in its way."""
        return ["env", f"PGAPPNAME={app}", "psql", "-XqAt", "-h", self.dir, "-U", role, "-d", database,
                "-v", "ON_ERROR_STOP=1", *more]

    def sql(self, text, seconds=60, check=True, **who):
        r = subprocess.run(self.psql("-c", text, **who), stdout=subprocess.PIPE, timeout=seconds,
                           stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        if r.returncode and check:
            raise RuntimeError(f"{self.name}: {r.stderr.strip()}")
        return r.stdout.strip() if not r.returncode else r.stderr.strip()

    def backends(self):
        """(pid, application, state) of the sessions that are not this rig's own."""
        text = self.sql("SELECT pid, application_name, state FROM pg_stat_activity WHERE backend_type IN "
                        "('client backend', 'parallel worker') AND application_name <> 'lab'", check=False)
        return [line.split("|") for line in text.splitlines()]

    # ---- cnnd

    def write_conf(self, **more):
        self.more_conf.update(more)
        values = {"socket": self.socket, "socket_group": "", "state_dir": f"{self.dir}/state",
                  # the folder is on tmpfs
                  "spill_dir": "none", "database_uids": USER, "admin_uids": USER, "devices": "cpu:1",
                  "memory": "512M", "ring_bytes": "1M", "decode_workers": "1", "stop_timeout": "5",
                  "merge_listen": self.address, "merge_ports": "%d-%d" % MERGE_PORTS,
                  "rejoin_timeout": "5", **self.more_conf}
        with open(f"{self.dir}/cnnd.conf", "w") as f:
            for key, value in values.items():
                f.write(f"{key} = {value}\n")

    def start_cnnd(self, wait=True):
        if self.cnnd and self.cnnd.poll() is None:
            return True
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        self.cnnd = self._start("cnnd.log", [f"{LAB}/bin/cnnd", "-d", "-f", f"{self.dir}/cnnd.conf"])
        return not wait or self.wait_cnnd()

    def wait_cnnd(self, seconds=10):
        return until(lambda: self.status() is not None, seconds)

    def end_cnnd(self, sig=signal.SIGTERM, seconds=10):
        """The exit status; None: it had to be killed."""
        if not self.cnnd or self.cnnd.poll() is not None:
            return self.cnnd and self.cnnd.returncode
        self.cnnd.send_signal(signal.SIGCONT)
        self.cnnd.send_signal(sig)
        try:
            return self.cnnd.wait(seconds)
        except subprocess.TimeoutExpired:
            self.cnnd.kill()
            self.cnnd.wait()
            return None

    def status(self, seconds=8):
        """cnnctl status --json, None: no answer."""
        try:
            r = subprocess.run(as_user() + [f"{LAB}/bin/cnnctl", "status", "-S", self.socket, "-j"], cwd=LAB,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds, text=True)
            return json.loads(r.stdout) if r.returncode == 0 else None
        except (subprocess.TimeoutExpired, ValueError):
            return None

    def jobs(self):
        """Those that are there; None: the daemon gave no answer."""
        s = self.status()
        return None if s is None else [j for j in s["jobs"] if not j.get("ended")]

    def ended(self, job):
        """The entry of a job among the last that are over, or None."""
        s = self.status() or {"jobs": []}
        return next((j for j in s["jobs"] if j.get("ended") and j["id"] == job), None)

    # ---- what is there, what is left

    def counts(self):
        """Of a quiet host: what must not grow from job to job."""
        pid = self.cnnd.pid
        # without sessions, which end a little after their clients have gone
        server = sum(1 for p in proc.children(self.pg.pid)
                     if not re.match(r"postgres: \S+ \S+ (\[local\]|10\.99)", proc.title(p)))
        return {"jobs": len(self.jobs() or []), "descriptors": len(proc.fds(pid)),
                "threads": proc.threads(pid),
                "connections": sum(1 for s in proc.tcp(pid) if s[0] != 10),
                "listeners": len(proc.listening(pid)), "processes of cnnd": len(proc.children(pid)),
                "sessions": len(self.backends()), "processes of the server": server}

    def restarts(self):
        """Lines of the server's log that say that it restarted, or lost a process to a signal."""
        return re.findall(r".*(?:terminated by signal|all server processes terminated|PANIC).*",
                          proc.read(f"{self.dir}/postgres.log"))

    def mark(self):
        """log_tail begins here."""
        self.marks = {name: len(proc.read(f"{self.dir}/{name}")) for name in ("cnnd.log", "postgres.log")}

    def log_tail(self, lines=12):
        for name, start in self.marks.items():
            for line in proc.read(f"{self.dir}/{name}")[start:].splitlines()[-lines:]:
                yield f"{self.name} {name}: {line}"


def until(condition, seconds, step=0.02):
    """Waits until it holds; how long that took, or 0 when it did not (a tiny number: at once)."""
    start = time.monotonic()
    while True:
        if condition():
            return max(time.monotonic() - start, 1e-6)
        if time.monotonic() - start > seconds:
            return 0
        time.sleep(step)
