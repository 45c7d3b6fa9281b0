# SPDX-License-Identifier: MIT
"""case_admission.py: jobs that want the same daemons at the same time."""
from lab import train


def admission(lab):
    """Two coordinators that name the same hosts in opposite order, 50 trainings each: all finish."""
    lab.tap.prefix = "admission: "
    rounds = 50
    _second_coordinator(lab)
    one = train("opposite", architecture="lab.net(8)", epochs=1, merge="'average'", merge_every="'epoch'",
                merge_warmup=0)
    text = f"SET client_min_messages = warning; DO $$ BEGIN FOR i IN 1 .. {rounds} LOOP EXECUTE $q${one}$q$; " \
        "END LOOP; END $$"
    both = [lab.begin(text, app=f"opposite{i}", at=i) for i in (0, 1)]
    good = [s.finish(150) for s in both]
    lab.tap.ok(all(good) and not any(s.error() for s in both),
               f"two times {rounds} trainings in {both[0].seconds:.0f} and {both[1].seconds:.0f} s",
               *[s.text() for s in both])
    lab.hosts[1].sql("DELETE FROM gpu_cnn_nodes")
    lab.clean()
    lab.never_restarted()
    lab.next_works()
    lab.tap.prefix = ""


def _second_coordinator(lab):
    """Host 1 coordinates, too: the last host first, then itself, host 0 last."""
    lab.nodes(1, [*range(lab.n - 1, 1, -1), 1, 0])


CASES = [admission]
