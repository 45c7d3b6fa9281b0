# SPDX-License-Identifier: MIT
"""soak.py: random faults in a row, each in a training of its own: nobody hangs, what ends well holds the
same bits on all hosts that are left, what does not says why, and nothing is left.
  run soak.py [FAULTS [SEED]]"""
import os
import random
import signal
import sys
import time

import fault
from host import until
from lab import LONG, Lab, train
from tap import Tap, bail


class Soak:
    """One fault: fields are what was drawn, for the message."""

    def __init__(self, lab, draw):
        self.lab = lab
        self.kind = draw.choice(KINDS)
        self.victim = draw.randrange(lab.n)
        self.min_hosts = draw.choice((2, 3))
        self.moment = draw.choice(("STEP", "MERGE", "BETWEEN"))
        self.delay = draw.uniform(0, .6)
        self.length = draw.choice((.5, 1.5, 7))
        self.begun_to_feed = draw.random() < .2  # the fault may come before the first step

    def __str__(self):
        length = f" for {self.length} s" if self.kind in LASTING else ""
        return (f"{self.kind.__name__} at host {self.victim}{length}, {self.moment} + {self.delay:.2f} s, "
                f"min_hosts {self.min_hosts}{', early' if self.begun_to_feed else ''}")

    def run(self):
        """The complaints."""
        lab = self.lab
        arguments, rate, _ = getattr(fault, self.moment)
        for i in range(lab.n):
            if rate:
                lab.net.rate(i, rate)
        s = lab.begin(train("soak", **{**LONG, **arguments}, min_hosts=self.min_hosts))
        if not self.begun_to_feed and not lab.merged(0, 15):
            return [f"no training: {s.text()}"]
        time.sleep(self.delay)
        found = lab.job(0)
        self.kind(self, s)
        bad = self.judge(s, found and found["id"])
        lab.repair()
        if not until(lambda: not lab.left_over(), fault.REJOIN + 6, .2):
            bad += lab.left_over()
        if self.kind not in RESTARTING:
            bad += [f"{h.name}: {line}" for h in lab.hosts for line in h.restarts()]
        for h in lab.hosts:
            with open(f"{h.dir}/postgres.log", "r+") as log:
                log.truncate(0)
        return bad

    def judge(self, s, job):
        lab = self.lab
        if self.kind is nothing or self.kind in LASTING:
            time.sleep(.5)
        lab.net.heal()
        # as long as silence, a vote and a new mesh may take
        end = time.monotonic() + 25
        while s.running() and time.monotonic() < end:
            lab.stop()
            if s.finish(1) if not s.running() else until(lambda: not s.running(), 1):
                break
        if s.running():
            s.finish(0)
            return [f"it hangs: {s.text()}", *[str(lab.job(i)) for i in range(lab.n)]]
        s.finish(0)
        row = s.row()
        if not row:
            return [] if s.error() or self.kind is psql_killed or self.kind in RESTARTING else [f"no word: {s.text()}"]
        left = row["hosts"] - row["lost"]
        if row["hosts"] != lab.n or left < self.min_hosts:
            return [f"hosts {row['hosts']}, lost {row['lost']}"]
        return self.same(job, left) if job else []

    def same(self, job, hosts):
        """As many hosts as were left hold the last commit."""
        lab = self.lab
        there = []

        def equal():
            there[:] = [c for c in lab.commits(job, [i for i in range(lab.n) if lab.hosts[i].cnnd.poll() is None]) if c]
            return there and sum(c == max(there) for c in there) >= hosts

        return [] if until(equal, 3) else [f"commits differ: {there}"]


# ---- faults

def nothing(soak, s):
    pass


def cnnd_killed(soak, s):
    soak.lab.hosts[soak.victim].cnnd.kill()


def cnnd_ended(soak, s):
    soak.lab.hosts[soak.victim].cnnd.terminate()


def cnnd_stopped(soak, s):
    cnnd = soak.lab.hosts[soak.victim].cnnd
    cnnd.send_signal(signal.SIGSTOP)
    time.sleep(soak.length)
    cnnd.send_signal(signal.SIGCONT)


def cnnd_restarted(soak, s):
    h = soak.lab.hosts[soak.victim]
    h.cnnd.kill()
    h.cnnd.wait()
    h.start_cnnd()


def link_silent(soak, s):
    soak.lab.net.silence(soak.victim, True)
    time.sleep(soak.length)
    soak.lab.net.silence(soak.victim, False)


def link_down(soak, s):
    soak.lab.net.link(soak.victim, False)
    time.sleep(soak.length)
    soak.lab.net.link(soak.victim, True)


def apart(soak, s):
    other = (soak.victim + 1) % soak.lab.n
    soak.lab.net.part(soak.victim, other, True)
    time.sleep(soak.length)
    soak.lab.net.part(soak.victim, other, False)


def cancelled(soak, s):
    soak.lab.hosts[0].sql(f"SELECT pg_cancel_backend({s.backend()})", check=False)


def psql_killed(soak, s):
    s.psql.kill()


def session_ended(soak, s):
    """Of the coordinator or of a node."""
    soak.lab.hosts[soak.victim].sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = "
                                    "'client backend' AND application_name <> 'lab'", check=False)


def session_killed(soak, s):
    for pid, _, _ in soak.lab.hosts[soak.victim].backends():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    until(lambda: soak.lab.hosts[soak.victim].sql("SELECT 1", check=False) == "1", 15)


def postmaster_killed(soak, s):
    soak.lab.hosts[soak.victim].pg.kill()
    soak.lab.hosts[soak.victim].pg.wait()


KINDS = [nothing, cnnd_killed, cnnd_ended, cnnd_stopped, cnnd_restarted, link_silent, link_down, apart, cancelled,
         psql_killed, session_ended, session_killed, postmaster_killed]
LASTING = [cnnd_stopped, link_silent, link_down, apart]
RESTARTING = [session_killed, postmaster_killed]


def main():
    faults = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    draw = random.Random(seed)
    tap = Tap()
    tap.note(f"{faults} faults, seed {seed}")
    lab = Lab(3, tap)
    lab.warm_up()
    for i in range(faults):
        one = Soak(lab, draw)
        start = time.monotonic()
        for h in lab.hosts:
            h.mark()
        bad = one.run()
        if not tap.ok(not bad, f"fault {i}: {one} ({time.monotonic() - start:.1f} s)", *bad):
            lab.explain()
    lab.next_works()
    lab.close()
    return tap.done()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        bail("interrupted")
