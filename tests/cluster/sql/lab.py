# SPDX-License-Identifier: MIT
"""lab.py: the cluster: hosts in namespaces, host 0 is the coordinator and has rows too; statements
that run in the background; what must be true after every case."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import host as hosts_
import net
import proc
from host import LAB, PASSWORD, Host, as_user, give, pg_config, until
from tap import bail

ROWS = 1200
GROWTH = int(os.environ.get("LAB_GROWTH") or 16384)  # kB that a daemon may grow; more with sanitizers
HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = f"""
extension_destdir = '{LAB}/stage'
fsync = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
shared_buffers = 16MB
max_connections = 40
autovacuum = off
jit = off
log_line_prefix = '%m [%p] '
gpu_cnn.daemon_user = '{hosts_.USER}'
"""


def make_template(path):
    """initdb once: the extension, roles and functions; hosts get copies."""
    os.makedirs(path)
    give(path)
    binary = pg_config("--bindir")
    user = as_user()

    def run(*words):
        r = subprocess.run(user + list(words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=LAB,
                           stdin=subprocess.DEVNULL, text=True,
                           env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": LAB})
        if r.returncode:
            bail(f"{words[0]}: {r.stdout}{proc.read(path + '/log')}")

    run(f"{binary}/initdb", "-D", path, "-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256",
        "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions", "--wal-segsize=1")
    with open(f"{path}/postgresql.conf", "a") as f:
        f.write(COMMON + f"dynamic_library_path = '{LAB}/stage{pg_config('--pkglibdir')}:$libdir'\n")
    with open(f"{path}/pg_hba.conf", "w") as f:
        f.write("local all all trust\nhost all all 10.99.0.0/24 scram-sha-256\n")
    run(f"{binary}/pg_ctl", "-D", path, "-l", f"{path}/log", "-w", "-s", "-o",
        f"-c listen_addresses='' -c unix_socket_directories='{path}'", "start")
    run("psql", "-XqAt", "-h", path, "-U", "postgres", "-d", "postgres", "-v", "ON_ERROR_STOP=1",
        "-f", f"{LAB}/setup.sql")
    run(f"{binary}/pg_ctl", "-D", path, "-w", "-s", "-m", "fast", "stop")
    os.unlink(f"{path}/log")


class Statement:
    """A statement, or several one after the other, in the background, by a psql of its own."""

    def __init__(self, lab, text, app, role="trainer", at=0):
        texts = [text] if isinstance(text, str) else text
        self.lab, self.app, self.host = lab, app, lab.hosts[at]
        self.out = open(f"{LAB}/out.{app}", "w+")
        self.start = time.monotonic()
        self.psql = subprocess.Popen(self.host.psql(*(w for t in texts for w in ("-c", t)), role=role, app=app),
                                     stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.out,
                                     start_new_session=True)
        self.seconds = None

    def running(self):
        return self.psql.poll() is None

    def finish(self, seconds):
        """Waits for its end; False: it did not come, then it is killed."""
        ended = bool(until(lambda: not self.running(), seconds))
        self.seconds = time.monotonic() - self.start
        if not ended:
            self.psql.kill()
            self.psql.wait()
        return ended

    def text(self):
        self.out.flush()
        return proc.read(self.out.name)

    def row(self):
        """The result, which was asked for as JSON, or None."""
        for line in self.text().splitlines():
            if line.startswith("{"):
                return json.loads(line)
        return None

    def error(self):
        m = re.search(r"^(?:psql: )?(?:ERROR|FATAL|error):.*", self.text(), re.M)
        return m.group(0) if m else ""

    def backend(self):
        return int(self.host.sql(f"SELECT pid FROM pg_stat_activity WHERE application_name = '{self.app}' "
                                 "AND backend_type = 'client backend'") or 0)


def train(model="model", source="rows", **args):
    """A statement that trains and returns one row as JSON. A value is SQL text as it stands: numbers,
    or strings in quotes of their own."""
    args = {"architecture": "lab.net()", "batch_size": 32, "on_exists": "'replace'", **args}
    if source == "rows":
        args.setdefault("dependent", "'label'")
        args.setdefault("independent", "'image'")
    more = ", ".join(f"{k} := {v}" for k, v in args.items())
    quoted = source.replace("'", "''")
    return f"SELECT row_to_json(t) FROM gpu_cnn_train('{quoted}', '{model}', {more}) t"


# Ends by itself in hours; a stop keeps the result.
LONG = {"epochs": 100000, "evaluate_every": 100000}


class Lab:
    def __init__(self, n=3, tap=None, rows=ROWS):
        self.n, self.tap, self.rows = n, tap, rows
        self.started = time.monotonic()
        hosts_.copy_program()
        shutil.copy(f"{HERE}/setup.sql", LAB)
        make_template(f"{LAB}/template")
        self.net = net.Net(n)
        self.hosts = [Host(i, self.net) for i in range(n)]
        for h in self.hosts:
            h.make(f"{LAB}/template")
            h.start_pg(wait=False)
            h.start_cnnd(wait=False)
        for h in self.hosts:
            if not h.wait_pg() or not h.wait_cnnd():
                self.explain()
                bail(f"{h.name} does not start")
            h.sql(f"SELECT lab.fill({h.i}, {n}, {rows})")
        self.nodes(0, range(n))
        self.serial = 0

    def nodes(self, at, order):
        """Makes a coordinator of host `at`: its list of nodes, itself as NULL."""
        first = self.hosts[at]
        for ord, i in enumerate(order):
            if i == at:
                first.sql(f"INSERT INTO gpu_cnn_nodes VALUES ({ord}, NULL)")
                continue
            h = self.hosts[i]
            first.sql(f"CREATE SERVER {h.name} FOREIGN DATA WRAPPER gpu_cnn OPTIONS (host '{h.address}', "
                      f"port '5432', dbname 'postgres'); GRANT USAGE ON FOREIGN SERVER {h.name} TO trainer; "
                      f"CREATE USER MAPPING FOR trainer SERVER {h.name} OPTIONS (user 'trainer', "
                      f"password '{PASSWORD}'); INSERT INTO gpu_cnn_nodes VALUES ({ord}, '{h.name}')")

    # ---- statements

    def begin(self, text, app=None, **more):
        self.serial += 1
        return Statement(self, text, app or f"s{self.serial}", **more)

    def run(self, text, seconds=60, **more):
        s = self.begin(text, **more)
        s.finish(seconds)
        return s

    # ---- looking at jobs

    def job(self, i, model=None):
        """What cnnd of host i says about the training there, or None."""
        found = [j for j in self.hosts[i].jobs() or [] if j["kind"] == "train"]
        if model:
            found = [j for j in found if j["model"].endswith(model)]
        return found[0] if found else None

    def merges(self, i):
        j = self.job(i)
        return j["merges"] if j else -1

    def merged(self, least=2, seconds=20, hosts=None):
        """All hosts have committed at least so many merges."""
        return until(lambda: all(self.merges(i) >= least for i in hosts or range(self.n)), seconds, .05)

    def stop(self, i=0):
        j = self.job(i)
        if j:
            self.hosts[0].sql(f"SELECT gpu_cnn_stop('{j['id']}')", check=False)
        return j

    def commits(self, job, hosts):
        """(merge number, checksum) of the last commit of an ended job on each of the hosts."""
        found = []
        for i in hosts:
            e = self.hosts[i].ended(job)
            found.append((e["merges"], e.get("checksum")) if e else None)
        return found

    # ---- what must be true after every case

    def warm_up(self):
        """Two jobs, after which a daemon holds what it will always hold."""
        for _ in range(2):
            s = self.run(train("first", epochs=2))
            if not s.row():
                self.explain()
                bail(f"no training on {self.n} hosts: {s.text()}")
        until(lambda: not any(h.jobs() or h.backends() for h in self.hosts), 3, .1)
        self.remember()

    def remember(self):
        """The present, quiet state is what later cases must come back to."""
        for h in self.hosts:
            h.baseline = h.counts()
            h.memory = proc.anonymous_kb(h.cnnd.pid)
            h.postmaster = h.pg.pid

    @staticmethod
    def strays():
        """Processes whose parent is gone: process 1 has taken them over."""
        return [f"process {p}: {proc.title(p)}" for p in proc.children(1) if p != os.getpid()]

    def left_over(self, hosts=None):
        """Differences to the remembered state, as text."""
        found = self.strays()
        for h in self.hosts:
            if hosts is not None and h.i not in hosts:
                continue
            if h.cnnd.poll() is not None:
                found.append(f"{h.name}: cnnd is gone: {h.cnnd.returncode}")
                continue
            now = h.counts()
            found += [f"{h.name}: {now[k]} {k}, at most {v} before" for k, v in h.baseline.items() if now[k] > v]
            grown = proc.anonymous_kb(h.cnnd.pid) - h.memory
            if grown > GROWTH:
                found.append(f"{h.name}: cnnd has grown by {grown} kB")
        return found

    def clean(self, seconds=2, hosts=None, name="nothing is left on any host"):
        """seconds: how long a daemon may need to take a job apart."""
        found = []

        def quiet():
            found[:] = self.left_over(hosts)
            return not found

        return self.tap.ok(until(quiet, seconds, .1), name, *found, *self.descriptors(found))

    def descriptors(self, found):
        for h in self.hosts:
            if any(f.startswith(h.name) for f in found):
                for s in proc.tcp(h.cnnd.pid):
                    yield f"{h.name}: tcp state {s[0]} {s[1]}:{s[2]} -> {s[3]}:{s[4]}"
                yield f"{h.name}: jobs {h.jobs()}, sessions {h.backends()}"

    def never_restarted(self):
        bad = [f"{h.name}: {line}" for h in self.hosts for line in h.restarts()]
        bad += [f"{h.name}: another postmaster" for h in self.hosts if h.pg.pid != h.postmaster or h.pg.poll() is not None]
        return self.tap.ok(not bad, "no database restarted", *bad)

    def next_works(self, least_hosts=None, seconds=30):
        """A short training on all hosts, with the same commit everywhere."""
        s = self.begin(train("next", epochs=2, min_hosts=least_hosts or self.n))
        done = s.finish(seconds)
        row = s.row()
        return self.tap.ok(done and row and row["hosts"] == self.n and row["lost"] == 0 and row["rows"] == self.rows,
                           f"the next job works ({s.seconds:.1f} s)", s.text())

    def repair(self):
        """Everything up again, for the next case."""
        self.net.heal()
        for h in self.hosts:
            if h.cnnd.poll() is None:
                os.kill(h.cnnd.pid, signal.SIGCONT)
            if h.pg.poll() is not None:
                h.start_pg()
                h.postmaster = h.pg.pid
            h.start_cnnd()

    def explain(self):
        for h in self.hosts:
            for line in h.log_tail():
                self.tap.note(line)

    # ---- end

    def close(self):
        """Everything ends in an orderly way; what does not is told."""
        self.net.heal()
        bad = []
        for h in self.hosts:
            rc = h.end_cnnd()
            if rc != 0:
                bad.append(f"{h.name}: cnnd ends with {rc}")
            if os.path.exists(h.socket):
                bad.append(f"{h.name}: the socket is left")
            h.end_pg(signal.SIGINT)
        left = [t for p, t in proc.living().items() if p != os.getpid() and p != 1]
        self.tap.ok(not bad and not left, "every daemon ends cleanly, no process is left", *bad, *left)
        keep = os.environ.get("LAB_KEEP")
        if keep:
            for h in self.hosts:
                os.makedirs(f"{keep}/{h.name}", exist_ok=True)
                for name in ("cnnd.log", "postgres.log", "cnnd.conf"):
                    shutil.copy(f"{h.dir}/{name}", f"{keep}/{h.name}/{name}")
