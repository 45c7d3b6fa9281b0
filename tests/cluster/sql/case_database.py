# SPDX-License-Identifier: MIT
"""case_database.py: statements, sessions and servers that end while a training runs."""
import os
import signal
import time

import fault
from fault import Fault
from host import until
from lab import train


def _ended(f, name, restarted=()):
    """The statement is over: its job is gone on every host within a second, and its sessions."""
    lab = f.lab
    f.jobs_gone(range(lab.n))
    for i in restarted:
        lab.tap.ok(until(lambda: lab.hosts[i].sql("SELECT 1", check=False) == "1", 15), f"{name}: the server is back")
    f.same_commit(range(lab.n), True)
    f.afterwards(restarted=bool(restarted))


def cancel(lab):
    with Fault(lab, "query cancel", fault.MERGE) as f:
        f.go(lambda: lab.hosts[0].sql(f"SELECT pg_cancel_backend({f.statement.backend()})"))
        f.error(None, 1.5, text="canceling statement due to user request")
        _ended(f, "cancel")


def timeout(lab):
    """statement_timeout at every phase of a job: 20 of them, from 1 ms on."""
    lab.tap.prefix = "statement_timeout: "
    bad = []
    for ms in range(1, 400, 20):
        s = lab.run(f"SET statement_timeout = {ms}; " + train("timed", epochs=100000, evaluate_every=100000), 10)
        if "statement timeout" not in s.error() or s.seconds > ms / 1000 + 1.5:
            bad.append(f"{ms} ms: {s.seconds:.1f} s, {s.text()[-300:]}")
    lab.tap.ok(not bad, "20 of them, each on time", *bad)
    lab.clean()
    lab.next_works()
    lab.tap.prefix = ""


def locked(lab):
    """A node whose feed waits for a lock on the table: a cancel ends it there, too."""
    lab.tap.prefix = "a table that is locked on a node: "
    locker = lab.begin("BEGIN; LOCK TABLE rows; SELECT pg_sleep(60)", role="postgres", at=1)
    until(lambda: lab.hosts[1].sql("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock'") != "0", 5)
    s = lab.begin(train("waits", epochs=1))
    lab.tap.ok(until(lambda: len(lab.hosts[1].backends()) > 1, 10), "a node waits")
    lab.hosts[0].sql(f"SELECT pg_cancel_backend({s.backend()})")
    begun = time.monotonic()
    s.finish(10)
    lab.tap.ok("canceling" in s.error() and time.monotonic() - begun < 1.5,
               f"a cancel ends it ({time.monotonic() - begun:.1f} s)", s.text())
    lab.tap.ok(until(lambda: len(lab.hosts[1].backends()) == 1, 2), "the node's session is gone",
               lab.hosts[1].backends())
    lab.hosts[1].sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE mode = 'AccessExclusiveLock'")
    locker.finish(5)
    lab.clean()
    lab.tap.prefix = ""


def psql_killed(lab):
    with Fault(lab, "psql killed -9", fault.BETWEEN) as f:
        f.go(lambda: f.statement.psql.send_signal(signal.SIGKILL))
        f.statement.finish(2)
        _ended(f, "psql killed")


def backend_terminated(lab):
    with Fault(lab, "the coordinator's backend terminated", fault.BETWEEN) as f:
        f.go(lambda: lab.hosts[0].sql(f"SELECT pg_terminate_backend({f.statement.backend()})"))
        f.error(None, 1.5, text="terminating connection")
        _ended(f, "terminated")


def backend_killed(lab):
    """kill -9: the server restarts its processes, as it does for any backend."""
    with Fault(lab, "the coordinator's backend killed -9", fault.MERGE) as f:
        pid = f.statement.backend()
        f.go(lambda: os.kill(pid, signal.SIGKILL))
        f.statement.finish(5)
        _ended(f, "killed", [0])
        _forget_restarts(lab)


def _node_backend(f, i):
    found = [p for p, app, _ in f.lab.hosts[i].backends()]
    f.tap.equal(len(found), 1, "the node has one session")
    return int(found[0]) if found else 0


def node_backend(lab):
    with Fault(lab, "a node's backend terminated", fault.BETWEEN) as f:
        pid = _node_backend(f, 1)
        f.go(lambda: lab.hosts[1].sql(f"SELECT pg_terminate_backend({pid})"))
        f.error("node1", 2)
        _ended(f, "terminated")
    with Fault(lab, "a node's backend killed -9", fault.MERGE) as f:
        pid = _node_backend(f, 2)
        f.go(lambda: os.kill(pid, signal.SIGKILL))
        f.error("node2", 2)
        _ended(f, "killed", [2])
        _forget_restarts(lab)


def postmaster(lab):
    with Fault(lab, "kill -9 of a node's postmaster", fault.BETWEEN) as f:
        f.go(lambda: lab.hosts[1].pg.kill())
        f.error("node1", fault.NAMED)
        lab.hosts[1].pg.wait()
        f.jobs_gone(range(lab.n), fault.NAMED)
        f.same_commit(range(lab.n), True)
        f.afterwards(5)


def _forget_restarts(lab):
    """What the test itself made the server log is not to be found by later cases."""
    for h in lab.hosts:
        with open(f"{h.dir}/postgres.log", "r+") as log:
            log.truncate(0)


CASES = [cancel, timeout, locked, psql_killed, backend_terminated, backend_killed, node_backend, postmaster]
