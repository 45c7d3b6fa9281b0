# SPDX-License-Identifier: MIT
"""case_feed.py: before the first step: rows that come slowly, rows that move."""
import re
import signal
import threading
import time

import fault
from host import until
from lab import LONG, train

# 4 KB a row, so that moving them takes a while on a slow link
LARGE = "SELECT id, decode(repeat(encode(image, 'hex'), 64), 'hex') AS image, label FROM rows"
WIDE = "replace(lab.net(8), '[null,8,8,1]', '[null,64,64,1]')"


def slow_feed(lab):
    """A join as the source, small rings, and a daemon that runs a tenth of the time."""
    lab.tap.prefix = "a join whose rows a slow daemon takes: "
    ending = threading.Event()

    def pulses():
        while not ending.is_set():
            lab.hosts[1].cnnd.send_signal(signal.SIGSTOP)
            time.sleep(.09)
            lab.hosts[1].cnnd.send_signal(signal.SIGCONT)
            time.sleep(.01)

    thread = threading.Thread(target=pulses)
    thread.start()
    try:
        source = f"SELECT a.id, a.image, b.label FROM ({LARGE}) a JOIN rows b USING (id)"
        s = lab.begin(train("slow_feed", source, architecture=WIDE, dependent="'label'", independent="'image'",
                            epochs=1, reshuffle="'on'"))
        done = s.finish(60)
        row = s.row()
    finally:
        ending.set()
        thread.join()
    lab.tap.ok(done, f"it ends ({s.seconds:.1f} s)", s.text())
    lab.tap.ok(row and row["rows"] == lab.rows and row["hosts"] == lab.n, "with all rows of all hosts", s.text())
    lab.clean()
    lab.next_works()
    lab.tap.prefix = ""


def reshuffle(lab):
    """Shards sorted by class: the skew is measured and removed, no row is lost or doubled."""
    tap = lab.tap
    tap.prefix = "reshuffle: "
    source = "SELECT id, image, label FROM sorted"
    for h in lab.hosts:
        h.sql("DROP TABLE IF EXISTS lab.sorted; CREATE TABLE lab.sorted AS SELECT i AS id, lab.image(i, c) AS image, "
              f"c AS label FROM (SELECT i, i * 4 / {lab.rows} AS c FROM generate_series(0, {lab.rows} - 1) i) s "
              f"WHERE i * {lab.n} / {lab.rows} = {h.i}; GRANT SELECT ON lab.sorted TO trainer")
    args = {"dependent": "'label'", "independent": "'image'", "id_column": "'id'", "seed": 5,
            "merge": "'average'", "merge_every": "'epoch'", "merge_warmup": 0, "epochs": 3}
    s = lab.run(train("sorted_on", source, **args))
    row = s.row()
    if tap.ok(row, "shards sorted by class train", s.text()):
        # label distributions (1,0,0..) against 1/4 each; host 0 has a third of the rows of one class and a bit
        tap.ok(row["skew_distance"] > .4 and abs(row["skew_ratio"] - 1) < .05,
               f"skew: distance {row['skew_distance']}, ratio {row['skew_ratio']}")
        tap.ok(.5 < row["rows_moved"] / lab.rows < .8, f"{row['rows_moved']} of {lab.rows} rows moved: about two thirds")
        tap.equal(row["rows"], lab.rows, "no row is lost or doubled")
    s = lab.run(train("sorted_off", source, reshuffle="'off'", **args))
    off = s.row()
    tap.ok(off and off["rows_moved"] == 0 and "WARNING" in s.text(), "off: nothing moves, a WARNING says so", s.text())
    if row and off:
        tap.ok(row["metrics"]["accuracy"] >= off["metrics"]["accuracy"],
               f"accuracy {row['metrics']['accuracy']} after the exchange, {off['metrics']['accuracy']} without")
    _other_placement(lab, args)
    lab.clean()
    lab.next_works()
    tap.prefix = ""


