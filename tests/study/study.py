#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""study.py: the convergence study: runs cells, one process at a time, and reports on them.

  study.py standard        centre x merges x 3 seeds, within 30 minutes; into BUILD/study
  study.py full [GROUP[:ARM]..]  every group of plan.py, or some, in that order; goes on where it was
                           stopped; into docs/convergence
  study.py report          tables and plots of what docs/convergence holds

The learning rate of an arm is chosen by accuracy on rows held out of the training set, with a seed of
its own. The test set is read once a cell, after the last epoch.
"""
import json
import os
import subprocess
import sys
import time

import data
import nets
import plan
import report

BUILD = os.environ.get("BUILD", "build")
CELL = os.environ.get("STUDY_CELL", os.path.join(BUILD, "study/cell"))
DOCS = os.path.join(os.path.dirname(__file__), "../../docs/convergence")
MINUTES = int(os.environ.get("STUDY_MINUTES", 30))


def spec_of(cell):
    s = data.SETS[cell["data"]]
    spec = dict(architecture=nets.architecture(cell["net"], [s["h"], s["w"], s["c"]], s["classes"]),
                epochs=cell["epochs"], batch_size=cell["batch"], replicas=cell["replicas"],
                learning_rate=cell["lr"], seed=cell["seed"],
                lr_schedule="cosine(min_lr=0, warmup=%g)" % plan.LR_WARMUP)
    if cell["hosts"] > 1 and cell["merge"] != "none":
        spec["merge"] = cell["merge"]
        for key, name in (("every", "merge_every"), ("momentum", "merge_momentum"),
                          ("merge_warmup", "merge_warmup")):
            if cell[key] is not None:
                spec[name] = cell[key]
    return spec


def short(value):
    """Six digits are enough for a table."""
    if isinstance(value, float):
        return float("%.6g" % value)
    if isinstance(value, list):
        return [short(v) for v in value]
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    return value


def run(cell):
    s = data.SETS[cell["data"]]
    train, test = data.files(cell["data"], BUILD)
    args = dict(train=train, test=test, rows=cell["rows"], hosts=cell["hosts"],
                epochs=cell["epochs"], shards=cell["shards"],
                held=plan.TUNE_HELD if cell["tune"] else plan.HELD,
                apart=int(cell["merge"] == "none"), spec=json.dumps(spec_of(cell)), **s)
    out = subprocess.run([CELL] + ["%s=%s" % i for i in args.items()], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True,
                         env=dict(os.environ, OMP_NUM_THREADS="1"))
    if out.returncode:
        return dict(cell=cell, error=out.stderr.strip()[-300:])
    lines = [json.loads(line) for line in out.stdout.splitlines()]
    result = lines.pop()
    if cell["tune"]:	# the test set has no part in the choice
        result = {k: v for k, v in result.items() if not k.startswith("test")}
        result.pop("distances", None)
    elif cell["seed"] != 1:
        result.pop("distances", None)
    return short(dict(cell=cell, epochs=lines, result=result))


class Table:
    """Cells that were run, one a line of a file; a cell that is there is not run again."""

    def __init__(self, path):
        self.path, self.done = path, {}
        if os.path.exists(path):
            for line in open(path):
                row = json.loads(line)
                self.done[self.key(row["cell"])] = row

    @staticmethod
    def key(cell):
        return json.dumps(cell, sort_keys=True)

    def get(self, cell):
        return self.done.get(self.key(cell))

    def run(self, cell):
        row = self.get(cell)
        if not row:
            row = run(cell)
            row["date"] = time.strftime("%Y-%m-%d")
            self.done[self.key(cell)] = row
            with open(self.path, "a") as f:
                f.write(json.dumps(row) + "\n")
        return row


def cell_of(arm, lr, seed, tune):
    return dict(arm, lr=lr, seed=seed, tune=tune)


def held_accuracy(row):
    """Of the last epoch; a cell that failed or diverged is worse than any."""
    if row is None or "error" in row or not row["epochs"]:
        return -1
    last = row["epochs"][-1]
    return -1 if last["flags"] & 2 or last["held_accuracy"] is None else last["held_accuracy"]


def choose(table, arm, dry=False):
    """The arm's learning rate; None: cells of its choice have not been run."""
    factors = list(plan.GRID)
    while True:
        rows = {f: (table.get if dry else table.run)(
            cell_of(arm, plan.BASE_LR * f, plan.TUNE_SEED, True)) for f in factors}
        if any(r is None for r in rows.values()):
            return None
        best = max(factors, key=lambda f: (held_accuracy(rows[f]), -f))
        if held_accuracy(rows[best]) < 0 and min(factors) > plan.WIDEST[0]:
            factors.insert(0, min(factors) / 2)	 # all of them diverged
        elif best == max(factors) and best < plan.WIDEST[1]:
            factors.append(best * 2)
        elif best == min(factors) and best > plan.WIDEST[0]:
            factors.insert(0, best / 2)
        else:
            return plan.BASE_LR * best


