#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check.t: does a merged training converge? Small cells on Fashion-MNIST, assertions with room for
noise on both sides (every figure is reproducible: the same machine gives the same bits). TAP.
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import data
import plan
import study

CENTRE = dict(plan.CENTRE, data="fashion", rows=4000, epochs=3, lr=.04, seed=1, tune=False)
count = failed = 0


def ok(good, text):
    global count, failed
    count += 1
    failed += not good
    print("%sok %d - %s" % ("" if good else "not ", count, text), flush=True)


def cell(**change):
    row = study.run(dict(CENTRE, **change))
    if "error" in row:
        print("# %s: %s" % (json.dumps(change), row["error"]))
        row["result"] = dict(test_loss=float("nan"), test_accuracy=float("nan"))
        row["epochs"] = []
    return row


def loss(row):
    return row["result"]["test_loss"]


def percent(row):
    return 100 * row["result"]["test_accuracy"]


def gradients():
    """Synchronous gradients are the whole batch's, in a host and between hosts."""
    whole = cell(hosts=1, batch=128, merge=None, every=None)
    inside = cell(hosts=1, replicas=4, merge=None, every=None)
    between = cell(merge="gradient", every=None)
    ok(abs(loss(inside) / loss(whole) - 1) < 2e-3,
       "4 replicas of batch 32 against one of 128: loss %.5f, %.5f" % (loss(inside), loss(whole)))
    ok(abs(percent(inside) - percent(whole)) < .3, "... and accuracy %.2f %%, %.2f %%" % (
        percent(inside), percent(whole)))
    # other rows are together in a step, as each host has its own
    ok(abs(loss(between) - loss(whole)) < .05,
       "4 hosts: loss %.3f, as near as another order of rows is" % loss(between))
    ok(between["result"].get("identical"), "... and all hosts hold the same bits")
    return whole


def merged(whole):
    average = cell(hosts=4)
    apart = cell(merge="none", every=None)
    replicas = [r["loss"] for r in apart["result"].get("test_replicas", [])]
    ok(average["result"].get("identical"), "average every 8 steps: all hosts hold the same bits")
    ok(len(replicas) == 4 and loss(average) < min(replicas) - .02,
       "... the loss %.3f is below that of each replica trained apart (%s)" % (
           loss(average), ", ".join("%.3f" % r for r in replicas)))
    ok(abs(percent(average) - percent(whole)) < 2.5,
       "... accuracy %.2f %% against %.2f %% of one host with the same batch" % (
           percent(average), percent(whole)))
    d = average["result"].get("distances", [])
    first = [e["merges"] for e in average["epochs"]][:1]
    ok(first == [0] and len(d) > 5, "... no merge of weights in the first, synchronous epoch, then %d"
       % len(d))
    ok(len(d) > 5 and d[-1] < .2 * max(d), "... replicas are %.3g apart before the last merge, %.3g at"
       " most: the learning rate has gone to zero" % (d[-1] if d else -1, max(d or [-1])))
    mixed = cell(hosts=2, replicas=2)
    ok(mixed["result"].get("identical") and abs(percent(mixed) - percent(whole)) < 2.5,
       "2 hosts of 2 replicas: accuracy %.2f %%" % percent(mixed))
    again = cell(hosts=2, replicas=2)
    ok(again["result"].get("test_loss") == loss(mixed) and
       [e["loss"] for e in again["epochs"]] == [e["loss"] for e in mixed["epochs"]],
       "... a second run is the same to the last digit")


def skewed():
    gradient = cell(shards="sorted", merge="gradient", every=None)
    often = cell(shards="sorted")
    seldom = cell(shards="sorted", merge="madlib", every="epoch")
    ok(often["result"].get("skew", 0) > .6, "shards sorted by class: skew %.2f" % (
        often["result"].get("skew", 0)))
    ok(percent(often) > percent(seldom) + 5,
       "... average every 8 steps: %.2f %%, once an epoch: %.2f %%" % (
           percent(often), percent(seldom)))
    ok(percent(gradient) > percent(seldom) + 10, "... gradients: %.2f %%" % percent(gradient))


def functions():
    for merge in ("slowmo", "easgd", "adasum", "trimmed_mean", "median", "lookahead"):
        row = cell(merge=merge, epochs=2)
        ok(percent(row) > 60 and row["result"].get("identical"),
           "%s: %.2f %% after two epochs, the same bits on all hosts" % (merge, percent(row)))


def main():
    why = data.available("fashion")
    if why:
        print("Bail out! " + why)
        return 1
    whole = gradients()
    merged(whole)
    skewed()
    functions()
    print("1..%d" % count)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
