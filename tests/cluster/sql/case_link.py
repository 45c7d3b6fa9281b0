# SPDX-License-Identifier: MIT
"""case_link.py: links that are cut, with and without a sign, and networks that fall apart."""
import time

import fault
from fault import Fault
from host import until


def cut(lab):
    for way, name in ((lambda: lab.net.link(2, False), "a cable pulled"),
                      (lambda: lab.net.silence(2, True), "a link that drops all")):
        with Fault(lab, f"{name}, two of three needed", fault.MERGE, min_hosts=2) as f:
            f.go(way)
            f.goes_on([0, 1], fault.SILENT)
            f.stopped("node2")
            f.same_commit([0, 1])
            f.jobs_gone([2], 4 + fault.REJOIN + 2)
            f.afterwards(10)
    with Fault(lab, "a link that drops all, all needed", fault.BETWEEN) as f:
        f.go(way)
        f.error("node2", fault.SILENT)
        f.jobs_gone([0, 1])
        f.same_commit([0, 1], True)
        f.jobs_gone([2], 4 + fault.REJOIN + 2)
        f.afterwards(10)


def short(lab):
    """A second without a link is bridged by TCP, which sends again after .2, .6 and 1.4 s."""
    with Fault(lab, "a link that drops all for 1 s", fault.MERGE) as f:
        def inflict():
            lab.net.silence(2, True)
            time.sleep(1)
            lab.net.silence(2, False)

        f.go(inflict)
        f.goes_on(range(lab.n), 6)
        f.stopped()
        f.same_commit(range(lab.n))
        f.afterwards(next_job=False)


def coordinator(lab):
    """The coordinator alone is no majority, and the others have no leader: nobody goes on."""
    with Fault(lab, "the coordinator cut off", fault.MERGE, min_hosts=2) as f:
        f.go(lambda: lab.net.silence(0, True))
        f.error("node", fault.SILENT)
        f.jobs_gone([0])
        number = lab.merges(1)
        took = until(lambda: all(lab.hosts[i].jobs() == [] for i in (1, 2)), 4 + fault.REJOIN + 3, .05)
        lab.tap.ok(took, f"the others free the job ({took:.1f} s)", lab.hosts[1].jobs(), lab.hosts[2].jobs())
        commit = f.same_commit([1, 2], True)
        lab.tap.ok(commit and number in (-1, commit[0]), "they have not merged by themselves",
                   f"{number} then {commit}")
        f.afterwards(10)


def apart(lab):
    """Two nodes that do not reach each other, while the coordinator reaches both: one of them goes."""
    with Fault(lab, "two nodes apart, two of three needed", fault.MERGE, min_hosts=2) as f:
        f.go(lambda: lab.net.part(1, 2, True))
        time.sleep(fault.SILENT + 1)
        before = lab.merges(0)
        lab.tap.ok(until(lambda: lab.merges(0) > before, 5), "the coordinator goes on with one of them",
                   f.statement.text())
        f.stopped("node")
        there = [lab.commits(f.job, [i])[0] for i in range(lab.n)]
        lab.tap.ok(there[0] and there[0] in there[1:], "both ended with the same commit", there)
        f.afterwards(4 + fault.REJOIN + 3)
    with Fault(lab, "two nodes apart, all needed", fault.MERGE) as f:
        f.go(lambda: lab.net.part(1, 2, True))
        # both live and blame each other, but each was silent to the other: no second mesh is tried
        f.error("node", fault.NAMED)
        f.jobs_gone([0, 1, 2])
        f.same_commit([0, 1, 2], True)
        f.afterwards()


CASES = [cut, short, coordinator, apart]