def images(arm, seeds, tuned):
    """Rows that pass through the network, evaluation counted as a third of a training step."""
    size = {"mlp": .2, "cnn": 1, "resnet8": 6}.get(arm["net"], 4)
    each = arm["rows"] * arm["epochs"] + 20000 / 3
    return size * each * (seeds + (len(plan.GRID) if tuned else 0))


def go(table, groups, minutes):
    arms = [(g, name, arm, seeds, rate) for g, (_, _, seeds, arms, rate) in groups.items()
            for name, arm in arms.items() if not data.available(arm["data"])]
    start = time.time()
    total = sum(images(arm, seeds, rate(arm) == arm) for _, _, arm, seeds, rate in arms)
    if minutes:
        run(dict(plan.CENTRE, lr=.01, seed=1, tune=False, epochs=1, rows=2000))	 # files are made
        began = time.time()
        run(dict(plan.CENTRE, lr=.01, seed=1, tune=False, epochs=1))
        rate = (plan.CENTRE["rows"] + 20000 / 3) / (time.time() - began)
        print("# %d arms, predicted %.0f minutes at %.0f images/s" % (
            len(arms), total / rate / 60, rate), flush=True)
    left = []
    for group, name, arm, seeds, rate_of in arms:
        if minutes and time.time() - start > minutes * 60:
            left.append("%s: %s" % (group, name))
            continue
        lr = choose(table, rate_of(arm))
        scores = []
        for seed in range(1, seeds + 1):
            row = table.run(cell_of(arm, lr, seed, False))
            scores.append(report.accuracy(row))
        print("%6.1f min  %-16s %-30s lr %-6g %s" % (
            (time.time() - start) / 60, group, name, lr,
            " ".join("%.2f" % s if s is not None else "failed" for s in scores)), flush=True)
    print("# used %.1f minutes" % ((time.time() - start) / 60))
    for line in left:
        print("# not run, no time: " + line)


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else "standard"
    if what == "standard":
        why = data.available("cifar10")
        if why:
            print("# %s; Fashion-MNIST instead" % why)
            plan.CENTRE["data"] = "fashion"
        groups = plan.standard(plan.CENTRE["data"])
        folder = os.path.join(BUILD, "study/standard")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "cells.jsonl")
        if os.path.exists(path):
            os.remove(path)
        table = Table(path)
        go(table, groups, MINUTES - 2)
        report.write(table, groups, folder, choose)
    else:
        os.makedirs(DOCS, exist_ok=True)
        table = Table(os.path.join(DOCS, "cells.jsonl"))
        for wanted in (sys.argv[2:] or plan.FULL) if what == "full" else []:
            name, _, only = wanted.partition(":")
            group = list(plan.FULL[name])
            if only:
                group[3] = {only: group[3][only]}
            go(table, {name: group}, 0)
        report.write(table, plan.FULL, DOCS, choose)


if __name__ == "__main__":
    main()
