# SPDX-License-Identifier: MIT
"""case_plain.py: runs without faults: hosts that end equal, stopping, slow hosts and links."""
import fault
import proc
from fault import Fault
from host import until
from lab import train


def healthy(lab):
    """Every host ends with the same bits; the result counts all rows."""
    tap = lab.tap
    tap.prefix = "healthy: "
    for args in ({"merge": "'gradient'"}, {"merge": "'average'", "merge_every": "'4'"},
                 {"merge": "'diloco'", "merge_every": "'8'", "merge_wire": "'bf16'"}):
        s = lab.run(train("healthy", epochs=3, seed=7, **args))
        row = s.row()
        if not tap.ok(row, f"{args['merge']} trains ({s.seconds:.1f} s)", s.text()):
            lab.explain()
            continue
        tap.equal((row["rows"], row["hosts"], row["lost"]), (lab.rows, lab.n, 0), "rows, hosts and lost")
        tap.ok(row["merges"] > 0 and row["merge_bytes"] > 0, f"{row['merges']} merges, {row['merge_bytes']} bytes")
        tap.ok(row["metrics"]["accuracy"] > .9, f"accuracy {row['metrics']['accuracy']}")
        last = [next(j for j in h.status()["jobs"] if j.get("ended")) for h in lab.hosts]
        found = {(j["id"], j["merges"], j["checksum"]) for j in last}
        tap.ok(len(found) == 1 and last[0]["checksum"], "all hosts hold the same bits after the same merge", found)
        lab.clean()
    tap.equal(lab.hosts[0].sql("SELECT max(hosts) FROM healthy_history", role="trainer"), str(lab.n),
              "the history says how many hosts")
    lab.never_restarted()
    tap.prefix = ""


def again(lab):
    """Same seed and hosts: the same weights, bit for bit."""
    lab.tap.prefix = "healthy: "
    text = "SELECT md5(string_agg(data, '' ORDER BY part)) FROM again WHERE kind = 'weights'"
    sums = set()
    for _ in range(2):
        lab.run(train("again", epochs=2, seed=3, merge="'average'", merge_every="'4'"))
        sums.add(lab.hosts[0].sql(text, role="trainer"))
    lab.tap.ok(len(sums) == 1 and len(sums.pop()) == 32, "twice the same seed gives the same weights")
    lab.tap.prefix = ""


def session(lab):
    """Many jobs in one session, some of which fail on a node: no connection, no descriptor stays."""
    tap = lab.tap
    tap.prefix = "one session: "
    once = train("many", epochs=1)
    # fails on the host that has row 4
    fails = """DO $$ BEGIN PERFORM * FROM gpu_cnn_train('SELECT image, label FROM rows WHERE 1 / (id - 4) < 9', 'fails',
        architecture := lab.net(), dependent := 'label', independent := 'image');
        EXCEPTION WHEN division_by_zero THEN RAISE NOTICE 'caught'; END $$"""
    first, second = "SELECT pg_sleep(1.5)", "SELECT pg_sleep(1.6)"
    s = lab.begin([once, fails, once, first, *[once, fails] * 5, once, second])

    h = lab.hosts[0]

    def idle(text):
        """Descriptors of the backend, and sessions on nodes, while it sleeps."""
        asleep = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{s.app}' AND query = '{text}'"
        if not until(lambda: h.sql(asleep) == "1", 30):
            return None
        gone = until(lambda: not any(n.backends() for n in lab.hosts[1:]), 1)
        # without the server's own files
        held = sorted(t.split(":")[0] for t in proc.fds(s.backend()).values() if not t.startswith((h.dir, "/dev")))
        return held, bool(gone)

    before, after = idle(first), idle(second)
    tap.ok(s.finish(10) and s.text().count("caught") == 6 and s.text().count('{"model"') == 8, "jobs and errors", s.text())
    tap.ok(before and after and before[1] and after[1], "no session is left on a node between jobs", before, after)
    tap.ok(before and after and before[0] == after[0], "the backend holds no more descriptors", before, after)
    lab.clean()
    lab.never_restarted()
    tap.prefix = ""


def slow(lab):
    """One host behind a slow link: all wait for it, nobody is lost."""
    with Fault(lab, "slow link", fault.MERGE) as f:
        f.go(lambda: lab.net.rate(2, 2))
        before = lab.merges(0)
        f.goes_on(range(lab.n), 20)
        lab.tap.ok(lab.merges(0) > before, "merges go on")
        f.stopped(seconds=30)
        f.same_commit(range(lab.n))
        f.afterwards()


CASES = [healthy, again, session, slow]