def _other_placement(lab, args):
    """The same rows on other hosts, exchanged: the same weights, bit for bit."""
    text = "SELECT md5(string_agg(data, '' ORDER BY part)) FROM sorted_on WHERE kind = 'weights'"
    first = lab.hosts[0].sql(text, role="trainer")
    for h in lab.hosts:
        h.sql("TRUNCATE lab.sorted; INSERT INTO lab.sorted SELECT i, lab.image(i, c), c FROM "
              f"(SELECT i, i * 4 / {lab.rows} AS c FROM generate_series(0, {lab.rows} - 1) i) s WHERE i % {lab.n} = {h.i}")
    lab.run(train("sorted_on", "SELECT id, image, label FROM sorted", reshuffle="'on'", **args))
    lab.tap.equal(lab.hosts[0].sql(text, role="trainer"), first, "rows loaded in another placement give equal weights")


def reshuffle_killed(lab):
    """kill -9 of a daemon, and a cancel, while rows move over slow links: an error, nothing left."""
    for name in ("a cnnd killed -9 while rows move", "a cancel while rows move"):
        lab.tap.prefix = f"{name}: "
        for i in range(lab.n):
            lab.net.rate(i, 4)
        s = lab.begin(train("moved", LARGE, architecture=WIDE, dependent="'label'", independent="'image'",
                            reshuffle="'on'", **LONG))
        moving = until(lambda: all("exchange" in str((lab.job(i) or {}).get("wait")) +
                                   str((lab.job(i) or {}).get("state")) for i in range(lab.n)), 20)
        lab.tap.ok(moving, "rows move", s.text(), [lab.job(i) for i in range(lab.n)])
        time.sleep(.2)
        begun = time.monotonic()
        if "killed" in name:
            lab.hosts[2].cnnd.send_signal(signal.SIGKILL)
        else:
            lab.hosts[0].sql(f"SELECT pg_cancel_backend({s.backend()})")
        s.finish(15)
        took = time.monotonic() - begun
        lab.tap.ok(("node2" if "killed" in name else "canceling") in s.text() and took < fault.NAMED,
                   f"an error within 5 s ({took:.1f} s): '{s.error()[:150]}'", s.text())
        live = [0, 1] if "killed" in name else range(lab.n)
        gone = until(lambda: all(lab.hosts[i].jobs() == [] for i in live), 3, .05)
        lab.tap.ok(gone, f"the job is gone on all hosts ({gone:.1f} s)")
        lab.repair()
        lab.clean(3)
        lab.never_restarted()
        lab.next_works()
    lab.tap.prefix = ""


def in_feed(lab):
    """Faults while rows come, a few each second, to a training and to a prediction."""
    tap = lab.tap
    lab.run(train("fed", epochs=2))
    slowly = "SELECT id, image, label FROM rows WHERE lab.slowly(id) >= 0"
    training = train("in_feed", slowly, dependent="'label'", independent="'image'", min_hosts=2)
    prediction = f"SELECT * FROM gpu_cnn_predict('fed', '{slowly}', 'never', 'image', 'id')"

    # a daemon learns the names of the others later on
    at2 = f"node2|{lab.net.address(2)}"

    def terminate(s):
        lab.hosts[1].sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gpu_cnn'")

    for what, text in (("a training", training), ("a prediction", prediction)):
        for name, inflict, said, limit in (
                ("kill -9 of a cnnd", lambda s: lab.hosts[2].cnnd.kill(), at2, fault.NAMED),
                ("a link that drops all", lambda s: lab.net.silence(2, True), at2, fault.SILENT),
                ("a node's session ended", terminate, "node1", fault.NAMED),
                ("psql killed -9", lambda s: s.psql.kill(), "", 2),
                ("a cancel", lambda s: lab.hosts[0].sql(f"SELECT pg_cancel_backend({s.backend()})"), "canceling", 1.5)):
            tap.prefix = f"{name} in the feed of {what}: "
            s = lab.begin(text)
            flows = until(lambda: all(j and j[0]["rows"] for j in (h.jobs() for h in lab.hosts)), 15, .05)
            tap.ok(flows, "rows come on all hosts", s.text())
            begun = time.monotonic()
            inflict(s)
            ended = s.finish(limit + 10)
            took = time.monotonic() - begun
            tap.ok(ended and took < limit and re.search(said, s.text()), f"it ends within {limit:g} s ({took:.1f} s): "
                   f"'{s.error()[:120]}'", s.text())
            lab.repair()
            lab.clean(4 + fault.REJOIN + 4 if "link" in name else 3)
        lab.never_restarted()
        lab.next_works()
    tap.prefix = ""


CASES = [slow_feed, in_feed, reshuffle, reshuffle_killed]
