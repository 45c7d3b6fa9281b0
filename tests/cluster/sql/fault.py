# SPDX-License-Identifier: MIT
"""fault.py: the course of a case: a training that lasts, a fault at a chosen moment, and what must be
true afterwards (architecture.md, failure rules)."""
import random
import re
import time

import proc
from host import until
from lab import LONG, train

NAMED = 5.0  # seconds until an error names the host, or the others go on
SILENT = 6.0  # the same where 4 s of silence tell
ENDED = 1.0  # seconds until a job that ends by a word is gone everywhere
REJOIN = 5.0  # rejoin_timeout of the rig's daemons (host.py)

# moment: (arguments, rate of all links in Mbit/s, merges to wait for)
STEP = ({"merge": "'average'", "merge_every": "'1000000'", "merge_warmup": 0}, None, 0)
MERGE = ({"merge": "'average'", "merge_every": "'1'", "architecture": "lab.net(512)"}, 20, 2)
BETWEEN = ({"merge": "'average'", "merge_every": "'1000'", "merge_warmup": 0}, None, 2)


class Fault:
    """One training with a fault in it. with Fault(...) as f: f.go(...); then the checks."""

    def __init__(self, lab, name, moment=BETWEEN, min_hosts=None, **more):
        self.lab, self.tap, self.name = lab, lab.tap, name
        arguments, self.rate, self.wanted = moment
        self.args = {**LONG, **arguments, **more}
        if min_hosts is not None:
            self.args["min_hosts"] = min_hosts
        self.job = None

    def __enter__(self):
        self.tap.prefix = f"{self.name}: "
        self.failed_before = self.tap.failed
        for i in range(self.lab.n):
            self.lab.hosts[i].mark()
            if self.rate:
                self.lab.net.rate(i, self.rate)
        self.statement = self.lab.begin(train(**self.args))
        good = self.lab.merged(self.wanted) and until(self._in_step, 10, .05)
        found = self.lab.job(0)
        self.job = found and found["id"]
        if not self.tap.ok(good and self.job, "a training runs on all hosts", self.statement.text()):
            self.__exit__(None, None, None)
            raise Broken(self.name)
        self.interval = self._interval()
        return self

    def _interval(self):
        """Seconds between two merges on this machine, today."""
        if not self.wanted:
            return 0
        before = self.lab.merges(0)
        return until(lambda: self.lab.merges(0) > before, 10, .01)

    def _in_step(self):
        jobs = [self.lab.job(i) for i in range(self.lab.n)]
        return all(j and (j["step"] > 0 or j["epoch"] > 0) for j in jobs)

    def __exit__(self, kind, value, trace):
        self.lab.repair()
        if self.statement.running():
            self.statement.finish(0)
        if self.tap.failed > self.failed_before:
            self.lab.explain()
        self.tap.prefix = ""
        return False

    def go(self, inflict):
        """inflict(): makes the fault, at a moment that is not always the same."""
        time.sleep(random.uniform(0, .1))
        self.begun = time.monotonic()
        inflict()

    def since(self):
        return time.monotonic() - self.begun

    # ---- what comes of it

    def error(self, host, limit=NAMED, text=None):
        """The statement ends with an error that names the host."""
        ended = self.statement.finish(limit + 10)
        took = self.since()
        self.tap.ok(ended, "the statement does not hang")
        said = self.statement.error()
        context = re.search(r'^CONTEXT:  node ".*', self.statement.text(), re.M)
        said += f" {context.group(0)}" if context else ""
        self.tap.ok(took <= limit, f"it ends within {limit:g} s ({took:.1f} s)")
        return self.tap.ok(said and (text or host) in said, f"the error names {text or host}: '{said[:150]}'",
                           self.statement.text())

    def goes_on(self, hosts, limit=NAMED):
        """The hosts merge again without the lost one."""
        before = {}

        def more():
            for i in hosts:
                j = self.lab.job(i)
                if not j:
                    return False
                # a merge that was under way when the fault came counts for nothing
                before.setdefault(i, j["merges"] + 1)
                if j["merges"] <= before[i]:
                    return False
            return True

        took = until(more, limit + 10, .05)
        return self.tap.ok(took and self.since() <= limit + 1 + 3 * self.interval, f"the others go on ({self.since():.1f} s)",
                           self.statement.text(), [self.lab.job(i) for i in hosts])

    def stopped(self, lost=None, seconds=15):
        """Stopped early, the training keeps its result. lost: the host that was lost, or None."""
        self.lab.stop()
        ended = self.statement.finish(seconds)
        row, n = self.statement.row(), 0 if lost is None else 1
        self.tap.ok(ended and row, f"it ends well when it is stopped ({self.statement.seconds:.1f} s)",
                    self.statement.text())
        self.tap.equal(row and (row["hosts"], row["lost"]), (self.lab.n, n), f"the result says that {n} hosts are lost")
        left = self.lab.hosts[0].sql("SELECT hosts FROM lab.model_history ORDER BY epoch DESC LIMIT 1", check=False)
        self.tap.equal(left, str(self.lab.n - n), "the history says how many are left")
        if n:
            self.tap.ok(re.search(f"WARNING:.*{lost}", self.statement.text()), f"a WARNING names {lost}",
                        self.statement.text())
        return row

    def same_commit(self, hosts, ended_early=False):
        """The last committed merge of the survivors: number and checksum. A job that was ended in the
        middle of a merge may leave hosts that had committed it already and others that had not."""
        found = []

        def good():
            found[:] = self.lab.commits(self.job, hosts)
            if not all(found):
                return False
            numbers = {n for n, _ in found}
            # one checksum for each number; there is none before the first merge
            return len(set(found)) == len(numbers) and max(numbers) - min(numbers) <= ended_early and \
                all(checksum or not n for n, checksum in found)

        self.tap.ok(until(good, 3), f"hosts {list(hosts)} ended with the same commit {found[0]}", found)
        return found[0]

    def jobs_gone(self, hosts, seconds=ENDED):
        took = until(lambda: all(self.lab.hosts[i].jobs() == [] for i in hosts), seconds + 5, .05)
        return self.tap.ok(took and took <= seconds + .3, f"its job is gone on hosts {list(hosts)} ({took:.1f} s)",
                           *[self.lab.hosts[i].jobs() for i in hosts])

    def afterwards(self, seconds=3, restarted=False, next_job=True):
        """Repaired; nothing is left, no database restarted, the next job works."""
        self.lab.repair()
        self.lab.clean(seconds)
        if not restarted:
            self.lab.never_restarted()
        if next_job:
            self.lab.next_works()


class Broken(Exception):
    """The case could not begin."""


def threads_of(lab, i):
    return proc.threads(lab.hosts[i].cnnd.pid)
