# SPDX-License-Identifier: MIT
"""case_daemon.py: daemons that are killed, stopped for a while, or come back."""
import signal
import time

import fault
from fault import Fault
from host import until


def _kill(lab, name, moment):
    """kill -9 of one of three: with two needed the others go on; with all needed, an error."""

    def inflict():
        lab.hosts[2].cnnd.send_signal(signal.SIGKILL)

    with Fault(lab, f"{name}, two of three needed", moment, min_hosts=2) as f:
        f.go(inflict)
        if f.wanted:
            f.goes_on([0, 1])
        else:  # no merge for a long while: they are to stay, and to stop when they are told
            time.sleep(2)
            lab.tap.ok(lab.job(0) and lab.job(1), "the others go on", f.statement.text())
        row = f.stopped("node2")
        f.same_commit([0, 1])
        lab.tap.ok(row and row["rows"] == lab.rows, "rows counts what was fed")
        f.afterwards()
    with Fault(lab, f"{name}, all needed", moment) as f:
        f.go(inflict)
        f.error("node2")
        f.jobs_gone([0, 1])
        number, _ = f.same_commit([0, 1], True) or (None, None)
        lab.tap.ok(number is not None and number >= f.wanted, f"it is merge {number}")
        f.afterwards()


def kill_in_step(lab):
    _kill(lab, "kill -9 of a cnnd in a step", fault.STEP)


def kill_in_merge(lab):
    _kill(lab, "kill -9 of a cnnd in a merge", fault.MERGE)


def kill_between(lab):
    _kill(lab, "kill -9 of a cnnd between merges", fault.BETWEEN)


def kill_leader(lab):
    """The coordinator's own daemon keeps the membership: without it nobody goes on."""
    with Fault(lab, "kill -9 of the coordinator's cnnd", fault.BETWEEN, min_hosts=2) as f:
        f.go(lambda: lab.hosts[0].cnnd.send_signal(signal.SIGKILL))
        f.error("cnnd", fault.NAMED)
        f.jobs_gone([1, 2])
        f.same_commit([1, 2], True)
        f.afterwards()


def restart(lab):
    """A daemon that is started anew has no rows: it waits for the next job."""
    with Fault(lab, "a restarted cnnd", fault.BETWEEN, min_hosts=2) as f:
        def inflict():
            lab.hosts[2].cnnd.send_signal(signal.SIGKILL)
            lab.hosts[2].cnnd.wait()
            lab.hosts[2].start_cnnd()

        f.go(inflict)
        f.goes_on([0, 1], fault.NAMED + 1)
        lab.tap.equal(lab.hosts[2].jobs(), [], "the new daemon is in no job")
        f.stopped("node2")
        f.same_commit([0, 1])
        f.afterwards()


def stop_short(lab):
    """2 s of standstill are waited for."""
    for moment, name in ((fault.MERGE, "in a merge"), (fault.BETWEEN, "between merges")):
        with Fault(lab, f"SIGSTOP of a cnnd for 2 s {name}", moment) as f:
            def inflict():
                lab.hosts[1].cnnd.send_signal(signal.SIGSTOP)
                time.sleep(2)
                lab.hosts[1].cnnd.send_signal(signal.SIGCONT)

            f.go(inflict)
            f.goes_on(range(lab.n), 5)
            f.stopped()
            f.same_commit(range(lab.n))
            f.afterwards(next_job=False)


def stop_long(lab):
    """20 s: lost after 4; the others go on, are stopped and end; then it wakes up and lets go."""
    with Fault(lab, "SIGSTOP of a cnnd for 20 s", fault.BETWEEN, min_hosts=2) as f:
        f.go(lambda: lab.hosts[1].cnnd.send_signal(signal.SIGSTOP))
        f.goes_on([0, 2], fault.SILENT)
        f.stopped("node1")
        f.same_commit([0, 2])
        lab.clean(3, [0, 2], "nothing is left on the others")
        time.sleep(max(0, 20 - f.since()))
        lab.hosts[1].cnnd.send_signal(signal.SIGCONT)
        f.afterwards(fault.REJOIN + 3)
    with Fault(lab, "SIGSTOP of a cnnd, all needed", fault.BETWEEN) as f:
        f.go(lambda: lab.hosts[1].cnnd.send_signal(signal.SIGSTOP))
        f.error("node1", fault.SILENT)
        f.jobs_gone([0, 2])
        f.same_commit([0, 2], True)
        f.afterwards(fault.REJOIN + 3)


def shutdown(lab):
    """SIGTERM: the daemon gives its job stop_timeout, then ends it; no error may come from elsewhere."""
    with Fault(lab, "SIGTERM of a cnnd", fault.BETWEEN) as f:
        f.go(lambda: lab.hosts[1].cnnd.send_signal(signal.SIGTERM))
        f.error("node1", 10)
        f.jobs_gone([0, 2])
        lab.tap.ok(until(lambda: lab.hosts[1].cnnd.poll() == 0, 10), "it ends with status 0")
        f.afterwards()


CASES = [kill_in_step, kill_in_merge, kill_between, kill_leader, restart, stop_short, stop_long, shutdown]
